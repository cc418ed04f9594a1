//! Tracing from outside, by BPF: running processes, and commands into which no library can be
//! preloaded.

use anyhow::Context;
use headway_debox::Symbols;
use headway_debox::policy::Filter;
use headway_debox_bpf::{Attach, AttachError, Limits, Pids};
use headway_trace::launch::{Launched, SpawnError};
use headway_trace::{CallSites, Observation, Trace};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Failure;
use super::functions::Functions;
use super::lines::Lines;
use super::run::{command_line, exit_code, not_started, print_line};
use super::targets;
use super::watch::{HeldOutput, Screen, TraceSource};
use crate::signals;

/// Observes running processes until they end, the time is up, or the user interrupts.
pub fn processes(arguments: &super::Arguments) -> Result<ExitCode, Failure> {
    let stop = signals::caught(signals::STOP)?;
    let mut observed = Observed::start(arguments, &targets::pids(&arguments.run.pids)?, None)?;
    if !arguments.run.live {
        let stops = match arguments.run.duration {
            Some(limit) => format!("for {} s", limit.as_secs_f64()),
            None => "until Ctrl-C".to_owned(),
        };
        print_line(&format!(
            "trace: observing {stops}, or until all traced processes have ended"
        ));
    }
    let begun = Instant::now();
    let time_is_up = || {
        let limit = arguments.run.duration;
        limit.is_some_and(|limit| begun.elapsed() >= limit)
    };
    let over = || time_is_up() || stop.load(Ordering::Relaxed);
    Screen::new(arguments.run.live)?.processes(&mut observed, over)?;
    arguments.outputs.write(&observed.trace()?, false)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a command behind a gate, observes it from its first call, returns its exit code.
pub fn command(arguments: &super::Arguments) -> Result<ExitCode, Failure> {
    let directory = tempfile::tempdir().context("a directory for the gate")?;
    let fifo = directory.path().join("gate");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).context("the gate")?;
    let held = arguments.run.live.then(HeldOutput::new).transpose()?;
    let program = std::env::current_exe().context("the path of this program")?;
    let mut starting = Command::new(program);
    starting
        .arg("trace-gate")
        .arg(&fifo)
        .arg("--")
        .args(&arguments.command);
    if let Some(held) = &held {
        let (out, error) = held.streams()?;
        starting
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(error);
    }
    let mut launched = Launched::new(starting.spawn().context("starting the command")?);
    let observed = Observed::start(arguments, &[launched.pid()], Some(launched.pid()));
    let mut observed = match observed {
        Ok(observed) => observed,
        Err(failure) => {
            // The gate's process ends when the gate is opened and closed without "go".
            launched.kill();
            return Err(failure);
        }
    };
    std::fs::write(&fifo, "go").context("the gate")?;
    let outcome = Screen::new(arguments.run.live)?.command(&mut observed, &mut launched)?;
    observed.poll()?;
    held.map(HeldOutput::release).transpose()?;
    let mut trace = observed.trace()?;
    trace.command = command_line(&arguments.command);
    trace.outcome = Some(outcome);
    arguments.outputs.write(&trace, true)?;
    Ok(exit_code(outcome))
}

/// The process behind the gate: waits for "go", then executes the command. Returns only on an
/// error.
pub fn gate(fifo: &Path, command: &[OsString]) -> Result<ExitCode, Failure> {
    let mut word = String::new();
    File::open(fifo)
        .and_then(|mut gate| gate.read_to_string(&mut word))
        .context("this subcommand is started by `headway trace --attach`, not by hand")?;
    let (Some((program, rest)), "go") = (command.split_first(), word.as_str()) else {
        return Ok(ExitCode::FAILURE);
    };
    let error = Command::new(program).args(rest).exec();
    Ok(not_started(&SpawnError::new(program, error)))
}

/// An observation under way, with what is needed to name its call sites.
struct Observed {
    observation: Observation,
    symbols: Option<Symbols>,
    lines: Lines,
    functions: Functions,
    locations: CallSites,
    site_names: Option<Vec<String>>,
}

impl Observed {
    /// Starts observing. An unknown process id is a usage error; a missing privilege is a failure.
    fn start(
        arguments: &super::Arguments,
        pids: &[u32],
        gate: Option<u32>,
    ) -> Result<Observed, Failure> {
        arguments.policy.reject_in_band_options()?;
        arguments.policy.check_sites()?;
        let filter: Filter = (arguments
            .policy
            .policy_text(arguments.outputs.needs_every_call()))
        .parse()
        .map_err(|error: headway_debox::policy::PolicyError| Failure::Usage(error.to_string()))?;
        let pids = Pids {
            pids: pids.to_vec(),
            follow_children: !arguments.run.no_children,
        };
        let attach =
            Attach::start(&pids, &Limits::default(), filter).map_err(|error| match error {
                AttachError::UnknownPid { .. }
                | AttachError::Thread { .. }
                | AttachError::TooMany { .. } => Failure::Usage(error.to_string()),
                error => Failure::from(error),
            })?;
        let mut functions = Functions::new(arguments.run.functions);
        functions.follow_processes(&pids.pids);
        Ok(Observed {
            observation: Observation::new(attach, gate),
            symbols: Symbols::load().ok(),
            lines: Lines::new(arguments.run.kernel_lines),
            functions,
            locations: CallSites::default(),
            site_names: arguments.policy.site_names().map(<[String]>::to_vec),
        })
    }
}

impl TraceSource for Observed {
    /// Short, so that the name of a new process is read from /proc before it ends.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(2)
    }

    fn poll(&mut self) -> anyhow::Result<bool> {
        self.functions.poll();
        Ok(self.observation.poll())
    }

    fn trace(&mut self) -> anyhow::Result<Trace> {
        let symbols = self.symbols.as_ref();
        let (lines, why_not) = match self.lines.get(symbols) {
            Ok(lines) => (lines, None),
            Err(why) => (None, Some(why)),
        };
        let mut trace = (self.observation).trace(symbols, lines, &mut self.locations)?;
        trace.missing.extend(why_not);
        if let Some(names) = &self.site_names {
            trace.keep_sites(names);
        }
        self.functions.add(&mut trace, symbols);
        Ok(trace)
    }
}
