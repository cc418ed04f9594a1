//! Sends samples to a Prometheus server, in a thread of its own: the server may not answer.
//!
//! A request that fails is tried again, then it is lost. So are those for which the queue has no room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use headway_http_client::{Client, Timeouts};
use headway_latency::RunDescription;
use http::Request;

use super::metrics::Metrics;
use super::remote_write::{Sample, body};
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
    /// The labels of the run.
    labels: Vec<(&'static str, String)>,
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

/// Sends one request at a time.
struct Sender {
    client: Client,
    url: String,
}

impl Push {
    /// Sends sums of 0. A server that does not take them is an error.
    pub(super) fn start(
        url: &str,
        description: &RunDescription,
        cpus: &[usize],
    ) -> Result<Push, SessionError> {
        let failed = |why: String| SessionError::Metrics {
            url: url.to_owned(),
            why,
        };
        let client = match url.starts_with("https:") {
            true => Client::new(None, TIMEOUTS).map_err(|error| failed(error.to_string()))?,
            false => Client::without_tls(TIMEOUTS),
        };
        let sender = Sender {
            client,
            url: url.to_owned(),
        };
        let labels = labels(description);
        let mut first = Metrics::default().samples(&Snapshot::default());
        let at_ms = description.epoch_unix_ns / 1_000_000;
        let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
        first.iter_mut().for_each(|sample| sample.at_ms = at_ms);
        sender.send(&body(&first, &labels).into()).map_err(failed)?;
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
            url: url.to_owned(),
            labels,
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
        match self.queue.try_send(body(samples, &self.labels)) {
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
            while let Err(why) = self.send(&body) {
                let is_last = attempt == ATTEMPTS_MAX || is_ending.load(Ordering::Relaxed);
                if is_last {
                    failed.count += 1;
                    failed.why = why;
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

    fn send(&self, body: &Bytes) -> Result<(), String> {
        let request = Request::post(&self.url)
            .header("content-type", "application/x-protobuf")
            .header("content-encoding", "snappy")
            .header("x-prometheus-remote-write-version", "0.1.0")
            .header("user-agent", concat!("headway/", env!("CARGO_PKG_VERSION")))
            .body(body.clone());
        let request = request.map_err(|error| error.to_string())?;
        let response = self.client.exchange(&request);
        let response = response.map_err(|error| error.to_string())?;
        match response.status().is_success() {
            true => Ok(()),
            false => {
                let text = String::from_utf8_lossy(response.body());
                let first = text.lines().next().unwrap_or_default();
                let first: String = first.chars().take(200).collect();
                Err(format!("status {}: {first}", response.status().as_u16()))
            }
        }
    }
}
