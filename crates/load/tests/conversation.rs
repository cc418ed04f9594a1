//! Clients with a memory: their requests, their judgement, their connections, and when they begin.

use crate::support;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headway_latency::Outcome;
use headway_load::engine::{Client, Conversation, Plan, RequestFacts};
use support::{Server, Step, closed, count, response, run, send};

/// What the clients of a test send and receive.
#[derive(Debug, Default)]
struct ConversationScript {
    repeats: bool,
    requests_on_connection: u32,
    /// Fields and pieces of bodies, by client.
    received: Mutex<Vec<(u32, String)>>,
    ended: AtomicU32,
}

#[derive(Debug)]
struct ScriptedConversation(Arc<ConversationScript>);

#[derive(Debug)]
struct Talker {
    script: Arc<ConversationScript>,
    number: u32,
    requests: u32,
    body: String,
}

impl Conversation for ScriptedConversation {
    fn client(&self, number: u32) -> Box<dyn Client> {
        Box::new(Talker {
            script: Arc::clone(&self.0),
            number,
            requests: 0,
            body: String::new(),
        })
    }
}

impl Client for Talker {
    fn choose(&mut self, _document: u32) {
        self.requests += 1;
        self.body.clear();
    }

    fn facts(&self) -> RequestFacts {
        RequestFacts {
            class: 7,
            size_bytes: None,
            repeats: self.script.repeats,
        }
    }

    fn requests_on_connection(&mut self) -> Option<u32> {
        Some(self.script.requests_on_connection)
    }

    fn form(&self, common: &[u8], out: &mut Vec<u8>) {
        let line = format!("GET /{}/{} HTTP/1.1\r\n", self.number, self.requests);
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(common);
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        let text = format!("{name}={}", String::from_utf8_lossy(value));
        self.script
            .received
            .lock()
            .unwrap()
            .push((self.number, text));
    }

    fn body(&mut self, piece: &[u8]) {
        self.body.push_str(&String::from_utf8_lossy(piece));
    }

    fn judge(&mut self, status: u16, body_bytes: u64) -> Outcome {
        assert_eq!(body_bytes, self.body.len() as u64);
        match (status, self.body.as_str()) {
            (200, "right") => Outcome::Ok,
            (200, _) => Outcome::Content,
            _ => Outcome::Status,
        }
    }

    fn ended(&mut self, _: Outcome) {
        self.script.ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn plan(
    server: &Server,
    clients: u32,
    requests: u64,
    script: ConversationScript,
) -> (Plan, Arc<ConversationScript>) {
    let script = Arc::new(script);
    let mut plan = closed(server, requests);
    plan.mode = headway_load::engine::Mode::Closed {
        connections: clients,
    };
    plan.conversation = Some(Box::new(ScriptedConversation(Arc::clone(&script))));
    (plan, script)
}

fn kept(requests_on_connection: u32) -> ConversationScript {
    ConversationScript {
        repeats: true,
        requests_on_connection,
        ..ConversationScript::default()
    }
}

#[test]
fn each_client_checks_its_own_responses() {
    let server = Server::start(|request| match request.path.ends_with("/3") {
        true => send(response("wrong")),
        false => send(response("right")),
    });
    let (plan, script) = plan(&server, 2, 10, kept(4));
    let (rows, _) = run(&plan);
    assert_eq!(rows.len(), 10);
    assert!(
        count(&rows, Outcome::Content) >= 1,
        "a third request was wrong"
    );
    assert_eq!(
        count(&rows, Outcome::Ok) + count(&rows, Outcome::Content),
        10
    );
    assert!(rows.iter().all(|row| row.class == 7 && row.connection < 2));
    assert_eq!(script.ended.load(Ordering::Relaxed), 10);
    let received = script.received.lock().unwrap();
    assert!(
        received
            .iter()
            .any(|(_, field)| field == "Server=scripted/1")
    );
    let requests = server.requests();
    let mut paths: Vec<&str> = requests.iter().map(|one| one.path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 10, "each asks on from where it was: {paths:?}");
}

#[test]
fn conversation_keeps_each_client_on_its_connection() {
    let server = Server::start(|_| send(response("right")));
    let (plan, _) = plan(&server, 1, 10, kept(3));
    let (rows, measured) = run(&plan);
    let ordinals: Vec<u32> = rows.iter().map(|row| row.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(measured.connections_opened, 4);
    let last: Vec<bool> = server
        .requests()
        .iter()
        .map(|request| request.last)
        .collect();
    assert_eq!(last[..6], [false, false, true, false, false, true]);
}

#[test]
fn request_is_not_retried_when_it_is_not_idempotent() {
    for repeats in [true, false] {
        // The connection is closed under its second request.
        let server = Server::start(|request| match request.ordinal {
            0 => send(response("right")),
            _ => vec![Step::Close],
        });
        let script = ConversationScript { repeats, ..kept(5) };
        let (plan, _) = plan(&server, 1, 4, script);
        let (rows, measured) = run(&plan);
        let failed = rows.len() - count(&rows, Outcome::Ok);
        assert_eq!(measured.retried > 0, repeats);
        assert_eq!(failed > 0, !repeats, "{rows:?}");
    }
}

#[test]
fn clients_start_one_after_the_other_with_a_ramp() {
    let server = Server::start(|_| send(response("right")));
    let (mut plan, _) = plan(&server, 5, 200, kept(1000));
    plan.ramp = Duration::from_millis(200);
    let (rows, _) = run(&plan);
    for client in 0..5_u32 {
        let of_client = rows.iter().filter(|row| row.connection == client);
        let first_ns = of_client.map(|row| row.intended_ns).min();
        // Never before its time; later is the machine's fault.
        if let Some(first_ns) = first_ns {
            assert!(
                first_ns >= u64::from(client) * 40_000_000,
                "{client}: {first_ns}"
            );
        }
    }
}

#[test]
fn bandwidth_limit_covers_all_requests_when_there_is_a_conversation() {
    let body = "x".repeat(3000);
    let server = Server::start(move |_| send(response(&body)));
    let (mut plan, _) = plan(&server, 1, 12, kept(3));
    plan.bandwidth_bits_per_s = Some(800_000);
    let (rows, measured) = run(&plan);
    assert_eq!(rows.len(), 12);
    // The last response may be a tenth of a second ahead of its bandwidth; all others are not.
    let bytes = measured.bytes - measured.bytes / 12;
    let span_ns = rows[11].start_ns - rows[0].start_ns;
    let carried = span_ns as f64 * 100_000.0 / 1e9;
    assert!(
        bytes as f64 <= carried + 100.0,
        "{bytes} bytes in {span_ns} ns"
    );
}
