//! `headway-lab schedule measure`: a matrix of slow-downs from programs that are run.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headway_counters::schedule::measure::{MeasureError, Program, SlowDownPlan, is_one_core};
use headway_latency::format::printable;

use super::super::{Failure, signals};
use super::{MATRIX_MARK, replaceable, write_matrix};

const EXAMPLES: &str = "\
Examples:
  headway-lab schedule measure --cpus 0,1 -o matrix.csv -- 'gzip <a >/dev/null' 'sort b >/dev/null'
  headway-lab schedule measure --cpus 0,4 --name zip --name sort --runs 5 -- 'gzip -9 <a' 'sort b'

Each PROGRAM is a line for `sh -c` that ends by itself with success. Each one runs alone on \
both CPUs, then beside each other one.
The program that ends first is started again, so every counted run has a co-runner from start \
to end. Entries are ratios of medians.
For SMT, name two threads of one core (see lscpu -e), and let nothing else run on them. Ctrl-C \
ends all programs.

Exit codes: 0 success, 1 failure or interrupted, 2 usage error.";

/// Measure a matrix: run programs alone and in pairs on two CPUs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Measure {
    /// The two CPUs, in the kernel's numbering
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    cpus: [usize; 2],
    /// Name of a program in the matrix; repeat it in the order of the programs [default: its
    /// command]
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Complete runs of each program, alone and in each pair
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Longest time of a run, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    time_limit: Duration,
    /// Write the output of the programs to DIR/1.out, DIR/2.out … instead of discarding it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print only the matrix, warnings and errors
    #[arg(long, short)]
    quiet: bool,
    /// The programs, two or more
    #[arg(value_name = "PROGRAM", required = true, num_args = 2.., last = true)]
    programs: Vec<String>,
}

impl Measure {
    /// Measures and writes.
    pub fn run(&self) -> Result<(), Failure> {
        let plan = self.plan()?;
        plan.check().map_err(failure)?;
        if let Some(path) = &self.output {
            replaceable(path, MATRIX_MARK)?;
        }
        let interrupted = signals::caught(signals::STOP)?;
        self.print_line(&self.about_cpus());
        let matrix = plan
            .run(&interrupted, &mut |line| self.print_line(line))
            .map_err(failure)?;
        write_matrix(&matrix, self.output.as_deref())
    }

    fn plan(&self) -> Result<SlowDownPlan, Failure> {
        let names = match self.name.len() {
            0 => &self.programs,
            count if count == self.programs.len() => &self.name,
            count => {
                let programs = self.programs.len();
                return Err(Failure::Usage(format!(
                    "--name is given {count} times for {programs} programs; name all of them or none"
                )));
            }
        };
        let programs = names
            .iter()
            .zip(&self.programs)
            .map(|(name, command)| Program {
                name: name.trim().to_owned(),
                command: command.clone(),
            });
        Ok(SlowDownPlan {
            programs: programs.collect(),
            cpus: self.cpus,
            runs: self.runs,
            time_limit: self.time_limit,
            keep: self.keep.clone(),
        })
    }

    fn about_cpus(&self) -> String {
        let [a, b] = self.cpus;
        match is_one_core(a, b) {
            Some(true) => format!("CPUs {a} and {b} are threads of one core"),
            Some(false) => format!(
                "CPUs {a} and {b} are different cores: their programs share caches and memory, not a core"
            ),
            None => {
                format!("the kernel does not say whether CPUs {a} and {b} are threads of one core")
            }
        }
    }

    fn print_line(&self, line: &str) {
        if !self.quiet {
            // A closed standard error does not stop the measurement.
            let _ = writeln!(io::stderr(), "{}", printable(line));
        }
    }
}

/// CPUs and names are the words of the user; what programs do is not.
fn failure(error: MeasureError) -> Failure {
    match error {
        MeasureError::Cpu { .. } | MeasureError::SameCpu(_) => {
            Failure::Usage(format!("--cpus: {error}"))
        }
        MeasureError::Programs(_) => Failure::Usage(format!("{error} (--name)")),
        other => Failure::Runtime(other.into()),
    }
}

fn two_cpus(word: &str) -> Result<[usize; 2], String> {
    let pair = word
        .split_once(',')
        .and_then(|(a, b)| Some([a.trim().parse().ok()?, b.trim().parse().ok()?]));
    pair.ok_or_else(|| "two numbers are wanted, as in 0,1".into())
}

fn seconds(word: &str) -> Result<Duration, String> {
    match word.parse::<f64>() {
        Ok(value) if (0.001..=86_400.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("a number of seconds is wanted, 0.001 to 86400".into()),
    }
}
