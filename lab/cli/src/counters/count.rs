//! `headway-lab counters count`: of a program, of processes, of CPUs or of the whole machine.

use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use headway_counters::count::{Counts, KernelPerf, OpenError, Session, Space, Target};
use headway_counters::events::{Meaning, table as events};
use headway_counters::machine::Machine;
use headway_counters::metrics::{Served, figures, slots};
use headway_counters::smt::Topology;
use headway_counters::study::run::threads_of;
use serde_json::json;

use super::text::{counts_table, figures_table};
use super::{Cpus, cpu_list, print, print_json, seconds};
use crate::{Failure, signals};

const EXAMPLES: &str = "\
Examples:
  headway-lab counters count -- sort -o out file
  headway-lab counters count -p $(pidof nginx | tr ' ' ,) -d 10s --bytes 5e9
  headway-lab counters count -a -d 10s --space split --json
  headway-lab counters count -e instructions,l2-misses -C 0 -d 5s

The last column is the share of the time in which the event was counted. Below 100 % the count \
is an estimate, because counters were shared in turn.
Events outside the cores, or of a whole core, do not belong to a process: name CPUs for them.

Exit codes: 0 success, 1 failure (also of the program), 2 usage error.";

/// Count events of a program, of processes, of CPUs or of the whole machine.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Count {
    /// Count these processes, with all their threads and descendants
    #[arg(short, long, value_name = "PID,…", value_delimiter = ',', conflicts_with_all = ["cpus", "all", "command"])]
    pid: Vec<i32>,
    /// Count everything that runs on these CPUs
    #[arg(short = 'C', long, value_name = "LIST", value_parser = cpu_list, conflicts_with_all = ["all", "command"])]
    cpus: Option<Cpus>,
    /// Count everything that runs on this machine
    #[arg(short, long, conflicts_with = "command")]
    all: bool,
    /// Time to count; with COMMAND it is counted to its end [default: until Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = seconds)]
    duration: Option<f64>,
    /// Events to count, see `headway-lab counters list` [default: all that are available]
    #[arg(short, long, value_name = "MEANING,…", value_delimiter = ',')]
    event: Vec<String>,
    /// Code to count: of user space, of the kernel, or both
    #[arg(long, value_enum, default_value_t = CodeSpace::Both)]
    space: CodeSpace,
    /// Bytes served during the count, for figures per byte
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = amount)]
    bytes: f64,
    /// Requests answered during the count, for figures per request
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = amount)]
    requests: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CodeSpace {
    /// User space and kernel together
    Both,
    /// User space
    User,
    /// The kernel
    Kernel,
    /// User space and kernel separately; takes twice the counters
    Split,
}

impl CodeSpace {
    fn spaces(self) -> &'static [Space] {
        match self {
            CodeSpace::Both => &[Space::Both],
            CodeSpace::User => &[Space::User],
            CodeSpace::Kernel => &[Space::Kernel],
            CodeSpace::Split => &[Space::User, Space::Kernel],
        }
    }
}

impl Count {
    /// Counts and prints.
    pub fn run(&self) -> Result<(), Failure> {
        let machine = Machine::current();
        let meanings = self.meanings()?;
        let target = self.target()?;
        let session = Session::open(
            &KernelPerf,
            &machine,
            &meanings,
            &target,
            self.space.spaces(),
        );
        let session = session.map_err(|error| open_failure(error, &machine))?;
        let begun = Instant::now();
        let failed = match target {
            Target::Children => self.program()?,
            _ => {
                self.wait(&session)?;
                None
            }
        };
        let seconds = begun.elapsed().as_secs_f64();
        let counts = session.counts().context("reading counters")?;
        self.show(&machine, &counts, seconds)?;
        let nothing = counts.spaces.values().all(|found| found.is_empty());
        match failed {
            Some(why) => Err(Failure::Runtime(anyhow::anyhow!(why))),
            None if nothing => Err(Failure::Runtime(anyhow::anyhow!(
                "nothing of this could be counted; the reasons are above"
            ))),
            None => Ok(()),
        }
    }

    fn meanings(&self) -> Result<Vec<Meaning>, Failure> {
        if self.event.is_empty() {
            return Ok(events().meanings().collect());
        }
        let find = |word: &String| {
            let found = events().meanings().find(|meaning| meaning.name() == *word);
            found.ok_or_else(|| {
                Failure::Usage(format!(
                    "--event {word}: no such meaning; `headway-lab counters list` has all"
                ))
            })
        };
        self.event.iter().map(find).collect()
    }

    fn target(&self) -> Result<Target, Failure> {
        let topology = Topology::current();
        let on_cpus = |cpus: Vec<usize>| {
            let of_core = |core: &(i64, Vec<usize>)| -> Vec<usize> {
                core.1
                    .iter()
                    .copied()
                    .filter(|cpu| cpus.contains(cpu))
                    .collect()
            };
            let cores = topology
                .cores()
                .iter()
                .map(of_core)
                .filter(|core| !core.is_empty())
                .collect();
            Target::Cpus { cores, cpus }
        };
        let online = topology.online();
        match (&self.cpus, self.all, self.pid.is_empty(), self.command.is_empty()) {
            (Some(cpus), ..) => match cpus.iter().find(|cpu| !online.contains(cpu)) {
                Some(cpu) => Err(Failure::Usage(format!(
                    "--cpus: there is no CPU {cpu} online; there are {}",
                    super::numbers(&online)
                ))),
                None => Ok(on_cpus(cpus.clone())),
            },
            (None, true, ..) => Ok(on_cpus(online)),
            (None, false, false, _) => self.threads(),
            (None, false, true, false) => Ok(Target::Children),
            (None, false, true, true) => Err(Failure::Usage(
                "what is to be counted? Name a program after --, processes (-p), CPUs (-C) or all (-a)".into(),
            )),
        }
    }

    fn threads(&self) -> Result<Target, Failure> {
        let mut threads = Vec::new();
        for pid in &self.pid {
            let found = threads_of(*pid);
            if found.is_empty() {
                return Err(Failure::Runtime(anyhow::anyhow!(
                    "there is no process {pid}"
                )));
            }
            threads.extend(found);
            threads.extend(
                headway_lab::servers::descendants(*pid)
                    .into_iter()
                    .flat_map(threads_of),
            );
        }
        // A process may be named beside its ancestor.
        threads.sort_unstable();
        threads.dedup();
        Ok(Target::Threads(threads))
    }

    /// Runs the program to its end; why it failed, if it did. Its counters start with its own
    /// `exec`.
    fn program(&self) -> Result<Option<String>, Failure> {
        let name = self.command[0].display();
        let status = Command::new(&self.command[0])
            .args(&self.command[1..])
            .status();
        let status = status.with_context(|| format!("starting {name}"))?;
        Ok((!status.success()).then(|| format!("{name} ended with {status}")))
    }

    fn wait(&self, session: &Session<KernelPerf>) -> Result<(), Failure> {
        let interrupted = signals::caught(signals::STOP)?;
        let end = self
            .duration
            .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        session.start().context("starting counters")?;
        while !interrupted.load(Ordering::Relaxed) {
            let left = end.map_or(Duration::from_millis(50), |end| {
                end.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(session.stop().context("stopping counters")?)
    }

    fn show(&self, machine: &Machine, counts: &Counts, seconds: f64) -> Result<(), Failure> {
        let served = Served {
            bytes: self.bytes,
            requests: self.requests,
            seconds,
        };
        let width = machine.core.as_ref().and_then(|(_, core)| core.width);
        let (figures, slots) = (figures(counts, &served), slots(counts, width));
        if self.json {
            return print_json(&json!({
                "machine": machine.description(), "notices": machine.notices(), "served": served, "counts": counts,
                "figures": figures, "slots": slots,
            }));
        }
        let mut text = String::new();
        // Only of what was asked for.
        if self.event.is_empty() {
            machine
                .notices()
                .iter()
                .for_each(|notice| text += &format!("{notice}\n\n"));
        }
        text += &counts_table(counts, seconds);
        text += &figures_table(&figures, slots.as_ref());
        print(&text)
    }
}

/// Something that was served, in whatever unit.
fn amount(word: &str) -> Result<f64, String> {
    let value = word.parse::<f64>().ok();
    value
        .filter(|value| value.is_finite() && *value >= 0.0)
        .ok_or_else(|| "a number from 0 on is wanted, as in 5e9".into())
}

fn open_failure(error: OpenError, machine: &Machine) -> Failure {
    let advice = match error {
        OpenError::NotPermitted => format!("; {}", machine.limits.advice()),
        _ => String::new(),
    };
    Failure::Runtime(anyhow::anyhow!("counting: {error}{advice}"))
}
