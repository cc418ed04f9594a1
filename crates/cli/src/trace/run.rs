//! Running a command under the preload library.

use anyhow::Context;
use clap::Args;
use debox::Symbols;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use trace::launch::{self, Launched, Session, SpawnError, Untraceable};
use trace::{Gatherer, Outcome, Places, Trace, Way};

use super::Failure;

/// What is traced, and how.
#[derive(Debug, Args)]
pub struct Arguments {}

/// How often the records of ended processes are taken out of the directory.
const SWEEP: Duration = Duration::from_secs(1);

/// Runs the command, writes the trace, returns the command's exit code.
pub fn run(arguments: &super::Arguments) -> Result<ExitCode, Failure> {
    arguments.outputs.check()?;
    let orders = arguments.policy.orders(arguments.outputs.needs_every_call())?;
    let library = launch::library()?;
    let session = Session::new().context("a directory for the trace")?;
    let command = &arguments.command;
    let untraceable = command.first().and_then(|program| launch::examine(program));
    if let Some(why) = &untraceable {
        say(&format!("trace: {why}"));
    }
    let launched = match launch::spawn(command, session.path(), &library, &orders, None) {
        Ok(launched) => launched,
        Err(error) => return Ok(not_started(&error)),
    };
    let (outcome, session) = follow(launched, session)?;
    let mut trace = gather(&session, command, untraceable.as_ref())?;
    trace.outcome = Some(outcome);
    arguments.outputs.write(&trace)?;
    Ok(exit_code(outcome))
}

/// Waits for the command; records of processes that end meanwhile are taken out.
fn follow(mut launched: Launched, mut session: Session) -> anyhow::Result<(Outcome, Session)> {
    loop {
        if let Some(outcome) = launched.wait(SWEEP).context("waiting for the command")? {
            return Ok((outcome, session));
        }
        session.sweep().context("the trace's directory")?;
    }
}

fn gather(
    session: &Session,
    command: &[OsString],
    untraceable: Option<&Untraceable>,
) -> anyhow::Result<Trace> {
    let (collection, running) = session.collection().context("the trace's directory")?;
    let symbols = Symbols::load();
    let mut places = Places::default();
    let mut gatherer = Gatherer::new(Way::Preload, symbols.as_ref().ok(), &mut places);
    gatherer.collection(&collection);
    if running > 0 {
        gatherer.miss(&format!(
            "{running} of the processes still ran when the command ended; what they do from now on is not recorded here."
        ));
    }
    match (&symbols, untraceable) {
        (_, Some(why)) => gatherer.miss(&format!("{why}.")),
        (Ok(symbols), None) if symbols.hidden() => gatherer.miss(
            "The kernel hides its symbols from this user, so sleeps have no labels; sysctl kernel.kptr_restrict=0 (with \
             kernel.perf_event_paranoid at most 1) or CAP_SYSLOG shows them.",
        ),
        (Err(error), None) => gatherer.miss(&format!("Sleeps have no labels: {error}.")),
        _ => {}
    }
    if collection.processes.is_empty() && untraceable.is_none() {
        gatherer.miss(
            "No process left a record: the library was not loaded. A program that clears its environment or has another C \
             library than glibc does that; use --attach.",
        );
    }
    let mut trace = gatherer.finish();
    trace.command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(trace)
}

fn not_started(error: &SpawnError) -> ExitCode {
    say(&format!("trace: {error}"));
    ExitCode::from(error.exit_code())
}

/// As a shell tells how its child ended.
fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Exit(code) => ExitCode::from(code as u8),
        Outcome::Signal(signal) => ExitCode::from(128_u8.saturating_add(signal as u8)),
    }
}

/// A line on standard error; if that is closed there is nobody to tell.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "headway: {text}");
}
