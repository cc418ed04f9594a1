//! Other servers with the committed configurations of `bench/peers`, which `bench/score` compares:
//! each runs the application, and the responses must equal those of Headway.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headway_test_support::upstream::TestServer;
use headway_test_support::{executable, skip};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::conversation::{conversed, responses_of_built_in};
use super::directories::{PROGRAM, make_set, start_fastcgi};

/// Timeout for things that must happen but are not timed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A web server with the application behind it; stopped when dropped.
struct Front {
    child: Child,
    address: String,
    folder: TempDir,
    _fastcgi: TestServer,
}

impl Front {
    /// `arrange` fills in the configuration in a folder and returns the arguments.
    fn start(test: &str, program: &str, arrange: impl Fn(&Filler) -> Vec<String>) -> Option<Front> {
        let program = PathBuf::from("/usr/sbin").join(program);
        if !program.exists() {
            skip(
                test,
                &format!("no {}; scripts/setup installs it", program.display()),
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let set = make_set(folder.path());
        let fastcgi = start_fastcgi(test, &set);
        // Servers that drop root privileges run a copy that their user can read.
        executable::copy(Path::new(PROGRAM), &folder.path().join("specweb99"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let filler = Filler {
            folder: folder.path(),
            address: &address,
            socket: &fastcgi.socket(),
        };
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(arrange(&filler))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut front = Front {
            child,
            address,
            folder,
            _fastcgi: fastcgi,
        };
        let begun = Instant::now();
        while TcpStream::connect(&front.address).is_err() {
            let ended = front.child.try_wait().unwrap();
            let waits = ended.is_none() && begun.elapsed() < TIMEOUT;
            assert!(waits, "{ended:?}\n{}", front.stderr_text());
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(front)
    }

    fn stderr_text(&self) -> String {
        let text = |name: &str| fs::read_to_string(self.folder.path().join(name));
        ["log", "apache2.error", "nginx.error"]
            .map(|name| text(name).unwrap_or_default())
            .concat()
    }

    /// Checks that both locations of the application answer like Headway's.
    fn converses(&self) {
        let expected = responses_of_built_in();
        for path in ["/specweb99", "/cgi-bin/specweb99"] {
            let connect = || {
                let stream = TcpStream::connect(&self.address).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                stream
            };
            let responses = conversed(&connect, path);
            for (at, (response, expected)) in responses.iter().zip(&expected).enumerate() {
                assert!(
                    response == expected,
                    "{path}, step {at}: {} {}\nexpected: {}\n{}",
                    response.0,
                    String::from_utf8_lossy(&response.1),
                    expected.0,
                    self.stderr_text()
                );
            }
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // The process ID cannot be reused before the process has been waited for.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// Fills in the placeholders of a committed configuration.
struct Filler<'f> {
    folder: &'f Path,
    address: &'f str,
    socket: &'f Path,
}

impl Filler<'_> {
    fn filled(&self, name: &str) -> String {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
        let text = fs::read_to_string(peers.join(format!("{name}.conf"))).unwrap();
        let (host, port) = self.address.split_once(':').unwrap();
        let shown = |path: &Path| path.display().to_string();
        let (user, group) = match geteuid().is_root() {
            true => ("nobody".to_owned(), "nogroup".to_owned()),
            false => (identity("-un"), identity("-gn")),
        };
        let values = [
            ("ROOT", shown(&self.folder.join("set"))),
            ("SCRATCH", shown(self.folder)),
            ("PROGRAM", shown(&self.folder.join("specweb99"))),
            ("SOCKET", shown(self.socket)),
            ("HOST", host.to_owned()),
            ("PORT", port.to_owned()),
            ("USER", user),
            ("GROUP", group),
            ("MPM", "event".to_owned()),
            ("CLIENTS", "8".to_owned()),
            ("CHILDREN", "1".to_owned()),
            ("THREADS", "8".to_owned()),
            (
                "WORKERS",
                if name == "lighttpd" { "0" } else { "1" }.to_owned(),
            ),
            ("CONNECTIONS", "64".to_owned()),
            ("FILES", "256".to_owned()),
            ("BACKLOG", "64".to_owned()),
            ("AIO", "off".to_owned()),
            ("MULTI_ACCEPT", "on".to_owned()),
            ("OPEN_FILE_CACHE", "off".to_owned()),
            (
                "ACCESS_LOG",
                if name == "nginx" { "off" } else { "" }.to_owned(),
            ),
        ];
        let fill = |text: String, (fixture, value): &(&str, String)| {
            text.replace(&format!("@{fixture}@"), value)
        };
        values.iter().fold(text, fill)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

fn identity(what: &str) -> String {
    let output = Command::new("id").arg(what).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Needs: the program apache2: scripts/setup
#[test]
fn apache_responses_are_identical() {
    let test = "apache_responses_are_identical";
    let apache = Front::start(test, "apache2", |filler| {
        let text = filler.filled("apache") + &filler.filled("apache-specweb99");
        let path = filler.write("apache.conf", &text);
        strings(&["-D", "FOREGROUND", "-f", &path])
    });
    if let Some(apache) = apache {
        apache.converses();
    }
}

/// Needs: the program nginx: scripts/setup
#[test]
fn nginx_responses_are_identical() {
    let test = "nginx_responses_are_identical";
    let nginx = Front::start(test, "nginx", |filler| {
        let http = filler.filled("nginx-specweb99-http");
        filler.write("nginx-http.conf", &http);
        let server = filler.filled("nginx-specweb99");
        filler.write("nginx-server.conf", &server);
        let path = filler.write("nginx.conf", &filler.filled("nginx"));
        let folder = filler.folder.display().to_string();
        strings(&["-e", "stderr", "-p", &folder, "-c", &path])
    });
    if let Some(nginx) = nginx {
        nginx.converses();
    }
}

/// Needs: the program lighttpd: scripts/setup
#[test]
fn lighttpd_responses_are_identical() {
    let test = "lighttpd_responses_are_identical";
    let lighttpd = Front::start(test, "lighttpd", |filler| {
        let text = filler.filled("lighttpd") + &filler.filled("lighttpd-specweb99");
        let path = filler.write("lighttpd.conf", &text);
        strings(&["-D", "-f", &path])
    });
    if let Some(lighttpd) = lighttpd {
        lighttpd.converses();
    }
}
