//! `headway load`: offers load to a server, keeps every request, and says whether the figures can
//! be believed.
//!
//! Glue: words become settings, the library measures, and what it hands back is printed. Results go
//! to standard output, progress and warnings to standard error, the progress line only when that is
//! a terminal.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use clap::{ArgGroup, Args, ValueEnum};
use headway_latency::run::description::Verdict;
use headway_load::client::environment::dated;
use headway_load::engine;
use headway_load::session::settings::{Demand, WorkSource};
use headway_load::session::summary::{self, Style};
use headway_load::session::{Finished, SessionError, Settings, Surroundings};
use headway_load::words::{
    Bandwidth, Count, Cpus, PerConnection, Rate, ScheduleWord, Stretch, Time, Url,
};
use serde_json::json;

use super::specweb99::{self, Rules};
use super::{Failure, output, signals};

const EXAMPLES: &str = "\
Examples:
  headway load http://127.0.0.1:8080/ --closed                      what the server can do: infinite demand
  headway load http://127.0.0.1:8080/ --rate 2000                   latency at 2000 requests/s, Poisson arrivals
  headway load http://127.0.0.1:8080/ --fileset /srv/set --rate 2000 --verify -o run-a
  headway load http://127.0.0.1:8080/ --schedule 1000:10s,2000:10s,2000-4000:30s
  headway load http://[::1]:8080/a http://[::1]:8080/b -c 64 --requests-per-connection unlimited
  headway load unix:/run/web.sock --rate 500 --requests 10000 --json
  headway load http://127.0.0.1:8080/ --specweb99 --connections 100 --fileset /srv/set -o score

Without --rate or --schedule the loop is closed: each connection asks again when it is answered, and latency is what
the number of connections makes it. In an open loop requests start when the schedule says so, and latency runs
from that moment, whether or not the server was ready for them.

With --specweb99 each connection is held to 400 kbit/s, 30 % of the requests are dynamic, every reply is checked, and the first
line says how many connections got at least 320 kbit/s; docs/research/src/specweb99.md has the rules. It is never a SPEC result.

The first line printed is the verdict: valid, suspect or invalid, and why. Times are written 500ms, 10s, 5m.
Ctrl-C ends the run and keeps what was measured; a second one ends at once.
Exit codes: 0 done, 1 failed (also: no good reply at all, or --strict and not valid), 2 wrong use.";

/// Offers load to a server and measures what comes back, honestly.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("demand"))]
pub struct Arguments {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    length: Length,
    #[command(flatten)]
    specweb: SpecWeb,
    #[command(flatten)]
    result: Output,
    /// Print only, write no run directory
    #[arg(long, conflicts_with = "output", help_heading = "Result")]
    no_output: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What to ask for")]
pub(super) struct What {
    /// Where to ask: http://host:port/path or unix:/path/of/socket; several share the load
    #[arg(value_name = "URL", required = true)]
    urls: Vec<Url>,
    /// Ask for the files of a set, by its popularity (see `headway fileset`)
    #[arg(long, value_name = "DIR", conflicts_with = "paths")]
    fileset: Option<PathBuf>,
    /// Ask for the paths in a file, one a line, in turn
    #[arg(long, value_name = "FILE")]
    paths: Option<PathBuf>,
    /// Compare the content of each reply with the checksum of the file set
    #[arg(long)]
    verify: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "When to ask")]
struct When {
    /// Closed loop: each connection asks again when it is answered (the default)
    #[arg(long, group = "demand")]
    closed: bool,
    /// Open loop: so many requests a second, whatever the replies do
    #[arg(
        long,
        short = 'R',
        value_name = "RATE",
        group = "demand",
        allow_hyphen_values = true
    )]
    rate: Option<Rate>,
    /// Open loop in steps and ramps: 1000:10s,2000:10s,2000-4000:30s
    #[arg(
        long,
        value_name = "STEPS",
        group = "demand",
        allow_hyphen_values = true
    )]
    schedule: Option<ScheduleWord>,
    /// How the starts of an open loop are spaced [default: poisson]
    #[arg(long, value_enum, conflicts_with = "closed")]
    arrivals: Option<Spacing>,
    /// Closed loop: pause between a reply and the next request of a connection
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with_all = ["rate", "schedule"],
        allow_hyphen_values = true
    )]
    think: Option<Time>,
}

/// How arrivals lie in a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Spacing {
    /// Independent of each other
    Poisson,
    /// At equal distances
    Constant,
}

impl From<Spacing> for engine::Arrivals {
    fn from(spacing: Spacing) -> engine::Arrivals {
        match spacing {
            Spacing::Poisson => engine::Arrivals::Poisson,
            Spacing::Constant => engine::Arrivals::Constant,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Connections")]
pub(super) struct How {
    /// Connections of a closed loop [default: 1024], or the most of an open one [default: 16384]
    #[arg(long, short, value_name = "N", allow_hyphen_values = true)]
    connections: Option<Count>,
    /// Requests on a connection before it is closed, or `unlimited` [default: 5]
    #[arg(long, value_name = "K", allow_hyphen_values = true)]
    requests_per_connection: Option<PerConnection>,
    /// A request that takes longer is an error; 0 waits for ever [default: open loop 3s, closed
    /// loop 30s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<Time>,
    /// A client is silent for so long once its connection has come about, as one is that is far
    /// away or connects in advance; its first request is asked for at the same time as ever, and
    /// takes that much longer
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    first_pause: Option<Time>,
    /// What a connection receives at most: 400kbit
    #[arg(long, value_name = "BITS", allow_hyphen_values = true)]
    bandwidth: Option<Bandwidth>,
    /// Ask from this local address, may be repeated [default: on this machine, 127.0.0.0/8 as ports
    /// run out]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    source: Vec<IpAddr>,
    /// Bind the loop to these processors, as taskset writes them: 3 or 2-5
    #[arg(long, value_name = "N")]
    cpu: Option<Cpus>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How long")]
struct Length {
    /// Requests that the figures leave out [default: 5s; none with --requests]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    warmup: Option<Time>,
    /// Go on asking for so long after the measured part, and leave that out too: who comes last
    /// then meets the same load as all others. As long as --timeout where a server is asked for
    /// more than it can do [default: 0]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    cooldown: Option<Time>,
    /// How long to measure, after the warm-up [default: 30s, or the length of the schedule]
    #[arg(long, short, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Time>,
    /// Measure so many requests
    #[arg(long, short = 'n', value_name = "N", allow_hyphen_values = true)]
    requests: Option<Count>,
    /// The same seed asks for the same files at the same moments, on every machine
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true
    )]
    seed: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "SPECweb99-like load")]
struct SpecWeb {
    /// The client rules of SPECweb99, as far as they are known; needs --connections and --fileset
    #[arg(
        long,
        requires = "fileset",
        conflicts_with_all = [
            "rate", "schedule", "arrivals", "think", "paths", "requests", "requests_per_connection", "bandwidth", "first_pause",
        ]
    )]
    specweb99: bool,
    #[command(flatten)]
    rules: Rules,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Result")]
pub(super) struct Output {
    /// The run directory, which must be new [default: named after the time]
    #[arg(long, short, value_name = "RUN")]
    pub output: Option<PathBuf>,
    /// The name of the server in tables and reports, for example "nginx 1.22"
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Keep the counters of a headway server after the run: the address of its status page
    #[arg(long, value_name = "URL")]
    pub server_status: Option<Url>,
    /// Fail unless the verdict is valid
    #[arg(long)]
    pub strict: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Measures, prints, and fails if nothing came back or `--strict` says so.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = settings(arguments)?;
    let specweb = &arguments.specweb;
    if let (false, Some(word)) = (specweb.specweb99, specweb.rules.given()) {
        let text = format!("{word} belongs to a SPECweb99-like load; add --specweb99");
        return Err(Failure::Use(text));
    }
    if specweb.specweb99 && !settings.cooldown.is_zero() {
        let text =
            "--cooldown is no rule of SPECweb99; its connections ask for as long as it is measured";
        return Err(Failure::Use(text.to_owned()));
    }
    let directory = match (&arguments.result.output, arguments.no_output) {
        (_, true) => None,
        (Some(path), _) => Some(path.clone()),
        (None, _) => Some(format!("headway-load-{}", dated(SystemTime::now())).into()),
    };
    if specweb.specweb99 {
        return specweb99::measure(settings, &specweb.rules, &arguments.result, directory);
    }
    let prepared = settings.prepare().map_err(failure)?;
    let around = surroundings(&arguments.result, "load")?;
    let finished = prepared
        .run(directory.as_deref(), &around)
        .map_err(failure)?;
    for warning in &finished.warnings {
        let _ = writeln!(io::stderr(), "headway: warning: {warning}");
    }
    match arguments.result.json {
        true => print_json(&finished, directory)?,
        false => print(&finished, directory)?,
    }
    conclude(&finished, arguments.result.strict)
}

fn settings(arguments: &Arguments) -> Result<Settings, Failure> {
    let when = &arguments.when;
    let schedule = match (when.rate, &when.schedule) {
        (Some(Rate(rate)), _) => Some(ScheduleWord(vec![Stretch {
            from: rate,
            to: rate,
            length: Duration::from_secs(1),
        }])),
        (None, Some(schedule)) => Some(schedule.clone()),
        (None, None) => None,
    };
    if schedule.is_none() && when.arrivals.is_some() {
        let text =
            "--arrivals spaces the starts of an open loop; give --rate or --schedule as well";
        return Err(Failure::Use(text.to_owned()));
    }
    let arrivals = when.arrivals.unwrap_or(Spacing::Poisson).into();
    let demand = schedule.map_or(Demand::Closed, |schedule| Demand::Open {
        schedule,
        arrivals,
    });
    let length = &arguments.length;
    Ok(Settings {
        demand,
        think: when.think.map_or(Duration::ZERO, |Time(think)| think),
        warmup: length.warmup.map(|Time(time)| time),
        cooldown: length.cooldown.map_or(Duration::ZERO, |Time(time)| time),
        duration: length.duration.map(|Time(time)| time),
        requests: length.requests.map(|Count(requests)| requests),
        seed: length.seed,
        label: arguments.result.label.clone(),
        ..common(&arguments.what, &arguments.how)
    })
}

/// The settings that `load` and `profile` share.
pub(super) fn common(what: &What, how: &How) -> Settings {
    let work = match (&what.fileset, &what.paths) {
        (Some(directory), _) => WorkSource::FileSet(directory.clone()),
        (None, Some(file)) => WorkSource::Paths(file.clone()),
        (None, None) => WorkSource::Addresses,
    };
    Settings {
        urls: what.urls.clone(),
        work,
        directories: None,
        demand: Demand::Closed,
        connections: how.connections.map(Count::as_u32),
        requests_per_connection: how
            .requests_per_connection
            .map(|PerConnection(number)| number),
        timeout: how.timeout.map(|Time(timeout)| timeout),
        think: Duration::ZERO,
        first_pause: how.first_pause.map_or(Duration::ZERO, |Time(pause)| pause),
        bandwidth_bits_per_s: how.bandwidth.map(|bandwidth| bandwidth.bits_per_s),
        warmup: None,
        cooldown: Duration::ZERO,
        duration: None,
        requests: None,
        seed: 1,
        sources: how.source.clone(),
        verify: what.verify,
        label: None,
        cpus: how.cpu.clone().map_or(Vec::new(), |Cpus(cpus)| cpus),
        command: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    }
}

/// Signals, terminal and status page, for a run.
pub(super) fn surroundings(output: &Output, word: &str) -> Result<Surroundings, Failure> {
    let terminal = io::stderr().is_terminal() && !output.quiet;
    Ok(Surroundings {
        // What is on disk is readable when a second signal ends the process.
        interrupt: signals::caught_once(signals::ASKED)?,
        progress: terminal.then(|| word.to_owned()),
        whole_only: false,
        server_status: output.server_status.clone(),
    })
}

/// Wrong words and a machine that cannot have different exit codes.
pub(super) fn failure(error: SessionError) -> Failure {
    match error.is_use() {
        true => Failure::Use(error.to_string()),
        // The sentence is whole; its sources would only be said twice.
        false => Failure::Work(anyhow!("{error}")),
    }
}

fn print(finished: &Finished, directory: Option<PathBuf>) -> Result<(), Failure> {
    let style = style();
    let mut text = summary::render(&finished.description, &finished.analysis, style);
    if let Some(directory) = directory {
        let run = directory.display();
        text += &format!("\n{run}: headway analyze {run}, headway report {run} -o report.html\n");
    }
    output::print(&text)
}

/// Colours for a terminal whose owner has not refused them (no-color.org).
pub(super) fn style() -> Style {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        colour: io::stdout().is_terminal() && !refused,
    }
}

fn print_json(finished: &Finished, directory: Option<PathBuf>) -> Result<(), Failure> {
    let value = json!({
        "format": { "name": "headway-load", "version": 1 },
        "run": directory.map(|path| path.to_string_lossy().into_owned()),
        "interrupted": finished.interrupted,
        "warnings": finished.warnings,
        "targets": finished.description.targets,
        "server": finished.description.server,
        "load": finished.description.load,
        "client": finished.description.client,
        "summary": finished.description.summary,
        "analysis": finished.analysis,
    });
    output::print(&(serde_json::to_string_pretty(&value)? + "\n"))
}

/// The figures are printed; was it a success?
fn conclude(finished: &Finished, strict: bool) -> Result<(), Failure> {
    let counts = &finished.analysis.counts;
    if counts.complete == 0 {
        let kinds = finished.analysis.errors.iter();
        let kinds: Vec<String> = kinds
            .map(|kind| format!("{} {}", kind.requests, kind.outcome))
            .collect();
        let mut text = match counts.requests {
            0 => "no request ended in the measured time".to_owned(),
            _ => format!("no request got a good reply: {}", kinds.join(", ")),
        };
        if let Some(why) = &finished.failure {
            text += &format!(" ({why})");
        }
        return Err(anyhow!(text).into());
    }
    let client = finished.description.client.clone().unwrap_or_default();
    match client.verdict {
        Verdict::Suspect if strict => Err(anyhow!("--strict: the run is suspect").into()),
        Verdict::Invalid if strict => Err(anyhow!("--strict: the run is invalid").into()),
        _ => Ok(()),
    }
}
