//! `headway profile`: a server's capacity, then its latency at shares of it.
//!
//! Glue: the library measures point after point and keeps each; here they become lines on standard
//! error while it lasts, and a table or JSON on standard output at the end.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::anyhow;
use clap::Args;
use headway_latency::Run;
use headway_latency::run::description::{Point, Verdict};
use headway_load::client::environment::dated;
use headway_load::profile::client::Limit;
use headway_load::profile::{LOADS, Listener, ProfileError, ProfileSettings};
use headway_load::session::{Finished, Settings};
use headway_load::words::readable::{millis, number};
use headway_load::words::{Count, Rate, Shares, Time};
use serde_json::json;

use super::Failure;
use super::load::{How, Output, Spacing, What, common, surroundings};
use super::output::print;

const EXAMPLES: &str = "\
Examples:
  headway profile http://127.0.0.1:8080/ --fileset /srv/set -o profile-headway
  headway profile http://127.0.0.1:8080/ --fileset /srv/set -o p --label 'nginx 1.22' \\
      --before-point 'systemctl restart nginx' --repeats 3
  headway profile http://127.0.0.1:8080/ --capacity 5000 --loads 50,75,100,125,150 -o overload
  headway report profile-headway p -o report.html

The capacity is what the server answers in a closed loop (1024 connections unless -c says otherwise); the loads are
percentages of it, offered in an open loop. The time is (1 + number of loads) x repeats x (warm-up + duration).
Where the client was at work for 90 % of the closed loop, that capacity is its own: two to nine runs more look for the
highest rate that it offers validly, the loads are percentages of this, and the table says `capacity is at least`.
A capacity that was named with --capacity is taken as it is.
An interrupted profile goes on when the same command is given again with the same -o.
A command of --before-point finds its point in HEADWAY_POINT, HEADWAY_LOAD, HEADWAY_RATE and HEADWAY_REPEAT.
Exit codes: 0 done, 1 failed (also: interrupted, no good reply at all, or --strict
and a capacity that is the client's or a point not valid), 2 wrong use.";

/// Finds a server's capacity and measures its latency at shares of it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    points: Points,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    result: Output,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Points")]
struct Points {
    /// Loads in percent of the capacity [default: 20,40,60,80,90,95]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    loads: Option<Shares>,
    /// The capacity in requests a second; it is not looked for then
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    capacity: Option<Rate>,
    /// How often each point is measured
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true
    )]
    repeats: Count,
    /// How the starts are spaced [default: poisson]
    #[arg(long, value_enum)]
    arrivals: Option<Spacing>,
    /// Requests of each point that the figures leave out [default: 5s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    warmup: Option<Time>,
    /// How long each point is measured, after its warm-up [default: 30s]
    #[arg(long, short, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Time>,
    /// The same seed asks for the same files at the same moments, on every machine
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true
    )]
    seed: u64,
    /// A shell command before each point: restarts the server, warms its cache
    #[arg(long, value_name = "COMMAND")]
    before_point: Option<String>,
    /// A shell command after each point
    #[arg(long, value_name = "COMMAND")]
    after_point: Option<String>,
}

/// Measures what is not measured yet, then prints the profile.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let given = arguments.result.output.clone();
    let directory: PathBuf =
        given.unwrap_or_else(|| format!("headway-profile-{}", dated(SystemTime::now())).into());
    let around = surroundings(&arguments.result, "profile")?;
    let mut lines = Lines {
        quiet: arguments.result.quiet,
        word: String::new(),
    };
    let settings = settings(arguments);
    if let Err(error) = settings.run(&directory, &around, &mut lines) {
        return Err(failure(error, &directory));
    }
    let profile = Run::open(&directory)?;
    let points = profile.points()?;
    let verdicts = verdicts(&profile, &points);
    let text = match arguments.result.json {
        true => as_json(&profile)?,
        false => {
            let run = directory.display();
            let table = headway_load::profile::render(&profile)?;
            format!("{table}\n{run}: headway analyze {run}, headway report {run} -o report.html\n")
        }
    };
    print(&text)?;
    let summaries = points
        .iter()
        .filter_map(|run| run.description().summary.as_ref());
    if summaries
        .map(|all| all.requests - all.errors.min(all.requests))
        .sum::<u64>()
        == 0
    {
        return Err(anyhow!("no request of any point got a good reply").into());
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

fn settings(arguments: &Arguments) -> ProfileSettings {
    let points = &arguments.points;
    let session = Settings {
        warmup: points.warmup.map(|Time(time)| time),
        duration: points.duration.map(|Time(time)| time),
        seed: points.seed,
        label: arguments.result.label.clone(),
        ..common(&arguments.what, &arguments.how)
    };
    ProfileSettings {
        session,
        arrivals: points.arrivals.unwrap_or(Spacing::Poisson).into(),
        capacity_rps: points.capacity.map(|Rate(rate)| rate),
        loads: points
            .loads
            .clone()
            .map_or(LOADS.to_vec(), |Shares(shares)| shares),
        repeats: points.repeats.as_u32(),
        before_point: points.before_point.clone(),
        after_point: points.after_point.clone(),
        strict: arguments.result.strict,
        client_limit: Limit::default(),
    }
}

fn failure(error: ProfileError, directory: &std::path::Path) -> Failure {
    match error {
        ProfileError::Interrupted => {
            let place = directory.display();
            anyhow!("interrupted; the same command with -o {place} goes on where it stopped").into()
        }
        error if error.is_use() => Failure::Use(error.to_string()),
        error => Failure::Work(anyhow!("{error}")),
    }
}

/// Of all runs but those that looked for what the client can offer: some of these had to be
/// invalid.
fn verdicts(profile: &Run, points: &[Run]) -> Vec<Verdict> {
    let info = profile.description().profile.iter();
    let done = info
        .flat_map(|info| &info.points)
        .filter(|point| point.done);
    let runs = done.zip(points).filter(|(point, _)| !point.of_client);
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

/// A line a point, on standard error.
struct Lines {
    quiet: bool,
    word: String,
}

impl Lines {
    fn say(&self, text: &str) {
        if !self.quiet {
            // If nobody listens the profile is measured all the same.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

impl Listener for Lines {
    fn begins(&mut self, word: &str) {
        self.word = word.to_owned();
    }

    fn ended(&mut self, _point: &Point, finished: &Finished) {
        let verdict = match finished
            .description
            .client
            .as_ref()
            .map(|client| client.verdict)
        {
            Some(Verdict::Suspect) => "suspect",
            Some(Verdict::Invalid) => "invalid",
            Some(Verdict::Valid) | None => "valid",
        };
        let response = finished.analysis.response.clone().unwrap_or_default();
        self.say(&format!(
            "{}: {verdict}, {} good replies/s, p50 {} ms, p99 {} ms",
            self.word,
            number(finished.analysis.achieved_rps),
            millis(response.p50_us),
            millis(response.p99_us),
        ));
        for warning in &finished.warnings {
            self.say(&format!("headway: warning: {warning}"));
        }
    }

    fn resumes(&mut self, done: usize, of: usize) {
        self.say(&format!("going on: {done} of {of} runs are done"));
    }

    fn remarks(&mut self, words: &str) {
        self.say(words);
    }
}
