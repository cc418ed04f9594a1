//! Starts the servers of the worked cases, each on a free port with a configuration of its own.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use headway_test_support::{find_program, skip, wait_until};

/// A server, which ends with this.
pub struct Running {
    child: Child,
    pub port: u16,
    pub program: String,
    _folder: tempfile::TempDir,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn start(program: &Path, arguments: &[&str], port: u16, folder: tempfile::TempDir) -> Running {
        let log = std::fs::File::create(folder.path().join("output")).expect("a file");
        let child = Command::new(program)
            .args(arguments)
            // Apache ends its whole group, which would be that of the tests.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let name = program.file_name().expect("a program");
        Running {
            child,
            port,
            program: name.to_string_lossy().into_owned(),
            _folder: folder,
        }
    }

    fn once_it_listens(self) -> Running {
        wait_until("the server listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        self
    }
}

impl Drop for Running {
    /// Not SIGKILL, which would leave children behind.
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

pub fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address").port()
}

/// The program, and a folder that its processes of other users may read.
fn found(test: &str, names: &[&str]) -> Option<(std::path::PathBuf, tempfile::TempDir)> {
    let Some(program) = names.iter().find_map(|name| find_program(name)) else {
        skip(test, &format!("the program {}", names[0]));
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).expect("our folder");
    Some((program, folder))
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("written");
    file.display().to_string()
}

/// One worker.
pub fn nginx(test: &str, root: &Path, log: &str, locations: &str) -> Option<Running> {
    let (program, folder) = found(test, &["nginx"])?;
    let (here, port, root) = (folder.path().display(), free_port(), root.display());
    let text = format!(
        "daemon off; pid {here}/pid; error_log {here}/error.log; worker_processes 1; user root;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log {log}; client_body_temp_path {here}/b; proxy_temp_path {here}/p;\n\
         fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;\n\
         server {{ listen 127.0.0.1:{port}; root {root}; {locations} }} }}\n"
    );
    let file = written(&folder, "nginx.conf", &text);
    let server = Running::start(&program, &["-c", &file], port, folder);
    Some(server.once_it_listens())
}

/// Prefork with two processes.
pub fn apache(test: &str) -> Option<Running> {
    let modules = Path::new("/usr/lib/apache2/modules");
    let (program, folder) = found(test, &["apache2"])?;
    if !modules.join("mod_mpm_prefork.so").exists() {
        skip(test, "the modules of the program apache2");
        return None;
    }
    let (here, port) = (folder.path().display(), free_port());
    let text = format!(
        "ServerRoot {here}\nPidFile {here}/pid\nErrorLog {here}/error.log\nDefaultRuntimeDir {here}\nServerName localhost\n\
         LoadModule mpm_prefork_module {0}/mod_mpm_prefork.so\n\
         LoadModule authz_core_module {0}/mod_authz_core.so\n\
         Listen 127.0.0.1:{port}\nUser www-data\nGroup www-data\nDocumentRoot {here}\n\
         StartServers 2\nMinSpareServers 1\nMaxSpareServers 2\nServerLimit 2\nMaxRequestWorkers 2\n\
         KeepAlive On\nKeepAliveTimeout 5\n",
        modules.display()
    );
    let file = written(&folder, "apache.conf", &text);
    written(&folder, "f1", "hello");
    let arguments = ["-D", "FOREGROUND", "-f", &file];
    let server = Running::start(&program, &arguments, port, folder);
    Some(server.once_it_listens())
}

/// Two processes; `listen` is a port or the path of a socket.
pub fn php_fpm(test: &str, listen: &str) -> Option<Running> {
    let names = ["php-fpm8.2", "php-fpm8.3", "php-fpm8.4", "php-fpm"];
    let (program, folder) = found(test, &names)?;
    let port: u16 = listen.parse().unwrap_or(0);
    let address = match port {
        0 => listen.to_owned(),
        port => format!("127.0.0.1:{port}"),
    };
    let text = format!(
        "[global]\ndaemonize = no\nerror_log = /dev/stderr\nlog_level = error\n[test]\nuser = root\n\
         group = root\nlisten = {address}\npm = static\npm.max_children = 2\n"
    );
    let file = written(&folder, "fpm.conf", &text);
    let server = Running::start(&program, &["-F", "-R", "-y", &file], port, folder);
    if port == 0 {
        wait_until("php-fpm listens", || {
            std::os::unix::net::UnixStream::connect(listen).is_ok()
        });
        return Some(server);
    }
    Some(server.once_it_listens())
}

/// asyncio; the handler of `/slow` calls `time.sleep`.
pub fn python(test: &str) -> Option<Running> {
    // That of the system, not a script which starts another one.
    let (program, folder) = match Path::new("/usr/bin/python3") {
        path if path.exists() => (path.to_owned(), tempfile::tempdir().expect("a folder")),
        _ => found(test, &["python3"])?,
    };
    let port = free_port();
    let script = written(&folder, "server.py", include_str!("bed/blocking.py"));
    let arguments = [script.as_str(), &port.to_string()];
    let server = Running::start(&program, &arguments, port, folder);
    Some(server.once_it_listens())
}

/// The handler of `/slow` waits for a child.
pub fn node(test: &str) -> Option<Running> {
    let (program, folder) = found(test, &["node"])?;
    let port = free_port();
    let script = written(&folder, "server.js", include_str!("bed/blocking.js"));
    let arguments = [script.as_str(), &port.to_string()];
    let server = Running::start(&program, &arguments, port, folder);
    Some(server.once_it_listens())
}
