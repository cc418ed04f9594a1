//! PHP programs behind php-fpm, as a browser uses them.

use std::fs;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use headway_test_support::upstream::{self, TestServer, scripts};

use super::faults::refused_address;
use crate::site::*;

/// php-fpm, and a server whose document root has the scripts; `more` is added to their location.
fn php(test: &str, more: &str) -> Option<(TestServer, Site, Server)> {
    let upstream = upstream::php(test)?;
    let site = Site::new();
    for entry in fs::read_dir(scripts("php")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), site.path("root").join(entry.file_name())).unwrap();
    }
    let server = site.serve_configured(&format!(
        "[[location]]\nsuffix = \".php\"\nfastcgi = \"unix:{}\"\nmax-body-size = \"8MiB\"\n{more}\n",
        upstream.socket().display()
    ));
    Some((upstream, site, server))
}

/// A form with a title and a file, as browsers send it.
fn form(file: &[u8]) -> Vec<u8> {
    [
        &b"--bound\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\na title\r\n--bound\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"a b.bin\"\r\nContent-Type: image/x-own\r\n\r\n"[..],
        file,
        b"\r\n--bound--\r\n",
    ]
    .concat()
}

const FORM: &str =
    "POST /form.php HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=bound\r\n";

/// Needs: the program php-fpm: scripts/setup
#[test]
fn fastcgi_request_is_retried_when_an_upstream_is_down() {
    let Some(upstream) = upstream::php("fastcgi_request_is_retried_when_an_upstream_is_down")
    else {
        return;
    };
    let site = Site::new();
    fs::write(site.path("root/a.php"), "<?php echo 'good';").unwrap();
    let php = format!("unix:{}", upstream.socket().display());
    let server = site.serve_configured(&format!(
        "[[location]]\nsuffix = \".php\"\nfastcgi = {:?}\n",
        [refused_address(), php]
    ));
    for _ in 0..4 {
        assert_eq!(get(&server, "/a.php").text(), "good");
    }
    assert!(counter(&server, "upstream_retries") > 0);
    is_well(&server);
}

/// Sends forms with files of several lengths over one connection.
fn uploads_come_back_whole(server: &Server) {
    let mut stream = server.connect();
    for size in [0, 1000, 3_000_001] {
        let (file, body) = (contents(size), form(&contents(size)));
        let mut request = format!("{FORM}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        request.extend_from_slice(&body);
        let mut sender = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || send(&mut sender, request));
        let response = receive(&mut stream).unwrap();
        sending.join().unwrap();
        assert_eq!(
            (response.status, response.field("X-Title")),
            (200, Some("a%20title"))
        );
        assert!(
            response.body == file,
            "{size}: {} bytes",
            response.body.len()
        );
    }
    is_well(server);
}

/// A TCP port that forwards to a Unix socket, for as long as the test runs.
fn port_to(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(upstream) = UnixStream::connect(&socket) else {
                return;
            };
            let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            let (mut from, mut to) = (upstream, client);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

#[test]
fn php_upload_is_intact_over_tcp() {
    let Some(upstream) = upstream::php("php_upload_is_intact_over_tcp") else {
        return;
    };
    let site = Site::new();
    let program = site.path("root").join("form.php");
    fs::copy(scripts("php").join("form.php"), program).unwrap();
    let server = site.serve_configured(&format!(
        "[[location]]\nsuffix = \".php\"\nfastcgi = \"{}\"\nmax-body-size = \"8MiB\"\n",
        port_to(upstream.socket())
    ));
    uploads_come_back_whole(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_upload_is_intact_over_a_unix_socket() {
    let name = "php_upload_is_intact_over_a_unix_socket";
    let Some((_peer, _site, server)) = php(name, "") else {
        return;
    };
    uploads_come_back_whole(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_upload_is_intact_when_chunked_and_spooled() {
    let name = "php_upload_is_intact_when_chunked_and_spooled";
    let Some((_peer, _site, server)) = php(name, "") else {
        return;
    };
    let mut stream = server.connect();
    for size in [100, 1_500_000] {
        let (file, body) = (contents(size), form(&contents(size)));
        let mut request = format!("{FORM}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
        for part in body.chunks(30_000) {
            request.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        let mut sender = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || send(&mut sender, request));
        let response = receive(&mut stream).unwrap();
        sending.join().unwrap();
        assert!(
            response.body == file,
            "{size}: {} {} bytes",
            response.status,
            response.body.len()
        );
    }
    assert!(counter(&server, "handler_request_spooled_bytes") > 1_000_000);
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_response_is_chunked_without_a_content_length() {
    let name = "php_response_is_chunked_without_a_content_length";
    let Some((_peer, _site, server)) = php(name, "") else {
        return;
    };
    let mut stream = server.connect();
    for _ in 0..2 {
        send(
            &mut stream,
            "GET /parts.php?parts=3&wait_ms=30 HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        let response = receive(&mut stream).unwrap();
        assert_eq!(response.field("Transfer-Encoding"), Some("chunked"));
        assert_eq!(response.text(), "part 0\npart 1\npart 2\n");
    }
    let old = exchange(
        &server,
        "GET /parts.php?parts=2&wait_ms=30 HTTP/1.0\r\n\r\n",
    );
    assert_eq!(
        (old.field("Connection"), old.text().as_str()),
        (Some("close"), "part 0\npart 1\n")
    );
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_download_of_100_mib_is_intact() {
    let name = "php_download_of_100_mib_is_intact";
    let Some((_peer, _site, server)) = php(name, "") else {
        return;
    };
    let response = get(&server, "/download.php");
    assert_eq!(response.field("Content-Length"), Some("104857600"));
    for (number, block) in response.body.chunks(65_536).enumerate() {
        let expected = format!("{number:08}");
        assert!(
            block.chunks(8).all(|part| part == expected.as_bytes()),
            "block {number}"
        );
    }
    assert_eq!(response.body.len(), 104_857_600);
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_sees_request_variables_and_configured_variables() {
    let name = "php_sees_request_variables_and_configured_variables";
    let more = "variables = { APP_MODE = \"test\" }";
    let Some((_peer, site, server)) = php(name, more) else {
        return;
    };
    let response = get(&server, "/environment.php/in/fo?a=b");
    let root = fs::canonicalize(site.path("root")).unwrap();
    for line in [
        "APP_MODE=test".to_owned(),
        "PATH_INFO=/in/fo".to_owned(),
        "QUERY_STRING=a=b".to_owned(),
        "REMOTE_ADDR=127.0.0.1".to_owned(),
        "SCRIPT_NAME=/environment.php".to_owned(),
        format!("SCRIPT_FILENAME={}/environment.php", root.display()),
        format!("DOCUMENT_ROOT={}", root.display()),
    ] {
        assert!(
            response.text().lines().any(|found| found == line),
            "{line} is not in\n{}",
            response.text()
        );
    }
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_accel_redirect_sends_the_file() {
    let name = "php_accel_redirect_sends_the_file";
    let Some((_peer, site, server)) = php(name, "accel-redirect = true") else {
        return;
    };
    let root = fs::canonicalize(site.path("root")).unwrap();
    fs::write(root.join("a b.txt"), "handed over\n").unwrap();
    for query in [
        "location=/a%2520b.txt".to_owned(),
        format!("file={}/a%20b.txt", root.display()),
    ] {
        let response = get(&server, &format!("/accel_redirect.php?{query}"));
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "handed over\n"),
            "{query}"
        );
        assert!(
            response.field("X-Sendfile").is_none() && response.field("X-Accel-Redirect").is_none()
        );
        assert_eq!(
            response.field("Content-Disposition"),
            Some("attachment; filename=\"report.txt\"")
        );
    }
    for query in [
        "file=/etc/passwd",
        "location=/../../etc/passwd",
        "location=/nothing",
    ] {
        let response = get(&server, &format!("/accel_redirect.php?{query}"));
        assert!(response.status >= 400, "{query}: {}", response.status);
    }
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_index_file_runs_for_a_directory() {
    let name = "php_index_file_runs_for_a_directory";
    let Some(upstream) = upstream::php(name) else {
        return;
    };
    let site = Site::new();
    site.file(
        "root/app/index.php",
        "<?php echo 'ran ', $_SERVER['SCRIPT_NAME'];",
        0o644,
    );
    let server = site.serve_configured(&format!(
        "index = [\"index.php\"]\n[[location]]\nsuffix = \".php\"\nfastcgi = \"unix:{}\"\n",
        upstream.socket().display()
    ));
    assert_eq!(get(&server, "/app/").text(), "ran /app/index.php");
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_accel_redirect_is_502_when_not_configured() {
    let name = "php_accel_redirect_is_502_when_not_configured";
    let Some((_peer, _site, server)) = php(name, "") else {
        return;
    };
    let response = get(&server, "/accel_redirect.php?location=/file.txt");
    assert_eq!(response.status, 502);
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_errors_become_error_responses() {
    let name = "php_errors_become_error_responses";
    let Some((_peer, _site, server)) = php(name, "timeout = \"1s\"") else {
        return;
    };
    let status = |how: &str| get(&server, &format!("/misbehave.php?how={how}")).status;
    assert_eq!(status("fatal"), 500);
    assert_eq!(status("chunked"), 502);
    assert_eq!(status("die"), 502);
    assert_eq!(status("sleep"), 504);
    assert_eq!(get(&server, "/absent.php").status, 404);
    assert_eq!(
        get(&server, "/redirect.php?to=/there").field("Location"),
        Some("/there")
    );
    let mut stream = server.connect();
    send(
        &mut stream,
        "GET /misbehave.php?how=short HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let short = receive(&mut stream);
    assert!(short.is_err() || short.is_ok_and(|response| response.status == 502));
    assert_eq!(get(&server, "/misbehave.php?how=long").text(), "this");
    is_well(&server);
}

/// Needs: the program php-fpm: scripts/setup
#[test]
fn php_connections_are_reused_with_keepalive() {
    let name = "php_connections_are_reused_with_keepalive";
    let Some((_peer, _site, server)) = php(name, "keepalive = 1") else {
        return;
    };
    for _ in 0..5 {
        assert_eq!(get(&server, "/parts.php?parts=1").text(), "part 0\n");
    }
    assert!(counter(&server, "upstream_connections_reused") >= 4);
    // A POST never reuses a connection that may be closing.
    let connects = counter(&server, "upstream_connects");
    let body = "POST /form.php HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\na=1";
    assert_eq!(exchange(&server, body).text(), "a=1\n");
    assert_eq!(counter(&server, "upstream_connects"), connects + 1);
    is_well(&server);
}
