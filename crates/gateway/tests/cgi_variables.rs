//! The variables of a program, and what a client cannot put there.

use headway_gateway::cgi::{Context, User, Variables};
use headway_gateway::{ClientCertificate, Request, TlsClient};
use headway_http::{HeadLimits, Parsed};

fn context() -> Context<'static> {
    Context {
        script_name: b"/cgi-bin/a b",
        path_info: b"/c d",
        script_filename: b"/srv/cgi/a b",
        document_root: b"/srv/www",
        remote: "[::ffff:192.0.2.7]:50000".parse().unwrap(),
        local: "[2001:db8::1]:8080".parse().unwrap(),
        server_name: b"fallback",
        server_software: b"headway",
        https: false,
        tls: None,
        body_bytes: None,
        user: None,
        authorization: true,
    }
}

fn variables(bytes: &[u8], context: &Context<'_>) -> Variables {
    let Parsed::Complete(head) = headway_http::parse(bytes, &HeadLimits::default()) else {
        panic!("{}", bytes.escape_ascii());
    };
    Variables::new(&Request::new(&head, bytes), context)
}

/// The variables that come from these field lines.
fn from_fields(lines: &str) -> Vec<String> {
    let bytes = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    variables(bytes.as_bytes(), &context())
        .iter()
        .map(|(name, value)| format!("{}={}", text(name), text(value)))
        .filter(|pair| {
            pair.starts_with("HTTP_") && !pair.starts_with("HTTP_HOST=")
                || pair.starts_with("CONTENT_")
        })
        .collect()
}

#[test]
fn cgi_variables_are_complete_for_a_form_post() {
    let bytes = b"POST /cgi-bin/a%20b/c%20d?x=1&y=%20 HTTP/1.1\r\nHost: Example.org:8080\r\n\
        Content-Type: text/plain\r\nContent-Length: 5\r\nUser-Agent: me\r\n\r\nhello";
    let mut variables = variables(
        bytes,
        &Context {
            body_bytes: Some(5),
            ..context()
        },
    );
    assert!(variables.add(b"APP_MODE", b"test"));
    let mut environment = Vec::new();
    variables.write_environment(&mut environment);
    let expected = "GATEWAY_INTERFACE=CGI/1.1\0SERVER_PROTOCOL=HTTP/1.1\0REQUEST_METHOD=POST\0\
        REQUEST_URI=/cgi-bin/a%20b/c%20d?x=1&y=%20\0QUERY_STRING=x=1&y=%20\0CONTENT_LENGTH=5\0\
        CONTENT_TYPE=text/plain\0SCRIPT_NAME=/cgi-bin/a b\0SCRIPT_FILENAME=/srv/cgi/a b\0\
        DOCUMENT_ROOT=/srv/www\0REDIRECT_STATUS=200\0PATH_INFO=/c d\0PATH_TRANSLATED=/srv/www/c d\0\
        SERVER_SOFTWARE=headway\0SERVER_NAME=Example.org\0SERVER_ADDR=2001:db8::1\0SERVER_PORT=8080\0\
        REMOTE_ADDR=192.0.2.7\0REMOTE_PORT=50000\0REQUEST_SCHEME=http\0\
        HTTP_HOST=Example.org:8080\0HTTP_USER_AGENT=me\0APP_MODE=test\0";
    assert_eq!(String::from_utf8(environment).unwrap(), expected);
}

#[test]
fn request_uri_is_in_the_form_that_chose_the_location() {
    for (target, expected) in [
        ("/x/../cgi-bin//a%20b?c=/../d", "/cgi-bin/a%20b?c=/../d"),
        ("http://y/%63gi-bin/%2e/a", "/cgi-bin/a"),
        ("http://y?a", "/?a"),
        ("/cgi-bin/a?", "/cgi-bin/a?"),
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        let variables = variables(bytes.as_bytes(), &context());
        let found = variables.get(b"REQUEST_URI").map(<[u8]>::escape_ascii);
        assert_eq!(found.unwrap().to_string(), expected);
    }
}

#[test]
fn optional_cgi_variables_are_absent_without_a_value() {
    let context = Context {
        path_info: b"",
        ..context()
    };
    let found = variables(b"GET / HTTP/1.0\r\n\r\n", &context);
    for name in [
        "PATH_INFO",
        "PATH_TRANSLATED",
        "CONTENT_LENGTH",
        "CONTENT_TYPE",
        "HTTPS",
        "AUTH_TYPE",
        "REMOTE_USER",
    ] {
        assert_eq!(found.get(name.as_bytes()), None, "{name}");
    }
    assert_eq!(found.get(b"QUERY_STRING"), Some(&b""[..]));
    assert_eq!(found.get(b"SERVER_NAME"), Some(&b"fallback"[..]));
    assert_eq!(found.get(b"SERVER_PROTOCOL"), Some(&b"HTTP/1.0"[..]));
}

#[test]
fn host_of_the_request_target_wins_over_the_header() {
    let bytes = b"GET http://a.example:81/p HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let found = variables(bytes, &context());
    assert_eq!(found.get(b"SERVER_NAME"), Some(&b"a.example"[..]));
    assert_eq!(found.get(b"HTTP_HOST"), Some(&b"a.example:81"[..]));
}

#[test]
fn request_headers_become_http_variables_as_listed() {
    let rows: &[(&str, &[&str])] = &[
        ("X-A-1: b\r\n", &["HTTP_X_A_1=b"]),
        ("X-Empty:\r\n", &["HTTP_X_EMPTY="]),
        (
            "A: 1\r\nB: 2\r\na: 3\r\nA: 4\r\n",
            &["HTTP_A=1, 3, 4", "HTTP_B=2"],
        ),
        ("Cookie: a=1\r\ncookie: b=2\r\n", &["HTTP_COOKIE=a=1; b=2"]),
        (
            "Content-Type: a\r\nContent-Length: 0\r\n",
            &["CONTENT_TYPE=a"],
        ),
        (
            "Content-Type: a\r\ncontent-type: b\r\n",
            &["CONTENT_TYPE=a, b"],
        ),
        // httpoxy.
        ("Proxy: http://evil/\r\nPROXY: x\r\n", &[]),
        // Names that could pass for others.
        ("X_A: b\r\nContent_Length: 7\r\n", &[]),
        ("X.A: b\r\nX!A: c\r\nX~A: d\r\n", &[]),
        // Fields about the connection, and fields that the server handles.
        (
            "Connection: X-Real, close\r\nX-Real: kept\r\n",
            &["HTTP_X_REAL=kept"],
        ),
        (
            "Keep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nTrailer: A\r\n",
            &[],
        ),
        (
            "Proxy-Connection: a\r\nProxy-Authorization: b\r\nExpect: 100-continue\r\n",
            &[],
        ),
        (
            "Range: bytes=0-1\r\nIf-None-Match: \"a\"\r\n",
            &["HTTP_RANGE=bytes=0-1", "HTTP_IF_NONE_MATCH=\"a\""],
        ),
        (
            "Authorization: Basic eDp5\r\n",
            &["HTTP_AUTHORIZATION=Basic eDp5"],
        ),
    ];
    for (lines, expected) in rows {
        assert_eq!(from_fields(lines), *expected, "{lines:?}");
    }
}

#[test]
fn repeated_headers_are_joined_among_few_headers_and_among_many() {
    for others in [0, 11, 12, 40] {
        let others: String = (0..others)
            .map(|number| format!("X-{number}: {number}\r\n"))
            .collect();
        let lines = format!("A: 1\r\nCookie: c=1\r\n{others}a: 2\r\ncookie: d=2\r\n");
        let mut found = from_fields(&lines);
        found.retain(|pair| !pair.starts_with("HTTP_X_"));
        assert_eq!(found, ["HTTP_A=1, 2", "HTTP_COOKIE=c=1; d=2"]);
    }
}

#[test]
fn authorization_is_removed_unless_allowed() {
    let bytes = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic eDp5\r\n\r\n";
    let user = User {
        scheme: b"Basic",
        name: b"x",
    };
    let used = variables(
        bytes,
        &Context {
            user: Some(user),
            ..context()
        },
    );
    assert_eq!(used.get(b"AUTH_TYPE"), Some(&b"Basic"[..]));
    assert_eq!(used.get(b"REMOTE_USER"), Some(&b"x"[..]));
    assert_eq!(used.get(b"HTTP_AUTHORIZATION"), None);
    let hidden = variables(
        bytes,
        &Context {
            authorization: false,
            ..context()
        },
    );
    assert_eq!(hidden.get(b"HTTP_AUTHORIZATION"), None);
}

#[test]
fn https_variable_is_set_for_tls() {
    let found = variables(
        b"GET / HTTP/1.0\r\n\r\n",
        &Context {
            https: true,
            ..context()
        },
    );
    assert_eq!(found.get(b"HTTPS"), Some(&b"on"[..]));
    assert_eq!(found.get(b"REQUEST_SCHEME"), Some(&b"https"[..]));
}

#[test]
fn variables_of_mod_ssl_tell_of_tls_and_clients_cannot_set_them() {
    let bytes =
        b"GET / HTTP/1.0\r\nSSL-Client-Verify: SUCCESS\r\nSSL_CLIENT_VERIFY: SUCCESS\r\n\r\n";
    let tls = TlsClient {
        version: "TLSv1.3",
        cipher_suite: "TLS_AES_128_GCM_SHA256",
        server_name: Some(b"a.example"),
        is_resumed: false,
        certificate: None,
    };
    let of = |tls| variables(bytes, &Context { tls, ..context() });
    let ssl = |found: &Variables| {
        let all = found.iter().filter(|(name, _)| name.starts_with(b"SSL_"));
        let text = |(name, value): (&[u8], &[u8])| {
            format!("{}={}", name.escape_ascii(), value.escape_ascii())
        };
        all.map(text).collect::<Vec<_>>()
    };
    assert!(ssl(&of(None)).is_empty());
    let mut expected = vec![
        "SSL_PROTOCOL=TLSv1.3",
        "SSL_CIPHER=TLS_AES_128_GCM_SHA256",
        "SSL_TLS_SNI=a.example",
        "SSL_SESSION_RESUMED=Initial",
        "SSL_CLIENT_VERIFY=NONE",
    ];
    assert_eq!(ssl(&of(Some(tls))), expected);
    let known = TlsClient {
        certificate: Some(ClientCertificate {
            subject: "CN=a client",
            issuer: "CN=CA",
            serial: "0ABC",
        }),
        is_resumed: true,
        server_name: None,
        ..tls
    };
    expected.remove(2);
    expected[2] = "SSL_SESSION_RESUMED=Resumed";
    expected[3] = "SSL_CLIENT_VERIFY=SUCCESS";
    expected.extend([
        "SSL_CLIENT_S_DN=CN=a client",
        "SSL_CLIENT_I_DN=CN=CA",
        "SSL_CLIENT_M_SERIAL=0ABC",
    ]);
    assert_eq!(ssl(&of(Some(known))), expected);
}

#[test]
fn configured_variable_is_dropped_when_duplicate_or_invalid() {
    let mut found = variables(b"GET / HTTP/1.0\r\n\r\n", &context());
    for (name, value) in [
        ("SCRIPT_NAME", "x"),
        ("", "x"),
        ("A=B", "x"),
        ("A\0", "x"),
        ("A", "x\0"),
    ] {
        assert!(!found.add(name.as_bytes(), value.as_bytes()), "{name:?}");
    }
    assert_eq!(found.get(b"SCRIPT_NAME"), Some(&b"/cgi-bin/a b"[..]));
    assert_eq!(found.get(b"A"), None);
}
