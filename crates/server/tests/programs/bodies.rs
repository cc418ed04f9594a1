//! Request bodies on their way to programs.

use std::io::Write;
use std::net::TcpStream;

use headway_test_support::disks::Mount;
use headway_test_support::skip;

use crate::site::*;

const ECHO: &str = "printf 'Content-Type: a/b\\nX-Length: %s\\n\\n' \"$CONTENT_LENGTH\"; cat";

#[test]
fn body_with_content_length_reaches_the_program() {
    let site = Site::new();
    site.program("echo", ECHO);
    for streams in ["socket", "pipe"] {
        let server = site.serve(&format!(
            "max-body-size = \"64MiB\"\nstreams = \"{streams}\""
        ));
        let mut stream = server.connect();
        // Small enough to come with the head, and large enough to fill every buffer.
        for size in [0, 1, 5_000, 3 << 20] {
            let body = contents(size);
            let response = send_and_receive(&mut stream, post("/cgi-bin/echo", &body));
            assert_eq!(response.field("X-Length"), Some(size.to_string().as_str()));
            assert!(
                response.body == body,
                "{streams}, {size}: {} bytes",
                response.body.len()
            );
        }
        assert_eq!(
            counter(&server, "connections_accepted"),
            1,
            "the connection stays"
        );
        is_well(&server);
    }
}

#[test]
fn chunked_body_gets_a_content_length() {
    let site = Site::new();
    site.program("echo", ECHO);
    let server = site.serve("");
    let mut stream = server.connect();
    for pause in [false, true] {
        let head = "POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        for part in [head, "3\r\nabc\r\n", "2;x\r\nde\r\n", "0\r\n\r\n"] {
            send(&mut stream, part);
            if pause {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        let response = receive(&mut stream).unwrap();
        assert_eq!(
            (response.field("X-Length"), response.text().as_str()),
            (Some("5"), "abcde")
        );
    }
}

#[test]
fn expect_100_continue_is_answered() {
    let site = Site::new();
    site.program("echo", ECHO);
    let server = site.serve("");
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        let mut stream = server.connect();
        let head = format!(
            "POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\n{framing}\r\nExpect: 100-continue\r\n\r\n"
        );
        send(&mut stream, head);
        let invited = receive_head(&mut stream).unwrap();
        assert_eq!(invited.status, 100, "{framing}");
        let body = if framing.starts_with('C') {
            "hello"
        } else {
            "5\r\nhello\r\n0\r\n\r\n"
        };
        send(&mut stream, body);
        assert_eq!(receive(&mut stream).unwrap().text(), "hello", "{framing}");
    }
}

#[test]
fn body_above_max_body_size_is_413() {
    let site = Site::new();
    site.program("echo", ECHO);
    let server = site.serve("max-body-size = \"10KiB\"");
    let request = "POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10241\r\n\r\n";
    assert_eq!(exchange(&server, request).status, 413);
    let expecting = request.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(exchange(&server, expecting).status, 413, "not invited");
    let head = "POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    assert_eq!(
        exchange(&server, format!("{head}{chunk}{chunk}{chunk}")).status,
        413
    );
    assert_eq!(exchange(&server, format!("{head}zz\r\n")).status, 400);
    assert_eq!(counter(&server, "handler_processes_started"), 0);
    is_well(&server);
}

#[test]
fn long_chunked_body_is_spooled_to_a_file() {
    let site = Site::new();
    site.program("echo", ECHO);
    let directory = site.path("notes");
    let server = site.serve_with(
        &format!("temp-directory = {directory:?}"),
        "max-body-size = \"8MiB\"",
    );
    let mut stream = server.connect();
    // Less than a chunk, several chunks exactly, and several chunks and a part of one.
    for size in [200_000, 4 * 262_144, 3_000_001] {
        let body = contents(size);
        let mut request =
            b"POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec();
        for part in body.chunks(30_000) {
            request.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\nGET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
        let response = send_and_receive(&mut stream, request);
        assert_eq!(response.field("X-Length"), Some(size.to_string().as_str()));
        assert!(
            response.body == body,
            "{size}: {} bytes",
            response.body.len()
        );
        assert_eq!(
            receive(&mut stream).unwrap().text(),
            "a file\n",
            "what follows is not lost"
        );
    }
    let spooled = counter(&server, "handler_request_spooled_bytes");
    assert!((4_000_000..4_100_000).contains(&spooled), "{spooled}");
    assert_eq!(
        std::fs::read_dir(&directory).unwrap().count(),
        0,
        "such files have no names"
    );
    is_well(&server);
}

#[test]
fn spool_failure_is_answered_with_an_error() {
    let site = Site::new();
    site.program("echo", ECHO);
    let directory = site.path("gone");
    std::fs::create_dir(&directory).unwrap();
    let server = site.serve_with(
        &format!("temp-directory = {directory:?}"),
        "max-body-size = \"8MiB\"",
    );
    std::fs::remove_dir(&directory).unwrap();
    let mut stream = server.connect();
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let head = "POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = format!("{:x}\r\n{}\r\n", 300_000, "x".repeat(300_000));
        // The server may close before it has read all of it.
        let _ = Write::write_all(&mut sender, format!("{head}{chunk}").as_bytes());
    });
    assert_eq!(receive(&mut stream).unwrap().status, 500);
    sending.join().unwrap();
    assert_eq!(counter(&server, "handler_processes_started"), 0);
    is_well(&server);
}

/// Needs: root: mounts a small file system in memory
#[test]
fn upload_gets_503_and_leaves_nothing_when_its_directory_is_full() {
    const NAME: &str = "upload_gets_503_and_leaves_nothing_when_its_directory_is_full";
    let mount = match Mount::memory("1m") {
        Ok(mount) => mount,
        Err(why) => return skip(NAME, &why),
    };
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
    let before = free();
    let site = Site::new();
    site.program("echo", ECHO);
    let server = site.serve_with(
        &format!("temp-directory = {:?}", mount.path()),
        "max-body-size = \"8MiB\"",
    );
    let upload = |stream: &mut TcpStream, bytes: usize| {
        let mut sender = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            // The server may close before it has read all of it.
            let _ = sender.write_all(&post("/cgi-bin/echo", &contents(bytes)));
        });
        let response = receive(stream).unwrap();
        sending.join().unwrap();
        response.status
    };
    // It has begun, and its file stays on the full disk meanwhile.
    let mut begun = server.connect();
    let whole = post("/cgi-bin/echo", &contents(600_000));
    send(&mut begun, &whole[..500_000]);
    server.wait_for("its file", |_| free() < before);
    for _ in 0..3 {
        assert_eq!(upload(&mut server.connect(), 4_000_000), 503);
        assert_eq!(upload(&mut server.connect(), 10_000), 200);
    }
    // At most its own 500,000 bytes are left in the file system.
    server.wait_for("room", |_| free() + 130 > before);
    send(&mut begun, &whole[500_000..]);
    assert!(receive(&mut begun).unwrap().body == contents(600_000));
    drop(begun);
    server.wait_for("the end of all files", |_| free() == before);
    assert_eq!(upload(&mut server.connect(), 600_000), 200);
    assert_eq!(counter(&server, "io_errors"), 0, "no disk is broken");
    is_well(&server);
}

#[test]
fn slow_body_times_out_and_its_program_is_killed() {
    let site = Site::new();
    site.program(
        "echo",
        "echo $$ >{notes}/pid; printf 'Content-Type: a/b\\n\\n'; cat",
    );
    let server = site.serve_with("body-timeout = \"300ms\"", "");
    let head = "POST /cgi-bin/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhal";
    let mut stream = server.connect();
    send(&mut stream, head);
    // The response has started, so closing the connection is the only way to report the error.
    let response = receive(&mut stream);
    assert!(response.is_err() || response.is_ok_and(|response| response.status == 408));
    assert_eq!(counter(&server, "timeouts_body"), 1);
    site.program("late", "read line; printf 'Content-Type: a/b\\n\\n'; cat");
    let head = head.replace("echo", "late");
    assert_eq!(
        exchange(&server, head).status,
        408,
        "nothing of the response had come"
    );
    let chunked =
        "POST /cgi-bin/late HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n";
    assert_eq!(exchange(&server, chunked).status, 408, "it was not started");
    server.wait_for("the programs' end", |server| {
        counter(server, "cgi_processes") == 0
    });
    is_well(&server);
}

#[test]
fn response_is_sent_when_the_program_ignores_the_body() {
    let site = Site::new();
    site.program(
        "ignores",
        "printf 'Content-Type: a/b\\nContent-Length: 4\\n\\ndone'",
    );
    site.program(
        "closes",
        "exec <&-; sleep 0.1; printf 'Content-Type: a/b\\n\\ndone'",
    );
    let server = site.serve("max-body-size = \"64MiB\"");
    for program in ["ignores", "closes"] {
        let mut stream = server.connect();
        let mut sender = stream.try_clone().unwrap();
        let request = post(&format!("/cgi-bin/{program}"), &contents(8 << 20));
        // The server may close before it has read all of it.
        let sending = std::thread::spawn(move || {
            let _ = Write::write_all(&mut sender, &request);
        });
        assert_eq!(receive(&mut stream).unwrap().text(), "done", "{program}");
        drop(stream);
        sending.join().unwrap();
    }
    is_well(&server);
}

#[test]
fn program_that_neither_reads_nor_writes_times_out() {
    let site = Site::new();
    site.program("deaf", "exec sleep 1000");
    let server = site.serve("max-body-size = \"64MiB\"\ntimeout = \"400ms\"");
    let mut stream = server.connect();
    let mut sender = stream.try_clone().unwrap();
    let request = post("/cgi-bin/deaf", &contents(8 << 20));
    let sending = std::thread::spawn(move || {
        let _ = Write::write_all(&mut sender, &request);
    });
    assert_eq!(receive(&mut stream).unwrap().status, 504);
    drop(stream);
    sending.join().unwrap();
    assert_eq!(counter(&server, "handler_timeouts"), 1);
    server.wait_for("the program's end", |server| {
        counter(server, "cgi_processes") == 0
    });
    is_well(&server);
}
