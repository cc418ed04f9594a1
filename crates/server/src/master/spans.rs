//! The span process, which sends spans to a collector. It is replaced when it dies or a reload has changed its
//! settings.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use headway_config::{Config, OtlpConfig};
use headway_control::{Control, FromSpans, Received, ToSpans, ToWorker};
use headway_metrics::MasterStatus;

use super::children::{Programs, RESTART_DELAY, Role, ended};
use super::supervised::Supervised;
use super::{Master, log_error, log_warn};

/// The shortest time between two messages about lost spans.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// When it is started again after it has said that it cannot work.
const FAILED_DELAY: Duration = Duration::from_secs(60);

/// The span process and its channel.
pub(super) struct Spans {
    config: OtlpConfig,
    pub(super) process: Supervised,
    /// When lost spans were last reported, and how many there are since.
    reported: Option<Instant>,
    lost: u64,
    /// It has said why it cannot work, which does not change soon.
    has_failed: bool,
}

impl Spans {
    /// That of a configuration, if it has a collector. The process is started later, since nothing waits for it.
    pub(super) fn of(config: &Config) -> Option<Spans> {
        let config = config.otlp.clone()?;
        Some(Spans {
            config,
            process: Supervised::due(),
            reported: None,
            lost: 0,
            has_failed: false,
        })
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.process.control()
    }

    /// What an upgrade hands over: workers before go on sending spans.
    pub(super) fn handed(&self) -> Option<(u32, BorrowedFd<'_>)> {
        Some((self.process.pid()?, self.control()?.as_fd()))
    }

    /// Checks whether it has ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let Some(exit) = self.process.take_end().filter(|_| !stopping) else {
            return;
        };
        status.span_deaths += 1;
        let delay = match std::mem::take(&mut self.has_failed) {
            true => FAILED_DELAY,
            false => RESTART_DELAY,
        };
        self.process.restart_in(delay);
        let (end, delay) = (ended(exit), delay.as_millis());
        log_error(format_args!(
            "span process ended: {end}; restarting it in {delay} ms"
        ));
    }

    /// Starts it, or a replacement, when it is due; `true` if workers need new sockets.
    fn restart(&mut self, programs: &Programs, now: Instant) -> bool {
        if !self.process.is_due(now) {
            return false;
        }
        let otlp = self.config.clone();
        let role = (Role::Spans, "start the span process");
        let started = self.process.start(programs, role, |process| {
            process.send(&ToSpans::Start { otlp }, &[])
        });
        if let Err(error) = &started {
            log_error(error);
            self.process.restart_in(RESTART_DELAY);
        }
        started.is_ok()
    }

    /// Counts what became of spans. A collector that is away for long gives few messages.
    fn count(
        &mut self,
        exported: u64,
        dropped: u64,
        why: Option<String>,
        status: &mut MasterStatus,
    ) {
        status.spans_exported += exported;
        status.spans_dropped += dropped;
        self.lost += dropped;
        let Some(why) = why else {
            if dropped == 0 {
                status.span_error = None;
            }
            return;
        };
        let now = Instant::now();
        let is_due = |at: Instant| now.duration_since(at) >= REPORT_INTERVAL;
        if self.reported.is_none_or(is_due) {
            log_warn(format_args!("OTLP: {why}; {} spans lost", self.lost));
            (self.reported, self.lost) = (Some(now), 0);
        }
        status.span_error = Some(why);
    }

    /// Closes the channel, so that it ends.
    pub(super) fn let_end(self) -> Option<Child> {
        self.process.let_end()
    }
}

impl Master<'_> {
    /// Reads messages of the span process.
    pub(super) fn read_spans(&mut self) {
        while let Some(spans) = &mut self.spans {
            let received = spans.control().map(Control::try_receive);
            let Some(Ok(Received::Message(message, _))) = received else {
                // If it has ended, it is reaped next.
                return;
            };
            match message {
                FromSpans::Done {
                    exported,
                    dropped,
                    why,
                } => spans.count(exported, dropped, why, &mut self.own_status),
                FromSpans::Failed { why } => {
                    log_error(format_args!("OTLP: {why}"));
                    spans.has_failed = true;
                    self.own_status.span_error = Some(why);
                }
            }
        }
    }

    /// Starts the span process when it is due, and connects the workers.
    pub(super) fn start_spans(&mut self, now: Instant) {
        let programs = &self.current.programs;
        let restarted = match &mut self.spans {
            Some(spans) => spans.restart(programs, now),
            None => false,
        };
        if restarted {
            (0..self.slots.len()).for_each(|place| self.connect_spans(place));
        }
    }

    /// Gives a worker a socket to the span process.
    pub(super) fn connect_spans(&mut self, place: usize) {
        let Some(assigned) = &self.slots[place].worker else {
            return;
        };
        let wanted = assigned.generation.config.otlp.as_ref();
        let spans = self
            .spans
            .as_ref()
            .filter(|spans| wanted == Some(&spans.config));
        let Some(control) = spans.and_then(Spans::control) else {
            return;
        };
        let Ok((ours, theirs)) = Control::pair() else {
            return;
        };
        // If the channel is full, the process does nothing, and spans are dropped in the worker.
        if matches!(
            control.try_send(&ToSpans::Worker, &[theirs.as_fd()]),
            Ok(true)
        ) {
            self.send(place, ToWorker::Spans, vec![ours.into_inner()]);
        }
    }

    /// Replaces the process if a reload has other settings. The one before ends when its workers have.
    pub(super) fn replace_spans(&mut self) {
        let current = self.current.config.otlp.as_ref();
        if current == self.spans.as_ref().map(|spans| &spans.config) {
            return;
        }
        let earlier = std::mem::replace(&mut self.spans, Spans::of(&self.current.config));
        self.ending.extend(earlier.and_then(Spans::let_end));
        self.own_status.span_error = None;
    }
}
