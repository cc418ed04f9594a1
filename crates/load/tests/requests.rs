//! What arrives at the server: methods, headers, bodies.

use headway_latency::Outcome;
use headway_load::engine::Method;

use crate::support::{Server, Step, closed, outcomes, response, run, send};

#[test]
fn method_headers_and_body_arrive() {
    let server = Server::start(|_| send(response("ok")));
    let mut plan = closed(&server, 3);
    plan.method = Method::Post;
    plan.headers = [
        ("Authorization", "Bearer t"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    plan.body = b"name=value".to_vec();
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 3]);
    let received = server.requests();
    assert_eq!(received.len(), 3);
    for request in received {
        let lines: Vec<&str> = request.head.lines().collect();
        assert_eq!(lines[0], "POST / HTTP/1.1");
        for line in [
            "Host: test.example",
            "Authorization: Bearer t",
            "X-Twice: 1",
            "X-Twice: 2",
            "Content-Length: 10",
            "Content-Type: application/x-www-form-urlencoded",
        ] {
            assert!(lines.contains(&line), "{line}: {lines:?}");
        }
        assert_eq!(request.body, b"name=value");
        assert_eq!(request.connection, 0, "the connection was kept");
    }
}

/// A body that the socket takes in pieces.
#[test]
fn large_body_arrives_whole() {
    let body: Vec<u8> = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
    let server = Server::start(|_| send(response("ok")));
    let mut plan = closed(&server, 2);
    plan.method = Method::Put;
    plan.body = body.clone();
    let (rows, _) = run(&plan);
    assert_eq!(outcomes(&rows), [Outcome::Ok; 2]);
    assert!(server.requests().iter().all(|request| request.body == body));
}

/// The server closes a kept connection just as the next request comes.
#[test]
fn request_is_sent_again_only_where_twice_is_as_good_as_once() {
    for (method, expected, retried) in [
        (Method::Put, Outcome::Ok, 1),
        (Method::Post, Outcome::ClosedEarly, 0),
    ] {
        let server = Server::start(|request| match (request.connection, request.ordinal) {
            (0, 1) => vec![Step::Close],
            _ => send(response("ok")),
        });
        let mut plan = closed(&server, 2);
        plan.method = method;
        let (rows, measured) = run(&plan);
        assert_eq!(outcomes(&rows), [Outcome::Ok, expected], "{method:?}");
        assert_eq!(measured.retried, retried, "{method:?}");
    }
}
