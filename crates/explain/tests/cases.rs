//! The worked cases of the guide (docs/src/howto/explain.md), with the servers themselves: the first
//! sentence names the planted cause, on three repeats. `bench/explain-cases` shows what they print.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use headway_explain::{Keep, Report};
use headway_test_support::skip;

use crate::bed::{Observed, late_or_skip};
use crate::fuse::{LateFilesystem, Operation};
use crate::servers::{
    Running, apache, apache_of_files, nginx, nginx_with_full_log_disk, node, php_fpm, python,
};

const REPEATS: usize = 3;

fn observe(test: &str, server: &Running, clients: impl FnOnce() + Send) -> Option<Report> {
    let observed = Observed::of(test, server, Keep::default(), clients)?;
    Some(observed.report)
}

/// Repeats it, and compares the beginning of what `explain` says. `{}` in it is the server's name.
fn assert_named(test: &str, server: &Running, first_sentence: &str, clients: impl Fn() + Sync) {
    for repeat in 1..=REPEATS {
        let Some(report) = observe(test, server, &clients) else {
            return;
        };
        let text = headway_explain::text::render(&report, str::to_owned);
        println!("{test}, repeat {repeat}:\n{text}");
        let wanted = first_sentence.replace("{}", &report.server);
        assert!(report.summary.starts_with(&wanted), "not: {wanted}\n{text}");
    }
}

/// Clients at a time, each of which asks for these paths one after the other.
fn ask(port: u16, clients: usize, paths: &[&str]) {
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| paths.iter().for_each(|path| fetch(port, path)));
        }
    });
}

fn fetch(port: u16, path: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).expect("a socket");
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    let text = String::from_utf8_lossy(&response);
    assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
}

/// Needs: the program nginx: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn case_of_nginx_on_a_slow_file_system_is_named() {
    let test = "case_of_nginx_on_a_slow_file_system_is_named";
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let Some(server) = nginx(test, late.path(), "off", "") else {
        return;
    };
    late.schedule(&[(Operation::Lookup, &[20])]);
    let first = "nginx sleeps when it opens files or looks them up (openat, ";
    assert_named(test, &server, first, || ask(server.port, 4, &["/f1"; 10]));
    late.schedule(&[]);
}

/// Needs: the program apache2: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn sendfile_is_named_when_apache_sleeps_in_page_faults_of_mapped_files() {
    let test = "sendfile_is_named_when_apache_sleeps_in_page_faults_of_mapped_files";
    let late = match LateFilesystem::mount_for_all() {
        Ok(late) => late,
        Err(error) => return skip(test, &error),
    };
    for (sends, first) in [
        (false, "{} sleeps in page faults of mapped files (writev"),
        (true, "{} sleeps when it reads files (sendfile"),
    ] {
        let Some(server) = apache_of_files(test, late.path(), sends) else {
            return;
        };
        late.schedule(&[(Operation::Read, &[50])]);
        let report = observe(test, &server, || ask(server.port, 1, &["/f1"; 5]));
        let reads = late
            .answers()
            .iter()
            .filter(|answer| answer.operation == Operation::Read)
            .count();
        late.schedule(&[]);
        let Some(report) = report else { return };
        let text = headway_explain::text::render(&report, str::to_owned);
        println!("sendfile {sends}: {reads} reads\n{text}");
        let wanted = first.replace("{}", &report.server);
        assert!(report.summary.starts_with(&wanted), "not: {wanted}\n{text}");
        let is_named = report.advice[0].text.contains("`EnableSendfile On`");
        assert_eq!(is_named, !sends, "{text}");
    }
}

/// Needs: the program nginx: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn case_of_nginx_with_a_slow_log_disk_is_named() {
    let test = "case_of_nginx_with_a_slow_log_disk_is_named";
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let site = tempfile::tempdir().expect("a folder");
    std::fs::write(site.path().join("f1"), "hello").expect("written");
    let log = late.path().join("faccess.log");
    let Some(server) = nginx(test, site.path(), &log.display().to_string(), "") else {
        return;
    };
    late.schedule(&[(Operation::Write, &[20])]);
    let first = format!(
        "nginx sleeps when it writes its log (write, {})",
        log.display()
    );
    assert_named(test, &server, &first, || ask(server.port, 4, &["/f1"; 10]));
    late.schedule(&[]);
}

/// Needs: the program nginx: scripts/setup; root; BTF (Linux 6.3); clang at build; makes a mount
#[test]
fn case_of_nginx_with_a_full_log_disk_is_named() {
    let test = "case_of_nginx_with_a_full_log_disk_is_named";
    if !headway_test_support::is_root() {
        return skip(test, "root");
    }
    let site = tempfile::tempdir().expect("a folder");
    std::fs::write(site.path().join("f1"), "hello").expect("written");
    let Some((server, log)) = nginx_with_full_log_disk(test, site.path()) else {
        return;
    };
    let first =
        format!("nginx cannot write its log: the file system is full (write, {log}: ENOSPC). ");
    assert_named(test, &server, &first, || {
        // After such an error nginx does not write before its clock shows another second.
        std::thread::sleep(Duration::from_millis(1100));
        ask(server.port, 4, &["/f1"; 10]);
    });
}

/// Needs: the program apache2: scripts/setup; root; BTF (Linux 6.3); clang at build
#[test]
fn case_of_apache_prefork_with_too_few_processes_is_named() {
    let test = "case_of_apache_prefork_with_too_few_processes_is_named";
    let Some(server) = apache(test) else {
        return;
    };
    let first = "{} has no free process or thread that accepts connections";
    assert_named(test, &server, first, || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| keep_a_connection(server.port));
            }
        });
    });
}

/// Asks once, and leaves the connection open for a while.
fn keep_a_connection(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let request = b"GET /f1 HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut bytes = [0; 4096];
    assert!(stream.read(&mut bytes).expect("a response") > 0);
    std::thread::sleep(Duration::from_millis(300));
}

/// nginx in front of PHP, whose two processes are too few.
fn exhausted_fpm(test: &str, listen: &str, pass: &str) {
    let site = tempfile::tempdir().expect("a folder");
    std::fs::write(
        site.path().join("f.php"),
        "<?php usleep(50000); echo 'done';",
    )
    .expect("written");
    let Some(fpm) = php_fpm(test, listen) else {
        return;
    };
    let address = match listen.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => format!("unix:{listen}"),
    };
    let locations = format!(
        "location ~ \\.php$ {{ fastcgi_pass {pass}; fastcgi_param SCRIPT_FILENAME {}$uri; \
         fastcgi_param REQUEST_METHOD GET; }}",
        site.path().display()
    );
    let Some(server) = nginx(test, site.path(), "off", &locations) else {
        return;
    };
    let first = format!(
        "nginx waits for its upstream {} at {address}, which has no free process or thread",
        fpm.program
    );
    assert_named(test, &server, &first, || {
        ask(server.port, 8, &["/f.php"; 15])
    });
}

/// Needs: the programs nginx and php-fpm: scripts/setup; root; BTF (Linux 6.3); clang at build
#[test]
fn case_of_php_fpm_exhaustion_behind_nginx_is_named_on_tcp() {
    let port = crate::servers::free_port();
    exhausted_fpm(
        "case_of_php_fpm_exhaustion_behind_nginx_is_named_on_tcp",
        &port.to_string(),
        &format!("127.0.0.1:{port}"),
    );
}

/// Needs: the programs nginx and php-fpm: scripts/setup; root; BTF (Linux 6.3); clang at build
#[test]
fn case_of_php_fpm_exhaustion_behind_nginx_is_named_on_a_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fpm.sock");
    let path: &Path = &path;
    exhausted_fpm(
        "case_of_php_fpm_exhaustion_behind_nginx_is_named_on_a_unix_socket",
        &path.display().to_string(),
        &format!("unix:{}", path.display()),
    );
}

/// Needs: the program python3: scripts/setup; root; BTF (Linux 6.3); clang at build
#[test]
fn case_of_python_whose_handler_blocks_is_named() {
    let test = "case_of_python_whose_handler_blocks_is_named";
    let Some(server) = python(test) else {
        return;
    };
    let first = "A handler of {} blocks its thread: it sleeps in clock_nanosleep";
    assert_named(test, &server, first, || {
        ask(server.port, 4, &["/slow", "/hot", "/slow", "/hot"]);
    });
}

/// Needs: the program node; root; BTF (Linux 6.3); clang at build
#[test]
fn case_of_node_whose_handler_blocks_is_named() {
    let test = "case_of_node_whose_handler_blocks_is_named";
    let Some(server) = node(test) else {
        return;
    };
    let first = "A handler of {} blocks its thread: it sleeps in epoll_";
    assert_named(test, &server, first, || {
        ask(server.port, 4, &["/slow", "/hot", "/slow", "/hot"]);
    });
}
