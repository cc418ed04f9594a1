//! The options of `headway explain`.

use clap::Args;
use headway_explain::{Condition, Target};
use headway_load::cli_types::Time;
use std::ffi::OsString;
use std::time::Duration;

use super::outputs::Outputs;
use crate::Failure;

const MORE: &str = "Examples: headway explain --help";

const EXAMPLES: &str = "\
Examples:
  headway explain -p nginx                         all processes named nginx, for 30 seconds
  headway explain --port 443 --duration 10         whatever listens on TCP port 443
  headway explain -p 4711 --json | jq .causes      a process and its children
  headway explain -p nginx --fail-if 'blocked_share(p99) > 0.2'
                                                   fail if sleeping threads took a fifth of the p99
  headway explain --cgroup nginx.service --paths   a unit or container, with paths and statuses
  headway explain -p nginx --html why.html --folded why.folded
  headway explain --duration 20 -- node server.js  a server that is started for this

A request begins when its first bytes arrive at the server's socket and ends with the last bytes of
its response. So the time in which no thread read it is in it, which an access log does not show.
The server is not changed and not stopped. Contents of requests are not read, but for method, path
and status with --paths.

Needs Linux 6.3 with BTF, and root or CAP_BPF, CAP_PERFMON and the right to read /proc of the server
(CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH).

Exit codes: 0 success, 1 failure, 2 usage error, 3 a condition of --fail-if is true.";

const USAGE: &str = "headway explain [OPTIONS] -p NAME|PID
       headway explain [OPTIONS] --port PORT
       headway explain [OPTIONS] --cgroup GROUP
       headway explain [OPTIONS] -- COMMAND…";

/// Find out why the requests of a running server wait
#[derive(Debug, Args)]
#[command(after_help = MORE, after_long_help = EXAMPLES, override_usage = USAGE)]
pub struct Arguments {
    /// The server: the name of its program, or a process id
    #[arg(short = 'p', long = "pid", value_name = "NAME|PID", required_unless_present_any = ["port", "cgroup", "command"], conflicts_with_all = ["port", "cgroup", "command"])]
    target: Option<String>,
    /// The server: the TCP port on which it listens
    #[arg(long, value_name = "PORT", conflicts_with_all = ["cgroup", "command"])]
    port: Option<u16>,
    /// The server: a control group, by its path, the name of a unit, or a container's id
    #[arg(long, value_name = "GROUP", conflicts_with = "command")]
    cgroup: Option<String>,
    /// How long to observe
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = length)]
    pub duration: Duration,
    /// Show requests by method, path and status; for HTTP/1 without TLS
    ///
    /// The first lines of each request and response are copied from the server's memory. Queries are left out.
    #[arg(long)]
    pub paths: bool,
    /// Observe every connection, whatever the rate
    ///
    /// Without it, only some are observed from about 5,000 requests per second on. This costs the server less.
    #[arg(long)]
    pub every_request: bool,
    /// Exit with 3 if a condition is true, such as 'blocked_share(p99) > 0.2' or 'p99 > 50ms'
    ///
    /// Shares are of the time of requests: blocked_share, queue_share, service_share and
    /// transfer_share, each of p50, p95, p99 or all. Times are p50, p95, p99, mean and max. May be
    /// repeated. A server without requests meets every condition.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,
    /// A server to start, and its arguments, after `--`; it is ended with SIGTERM
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub outputs: Outputs,
}

impl Arguments {
    /// Which running server.
    pub fn target(&self) -> Result<Target, Failure> {
        if let Some(port) = self.port {
            return Ok(Target::Port(port));
        }
        if let Some(group) = &self.cgroup {
            return Ok(Target::Group(group.clone()));
        }
        let text = self.target.as_deref().unwrap_or_default().trim();
        match text.parse() {
            _ if text.is_empty() => Err(Failure::Usage(
                "-p needs a process id or the name of a program; none was given (is the server running?)".to_owned(),
            )),
            Ok(pid) => Ok(Target::Pid(pid)),
            Err(_) => Ok(Target::Name(text.to_owned())),
        }
    }
}

fn length(text: &str) -> Result<Duration, String> {
    match text.parse()? {
        Time(Duration::ZERO) => Err("an observation is longer than 0".into()),
        Time(time) => Ok(time),
    }
}
