//! `headway-lab counters run` and `report`: servers in the five configurations, and the page about
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::anyhow;
use clap::Args;
use headway_cli_support::replace::{replaceable, write};
use headway_counters::smt::configuration::Choice;
use headway_counters::smt::{Configuration, CpuState, Topology, state};
use headway_counters::study::{self, Outcome, RunError, SERVERS, StudyPlan, Workload, compare};
use headway_lab::servers::{Kind, available};
use serde_json::json;

use super::{Cpus, cpu_list, page, print, print_json, print_line, seconds, text};
use crate::{Failure, signals};

/// The page in the directory.
const PAGE: &str = "report.html";

const EXAMPLES: &str = "\
Examples:
  headway-lab counters run -o study                   all servers and configurations
  headway-lab counters run --server nginx --config 1T-SMP,2T -d 10s -o study
  headway-lab counters run --repeats 5 --space-split -o study
                                                      user and kernel apart, five times each
  headway-lab counters run --config 1T-UP -o study    again after a boot with `nosmp`
  headway-lab counters run --instructions -o study    also user instructions per request (callgrind)

Each server serves a file set of 500 MB from memory to 1024 connections in a closed loop, with \
one worker per hardware thread.
An interrupted run is resumed by the same command. CPUs that were taken offline, and SMT, are \
restored at the end, after Ctrl-C and after a crash.
The directory receives counters.json, report.html, and the client's run directory of each \
measurement in runs/.

`--help` has more options.

Exit codes: 0 success (what could not be measured is listed), 1 failure or interrupted, 2 \
usage error.";

/// Measure servers in the dissertation's five configurations, with counters, and write a report.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunCounters {
    /// Servers to measure [default: those installed of headway, nginx, apache-prefork,
    /// apache-worker, lighttpd and h2o]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    server: Vec<Kind>,
    /// The configurations: 1T-UP, 1T-SMP, 2T, 2P, 4T [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    config: Vec<Configuration>,
    /// Output directory; an existing run with the same load is resumed
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Connections of the client
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=15_000))]
    connections: u32,
    /// Requests on a connection before it is closed [default: unlimited]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    requests_per_connection: Option<u64>,
    /// Size of the file set in megabytes
    #[arg(long, value_name = "MB", default_value_t = 500, value_parser = clap::value_parser!(u64).range(5..=1_000_000))]
    set: u64,
    /// Order of requests: specweb96 (all directories equally often) or specweb99
    #[arg(long, value_name = "NAME", default_value = "specweb96", value_parser = ["specweb96", "specweb99"], hide_short_help = true)]
    profile: String,
    /// Time of load before the measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = seconds)]
    warmup: f64,
    /// Time of each measurement
    #[arg(short, long, value_name = "TIME", default_value = "20s", value_parser = seconds)]
    duration: f64,
    /// Measurements of each server in each configuration
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// CPUs to choose the server's cores from [default: any]
    #[arg(long, value_name = "LIST", value_parser = cpu_list, hide_short_help = true)]
    server_cpus: Option<Cpus>,
    /// CPUs of the client [default: those of other cores than the server's]
    #[arg(long, value_name = "LIST", value_parser = cpu_list, hide_short_help = true)]
    client_cpus: Option<Cpus>,
    /// Count user space and kernel separately; takes twice the counters
    #[arg(long, hide_short_help = true)]
    space_split: bool,
    /// Also find the most connections of 400 kbit/s that each server sustains (SPECweb99's static
    /// part)
    ///
    /// This takes about ten more measurements per server and configuration.
    #[arg(long, hide_short_help = true)]
    scores: bool,
    /// CPU quota of the servers with --scores, per CPU, so that the client is not the bottleneck
    #[arg(
        long,
        value_name = "SHARE",
        requires = "scores",
        hide_short_help = true
    )]
    score_share: Option<f64>,
    /// Also count instructions of user code with callgrind, in two runs per server
    #[arg(long, hide_short_help = true)]
    instructions: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only the result, warnings and errors
    #[arg(long, short)]
    quiet: bool,
}

/// Write the page of a directory again.
#[derive(Debug, Args)]
pub struct CountersReport {
    /// The directory that `headway-lab counters run` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// File to write [default: DIR/report.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl RunCounters {
    /// Measures, prints and writes the page.
    pub fn run(&self) -> Result<(), Failure> {
        let plan = self.plan()?;
        headway_lab::require_headway()?;
        let interrupted = signals::caught(signals::STOP)?;
        let (mut state, left) = CpuState::open(Path::new(state::DIRECTORY)).map_err(|error| {
            let error = anyhow!(error);
            // Root meets other reasons, such as a study that is at work.
            match rustix::process::geteuid().is_root() {
                true => error,
                false => error.context("changing this machine's CPUs takes root"),
            }
        })?;
        if left {
            print_line(
                "an earlier run had ended without restoring; what it had changed is restored",
            );
        }
        state.watched_by(guard())?;
        let done = study::run(&plan, state, &interrupted, &mut |line| {
            if !self.quiet {
                print_line(line);
            }
        });
        let outcome = done.map_err(|error| failure(error, &self.output))?;
        write_page(&outcome, &self.output.join(PAGE))?;
        self.show(&outcome)
    }

    fn show(&self, outcome: &Outcome) -> Result<(), Failure> {
        let cells = compare::cells(outcome);
        match self.json {
            true => print_json(&json!({ "outcome": outcome, "cells": cells }))?,
            false => print(&text::study(outcome, &cells))?,
        }
        let something = cells.iter().any(|cell| cell.repeats > 0)
            || outcome
                .instructions
                .iter()
                .any(|one| one.per_request.is_some());
        match something {
            true => Ok(()),
            false => Err(Failure::Runtime(anyhow!(
                "nothing could be measured; the reasons are above"
            ))),
        }
    }

    fn plan(&self) -> Result<StudyPlan, Failure> {
        let servers = match self.server.is_empty() {
            false => self.server.clone(),
            true => SERVERS
                .into_iter()
                .filter(|server| self.is_installed(*server))
                .collect(),
        };
        for server in &servers {
            if let Err(reason) = available(*server) {
                return Err(Failure::Usage(format!("--server {server}: {reason}")));
            }
        }
        let configurations = match self.config.is_empty() {
            false => self.config.clone(),
            true => Configuration::ALL.to_vec(),
        };
        let mut plan = StudyPlan::new(servers, configurations, self.output.clone());
        plan.repeats = self.repeats;
        plan.split = self.space_split;
        plan.scores = self.scores;
        plan.score_share = self.score_share;
        plan.instructions = self.instructions;
        plan.choice = Choice {
            server: online("--server-cpus", &self.server_cpus)?,
            client: online("--client-cpus", &self.client_cpus)?,
        };
        plan.workload = Workload {
            set_bytes: self.set * 1_000_000,
            profile: self.profile.clone(),
            connections: self.connections as usize,
            requests_per_connection: self.requests_per_connection,
            warmup_s: self.warmup,
            seconds: self.duration,
        };
        match plan.check() {
            Ok(()) => Ok(plan),
            Err(error) => Err(Failure::Usage(error.to_string())),
        }
    }

    fn is_installed(&self, server: Kind) -> bool {
        match available(server) {
            Ok(_) => true,
            Err(reason) => {
                print_line(&format!("{server} is left out: {reason}"));
                false
            }
        }
    }
}

impl CountersReport {
    /// Reads and writes.
    pub fn run(&self) -> Result<(), Failure> {
        let outcome = Outcome::read(&self.directory)?;
        let outcome = outcome.ok_or_else(|| {
            anyhow!(
                "{}: no outcome of `headway-lab counters run` is in it",
                self.directory.display()
            )
        })?;
        let file = self
            .output
            .clone()
            .unwrap_or_else(|| self.directory.join(PAGE));
        write_page(&outcome, &file)
    }
}

fn write_page(outcome: &Outcome, file: &Path) -> Result<(), Failure> {
    replaceable(file, headway_report::GENERATOR_META)?;
    let sheet = page::sheet(outcome, &compare::cells(outcome));
    Ok(write(file, &headway_report::sheet(&sheet))?)
}

/// CPUs that a user has named, which must be there.
fn online(word: &str, named: &Option<Cpus>) -> Result<Cpus, Failure> {
    let named = named.clone().unwrap_or_default();
    let online = Topology::current().online();
    match named.iter().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => Err(Failure::Usage(format!(
            "{word}: there is no CPU {cpu} online; there are {}",
            super::numbers(&online)
        ))),
        None => Ok(named),
    }
}

/// The process which only waits for our end: this program once more.
fn guard() -> Command {
    let mut command = Command::new(headway_lab::headway_lab());
    command.arg("counters-guard").arg(state::DIRECTORY);
    command
}

fn failure(error: RunError, directory: &Path) -> Failure {
    match error {
        RunError::Plan(error) => Failure::Usage(error.to_string()),
        RunError::OtherWork { .. } => {
            Failure::Usage(format!("-o {}: {error}", directory.display()))
        }
        other => Failure::Runtime(other.into()),
    }
}
