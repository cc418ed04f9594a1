//! `headway trace -p`: observes until told to stop, then prints.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use debox_bpf::{Attach, AttachError, Limits, Lost, Pids, SiteTotals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Arguments, table};
use crate::Failure;

/// How long at most until an interrupt or the end of the time is noticed; news of processes come at once, since
/// one that lives only for a moment has to be looked at while it does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Everything there is to show.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// What was seen and what was not.
    pub rung: String,
    /// How long.
    pub observed_ns: u64,
    /// What was missed.
    pub lost: Lost,
    /// By call site, longest first.
    pub sites: Vec<SiteTotals>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("the handler of signals")?;
    }
    let attach = start(arguments)?;
    // Whoever closed standard error does not want to know.
    let numbers: Vec<String> = arguments.pids.iter().map(u32::to_string).collect();
    let _ = writeln!(
        std::io::stderr(),
        "headway: observing {}",
        numbers.join(", ")
    );
    let outcome = observe(attach, arguments.duration, &stop)?;
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&outcome).context("writing JSON")? + "\n",
        false => table::render(&outcome),
    };
    let mut output = std::io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .context("standard output")?;
    Ok(output.flush().context("standard output")?)
}

/// A wrong number is the user's mistake; a lacking privilege is not.
fn start(arguments: &Arguments) -> Result<Attach, Failure> {
    let pids = Pids {
        pids: arguments.pids.clone(),
        follow_children: !arguments.no_children,
    };
    let limits = Limits {
        records: false,
        ..Limits::default()
    };
    Attach::start(&pids, &limits, debox::policy::Filter::default()).map_err(|error| match error {
        AttachError::UnknownPid { .. }
        | AttachError::Thread { .. }
        | AttachError::TooMany { .. } => Failure::Use(error.to_string()),
        error => Failure::from(error),
    })
}

fn observe(
    mut attach: Attach,
    duration: Option<Duration>,
    stop: &AtomicBool,
) -> Result<Outcome, Failure> {
    let begun = Instant::now();
    loop {
        attach.poll();
        let left = duration.map_or(LOOK_EVERY, |duration| {
            duration.saturating_sub(begun.elapsed())
        });
        let ended = attach.living().next().is_none();
        if left.is_zero() || ended || stop.load(Ordering::Relaxed) {
            break;
        }
        wait(&attach, left.min(LOOK_EVERY))?;
    }
    Ok(Outcome {
        rung: attach.sight().to_string(),
        observed_ns: begun.elapsed().as_nanos() as u64,
        sites: attach.snapshot()?,
        lost: attach.lost(),
    })
}

fn wait(attach: &Attach, at_most: Duration) -> anyhow::Result<()> {
    let time = Timespec::try_from(at_most).context("a wait of milliseconds")?;
    let mut events = [PollFd::new(attach, PollFlags::IN)];
    match poll(&mut events, Some(&time)) {
        // A signal: the loop looks at its flag.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for the kernel's part"),
    }
}
