//! The open-file service, Apache with and without our module, and what is compiled for them.

use std::fs::{self};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use headway_test_support::{is_root, make_cold, skip, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Patience for things that must happen but are not timed.
pub const TIMEOUT: Duration = Duration::from_secs(30);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn make(folder: &str) -> Result<PathBuf, String> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("flashpache-{folder}"));
    let made = Command::new("make")
        .arg("-C")
        .arg(repository().join(folder))
        .arg(format!("OUT={}", out.display()))
        .arg("CFLAGS=-Werror")
        .output()
        .map_err(|error| format!("make: {error}"))?;
    let stderr = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "make {folder}: {stderr}");
    Ok(out)
}

/// The folder of the compiled C clients.
pub fn clients() -> Result<&'static Path, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| make("clients"));
    made.as_deref().map_err(Clone::clone)
}

/// The compiled module, where there are Apache and its headers.
pub fn module() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        for program in ["apxs", "apache2"] {
            let there = ["/usr/bin", "/usr/sbin", "/usr/local/bin"]
                .iter()
                .any(|directory| Path::new(directory).join(program).is_file());
            if !there {
                return Err(format!("no {program}: scripts/setup installs it"));
            }
        }
        make("apache")
    });
    Ok(made.clone()?.join("mod_headway.so"))
}

/// A folder that Apache's user may pass through, on a file system with a page cache of the usual
/// kind.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap()
}

/// Says that something is over when it goes, so that threads which wait for that end with a test
/// that fails.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A running `headway backend`; ended when dropped.
pub struct Backend {
    child: Child,
    pub status: String,
}

impl Backend {
    pub fn start(root: &Path, socket: &Path) -> Backend {
        Backend::start_with(&[], root, socket)
    }

    /// With more words on its command line.
    pub fn start_with(options: &[&str], root: &Path, socket: &Path) -> Backend {
        Backend::start_under(&[], options, root, socket)
    }

    /// Starts the service as the arguments of another command, in whose place it runs. Keeps
    /// nothing, unless the words say so: most tests want files to be cold that were not a moment
    /// ago.
    pub fn start_under(command: &[&str], options: &[&str], root: &Path, socket: &Path) -> Backend {
        let nothing: &[&str] = match options.contains(&"--pin-max") {
            true => &[],
            false => &["--pin-max", "0"],
        };
        let user: &[&str] = match is_root() && !options.contains(&"--user") {
            true => &["--user", "root"],
            false => &[],
        };
        let program = [command, &[env!("CARGO_BIN_EXE_headway")]].concat();
        let mut child = Command::new(program[0])
            .args(&program[1..])
            .args(["backend", "--status", "127.0.0.1:0"])
            .args(["--allow-user", "www-data", "--allow-user", "nobody"])
            .args([nothing, user].concat())
            .args(options)
            .arg("--root")
            .arg(root)
            .arg("--socket")
            .arg(socket)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let status = line
            .split("http://")
            .nth(1)
            .unwrap_or_else(|| panic!("{line}"));
        Backend {
            child,
            status: status.trim_end().trim_end_matches('/').to_owned(),
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Ends it without a chance to tidy up.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// The value of one of the service's counters.
    pub fn counter(&self, name: &str) -> u64 {
        let text = get(&self.status, "/metrics");
        let name = format!("headway_open_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value
            .unwrap_or_else(|| panic!("{name}: {text}"))
            .parse()
            .unwrap()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // It may have been killed, and may be stopped.
        let _ = kill_process(self.pid(), Signal::TERM);
        let _ = kill_process(self.pid(), Signal::CONT);
        let _ = self.child.wait();
    }
}

/// A body by the simplest of requests.
pub fn get(address: &str, target: &str) -> String {
    let request = format!("GET {target} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let response = exchange(address, request.as_bytes());
    let response = String::from_utf8_lossy(&response).into_owned();
    response
        .split_once("\r\n\r\n")
        .unwrap_or_default()
        .1
        .to_owned()
}

/// Sends bytes, and reads until the server closes.
pub fn exchange(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The server may answer and close before all has arrived.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut response = Vec::new();
    match stream.read_to_end(&mut response) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!(
                "{}: no end after {}",
                String::from_utf8_lossy(bytes),
                String::from_utf8_lossy(&response)
            )
        }
        _ => response,
    }
}

/// Ports on which nothing listens; all at once, so that they differ.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Without connecting, since the server would serve that connection too.
fn is_listened_on(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().any(|line| {
        // Number, own address and port in hexadecimal, the other's, and the state.
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == LISTEN
    })
}

/// A running Apache; ended when dropped.
pub struct Apache {
    child: Child,
    pub address: String,
    /// The address of the counters: `address`, unless the configuration says `@STATUS@`.
    status: String,
    pub folder: tempfile::TempDir,
}

impl Apache {
    /// `configuration` has the places `@MPM@`, `@PORT@`, `@STATUS@` (a second port) and `@FOLDER@`
    /// filled in.
    pub fn start(mpm: &str, configuration: &str) -> Apache {
        Apache::start_under(&[], mpm, configuration)
    }

    /// Starts Apache as the arguments of another command, in whose place it runs.
    pub fn start_under(command: &[&str], mpm: &str, configuration: &str) -> Apache {
        let [port, second] = free_ports();
        let status = if configuration.contains("@STATUS@") {
            second
        } else {
            port
        };
        let folder = folder();
        let text = configuration
            .replace("@MPM@", mpm)
            .replace("@PORT@", &port.to_string())
            .replace("@STATUS@", &second.to_string())
            .replace("@FOLDER@", folder.path().to_str().unwrap());
        let file = folder.path().join("apache.conf");
        fs::write(&file, text).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let command_line = [command, &["/usr/sbin/apache2"]].concat();
        let child = Command::new(command_line[0])
            .args(&command_line[1..])
            .args(["-D", "FOREGROUND", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            // Its end is a SIGTERM for all of its group.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut apache = Apache {
            child,
            address: format!("127.0.0.1:{port}"),
            status: format!("127.0.0.1:{status}"),
            folder,
        };
        wait_until("Apache does not listen", || {
            let ended = apache.child.try_wait().unwrap();
            assert!(ended.is_none(), "Apache ended: {}", apache.log("error.log"));
            is_listened_on(port)
        });
        apache
    }

    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Ends it, and gives what a log has when all is written.
    pub fn end(mut self, name: &str) -> String {
        kill_process(self.pid(), Signal::TERM).unwrap();
        self.child.wait().unwrap();
        self.log(name)
    }

    /// A line of the module on the status page.
    pub fn counter(&self, name: &str) -> u64 {
        let text = get(&self.status, "/server-status?auto");
        let name = format!("Headway{name}: ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value
            .unwrap_or_else(|| panic!("{name}: {text}"))
            .parse()
            .unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        // The process id is not reused before the process has been waited for.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(self.pid(), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// What every configuration of these tests begins with. Apache gives up root's rights if it has
/// them.
pub fn base() -> String {
    let modules = [
        "alias",
        "allowmethods",
        "asis",
        "auth_basic",
        "authn_core",
        "authn_file",
        "authz_core",
        "authz_host",
        "authz_user",
        "autoindex",
        "deflate",
        "dir",
        "env",
        "expires",
        "filter",
        "headers",
        "include",
        "mime",
        "negotiation",
        "rewrite",
        "setenvif",
        "status",
        "substitute",
    ];
    let mut text = String::from(
        "ServerRoot @FOLDER@\nLoadModule mpm_@MPM@_module /usr/lib/apache2/modules/mod_mpm_@MPM@.so\n",
    );
    for name in modules {
        text += &format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    }
    if is_root() {
        text += "User www-data\nGroup www-data\n";
    }
    text + include_str!("base.conf")
}
