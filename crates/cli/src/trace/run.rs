//! Running a command under the preload library.

use anyhow::Context;
use clap::Args;
use headway_debox::Symbols;
use headway_debox_bpf::{AttachError, Beside, Limits};
use headway_trace::launch::{self, Session, SpawnError, Untraceable};
use headway_trace::{Gatherer, Outcome, Places, Trace, Waits, Way};
use std::cell::OnceCell;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Failure;
use super::functions::{self, Functions};
use super::watch::{Held, Screen, Source};

/// How often records of ended processes are taken out of the directory.
const SWEEP: Duration = Duration::from_millis(500);

/// How often the observer beside is asked: often enough for its ring, seldom enough to be no load.
const POLL: Duration = Duration::from_millis(50);

/// What is traced, and how.
#[derive(Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "What is traced")]
pub struct Arguments {
    /// Observe a process that runs already, its threads and later children, by BPF; may be given
    /// several times
    #[arg(short, long = "pid", value_name = "PID")]
    pub pids: Vec<u32>,
    /// Observe the command from outside, by BPF: for static and Go programs, and for waiter counts
    #[arg(long)]
    pub attach: bool,
    /// Count who else waits: other tasks asleep on the same lock, file or futex at each sleep, by
    /// BPF beside the library (root, or CAP_BPF and CAP_PERFMON); -p and --attach always do
    #[arg(long)]
    pub waiters: bool,
    /// Time the kernel's functions in each kept call, the N longest (200), by its function_graph
    /// tracer: root and Linux 6.11. Calls take several times as long; where the tracer is missing
    /// the summary says so
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "200",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub functions: Option<u32>,
    /// Name the line of the kernel's sources each sleep was at, from the kernel's debug file (a
    /// vmlinux with DWARF: the package linux-image-…-dbg or kernel-debuginfo); takes seconds,
    /// HEADWAY_VMLINUX names a file elsewhere
    #[arg(long)]
    pub kernel_lines: bool,
    /// With -p: stop after this time (10s, 2m); without it, at an interrupt or the end of the
    /// processes
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// With -p or --attach: leave children alone
    #[arg(long)]
    pub no_children: bool,
    /// Show calls, sites and labels in the terminal while they happen; what the command writes to
    /// the terminal follows at the end
    #[arg(long)]
    pub live: bool,
}

impl Arguments {
    /// Options that mean something only to an observer are refused without one, not ignored.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |text: &str| Err(Failure::Use(text.to_owned()));
        if self.duration.is_some() && self.pids.is_empty() {
            return wrong(
                "--duration goes with --pid; a command decides itself how long it runs (see timeout(1))",
            );
        }
        if self.no_children && self.pids.is_empty() && !self.attach {
            return wrong(
                "--no-children goes with --pid or --attach; the preload library follows children",
            );
        }
        Ok(())
    }
}

/// A time as `headway load` takes it (`500ms`, `10s`, `2m`), or a bare number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let scale = match &text[number.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("not a number of seconds, nor a time such as 500ms, 10s or 2m".to_owned()),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "not a number of seconds, nor a time such as 500ms, 10s or 2m".to_owned())?;
    Duration::try_from_secs_f64(number * scale).map_err(|error| error.to_string())
}

/// Runs the command, writes the trace, returns the command's exit code.
pub fn run(arguments: &super::Arguments) -> Result<ExitCode, Failure> {
    let orders = arguments
        .policy
        .orders(arguments.outputs.needs_every_call())?;
    let library = launch::library()?;
    let session = Session::new().context("a directory for the trace")?;
    let symbols = OnceCell::new();
    if orders.need_labels()
        && let Ok(symbols) = symbols.get_or_init(Symbols::load)
    {
        // Without it each program finds its own, which takes longer.
        let _ = session.provide(symbols);
    }
    let command = &arguments.command;
    let untraceable = command.first().and_then(|program| launch::examine(program));
    if let Some(why) = &untraceable {
        say(&format!("trace: {why}"));
    }
    let held = arguments.run.live.then(Held::new).transpose()?;
    let streams = held.as_ref().map(Held::streams).transpose()?;
    let screen = Screen::new(arguments.run.live)?;
    let _events = events_kept_ready();
    let beside = Counted::start(arguments.run.waiters);
    let mut functions = Functions::new(arguments.run.functions);
    let start = || launch::spawn(command, session.path(), &library, &orders, streams);
    let mut launched = match functions.starting(start) {
        Ok(launched) => launched,
        Err(error) => {
            drop(screen);
            return Ok(not_started(&error));
        }
    };
    let mut recorded = Recorded {
        session,
        swept: Instant::now(),
        beside,
        functions,
        symbols,
        places: Places::default(),
        lines: super::lines::Lines::new(arguments.run.kernel_lines),
        command,
        site_names: arguments.policy.site_names(),
        untraceable,
    };
    let outcome = screen.command(&mut recorded, &mut launched)?;
    held.map(Held::release).transpose()?;
    let mut trace = recorded.trace()?;
    trace.outcome = Some(outcome);
    arguments.outputs.write(&trace, true)?;
    Ok(exit_code(outcome))
}

/// Records of our own, which nobody reads. The first event of a kind makes the kernel rewrite its
/// own code on all processors and the last one makes it rewrite it back, 0.2 ms each: what every
/// process of a build would pay for itself.
fn events_kept_ready() -> headway_debox::Debox {
    headway_debox::Debox::enable(headway_debox::Limits {
        resolve: false,
        ..headway_debox::Limits::default()
    })
}

/// The observer that counts waiters, or why there is none though one was wanted.
struct Counted {
    beside: Option<Beside>,
    why_not: Option<AttachError>,
}

impl Counted {
    /// Before the command starts: whoever slept then is counted for nobody. The ring holds a second
    /// of more sleeps than two processors can have.
    fn start(wanted: bool) -> Counted {
        let limits = Limits {
            threads_max: 16_384,
            ring_bytes: 8 << 20,
            records_max: 1 << 20,
            ..Limits::default()
        };
        let started = wanted.then(|| Beside::children(&limits)).transpose();
        match started {
            Ok(beside) => Counted {
                beside,
                why_not: None,
            },
            Err(why) => Counted {
                beside: None,
                why_not: Some(why),
            },
        }
    }

    /// Hands over what was counted, and says what was not.
    fn tell(&mut self, gatherer: &mut Gatherer<'_>, symbols: Option<&Symbols>) {
        if let Some(why) = &self.why_not {
            gatherer.miss(&format!("Waiters are not counted: {why}."));
        }
        let Some(beside) = &mut self.beside else {
            return;
        };
        beside.poll();
        gatherer.waits(Waits::new(
            beside.sleeps(),
            |stack| beside.stack(stack),
            symbols,
        ));
        for missing in &beside.sight().missing {
            gatherer.miss(&format!("Waiters: {missing}."));
        }
        let lost = beside.lost();
        if !lost.is_none() {
            gatherer.miss(&format!("Waiters are not complete; {lost}."));
        }
    }
}

/// What the traced programs leave.
struct Recorded<'a> {
    session: Session,
    swept: Instant,
    beside: Counted,
    functions: Functions,
    /// Read at the first look at a command that takes its time, or at the end: reading takes a
    /// processor for tens of milliseconds, which a short command would have to share.
    symbols: OnceCell<std::io::Result<Symbols>>,
    lines: super::lines::Lines,
    places: Places,
    command: &'a [OsString],
    site_names: Option<&'a [String]>,
    untraceable: Option<Untraceable>,
}

impl Source for Recorded<'_> {
    fn every(&self) -> Duration {
        match self.beside.beside {
            _ if self.functions.are_timed() => functions::POLL,
            Some(_) => POLL,
            None => SWEEP,
        }
    }

    fn poll(&mut self) -> anyhow::Result<bool> {
        self.functions.poll();
        if let Some(beside) = &mut self.beside.beside {
            beside.poll();
        }
        if self.swept.elapsed() >= SWEEP.mul_f64(0.9) {
            self.session.sweep().context("the trace's directory")?;
            self.symbols.get_or_init(Symbols::load);
            self.swept = Instant::now();
        }
        Ok(true)
    }

    fn trace(&mut self) -> anyhow::Result<Trace> {
        let (collection, running) = self.session.collection().context("the trace's directory")?;
        let symbols = self.symbols.get_or_init(Symbols::load);
        let mut gatherer = Gatherer::new(Way::Preload, symbols.as_ref().ok(), &mut self.places);
        self.beside.tell(&mut gatherer, symbols.as_ref().ok());
        match self.lines.get(symbols.as_ref().ok()) {
            Ok(Some(lines)) => gatherer.lines(lines),
            Ok(None) => {}
            Err(why) => gatherer.miss(&why),
        }
        gatherer.collection(&collection);
        if running > 0 {
            gatherer.miss(&format!(
                "{running} of the processes still ran when the command ended; what they do from now on is not recorded."
            ));
        }
        match (symbols, &self.untraceable) {
            (_, Some(why)) => gatherer.miss(&format!("{why}.")),
            (Ok(symbols), None) if symbols.hidden() => gatherer.miss(
                "The kernel hides its symbols from this user, so sleeps have no labels; sysctl kernel.kptr_restrict=0 \
                 (with kernel.perf_event_paranoid at most 1) or CAP_SYSLOG shows them.",
            ),
            (Err(error), None) => gatherer.miss(&format!("Sleeps have no labels: {error}.")),
            _ => {}
        }
        if collection.processes.is_empty() && self.untraceable.is_none() {
            gatherer.miss(
                "No process left a record: the library was not loaded (a program that clears its environment, or has \
                 another C library than glibc, does that; use --attach), or /dev/shm, where records go, is full.",
            );
        }
        let mut trace = gatherer.finish();
        trace.command = words(self.command);
        if let Some(names) = self.site_names {
            trace.keep_sites(names);
        }
        self.functions.add(&mut trace, symbols.as_ref().ok());
        Ok(trace)
    }
}

/// A command for people.
pub fn words(command: &[OsString]) -> Vec<String> {
    command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Says why a command did not start, and with which code a shell would exit.
pub fn not_started(error: &SpawnError) -> ExitCode {
    say(&format!("trace: {error}"));
    ExitCode::from(error.exit_code())
}

/// As a shell tells how its child ended.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Exit(code) => ExitCode::from(code as u8),
        Outcome::Signal(signal) => ExitCode::from(128_u8.saturating_add(signal as u8)),
    }
}

/// A line on standard error; if that is closed there is nobody to tell.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "headway: {text}");
}
