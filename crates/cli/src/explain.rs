//! `headway explain`: why the requests of a running server wait.
//!
//! The answer goes to standard output. Progress goes to standard error, if that is a terminal.

use anyhow::Context;
use headway_debox_bpf::{AttachError, RequestLimits, RequestObserver, ServerEvent};
use headway_explain::{
    Collector, Keep, ListenQueues, LoopTurns, Report, Server, Target, Upstreams,
};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Failure, output, signals};

mod options;
mod outputs;
mod page;
mod run_queue;
mod sampling;

pub use options::Arguments;
use outputs::Progress;
use run_queue::RunQueueSamples;
use sampling::{Period, Sampling};

/// How often the ring is emptied.
const POLL: Duration = Duration::from_millis(20);

/// How often responses that nothing follows are ended.
const SWEEP: Duration = Duration::from_millis(500);

/// A sweep is followed by a rest, at least this many times as long.
const SWEEPS_REST: u32 = 10;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.outputs.check()?;
    let stop = signals::caught(signals::STOP)?;
    let mut started = match arguments.command.is_empty() {
        true => None,
        false => Some(Started::behind_gate(&arguments.command)?),
    };
    let server = match &started {
        Some(started) => started.server(&arguments.command),
        None => find(&arguments.target()?)?,
    };
    let mut observation = Observation::start(&server, arguments)?;
    if let Some(started) = &started {
        started.go()?;
    }
    observation.watch(arguments.duration, &stop, started.as_mut())?;
    let report = observation.report(&server)?;
    if let Some(started) = started {
        started.end()?;
    }
    arguments.outputs.write(&report, &observation.collector)?;
    match arguments.outputs.json {
        true => output::print_data(&(serde_json::to_string_pretty(&report)? + "\n"))?,
        false => output::print(&headway_explain::text::render(&report, heading))?,
    }
    let failures: Vec<String> = (arguments.fail_if.iter())
        .filter_map(|condition| condition.failure(&report))
        .collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Unmet(failures.join("\n"))),
    }
}

fn find(target: &Target) -> Result<Server, Failure> {
    let server = Server::find(target).map_err(|error| Failure::Usage(error.to_string()))?;
    if server.ports.is_empty() && server.sockets.is_empty() {
        return Err(Failure::Runtime(anyhow::anyhow!(
            "{} (process {}): it listens on no socket that you may see; `headway trace -p` shows what the process waits \
             for",
            server.name,
            server.pids[0]
        )));
    }
    Ok(server)
}

/// Bold headings on a terminal, unless NO_COLOR is set (no-color.org).
fn heading(text: &str) -> String {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match wanted && std::io::stdout().is_terminal() {
        true => format!("\x1b[1m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// The clock of the observer.
fn monotonic_ns() -> u64 {
    headway_os::ticks::monotonic_ns()
}

/// A server that this command has started.
struct Started {
    child: std::process::Child,
    gate: tempfile::TempDir,
}

impl Started {
    /// Starts a process that waits before it becomes the command, so that its first request is
    /// observed too.
    fn behind_gate(command: &[OsString]) -> Result<Started, Failure> {
        let gate = tempfile::tempdir().context("a directory for the gate")?;
        let fifo = gate.path().join("gate");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).context("the gate")?;
        let program = std::env::current_exe().context("the path of this program")?;
        let child = Command::new(program)
            .arg("trace-gate")
            .arg(&fifo)
            .arg("--")
            .args(command)
            // The answer is on this program's standard output.
            .stdout(std::io::stderr())
            .spawn()
            .context("starting the command")?;
        Ok(Started { child, gate })
    }

    fn server(&self, command: &[OsString]) -> Server {
        let name = command.first().map(Path::new).and_then(Path::file_name);
        Server {
            name: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            pids: vec![self.child.id()],
            ports: Vec::new(),
            sockets: Vec::new(),
        }
    }

    fn go(&self) -> Result<(), Failure> {
        Ok(std::fs::write(self.gate.path().join("gate"), "go").context("the gate")?)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the server to end, as `kill` does, and waits for that.
    fn end(mut self) -> Result<(), Failure> {
        if !self.has_ended() {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            self.child.wait().context("waiting for the command")?;
        }
        Ok(())
    }
}

impl Drop for Started {
    /// After an error: a gate that is never opened would wait for ever.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// An observation under way.
struct Observation {
    observer: RequestObserver,
    collector: Collector,
    queues: ListenQueues,
    upstreams: Upstreams,
    run_queue: RunQueueSamples,
    /// The last that was known: the server may end.
    overflows: Option<u64>,
    begun: Instant,
    sampling: Sampling,
    progress: Progress,
}

impl Observation {
    fn start(server: &Server, arguments: &Arguments) -> Result<Observation, Failure> {
        let limits = RequestLimits {
            heads: arguments.paths,
            ..RequestLimits::default()
        };
        let observer = server.observe(&limits).map_err(|error| match error {
            AttachError::UnknownPid { .. }
            | AttachError::Thread { .. }
            | AttachError::TooMany { .. } => Failure::Usage(error.to_string()),
            error => Failure::from(error),
        })?;
        let mut observer = observer;
        if !arguments.command.is_empty() {
            // It may come to listen on one.
            observer.see_unix()?;
        }
        let pid = server.pids.first().copied().unwrap_or(0);
        Ok(Observation {
            observer,
            collector: Collector::new(Keep {
                anonymous: arguments.outputs.anonymize,
                timeline: arguments.outputs.needs_timeline(),
            }),
            queues: ListenQueues::of(pid),
            upstreams: Upstreams::default(),
            run_queue: RunQueueSamples::start(),
            overflows: None,
            begun: Instant::now(),
            sampling: Sampling::new(arguments.every_request),
            progress: Progress::new(&server.name),
        })
    }

    /// Until the time is up, the user interrupts, or the server has ended.
    fn watch(
        &mut self,
        duration: Duration,
        stop: &AtomicBool,
        mut started: Option<&mut Started>,
    ) -> Result<(), Failure> {
        let (mut swept, mut events, mut period) = (Instant::now(), 0, SWEEP);
        while self.begun.elapsed() < duration && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(POLL);
            events += self.poll();
            if self.upstreams.is_due() {
                (self.upstreams).look(&self.observer.processes(), &self.observer.ports());
            }
            self.run_queue.sample(&self.observer);
            if swept.elapsed() < period {
                continue;
            }
            self.adapt(events, swept.elapsed())?;
            (swept, events) = (Instant::now(), 0);
            self.sweep(false)?;
            // With 100,000 connections one takes a tenth of a second.
            period = SWEEP.max(swept.elapsed() * SWEEPS_REST);
            let left = duration.saturating_sub(self.begun.elapsed());
            self.progress.show(&self.collector, left);
            let ended = match &mut started {
                Some(started) => started.has_ended(),
                None => self.observer.processes().is_empty(),
            };
            if ended {
                break;
            }
        }
        self.progress.end();
        self.sweep(true)
    }

    /// How many events of requests there were.
    fn poll(&mut self) -> u64 {
        let mut events = 0;
        self.observer.poll(|event| {
            events += u64::from(!matches!(event, ServerEvent::OffCpu(_)));
            self.collector.take(event);
        });
        self.collector.settle(&mut self.observer);
        events
    }

    fn sweep(&mut self, all: bool) -> Result<(), Failure> {
        self.overflows = self.queues.overflows().or(self.overflows);
        let open = self.observer.open_responses()?;
        // One that has ended since then is among the events.
        self.poll();
        self.collector
            .sweep(&open, monotonic_ns(), all, &mut self.observer);
        Ok(())
    }

    /// Observes fewer connections when there are too many events, or when some were lost.
    fn adapt(&mut self, events: u64, length: Duration) -> Result<(), Failure> {
        let period = Period {
            length,
            events,
            lost: self.observer.lost().records,
            established: self.observer.established(),
        };
        let (is_narrower, sees_calls) = self.sampling.adapt(&period);
        if is_narrower {
            self.observer.sample(self.sampling.halvings)?;
        }
        if self.observer.can_leave_out_calls() {
            self.observer.see_calls(sees_calls)?;
        }
        Ok(())
    }

    fn report(&mut self, server: &Server) -> Result<Report, Failure> {
        let mut report = Report::of(&self.collector);
        report.server = server.name.clone();
        report.pids = self.observer.processes();
        report.ports = self.observer.ports();
        let sockets = server.sockets.iter();
        report.sockets = sockets
            .map(|socket| self.collector.shown(&socket.path))
            .collect();
        report.duration_s = self.begun.elapsed().as_secs_f64();
        report.requests.connections = self.observer.connections();
        let (waiting, since_ns) = self.observer.waiting()?;
        report.requests.waiting = waiting;
        let waited_ns = since_ns.map_or(0, |since_ns| monotonic_ns().saturating_sub(since_ns));
        report.requests.waiting_longest_us = waited_ns as f64 / 1e3;
        report.requests.sampled_one_in = self.sampling.one_in();
        if self.sampling.halvings > 0 && self.observer.can_leave_out_calls() {
            report.calls_seen_s = Some(self.sampling.calls_seen.as_secs_f64());
        }
        report.listen_overflows = self.overflows;
        report.upstreams = self.upstreams.found();
        for upstream in &mut report.upstreams {
            if let Some(path) = upstream.address.strip_prefix("unix:") {
                upstream.address = format!("unix:{}", self.collector.shown(path));
            }
        }
        report.ready_events = self.observer.ready_events().to_vec();
        report.loop_turns = LoopTurns::of(&self.observer.turns());
        report.run_queue = self.run_queue.share();
        report.failures = self.collector.failures(&self.observer.failures());
        let visibility = self.observer.visibility();
        (report.missing).extend(visibility.missing.iter().map(|text| format!("{text}.")));
        (report.missing).extend(headway_explain::io_uring_note(&report.pids));
        (report.missing).extend(headway_explain::compat_note(&report.pids));
        (report.missing).extend(self.run_queue.missing());
        report.lose(
            &self.observer.lost(),
            RequestLimits::default().connections_max,
        );
        let dropped = self.collector.dropped();
        if dropped > 0 {
            report.missing.push(format!(
                "{dropped} times off the CPU were forgotten before their requests ended; that time counts as running."
            ));
        }
        report.conclude();
        Ok(report)
    }
}
