//! `headway analyze`: the tables of a run directory or an access log, or the same as JSON.
//!
//! Opens what it is given, lets `headway_latency` compute the figures, and prints them. It writes
//! nothing. A run that was cut off is analysed as far as it got, and the first lines say so.

mod log;
pub mod table;
mod text;
mod profile;

use super::Failure;
use super::export::ExportOptions;
use super::output::{print, print_data};
use clap::Args;
use headway_cli_support::specweb99_text;
use headway_latency::compare::compare;
use headway_latency::run::{Kind, Point};
use headway_latency::{Analysis, Analyzer, Run};
use headway_load::cli_types::Time;
use headway_log_reader::Format as LogFormat;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MORE: &str = "Examples: headway analyze --help";

const EXAMPLES: &str = "\
Examples:
  headway analyze runs/nginx                       the tables of one run
  headway analyze runs/nginx --deadline 10ms       how many responses came within 10 ms
  headway analyze runs/nginx --compare runs/ours   is the second one faster, or is it chance?
  headway analyze runs/profile                     one line per point of a profile
  headway analyze runs/profile --point 0.80        everything about the point at 80 % of capacity
  headway analyze runs/nginx --json | jq .response.p99_us
  headway analyze access.log.gz                    the log of nginx, Apache, Caddy, HAProxy or Envoy
  headway analyze before.log --compare after.log   two logs
  headway analyze access.log --format '%h %l %u %t \"%r\" %>s %b %D'

Response time runs from the intended start of a request, so delays of the client are in it; service
time runs from the actual start. In JSON, times are microseconds and shares are 0 to 1.

A log needs the time that each request took: $request_time of nginx, %D of Apache. Its clock starts
when the server has read a request. Answers from 500 on, and 499 of nginx, are errors.

Exit codes: 0 success, 1 the run cannot be read, 2 usage error.";

/// Print latency, rate and errors of a run or an access log, or compare two
#[derive(Debug, Args)]
#[command(after_help = MORE, after_long_help = EXAMPLES)]
pub struct Arguments {
    /// A directory that `headway load -o` or `headway profile` wrote, or an access log
    ///
    /// A log may be compressed by gzip or Zstandard; `-` is standard input.
    #[arg(value_name = "RUN|LOG")]
    run: PathBuf,
    /// Compare with another run or log: differences of mean and percentiles, with confidence intervals
    #[arg(long, value_name = "OTHER")]
    compare: Option<PathBuf>,
    /// Count the responses within TIME of their intended start; may be repeated
    #[arg(long, value_name = "TIME", value_parser = deadline, allow_hyphen_values = true)]
    deadline: Vec<Time>,
    /// The point of a profile: its load or the name of its directory, such as 0.80 or 0.80-2
    #[arg(long, value_name = "POINT")]
    point: Option<String>,
    /// The format of a log: nginx, apache, haproxy, envoy, json, or a text in the form of nginx or
    /// Apache [default: by its first lines]
    #[arg(long, value_name = "FORMAT")]
    format: Option<LogFormat>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    export: ExportOptions,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if log::is_log(&arguments.run) {
        return log::run(arguments);
    }
    if arguments.format.is_some() {
        return Err(Failure::Usage(format!(
            "--format is for logs, and {} is a directory or not there",
            arguments.run.display()
        )));
    }
    let opened = open(&arguments.run, arguments.point.as_deref())?;
    if opened.description().kind != Kind::Load && arguments.export.is_given() {
        let message = "--out needs a single run; name one below the directory";
        return Err(Failure::Usage(message.into()));
    }
    if opened.description().kind == Kind::SpecWeb99 {
        return specweb99(&opened, arguments);
    }
    if opened.description().kind == Kind::Profile {
        if arguments.compare.is_some() {
            let message =
                "--compare needs two single runs; choose a point of the profile with --point";
            return Err(Failure::Usage(message.into()));
        }
        return all_points(&opened, arguments);
    }
    arguments.export.write(&opened)?;
    let first = analyze(&opened, arguments)?;
    match &arguments.compare {
        None if arguments.json => print_data(&json(&first)?),
        None => print(&text::run(&opened, &first, style())),
        Some(other) => compare_runs(&opened, &first, other, arguments),
    }
}

/// Prints the score and the latency of each kind of request. Each iteration is a run of its own.
fn specweb99(run: &Run, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.compare.is_some() || !arguments.deadline.is_empty() {
        let message =
            "--compare and --deadline need single runs; name a directory below iterations/";
        return Err(Failure::Usage(message.into()));
    }
    match arguments.json {
        true => print_data(&json(&run.description().specweb99)?),
        false => print(&specweb99_text::render(run.description())),
    }
}

fn deadline(text: &str) -> Result<Time, String> {
    match text.parse()? {
        Time(Duration::ZERO) => Err("a deadline is longer than 0".into()),
        time => Ok(time),
    }
}

/// Opens a run, or one point of a profile.
fn open(path: &Path, point: Option<&str>) -> Result<Run, Failure> {
    let run = Run::open(path)?;
    let Some(wanted) = point else { return Ok(run) };
    let Some(profile) = run
        .description()
        .profile
        .as_ref()
        .filter(|_| run.description().kind == Kind::Profile)
    else {
        return Err(Failure::Usage(format!(
            "{}: --point needs a profile, and this is a single run",
            path.display()
        )));
    };
    let names: Vec<&str> = profile
        .points
        .iter()
        .filter(|point| point.done)
        .map(name)
        .collect();
    let matches = |name: &str| {
        name == wanted || relative_load(name).is_some_and(|load| Some(load) == wanted.parse().ok())
    };
    let found: Vec<&str> = names.iter().copied().filter(|name| matches(name)).collect();
    let refuse = |message: String| Err(Failure::Usage(message));
    match found[..] {
        [only] => {
            let chosen = profile.points.iter().find(|point| name(point) == only);
            Ok(Run::open(
                path.join(chosen.map_or("", |point| &point.directory)),
            )?)
        }
        [] => refuse(format!(
            "no finished point {wanted} in {}; it has: {}",
            path.display(),
            names.join(", ")
        )),
        _ => refuse(format!(
            "{wanted} was measured more than once; name one of: {}",
            found.join(", ")
        )),
    }
}

/// The last part of a point's directory.
fn name(point: &Point) -> &str {
    point
        .directory
        .rsplit('/')
        .next()
        .unwrap_or(&point.directory)
}

/// The relative load in the name of a point: 0.8 of `0.80-2`.
fn relative_load(name: &str) -> Option<f64> {
    name.rsplit_once('-')
        .map_or(name, |(load, _)| load)
        .parse()
        .ok()
}

fn analyze(run: &Run, arguments: &Arguments) -> Result<Analysis, Failure> {
    let analyzer = with_deadlines(Analyzer::new(run.description()), arguments);
    Ok(run.analyze(analyzer)?)
}

fn with_deadlines(analyzer: Analyzer, arguments: &Arguments) -> Analyzer {
    arguments
        .deadline
        .iter()
        .fold(analyzer, |analyzer, Time(deadline)| {
            analyzer.with_deadline_ms(deadline.as_secs_f64() * 1e3)
        })
}

fn all_points(run: &Run, arguments: &Arguments) -> Result<(), Failure> {
    let points = run
        .description()
        .profile
        .iter()
        .flat_map(|profile| &profile.points)
        .filter(|point| point.done);
    let mut measured = Vec::new();
    for (point, opened) in points.zip(run.points()?) {
        let analysis = analyze(&opened, arguments)?;
        measured.push(profile::Measured {
            point: point.clone(),
            run: opened,
            analysis,
        });
    }
    if arguments.json {
        print_data(&json(&profile::Listing::of(run, &measured))?)
    } else {
        print(&profile::text(run, &measured, style()))
    }
}

fn compare_runs(
    run: &Run,
    first: &Analysis,
    other: &Path,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let opened = open(other, None)?;
    if opened.description().kind != Kind::Load {
        return Err(Failure::Usage(format!(
            "{}: several runs; name a directory below points/ or iterations/",
            other.display()
        )));
    }
    let second = analyze(&opened, arguments)?;
    let differences = compare(first, &second)?;
    if arguments.json {
        return print_data(&json(
            &serde_json::json!({ "first": first, "second": second, "differences": differences }),
        )?);
    }
    print(&text::comparison(run, &opened, &differences, style()))
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(text)
}

/// Bold headings on a terminal, unless NO_COLOR is set (no-color.org).
fn style() -> table::Style {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    table::Style {
        bold: wanted && std::io::stdout().is_terminal(),
    }
}
