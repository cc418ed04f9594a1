//! Starts the servers of the worked cases, each on a free port with a configuration of its own.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use headway_test_support::{build_go, find_program, skip, wait_until};

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
    let port = free_port();
    let file = nginx_file(&folder, port, root, log, locations);
    let server = Running::start(&program, &["-c", &file], port, folder);
    Some(server.once_it_listens())
}

/// The same with a log on a file system that is full, in a mount namespace of its own; and the path of that log.
pub fn nginx_with_full_log_disk(test: &str, root: &Path) -> Option<(Running, String)> {
    let (program, folder) = found(test, &["nginx"])?;
    let Some(unshare) = find_program("unshare") else {
        skip(test, "the program unshare");
        return None;
    };
    let port = free_port();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).expect("our folder");
    let log = disk.join("access.log").display().to_string();
    let file = nginx_file(&folder, port, root, &log, "");
    let script = "mount -t tmpfs -o size=64k headway-full \"$1\" && touch \"$1/access.log\" || exit 1\n\
                  head -c 100000 /dev/zero >\"$1/rest\"\nexec \"$2\" -c \"$3\"";
    let [disk, program] = [&disk, &program].map(|path| path.display().to_string());
    let arguments = ["--mount", "sh", "-c", script, "sh", &disk, &program, &file];
    let server = Running::start(&unshare, &arguments, port, folder);
    Some((server.once_it_listens(), log))
}

/// Serves a folder, with the shortest accept queue.
pub fn nginx_of(test: &str, root: &Path) -> Option<Running> {
    let (program, folder) = found(test, &["nginx"])?;
    let port = free_port();
    let file = nginx_file(&folder, port, root, "off", "");
    let text = std::fs::read_to_string(&file).expect("just written");
    let listen = format!("listen 127.0.0.1:{port}");
    std::fs::write(&file, text.replace(&listen, &format!("{listen} backlog=1"))).expect("written");
    let server = Running::start(&program, &["-c", &file], port, folder);
    Some(server.once_it_listens())
}

/// Writes its configuration.
fn nginx_file(
    folder: &tempfile::TempDir,
    port: u16,
    root: &Path,
    log: &str,
    locations: &str,
) -> String {
    let (here, root) = (folder.path().display(), root.display());
    let text = format!(
        "daemon off; pid {here}/pid; error_log {here}/error.log; worker_processes 1; user root;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log {log}; client_body_temp_path {here}/b; proxy_temp_path {here}/p;\n\
         fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;\n\
         server {{ listen 127.0.0.1:{port}; root {root}; {locations} }} }}\n"
    );
    written(folder, "nginx.conf", &text)
}

/// Prefork with two processes.
pub fn apache(test: &str) -> Option<Running> {
    let (program, folder) = found(test, &["apache2"])?;
    written(&folder, "f1", "hello");
    let root = folder.path().to_owned();
    let more = "StartServers 2\nMinSpareServers 1\nMaxSpareServers 2\nServerLimit 2\nMaxRequestWorkers 2\nKeepAliveTimeout 5\n";
    apache_with(test, (program, folder), "prefork", (&root, more))
}

/// The event MPM with one process, which serves a folder.
pub fn apache_event(test: &str, root: &Path) -> Option<Running> {
    let found = found(test, &["apache2"])?;
    let more = "StartServers 1\nServerLimit 1\nThreadsPerChild 8\nMinSpareThreads 1\nMaxSpareThreads 8\n\
                MaxRequestWorkers 8\nKeepAliveTimeout 60\nMaxKeepAliveRequests 0\nEnableSendfile On\n";
    apache_with(test, found, "event", (root, more))
}

/// The same, with or without sendfile(2) instead of mapped files.
pub fn apache_of_files(test: &str, root: &Path, sends: bool) -> Option<Running> {
    let found = found(test, &["apache2"])?;
    let methods = match sends {
        true => "EnableMMAP Off\nEnableSendfile On\n",
        false => "EnableMMAP On\nEnableSendfile Off\n",
    };
    apache_with(test, found, "event", (root, methods))
}

fn apache_with(
    test: &str,
    (program, folder): (std::path::PathBuf, tempfile::TempDir),
    mpm: &str,
    (root, more): (&Path, &str),
) -> Option<Running> {
    let modules = Path::new("/usr/lib/apache2/modules");
    if !modules.join(format!("mod_mpm_{mpm}.so")).exists() {
        skip(test, "the modules of the program apache2");
        return None;
    }
    let (here, port) = (folder.path().display(), free_port());
    let text = format!(
        "ServerRoot {here}\nPidFile {here}/pid\nErrorLog {here}/error.log\nDefaultRuntimeDir {here}\nServerName localhost\n\
         LoadModule mpm_{mpm}_module {0}/mod_mpm_{mpm}.so\n\
         LoadModule authz_core_module {0}/mod_authz_core.so\n\
         Listen 127.0.0.1:{port}\nUser www-data\nGroup www-data\nDocumentRoot {root}\nKeepAlive On\n{more}",
        modules.display(),
        root = root.display(),
    );
    let file = written(&folder, "apache.conf", &text);
    let arguments = ["-D", "FOREGROUND", "-f", &file];
    let server = Running::start(&program, &arguments, port, folder);
    Some(server.once_it_listens())
}

/// One process, which serves a folder with the shortest accept queue.
pub fn lighttpd(test: &str, root: &Path) -> Option<Running> {
    let (program, folder) = found(test, &["lighttpd"])?;
    let (here, port, root) = (folder.path().display(), free_port(), root.display());
    let text = format!(
        "server.document-root = \"{root}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\n\
         server.errorlog = \"{here}/error.log\"\nserver.listen-backlog = 1\n\
         server.max-keep-alive-requests = 100000\nserver.max-keep-alive-idle = 60\n"
    );
    let file = written(&folder, "lighttpd.conf", &text);
    let server = Running::start(&program, &["-D", "-f", &file], port, folder);
    Some(server.once_it_listens())
}

/// Compiles `bed/files.go`.
pub fn go(test: &str, root: &Path) -> Option<Running> {
    let folder = tempfile::tempdir().expect("a folder");
    written(&folder, "files.go", include_str!("bed/files.go"));
    let program = folder.path().join("files");
    let Some(output) = build_go(folder.path(), "files.go", &program) else {
        skip(test, "the program go");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let port = free_port();
    let root = root.display().to_string();
    let server = Running::start(&program, &[&port.to_string(), &root], port, folder);
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
    script(
        test,
        python_program(),
        include_str!("bed/blocking.py"),
        None,
    )
}

/// asyncio, whose handlers read files of a folder.
pub fn python_of(test: &str, root: &Path) -> Option<Running> {
    script(
        test,
        python_program(),
        include_str!("bed/files.py"),
        Some(root),
    )
}

/// The handler of `/slow` waits for a child.
pub fn node(test: &str) -> Option<Running> {
    script(test, "node", include_str!("bed/blocking.js"), None)
}

/// Its handlers read files of a folder.
pub fn node_of(test: &str, root: &Path) -> Option<Running> {
    script(test, "node", include_str!("bed/files.js"), Some(root))
}

/// That of the system, not a script which starts another one.
fn python_program() -> &'static str {
    match Path::new("/usr/bin/python3").exists() {
        true => "/usr/bin/python3",
        false => "python3",
    }
}

/// A program with a script, whose arguments are a port and perhaps a folder.
fn script(test: &str, program: &str, text: &str, root: Option<&Path>) -> Option<Running> {
    let (program, folder) = found(test, &[program])?;
    let port = free_port();
    let script = written(&folder, "server.js", text);
    let mut arguments = vec![script, port.to_string()];
    arguments.extend(root.map(|root| root.display().to_string()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let server = Running::start(&program, &arguments, port, folder);
    Some(server.once_it_listens())
}
