//! `headway reload` and `headway upgrade`: send the signal to the main process of a server, and report what came of it.
//!
//! The main process writes the result into its ready file. A ready file may be stale or belong to another user, so the
//! process gets a signal only if it runs `serve` as the owner of the file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{Args, ValueHint};
use headway_cli_support::{Failure, output};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const RELOAD_EXAMPLES: &str = "\
Examples:
  headway reload                                 the only server of this machine
  headway reload 4711                            the server whose main process has this number
  headway reload --ready-file /run/headway.json  the server with this ready file

A server without --ready-file reports the result in its log only.

Exit codes: 0 success, 1 failure, 2 usage error.";

const UPGRADE_EXAMPLES: &str = "\
Examples:
  headway upgrade                                 the only server of this machine
  headway upgrade --ready-file /run/headway.json  the server with this ready file

Replace the program file first, by renaming a new one to its path. The server checks the new program with its own
configuration. The process number stays, and no connection is lost.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// The server gives new workers 60 s, and a new program 10 s for its checks.
const WAIT_MAX: Duration = Duration::from_secs(150);
const PAUSE: Duration = Duration::from_millis(20);

/// Have a server read its configuration again, and show the result
#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub struct Reload {
    #[command(flatten)]
    server: Server,
}

/// Replace the program of a running server by a new version
#[derive(Debug, Args)]
#[command(after_help = UPGRADE_EXAMPLES)]
pub struct Upgrade {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Server {
    /// Number of the main process [default: that of the only server]
    pid: Option<i32>,
    /// The file that the server was started with (serve --ready-file)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "pid")]
    ready_file: Option<PathBuf>,
}

pub fn reload(arguments: &Reload) -> Result<(), Failure> {
    let kind = Kind {
        name: "reload",
        signal: Signal::HUP,
        keys: ["reloads", "reload_failures", "reload_error"],
        done: "configuration reloaded",
    };
    kind.run(&arguments.server)
}

pub fn upgrade(arguments: &Upgrade) -> Result<(), Failure> {
    let kind = Kind {
        name: "upgrade",
        signal: Signal::USR2,
        keys: ["upgrades", "upgrade_failures", "upgrade_error"],
        done: "upgraded",
    };
    kind.run(&arguments.server)
}

/// What a server is to do.
struct Kind {
    name: &'static str,
    signal: Signal,
    /// The keys of the ready file: how often it succeeded and failed, and why the last one failed.
    keys: [&'static str; 3],
    done: &'static str,
}

/// A server that runs.
struct Target {
    pid: Pid,
    ready_file: Option<PathBuf>,
}

/// What a ready file says.
#[derive(Debug, PartialEq)]
struct Counts {
    done: u64,
    failed: u64,
    why: Option<String>,
    is_pending: bool,
}

impl Kind {
    fn run(&self, server: &Server) -> Result<(), Failure> {
        let target = Target::find(server)?;
        let before = target
            .ready_file
            .as_deref()
            .and_then(|file| self.counts(file));
        let number = target.pid.as_raw_nonzero();
        let start = started(target.pid);
        kill_process(target.pid, self.signal)
            .with_context(|| format!("signal process {number}"))?;
        let (Some(file), Some(before)) = (&target.ready_file, before) else {
            return output::print(&format!(
                "process {number} got the signal; it has no --ready-file, so its log has the result\n"
            ));
        };
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            std::thread::sleep(PAUSE);
            // The new program may not have written it yet, so a file that is missing is no error.
            let now = self.counts(file).filter(|now| !now.is_pending);
            match now {
                Some(now) if now.failed > before.failed && now.why.is_some() => {
                    let why = now.why.unwrap_or_default();
                    return Err(anyhow!(
                        "{} failed: {why}; the server goes on as before",
                        self.name
                    )
                    .into());
                }
                Some(now) if now.done > before.done => {
                    return output::print(&format!("{} (process {number})\n", self.done));
                }
                _ if started(target.pid) != start => {
                    return Err(
                        anyhow!("process {number} has ended during the {}", self.name).into(),
                    );
                }
                _ => {}
            }
        }
        Err(anyhow!(
            "no result after {} s; the log of process {number} may say more",
            WAIT_MAX.as_secs()
        )
        .into())
    }

    /// `None` if there is no such file, or if the server is too old to count.
    fn counts(&self, file: &Path) -> Option<Counts> {
        let ready: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let [done, failed, why] = self.keys;
        Some(Counts {
            done: ready[done].as_u64()?,
            failed: ready[failed].as_u64()?,
            why: ready[why].as_str().map(str::to_owned),
            is_pending: ready["pending"].as_bool()?,
        })
    }
}

impl Target {
    fn find(server: &Server) -> Result<Target, Failure> {
        if let Some(file) = &server.ready_file {
            return Target::of_file(file);
        }
        let pid = match server.pid {
            Some(number) => process(i64::from(number)).filter(|pid| is_server(*pid)),
            None => Some(only_server()?),
        };
        let Some(pid) = pid else {
            let number = server.pid.unwrap_or_default();
            return Err(Failure::Usage(format!(
                "process {number} is not the main process of a server"
            )));
        };
        Ok(Target {
            pid,
            ready_file: ready_file(pid),
        })
    }

    fn of_file(file: &Path) -> Result<Target, Failure> {
        let shown = file.display();
        let text = fs::read(file)
            .with_context(|| format!("read {shown}; name the --ready-file of a running server"))?;
        let owner = fs::metadata(file)
            .with_context(|| format!("{shown}"))?
            .uid();
        let ready: Value = serde_json::from_slice(&text).with_context(|| format!("{shown}"))?;
        let pid = ready["master_pid"].as_i64().and_then(process);
        let pid = pid.filter(|pid| is_server(*pid) && user(*pid) == Some(owner));
        let pid = pid.ok_or_else(|| anyhow!("{shown}: its server does not run any more"))?;
        Ok(Target {
            pid,
            ready_file: Some(file.to_path_buf()),
        })
    }
}

/// `None` if it cannot be the number of a process.
fn process(number: i64) -> Option<Pid> {
    let number = i32::try_from(number).ok().filter(|number| *number > 0);
    number.and_then(Pid::from_raw)
}

/// The words of a command line.
fn command_line(pid: Pid) -> Vec<String> {
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    let bytes = fs::read(path).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Whether this is the main process of a server. Children have other subcommands, such as `serve-worker`.
fn is_server(pid: Pid) -> bool {
    let words = command_line(pid);
    let file = words.first().and_then(|word| Path::new(word).file_name());
    let is_headway = file.is_some_and(|file| file.to_string_lossy().starts_with("headway"));
    is_headway && words.get(1).is_some_and(|word| word == "serve")
}

/// When a process started, in clock ticks. `None` if it has ended. One that executes another program has no command
/// line for a moment, or that of a shell, but this stays (`proc_pid_stat(5)`, field 22).
fn started(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything. The state, field 3, follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let started = fields.nth(18)?.parse().ok()?;
    (!has_ended).then_some(started)
}

/// The effective user of a process.
fn user(pid: Pid) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// The ready file of a server, from its command line.
fn ready_file(pid: Pid) -> Option<PathBuf> {
    let words = command_line(pid);
    let named = words.iter().enumerate().find_map(|(place, word)| {
        let value = word.strip_prefix("--ready-file")?;
        match value.strip_prefix('=') {
            Some(value) => Some(value),
            None if value.is_empty() => words.get(place + 1).map(String::as_str),
            None => None,
        }
    })?;
    let directory = fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero()));
    Some(directory.unwrap_or_default().join(named))
}

fn only_server() -> Result<Pid, Failure> {
    let entries = fs::read_dir("/proc").context("/proc")?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let servers: Vec<Pid> = numbers
        .filter_map(Pid::from_raw)
        .filter(|pid| is_server(*pid))
        .collect();
    match servers.as_slice() {
        [] => Err(anyhow!("no server runs on this machine").into()),
        [one] => Ok(*one),
        several => {
            let numbers: Vec<String> = several
                .iter()
                .map(|pid| pid.as_raw_nonzero().to_string())
                .collect();
            Err(Failure::Usage(format!(
                "several servers run; name the main process of one: {}",
                numbers.join(", ")
            )))
        }
    }
}
