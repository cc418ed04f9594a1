//! The command itself: its words, its status page, and a server beside it.

use super::support::{Backend, clients, exchange, folder, get, is_root, module, skip, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Output};

pub fn backend(root: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headway"));
    command.args(["backend", "--quiet", "--root"]).arg(root);
    if is_root() && !options.contains(&"--user") {
        command.args(["--user", "root"]);
    }
    command.args(options);
    command
}

pub fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn invalid_root_socket_or_user_is_an_error() {
    let folder = folder();
    let root = folder.path();
    let socket = root.join("socket").display().to_string();
    std::fs::write(root.join("file"), "").unwrap();
    let file = root.join("file").display().to_string();
    let none = root.join("none");
    for (root, options, why) in [
        (&*none, vec!["--socket", &socket], "cannot open the root"),
        (root, vec!["--socket", &file], "no socket"),
        (root, vec!["--socket", "/nonexistent/socket"], "cannot bind"),
        (
            root,
            vec!["--socket", &socket, "--allow-user", "no-such-user"],
            "give the number",
        ),
        (
            root,
            vec!["--socket", &socket, "--user", "no-such-user"],
            "there is no user \"no-such-user\" in /etc/passwd; give the number",
        ),
        (
            root,
            vec!["--socket", &socket, "--user", "root:no-such-group"],
            "there is no group \"no-such-group\" in /etc/group",
        ),
        (
            root,
            vec!["--socket", &socket, "--user", "4711"],
            "write 4711:GROUP",
        ),
        (
            root,
            vec!["--socket", &socket, "--helpers", "none"],
            "--helpers",
        ),
    ] {
        let output = backend(root, &options).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{options:?}: {}",
            stderr_text(&output)
        );
        assert!(
            stderr_text(&output).contains(why),
            "{options:?}: {}",
            stderr_text(&output)
        );
    }
    assert!(root.join("file").exists());
}

#[test]
fn status_page_shows_the_counters() {
    let folder = folder();
    let backend = Backend::start(folder.path(), &folder.path().join("socket"));
    assert_eq!(backend.counter("requests_total"), 0);
    assert!(get(&backend.status, "/").contains("0  Requests received."));
    // A page of elsewhere must not be able to read it.
    let response = exchange(
        &backend.status,
        b"GET / HTTP/1.1\r\nHost: rebound.test\r\n\r\n",
    );
    assert!(response.starts_with(b"HTTP/1.1 403 "));
    wait_until("no helper", || {
        backend.counter(r#"helpers{state="idle"}"#) == 1
    });
}

#[test]
fn service_ends_with_the_server_that_it_has_started() {
    let folder = folder();
    let socket = folder.path().join("socket");
    let service_arguments = |command: &str| {
        let socket = socket.to_str().unwrap().to_owned();
        [
            "--socket".into(),
            socket,
            "--".into(),
            "sh".into(),
            "-c".into(),
            command.to_owned(),
        ]
    };
    let run = |command: &str| {
        let arguments = service_arguments(command);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        backend(folder.path(), &arguments)
    };
    let look = format!("test -S {}", socket.display());
    let output = run(&look).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
    let output = run("exit 3").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr_text(&output).contains("exit status: 3"),
        "{}",
        stderr_text(&output)
    );
    assert!(!socket.exists());
    // A signal is passed on, and an end by it is not a failure. The command is not a child of a
    // shell, which would not pass the signal on.
    let mut running = run("exec sleep 1000").spawn().unwrap();
    wait_until("no socket", || socket.exists());
    let children = format!("/proc/{0}/task/{0}/children", running.id());
    wait_until("no child", || {
        let children = std::fs::read_to_string(&children).unwrap_or_default();
        let name =
            |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        children
            .split_whitespace()
            .any(|pid| matches!(name(pid).trim(), "sh" | "sleep"))
    });
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn command_is_named_when_it_cannot_be_started() {
    let folder = folder();
    let socket = folder.path().join("socket");
    let options = [
        "--socket",
        socket.to_str().unwrap(),
        "--",
        "/nonexistent/server",
    ];
    let output = backend(folder.path(), &options).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr_text(&output).contains("/nonexistent/server"),
        "{}",
        stderr_text(&output)
    );
}

/// A test may have a name space of mounts of its own.
pub fn may_mount() -> bool {
    let outcome = Command::new("unshare").args(["--mount", "true"]).output();
    is_root() && outcome.is_ok_and(|output| output.status.success())
}

/// `make install` of a folder, below a directory.
pub fn install(folder: &str, built: &Path, below: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder);
    let made = Command::new("make")
        .arg("-C")
        .arg(here)
        .arg(format!("OUT={}", built.display()))
        .arg(format!("DESTDIR={}", below.display()))
        .args(["PREFIX=/usr", "VERSION=1.2.3", "install"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{folder}: {}", stderr_text(&made));
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn clients_and_module_are_installed_in_the_system_directories() {
    let below = folder();
    install("clients", clients().unwrap(), below.path());
    for name in [
        "libheadway_open.so",
        "libheadway_open.a",
        "libheadway_preload.so",
    ] {
        assert!(below.path().join("usr/lib").join(name).is_file(), "{name}");
    }
    for name in ["headway_open", "headway_direct"] {
        let header = format!("usr/include/{name}.h");
        assert!(below.path().join(header).is_file(), "{name}");
        let pc = below.path().join(format!("usr/lib/pkgconfig/{name}.pc"));
        let pc = std::fs::read_to_string(pc).unwrap();
        for line in [
            "prefix=/usr".to_owned(),
            "Version: 1.2.3".to_owned(),
            format!("Libs: -L${{libdir}} -l{name}"),
        ] {
            assert!(pc.lines().any(|one| one == line), "{pc}");
        }
        assert!(!pc.contains('@'), "{pc}");
    }
    let python = below.path().join("usr/share/headway/headway_direct.py");
    assert!(python.is_file());
    match module() {
        Err(why) => skip(
            "clients_and_module_are_installed_in_the_system_directories",
            &why,
        ),
        Ok(module) => {
            install("apache", module.parent().unwrap(), below.path());
            let mods = below.path().join("etc/apache2/mods-available");
            assert!(mods.join("headway.load").is_file() && mods.join("headway.conf").is_file());
        }
    }
}
