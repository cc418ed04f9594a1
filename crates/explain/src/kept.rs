//! Requests and times of threads as they were, for a picture of both on one timeline.

use std::collections::BTreeSet;

use headway_debox_bpf::{OffCpu, SeenRequest, SeenResponse, Thread};
use serde_json::{Value, json};

use crate::names::FileNames;
use crate::parts::{At, Doing, Phase};

/// How many of each are kept; further ones are counted.
const KEPT_MAX: usize = 200_000;

/// A time off the CPU.
#[derive(Clone, Debug)]
struct KeptSpan {
    thread: Thread,
    start_ns: u64,
    woken_ns: u64,
    end_ns: u64,
    doing: Doing,
    at: At,
}

/// A request with its response.
#[derive(Clone, Debug)]
struct KeptRequest {
    request: SeenRequest,
    end_ns: u64,
    written_bytes: u64,
    line: Option<u32>,
    status: Option<u16>,
}

/// What is kept, in the order in which it ended.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    spans: Vec<KeptSpan>,
    requests: Vec<KeptRequest>,
    dropped: u64,
}

impl Kept {
    /// A time off the CPU which was seen from its beginning.
    pub fn span(&mut self, off: &OffCpu, at: At) {
        if off.start_ns == 0 {
            return;
        }
        if self.spans.len() >= KEPT_MAX {
            self.dropped += 1;
            return;
        }
        self.spans.push(KeptSpan {
            thread: off.thread,
            start_ns: off.start_ns,
            woken_ns: off.woken_ns.unwrap_or(off.start_ns),
            end_ns: off.end_ns,
            doing: Doing::Asleep {
                call: off.call,
                label: off.label,
            },
            at,
        });
    }

    pub fn request(
        &mut self,
        request: &SeenRequest,
        response: &SeenResponse,
        (line, status): (Option<u32>, Option<u16>),
    ) {
        if self.requests.len() >= KEPT_MAX {
            self.dropped += 1;
            return;
        }
        let last_ns = response.last_written_ns.max(request.written_ns);
        self.requests.push(KeptRequest {
            request: request.clone(),
            end_ns: response.drained_ns.unwrap_or(last_ns).max(last_ns),
            written_bytes: response.written_bytes,
            line,
            status,
        });
    }

    /// Chrome's trace-event JSON, which Perfetto opens ("Trace Event Format"): a request is a nested
    /// asynchronous event, and its phases are below it; times of threads are complete events.
    pub fn chrome(&self, server: &str, names: &FileNames) -> String {
        let begins = self.spans.iter().map(|span| span.start_ns);
        let arrivals = self.requests.iter().map(|kept| kept.request.arrived_ns);
        let begin_ns = begins.chain(arrivals).min().unwrap_or(0);
        let view = View { begin_ns, names };
        let pids: BTreeSet<u32> = (self.spans.iter().map(|span| span.thread.pid))
            .chain(
                self.requests
                    .iter()
                    .filter_map(|kept| pid_of(&kept.request)),
            )
            .collect();
        let mut events: Vec<Value> = (pids.iter())
            .map(|pid| {
                json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": { "name": server } })
            })
            .collect();
        events.extend(self.spans.iter().flat_map(|span| view.span(span)));
        events.extend(self.requests.iter().flat_map(|kept| view.request(kept)));
        let document = json!({
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": { "server": server, "dropped": self.dropped },
        });
        document.to_string()
    }
}

/// The process in which a request is drawn.
fn pid_of(request: &SeenRequest) -> Option<u32> {
    let thread = request.reader.or(request.acceptor).or(request.writer);
    thread.map(|thread| thread.pid)
}

struct View<'a> {
    begin_ns: u64,
    names: &'a FileNames,
}

impl View<'_> {
    fn us(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.begin_ns) as f64 / 1e3
    }

    fn span(&self, span: &KeptSpan) -> Vec<Value> {
        let name = |number: Option<u32>| number.map(|number| self.names.name(number));
        let one = |what: &str, from_ns: u64, to_ns: u64| {
            json!({
                "ph": "X",
                "name": what,
                "cat": "thread",
                "pid": span.thread.pid,
                "tid": span.thread.tid,
                "ts": self.us(from_ns),
                "dur": to_ns.saturating_sub(from_ns) as f64 / 1e3,
                "args": { "file": name(span.at.file), "kernel": name(span.at.symbol), "holder": name(span.at.holder),
                    "woken_in": name(span.at.woken_in), "waiters": span.at.waiters },
            })
        };
        let mut events = Vec::new();
        if span.woken_ns > span.start_ns {
            let what = crate::text::doing_in_words(&span.doing);
            events.push(one(&what, span.start_ns, span.woken_ns));
        }
        if span.end_ns > span.woken_ns {
            let what = crate::text::doing_in_words(&Doing::Runnable);
            events.push(one(&what, span.woken_ns, span.end_ns));
        }
        events
    }

    fn request(&self, kept: &KeptRequest) -> Vec<Value> {
        let request = &kept.request;
        let line = kept
            .line
            .map_or("request", |number| self.names.name(number));
        let args = json!({
            "connection": request.connection,
            "client_port": request.client_port,
            "read_bytes": request.read_bytes,
            "written_bytes": kept.written_bytes,
            "status": kept.status,
        });
        let mut events = self.pair(request, line, (request.arrived_ns, kept.end_ns), args);
        let accepted_ns = request.accepted_ns.unwrap_or(request.arrived_ns);
        let accepted_ns = accepted_ns.max(request.arrived_ns);
        let read_ns = request.read_ns.unwrap_or(accepted_ns).max(accepted_ns);
        let written_ns = request.written_ns.max(read_ns);
        let times = [
            request.arrived_ns,
            accepted_ns,
            read_ns,
            written_ns,
            kept.end_ns.max(written_ns),
        ];
        for (phase, times) in Phase::ALL.iter().zip(times.windows(2)) {
            if times[1] > times[0] {
                events.extend(self.pair(request, phase.name(), (times[0], times[1]), Value::Null));
            }
        }
        events
    }

    fn pair(
        &self,
        request: &SeenRequest,
        name: &str,
        (from_ns, to_ns): (u64, u64),
        args: Value,
    ) -> Vec<Value> {
        let event = |kind: &str, ns: u64, args: Value| {
            json!({
                "ph": kind,
                "cat": "request",
                "id": format!("{}-{}", request.connection, request.sequence),
                "name": name,
                "pid": pid_of(request),
                "tid": request.reader.map(|thread| thread.tid),
                "ts": self.us(ns),
                "args": args,
            })
        };
        vec![event("b", from_ns, args), event("e", to_ns, Value::Null)]
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;
    use headway_debox_bpf::{OffCpu, SeenRequest, SeenResponse, Thread};
    use serde_json::Value;

    use super::Kept;
    use crate::names::FileNames;
    use crate::parts::At;

    #[test]
    fn requests_and_threads_are_on_one_timeline() {
        let thread = Thread { pid: 7, tid: 8 };
        let mut names = FileNames::default();
        let mut kept = Kept::default();
        let off = OffCpu {
            thread,
            call: headway_debox::calls::number("openat"),
            start_ns: 2_000,
            woken_ns: Some(5_000),
            end_ns: 6_000,
            label: Label::Fuse,
            ..OffCpu::default()
        };
        kept.span(&off, At::default());
        let request = SeenRequest {
            connection: 3,
            reader: Some(thread),
            arrived_ns: 1_000,
            read_ns: Some(6_000),
            written_ns: 7_000,
            ..SeenRequest::default()
        };
        let response = SeenResponse {
            connection: 3,
            last_written_ns: 7_500,
            ..SeenResponse::default()
        };
        let line = names.request("GET /a");
        kept.request(&request, &response, (line, Some(404)));
        let json: Value = serde_json::from_str(&kept.chrome("nginx", &names)).expect("JSON");
        let events = json["traceEvents"].as_array().expect("a list");
        assert!(events.iter().any(|event| event["args"]["status"] == 404));
        let drawn: Vec<(&str, &str, f64)> = (events.iter())
            .filter_map(|event| {
                let text = |key: &str| event[key].as_str();
                Some((text("ph")?, text("name")?, event["ts"].as_f64()?))
            })
            .collect();
        let expected = [
            ("X", "asleep in openat on fuse", 1.0),
            ("X", "waiting for a CPU", 4.0),
            ("b", "GET /a", 0.0),
            ("e", "GET /a", 6.5),
            ("b", "receive queue", 0.0),
            ("e", "receive queue", 5.0),
            ("b", "service", 5.0),
            ("e", "service", 6.0),
            ("b", "transfer", 6.0),
            ("e", "transfer", 6.5),
        ];
        assert_eq!(drawn, expected);
    }
}
