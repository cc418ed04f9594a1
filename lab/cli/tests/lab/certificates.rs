//! Headway whose certificate is on a file server that does not answer.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use headway_test_support::client::get;
use headway_test_support::server::{Server, kill};
use headway_test_support::{WAIT_MAX, wait_until};

use crate::common;

use super::outage::{local_root, mount_point, wait_until_forgotten};
use super::remote::{lab_with_files, order};
use super::support::Lab;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/tls/tests/data");

/// A certificate with its key, on a file server.
struct Remote {
    lab: Lab,
    certificate: PathBuf,
    key: PathBuf,
}

impl Remote {
    fn new(test: &str) -> Option<Remote> {
        let lab = lab_with_files(test)?;
        let script = format!(
            "mkdir tls && cp {DATA}/ec.crt.pem tls/site.pem && cp {DATA}/ec.pkcs8.pem tls/site.key"
        );
        order(&lab, &["fill", &lab.name, "--", "sh", "-c", &script]);
        let top = mount_point(&lab).join("tls");
        Some(Remote {
            lab,
            certificate: top.join("site.pem"),
            key: top.join("site.key"),
        })
    }

    fn options(&self) -> [&str; 6] {
        [
            "--tls-listen",
            "127.0.0.1:0",
            "--tls-certificate",
            self.certificate.to_str().expect("plain"),
            "--tls-key",
            self.key.to_str().expect("plain"),
        ]
    }

    fn stall(&self) {
        let name = &self.lab.name;
        order(&self.lab, &["disk", "--name", name, "stall", "120s"]);
        wait_until_forgotten(&self.certificate);
    }

    fn answer_again(&self) {
        order(&self.lab, &["disk", "--name", &self.lab.name, "model"]);
    }
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn start_fails_and_names_the_certificate_when_its_file_server_is_gone() {
    let test = "start_fails_and_names_the_certificate_when_its_file_server_is_gone";
    let Some(remote) = Remote::new(test) else {
        return;
    };
    let (folder, local) = local_root();
    let errors = folder.path().join("errors");
    remote.stall();
    let mut command = Command::new(common::headway());
    command.arg("serve").arg(&local);
    command.args(["--listen", "127.0.0.1:0"]);
    command.args(remote.options());
    command.stderr(fs::File::create(&errors).expect("room"));
    let mut child = command.spawn().expect("started");
    let shown = remote.certificate.display();
    let expected =
        format!("--tls-certificate: the file {shown}: its file system does not answer\n");
    let begun = Instant::now();
    let said = || fs::read_to_string(&errors).expect("text");
    while !said().contains(&expected) && begun.elapsed() < WAIT_MAX {
        thread::sleep(Duration::from_millis(50));
    }
    // A thread that waits for FUSE cannot be killed, so the process ends when it has an answer.
    let said = said();
    remote.answer_again();
    assert!(said.contains(&expected), "{said}");
    assert_eq!(child.wait().expect("a child").code(), Some(1), "{said}");
}

/// Threads of a process that look at certificates.
fn looks(server: &Server) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", server.master())).expect("a process");
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm"));
    let names = threads.flatten().filter_map(|entry| name(entry).ok());
    names.filter(|name| name.trim() == "certificates").count()
}

/// Needs: root: makes a lab (FUSE)
#[test]
fn master_works_on_while_the_file_server_of_its_certificate_is_gone() {
    let test = "master_works_on_while_the_file_server_of_its_certificate_is_gone";
    let Some(remote) = Remote::new(test) else {
        return;
    };
    let (_folder, local) = local_root();
    fs::write(local.join("file"), "local").expect("room");
    let mut arguments = vec!["--workers", "1"];
    arguments.extend(remote.options());
    let server = Server::start(Command::new(common::headway()), &local, &arguments);
    assert_eq!(get(&server, "/file").text(), "local");
    remote.stall();
    // It looks every 10 s.
    wait_until("a look that gets no answer", || looks(&server) > 0);
    let [worker] = server.children("serve-worker")[..] else {
        panic!("one worker");
    };
    kill(worker);
    server.wait_for("another worker", |server| {
        let now = server.children("serve-worker");
        !now.is_empty() && !now.contains(&worker)
    });
    assert_eq!(get(&server, "/file").text(), "local");
    assert_eq!(server.status()["master"]["worker_deaths"], 1);
    // The next look does not add another thread.
    thread::sleep(Duration::from_secs(11));
    assert_eq!(looks(&server), 1);
    remote.answer_again();
    wait_until("the end of the look", || looks(&server) == 0);
    let said = server.stop();
    let warning = "certificates are not checked for changes: a file system does not answer";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
}
