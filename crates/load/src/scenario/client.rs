//! The clients of a scenario: each carries out flows, one request after the other.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headway_base::random::Random;
use headway_latency::Outcome;
use headway_latency::run::AgentInfo;
use serde_json::Value;

use super::extract::{self, Place};
use super::template::Values;
use super::{SEARCHED_BYTES_MAX, Scenario, Step};
use crate::engine::{Client, Conversation, Method, Protocol, RequestFacts, RequestParts};

/// Where the streams of the clients begin among those of a seed.
const CLIENT_STREAMS: u64 = 1 << 32;

/// Makes the clients.
#[derive(Debug)]
pub(super) struct Users {
    shared: Arc<Shared>,
}

/// What the clients of all threads share.
#[derive(Debug)]
struct Shared {
    scenario: Arc<Scenario>,
    /// Before every path.
    prefix: String,
    version: &'static str,
    seed: u64,
    agent: AgentInfo,
    /// Flows that have begun.
    flows: AtomicU64,
}

impl Users {
    pub(super) fn new(
        scenario: Arc<Scenario>,
        prefix: &str,
        protocol: Protocol,
        seed: u64,
        agent: Option<AgentInfo>,
    ) -> Users {
        Users {
            shared: Arc::new(Shared {
                scenario,
                prefix: prefix.to_owned(),
                version: match protocol {
                    Protocol::Http10 => "HTTP/1.0",
                    Protocol::Http1 | Protocol::Http2 { .. } => "HTTP/1.1",
                },
                seed,
                agent: agent.unwrap_or(AgentInfo { index: 0, count: 1 }),
                flows: AtomicU64::new(0),
            }),
        }
    }
}

impl Conversation for Users {
    fn speaks_http2(&self) -> bool {
        true
    }

    fn client(&self, number: u32) -> Box<dyn Client> {
        let shared = Arc::clone(&self.shared);
        let stream = CLIENT_STREAMS + u64::from(number);
        Box::new(User {
            random: Random::for_stream(shared.seed, stream),
            values: vec![Vec::new(); shared.scenario.values],
            shared,
            number,
            flow: 0,
            step: 0,
            next: None,
            path: Vec::new(),
            headers: Vec::new(),
            body: Vec::new(),
            response: Vec::new(),
            is_long: false,
        })
    }
}

/// One client.
struct User {
    shared: Arc<Shared>,
    number: u32,
    random: Random,
    /// The number of its flow among those of all clients and agents, from 0.
    flow: u64,
    /// The step of its request.
    step: u8,
    /// The follow-up, once the response was good.
    next: Option<u8>,
    /// Values of the flow.
    values: Vec<Vec<u8>>,
    path: Vec<u8>,
    headers: Vec<(usize, Vec<u8>)>,
    body: Vec<u8>,
    /// The body of the response, if a value is taken out of it.
    response: Vec<u8>,
    /// The response was longer than what is searched.
    is_long: bool,
}

impl User {
    fn step(&self) -> &Step {
        &self.shared.scenario.steps[usize::from(self.step)]
    }

    fn has_body(&self) -> bool {
        let step = self.step();
        step.body.is_some() || matches!(step.method, Method::Post | Method::Put | Method::Patch)
    }

    fn begin_flow(&mut self, document: u32) {
        let shared = &self.shared;
        let own = shared.flows.fetch_add(1, Ordering::Relaxed);
        // Agents take rows in turn, so that no two have the same one.
        self.flow = own * u64::from(shared.agent.count) + u64::from(shared.agent.index);
        self.step = shared.scenario.flows[document as usize].0;
        self.values.iter_mut().for_each(Vec::clear);
    }

    /// Forms path, headers and body.
    fn render(&mut self) {
        let shared = Arc::clone(&self.shared);
        let step = &shared.scenario.steps[usize::from(self.step)];
        let values = Values {
            counter: self.flow + 1,
            client: self.number,
            row: shared
                .scenario
                .rows
                .as_ref()
                .map(|rows| rows.row(self.flow)),
            variables: &self.values,
        };
        let random = &mut self.random;
        self.path.clear();
        // The path of a URL is whole.
        if !step.path.is_path() {
            self.path.extend_from_slice(shared.prefix.as_bytes());
        }
        step.path.render(&values, random, &mut self.path);
        self.headers
            .resize_with(step.headers.len(), Default::default);
        for ((at, (_, template)), (number, value)) in
            step.headers.iter().enumerate().zip(&mut self.headers)
        {
            *number = at;
            value.clear();
            template.render(&values, random, value);
        }
        self.body.clear();
        if let Some(body) = &step.body {
            body.render(&values, random, &mut self.body);
        }
        self.response.clear();
        self.is_long = false;
    }

    /// Takes the values that later steps need. False if one is missing.
    fn extract(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let step = &shared.scenario.steps[usize::from(self.step)];
        let mut json: Option<Value> = None;
        for one in &step.extracts {
            let value = &mut self.values[one.variable];
            if one.place.needs_body() {
                let found = extract::find(&one.place, &self.response, &mut json);
                let Some(found) = found.filter(|_| !self.is_long) else {
                    return false;
                };
                *value = found;
            }
            let adds_lines = value.iter().any(u8::is_ascii_control);
            if value.is_empty() || (one.is_in_header && adds_lines) {
                return false;
            }
        }
        true
    }
}

impl fmt::Debug for User {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("User");
        shown.field("number", &self.number);
        shown.field("step", &self.step().name);
        shown.finish_non_exhaustive()
    }
}

impl Client for User {
    fn choose(&mut self, document: u32) {
        match self.next.take() {
            Some(step) => self.step = step,
            None => self.begin_flow(document),
        }
        let shared = Arc::clone(&self.shared);
        for one in &shared.scenario.steps[usize::from(self.step)].extracts {
            self.values[one.variable].clear();
        }
        self.render();
    }

    fn facts(&self) -> RequestFacts {
        RequestFacts {
            class: self.step,
            size_bytes: None,
            repeats: self.step().method.is_idempotent(),
        }
    }

    fn requests_on_connection(&mut self) -> Option<u32> {
        None
    }

    fn form(&self, common: &[u8], out: &mut Vec<u8>) {
        let step = self.step();
        // A vector takes everything.
        let _ = write!(out, "{} ", step.method.name());
        out.extend_from_slice(&self.path);
        let _ = write!(out, " {}\r\n", self.shared.version);
        for (at, value) in &self.headers {
            let _ = write!(out, "{}: ", step.headers[*at].0);
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        if self.has_body() {
            let _ = write!(out, "Content-Length: {}\r\n", self.body.len());
        }
        // The step's headers replace those that all requests have.
        for line in common.split_inclusive(|&byte| byte == b'\n') {
            let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
            let mut own = step.headers.iter();
            if !own.any(|(own, _)| own.as_bytes().eq_ignore_ascii_case(name)) {
                out.extend_from_slice(line);
            }
        }
        out.extend_from_slice(&self.body);
    }

    fn parts(&self) -> Option<RequestParts<'_>> {
        let step = self.step();
        let headers = self.headers.iter();
        Some(RequestParts {
            method: step.method,
            path: &self.path,
            headers: headers
                .map(|(at, value)| (step.headers[*at].0.as_str(), value.as_slice()))
                .collect(),
            body: self.has_body().then_some(self.body.as_slice()),
        })
    }

    fn is_head(&self) -> bool {
        self.step().method == Method::Head
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        let shared = Arc::clone(&self.shared);
        for one in &shared.scenario.steps[usize::from(self.step)].extracts {
            let Place::Header(wanted) = &one.place else {
                continue;
            };
            let kept = &mut self.values[one.variable];
            if kept.is_empty() && wanted.eq_ignore_ascii_case(name) {
                kept.extend_from_slice(value);
            }
        }
    }

    fn body(&mut self, piece: &[u8]) {
        let extracts = &self.step().extracts;
        if !extracts.iter().any(|one| one.place.needs_body()) {
            return;
        }
        let room = SEARCHED_BYTES_MAX - self.response.len();
        self.is_long |= piece.len() > room;
        let piece = &piece[..piece.len().min(room)];
        self.response.extend_from_slice(piece);
    }

    fn judge(&mut self, status: u16, _body_bytes: u64) -> Outcome {
        let expected = match self.step().status {
            Some(expected) => status == expected,
            None => (200..300).contains(&status),
        };
        match expected {
            false => Outcome::Status,
            true if self.extract() => Outcome::Ok,
            true => Outcome::Content,
        }
    }

    fn ended(&mut self, outcome: Outcome) {
        self.next = self.step().next.filter(|_| outcome == Outcome::Ok);
    }

    fn continues(&self) -> bool {
        self.next.is_some()
    }

    fn pause(&self) -> Duration {
        self.step().think
    }

    fn leave(&mut self) {
        self.next = None;
    }
}
