//! `headway-lab schedule`: what choosing pairs of programs for a core's two threads can gain.
//!
//! Glue: words become a matrix and a number of trials, `counters` does the work, and its answers
//! are put into words, JSON, a table of the distribution and a picture. Files are checked before
//! the work and written whole, after it.

mod measure;
mod text;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use headway_cli_support::replace::write;
use headway_counters::schedule::analysis::{self, Analysis};
use headway_counters::schedule::trials::Trials;
use headway_counters::schedule::{SlowDowns, draw};

use super::Failure;
use super::output::{print, print_data};

const EXAMPLES: &str = "\
Examples:
  headway-lab schedule matrix.csv             best, worst and ten million random schedules
  headway-lab schedule matrix.csv --svg cdf.svg --cdf cdf.csv
                                              and their distribution, as a chart and as numbers
  headway-lab schedule matrix.csv --json | jq .best.pairs
  headway-lab schedule measure --cpus 0,1 -o matrix.csv -- 'gzip <a >/dev/null' 'sort b >/dev/null'
                                              measure a matrix
  headway-lab schedule draw | headway-lab schedule -
                                              a random matrix, to try the command

An entry of the matrix is the slow-down of the program in its row when the program in its column \
runs on the same core: time together ÷ time alone.
The first row and the first column name the programs; the diagonal may be empty.
The cost of a pair is the mean of both directions; a program without a partner costs 1. The \
speed-up of a schedule is programs ÷ (sum of its costs) − 1.

Exit codes: 0 success, 1 failure or no matrix, 2 usage error.";

const DRAW_EXAMPLES: &str = "\
Examples:
  headway-lab schedule draw -o matrix.csv     26 programs, speed-ups of pairs from 12 % to 26 %
  headway-lab schedule draw --programs 9 --speed-up=-10..40 --seed 7

The figures are random and belong to no real program. The same options give the same matrix on \
every machine.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// How a matrix begins, and nothing else that we would overwrite.
const MATRIX_MARK: &str = "program,";
const CDF_MARK: &str = "speed_up_percent,share";
const SVG_MARK: &str = "<svg xmlns=";

/// The least speed-up of a pair that is drawn: ten thousand times as slow.
const PERCENT_LEAST: f64 = -99.99;

/// A matrix of the largest size takes a tenth of it.
const MATRIX_BYTES_MAX: u64 = 64 << 20;

/// Find what pairing programs on SMT cores can gain: best, worst and random schedules
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Pairwise slow-downs as comma-separated values; - for standard input
    #[arg(value_name = "MATRIX")]
    matrix: Option<PathBuf>,
    /// Random schedules to try
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    trials: u64,
    /// Seed of the random schedules
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Rounds of a scheduler that draws new random pairs in each round
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    rounds: u32,
    /// Threads; the result does not depend on it [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print JSON; a speed-up of 0.2 is 20 %
    #[arg(long)]
    json: bool,
    /// Write the distribution of the random schedules as comma-separated values
    #[arg(long, value_name = "FILE")]
    cdf: Option<PathBuf>,
    /// Draw the distribution, in the form of the dissertation's Figure 4.22
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    Measure(measure::Measure),
    Draw(Draw),
}

/// Write a random matrix, to try the analysis without measuring.
#[derive(Debug, Args)]
#[command(after_help = DRAW_EXAMPLES)]
struct Draw {
    /// Number of programs
    #[arg(long, value_name = "N", default_value_t = 26, value_parser = clap::value_parser!(u16).range(2..=1000))]
    programs: u16,
    /// The range of the pairs' speed-ups in percent, -99.99 to 100
    #[arg(long, value_name = "LOW..HIGH", default_value = "12..26", value_parser = percent_range, allow_hyphen_values = true)]
    speed_up: (f64, f64),
    /// Seed of the matrix
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Some(Action::Measure(measure)) => measure.run(),
        Some(Action::Draw(draw)) => draw.run(),
        None => analyze(arguments),
    }
}

fn analyze(arguments: &Arguments) -> Result<(), Failure> {
    let Some(path) = &arguments.matrix else {
        let message = "name a matrix: headway-lab schedule MATRIX.csv, or - for standard input";
        return Err(Failure::Usage(message.into()));
    };
    let files = [(&arguments.cdf, CDF_MARK), (&arguments.svg, SVG_MARK)];
    for (file, mark) in files {
        file.iter().try_for_each(|file| replaceable(file, mark))?;
    }
    if arguments.cdf.is_some() && arguments.cdf == arguments.svg {
        let message = "--cdf and --svg name the same file; give each its own";
        return Err(Failure::Usage(message.into()));
    }
    let matrix = SlowDowns::parse(&read_matrix(path)?)
        .with_context(|| format!("{}: no matrix of slow-downs", path.display()))?;
    let trials = Trials {
        count: arguments.trials,
        seed: arguments.seed,
        threads: arguments.threads.map_or(0, usize::from),
    };
    let found = analysis::run(&matrix, &trials, arguments.rounds);
    if let Some(file) = &arguments.cdf {
        write(file, &text::cdf(&found))?;
    }
    if let Some(file) = &arguments.svg {
        write(file, &text::svg(&found))?;
    }
    if arguments.json {
        print_data(&json(&found)?)
    } else {
        print(&text::tables(&matrix, &found))
    }
}

fn json(found: &Analysis) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(found)?;
    text.push('\n');
    Ok(text)
}

impl Draw {
    fn run(&self) -> Result<(), Failure> {
        let matrix = draw::matrix(self.programs.into(), self.speed_up, self.seed)?;
        write_matrix(&matrix, self.output.as_deref())
    }
}

/// Writes a matrix to a file or to standard output.
fn write_matrix(matrix: &SlowDowns, output: Option<&Path>) -> Result<(), Failure> {
    match output {
        None => print(&matrix.to_csv()),
        Some(path) => {
            replaceable(path, MATRIX_MARK)?;
            Ok(write(path, &matrix.to_csv())?)
        }
    }
}

/// Refuses a name that stands for something else than what we would write there, or where nothing
/// can be written.
fn replaceable(path: &Path, mark: &str) -> anyhow::Result<()> {
    let Ok(metadata) = path.metadata() else {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        return match folder {
            Some(folder) if !folder.is_dir() => {
                bail!(
                    "{}: there is no such directory; make it first",
                    folder.display()
                )
            }
            _ => Ok(()),
        };
    };
    if !metadata.is_file() {
        bail!("{}: is no regular file; name another one", path.display());
    }
    let mut start = Vec::new();
    let opened =
        File::open(path).with_context(|| format!("{}: may it be replaced?", path.display()))?;
    opened
        .take(mark.len() as u64)
        .read_to_end(&mut start)
        .with_context(|| format!("{}: may it be replaced?", path.display()))?;
    if !start.is_empty() && start != mark.as_bytes() {
        bail!(
            "{}: does not begin with {mark:?}, so it is not what would be written there, and is left as it is; name another \
             file, or remove it",
            path.display()
        );
    }
    Ok(())
}

fn read_matrix(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| format!("open the matrix {name}"))?)
    };
    let mut text = String::new();
    source
        .take(MATRIX_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("read the matrix {name}"))?;
    if text.len() as u64 > MATRIX_BYTES_MAX {
        bail!("{name}: larger than 64 MiB, which no matrix of a thousand programs is");
    }
    Ok(text)
}

/// `12..26` in percent becomes shares.
fn percent_range(word: &str) -> Result<(f64, f64), String> {
    let bounds = word
        .split_once("..")
        .and_then(|(low, high)| Some((low.trim().parse().ok()?, high.trim().parse().ok()?)));
    let (low, high): (f64, f64) = bounds.ok_or("two numbers are wanted, as in 12..26")?;
    if low >= PERCENT_LEAST && low <= high && high <= 100.0 {
        Ok((low / 100.0, high / 100.0))
    } else {
        Err(format!(
            "the range must ascend, from {PERCENT_LEAST} or more to at most 100"
        ))
    }
}
