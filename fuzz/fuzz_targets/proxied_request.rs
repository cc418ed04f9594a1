//! Any bytes as a client's request that is passed on: what the upstream reads is one sound request with
//! the same method, host and framing, and a CGI program gets variables that an environment can hold.
#![no_main]

use headway_gateway::Request;
use headway_gateway::cgi::{Context, Variables};
use headway_gateway::proxy::{Forwarding, write_request};
use headway_http::{HeadLimits, Parsed, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Parsed::Complete(head) = parse(bytes, &HeadLimits::default()) else {
        return;
    };
    let request = Request::new(&head, bytes);
    check_variables(&request);
    for trusts_client in [false, true] {
        let forwarding = Forwarding {
            remote: ([192, 0, 2, 7], 50_000).into(),
            client: None,
            https: false,
            trusts_client,
            certificate: None,
            authority: b"back",
            keeps_host: true,
            via: b"headway",
            strip: [&b""[..], b"/a"][usize::from(trusts_client)],
            keep: true,
            upgrades: true,
        };
        let mut out = Vec::new();
        if write_request(&mut out, &request, &forwarding, head.framing.into()).is_err() {
            assert!(out.is_empty());
            continue;
        }
        // What is added may take the head beyond a limit that the client's was within.
        let roomy = HeadLimits {
            is_secure: false,
            is_http2: false,
            head_bytes_max: 1024 * 1024,
            target_bytes_max: 1024 * 1024,
            fields_max: 128,
        };
        let Parsed::Complete(again) = parse(&out, &roomy) else {
            panic!("{}", out.escape_ascii());
        };
        assert_eq!(again.length, out.len());
        assert_eq!(again.method, head.method);
        assert_eq!(again.framing, head.framing);
        assert_eq!(again.host, head.host.or(Some(b"back")));
    }
});

fn check_variables(request: &Request<'_>) {
    let context = Context {
        script_name: b"/a",
        path_info: b"/b",
        script_filename: b"/srv/a",
        document_root: b"/srv",
        remote: ([192, 0, 2, 7], 50_000).into(),
        local: ([192, 0, 2, 1], 80).into(),
        server_name: b"x",
        server_software: b"headway",
        https: false,
        body_bytes: Some(5),
        user: None,
        authorization: true,
        tls: None,
    };
    let variables = Variables::new(request, &context);
    for (at, (name, value)) in variables.iter().enumerate() {
        assert!(
            !name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0)
        );
        assert!(
            variables
                .iter()
                .skip(at + 1)
                .all(|(other, _)| other != name)
        );
    }
    assert_eq!(variables.get(b"HTTP_PROXY"), None);
    assert_eq!(variables.get(b"CONTENT_LENGTH"), Some(&b"5"[..]));
}
