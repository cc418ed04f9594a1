//! The span process: reads spans from the workers, and has a thread of its own send them.
//!
//! Reading never waits for the collector, so the sockets of workers stay empty, and what is lost is counted here. It
//! ends when the master has ended, after it has tried once to send what is left.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use headway_access_log::PACKET_BYTES_MAX;
use headway_config::OtlpConfig;
use headway_control::{Control, ControlError, FromSpans, Received, ToSpans};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::batches::{Batches, Done};
use crate::export::Exporter;

/// Packets read from one worker before the next worker is served.
const PACKETS_PER_WORKER: usize = 16;
/// Time that workers have for their last spans after the master has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Error that ends the span process.
#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// It could not be prepared.
    #[error("{0}")]
    Prepare(String),
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(Errno),
    /// The thread which sends could not be started.
    #[error("start a thread: {0}")]
    Thread(std::io::Error),
}

/// The main function of the span process; `control` is the channel to the master, and `prepare` confines the
/// process before it starts a thread.
///
/// # Errors
/// The process cannot be prepared, or the master cannot be reached.
pub fn spans_main_with(
    control: Control,
    prepare: impl FnOnce(&OtlpConfig) -> Result<(), String>,
) -> Result<(), SpanError> {
    let Some((ToSpans::Start { otlp }, _)) = control.receive::<ToSpans>()? else {
        return Ok(());
    };
    prepare(&otlp).map_err(SpanError::Prepare)?;
    let exporter = match Exporter::new(otlp) {
        Ok(exporter) => exporter,
        Err(error) => {
            let why = error.to_string();
            control.send(&FromSpans::Failed { why: why.clone() }, &[])?;
            return Err(SpanError::Prepare(why));
        }
    };
    let batches = Arc::new(Batches::default());
    let sent = batches.clone();
    let thread = thread::Builder::new()
        .name("export".into())
        .spawn(move || exporter.run(&sent))
        .map_err(SpanError::Thread)?;
    let mut process = Process {
        control: Some(control),
        workers: Vec::new(),
        batches,
        end: None,
    };
    let done = process.run();
    process.batches.end();
    let _ = thread.join();
    done
}

struct Process {
    /// `None` after the master has ended.
    control: Option<Control>,
    workers: Vec<OwnedFd>,
    batches: Arc<Batches>,
    end: Option<Instant>,
}

impl Process {
    fn run(&mut self) -> Result<(), SpanError> {
        let mut buffer = vec![0; PACKET_BYTES_MAX + 1];
        loop {
            let is_over = self.end.is_some_and(|end| Instant::now() >= end);
            if self.control.is_none() && (self.workers.is_empty() || is_over) {
                return Ok(());
            }
            let ready = self.wait()?;
            self.take_spans(&ready, &mut buffer);
            self.handle_orders()?;
            self.report();
        }
    }

    /// Whether each worker's socket is readable. While spans are on their way, counts are reported each second.
    fn wait(&self) -> Result<Vec<bool>, SpanError> {
        let workers = self.workers.iter();
        let mut polled: Vec<PollFd<'_>> = workers
            .map(|worker| PollFd::new(worker, PollFlags::IN))
            .collect();
        let control = self.control.iter();
        polled.extend(control.map(|control| PollFd::new(control, PollFlags::IN)));
        let is_busy = self.end.is_some() || self.batches.is_busy();
        let timeout = is_busy.then_some(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(SpanError::Poll(error)),
        }
        let workers = polled[..self.workers.len()].iter();
        Ok(workers.map(|one| !one.revents().is_empty()).collect())
    }

    fn take_spans(&mut self, ready: &[bool], buffer: &mut [u8]) {
        // Backwards, so that removing one does not move those not yet visited.
        for worker in (0..self.workers.len()).rev().filter(|at| ready[*at]) {
            for _ in 0..PACKETS_PER_WORKER {
                match rustix::net::recv(&self.workers[worker], &mut *buffer, RecvFlags::DONTWAIT) {
                    // The first byte is the number of a log file.
                    Ok((bytes @ 1.., _)) => self.batches.push(&buffer[1..bytes]),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Ok(_) | Err(_) => {
                        self.workers.swap_remove(worker);
                        break;
                    }
                }
            }
        }
    }

    fn handle_orders(&mut self) -> Result<(), SpanError> {
        while let Some(control) = &self.control {
            match control.try_receive::<ToSpans>()? {
                Received::Message(ToSpans::Worker, sockets) => self.workers.extend(sockets),
                Received::Message(ToSpans::Start { .. }, _) => {}
                Received::WouldBlock => break,
                Received::Closed => {
                    self.control = None;
                    self.end = Some(Instant::now() + DRAIN_TIMEOUT);
                }
            }
        }
        Ok(())
    }

    /// Reports to the master what became of spans, later if its channel is full.
    fn report(&self) {
        let Some(control) = &self.control else { return };
        let Done {
            exported,
            dropped,
            why,
        } = self.batches.take_done();
        if exported == 0 && dropped == 0 {
            return;
        }
        let message = FromSpans::Done {
            exported,
            dropped,
            why: why.clone(),
        };
        if !matches!(control.try_send(&message, &[]), Ok(true)) {
            self.batches.count(exported, dropped, why);
        }
    }
}
