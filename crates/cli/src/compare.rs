//! `headway compare`: servers measured in turn, and whether they differ.
//!
//! Each round measures every server once, in an order that is reversed every other round. The rounds are
//! the observations, see `headway_latency::rounds`.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use headway_cli_support::run_output::{OutputOptions, run_context};
use headway_cli_support::table::table;
use headway_latency::Analysis;
use headway_latency::baseline::Comparison;
use headway_latency::rounds::{self, ROUNDS_MIN};
use headway_latency::run::Verdict;
use headway_load::cli_types::{Count, Rate, RateSchedule, RateStep, Seed, Time};
use headway_load::profile::run_shell;
use headway_load::session::{Demand, RunContext, Settings};
use serde_json::json;

use super::Failure;
use super::load::{
    ConnectionLimits, ConnectionOptions, RequestOptions, Spacing, change_row, common, failure,
};
use super::output::{print, print_data};

const EXAMPLES: &str = "\
Examples:
  headway compare http://127.0.0.1:8081/ http://127.0.0.1:8082/ --rate 1000
  headway compare http://old/ http://new/ http://newer/ --rate 500 --rounds 10 -o runs
  headway compare http://127.0.0.1:8081/ http://127.0.0.1:8082/ -c 64 \\
      --before-run 'systemctl restart app-$HEADWAY_SERVER'

Every other server is compared with the first one. The servers are measured in turn, and a round is one
observation, so the intervals cover what varies between runs. All of them hold together with 95 %
confidence. The command of --before-run gets HEADWAY_SERVER (from 1) and HEADWAY_ROUND.

Exit codes: 0 success; 1 failure, also with --strict when a verdict is not valid; 2 usage error.";

/// Compare servers or versions, measured in turn
#[derive(Debug, Args)]
#[command(after_help = "Examples: headway compare --help", after_long_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    request: RequestOptions,
    #[command(flatten)]
    rounds: Rounds,
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
#[command(next_help_heading = "Rounds")]
struct Rounds {
    /// How often each server is measured, at least 3
    #[arg(
        long,
        value_name = "N",
        default_value = "6",
        allow_hyphen_values = true
    )]
    rounds: Count,
    /// Open loop: N requests per second [default: a closed loop]
    #[arg(long, short = 'R', value_name = "N", allow_hyphen_values = true)]
    rate: Option<Rate>,
    /// How the starts of requests are spaced [default: poisson]
    #[arg(long, value_enum, requires = "rate", hide_short_help = true)]
    arrivals: Option<Spacing>,
    /// Time at the start of each run to leave out [default: 1s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    warmup: Option<Time>,
    /// Time to measure in each run, after its warm-up [default: 10s]
    #[arg(long, short, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Time>,
    /// Seed of the first round; all servers of a round get the same requests
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    seed: Seed,
    /// Run a shell command before each run: restart the server
    #[arg(long, value_name = "COMMAND")]
    before_run: Option<String>,
}

/// The runs of one server.
struct Server {
    name: String,
    runs: Vec<Analysis>,
    worst: Verdict,
}

/// Measures in turn, then prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = settings(arguments)?;
    let rounds = arguments.rounds.rounds.as_u32();
    if settings.urls.len() < 2 {
        let text = "one server cannot be compared; give two or more URLs";
        return Err(Failure::Usage(text.to_owned()));
    }
    if (rounds as usize) < ROUNDS_MIN {
        let text = format!("--rounds {rounds}: at least {ROUNDS_MIN} give an interval");
        return Err(Failure::Usage(text));
    }
    if let Some(directory) = &arguments.result.output {
        std::fs::create_dir(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
    }
    let mut servers: Vec<Server> = settings
        .urls
        .iter()
        .map(|url| Server {
            name: url.to_string(),
            runs: Vec::new(),
            worst: Verdict::Valid,
        })
        .collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..servers.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            measure(arguments, &settings, round, at, &mut servers[at])?;
        }
    }
    report(arguments, &servers)
}

/// One run of one server.
fn measure(
    arguments: &Arguments,
    settings: &Settings,
    round: u32,
    at: usize,
    server: &mut Server,
) -> Result<(), Failure> {
    let (shown_round, number) = (round + 1, at + 1);
    if let Some(command) = &arguments.rounds.before_run {
        let variables = [
            ("HEADWAY_SERVER", number.to_string()),
            ("HEADWAY_ROUND", shown_round.to_string()),
        ];
        run_shell("--before-run", command, &variables).map_err(|error| anyhow!("{error}"))?;
    }
    let one = Settings {
        urls: vec![settings.urls[at].clone()],
        seed: settings.seed.wrapping_add(round.into()),
        ..settings.clone()
    };
    let name = format!("round {shown_round}, server {number}");
    let around = RunContext {
        whole_only: true,
        ..run_context(&arguments.result, &name)?
    };
    let directory = arguments.result.output.as_ref();
    let directory = directory.map(|all| all.join(format!("server-{number}-round-{shown_round}")));
    let prepared = one.prepare().map_err(failure)?;
    let finished = prepared
        .run(directory.as_deref(), &around)
        .map_err(failure)?;
    let client = finished.description.client.unwrap_or_default();
    server.worst = server.worst.max(client.verdict);
    for reason in &client.reasons {
        let _ = writeln!(io::stderr(), "headway: {name}: {reason}");
    }
    server.runs.push(finished.analysis);
    Ok(())
}

fn settings(arguments: &Arguments) -> Result<Settings, Failure> {
    let rounds = &arguments.rounds;
    let demand = rounds
        .rate
        .map_or(Demand::Closed, |Rate(rate)| Demand::Open {
            schedule: RateSchedule(vec![RateStep {
                from: rate,
                to: rate,
                length: Duration::from_secs(1),
            }]),
            arrivals: rounds.arrivals.unwrap_or(Spacing::Poisson).into(),
        });
    Ok(Settings {
        demand,
        warmup: rounds.warmup.map(|Time(time)| time),
        duration: rounds.duration.map(|Time(time)| time),
        seed: rounds.seed.0,
        label: arguments.result.label.clone(),
        ..common(
            &arguments.request,
            &arguments.connections,
            &arguments.research,
        )?
    })
}

fn report(arguments: &Arguments, servers: &[Server]) -> Result<(), Failure> {
    let Some((first, others)) = servers.split_first() else {
        return Ok(());
    };
    let compared = others.iter().map(|other| {
        let found = rounds::compare(&first.runs, &other.runs, others.len());
        found.map_err(|error| anyhow!("{} and {}: {error}", first.name, other.name).into())
    });
    let compared: Vec<Comparison> = compared.collect::<Result<_, Failure>>()?;
    match arguments.json {
        true => print_data(&json(first, others, &compared)?)?,
        false => print(&text(
            first,
            others,
            &compared,
            arguments.result.output.as_deref(),
        ))?,
    }
    let is_bad = servers.iter().any(|server| server.worst != Verdict::Valid);
    match arguments.result.strict && is_bad {
        true => Err(anyhow!("--strict: not all runs are valid").into()),
        false => Ok(()),
    }
}

fn text(
    first: &Server,
    others: &[Server],
    compared: &[Comparison],
    directory: Option<&Path>,
) -> String {
    let mut text = format!("A  {}  ({} rounds)\n", first.name, first.runs.len());
    for (at, (other, comparison)) in others.iter().zip(compared).enumerate() {
        let letter = char::from(b'B' + (at % 25) as u8);
        let _ = writeln!(text, "{letter}  {}", other.name);
        let errors = |server: &Server| -> u64 {
            let runs = server.runs.iter();
            runs.map(|run| run.counts.errors).sum()
        };
        let invalid = first.worst.max(other.worst);
        if invalid != Verdict::Valid {
            text += "caution: a verdict is not valid, so a difference may be the client's\n";
        }
        if errors(first) + errors(other) > 0 {
            let (of_first, of_other) = (errors(first), errors(other));
            let _ = writeln!(
                text,
                "caution: A had {of_first} errors, {letter} {of_other}"
            );
        }
        let rows: Vec<_> = comparison.changes.iter().map(change_row).collect();
        let name = letter.to_string();
        let headings = ["", "A", &name, "change", "95 % together", ""];
        text += &table(&headings, &rows);
    }
    if let Some(directory) = directory {
        let directory = directory.display();
        let _ = write!(
            text,
            "\nCharts:  headway report {directory}/* -o report.html\n"
        );
    }
    text
}

fn json(first: &Server, others: &[Server], compared: &[Comparison]) -> Result<String, Failure> {
    let pairs = others.iter().zip(compared);
    let pairs = pairs.map(|(other, comparison)| {
        json!({
            "server": other.name,
            "verdict": first.worst.max(other.worst),
            "comparison": comparison,
        })
    });
    let value = json!({
        "format": { "name": "headway-compare", "version": 1 },
        "first": first.name,
        "rounds": first.runs.len(),
        "others": pairs.collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
