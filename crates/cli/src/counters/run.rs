//! `headway counters run` and `report`: servers in the five configurations, and the page about
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::anyhow;
use clap::Args;
use headway_counters::smt::configuration::Choice;
use headway_counters::smt::{Configuration, State, Topology, state};
use headway_counters::study::{self, Outcome, Plan, RunError, SERVERS, Workload, compare};
use headway_lab::servers::{Kind, available};
use serde_json::json;

use super::{Cpus, cpu_list, page, print, print_json, say, seconds, text};
use crate::{Failure, signals};

/// The page in the directory.
const PAGE: &str = "report.html";

const EXAMPLES: &str = "\
Examples:
  headway counters run -o study                       all servers and configurations
  headway counters run --server nginx --config 1T-SMP,2T -d 10s -o study
  headway counters run --repeats 5 --space-split -o study
                                                      user and kernel apart, five times each
  headway counters run --config 1T-UP -o study        again after a boot with `nosmp`
  headway counters run --instructions -o study        also user instructions per request (callgrind)

Each server serves a file set of 500 MB from memory to 1024 connections in a closed loop, with \
one worker per hardware thread.
An interrupted run is resumed by the same command. CPUs that were taken offline, and SMT, are \
restored at the end, after Ctrl-C and after a crash.
The directory receives counters.json, report.html, and the client's run directory of each \
measurement in runs/.

`--help` has more options.

Exit codes: 0 success (what could not be measured is listed), 1 failure or interrupted, 2 \
usage error.";

/// Drives servers in the dissertation's five configurations, with counters, and writes a report.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// The servers [default: headway, nginx, apache-prefork, apache-worker, lighttpd and h2o, those
    /// that are installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    server: Vec<Kind>,
    /// The configurations: 1T-UP, 1T-SMP, 2T, 2P, 4T [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    config: Vec<Configuration>,
    /// The directory for everything; one that has measurements of the same work is added to
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Connections that ask at the same time
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=15_000))]
    connections: u32,
    /// Requests on a connection before it is closed [default: no end]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    requests_per_connection: Option<u64>,
    /// Bytes of the set of files, in megabytes
    #[arg(long, value_name = "MB", default_value_t = 500, value_parser = clap::value_parser!(u64).range(5..=1_000_000))]
    set: u64,
    /// How the set's files are asked for: specweb96 (all directories alike) or specweb99
    #[arg(long, value_name = "NAME", default_value = "specweb96", value_parser = ["specweb96", "specweb99"], hide_short_help = true)]
    profile: String,
    /// Before it counts
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = seconds)]
    warmup: f64,
    /// For which it counts
    #[arg(short, long, value_name = "TIME", default_value = "20s", value_parser = seconds)]
    duration: f64,
    /// Measurements of each server in each configuration
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Take the server's cores among those of these CPUs
    #[arg(long, value_name = "LIST", value_parser = cpu_list, hide_short_help = true)]
    server_cpus: Option<Cpus>,
    /// The client's CPUs [default: what the server's cores leave]
    #[arg(long, value_name = "LIST", value_parser = cpu_list, hide_short_help = true)]
    client_cpus: Option<Cpus>,
    /// Count user space and kernel apart; takes twice the counters
    #[arg(long, hide_short_help = true)]
    space_split: bool,
    /// Also find how many connections of 400 kbit/s each server satisfies (SPECweb99's static
    /// part); about ten measurements more for each
    #[arg(long, hide_short_help = true)]
    scores: bool,
    /// While scores are sought, servers have this share of each of their CPUs, so that the
    /// client is not what ends the search
    #[arg(
        long,
        value_name = "SHARE",
        requires = "scores",
        hide_short_help = true
    )]
    score_share: Option<f64>,
    /// Also count instructions of user code by callgrind, two runs for each server
    #[arg(long, hide_short_help = true)]
    instructions: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only the result, warnings and errors
    #[arg(long, short)]
    quiet: bool,
}

/// Writes the page about a directory again.
#[derive(Debug, Args)]
pub struct Report {
    /// The directory that `headway counters run` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The page to write [default: DIR/report.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Run {
    /// Measures, prints and writes the page.
    pub fn run(&self) -> Result<(), Failure> {
        let plan = self.plan()?;
        let interrupted = signals::caught(signals::ASKED)?;
        let (mut state, left) = State::open(Path::new(state::DIRECTORY)).map_err(|error| {
            let error = anyhow!(error);
            // Root meets other reasons, such as a study that is at work.
            match rustix::process::geteuid().is_root() {
                true => error,
                false => error.context("changing this machine's CPUs takes root"),
            }
        })?;
        if left {
            say("an earlier run had ended without restoring; what it had changed is restored");
        }
        state.watched_by(guard())?;
        let done = study::run(&plan, state, &interrupted, &mut |line| {
            if !self.quiet {
                say(line);
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
            false => Err(Failure::Work(anyhow!(
                "nothing could be measured; the reasons are above"
            ))),
        }
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let servers = match self.server.is_empty() {
            false => self.server.clone(),
            true => SERVERS
                .into_iter()
                .filter(|server| self.is_there(*server))
                .collect(),
        };
        for server in &servers {
            if let Err(reason) = available(*server) {
                return Err(Failure::Use(format!("--server {server}: {reason}")));
            }
        }
        let configurations = match self.config.is_empty() {
            false => self.config.clone(),
            true => Configuration::ALL.to_vec(),
        };
        let mut plan = Plan::new(servers, configurations, self.output.clone());
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
            Err(error) => Err(Failure::Use(error.to_string())),
        }
    }

    fn is_there(&self, server: Kind) -> bool {
        match available(server) {
            Ok(_) => true,
            Err(reason) => {
                say(&format!("{server} is left out: {reason}"));
                false
            }
        }
    }
}

impl Report {
    /// Reads and writes.
    pub fn run(&self) -> Result<(), Failure> {
        let outcome = Outcome::read(&self.directory)?;
        let outcome = outcome.ok_or_else(|| {
            anyhow!(
                "{}: no outcome of `headway counters run` is in it",
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
    crate::report::replaceable(file, headway_report::GENERATOR_META)?;
    let sheet = page::sheet(outcome, &compare::cells(outcome));
    Ok(crate::report::write(file, &headway_report::sheet(&sheet))?)
}

/// CPUs that a user has named, which must be there.
fn online(word: &str, named: &Option<Cpus>) -> Result<Cpus, Failure> {
    let named = named.clone().unwrap_or_default();
    let online = Topology::current().online();
    match named.iter().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => Err(Failure::Use(format!(
            "{word}: there is no CPU {cpu} online; there are {}",
            super::numbers(&online)
        ))),
        None => Ok(named),
    }
}

/// This program once more, which only waits for our end.
fn guard() -> Command {
    let mut command = Command::new(headway_lab::headway());
    command.arg("counters-guard").arg(state::DIRECTORY);
    command
}

fn failure(error: RunError, directory: &Path) -> Failure {
    match error {
        RunError::Plan(error) => Failure::Use(error.to_string()),
        RunError::OtherWork { .. } => Failure::Use(format!("-o {}: {error}", directory.display())),
        other => Failure::Work(other.into()),
    }
}
