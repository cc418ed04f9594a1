//! Versions, resumed sessions, reloads of certificates, and what is counted.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use headway_test_support::server::get as get_page;
use headway_test_support::wait_until;
use rustix::process::Signal;
use rustls::HandshakeKind;
use rustls::version::{TLS12, TLS13};

use super::tools::*;
use crate::site::*;

fn master(secured: &Secured, name: &str) -> u64 {
    secured.server.status()["master"][name].as_u64().unwrap()
}

#[test]
fn sessions_are_resumed_by_all_workers_and_after_reloads_and_deaths() {
    for handshakes in ["process", "inline"] {
        let settings = format!("tls-handshakes = \"{handshakes}\"");
        let secured = Secured::start_with(Site::new(), 2, &settings);
        let server = &secured.server;
        let known = VERSIONS.map(|version| remembering(&secured, version));
        for clients in &known {
            assert!(!resumes(&secured, clients));
        }
        let of_each = |server: &Server| {
            let status = server.status();
            let workers = status["workers"].as_array().unwrap().iter();
            let resumed = workers.map(|worker| {
                worker["counters"]["tls_handshakes_resumed"]
                    .as_u64()
                    .unwrap()
            });
            resumed.min().unwrap()
        };
        wait_until("both workers have resumed sessions", || {
            // Open at the same time, so that one worker does not get all.
            let mut streams: Vec<_> = (0..20)
                .map(|_| secured.connect_as(known[0].clone()))
                .collect();
            for stream in &mut streams {
                ask(stream, "/file.txt");
                assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
            }
            of_each(server) > 2
        });
        assert!(known.iter().all(|clients| resumes(&secured, clients)));
        let before = server.children("serve-worker");
        server.signal(Signal::HUP);
        server.wait_for("the reload", |_| master(&secured, "reloads") == 1);
        server.wait_for("the end of the workers before", |server| {
            let now = server.children("serve-worker");
            now.len() == 2 && !now.iter().any(|pid| before.contains(pid))
        });
        assert!(known.iter().all(|clients| resumes(&secured, clients)));
        let before = server.children("serve-handshakes");
        for process in &before {
            signal(*process, Signal::KILL);
        }
        server.wait_for("new handshake processes", |server| {
            let now = server.children("serve-handshakes");
            now.len() == before.len() && !now.iter().any(|pid| before.contains(pid))
        });
        for _ in 0..4 {
            assert!(known.iter().all(|clients| resumes(&secured, clients)));
        }
        is_well_over_tls_except_reloads(&secured);
    }
}

#[test]
fn sessions_are_resumed_after_an_upgrade() {
    for handshakes in ["process", "inline"] {
        let settings = format!("tls-handshakes = \"{handshakes}\"");
        let secured = Secured::start(&settings);
        let server = &secured.server;
        let known = VERSIONS.map(|version| remembering(&secured, version));
        assert!(!known.iter().any(|clients| resumes(&secured, clients)));
        let before = server.children("serve-worker");
        server.signal(Signal::USR2);
        server.wait_for("other workers", |server| {
            let now = server.children("serve-worker");
            now.len() == 1 && now != before
        });
        assert!(known.iter().all(|clients| resumes(&secured, clients)));
        is_well_over_tls_except_reloads(&secured);
    }
}

fn is_well_over_tls_except_reloads(secured: &Secured) {
    is_well_except(&secured.server, waits_for_listener);
}

#[test]
fn sessions_are_not_resumed_without_tickets() {
    let secured = Secured::start("tls-tickets = false");
    for version in VERSIONS {
        let clients = remembering(&secured, version);
        for _ in 0..3 {
            assert!(!resumes(&secured, &clients));
        }
    }
    assert_eq!(secured.counter("tls_handshakes_resumed"), 0);
    is_well_over_tls(&secured);
}

#[test]
fn handshakes_are_counted_by_result() {
    for handshakes in ["process", "inline"] {
        let settings = format!("tls-minimum = \"1.3\"\ntls-handshakes = \"{handshakes}\"");
        let secured = Secured::start(&settings);
        let clients = remembering(&secured, &TLS13);
        assert!(!resumes(&secured, &clients));
        assert!(resumes(&secured, &clients));
        assert!(resumes(&secured, &clients));
        // A client that is too old gets an alert.
        let mut old = secured.connect(&TLS12);
        let refused = old.write_all(b"x").unwrap_err().to_string();
        assert!(refused.contains("ProtocolVersion"), "{refused}");
        // One that does not trust the certificate sends an alert.
        let stranger = Arc::new(Certified::new().clients(&TLS13));
        let mut strange = secured.connect_as(stranger);
        assert!(strange.write_all(b"x").is_err());
        let _ = rest(&mut strange.sock);
        // One that sends an invalid record after its handshake is no failed handshake.
        let mut forging = secured.connect(&TLS13);
        ask(&mut forging, "/file.txt");
        forging.sock.write_all(&[23, 3, 3, 0, 20]).unwrap();
        forging.sock.write_all(&[7; 20]).unwrap();
        assert!(std::io::Read::read(&mut forging, &mut [0]).is_err());
        let page = get_page(&secured.server.status, "/metrics").2;
        for (metric, value) in [
            ("headway_tls_handshakes_total{result=\"full\"}", 2),
            ("headway_tls_handshakes_total{result=\"resumed\"}", 2),
            ("headway_tls_handshakes_total{result=\"failed\"}", 2),
            ("headway_tls_connections_failed_total", 1),
        ] {
            assert!(
                page.contains(&format!("{metric} {value}\n")),
                "{metric}: {page}"
            );
        }
        assert!(page.contains("\nheadway_loop_blocked_total"), "{page}");
        for line in page.lines() {
            if line.starts_with("headway_loop_blocked_total") {
                assert!(line.ends_with(" 0"), "{line}");
            }
        }
        is_well_over_tls(&secured);
    }
}

#[test]
fn new_certificate_is_shown_after_sighup_and_a_wrong_one_is_refused() {
    for handshakes in ["process", "inline"] {
        let secured = Secured::start(&format!("tls-handshakes = \"{handshakes}\""));
        let server = &secured.server;
        let first = Arc::new(secured.certified.clients(&TLS13));
        let mut established = secured.connect_as(first.clone());
        ask(&mut established, "/file.txt");
        // The key of another certificate.
        let (second, third) = (Certified::new(), Certified::new());
        second.write(&secured.site.path(""));
        let wrong = secured.site.path("tls.key");
        let right = fs::read(&wrong).unwrap();
        third.write(&secured.site.path("cgi"));
        fs::copy(secured.site.path("cgi/tls.key"), &wrong).unwrap();
        server.signal(Signal::HUP);
        server.wait_for("the refusal", |_| master(&secured, "reload_failures") == 1);
        ask(&mut secured.connect_as(first.clone()), "/file.txt");
        ask(&mut established, "/file.txt");
        fs::write(&wrong, right).unwrap();
        server.signal(Signal::HUP);
        server.wait_for("the reload", |_| master(&secured, "reloads") == 1);
        let last = ask(&mut established, "/file.txt");
        assert_eq!(last.field("connection"), Some("close"));
        assert_eq!(rest(&mut established), (Vec::new(), true));
        drop(established);
        let second = Arc::new(second.clients(&TLS13));
        // For a moment the worker before may still accept.
        wait_until("the new certificate", || {
            secured.connect_as(second.clone()).write_all(b"x").is_ok()
        });
        ask(&mut secured.connect_as(second), "/file.txt");
        is_well_over_tls_except_reloads(&secured);
        let printed = secured.server.stop();
        assert_eq!(printed.matches("reload failed").count(), 1, "{printed}");
        assert!(printed.contains("tls.key"), "{printed}");
    }
}

const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const V1: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 443\r\n";
const V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x01\xc3\x50\x01\xbb";

#[test]
fn proxy_header_in_front_of_a_handshake_names_the_client() {
    for handshakes in ["process", "inline"] {
        let site = Site::new();
        let show = "printf 'Content-Type: text/plain\\n\\n%s' \"$REMOTE_ADDR $REMOTE_PORT $HTTPS\"";
        site.program("who", show);
        let cgi = site.path("cgi");
        let settings = format!(
            "tls-handshakes = \"{handshakes}\"\ntrusted-proxies = \"{PROXY}\"\nproxy-protocol = true\nmax-connections-per-address = 2\n\
             [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}"
        );
        let secured = Secured::start_with(site, 1, &settings);
        let connect = || connect_between(PROXY, secured.address());
        let clients = Arc::new(secured.certified.clients(&TLS13));
        for header in [V1, V2] {
            let mut at_once = connect();
            let hello = hello(&secured);
            send(&mut at_once, [header, &hello].concat());
            std::io::Read::read_exact(&mut at_once, &mut [0]).unwrap();
            let mut in_pieces = connect();
            in_pieces.set_nodelay(true).unwrap();
            for byte in header {
                send(&mut in_pieces, [*byte]);
            }
            let mut stream = speak(in_pieces, clients.clone());
            for _ in 0..2 {
                let shown = ask(&mut stream, "/cgi-bin/who").text();
                assert_eq!(shown, "192.0.2.7 50000 on");
            }
            // It has as many connections as it may have.
            let mut third = connect();
            send(&mut third, [header, &hello].concat());
            assert_eq!(rest(&mut third).0, b"");
            drop((at_once, stream));
            wait_until("their ends", || secured.counter("connections_open") == 0);
        }
        assert_eq!(secured.counter("connections_rejected_per_address"), 2);
        // From others no header is expected, and without one the proxy is not served.
        let others = ask(&mut secured.connect_as(clients.clone()), "/cgi-bin/who");
        assert!(others.text().starts_with("127.0.0.1 "));
        for said in [
            &hello(&secured)[..],
            b"PROXY nonsense\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
        ] {
            let mut stream = connect();
            send(&mut stream, said);
            assert_eq!(rest(&mut stream).0, b"");
        }
        is_well_over_tls(&secured);
    }
}
