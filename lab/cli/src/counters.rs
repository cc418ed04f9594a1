//! `headway-lab counters`: what this machine can count, counting, the latencies of its memory, and
//! servers in the dissertation's five configurations.
//!
//! Glue: the library counts, measures and compares; here words become targets and plans, and
//! results become tables, JSON and a page.

mod count;
mod list;
mod page;
mod run;
mod text;

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use headway_counters::probe::{self, Probed};
use headway_counters::smt::{CpuState, state};
use headway_latency::format::printable;
use serde::Serialize;

use super::Failure;
use super::output::{print, print_data};
use headway_cli_support::table::table;

const EXAMPLES: &str = "\
Examples:
  headway-lab counters list                    which events this machine can count
  headway-lab counters count -- gzip -9 file   count events of a program and its children
  headway-lab counters count -C 0,1 -d 10s     count events on two CPUs for ten seconds
  headway-lab counters probe --cpu 1           measure cache and memory latency, and bandwidth
  headway-lab counters configurations          what 1T-UP, 1T-SMP, 2T, 2P and 4T are on this machine
  headway-lab counters run -o study            measure all servers in all possible configurations
  headway-lab counters run --server headway,nginx --config 1T-SMP,2T -o study

Most virtual machines have no hardware counters. The kernel's software events are counted \
there, and the columns of the others stay empty.

Exit codes: 0 success, 1 failure or interrupted, 2 usage error.";

/// Count what CPUs do, and compare servers with and without SMT
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::ListEvents),
    Count(Box<count::Count>),
    Probe(Probe),
    Configurations(list::Configurations),
    Run(Box<run::RunCounters>),
    Report(run::CountersReport),
    Restore(Restore),
}

/// Measure latency and bandwidth of caches and memory, and the cost of mispredictions and page
/// walks.
#[derive(Debug, Args)]
struct Probe {
    /// The CPU to measure on, which should be idle [default: the first one allowed]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Restore the CPUs and SMT that an interrupted `headway-lab counters run` changed.
#[derive(Debug, Args)]
struct Restore {}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::List(list) => list.run(),
        Action::Count(count) => count.run(),
        Action::Probe(probe) => probe.run(),
        Action::Configurations(configurations) => configurations.run(),
        Action::Run(run) => run.run(),
        Action::Report(report) => report.run(),
        Action::Restore(_) => restore(),
    }
}

/// The guard of a study: restores the settings when the study has ended.
pub fn guard(directory: &Path) -> Result<(), Failure> {
    Ok(state::guard(std::io::stdin(), directory)?)
}

fn restore() -> Result<(), Failure> {
    let (_state, left) = CpuState::open(Path::new(state::DIRECTORY))?;
    print_line(match left {
        true => "restored",
        false => "there is nothing to restore",
    });
    Ok(())
}

impl Probe {
    fn run(&self) -> Result<(), Failure> {
        let allowed = headway_lab::allowed_cpus();
        let cpu = match self.cpu {
            Some(cpu) if allowed.contains(&cpu) => cpu,
            Some(cpu) => {
                return Err(Failure::Usage(format!(
                    "--cpu {cpu}: this process may run on {} only",
                    numbers(&allowed)
                )));
            }
            None => allowed.first().copied().unwrap_or(0),
        };
        headway_counters::schedule::measure::bind_thread(cpu).context("binding to the CPU")?;
        let probed = probe::run(cpu);
        match self.json {
            true => print_json(&probed),
            false => print(&probe_table(cpu, &probed)),
        }
    }
}

fn probe_table(cpu: usize, probed: &Probed) -> String {
    let cycles = |ns: f64| format!("{:.1}", ns / probed.cycle_ns);
    let ns = |ns: f64| format!("{ns:.2}");
    let mut rows: Vec<Vec<String>> = probed
        .levels
        .iter()
        .map(|level| {
            let size = level
                .bytes
                .map_or(String::new(), |bytes| format!("{} KiB", bytes >> 10));
            vec![
                level.name.clone(),
                size,
                ns(level.latency_ns),
                cycles(level.latency_ns),
            ]
        })
        .collect();
    for (name, value) in [
        ("page-table walk, more", probed.walk_ns),
        ("misprediction, more", probed.misprediction_ns),
    ] {
        rows.push(vec![name.into(), String::new(), ns(value), cycles(value)]);
    }
    let rate = |bytes: f64| format!("{:.1} GB/s", bytes / 1e9);
    let bandwidth = &probed.bandwidth;
    format!(
        "CPU {cpu}; a cycle takes {:.3} ns ({:.2} GHz)\n\n{}\nOne thread reads {}, writes {}, copies {}.\n",
        probed.cycle_ns,
        1.0 / probed.cycle_ns,
        table(&["access", "size", "ns", "cycles"], &rows),
        rate(bandwidth.read_bytes_per_s),
        rate(bandwidth.write_bytes_per_s),
        rate(bandwidth.copy_bytes_per_s),
    )
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print_data(&text)
}

/// Prints a line to standard error; the work continues if that is closed.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

fn numbers(list: &[usize]) -> String {
    let listed: Vec<String> = list.iter().map(ToString::to_string).collect();
    listed.join(",")
}

/// CPUs of one argument. By this name, since clap takes an argument of type `Vec` to be given
/// several times.
type Cpus = Vec<usize>;

/// Parses a list of CPUs such as `0-3,8`.
fn cpu_list(word: &str) -> Result<Cpus, String> {
    let mut found = Vec::new();
    for part in word.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first
            .trim()
            .parse::<usize>()
            .ok()
            .zip(last.trim().parse::<usize>().ok());
        match range {
            Some((first, last)) if first <= last && last < 1 << 16 => found.extend(first..=last),
            _ => return Err("CPUs are wanted as in 0,2 or 0-3".into()),
        }
    }
    Ok(found)
}

/// `500ms`, `10s`, `2m`.
fn seconds(word: &str) -> Result<f64, String> {
    let units = [("ms", 1e-3), ("m", 60.0), ("s", 1.0)];
    let with_unit = units
        .into_iter()
        .find_map(|(unit, scale)| Some((word.strip_suffix(unit)?, scale)));
    let (number, scale) = with_unit.unwrap_or((word, 1.0));
    let value = number.parse::<f64>().ok().map(|value| value * scale);
    value
        .filter(|value| (0.0..=86_400.0).contains(value))
        .ok_or_else(|| "a time is wanted, as in 500ms, 10s or 2m".into())
}
