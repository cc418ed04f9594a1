//! A file set, the FastCGI program beside it, and a server that runs the application in every way.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use headway_load::fileset::{self, Shape};
use serde_json::Value;
use tempfile::TempDir;

use crate::serving::Server;
use crate::site::counter;
use crate::start::Peer;

/// The program, in all its ways.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_headway-specweb99");

/// The locations, which are the ways.
pub const WAYS: [&str; 5] = [
    "/cgi-bin/headway-specweb99",
    "/direct",
    "/pipe",
    "/fastcgi",
    "/own",
];

/// A set of one directory and what runs on it.
pub struct Place {
    pub server: Server,
    _fastcgi: Peer,
    pub set: PathBuf,
    _folder: TempDir,
}

impl Place {
    pub fn new(test: &str, workers: u32) -> Place {
        Place::with(test, workers, &[])
    }

    /// The same with more words for the server.
    pub fn with(test: &str, workers: u32, more: &[&str]) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let set = make_set(folder.path());
        let fastcgi = start_fastcgi(test, &set);
        let configuration = folder.path().join("headway.toml");
        fs::write(&configuration, configured(folder.path(), &fastcgi)).unwrap();
        let workers = workers.to_string();
        let mut words = vec![
            "--workers",
            &workers,
            "--config",
            configuration.to_str().unwrap(),
        ];
        words.extend_from_slice(more);
        let server = Server::start_in(&set, &words);
        Place {
            server,
            _fastcgi: fastcgi,
            set,
            _folder: folder,
        }
    }

    /// Nothing has waited in a loop, and no worker has ended.
    pub fn is_well(&self) {
        let status = self.server.status();
        assert_eq!(status["total"]["trace"]["sleeps"], Value::Array(Vec::new()));
        assert_eq!(status["master"]["worker_deaths"], 0);
        assert_eq!(counter(&self.server, "aborted"), 0);
    }
}

/// A set with one directory of files, which other users may read and whose application they may
/// run.
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

/// The program as a FastCGI application of its own, on a socket.
pub fn start_fastcgi(test: &str, set: &Path) -> Peer {
    let arrange = |directory: &Path| {
        // Web servers with users of their own connect, too.
        open_to_all(directory, 0o755);
        let address = format!("unix:{}/socket", directory.display());
        let set = set.display().to_string();
        ["--fastcgi".to_owned(), address, "--root".to_owned(), set].to_vec()
    };
    let peer = Peer::start(test, &[PROGRAM], arrange);
    peer.expect("the program that has just been built")
}

fn configured(folder: &Path, fastcgi: &Peer) -> String {
    let set = folder.join("set");
    let root = format!("variables = {{ HEADWAY_SPECWEB99_ROOT = {set:?} }}");
    format!(
        "[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n{root}\n\
         [[location]]\nprefix = \"/direct\"\ndirect = [{PROGRAM:?}]\nconcurrency = 2\n{root}\n\
         [[location]]\nprefix = \"/pipe\"\npipe = [{PROGRAM:?}]\nconcurrency = 2\n{root}\n\
         [[location]]\nprefix = \"/fastcgi\"\nfastcgi = \"unix:{}\"\nkeepalive = 4\n\
         [[location]]\nprefix = \"/own\"\nspecweb99 = {{}}\n",
        Path::new(PROGRAM).parent().unwrap(),
        fastcgi.socket().display(),
    )
}
