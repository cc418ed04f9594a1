//! A file set, the FastCGI program beside it, and a server that runs the application over every
//! interface.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use headway_load::fileset::{self, Shape};
use headway_test_support::client::counter;
use headway_test_support::server::Server;
use headway_test_support::upstream::TestServer;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::headway_lab;

/// The program, for all its interfaces.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_headway-specweb99");

/// The locations, one per interface.
pub const WAYS: [&str; 5] = [
    "/cgi-bin/headway-specweb99",
    "/direct",
    "/pipe",
    "/fastcgi",
    "/own",
];

/// A set of one directory and the servers that use it.
pub struct Fixture {
    pub server: Server,
    _fastcgi: TestServer,
    pub set: PathBuf,
    _folder: TempDir,
}

impl Fixture {
    pub fn new(test: &str, workers: u32) -> Fixture {
        Fixture::with(test, workers, &[])
    }

    /// Like `new`, with more arguments for the server.
    pub fn with(test: &str, workers: u32, more: &[&str]) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let set = make_set(folder.path());
        let fastcgi = start_fastcgi(test, &set);
        let configuration = folder.path().join("headway.toml");
        fs::write(&configuration, configured(folder.path(), &fastcgi)).unwrap();
        let workers = workers.to_string();
        let mut arguments = vec![
            "--workers",
            &workers,
            "--config",
            configuration.to_str().unwrap(),
        ];
        arguments.extend_from_slice(more);
        let server = Server::start(headway_lab(), &set, &arguments);
        Fixture {
            server,
            _fastcgi: fastcgi,
            set,
            _folder: folder,
        }
    }

    /// Checks that no loop has blocked and no worker has ended.
    pub fn is_well(&self) {
        let status = self.server.status();
        assert_eq!(status["total"]["trace"]["sleeps"], Value::Array(Vec::new()));
        assert_eq!(status["master"]["worker_deaths"], 0);
        assert_eq!(counter(&self.server, "responses_aborted"), 0);
    }
}

/// A set with one directory of files that other users may read.
pub fn make_set(folder: &Path) -> PathBuf {
    let set = folder.join("set");
    let shape = Shape::SpecWeb99Dynamic { directories: 1 };
    fileset::create(&set, shape, 1, NonZeroUsize::MIN, &mut |_| ()).unwrap();
    open_to_all(folder, 0o777);
    let state = set.join(".specweb99");
    open_to_all(&state, 0o777);
    for entry in fs::read_dir(&state).unwrap() {
        open_to_all(&entry.unwrap().path(), 0o666);
    }
    set
}

pub fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Starts the program as a FastCGI application on a socket.
pub fn start_fastcgi(test: &str, set: &Path) -> TestServer {
    let arrange = |directory: &Path| {
        // Web servers with users of their own connect, too.
        open_to_all(directory, 0o755);
        let address = format!("unix:{}/socket", directory.display());
        let set = set.display().to_string();
        ["--fastcgi".to_owned(), address, "--root".to_owned(), set].to_vec()
    };
    let upstream = TestServer::start(test, &[PROGRAM], arrange);
    upstream.expect("the program that has just been built")
}

fn configured(folder: &Path, fastcgi: &TestServer) -> String {
    let set = folder.join("set");
    let root = format!("variables = {{ HEADWAY_SPECWEB99_ROOT = {set:?} }}");
    format!(
        "research.pipe = \"/pipe\"\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n{root}\n\
         [[location]]\nprefix = \"/direct\"\ndirect = [{PROGRAM:?}]\nconcurrency = 2\n{root}\n\
         [[location]]\nprefix = \"/pipe\"\ndirect = [{PROGRAM:?}]\nconcurrency = 2\n{root}\n\
         [[location]]\nprefix = \"/fastcgi\"\nfastcgi = \"unix:{}\"\nkeepalive = 4\n\
         [[location]]\nprefix = \"/own\"\napplication = \"specweb99\"\n",
        Path::new(PROGRAM).parent().unwrap(),
        fastcgi.socket().display(),
    )
}
