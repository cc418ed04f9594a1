//! Connections from trusted proxies: whose requests they are, by X-Forwarded-For and by PROXY headers.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use crate::site::*;

/// The address of the proxy. Other connections come from 127.0.0.1.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const TRUSTED: &str = "trusted-proxies = \"127.0.0.9\"\n";
/// And expects PROXY headers from it.
const PREFACED: &str = "trusted-proxies = \"127.0.0.9\"\nproxy-protocol = true\n";

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 80\r\n";
/// The same in version 2, with a field of no interest.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x10\xc0\x00\x02\x07\xc0\x00\x02\x01\xc3\x50\x00\x50\x04\x00\x01\x00";

/// A site with a program that shows the client, and its log.
fn site() -> Site {
    let site = Site::new();
    let show = "printf 'Content-Type: text/plain\\n\\n%s' \"$REMOTE_ADDR $REMOTE_PORT $HTTPS\"";
    site.program("who", show);
    site
}

fn serve(site: &Site, top: &str) -> Server {
    let log = site.path("log");
    site.serve_with(&format!("{top}log = {log:?}\nlog-format = \"json\"\n"), "")
}

/// Asks the program on this connection.
fn who(stream: &mut TcpStream, lines: &str) -> String {
    let request = format!("GET /cgi-bin/who HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    send_and_receive(stream, request).text()
}

/// The clients in the log, in its order.
fn logged(site: &Site, server: Server) -> Vec<String> {
    server.stop();
    let text = fs::read_to_string(site.path("log")).unwrap();
    let client = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["client"].as_str().unwrap().to_owned()
    };
    text.lines().map(client).collect()
}

#[test]
fn header_of_a_trusted_proxy_names_the_client_of_each_request() {
    let site = site();
    let server = serve(&site, TRUSTED);
    let mut stream = connect_from(PROXY, &server);
    let port = stream.local_addr().unwrap().port();
    for (lines, expected) in [
        (
            "X-Forwarded-For: 198.51.100.1, 192.0.2.7\r\n",
            "192.0.2.7  ",
        ),
        ("", &format!("127.0.0.9 {port} ")),
        (
            "X-Forwarded-For: 2001:db8::1, 127.0.0.9\r\nX-Forwarded-Proto: https\r\n",
            "2001:db8::1  on",
        ),
        ("X-Forwarded-For: none\r\n", &format!("127.0.0.9 {port} ")),
    ] {
        assert_eq!(who(&mut stream, lines), expected, "{lines}");
    }
    drop(stream);
    let own = format!("127.0.0.9:{port}");
    let expected = ["192.0.2.7", &own, "2001:db8::1", &own];
    assert_eq!(logged(&site, server), expected);
}

#[test]
fn header_is_not_believed_when_the_sender_is_not_trusted() {
    let site = site();
    let forged = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n";
    let server = serve(&site, TRUSTED);
    let mut other = server.connect();
    let port = other.local_addr().unwrap().port();
    assert_eq!(who(&mut other, forged), format!("127.0.0.1 {port} "));
    // None is, by default.
    let server = serve(&site, "");
    let mut stream = connect_from(PROXY, &server);
    let port = stream.local_addr().unwrap().port();
    assert_eq!(who(&mut stream, forged), format!("127.0.0.9 {port} "));
}

#[test]
fn header_of_the_configured_name_is_read_and_no_other() {
    let site = site();
    let top = format!("{TRUSTED}client-address-header = \"Forwarded\"\n");
    let server = serve(&site, &top);
    let mut stream = connect_from(PROXY, &server);
    let lines = "Forwarded: for=\"[2001:db8::1]:5000\"\r\nX-Forwarded-For: 192.0.2.7\r\n";
    assert_eq!(who(&mut stream, lines), "2001:db8::1  ");
}

#[test]
fn proxy_header_names_the_client_of_the_connection_when_it_arrives_in_any_pieces() {
    let site = site();
    let server = serve(&site, PREFACED);
    let request = b"GET /file.txt HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 198.51.100.1\r\n\r\n";
    let mut accepted = 0;
    for preface in [V1, V2] {
        let whole = [preface, &request[..]].concat();
        for cut in [1, 5, 6, 13, 15, 16, preface.len(), preface.len() + 1] {
            let mut stream = connect_from(PROXY, &server);
            stream.set_nodelay(true).unwrap();
            stream.write_all(&whole[..cut]).unwrap();
            accepted += 1;
            server.wait_for("the first piece", |server| {
                counter(server, "connections_accepted") == accepted
            });
            send(&mut stream, &whole[cut..]);
            assert_eq!(receive(&mut stream).unwrap().text(), "a file\n");
            // The header belongs to the connection, so the next request has none.
            assert_eq!(
                who(&mut stream, "X-Forwarded-For: 198.51.100.1\r\n"),
                "192.0.2.7 50000 "
            );
        }
    }
    let clients = logged(&site, server);
    assert_eq!(clients.len(), 32);
    assert!(
        clients.iter().all(|client| client == "192.0.2.7:50000"),
        "{clients:?}"
    );
}

#[test]
fn proxy_header_without_a_client_leaves_the_address_of_the_proxy() {
    let site = site();
    let server = serve(&site, PREFACED);
    for preface in [
        &b"PROXY UNKNOWN\r\n"[..],
        b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00",
    ] {
        let mut stream = connect_from(PROXY, &server);
        let port = stream.local_addr().unwrap().port();
        stream.write_all(preface).unwrap();
        assert_eq!(who(&mut stream, ""), format!("127.0.0.9 {port} "));
        // It speaks for itself, but is trusted.
        assert_eq!(
            who(&mut stream, "X-Forwarded-For: 192.0.2.7\r\n"),
            "192.0.2.7  "
        );
    }
}

#[test]
fn connection_of_a_trusted_proxy_is_refused_when_it_has_no_valid_proxy_header() {
    let site = site();
    let server = serve(&site, PREFACED);
    let request = "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    let long = format!("PROXY TCP4 {}\r\n{request}", "1".repeat(200));
    let large = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"[..], &[0; 5000]].concat();
    for bytes in [
        request.as_bytes(),
        long.as_bytes(),
        b"PROXY TCP4 192.0.2.7 192.0.2.1 50000 99999\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &large,
    ] {
        let mut stream = connect_from(PROXY, &server);
        send(&mut stream, bytes);
        assert_eq!(
            receive(&mut stream).unwrap().status,
            400,
            "{}",
            bytes.escape_ascii()
        );
    }
    // From elsewhere there is no PROXY header, and one is an error.
    assert_eq!(
        exchange(&server, [V1, request.as_bytes()].concat()).status,
        400
    );
    is_well(&server);
}

#[test]
fn limit_per_address_counts_clients_behind_a_proxy_and_not_the_proxy() {
    let site = site();
    let limit = "max-connections-per-address = 2\n";
    // Without PROXY headers the connections are the proxy's own.
    let server = serve(&site, &format!("{TRUSTED}{limit}"));
    let all: Vec<_> = (0..5).map(|_| connect_from(PROXY, &server)).collect();
    for mut stream in all {
        assert_eq!(
            send_and_receive(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n").status,
            200
        );
    }
    let server = serve(&site, &format!("{PREFACED}{limit}"));
    let connect = |client: u8| {
        let mut stream = connect_from(PROXY, &server);
        let preface = format!("PROXY TCP4 192.0.2.{client} 192.0.2.1 50000 80\r\n");
        stream.write_all(preface.as_bytes()).unwrap();
        let status =
            send_and_receive(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n").status;
        (status, stream)
    };
    let (one, two, three) = (connect(7), connect(7), connect(7));
    assert_eq!((one.0, two.0, three.0), (200, 200, 503));
    assert_eq!(connect(8).0, 200);
    assert_eq!(counter(&server, "connections_rejected_per_address"), 1);
    drop((one, three));
    server.wait_for("room for the address", |_| connect(7).0 == 200);
    is_well(&server);
}

#[test]
fn upstream_gets_the_chain_of_a_trusted_proxy() {
    use crate::upstreams::faults::{FakeUpstream, read_head};
    let site = site();
    let upstream = FakeUpstream::new(|mut stream| {
        let head = read_head(&mut stream).unwrap_or_default();
        let length = head.len();
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{head}");
        let _ = stream.write_all(response.as_bytes());
    });
    let address = &upstream.address;
    let location = format!("[[location]]\nprefix = \"/\"\nproxy = \"{address}\"\n");
    let server = site.serve_configured(&format!("{TRUSTED}{location}"));
    let lines = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n";
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    let asked = send_and_receive(&mut connect_from(PROXY, &server), request).text();
    for line in [
        "X-Forwarded-For: 192.0.2.7, 127.0.0.9",
        "X-Forwarded-Proto: https",
    ] {
        assert!(asked.lines().any(|one| one == line), "{line}\n{asked}");
    }
}

#[test]
fn rejected_request_is_logged_with_the_address_of_the_proxy() {
    let site = site();
    let server = serve(&site, TRUSTED);
    let mut stream = connect_from(PROXY, &server);
    let own = stream.local_addr().unwrap().to_string();
    who(&mut stream, "X-Forwarded-For: 192.0.2.7\r\n");
    assert_eq!(
        send_and_receive(&mut stream, "GET /\x01 HTTP/1.1\r\n\r\n").status,
        400
    );
    drop(stream);
    assert_eq!(logged(&site, server), ["192.0.2.7", &own]);
}

#[test]
fn clients_of_other_networks_get_403() {
    let site = site();
    site.file("root/private/a.txt", "a", 0o644);
    site.file("root/secret/index.html", "index", 0o644);
    let cgi = site.path("cgi");
    let upstream = crate::upstreams::faults::FakeUpstream::sending(
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    );
    let upstream = &upstream.address;
    let private = "allow = [\"192.0.2.0/24\", \"127.0.0.1\"]\ndeny = \"192.0.2.9\"\n";
    let server = site.serve_configured(&format!(
        "{TRUSTED}deny = \"198.51.100.0/24\"\nlisting = true\nfallback = \"/private/a.txt\"\n\
         [[location]]\nprefix = \"/private/\"\nfiles = true\n{private}\
         [[location]]\nprefix = \"/secret/index.html\"\nfiles = true\n{private}\
         [[location]]\nprefix = \"/programs/\"\ncgi = true\nroot = {cgi:?}\n{private}\
         [[location]]\nprefix = \"/app/\"\nproxy = \"{upstream}\"\nescaped-slashes = true\n{private}"
    ));
    let mut stream = connect_from(PROXY, &server);
    let mut ask = |method: &str, path: &str, client: &str| {
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n");
        send(&mut stream, request);
        let response = match method {
            "HEAD" => receive_head(&mut stream),
            _ => receive(&mut stream),
        };
        response.unwrap().status
    };
    let long = format!("/app/{}", "a".repeat(300));
    for (method, path, refused) in [
        ("GET", "/private/a.txt", 403),
        ("HEAD", "/private/a.txt", 403),
        ("OPTIONS", "/private/a.txt", 403),
        ("GET", "/private/", 403),
        ("GET", "/secret/index.html", 403),
        ("GET", "/secret/", 403),
        ("GET", "/no-such-file", 403),
        ("GET", "/programs/who", 403),
        ("GET", "/app/x", 403),
        // As if there were no upstream.
        ("GET", "/app/x%2Fy", 404),
        ("GET", &long, 404),
    ] {
        for (client, is_served) in [
            ("192.0.2.7", true),
            ("192.0.2.9", false),
            ("203.0.113.1", false),
        ] {
            let status = ask(method, path, client);
            match is_served {
                true => assert!(status < 300, "{client} {path}: {status}"),
                false => assert_eq!(status, refused, "{client} {path}"),
            }
        }
        assert_eq!(ask(method, path, "198.51.100.1"), 403, "{path}");
    }
    assert_eq!(
        ask("GET", "/private", "203.0.113.1"),
        404,
        "as if it did not exist"
    );
    assert_eq!(ask("GET", "/file.txt", "203.0.113.1"), 200);
    assert_eq!(ask("GET", "/file.txt", "198.51.100.1"), 403);
    assert_eq!(get(&server, "/private/a.txt").status, 200);
}

#[test]
fn chain_of_10_000_addresses_names_the_last_that_is_not_trusted() {
    let site = site();
    let get = |lines: &str| format!("GET /file.txt HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    let trusted = vec!["127.0.0.9"; 10_000].join(",");
    let spoofed = vec!["192.0.2.66"; 10_000].join(",");
    let server = serve(&site, &format!("{TRUSTED}max-header-size = \"1MiB\"\n"));
    let mut stream = connect_from(PROXY, &server);
    let mut other = server.connect();
    let own = other.local_addr().unwrap().to_string();
    for lines in [
        format!("X-Forwarded-For: 192.0.2.7,{trusted}\r\n"),
        format!("X-Forwarded-For: {spoofed},192.0.2.8\r\n"),
        "X-Forwarded-For: 192.0.2.66\r\n".repeat(90) + "X-Forwarded-For: 192.0.2.9\r\n",
    ] {
        assert_eq!(send_and_receive(&mut stream, get(&lines)).status, 200);
    }
    let lines = format!("X-Forwarded-For: {spoofed}\r\n");
    assert_eq!(send_and_receive(&mut other, get(&lines)).status, 200);
    is_well(&server);
    drop((stream, other));
    let clients = logged(&site, server);
    assert_eq!(clients[..4], ["192.0.2.7", "192.0.2.8", "192.0.2.9", &own]);
    // With the usual limit such a header is too long.
    let server = serve(&site, TRUSTED);
    let mut stream = connect_from(PROXY, &server);
    assert_eq!(send_and_receive(&mut stream, get(&lines)).status, 431);
}

#[test]
fn connection_ends_without_a_response_when_its_proxy_header_is_cut_off() {
    let site = site();
    let server = serve(&site, PREFACED);
    for cut in [&V1[..20], &V2[..5], &V2[..20]] {
        let mut stream = connect_from(PROXY, &server);
        send(&mut stream, cut);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let error = receive(&mut stream).unwrap_err();
        assert!(error.contains("after \"\""), "{error}");
    }
    is_well(&server);
    // One that never ends is cut off by the timeout of the header.
    let server = serve(&site, &format!("{PREFACED}header-timeout = \"1s\"\n"));
    let mut stream = connect_from(PROXY, &server);
    send(&mut stream, &V1[..20]);
    let status = receive(&mut stream).map(|response| response.status);
    assert_eq!(status, Ok(400));
    is_well(&server);
}
