//! What programs and the server's own processes may do: no capabilities, no descriptors of others,
//! and a user of their own where one is configured.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::site::*;

use headway_test_support::skip;

const NONE: &str = "0000000000000000";
/// CAP_IPC_LOCK, number 14.
const IPC_LOCK: u64 = 1 << 14;

/// Prints the capability sets and the descriptors of the program.
const SHOW: &str = "read -r _ _ _ _ _ session rest </proc/$$/stat; [ $session = $$ ] && echo own session; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; for n in /proc/$$/fd/*; do [ -e $n ] && echo fd ${n##*/}; done";

/// A descriptor that programs started from here inherit, as after `exec 7</etc/shadow` in a shell.
fn inherited() -> OwnedFd {
    let file = File::open("/etc/passwd").unwrap();
    let high = rustix::io::fcntl_dupfd_cloexec(&file, 700).unwrap();
    rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
    high
}

/// What [`SHOW`] printed is that of a program without rights. Descriptors 10, 11 and 255 are the
/// shell's own, for the script.
fn assert_unprivileged(shown: &str) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(shown.contains(&format!("{set}:\t{NONE}")), "{shown}");
    }
    if rustix::process::geteuid().is_root() {
        assert!(shown.contains(&format!("CapBnd:\t{NONE}")), "{shown}");
    }
    assert!(shown.contains("NoNewPrivs:\t1"), "{shown}");
    // Without it, the terminal of the server's user would be the program's, too.
    assert!(shown.contains("own session"), "{shown}");
    let descriptors = shown.lines().filter_map(|line| line.strip_prefix("fd "));
    let others: Vec<&str> = descriptors
        .filter(|number| !["0", "1", "2", "10", "11", "255"].contains(number))
        .collect();
    assert_eq!(others, [""; 0], "{shown}");
}

#[test]
fn cgi_programs_have_no_capabilities_and_no_other_descriptors() {
    let _inherited = inherited();
    for top in ["", FORK_IN_SERVER] {
        let site = Site::new();
        let script = format!("printf 'Content-Type: text/plain\\n\\n'; {SHOW}");
        site.program("show", &script);
        let server = site.serve_with(top, "");
        let shown = get(&server, "/cgi-bin/show");
        assert_eq!(shown.status, 200);
        assert_unprivileged(&shown.text());
    }
}

#[test]
fn long_running_programs_have_no_capabilities_and_no_other_descriptors() {
    let _inherited = inherited();
    let site = Site::new();
    site.program(
        "show",
        &format!(
            "{{ {SHOW}; }} >{{notes}}/part.$$; mv {{notes}}/part.$$ {{notes}}/shown; sleep 60"
        ),
    );
    let command = site.path("cgi/show");
    let server = site.serve_configured(&format!(
        "research.pipe = \"/d/\"\n[[location]]\nprefix = \"/d/\"\ndirect = [{command:?}]\ntimeout = \"1s\"\n"
    ));
    let mut stream = server.connect();
    send(&mut stream, "GET /d/ HTTP/1.1\r\nHost: x\r\n\r\n");
    server.wait_for("the program", |_| site.note("shown").exists());
    assert_unprivileged(&fs::read_to_string(site.note("shown")).unwrap());
}

/// Needs: root, who alone is warned
#[test]
fn warning_is_printed_when_root_starts_the_server_and_its_programs() {
    const NAME: &str = "warning_is_printed_when_root_starts_the_server_and_its_programs";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, who alone is warned");
    }
    let site = Site::new();
    let printed = site.serve("").stop();
    assert!(printed.contains("running as root"), "{printed}");
    assert!(printed.contains("set program-user"), "{printed}");
    let printed = site.serve_configured("").stop();
    assert!(printed.contains("running as root"), "{printed}");
    assert!(!printed.contains("program-user"), "{printed}");
}

/// A line of `/proc/PID/status`.
fn status_of(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// Needs: root, who alone has capabilities to lose
#[test]
fn processes_of_the_server_have_no_capabilities_but_to_lock_memory() {
    const NAME: &str = "processes_of_the_server_have_no_capabilities_but_to_lock_memory";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, who alone has capabilities to lose");
    }
    let site = Site::new();
    site.program("hello", "printf 'Content-Type: text/plain\\n\\nhello'");
    let log = site.path("log");
    let top = format!("log = {log:?}\npin-max = \"1MiB\"\n",);
    let server = site.serve_with(&top, "");
    assert_eq!(get(&server, "/cgi-bin/hello").text(), "hello");
    for (kind, may) in [
        ("serve-worker", IPC_LOCK),
        ("serve-store", IPC_LOCK),
        ("serve-helper", 0),
        ("serve-log", 0),
        ("serve-spawner", 0),
    ] {
        let processes = server.children(kind);
        assert!(!processes.is_empty(), "{kind}");
        for pid in processes {
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
                let bits = u64::from_str_radix(&status_of(pid, set), 16).unwrap();
                let may = if set == "CapBnd:" { 0 } else { may };
                assert_eq!(bits & !may, 0, "{kind}: {set} {bits:x}");
            }
            assert_eq!(status_of(pid, "NoNewPrivs:"), "1", "{kind}");
            assert_eq!(status_of(pid, "NSsid:"), pid.to_string(), "{kind}");
        }
    }
}

/// Needs: root, to start programs as another user
#[test]
fn programs_run_as_the_configured_user_without_access_to_the_worker() {
    const NAME: &str = "programs_run_as_the_configured_user_without_access_to_the_worker";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, to start programs as another user");
    }
    let site = Site::new();
    site.open_to_all();
    let secret = site.path("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let script = format!(
        "printf 'Content-Type: text/plain\\n\\n'; id -u; id -g; cat {secret:?} 2>&1; \
         cat /proc/$PPID/environ >/dev/null 2>&1 || echo closed; {SHOW}"
    );
    site.program("show", &script);
    let server = site.serve_with("program-user = \"4711:4712\"\n", "");
    let shown = get(&server, "/cgi-bin/show").text();
    assert!(shown.starts_with("4711\n4712\n"), "{shown}");
    assert!(shown.contains("Permission denied"), "{shown}");
    assert_unprivileged(&shown);
    let worker = server.children("serve-worker")[0];
    assert_eq!(status_of(worker, "Uid:"), "0");
    // A program that is not wanted any more is killed all the same.
    site.program(
        "hangs",
        "echo $$ >/dev/null; printf 'Content-Type: text/plain\\n\\n'; exec sleep 1000",
    );
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /cgi-bin/hangs HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    server.wait_for("its start", |server| counter(server, "cgi_processes") == 1);
    drop(stream);
    server.wait_for("its end", |server| counter(server, "cgi_processes") == 0);
}

/// Needs: root, to be another user
#[test]
fn configuration_is_rejected_when_the_program_user_cannot_be_assumed_or_the_worker_forks() {
    const NAME: &str =
        "configuration_is_rejected_when_the_program_user_cannot_be_assumed_or_the_worker_forks";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, to be another user");
    }
    let site = Site::new();
    site.open_to_all();
    let check = |wrapper: &[&str], text: &str| {
        let file = site.path("check.toml");
        fs::write(&file, text).unwrap();
        let binary = Path::new(PROGRAM);
        let command = [wrapper, &[binary.to_str().unwrap(), "serve", "--check"]].concat();
        let output = Command::new(command[0])
            .args(&command[1..])
            .arg(site.path("root"))
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    };
    let user = "program-user = \"4711:4712\"\n";
    let (is_valid, why) = check(&["env"], user);
    assert!(is_valid, "{why}");
    let cgi = site.path("cgi");
    let forks = format!(
        "{user}research.fork-in-server = \"/c/\"\n[[location]]\nprefix = \"/c/\"\ncgi = true\nroot = {cgi:?}\n"
    );
    let (is_valid, why) = check(&["env"], &forks);
    assert!(!is_valid && why.contains("program-user"), "{why}");
    let other = ["setpriv", "--reuid=4713", "--regid=4713", "--clear-groups"];
    let (is_valid, why) = check(&other, user);
    assert!(
        !is_valid && why.contains("start the server as root"),
        "{why}"
    );
    let (is_valid, why) = check(&["env"], "program-user = \"no-such-user\"\n");
    assert!(!is_valid && why.contains("no-such-user"), "{why}");
}

/// Needs: root, to be another user
#[test]
fn all_processes_but_the_master_are_the_configured_user() {
    const NAME: &str = "all_processes_but_the_master_are_the_configured_user";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, to be another user");
    }
    let site = Site::new();
    site.open_to_all();
    site.file("root/secret.txt", "secret", 0o600);
    site.program(
        "show",
        &format!("printf 'Content-Type: text/plain\\n\\n'; id -u; id -G; {SHOW}"),
    );
    let log = site.path("notes/log");
    let top = format!("user = \"4711:4712\"\nlog = {log:?}\npin-max = \"1MiB\"\n");
    let server = site.serve_with(&top, "");
    assert_eq!(get(&server, "/file.txt").status, 200);
    assert_eq!(get(&server, "/secret.txt").status, 403);
    let shown = get(&server, "/cgi-bin/show").text();
    assert!(shown.starts_with("4711\n4712\n"), "{shown}");
    assert_unprivileged(&shown);
    assert_eq!(status_of(server.master(), "Uid:"), "0");
    let kinds = [
        "serve-worker",
        "serve-store",
        "serve-helper",
        "serve-log",
        "serve-spawner",
    ];
    for kind in kinds {
        let processes = server.children(kind);
        assert!(!processes.is_empty(), "{kind}");
        for pid in processes {
            assert_eq!(status_of(pid, "Uid:"), "4711", "{kind}");
            assert_eq!(status_of(pid, "Groups:"), "4712", "{kind}");
            let may = match kind {
                "serve-worker" | "serve-store" => IPC_LOCK,
                _ => 0,
            };
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                let bits = u64::from_str_radix(&status_of(pid, set), 16).unwrap();
                assert_eq!(bits & !may, 0, "{kind}: {set} {bits:x}");
            }
        }
    }
    // The worker sees its own sleeps as well as one of root's does.
    let level = |server: &Server| server.status()["total"]["trace"]["level"].clone();
    let of_root = Site::new().serve_configured("user = \"root\"\n");
    assert_eq!(level(&server), level(&of_root));
    assert!(!of_root.stop().contains("running as root"));
    // Nobody but the user may read the log.
    let printed = server.stop();
    assert!(printed.contains("as 4711:4712"), "{printed}");
    assert!(!printed.contains("root:"), "{printed}");
    assert!(fs::read_to_string(&log).unwrap().contains("/secret.txt"));
}

/// Needs: root, to be another user
#[test]
fn programs_are_their_own_user_when_the_server_is_another() {
    const NAME: &str = "programs_are_their_own_user_when_the_server_is_another";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, to be another user");
    }
    let site = Site::new();
    site.open_to_all();
    site.program("who", "printf 'Content-Type: text/plain\\n\\n'; id -u");
    let users = "user = \"4711:4712\"\nprogram-user = \"4713:4713\"\n";
    let server = site.serve_with(users, "");
    assert_eq!(get(&server, "/cgi-bin/who").text(), "4713\n");
    assert_eq!(
        status_of(server.children("serve-worker")[0], "Uid:"),
        "4711"
    );
}

/// Needs: root, to be another user
#[test]
fn server_does_not_start_when_the_user_may_not_read_the_root_or_write_the_log() {
    const NAME: &str = "server_does_not_start_when_the_user_may_not_read_the_root_or_write_the_log";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, to be another user");
    }
    let site = Site::new();
    let refused = |log: &[&str]| {
        let output = program()
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--workers",
                "1",
                "--user",
                "4711:4712",
            ])
            .args(log)
            .arg(site.path("root"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    site.open_to_all();
    fs::set_permissions(site.path("root"), Permissions::from_mode(0o700)).unwrap();
    let why = refused(&[]);
    assert!(
        why.contains("as 4711:4712") && why.contains("ermission denied"),
        "{why}"
    );
    fs::set_permissions(site.path("root"), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(site.path("logs")).unwrap();
    let log = site.path("logs/log");
    let why = refused(&["--log", log.to_str().unwrap()]);
    assert!(
        why.contains("access log as 4711:4712") && why.contains("ermission denied"),
        "{why}"
    );
}
