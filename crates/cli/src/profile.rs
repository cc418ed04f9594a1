//! `headway profile`: a server's capacity, then its latency at shares of it.
//!
//! The library measures one point after another and keeps each. This module prints a line per point
//! to standard error meanwhile, and a table or JSON to standard output at the end.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use clap::Args;
use headway_cli_support::run_output::{OutputOptions, next_commands, run_context};
use headway_latency::Run;
use headway_latency::format::{duration, number, printable, time_us};
use headway_latency::run::description::{Point, Verdict};
use headway_load::cli_types::{Count, Rate, Seed, Shares, Time};
use headway_load::client::dated;
use headway_load::profile::{Knee, Limit, Listener, ProfileError, ProfileSettings, RELATIVE_LOADS};
use headway_load::session::{Finished, Settings};
use serde_json::json;

use super::Failure;
use super::load::{ConnectionLimits, ConnectionOptions, RequestOptions, Spacing, common};
use super::output::{print, print_data};

/// The first rate of a search for the knee. Doubled ten times it is 100,000/s.
const START_RPS: f64 = 100.0;

const MORE: &str = "All options and examples: headway profile --help";

const EXAMPLES: &str = "\
Examples:
  headway profile http://127.0.0.1:8080/ -o profile-headway
  headway profile http://127.0.0.1:8080/ --fileset /srv/set -o profile-nginx --label 'nginx 1.22' \\
      --before-point 'systemctl restart nginx' --repeats 3
  headway profile http://127.0.0.1:8080/ --knee 50ms -o knee
  headway profile http://127.0.0.1:8080/ --capacity 5000 --loads 50,75,100,125,150 -o overload
  headway report profile-headway profile-nginx -o report.html

The capacity is the throughput of a closed loop (64 connections unless -c says otherwise). The loads
are percentages of it, each measured in an open loop. This takes (1 + number of loads) x repeats x
(warm-up + duration); the first line says how long that is.

If the client was busy for 90 % of the closed loop, it was the bottleneck, not the server. Then two
to nine more runs find the highest rate that the client can offer, the loads are percentages of that
rate, and the table says `capacity is at least`. A capacity given with --capacity is not checked.

Run an interrupted profile again with the same arguments to continue it.
The command of --before-point gets HEADWAY_POINT, HEADWAY_LOAD, HEADWAY_RATE and HEADWAY_REPEAT.

Exit codes: 0 success; 1 failure, also when interrupted, when no request was answered, and with
--strict when the client was the bottleneck or a verdict is not valid; 2 usage error.";

/// Measure a server's capacity, and its latency at percentages of it
#[derive(Debug, Args)]
#[command(after_help = MORE, after_long_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    request: RequestOptions,
    #[command(flatten)]
    points: Points,
    #[command(flatten)]
    connections: ConnectionOptions,
    #[command(flatten)]
    result: OutputOptions,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    research: ConnectionLimits,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Points")]
struct Points {
    /// Loads in percent of the capacity [default: 20,40,60,80,90,95]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    loads: Option<Shares>,
    /// Capacity in requests per second [default: measured]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    capacity: Option<Rate>,
    /// Search the capacity by open loops, with a mean of at most TIME
    ///
    /// It is the knee of the server: 97 % of the requests of that rate are answered. No closed loop is needed. The
    /// search begins at --start-rate, doubles the rate, and then divides until the knee is known to 5 %.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    knee: Option<Time>,
    /// First rate of the search for the knee [default: 100]
    #[arg(
        long,
        value_name = "RATE",
        requires = "knee",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    start_rate: Option<Rate>,
    /// How often each point is measured
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true
    )]
    repeats: Count,
    /// How the starts of requests are spaced [default: poisson]
    #[arg(long, value_enum, hide_short_help = true)]
    arrivals: Option<Spacing>,
    /// Time at the start of each point to leave out [default: 1s]
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    warmup: Option<Time>,
    /// Time to measure each point, after its warm-up [default: 10s]
    #[arg(long, short, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Time>,
    /// Seed of the files requested and of their times; equal seeds give equal requests
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    seed: Seed,
    /// Run a shell command before each point: restart the server
    #[arg(long, value_name = "COMMAND")]
    before_point: Option<String>,
    /// Run a shell command after each point
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    after_point: Option<String>,
}

/// Measures what is not measured yet, then prints the profile.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let given = arguments.result.output.clone();
    let directory: PathBuf =
        given.unwrap_or_else(|| format!("headway-profile-{}", dated(SystemTime::now())).into());
    let around = run_context(&arguments.result, "profile")?;
    let mut lines = ProgressLines {
        quiet: arguments.result.quiet,
        name: String::new(),
    };
    let settings = settings(arguments)?;
    if let Err(error) = settings.run(&directory, &around, &mut lines) {
        return Err(failure(error, &directory));
    }
    let profile = Run::open(&directory)?;
    let points = profile.points()?;
    let verdicts = verdicts(&profile, &points);
    match arguments.json {
        true => print_data(&as_json(&profile)?)?,
        false => {
            let table = headway_load::profile::render(&profile)?;
            print(&(table + &next_commands(&directory)))?;
        }
    }
    let summaries = points
        .iter()
        .filter_map(|run| run.description().summary.as_ref());
    if summaries
        .map(|all| all.requests - all.errors.min(all.requests))
        .sum::<u64>()
        == 0
    {
        return Err(anyhow!("no request of any point got a good response").into());
    }
    let bad = verdicts
        .iter()
        .filter(|verdict| **verdict != Verdict::Valid)
        .count();
    match arguments.result.strict && bad > 0 {
        true => Err(anyhow!("--strict: {bad} of {} runs are not valid", verdicts.len()).into()),
        false => Ok(()),
    }
}

fn settings(arguments: &Arguments) -> Result<ProfileSettings, Failure> {
    let points = &arguments.points;
    let session = Settings {
        warmup: points.warmup.map(|Time(time)| time),
        duration: points.duration.map(|Time(time)| time),
        seed: points.seed.0,
        label: arguments.result.label.clone(),
        ..common(
            &arguments.request,
            &arguments.connections,
            &arguments.research,
        )?
    };
    Ok(ProfileSettings {
        session,
        arrivals: points.arrivals.unwrap_or(Spacing::Poisson).into(),
        capacity_rps: points.capacity.map(|Rate(rate)| rate),
        knee: points.knee.map(|Time(mean)| Knee {
            mean,
            start_rps: points.start_rate.map_or(START_RPS, |Rate(rate)| rate),
        }),
        loads: points
            .loads
            .clone()
            .map_or(RELATIVE_LOADS.to_vec(), |Shares(shares)| shares),
        repeats: points.repeats.as_u32(),
        before_point: points.before_point.clone(),
        after_point: points.after_point.clone(),
        strict: arguments.result.strict,
        client_limit: Limit::default(),
    })
}

fn failure(error: ProfileError, directory: &std::path::Path) -> Failure {
    match error {
        ProfileError::Interrupted => {
            let directory = directory.display();
            anyhow!("interrupted; continue with the same command and -o {directory}").into()
        }
        error if error.is_use() => Failure::Usage(error.to_string()),
        error => Failure::Runtime(anyhow!("{error}")),
    }
}

/// The verdicts of all runs, without those of a search: some of these had to be invalid.
fn verdicts(profile: &Run, points: &[Run]) -> Vec<Verdict> {
    let info = profile.description().profile.iter();
    let done = info
        .flat_map(|info| &info.points)
        .filter(|point| point.done);
    let runs = done.zip(points).filter(|(point, _)| !point.is_of_search());
    let clients = runs.filter_map(|(_, run)| run.description().client.as_ref());
    clients.map(|client| client.verdict).collect()
}

fn as_json(profile: &Run) -> Result<String, Failure> {
    let info = profile.description().profile.clone().unwrap_or_default();
    let mut points = Vec::new();
    for (point, run) in info
        .points
        .iter()
        .filter(|point| point.done)
        .zip(profile.points()?)
    {
        let description = run.description();
        points.push(json!({
            "relative": point.relative,
            "of_client": point.of_client,
            "of_knee": point.of_knee,
            "rate_rps": point.rate_rps,
            "repeat": point.repeat,
            "directory": point.directory,
            "summary": description.summary,
            "client": description.client,
        }));
    }
    let value = json!({
        "format": { "name": "headway-profile", "version": 1 },
        "run": profile.path().to_string_lossy(),
        "capacity_rps": info.capacity_rps,
        "client_bound": info.client_bound,
        "targets": profile.description().targets,
        "server": profile.description().server,
        "points": points,
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

/// Prints a line per point to standard error.
struct ProgressLines {
    quiet: bool,
    name: String,
}

impl ProgressLines {
    fn print_line(&self, text: &str) {
        if !self.quiet {
            // A closed standard error does not stop the profile.
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }
}

impl Listener for ProgressLines {
    fn planned(&mut self, runs: usize, each: Duration) {
        let total_s = each.as_secs_f64() * runs as f64;
        self.print_line(&format!(
            "{runs} runs of {}: about {}",
            duration(each.as_secs_f64()),
            duration(total_s)
        ));
    }

    fn begins(&mut self, name: &str) {
        self.name = name.to_owned();
    }

    fn ended(&mut self, _point: &Point, finished: &Finished) {
        let client = finished.description.client.as_ref();
        let verdict = match client.map(|client| client.verdict) {
            Some(Verdict::Suspect) => "suspect",
            Some(Verdict::Invalid) => "invalid",
            Some(Verdict::Valid) | None => "valid",
        };
        let response = finished.analysis.response.as_ref();
        let time = |us: Option<f64>| us.map_or("–".to_owned(), time_us);
        self.print_line(&format!(
            "{}: {verdict}, {} good responses/s, p50 {}, p99 {}",
            self.name,
            number(finished.analysis.achieved_rps),
            time(response.map(|response| response.p50_us)),
            time(response.map(|response| response.p99_us)),
        ));
        for warning in &finished.warnings {
            self.print_line(&format!("headway: warning: {warning}"));
        }
    }

    fn resumes(&mut self, done: usize, of: usize) {
        self.print_line(&format!("continuing: {done} of {of} runs are done"));
    }

    fn remarks(&mut self, text: &str) {
        self.print_line(text);
    }
}
