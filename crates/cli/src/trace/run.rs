//! Running a command under the preload library.

use anyhow::Context;
use clap::Args;
use headway_debox::Symbols;
use headway_debox_bpf::{AttachError, Limits, WaiterObserver};
use headway_latency::format::printable;
use headway_trace::launch::{self, Session, SpawnError, Untraceable};
use headway_trace::{CallSites, Outcome, Trace, TraceBuilder, TraceMethod, WaiterCounts};
use std::cell::OnceCell;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Failure;
use super::functions::{self, Functions};
use super::watch::{HeldOutput, Screen, TraceSource};

/// How often records of ended processes are taken out of the directory.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of reading the observer's ring: short enough that it does not overflow, long enough to
/// cost no measurable CPU time.
const POLL: Duration = Duration::from_millis(50);

/// What is traced, and how.
#[derive(Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "What to trace")]
pub struct Arguments {
    /// Trace running processes, by id or by name (root)
    ///
    /// Several are separated by spaces or commas. A name means all processes of that name. Threads
    /// and later child processes are traced too. Uses BPF: root, or CAP_BPF and CAP_PERFMON.
    #[arg(short, long = "pid", value_name = "PID|NAME", num_args = 1..)]
    pub pids: Vec<String>,
    /// With -p: stop after this time
    ///
    /// Otherwise tracing ends at Ctrl-C, or when the processes have ended.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Trace from outside: also static and Go programs, and every libc call (root)
    ///
    /// Uses BPF: root, or CAP_BPF and CAP_PERFMON. Also counts waiters, as --waiters does.
    #[arg(long)]
    pub attach: bool,
    /// Show a live view of calls, call sites and labels
    ///
    /// What the command writes to the terminal is shown when it has ended.
    #[arg(long)]
    pub live: bool,
    /// Count other tasks that wait for the same lock, file or futex (root)
    ///
    /// Uses BPF beside the preloaded library: root, or CAP_BPF and CAP_PERFMON. -p and --attach
    /// always count them.
    #[arg(long)]
    pub waiters: bool,
    /// Time the kernel functions in each kept call, the N longest of them [default N: 200]
    ///
    /// Uses the kernel's function_graph tracer: root and Linux 6.11. Calls take several times as
    /// long. If the tracer is missing, the summary says so.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "200",
        value_parser = clap::value_parser!(u32).range(1..=100_000), hide_short_help = true)]
    pub functions: Option<u32>,
    /// Show the line of the kernel source at each sleep, from the kernel's debug file
    ///
    /// The debug file is a vmlinux with DWARF: the package linux-image-…-dbg or kernel-debuginfo.
    /// Reading it takes seconds. HEADWAY_VMLINUX names a file elsewhere.
    #[arg(long, hide_short_help = true)]
    pub kernel_lines: bool,
    /// With -p or --attach: do not trace child processes
    #[arg(long, hide_short_help = true)]
    pub no_children: bool,
}

impl Arguments {
    /// Refuses options of `-p` and `--attach` that are given without them.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |text: &str| Err(Failure::Usage(text.to_owned()));
        if self.duration.is_some() && self.pids.is_empty() {
            return wrong("--duration needs --pid; to limit the time of a command, use timeout(1)");
        }
        if self.no_children && self.pids.is_empty() && !self.attach {
            return wrong(
                "--no-children needs --pid or --attach; the preload library always traces children",
            );
        }
        Ok(())
    }
}

/// A time as `headway load` takes it (`500ms`, `10s`, `2m`), or a bare number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "use a time such as 10s, 500ms or 2m (a bare number is seconds)".to_owned();
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let scale = match &text[number.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| wrong())
}

/// Runs the command, writes the trace, returns the command's exit code.
pub fn run(arguments: &super::Arguments) -> Result<ExitCode, Failure> {
    let options = arguments
        .policy
        .options(arguments.outputs.needs_every_call())?;
    let library = launch::library()?;
    let session = Session::new().context("a directory for the trace")?;
    let symbols = OnceCell::new();
    if options.need_labels()
        && let Ok(symbols) = symbols.get_or_init(Symbols::load)
    {
        // Without it each program finds its own, which takes longer.
        let _ = session.write_symbols(symbols);
    }
    let command = &arguments.command;
    let untraceable = command
        .first()
        .and_then(|program| launch::why_untraceable(program));
    if let Some(why) = &untraceable {
        print_line(&format!("trace: {why}"));
    }
    let held = arguments.run.live.then(HeldOutput::new).transpose()?;
    let streams = held.as_ref().map(HeldOutput::streams).transpose()?;
    let screen = Screen::new(arguments.run.live)?;
    let _events = events_kept_ready();
    let observer = OptionalObserver::start(arguments.run.waiters);
    let mut functions = Functions::new(arguments.run.functions);
    let start = || launch::spawn(command, session.path(), &library, &options, streams);
    let mut launched = match functions.start_followed(start) {
        Ok(launched) => launched,
        Err(error) => {
            drop(screen);
            return Ok(not_started(&error));
        }
    };
    let mut recorded = Recorded {
        session,
        swept: Instant::now(),
        observer,
        functions,
        symbols,
        locations: CallSites::default(),
        lines: super::lines::Lines::new(arguments.run.kernel_lines),
        command,
        site_names: arguments.policy.site_names(),
        untraceable,
    };
    let outcome = screen.command(&mut recorded, &mut launched)?;
    held.map(HeldOutput::release).transpose()?;
    let mut trace = recorded.trace()?;
    trace.outcome = Some(outcome);
    arguments.outputs.write(&trace, true)?;
    Ok(exit_code(outcome))
}

/// Records of this process, which are not used. The first event of a kind makes the kernel rewrite
/// its own code on all CPUs, and the last one makes it rewrite it back, which takes 0.2 ms each.
/// Otherwise every process of a build would pay that itself.
fn events_kept_ready() -> headway_debox::Debox {
    headway_debox::Debox::enable(headway_debox::Limits {
        resolve: false,
        ..headway_debox::Limits::default()
    })
}

/// The observer that counts waiters, or why there is none though one was wanted.
struct OptionalObserver {
    observer: Option<WaiterObserver>,
    why_not: Option<AttachError>,
}

impl OptionalObserver {
    /// Starts before the command, since tasks that already sleep are not counted. The ring holds
    /// more than a second of the sleeps that two CPUs can have.
    fn start(wanted: bool) -> OptionalObserver {
        let limits = Limits {
            threads_max: 16_384,
            ring_bytes: 8 << 20,
            records_max: 1 << 20,
            ..Limits::default()
        };
        let started = wanted
            .then(|| WaiterObserver::children(&limits))
            .transpose();
        match started {
            Ok(observer) => OptionalObserver {
                observer,
                why_not: None,
            },
            Err(why) => OptionalObserver {
                observer: None,
                why_not: Some(why),
            },
        }
    }

    /// Hands over what was counted, and says what was not.
    fn report(&mut self, builder: &mut TraceBuilder<'_>, symbols: Option<&Symbols>) {
        if let Some(why) = &self.why_not {
            builder.add_missing(&format!("Waiters are not counted: {why}."));
        }
        let Some(observer) = &mut self.observer else {
            return;
        };
        observer.poll();
        builder.waits(WaiterCounts::new(
            observer.sleeps(),
            |stack| observer.stack(stack),
            symbols,
        ));
        for missing in &observer.visibility().missing {
            builder.add_missing(&format!("Waiters: {missing}."));
        }
        let lost = observer.lost();
        if !lost.is_none() {
            builder.add_missing(&format!("Waiters are not complete; {lost}."));
        }
    }
}

/// What the traced programs leave.
struct Recorded<'a> {
    session: Session,
    swept: Instant,
    observer: OptionalObserver,
    functions: Functions,
    /// Read at the first sweep of a long command, or at the end: reading takes a CPU for tens of
    /// milliseconds, which a short command would have to share.
    symbols: OnceCell<std::io::Result<Symbols>>,
    lines: super::lines::Lines,
    locations: CallSites,
    command: &'a [OsString],
    site_names: Option<&'a [String]>,
    untraceable: Option<Untraceable>,
}

impl TraceSource for Recorded<'_> {
    fn poll_interval(&self) -> Duration {
        match self.observer.observer {
            _ if self.functions.are_timed() => functions::POLL,
            Some(_) => POLL,
            None => POLL_INTERVAL,
        }
    }

    fn poll(&mut self) -> anyhow::Result<bool> {
        self.functions.poll();
        if let Some(observer) = &mut self.observer.observer {
            observer.poll();
        }
        if self.swept.elapsed() >= POLL_INTERVAL.mul_f64(0.9) {
            self.session
                .collect_ended()
                .context("the trace's directory")?;
            self.symbols.get_or_init(Symbols::load);
            self.swept = Instant::now();
        }
        Ok(true)
    }

    fn trace(&mut self) -> anyhow::Result<Trace> {
        let (collection, running) = self.session.collection().context("the trace's directory")?;
        let symbols = self.symbols.get_or_init(Symbols::load);
        let mut builder = TraceBuilder::new(
            TraceMethod::Preload,
            symbols.as_ref().ok(),
            &mut self.locations,
        );
        self.observer.report(&mut builder, symbols.as_ref().ok());
        match self.lines.get(symbols.as_ref().ok()) {
            Ok(Some(lines)) => builder.lines(lines),
            Ok(None) => {}
            Err(why) => builder.add_missing(&why),
        }
        builder.collection(&collection);
        if running > 0 {
            builder.add_missing(&format!(
                "{running} processes were still running when the command ended; their later calls are not recorded."
            ));
        }
        match (symbols, &self.untraceable) {
            (_, Some(why)) => builder.add_missing(&format!("{why}.")),
            (Ok(symbols), None) if symbols.hidden() => builder.add_missing(
                "Sleeps have no labels, because the kernel hides its symbols from this user. To show them: sysctl \
                 kernel.kptr_restrict=0 (with kernel.perf_event_paranoid at most 1), or CAP_SYSLOG.",
            ),
            (Err(error), None) => builder.add_missing(&format!("Sleeps have no labels: {error}.")),
            _ => {}
        }
        if collection.processes.is_empty() && self.untraceable.is_none() {
            builder.add_missing(
                "No process left a record. Either the library was not loaded (the program clears its environment or \
                 does not use glibc; use --attach), or /dev/shm, where the records go, is full.",
            );
        }
        let mut trace = builder.finish();
        trace.command = command_line(self.command);
        if let Some(names) = self.site_names {
            trace.keep_sites(names);
        }
        self.functions.add(&mut trace, symbols.as_ref().ok());
        Ok(trace)
    }
}

/// A command for people.
pub fn command_line(command: &[OsString]) -> Vec<String> {
    command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Says why a command did not start, and with which code a shell would exit.
pub fn not_started(error: &SpawnError) -> ExitCode {
    print_line(&format!("trace: {error}"));
    ExitCode::from(error.exit_code())
}

/// The exit code of a shell for this outcome.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Exit(code) => ExitCode::from(code as u8),
        Outcome::Signal(signal) => ExitCode::from(128_u8.saturating_add(signal as u8)),
    }
}

/// Writes a line to standard error; a closed standard error is not a failure.
pub fn print_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "headway: {}", printable(text));
}
