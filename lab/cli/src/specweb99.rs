//! `headway-lab specweb99`: a SPECweb99-like load, and the search for the largest one that a server
//! sustains.
//!
//! The library measures, judges and searches. Here are the options, the progress lines on standard
//! error, and text or JSON on standard output at the end.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use clap::{ArgGroup, Args};
use headway_cli_support::run_output::{OutputOptions, next_commands, run_context};
use headway_cli_support::specweb99_text;
use headway_latency::Run;
use headway_latency::format::printable;
use headway_latency::run::description::Verdict;
use headway_load::cli_types::{Count, Cpus, Time, Url};
use headway_load::client::dated;
use headway_load::session::{Demand, Finished, Settings, WorkSource};
use headway_specweb_client::find::{
    FIRST_CONNECTIONS, FindSettings, Range, SearchResult, trial_text,
};
use headway_specweb_client::{
    CGI_PATH, DYNAMIC_PATH, ITERATIONS, Listener, RAMP, Ran, SpecWeb99Error, SpecWeb99Settings,
};
use serde_json::json;

use super::Failure;
use super::output::{print, print_data};

const SHORT_EXAMPLES: &str = "\
Examples:
  headway-lab specweb99 http://127.0.0.1:8080/ -c 500 --fileset /srv/set -o score-500
  headway-lab specweb99 http://127.0.0.1:8080/ --find --fileset /srv/set -o search
All options, examples and rules: headway-lab specweb99 --help";

const EXAMPLES: &str = "\
Examples:
  headway-lab specweb99 http://127.0.0.1:8080/ -c 500 --fileset /srv/set -o score-500
  headway-lab specweb99 http://127.0.0.1:8080/ --find --fileset /srv/set -o search
  headway-lab specweb99 http://127.0.0.1:8080/ --find --fileset /srv/set -o search \\
      --first 200 --most 2000 --step 20 \\
      --before-trial 'systemctl restart apache2' --after-trial 'systemctl stop apache2'
  headway report search/trials/00420-3 -o report.html

Create the file set with:
  headway fileset create DIR --profile specweb99-dynamic --connections N
It grows with the number of connections, 122 + 3.22 N MB. Smaller numbers use its first part.

The client follows the rules of SPECweb99, as far as they are known: each connection receives
400 kbit/s, 30 % of the requests are dynamic, and the score is the number of connections with at
least 320 kbit/s. With -c it is measured once, with --find for more and more connections.

A trial has one iteration unless --trial-iterations is given. The result of the search is measured
with all --iterations. The shell commands get the environment variables HEADWAY_CONNECTIONS,
HEADWAY_FILESET and HEADWAY_TRIAL.

To resume an interrupted search, repeat the command with the same -o.
The result is SPECweb99-like and must not be published as a SPEC result.
Exit codes: 0 success; 1 failure, also when no request was answered, when a search is interrupted
or not even one connection is sustained, and with --strict when the load is not; 2 usage error.";

/// Load a server by SPECweb99-like rules, or find the most connections that it sustains
#[derive(Debug, Args)]
#[command(
    after_help = SHORT_EXAMPLES,
    after_long_help = EXAMPLES,
    group = ArgGroup::new("mode").required(true).args(["connections", "find"])
)]
pub struct Arguments {
    /// Server to test: http://host:port/ or unix:/path/of/socket
    #[arg(value_name = "URL")]
    url: Url,
    /// Measure this many connections
    #[arg(long, short, value_name = "N", allow_hyphen_values = true)]
    connections: Option<Count>,
    /// Search for the most connections
    #[arg(long)]
    find: bool,
    /// File set with the profile specweb99-dynamic
    #[arg(long, value_name = "DIR")]
    fileset: PathBuf,
    #[command(flatten)]
    search: Search,
    #[command(flatten, next_help_heading = "SPECweb99-like load")]
    rules: RuleOptions,
    #[command(flatten)]
    length: Length,
    #[command(flatten)]
    result: OutputOptions,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Search")]
struct Search {
    /// Number of connections to try first [default: 100]
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        conflicts_with = "connections"
    )]
    first: Option<Count>,
    /// Largest number of connections to try
    #[arg(
        long,
        value_name = "N",
        default_value = "10000",
        allow_hyphen_values = true,
        conflicts_with = "connections"
    )]
    most: Count,
    /// Resolution of the search, in connections
    #[arg(
        long,
        value_name = "N",
        default_value = "10",
        allow_hyphen_values = true,
        conflicts_with = "connections"
    )]
    step: Count,
    /// Iterations per trial
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true,
        conflicts_with = "connections"
    )]
    trial_iterations: Count,
    /// Shell command before each trial, for example to start the server
    #[arg(long, value_name = "COMMAND", conflicts_with = "connections")]
    before_trial: Option<String>,
    /// Shell command after each trial, for example to stop the server
    #[arg(long, value_name = "COMMAND", conflicts_with = "connections")]
    after_trial: Option<String>,
}

/// The rules of a SPECweb99-like load.
#[derive(Debug, Args)]
struct RuleOptions {
    /// How often the load is measured; the score is the median [default: 3]
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    iterations: Option<Count>,
    /// Open the connections over TIME, before each iteration [default: 10s]
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    ramp: Option<Time>,
    /// URL path of the application [default: /specweb99]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    dynamic_path: Option<String>,
    /// URL path of the CGI endpoint [default: /cgi-bin/specweb99]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    cgi_path: Option<String>,
    /// Request all of the file set, whatever size the rule demands
    #[arg(long, hide_short_help = true)]
    whole_set: bool,
    /// Request static files only, against the rule of 30 % dynamic requests
    #[arg(long, hide_short_help = true)]
    static_only: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Duration and load generator")]
struct Length {
    /// Warm-up before the first iteration of a trial [default: 30s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    warmup: Option<Time>,
    /// Length of an iteration [default: 2m]
    #[arg(long, short, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Time>,
    /// A request that takes longer counts as an error [default: 60s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<Time>,
    /// Seed: the same seed gives the same requests in the same order
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true
    )]
    seed: u64,
    /// Local address to connect from; may be repeated [default: for a server on this machine,
    /// addresses of 127.0.0.0/8 as ports run out]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    source: Vec<IpAddr>,
    /// Pin the load generator to these CPUs, in the format of taskset: 3 or 2-5
    #[arg(long, value_name = "N")]
    cpu: Option<Cpus>,
}

impl RuleOptions {
    fn settings(&self, session: Settings) -> SpecWeb99Settings {
        let path = |given: &Option<String>, default: &str| {
            given.clone().unwrap_or_else(|| default.to_owned())
        };
        SpecWeb99Settings {
            session,
            iterations: self.iterations.map_or(ITERATIONS, Count::as_u32),
            ramp: self.ramp.map_or(RAMP, |Time(ramp)| ramp),
            paths: [
                path(&self.dynamic_path, DYNAMIC_PATH),
                path(&self.cgi_path, CGI_PATH),
            ],
            whole_set: self.whole_set,
            static_only: self.static_only,
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match arguments.connections {
        Some(connections) => measure(arguments, connections),
        None => find(arguments),
    }
}

/// One run, kept in a directory if one is named.
fn measure(arguments: &Arguments, connections: Count) -> Result<(), Failure> {
    let result = &arguments.result;
    let directory = result.output.as_deref();
    let around = run_context(result, "specweb99")?;
    let mut lines = IterationProgress::new(result.quiet);
    let session = Settings {
        connections: Some(connections.as_u32()),
        ..session(arguments)
    };
    let ran = arguments
        .rules
        .settings(session)
        .run(directory, &around, &mut lines)
        .map_err(failure)?;
    match arguments.json {
        true => print_json(&ran, directory)?,
        false => {
            let mut text = specweb99_text::render(&ran.description);
            if let Some(directory) = directory {
                text += &next_commands(directory);
            }
            print(&text)?;
        }
    }
    exit_status(&ran, result.strict)
}

fn print_json(ran: &Ran, directory: Option<&Path>) -> Result<(), Failure> {
    let clients = ran.iterations.iter().map(|one| &one.description.client);
    let warnings = ran.iterations.iter().flat_map(|one| &one.warnings);
    let description = &ran.description;
    let value = json!({
        "format": { "name": "headway-specweb99", "version": 1 },
        "run": directory.map(|path| path.to_string_lossy().into_owned()),
        "targets": description.targets,
        "server": description.server,
        "fileset": description.fileset,
        "load": description.load,
        "specweb99": description.specweb99,
        "clients": clients.collect::<Vec<_>>(),
        "warnings": warnings.collect::<Vec<_>>(),
    });
    print_data(&(serde_json::to_string_pretty(&value)? + "\n"))
}

/// The exit status, after the results have been printed.
fn exit_status(ran: &Ran, strict: bool) -> Result<(), Failure> {
    let good: u64 = ran
        .iterations
        .iter()
        .map(|one| one.analysis.counts.complete)
        .sum();
    if good == 0 {
        let why = ran.iterations.iter().find_map(|one| one.failure.clone());
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        return Err(anyhow!("no request was answered correctly{why}").into());
    }
    let verdicts = ran
        .iterations
        .iter()
        .filter_map(|one| one.description.client.as_ref());
    let bad = verdicts
        .filter(|client| client.verdict != Verdict::Valid)
        .count();
    match (strict, bad, ran.info().held) {
        (true, 1.., _) => Err(anyhow!(
            "--strict: {bad} of {} iterations are not valid",
            ran.iterations.len()
        )
        .into()),
        (true, 0, Some(false) | None) => Err(anyhow!("--strict: the load is not sustained").into()),
        _ => Ok(()),
    }
}

/// With `--find`: trials in a directory, until the most connections are known.
fn find(arguments: &Arguments) -> Result<(), Failure> {
    let result = &arguments.result;
    let directory = result
        .output
        .clone()
        .unwrap_or_else(|| format!("headway-specweb99-{}", dated(SystemTime::now())).into());
    let around = run_context(result, "specweb99")?;
    let mut lines = IterationProgress::new(result.quiet);
    let found = match find_settings(arguments).run(&directory, &around, &mut lines) {
        Ok(found) => found,
        Err(SpecWeb99Error::Interrupted) => {
            let path = directory.display();
            let text = format!("interrupted; continue with the same command and -o {path}");
            return Err(anyhow!(text).into());
        }
        Err(error) => return Err(failure(error)),
    };
    let best = best_run_directory(&found).map(|name| directory.join(name));
    let best = best.map(Run::open).transpose()?;
    match arguments.json {
        true => {
            let value = json!({
                "format": { "name": "headway-specweb99-find", "version": 1 },
                "run": directory.to_string_lossy(),
                "found": found,
                "best": best.as_ref().map(|run| run.description()),
            });
            print_data(&(serde_json::to_string_pretty(&value)? + "\n"))?;
        }
        false => print(&render_found(&found, &directory, best.as_ref()))?,
    }
    match found.connections {
        Some(0) | None => Err(anyhow!("not even one connection is sustained").into()),
        Some(_) => Ok(()),
    }
}

/// The settings that one run and a search share.
fn session(arguments: &Arguments) -> Settings {
    let length = &arguments.length;
    let time = |given: &Option<Time>| given.as_ref().map(|Time(time)| *time);
    Settings {
        urls: vec![arguments.url.clone()],
        work: WorkSource::FileSet(arguments.fileset.clone()),
        method: headway_load::engine::Method::Get,
        headers: Vec::new(),
        body: Vec::new(),
        host: None,
        unix_socket: None,
        tls: Default::default(),
        protocol: Default::default(),
        proxy_version: None,
        directories: None,
        demand: Demand::Closed,
        connections: None,
        requests_per_connection: None,
        timeout: time(&length.timeout),
        think: Duration::ZERO,
        first_pause: Duration::ZERO,
        bandwidth_bits_per_s: None,
        warmup: time(&length.warmup),
        cooldown: Duration::ZERO,
        duration: time(&length.duration),
        requests: None,
        seed: length.seed,
        sources: length.source.clone(),
        verify: true,
        cookies: false,
        agent: None,
        label: arguments.result.label.clone(),
        cpus: length.cpu.clone().map_or(Vec::new(), |Cpus(cpus)| cpus),
        threads: Some(1),
        command: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    }
}

fn find_settings(arguments: &Arguments) -> FindSettings {
    let search = &arguments.search;
    let most = search.most.as_u32();
    FindSettings {
        run: arguments.rules.settings(session(arguments)),
        range: Range {
            first: search
                .first
                .map_or(FIRST_CONNECTIONS.min(most), Count::as_u32),
            most,
            step: search.step.as_u32(),
        },
        trial_iterations: search.trial_iterations.as_u32(),
        before_trial: search.before_trial.clone(),
        after_trial: search.after_trial.clone(),
    }
}

/// The directory of the run that supports the result.
fn best_run_directory(found: &SearchResult) -> Option<String> {
    let most = found.trials.iter().map(|trial| trial.iterations).max()?;
    let mut trials = found.trials.iter().rev();
    let best = trials
        .find(|trial| Some(trial.connections) == found.connections && trial.iterations == most);
    best.map(|trial| trial.directory.clone())
}

fn render_found(found: &SearchResult, directory: &Path, best: Option<&Run>) -> String {
    let path = directory.display();
    let mut text = match found.connections {
        Some(0) | None => {
            format!("not even one connection is sustained; the trials are in {path}\n")
        }
        Some(connections) => format!("{connections} connections are sustained\n"),
    };
    for trial in &found.trials {
        text += &format!("  {}\n", trial_text(trial));
    }
    if let Some(best) = best {
        let run = best.path().display();
        text += &format!(
            "\n{}\n{run}: headway report {run} -o report.html\n",
            specweb99_text::render(best.description())
        );
    }
    text
}

/// Usage errors and failures of the machine have different exit codes.
fn failure(error: SpecWeb99Error) -> Failure {
    match error.is_use() {
        true => Failure::Usage(error.to_string()),
        false => Failure::Runtime(anyhow!("{error}")),
    }
}

/// One progress line per iteration, on standard error.
struct IterationProgress {
    quiet: bool,
    word: String,
}

impl IterationProgress {
    fn new(quiet: bool) -> IterationProgress {
        IterationProgress {
            quiet,
            word: String::new(),
        }
    }

    fn print_line(&self, text: &str) {
        if !self.quiet {
            // If standard error is closed, the measurement continues.
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }
}

impl Listener for IterationProgress {
    fn begins(&mut self, word: &str) {
        self.word = word.to_owned();
    }

    fn ended(&mut self, finished: &Finished) {
        let description = &finished.description;
        let verdict = match description.client.as_ref().map(|client| client.verdict) {
            Some(Verdict::Suspect) => "suspect",
            Some(Verdict::Invalid) => "invalid",
            Some(Verdict::Valid) | None => "valid",
        };
        let iterations = description
            .specweb99
            .iter()
            .flat_map(|info| &info.iterations);
        for one in iterations {
            self.print_line(&format!(
                "{}: {verdict}, {} of {} connections conform, {} errors of {} requests",
                self.word, one.conforming, one.connections, one.errors, one.requests
            ));
        }
        let reasons = description.client.iter().flat_map(|client| &client.reasons);
        reasons.for_each(|reason| self.print_line(&format!("  {reason}")));
        for warning in &finished.warnings {
            self.print_line(&format!("headway-lab: warning: {warning}"));
        }
    }

    fn remarks(&mut self, text: &str) {
        self.print_line(text);
    }
}
