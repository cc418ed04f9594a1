//! `headway load`: load-tests a server, and says whether the figures can be believed.
//!
//! The command line becomes settings, the library measures, and its result is printed. Results go
//! to standard output, progress and warnings to standard error, the progress line only when that is
//! a terminal.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use clap::{ArgGroup, Args, ValueEnum};
use headway_latency::Analysis;
use headway_latency::format::printable;
use headway_latency::run::description::Verdict;
use headway_load::cli_types::{
    Agent, Bandwidth, Count, Cpus, PerConnection, Rate, RateSchedule, RateStep, Seed, Threads, Time,
};
use headway_load::engine;
use headway_load::fail_if::Condition;
use headway_load::scenario::Scenario;
use headway_load::session::summary::{self, Style};
use headway_load::session::{Demand, Finished, RunContext, SessionError, Settings, WorkSource};
use headway_load::tls::TlsOptions;
use serde_json::{Value, json};

use headway_cli_support::run_output::{OutputOptions, next_commands, run_context};

use super::export::ExportOptions;
use super::upload::{self, UploadOptions};
use super::{Failure, output};

mod baseline;
mod ci;
mod form;
mod request;
mod start;
mod view;

use baseline::{BaselineOptions, Compared};
use ci::{Case, CiOptions};

pub(crate) use baseline::row as change_row;
pub(crate) use request::RequestOptions;

const MORE: &str = "All options and examples: headway load --help";

const EXAMPLES: &str = "\
Examples:
  headway load http://127.0.0.1:8080/                      64 connections for 10 seconds
  headway load http://127.0.0.1:8080/ -c 200 -d 30         200 connections for 30 seconds
  headway load http://127.0.0.1:8080/ --rate 2000          latency at 2,000 requests per second
  headway load http://127.0.0.1:8080/ --rate 2000 -o run   keep every request in the directory run
  headway load http://127.0.0.1:8080/ --rate 2000 --out csv=run.csv   figures of each second
  headway load http://127.0.0.1:8080/ --schedule 1000:10s,2000:10s,2000-4000:30s
  headway load http://127.0.0.1:8080/ --fileset /srv/set --rate 2000 --verify
  headway load http://[::1]:8080/a http://[::1]:8080/b -H 'Accept: text/html'
  headway load http://127.0.0.1:8080/ --rate 2000 --baseline run --fail-if-slower 0%
  headway load http://127.0.0.1:8080/ --scenario shop.toml --rate 50
  headway load unix:/run/web.sock --rate 500 --requests 10000 --json

Load-test an HTTPS API with a bearer token at 500 requests per second, and fail the build over 50 ms:
  headway load https://api.example/v1/items --rate 500 --duration 30 \\
    --bearer \"$TOKEN\" \\
    --fail-if 'p99 > 50ms' --fail-if 'errors > 0.1%' \\
    --fail-if 'rate < 0.95 * offered' --output run

Without --rate or --schedule the loop is closed, as in wrk: each connection sends its next request
when the last one is answered. A slow server then gets fewer requests, and a stall delays only one
request per connection. With --rate the loop is open: requests start when the schedule says so, and
latency runs from that moment, whether or not the server was ready. Use it to measure latency.

The first line is the verdict on the client: valid, suspect or invalid, why, and what to do.
A time is a number of seconds, or has a unit: 500us, 250ms, 10s, 5m.
Ctrl-C ends the run and prints what was measured; a second one ends it at once.

Exit codes: 0 success; 1 failure, also when no request was answered, and with --strict when the
verdict is not valid; 2 usage error; 3 a condition of --fail-if or --fail-if-slower is true.";

/// Load-test an HTTP server, without coordinated omission
#[derive(Debug, Args)]
#[command(after_help = MORE, after_long_help = EXAMPLES, group = ArgGroup::new("demand"))]
pub struct Arguments {
    #[command(flatten)]
    request: RequestOptions,
    #[command(flatten)]
    demand: DemandOptions,
    #[command(flatten)]
    connections: ConnectionOptions,
    #[command(flatten)]
    length: LengthOptions,
    #[command(flatten)]
    result: OutputOptions,
    /// Exit with 3 if this is true of the run: 'p99 > 50ms'
    ///
    /// May be repeated. FIGURE is mean, p50, p75, p90, p95, p99, p99.9, p99.99 or max, compared with
    /// a time; errors, with a number or a share (0.1%); rate, with responses per second or with
    /// 0.95 * offered; or inversion, with a number. Compare with >, >=, < or <=. A figure that is
    /// not known fails the run.
    #[arg(long, value_name = "FIGURE > LIMIT", help_heading = "Output")]
    fail_if: Vec<Condition>,
    #[command(flatten)]
    baseline: BaselineOptions,
    #[command(flatten)]
    ci: CiOptions,
    #[command(flatten)]
    export: ExportOptions,
    #[command(flatten)]
    upload: UploadOptions,
    #[command(flatten)]
    live: view::LiveOptions,
    /// Print a summary as JSON; --json=full prints everything
    ///
    /// Everything is what `headway analyze --json` prints: distributions, timeline and sizes.
    #[arg(
        long,
        value_enum,
        value_name = "full",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "summary",
        hide_possible_values = true,
        help_heading = "Output"
    )]
    json: Option<JsonDetail>,
    #[command(flatten)]
    research: ResearchOptions,
}

/// How much of a run `--json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum JsonDetail {
    /// Counts, rates and percentiles. The value of `--json` alone.
    #[value(hide = true)]
    Summary,
    /// The distributions, timeline and sizes as well.
    Full,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct DemandOptions {
    /// Closed loop: a connection sends its next request when the last one is answered (the default)
    #[arg(long, group = "demand", hide_short_help = true)]
    closed: bool,
    /// Open loop: N requests per second, whatever the response times
    #[arg(
        long,
        short = 'R',
        value_name = "N",
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
    schedule: Option<RateSchedule>,
    /// How the starts of an open loop are spaced [default: poisson]
    #[arg(long, value_enum, conflicts_with = "closed", hide_short_help = true)]
    arrivals: Option<Spacing>,
    /// Closed loop: pause between a response and the next request of its connection
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with_all = ["rate", "schedule"],
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    think: Option<Time>,
    /// Take part INDEX of COUNT of the load, and leave the rest to other machines: 0/8
    ///
    /// All machines get the same other options. Rate, connections, requests and the files of --fileset are
    /// divided, and each has a seed of its own. All ask for popular files, so that each file is requested
    /// as often as by one client. `headway merge` makes one run of theirs.
    #[arg(long, value_name = "INDEX/COUNT", hide_short_help = true)]
    agent: Option<Agent>,
    #[command(flatten)]
    start: start::StartOptions,
}

/// How the starts of an open loop are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Spacing {
    /// Independent of each other, as the requests of many users are
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
#[command(next_help_heading = "Load")]
pub(super) struct ConnectionOptions {
    /// Connections [default: 64; in an open loop at most 16384]
    #[arg(long, short, value_name = "N", allow_hyphen_values = true)]
    connections: Option<Count>,
    /// Requests per connection [default: no limit]
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    requests_per_connection: Option<PerConnection>,
    /// A longer request is an error [default: 30s; open loop: 3s]
    ///
    /// 0 waits without a limit.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<Time>,
    /// Pin the client to these CPUs, as taskset does: 3 or 2-5
    #[arg(long, value_name = "N")]
    cpu: Option<Cpus>,
    /// Connect from this local address; may be repeated [default: chosen by the kernel; to
    /// 127.0.0.0/8 also from other loopback addresses when ports run out]
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        hide_short_help = true
    )]
    source: Vec<IpAddr>,
    /// Threads, one loop each [default: as the load needs, on spare CPUs]
    ///
    /// They share the load: rates and gaps do not depend on the number. The default is one for each 20,000
    /// requests per second, or for each 8 connections of a closed loop. It is at most the number of CPUs
    /// that the server does not use, less one, and the result says why. With --cpu each thread gets its own CPUs.
    #[arg(long, short, value_name = "N", allow_hyphen_values = true)]
    threads: Option<Threads>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Length")]
struct LengthOptions {
    /// Time to measure, after the warm-up [default: 10s]
    ///
    /// With --schedule the default is the length of the schedule.
    #[arg(long, short, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Time>,
    /// End after N requests
    #[arg(long, short = 'n', value_name = "N", allow_hyphen_values = true)]
    requests: Option<Count>,
    /// Time at the start that the figures leave out [default: 1s]
    ///
    /// With --requests the default is 0.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    warmup: Option<Time>,
    /// Seed of the files requested and of their times; equal seeds give equal requests, with equal --threads
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    seed: Seed,
}

/// For experiments of the papers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Research")]
struct ResearchOptions {
    #[command(flatten)]
    connection: ConnectionLimits,
    /// After the measured part, continue the load and leave it out of the figures, so that the last
    /// requests meet the same load as all others. Ends when these have their responses, and after
    /// TIME at the latest. Use the timeout in overload experiments [default: 0]
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    cooldown: Option<Time>,
}

/// Limits of each connection, for experiments of the papers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Research")]
pub(super) struct ConnectionLimits {
    /// After connecting, wait TIME before the first request (simulates distant clients or
    /// preconnect). The wait counts as latency
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    first_pause: Option<Time>,
    /// Receive at most this much per second on each connection: 400kbit
    #[arg(
        long,
        value_name = "BITS",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    bandwidth: Option<Bandwidth>,
}

/// Measures and prints. An error if no request was answered, or if `--strict` demands it.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = settings(arguments)?;
    let result = &arguments.result;
    let mut prepared = settings.prepare().map_err(failure)?;
    let baseline = baseline::open(&arguments.baseline, &prepared.description)?;
    let scenario = prepared.scenario.clone();
    let has_conditions = scenario.iter().any(|one| one.conditions().next().is_some());
    let ci = arguments
        .ci
        .check(has_conditions || arguments.has_conditions())?;
    let directory = result.output.as_deref();
    let storage = arguments.upload.open()?;
    let mut around = RunContext {
        outputs: arguments.export.out.clone(),
        ..run_context(result, "load")?
    };
    let targets = prepared.description.targets.join(" ");
    arguments.live.apply(targets, &mut around)?;
    let start = &arguments.demand.start;
    prepared.description.clock = start.wait(settings.agent, &around.interrupt)?;
    let finished = prepared.run(directory, &around).map_err(failure)?;
    for warning in &finished.warnings {
        let _ = writeln!(io::stderr(), "headway: warning: {}", printable(warning));
    }
    let compared = baseline.map(|one| one.compare(&finished.description, &finished.analysis));
    let mut cases = cases(&arguments.fail_if, compared.as_ref(), &finished.analysis);
    let of_steps = scenario
        .as_ref()
        .map(|one| step_cases(one, &finished.analysis));
    cases.extend(of_steps.into_iter().flatten());
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| case.failure.clone())
        .collect();
    match arguments.json {
        Some(detail) => print_json(&finished, directory, detail, &failures, compared.as_ref())?,
        None => print(&finished, directory, compared.as_ref())?,
    }
    ci.write(&finished, &cases, compared.as_ref())?;
    if let (Some(storage), Some(directory)) = (&storage, directory) {
        upload::send(storage, directory)?;
    }
    if !finished.failed_outputs.is_empty() {
        return Err(anyhow!(finished.failed_outputs.join("\n")).into());
    }
    if !failures.is_empty() {
        return Err(Failure::Unmet(failures.join("\n")));
    }
    exit_by_verdict(&finished, result.strict)
}

/// Every condition, met or not.
fn cases(conditions: &[Condition], compared: Option<&Compared>, analysis: &Analysis) -> Vec<Case> {
    let of_figures = conditions.iter().map(|condition| Case {
        name: condition.to_string(),
        failure: condition.failure(analysis),
    });
    let of_baseline = compared.map_or(Vec::new(), Compared::cases);
    of_figures.chain(of_baseline).collect()
}

/// The conditions of the steps of a scenario.
fn step_cases(scenario: &Scenario, analysis: &Analysis) -> Vec<Case> {
    let case = |(at, condition): (usize, &Condition)| {
        let step = analysis.by_step.get(at)?;
        Some(Case {
            name: format!("{}: {condition}", step.name),
            failure: condition.failure_of_step(step, analysis),
        })
    };
    scenario.conditions().filter_map(case).collect()
}

impl Arguments {
    fn has_conditions(&self) -> bool {
        !self.fail_if.is_empty() || self.baseline.has_limit()
    }
}

fn settings(arguments: &Arguments) -> Result<Settings, Failure> {
    let demand = &arguments.demand;
    let schedule = match (demand.rate, &demand.schedule) {
        (Some(Rate(rate)), _) => Some(RateSchedule(vec![RateStep {
            from: rate,
            to: rate,
            length: Duration::from_secs(1),
        }])),
        (None, Some(schedule)) => Some(schedule.clone()),
        (None, None) => None,
    };
    if schedule.is_none() && demand.arrivals.is_some() {
        let text = "--arrivals spaces the starts of an open loop; add --rate or --schedule";
        return Err(Failure::Usage(text.to_owned()));
    }
    let unoffered = arguments.fail_if.iter().find(|one| one.needs_offered());
    if let (None, Some(condition)) = (&schedule, unoffered) {
        return Err(Failure::Usage(format!(
            "--fail-if '{condition}': only an open loop offers a rate; add --rate or --schedule"
        )));
    }
    let arrivals = demand.arrivals.unwrap_or(Spacing::Poisson).into();
    let length = &arguments.length;
    let research = &arguments.research;
    Ok(Settings {
        demand: schedule.map_or(Demand::Closed, |schedule| Demand::Open {
            schedule,
            arrivals,
        }),
        think: demand.think.map_or(Duration::ZERO, |Time(think)| think),
        warmup: length.warmup.map(|Time(time)| time),
        cooldown: research.cooldown.map_or(Duration::ZERO, |Time(time)| time),
        duration: length.duration.map(|Time(time)| time),
        requests: length.requests.map(|Count(requests)| requests),
        seed: length.seed.0,
        agent: demand.agent.map(|Agent(agent)| agent),
        label: arguments.result.label.clone(),
        ..common(
            &arguments.request,
            &arguments.connections,
            &research.connection,
        )?
    })
}

/// The settings that `load` and `profile` share.
pub(super) fn common(
    request: &RequestOptions,
    connections: &ConnectionOptions,
    limits: &ConnectionLimits,
) -> Result<Settings, Failure> {
    let cpus = connections.cpu.clone();
    let mut settings = Settings {
        urls: Vec::new(),
        work: WorkSource::Addresses,
        method: engine::Method::Get,
        headers: Vec::new(),
        body: Vec::new(),
        host: None,
        unix_socket: None,
        tls: TlsOptions::default(),
        protocol: engine::Protocol::Http1,
        proxy_version: None,
        directories: None,
        demand: Demand::Closed,
        connections: connections.connections.map(Count::as_u32),
        requests_per_connection: connections
            .requests_per_connection
            .and_then(|PerConnection(number)| number),
        timeout: connections.timeout.map(|Time(timeout)| timeout),
        think: Duration::ZERO,
        first_pause: limits
            .first_pause
            .map_or(Duration::ZERO, |Time(pause)| pause),
        bandwidth_bits_per_s: limits.bandwidth.map(|bandwidth| bandwidth.bits_per_s),
        warmup: None,
        cooldown: Duration::ZERO,
        duration: None,
        requests: None,
        seed: 1,
        sources: connections.source.clone(),
        verify: false,
        cookies: false,
        agent: None,
        label: None,
        cpus: cpus.map_or(Vec::new(), |Cpus(cpus)| cpus),
        threads: connections.threads.map(|Threads(threads)| threads),
        command: std::env::args_os()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
    };
    request.apply(&mut settings)?;
    Ok(settings)
}

/// A usage error and a failure of the machine have different exit codes.
pub(super) fn failure(error: SessionError) -> Failure {
    match error.is_use() {
        true => Failure::Usage(error.to_string()),
        // The text already contains that of its sources.
        false => Failure::Runtime(anyhow!("{error}")),
    }
}

fn print(
    finished: &Finished,
    directory: Option<&Path>,
    compared: Option<&Compared>,
) -> Result<(), Failure> {
    let mut text = summary::render(&finished.description, &finished.analysis, style());
    text += &compared.map_or(String::new(), Compared::text);
    if let Some(directory) = directory {
        text += &next_commands(directory);
    }
    output::print(&text)
}

/// Colours for a terminal, unless NO_COLOR is set (no-color.org).
pub(super) fn style() -> Style {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        colour: io::stdout().is_terminal() && !refused,
    }
}

/// Entries of an analysis that a summary has; its distributions have no curves.
const SUMMARY_ENTRIES: [&str; 9] = [
    "counts",
    "duration_s",
    "offered_rps",
    "achieved_rps",
    "throughput_bytes_per_s",
    "errors",
    "statuses",
    "response",
    "by_step",
];

fn print_json(
    finished: &Finished,
    directory: Option<&Path>,
    detail: JsonDetail,
    failures: &[String],
    compared: Option<&Compared>,
) -> Result<(), Failure> {
    let mut analysis = serde_json::to_value(&finished.analysis)?;
    if let (JsonDetail::Summary, Value::Object(entries)) = (detail, &mut analysis) {
        entries.retain(|name, _| SUMMARY_ENTRIES.contains(&name.as_str()));
        if let Some(Value::Object(response)) = entries.get_mut("response") {
            response.remove("cdf");
        }
    }
    let value = json!({
        "format": { "name": "headway-load", "version": 1 },
        "run": directory.map(|path| path.to_string_lossy().into_owned()),
        "interrupted": finished.interrupted,
        "warnings": finished.warnings,
        "failed": failures,
        "baseline": compared.map(Compared::json),
        "targets": finished.description.targets,
        "server": finished.description.server,
        "load": finished.description.load,
        "client": finished.description.client,
        "summary": finished.description.summary,
        "analysis": analysis,
    });
    output::print_data(&(serde_json::to_string_pretty(&value)? + "\n"))
}

/// The exit code, after the figures are printed.
fn exit_by_verdict(finished: &Finished, strict: bool) -> Result<(), Failure> {
    let counts = &finished.analysis.counts;
    if counts.complete == 0 {
        let kinds = finished.analysis.errors.iter();
        let kinds: Vec<String> = kinds
            .map(|kind| format!("{} {}", kind.requests, kind.outcome))
            .collect();
        let mut text = match counts.requests {
            0 => "no request ended in the measured time".to_owned(),
            _ => format!("no request got a good response: {}", kinds.join(", ")),
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
