//! Handshakes that fail: each is counted by its reason, and said in the log with the client and the name.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use headway_test_support::server::get as get_page;
use rustls::version::{TLS12, TLS13};

use super::tools::*;
use crate::site::*;

/// The address from which a client speaks.
fn own(stream: &TcpStream) -> String {
    stream.local_addr().unwrap().to_string()
}

/// Has a client fail its handshake, and returns its address.
fn fail(mut stream: TlsStream) -> String {
    assert!(stream.write_all(b"x").is_err());
    let _ = rest(&mut stream.sock);
    own(&stream.sock)
}

#[test]
fn failed_handshakes_are_counted_by_reason_and_logged() {
    for handshakes in ["process", "inline"] {
        let settings = format!(
            "tls-minimum = \"1.3\"\ntls-handshakes = \"{handshakes}\"\ntls-handshake-timeout = \"500ms\""
        );
        let secured = Secured::start(&settings);
        let mut said = Vec::new();
        let mut expect = |client: String, why: &str| said.push(format!("{client}{why}"));
        // It is too old.
        let client = fail(secured.connect(&TLS12));
        expect(
            client,
            " for localhost failed: no TLS version in common (tls12 not offered or enabled)",
        );
        // It does not trust the certificate.
        let stranger = Arc::new(Certified::new().clients(&TLS13));
        let client = fail(secured.connect_as(stranger));
        expect(
            client,
            " for localhost failed: the client rejected the server's certificate (alert ",
        );
        // It speaks HTTP, or sends what is no record behind one.
        let mut stream = secured.connect_tcp();
        send(&mut stream, request("/file.txt"));
        assert_eq!(receive(&mut stream).unwrap().status, 400);
        expect(own(&stream), " failed: the client does not speak TLS");
        let mut stream = secured.connect_tcp();
        send(&mut stream, [22, 3, 1, 0, 5, 1, 0, 0, 1, 7]);
        rest(&mut stream);
        expect(
            own(&stream),
            " failed: the client sent an invalid message (",
        );
        // It says half of its hello and disconnects, or waits.
        let hello = hello(&secured);
        let mut stream = secured.connect_tcp();
        send(&mut stream, &hello[..100]);
        expect(own(&stream), " failed: the client disconnected");
        drop(stream);
        let mut stream = secured.connect(&TLS13);
        begin(&mut stream);
        stream.sock.read_exact(&mut [0]).unwrap();
        rest(&mut stream.sock);
        let why = " for localhost failed: it took longer than tls-handshake-timeout";
        expect(own(&stream.sock), why);
        // It only looks whether the port is open: no failure.
        drop(secured.connect_tcp());
        secured
            .server
            .wait_for("the ends", |_| secured.counter("connections_open") == 0);
        let page = get_page(&secured.server.status, "/metrics").2;
        for (reason, count) in [
            ("version", 1),
            ("certificate_rejected", 1),
            ("not_tls", 1),
            ("bad_message", 1),
            ("client_closed", 1),
            ("timeout", 1),
            ("other", 0),
        ] {
            let line =
                format!("headway_tls_handshakes_failed_total{{reason=\"{reason}\"}} {count}\n");
            assert!(page.contains(&line), "{line}: {page}");
        }
        assert_eq!(secured.counter("tls_handshakes_failed"), 6);
        is_well_over_tls(&secured);
        let printed = secured.server.stop();
        assert_said(&printed, &said);
    }
}

fn assert_said(printed: &str, said: &[String]) {
    for line in said {
        let line = format!("TLS handshake with {line}");
        assert!(printed.contains(&line), "{line}: {printed}");
    }
}

#[test]
fn flood_of_failed_handshakes_leaves_few_lines_in_the_log() {
    let secured = Secured::start("");
    for _ in 0..50 {
        let mut stream = secured.connect_tcp();
        send(&mut stream, [22, 3, 1, 0, 5, 1, 0, 0, 1, 7]);
        rest(&mut stream);
    }
    secured.server.wait_for("the failures", |_| {
        secured.counter("tls_failed_bad_message") == 50
    });
    let printed = secured.server.stop();
    let lines = printed.matches("TLS handshake with").count();
    // As many as are allowed at once, and one for each ten seconds that this test may take.
    assert!((5..15).contains(&lines), "{lines}: {printed}");
}
