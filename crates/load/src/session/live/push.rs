//! Sends samples to a server of metrics, in a thread of its own: the server may not answer.
//!
//! A request is tried again if that may help, then it is lost. So are those for which the queue has no room. What is
//! lost is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use headway_http_client::{Client, Timeouts};
use headway_latency::RunDescription;
use http::{HeaderName, HeaderValue, Request};
use percent_encoding::percent_decode_str;

use super::metrics::{Metrics, Sample};
use super::{otlp, remote_write};
use crate::cli_types::{MetricsProtocol, MetricsReceiver};
use crate::session::SessionError;
use crate::session::pin::pin_this_thread;
use crate::session::progress::Snapshot;

/// Requests that wait. With one per second this is also a time.
const WAITING_MAX: usize = 60;

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(3),
    io: Duration::from_secs(5),
    response: Duration::from_secs(5),
};

/// How often a request is tried.
const ATTEMPTS_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// A receiver of metrics.
#[derive(Debug)]
pub(super) struct Push {
    url: String,
    form: Form,
    queue: SyncSender<Vec<u8>>,
    sent: u64,
    /// Those that found no room in the queue.
    refused: u64,
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<Failed>,
}

/// Requests that the receiver does not have.
#[derive(Debug, Default)]
struct Failed {
    count: u64,
    why: String,
}

/// How samples become the body of a request.
#[derive(Clone, Debug)]
struct Form {
    protocol: MetricsProtocol,
    /// The labels of the run.
    labels: Vec<(&'static str, String)>,
    /// When the counters began, since 1970.
    start_ns: u64,
}

impl Form {
    fn body(&self, samples: &[Sample]) -> Vec<u8> {
        match self.protocol {
            MetricsProtocol::RemoteWrite => remote_write::body(samples, &self.labels),
            MetricsProtocol::Otlp => otlp::body(samples, &self.labels, self.start_ns),
        }
    }
}

/// Sends one request at a time.
struct Sender {
    client: Client,
    url: String,
    protocol: MetricsProtocol,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Why a request did not arrive.
struct Failure {
    why: String,
    /// Another try may help.
    is_passing: bool,
}

impl Push {
    /// Sends sums of 0. A server that does not take them is an error.
    pub(super) fn start(
        receiver: &MetricsReceiver,
        description: &RunDescription,
        cpus: &[usize],
    ) -> Result<Push, SessionError> {
        let MetricsReceiver { protocol, url } = receiver;
        let failed = |why: String| SessionError::Metrics {
            url: url.clone(),
            why: match protocol {
                MetricsProtocol::RemoteWrite => {
                    format!("{why}; Prometheus takes them with --web.enable-remote-write-receiver")
                }
                MetricsProtocol::Otlp => {
                    format!("{why}; a collector takes them by OTLP over HTTP, usually at port 4318")
                }
            },
        };
        let client = match url.starts_with("https:") {
            true => Client::new(None, TIMEOUTS).map_err(|error| failed(error.to_string()))?,
            false => Client::without_tls(TIMEOUTS),
        };
        let sender = Sender {
            client,
            url: url.clone(),
            protocol: *protocol,
            headers: match protocol {
                MetricsProtocol::RemoteWrite => Vec::new(),
                MetricsProtocol::Otlp => headers_of_environment().map_err(failed)?,
            },
        };
        let form = Form {
            protocol: *protocol,
            labels: labels(description),
            start_ns: description.epoch_unix_ns,
        };
        let mut first = Metrics::default().samples(&Snapshot::default());
        let at_ms = description.epoch_unix_ns / 1_000_000;
        let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
        first.iter_mut().for_each(|sample| sample.at_ms = at_ms);
        let sent = sender.send(&form.body(&first).into());
        sent.map_err(|failure| failed(failure.why))?;
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let is_ending = Arc::new(AtomicBool::new(false));
        let (ending, cpus) = (Arc::clone(&is_ending), cpus.to_vec());
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                pin_this_thread(&cpus).ok();
                sender.run(&waiting, &ending)
            })
            .map_err(SessionError::Thread)?;
        Ok(Push {
            url: url.clone(),
            form,
            queue,
            sent: 0,
            refused: 0,
            is_ending,
            thread,
        })
    }

    /// Queues samples. Never waits.
    pub(super) fn send(&mut self, samples: &[Sample]) {
        self.sent += 1;
        match self.queue.try_send(self.form.body(samples)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.refused += 1,
        }
    }

    /// Sends what waits, each once, and then what ends the series. Says what is missing.
    pub(super) fn finish(mut self, stale: &[Sample]) -> Option<String> {
        self.send(stale);
        self.is_ending.store(true, Ordering::Relaxed);
        drop(self.queue);
        let failed = match self.thread.join() {
            Ok(failed) => failed,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let lost = failed.count + self.refused;
        (lost > 0).then(|| {
            format!(
                "{lost} of {} updates of the metrics did not get to {} ({}); the figures of the run are not affected",
                self.sent, self.url, failed.why
            )
        })
    }
}

/// What tells this run from others, and its clients from one another.
fn labels(description: &RunDescription) -> Vec<(&'static str, String)> {
    let run = description.label.clone();
    let agent = description.agent.map_or(0, |agent| agent.index);
    vec![
        ("job", "headway-load".to_owned()),
        ("instance", description.environment.host.clone()),
        ("run", run.unwrap_or_else(|| description.started.clone())),
        ("agent", agent.to_string()),
    ]
}

impl Sender {
    fn run(&self, waiting: &Receiver<Vec<u8>>, is_ending: &AtomicBool) -> Failed {
        let mut failed = Failed::default();
        for body in waiting {
            let body = Bytes::from(body);
            let mut attempt = 1;
            while let Err(failure) = self.send(&body) {
                let may_help = failure.is_passing && attempt < ATTEMPTS_MAX;
                if !may_help || is_ending.load(Ordering::Relaxed) {
                    failed.count += 1;
                    failed.why = failure.why;
                    break;
                }
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            if failed.count > 0 && is_ending.load(Ordering::Relaxed) {
                // The run does not wait a minute for a server that does not answer.
                failed.count += waiting.iter().count() as u64;
            }
        }
        failed
    }

    fn send(&self, body: &Bytes) -> Result<(), Failure> {
        let lasting = |why: String| Failure {
            why,
            is_passing: false,
        };
        let mut request = Request::post(&self.url)
            .header("content-type", "application/x-protobuf")
            .header("user-agent", concat!("headway/", env!("CARGO_PKG_VERSION")));
        if self.protocol == MetricsProtocol::RemoteWrite {
            request = request
                .header("content-encoding", "snappy")
                .header("x-prometheus-remote-write-version", "0.1.0");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(body.clone());
        let request = request.map_err(|error| lasting(error.to_string()))?;
        let response = self.client.exchange(&request).map_err(|error| Failure {
            why: error.to_string(),
            is_passing: true,
        })?;
        let status = response.status();
        if !status.is_success() {
            let text = String::from_utf8_lossy(response.body());
            let first = text.lines().next().unwrap_or_default();
            let first: String = first.chars().take(200).collect();
            return Err(Failure {
                why: format!("status {}: {first}", status.as_u16()),
                is_passing: status.is_server_error() || status.as_u16() == 429,
            });
        }
        match self.protocol {
            MetricsProtocol::RemoteWrite => Ok(()),
            MetricsProtocol::Otlp => {
                otlp::rejected(response.body()).map_or(Ok(()), |(points, why)| {
                    Err(lasting(format!(
                        "the receiver rejected {points} points: {why}"
                    )))
                })
            }
        }
    }
}

/// Headers for a collector, such as a key: `NAME=VALUE,…`, with values percent-encoded, as the SDKs read them.
fn headers_of_environment() -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    const VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((
            name.trim().parse().ok()?,
            HeaderValue::from_str(&value).ok()?,
        ))
    };
    // The message does not show the value, which is a secret.
    let found = pairs.map(|pair| header(pair).ok_or(format!("{VARIABLE} is not NAME=VALUE,…")));
    found.collect()
}
