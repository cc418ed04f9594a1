//! What programs, upstreams and the log get about TLS and about the certificates of clients.

use std::io::Write;
use std::sync::Arc;

use rustls::version::{TLS12, TLS13};

use super::rules::Badge;
use super::tools::*;
use crate::site::*;
use crate::upstreams::faults::{FakeUpstream, read_head};

const FORGED: &str = "X-SSL-Client-Verify: SUCCESS\r\nX-SSL-Client-S-DN: CN=admin\r\n";

/// Answers with the headers of its request about TLS.
fn echoing_upstream() -> FakeUpstream {
    FakeUpstream::new(|mut stream| {
        let Some(head) = read_head(&mut stream) else {
            return;
        };
        let found: Vec<_> = head.lines().filter(|line| line.contains("SSL")).collect();
        let (text, length) = (found.join("\n"), found.join("\n").len());
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}");
        stream.write_all(response.as_bytes()).unwrap();
    })
}

/// The response to a client with this certificate, which forges headers.
fn forge(secured: &Secured, badge: Option<&Badge>, path: &str) -> String {
    let config = match badge {
        Some(badge) => badge.client(&secured.certified),
        None => Arc::new(secured.certified.clients(&TLS12)),
    };
    let mut stream = secured.connect_as(config);
    send(
        &mut stream,
        format!("GET {path} HTTP/1.1\r\nHost: test\r\n{FORGED}\r\n"),
    );
    receive(&mut stream).unwrap().text()
}

#[test]
fn programs_upstreams_and_the_log_get_the_clients_certificate() {
    for handshakes in ["process", "inline"] {
        let (site, badge, upstream) = (Site::new(), Badge::new(), echoing_upstream());
        badge.write(&site.path("clients.pem"));
        site.program(
            "show",
            "printf 'Content-Type: text/plain\\n\\n'; echo $HTTPS $SSL_PROTOCOL $SSL_CIPHER $SSL_TLS_SNI \
             $SSL_CLIENT_VERIFY $SSL_CLIENT_S_DN $SSL_CLIENT_I_DN ${#SSL_CLIENT_M_SERIAL}",
        );
        let (cgi, log) = (site.path("cgi"), site.path("access.log"));
        let (authority, address) = (site.path("clients.pem"), &upstream.address);
        let settings = format!(
            "tls-handshakes = \"{handshakes}\"\ntls-client-ca = {authority:?}\n\
             tls-client-certificate = \"optional\"\nlog = {log:?}\n\
             log-format = \"{{target}} {{tls-version}} {{tls-cipher}} {{tls-server-name}} {{tls-client}}\"\n\
             [[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\n\
             [[location]]\nprefix = \"/app/\"\nproxy = {address:?}\n"
        );
        let secured = Secured::start_with(site, 1, &settings);
        let [new, old] = [
            "TLSv1.3 TLS_AES_256_GCM_SHA384 localhost",
            "TLSv1.2 TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 localhost",
        ];
        let name = "CN=rcgen self signed cert";
        let known = forge(&secured, Some(&badge), "/cgi-bin/show");
        // The serial number is random.
        let (known, digits) = known.trim_end().rsplit_once(' ').unwrap();
        assert_eq!(known, format!("on {new} SUCCESS {name} {name}"));
        assert!(digits.parse::<usize>().unwrap() >= 8, "{digits}");
        let unknown = forge(&secured, None, "/cgi-bin/show");
        assert_eq!(unknown, format!("on {old} NONE 0\n"));
        let known = forge(&secured, Some(&badge), "/app/");
        let lines: Vec<_> = known.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "X-SSL-Client-Verify: SUCCESS".to_owned(),
                format!("X-SSL-Client-S-DN: {name}"),
                format!("X-SSL-Client-I-DN: {name}"),
            ]
        );
        assert!(lines[3].starts_with("X-SSL-Client-Serial: "), "{known}");
        assert_eq!(lines.len(), 4, "{known}");
        assert_eq!(forge(&secured, None, "/app/"), "");
        get(&secured.server, "/plain");
        let expected = [
            format!("/cgi-bin/show {new} {name}"),
            format!("/cgi-bin/show {old} -"),
            format!("/app/ {new} {name}"),
            format!("/app/ {old} -"),
            "/plain - - - -".to_owned(),
        ];
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        headway_test_support::wait_until("the log", || lines().lines().count() == 5);
        assert_eq!(lines().lines().collect::<Vec<_>>(), expected);
        is_well_over_tls(&secured);
    }
}

#[test]
fn resumed_sessions_still_have_the_certificate() {
    let (site, badge) = (Site::new(), Badge::new());
    badge.write(&site.path("clients.pem"));
    site.program(
        "show",
        "printf 'Content-Type: text/plain\\n\\n'; echo $SSL_SESSION_RESUMED $SSL_CLIENT_S_DN",
    );
    let (cgi, authority) = (site.path("cgi"), site.path("clients.pem"));
    let settings = format!(
        "tls-client-ca = {authority:?}\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\n"
    );
    let secured = Secured::start_with(site, 1, &settings);
    let mut config = (*badge.client(&secured.certified)).clone();
    config.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let config = Arc::new(config);
    for resumed in ["Initial", "Resumed"] {
        let mut stream = secured.connect_as(config.clone());
        let text = ask(&mut stream, "/cgi-bin/show").text();
        assert_eq!(text, format!("{resumed} CN=rcgen self signed cert\n"));
    }
    // A client without one is not served.
    let none = Arc::new(secured.certified.clients(&TLS13));
    let mut stream = secured.connect_as(none);
    stream.write_all(request("/cgi-bin/show").as_bytes()).ok();
    assert!(receive(&mut stream).is_err());
}
