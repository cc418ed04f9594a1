//! Requests through TLS: certificates, sessions, records in pieces, ends with and without
//! `close_notify`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use headway_latency::{Outcome, Row};
use headway_load::engine::{Arrivals, Method, Mode, Plan, Schedule};
use headway_load::tls::{TlsOptions, Verification};

use crate::support::{Server, Step, closed_to, count, outcomes, response, run, send};
use crate::tls_server::{Authority, Certificate, Settings, TlsServer, make_expired};

const NAME: &str = "test.example";

const VERSIONS: [&[&rustls::SupportedProtocolVersion]; 2] =
    [&[&rustls::version::TLS13], &[&rustls::version::TLS12]];

/// A server with a good certificate, and a plan for a client which trusts it.
fn started(
    requests: u64,
    script: impl Fn(&crate::support::ReceivedRequest) -> Vec<Step> + Send + Sync + 'static,
) -> (TlsServer, Plan) {
    let authority = Authority::new();
    let certificate = authority.certify(NAME, |_| {});
    let server = TlsServer::start(certificate, &Settings::default(), script);
    let plan = closed_to(server.target(NAME, &authority.trusted()), requests);
    (server, plan)
}

/// The handshakes that belong to the first requests of connections, and to no others.
fn handshakes(rows: &[Row]) -> usize {
    for row in rows {
        let first = row.ordinal == 0;
        assert_eq!(row.handshake_ns > 0, first, "{row:?}");
        assert!(row.handshake_ns <= row.service_ns(), "{row:?}");
    }
    rows.iter().filter(|row| row.handshake_ns > 0).count()
}

#[test]
fn responses_are_whole_in_both_versions() {
    for versions in VERSIONS {
        let authority = Authority::new();
        let certificate = authority.certify(NAME, |_| {});
        let settings = Settings {
            versions: Some(versions),
            ..Settings::default()
        };
        let large = "x".repeat(1 << 20);
        let server = TlsServer::start(certificate, &settings, move |request| {
            match request.ordinal % 3 {
                0 => send(response("small")),
                1 => send(response(&large)),
                _ => vec![Step::Dribble(response("in records of one byte"))],
            }
        });
        let mut plan = closed_to(server.target(NAME, &authority.trusted()), 12);
        plan.mode = Mode::Closed { connections: 2 };
        plan.requests_per_connection = Some(4);
        let (rows, measured) = run(&plan);
        assert_eq!(count(&rows, Outcome::Ok), 12, "{:?}", outcomes(&rows));
        assert!(rows.iter().any(|row| row.bytes == 1 << 20));
        assert_eq!(handshakes(&rows) as u64, measured.handshakes.done);
        assert!(measured.handshakes.done >= 3);
        let protocol = measured.handshakes.protocol.expect("a handshake");
        let version = match versions[0].version {
            rustls::ProtocolVersion::TLSv1_3 => "TLSv1.3, TLS_",
            _ => "TLSv1.2, TLS_ECDHE_",
        };
        assert!(protocol.starts_with(version), "{protocol}");
        // Session tickets are no bytes of a response.
        assert_eq!(measured.unsolicited, 0);
        let received = server.server.requests();
        assert!(received[0].head.contains("\r\nHost: test.example\r\n"));
    }
}

#[test]
fn open_loop_is_answered_through_tls() {
    let (_server, mut plan) = started(200, |_| send(response("ok")));
    plan.mode = Mode::Open {
        schedule: Schedule::constant(1000.0),
        arrivals: Arrivals::Poisson,
        connections_max: 8,
        waiting_max: 1000,
    };
    let (rows, measured) = run(&plan);
    assert_eq!(count(&rows, Outcome::Ok), 200, "{:?}", measured.failure);
    assert_eq!(handshakes(&rows) as u64, measured.connections_opened);
    assert_eq!(measured.unsolicited, 0);
}

#[test]
fn session_is_resumed_unless_that_is_off() {
    for resumes in [true, false] {
        let authority = Authority::new();
        let certificate = authority.certify(NAME, |_| {});
        let script = |_: &_| send(response("ok"));
        let server = TlsServer::start(certificate, &Settings::default(), script);
        let options = TlsOptions {
            resumes,
            ..authority.trusted()
        };
        let mut plan = closed_to(server.target(NAME, &options), 5);
        plan.requests_per_connection = Some(1);
        let (rows, measured) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::Ok; 5]);
        let expected = if resumes { 4 } else { 0 };
        assert_eq!(measured.handshakes.done, 5);
        assert_eq!(measured.handshakes.resumed, expected);
    }
}

#[test]
fn client_says_that_it_is_done_before_it_closes() {
    let (server, mut plan) = started(3, |_| send(response("ok")));
    plan.requests_per_connection = Some(1);
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 3]);
    // A server which has read the last request also reads the end of every connection before.
    assert_eq!(server.rude.load(Ordering::SeqCst), 0);
}

#[test]
fn certificate_is_refused_when_it_proves_nothing() {
    let [authority, stranger, same] = ["a", "b", "a"].map(Authority::named);
    let good = || authority.certify(NAME, |_| {});
    for (certificate, name, part) in [
        (authority.certify(NAME, make_expired), NAME, "has expired"),
        (
            good(),
            "other.example",
            "not for other.example but for test.example;",
        ),
        (stranger.certify(NAME, |_| {}), NAME, "self-signed"),
        (same.certify(NAME, |_| {}), NAME, "authority of that name"),
    ] {
        let server = TlsServer::start(certificate, &Settings::default(), |_| send(response("ok")));
        let plan = closed_to(server.target(name, &authority.trusted()), 1);
        let (rows, measured) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::Tls], "{part}");
        let failure = measured.failure.expect("the reason");
        assert_eq!(failure.outcome, Outcome::Tls);
        assert!(failure.message.contains(part), "{}", failure.message);
        assert!(
            failure.message.contains("--insecure"),
            "{}",
            failure.message
        );
        assert!(server.server.requests().is_empty(), "nothing was sent");

        let insecure = TlsOptions {
            verification: Verification::Off,
            ..TlsOptions::default()
        };
        let plan = closed_to(server.target(name, &insecure), 1);
        assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok], "{part}");
    }
    let server = TlsServer::start(good(), &Settings::default(), |_| send(response("ok")));
    let named = TlsOptions {
        server_name: Some(NAME.to_owned()),
        ..authority.trusted()
    };
    let plan = closed_to(server.target("other.example", &named), 1);
    assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok], "asked for by --sni");
}

/// The outcome of one request, and why it failed.
fn outcome(
    certificate: Certificate,
    versions: &'static [&'static rustls::SupportedProtocolVersion],
    (name, options): (&str, &TlsOptions),
) -> (Outcome, String) {
    let settings = Settings {
        versions: Some(versions),
        ..Settings::default()
    };
    let server = TlsServer::start(certificate, &settings, |_| send(response("ok")));
    let (rows, measured) = run(&closed_to(server.target(name, options), 1));
    let why = measured.failure.map(|failure| failure.message);
    (rows[0].error, why.unwrap_or_default())
}

#[test]
fn trusted_certificate_may_be_the_servers_own() {
    let own = Authority::serving(NAME, |_| {});
    let other = Authority::serving(NAME, |_| {});
    let expired = Authority::serving(NAME, make_expired);
    let issued = other.certify(NAME, |_| {});
    let of_issued = TlsOptions {
        verification: Verification::File(other.files(&issued).0),
        ..TlsOptions::default()
    };
    for versions in VERSIONS {
        let seen = outcome(own.own(), versions, (NAME, &own.trusted()));
        assert_eq!(seen, (Outcome::Ok, String::new()));
        for (certificate, name, options, part) in [
            (
                own.own(),
                "other.example",
                own.trusted(),
                "but for test.example",
            ),
            (expired.own(), NAME, expired.trusted(), "has expired"),
            // Its name and subject are the same.
            (
                other.own(),
                NAME,
                own.trusted(),
                "give this certificate with --cacert",
            ),
            (
                own.own().with_key_of(other.own()),
                NAME,
                own.trusted(),
                "is not signed",
            ),
            // The trusted one is not its authority.
            (
                other.certify(NAME, |_| {}),
                NAME,
                of_issued.clone(),
                "authority is unknown",
            ),
        ] {
            let (outcome, why) = outcome(certificate, versions, (name, &options));
            assert_eq!(outcome, Outcome::Tls, "{part}");
            assert!(why.contains(part), "{part}: {why}");
        }
    }
    let seen = outcome(issued, VERSIONS[0], (NAME, &of_issued));
    assert_eq!(seen, (Outcome::Ok, String::new()));
}

#[test]
fn owner_of_a_certificate_signs_the_handshake_also_without_verification() {
    let [one, other] = [(); 2].map(|()| Authority::serving(NAME, |_| {}));
    let insecure = TlsOptions {
        verification: Verification::Off,
        ..TlsOptions::default()
    };
    for versions in VERSIONS {
        let certificate = one.own().with_key_of(other.own());
        let (outcome, _) = outcome(certificate, versions, (NAME, &insecure));
        assert_eq!(outcome, Outcome::Tls);
    }
}

#[test]
fn client_certificate_is_sent_when_there_is_one() {
    for versions in VERSIONS {
        let authority = Authority::new();
        let settings = Settings {
            versions: Some(versions),
            clients: Some(&authority),
            ..Settings::default()
        };
        let certificate = authority.certify(NAME, |_| {});
        let server = TlsServer::start(certificate, &settings, |_| send(response("ok")));
        let plan = closed_to(server.target(NAME, &authority.trusted()), 1);
        let (rows, measured) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::Tls]);
        let message = measured.failure.expect("the reason").message;
        assert!(message.contains("--cert"), "{message}");

        let options = TlsOptions {
            identity: Some(authority.files(&authority.certify("client.example", |_| {}))),
            ..authority.trusted()
        };
        let plan = closed_to(server.target(NAME, &options), 1);
        assert_eq!(outcomes(&run(&plan).0), [Outcome::Ok]);
    }
}

#[test]
fn body_without_length_needs_close_notify() {
    let head = "HTTP/1.1 200 OK\r\n\r\n";
    for (end, expected) in [
        (Step::Goodbye, Outcome::Ok),
        (Step::Close, Outcome::ClosedEarly),
    ] {
        let text = format!("{head}half or all of it");
        let last = end.clone();
        let (_server, plan) = started(1, move |_| {
            vec![Step::Send(text.clone().into_bytes()), last.clone()]
        });
        let (rows, _) = run(&plan);
        assert_eq!(outcomes(&rows), [expected], "{end:?}");
        assert_eq!(rows[0].bytes, 17);
    }
}

#[test]
fn body_is_cut_off_when_its_length_is_not_reached() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n";
    for end in [Step::Goodbye, Step::Close] {
        let last = end.clone();
        let (_server, plan) = started(1, move |_| {
            vec![Step::Send(format!("{head}half").into_bytes()), last.clone()]
        });
        let (rows, _) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::ClosedEarly], "{end:?}");
    }
}

#[test]
fn request_is_sent_again_when_its_kept_connection_is_closed() {
    for end in [Step::Goodbye, Step::Close] {
        let last = end.clone();
        let (_server, plan) = started(2, move |request| {
            match (request.connection, request.ordinal) {
                (0, 1) => vec![last.clone()],
                _ => send(response("ok")),
            }
        });
        let (rows, measured) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::Ok; 2], "{end:?}");
        assert_eq!((measured.retried, measured.handshakes.done), (1, 2));
    }
}

/// More than a socket takes, so that it leaves in pieces.
#[test]
fn large_body_arrives_whole_through_tls() {
    let body: Vec<u8> = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
    let (server, mut plan) = started(2, |_| send(response("ok")));
    plan.method = Method::Post;
    plan.body = body.clone();
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 2]);
    let received = server.server.requests();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|request| request.body == body));
}

#[test]
fn handshake_fails_when_the_server_speaks_something_else_or_leaves() {
    let authority = Authority::new();
    let tls = authority.trusted().client(NAME).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for (number, client) in listener.incoming().flatten().enumerate() {
            let mut client = client;
            // The whole first message, so that closing does not reset.
            let _ = client.read(&mut [0; 4096]);
            if number == 0 {
                let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        }
    });
    let mut target = Server::start(|_| Vec::new()).target();
    target.address = headway_load::engine::Address::Inet(address);
    target.tls = Some(tls);
    let plan = closed_to(target, 1);
    for part in ["http://", "closed the connection in the handshake"] {
        let (rows, measured) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::Tls]);
        assert_eq!(rows[0].handshake_ns, 0);
        let message = measured.failure.expect("the reason").message;
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn handshake_that_stalls_is_a_timeout_of_the_connection() {
    let authority = Authority::new();
    // The kernel accepts, and no answer comes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut target = Server::start(|_| Vec::new()).target();
    target.address = headway_load::engine::Address::Inet(listener.local_addr().unwrap());
    target.tls = Some(authority.trusted().client(NAME).unwrap());
    let mut plan = closed_to(target, 1);
    plan.timeout = Some(Duration::from_millis(50));
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::ConnectTimedOut]);
}

/// A pause belongs to the connection that is ready: after the handshake.
#[test]
fn first_pause_follows_the_handshake() {
    let (_server, mut plan) = started(1, |_| send(response("ok")));
    plan.first_pause = Duration::from_millis(20);
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok]);
    assert!(rows[0].handshake_ns + 20_000_000 <= rows[0].service_ns());
}
