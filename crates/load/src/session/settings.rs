//! What a user asked for, and how it becomes a plan for the engine and the first half of
//! `run.json`.
//!
//! Settings are checked here, before a directory is made or a connection opened. The defaults are
//! those that users of other load generators expect: 64 connections in a closed loop, kept alive
//! without a limit, 10 s after 1 s of warm-up. The timeout of an open loop is 3 s, as in the
//! overload experiments of Brecht and Ostrowski (section 5). In a closed loop the response time is
//! the number of connections over the throughput, whatever the server does, so its timeout is
//! longer.

mod agents;
mod threads;

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Prepared, SessionError};
use super::{redaction, work};
use crate::cli_types::{Endpoint, RateSchedule, Url, without_zone};
use crate::client::limits::ClientLimits;
use crate::client::{environment, resolve};
use crate::cookies;
use crate::engine::{
    Address, Arrivals, Method, Mode, Plan, Protocol, ProxyVersion, Schedule, Segment, Sources,
    Stop, Target,
};
use crate::scenario::Scenario;
use crate::tls::TlsOptions;
use headway_latency::RunDescription;
use headway_latency::run::description::{self, AgentInfo, Environment, LoadInfo, ScheduleStep};

/// Connections of a closed loop.
pub(super) const CONNECTIONS_CLOSED: u32 = 64;
/// Connections that an open loop may have at once: enough for 5,400 new ones per second that all
/// run into the timeout.
pub(super) const CONNECTIONS_OPEN: u32 = 16_384;
/// Requests of an open loop that may wait for a connection, whatever rate and timeout: 64 MB.
const WAITING_MAX: u32 = 4_000_000;
/// Timeout of an open loop.
pub(super) const TIMEOUT_OPEN: Duration = Duration::from_secs(3);
/// Timeout of a closed loop.
pub(super) const TIMEOUT_CLOSED: Duration = Duration::from_secs(30);
/// Length of a run without a length.
pub(super) const DURATION: Duration = Duration::from_secs(10);
/// Warm-up of a run with a length in time.
pub(super) const WARMUP: Duration = Duration::from_secs(1);

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkSource {
    /// The paths of the addresses.
    Addresses,
    /// The lines of a file, in turn.
    Paths(PathBuf),
    /// A set of files with a manifest, by its popularity.
    FileSet(PathBuf),
    /// The steps of a scenario file.
    Scenario(PathBuf),
}

/// When to ask.
#[derive(Clone, Debug, PartialEq)]
pub enum Demand {
    /// Each connection asks again when it has been answered.
    Closed,
    /// By a schedule of requests per second. A single rate is one step of any length.
    Open {
        /// Steps and ramps.
        schedule: RateSchedule,
        /// How arrivals lie in it.
        arrivals: Arrivals,
    },
}

/// A run as a user asks for it; `None` is *the default*.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The servers, one or more.
    pub urls: Vec<Url>,
    /// What to request.
    pub work: WorkSource,
    /// The method of every request.
    pub method: Method,
    /// Headers added to every request, name and value.
    pub headers: Vec<(String, String)>,
    /// The body of every request; empty: none.
    pub body: Vec<u8>,
    /// The `Host` header, in place of the URL's host.
    pub host: Option<String>,
    /// Connect to this Unix socket in place of the URLs' hosts.
    pub unix_socket: Option<PathBuf>,
    /// How `https` URLs are asked.
    pub tls: TlsOptions,
    /// The version of HTTP.
    pub protocol: Protocol,
    /// Begin connections with a header of the PROXY protocol.
    pub proxy_version: Option<ProxyVersion>,
    /// Request only this many directories of a SPECweb set, with the popularity of a set of that
    /// size.
    pub directories: Option<u32>,
    /// When to ask.
    pub demand: Demand,
    /// Connections of a closed loop, or the most of an open one.
    pub connections: Option<u32>,
    /// Requests on a connection; `None` is as many as the server allows.
    pub requests_per_connection: Option<u32>,
    /// How long a request may take; zero is for ever.
    pub timeout: Option<Duration>,
    /// Pause between a response and the next request of its connection.
    pub think: Duration,
    /// How long a client waits after its connection is established.
    pub first_pause: Duration,
    /// Bits per second that a connection may receive.
    pub bandwidth_bits_per_s: Option<u64>,
    /// Excluded from the figures.
    pub warmup: Option<Duration>,
    /// Asked for after the measured part, and excluded as well.
    pub cooldown: Duration,
    /// Length, without the warm-up.
    pub duration: Option<Duration>,
    /// Number of requests, without those of the warm-up.
    pub requests: Option<u64>,
    /// Seed of the request stream and the arrivals.
    pub seed: u64,
    /// Local addresses to ask from; empty is the kernel's choice.
    pub sources: Vec<IpAddr>,
    /// Compare the content of responses with its checksum.
    pub verify: bool,
    /// Whether each client keeps the cookies of responses and sends them back.
    pub cookies: bool,
    /// Which part of the load this client has; `None`: all of it.
    pub agent: Option<AgentInfo>,
    /// The name in tables and reports.
    pub label: Option<String>,
    /// CPUs for the client's loops; empty is any.
    pub cpus: Vec<usize>,
    /// Loops of the client, each on a thread of its own, at least 1; `None`: as many as the load needs,
    /// on CPUs that the server does not use.
    pub threads: Option<u32>,
    /// The command line, for `run.json`.
    pub command: Vec<String>,
}

impl Settings {
    /// Checks everything and looks the names up.
    ///
    /// # Errors
    /// See [`SessionError`]; [`SessionError::is_use`] tells wrong words from a machine that cannot.
    pub fn prepare(&self) -> Result<Prepared, SessionError> {
        self.agree()?;
        let scenario = work::scenario(self)?;
        let mut part = match self.agent {
            None => self.clone(),
            Some(agent) => agents::part(self, agent)?,
        };
        if let Some(flows) = scenario.as_ref().and_then(|one| one.flows_max(self.agent)) {
            part.limit_flows(flows)?;
        }
        part.prepare_part(scenario)
    }

    /// Ends a run after the last row of a CSV file.
    fn limit_flows(&mut self, flows: u64) -> Result<(), SessionError> {
        let wrong = |text: &str| Err(SessionError::Use(text.to_owned()));
        if flows == 0 {
            return wrong("the CSV file of the scenario has fewer rows than there are agents");
        }
        if self.warmup.is_some_and(|warmup| !warmup.is_zero()) {
            return wrong(
                "csv-end = \"stop\" counts all rows, so there is no warm-up; leave out --warmup",
            );
        }
        self.warmup = Some(Duration::ZERO);
        self.requests = Some(self.requests.map_or(flows, |given| given.min(flows)));
        Ok(())
    }

    fn prepare_part(&self, scenario: Option<Arc<Scenario>>) -> Result<Prepared, SessionError> {
        let limits = ClientLimits::raise();
        let targets = self.targets()?;
        let work = work::collect(self, scenario.as_ref())?;
        let mut plan = self.plan(&limits, targets, work.work)?;
        plan.conversation = work.conversation;
        if self.cookies {
            cookies::keep(&mut plan);
        }
        plan.check()?;
        let threads = self.choose_threads(&plan)?;
        self.check_limits(&plan, &limits)?;
        self.check_sources()?;
        let description = RunDescription {
            command: redaction::without_secrets(&self.command),
            label: self.label.clone(),
            agent: self.agent,
            environment: self.environment(),
            targets: self.urls.iter().map(ToString::to_string).collect(),
            fileset: work.fileset,
            load: LoadInfo {
                scenario: scenario.as_ref().map(|one| work::describe(one)),
                threads: (threads.number > 1).then(|| threads.number.into()),
                threads_why: threads.why,
                ..self.describe(&plan)
            },
            ..RunDescription::default()
        };
        Ok(Prepared {
            plan,
            description,
            limits,
            cpus: self.cpus.clone(),
            threads: threads.number as usize,
            scenario,
            fileset: matches!(self.work, WorkSource::FileSet(_)),
        })
    }

    /// The description of this machine; the CPUs are those that the loop will be pinned to, if any.
    fn environment(&self) -> Environment {
        let mut environment = environment::collect();
        if !self.cpus.is_empty() {
            environment.client_affinity = environment::as_list(&self.cpus);
        }
        environment
    }

    /// Checks that the settings do not contradict each other.
    fn agree(&self) -> Result<(), SessionError> {
        let wrong = |text: &str| Err(SessionError::Use(text.to_owned()));
        if self.urls.is_empty() {
            return wrong(
                "no server; write http://host:port/path, https:// or unix:/path/of/socket",
            );
        }
        if self.verify && !matches!(self.work, WorkSource::FileSet(_)) {
            return wrong("--verify compares bodies with a file set; name it with --fileset");
        }
        if let Some((name, _)) = self
            .headers
            .iter()
            .find(|(name, _)| self.is_given_twice(name))
        {
            return Err(SessionError::Use(format!(
                "{name} is given twice; give it once"
            )));
        }
        if self.verify && self.cookies {
            return wrong(
                "--verify does not go with --cookies, where each client has responses of its own",
            );
        }
        if self.verify && self.method == Method::Head {
            return wrong("--verify compares bodies, and responses to HEAD have none");
        }
        if self.requests == Some(0) {
            return wrong("--requests 0 sends nothing; send 1 or more");
        }
        if self.connections == Some(0) {
            return wrong("--connections 0 sends nothing; open 1 or more");
        }
        if self.duration == Some(Duration::ZERO) {
            return wrong("--duration 0 measures nothing; measure for some seconds");
        }
        if !self.cooldown.is_zero() && self.requests.is_some() {
            return wrong(
                "--cooldown follows a measured time; use it with --duration, not with --requests",
            );
        }
        let last = match &self.demand {
            Demand::Open { schedule, .. } => schedule.0.last(),
            Demand::Closed => None,
        };
        if !self.cooldown.is_zero() && last.is_some_and(|last| last.to == 0.0) {
            return wrong("--cooldown continues at the last rate of the schedule, which is 0");
        }
        if self.timeout().is_some_and(|most| self.first_pause >= most) {
            return wrong(
                "--first-pause counts towards --timeout, so every request would time out; use a longer timeout",
            );
        }
        if matches!(self.demand, Demand::Open { .. }) && !self.think.is_zero() {
            return wrong(
                "--think is for a closed loop; an open loop starts requests by its schedule",
            );
        }
        Ok(())
    }

    /// `--host` and `-H 'Host: …'` are the same header.
    fn is_given_twice(&self, name: &str) -> bool {
        self.host.is_some() && name.eq_ignore_ascii_case("host")
    }

    /// One target for each endpoint, in the order of their first mention.
    fn targets(&self) -> Result<Vec<Target>, SessionError> {
        let mut endpoints: Vec<&Endpoint> = Vec::new();
        for url in &self.urls {
            if !endpoints.contains(&&url.endpoint) {
                endpoints.push(&url.endpoint);
            }
        }
        endpoints
            .into_iter()
            .map(|endpoint| self.target(endpoint))
            .collect()
    }

    fn target(&self, endpoint: &Endpoint) -> Result<Target, SessionError> {
        let address = match (&self.unix_socket, endpoint) {
            (Some(path), _) | (None, Endpoint::Unix(path)) => Address::Unix(path.clone()),
            (None, Endpoint::Inet { host, port, .. }) => Address::Inet(resolve(host, *port)?),
        };
        let sources = match &address {
            Address::Inet(_) if !self.sources.is_empty() => Sources::List(self.sources.clone()),
            Address::Inet(to) if to.is_ipv4() && to.ip().is_loopback() => Sources::Loopback,
            _ => Sources::Any,
        };
        let host = self.host.clone();
        let mut target = Target::new(address, host.unwrap_or_else(|| endpoint.host_header()));
        target.sources = sources;
        if let Endpoint::Inet {
            host, tls: true, ..
        } = endpoint
        {
            let options = TlsOptions {
                http2: matches!(self.protocol, Protocol::Http2 { .. }),
                ..self.tls.clone()
            };
            target.tls = Some(options.client(without_zone(host))?);
        }
        Ok(target)
    }

    fn plan(
        &self,
        limits: &ClientLimits,
        targets: Vec<Target>,
        work: crate::engine::Work,
    ) -> Result<Plan, SessionError> {
        let warmup = self.warmup();
        // A default gives way to the limit of descriptors; a number that was asked for does not.
        let room = u32::try_from(limits.connections_max())
            .unwrap_or(u32::MAX)
            .max(1);
        let mode = match &self.demand {
            Demand::Closed => Mode::Closed {
                connections: self.connections.unwrap_or(CONNECTIONS_CLOSED.min(room)),
            },
            Demand::Open { schedule, arrivals } => {
                let connections_max = self.connections.unwrap_or(CONNECTIONS_OPEN.min(room));
                Mode::Open {
                    schedule: segments(schedule, warmup),
                    arrivals: *arrivals,
                    connections_max,
                    waiting_max: self.waiting_max(schedule).max(connections_max),
                }
            }
        };
        let [first, others @ ..] = targets.as_slice() else {
            return Err(SessionError::Use("no server".to_owned()));
        };
        // The engine's constructor knows the plainest value of what is not set here.
        let mut plan = Plan::closed(first.clone(), work, 1);
        plan.targets.extend_from_slice(others);
        plan.mode = mode;
        plan.requests_per_connection = self.requests_per_connection;
        plan.method = self.method;
        plan.headers = self.headers.clone();
        plan.body = self.body.clone();
        plan.timeout = self.timeout();
        plan.think = self.think;
        plan.first_pause = self.first_pause;
        plan.bandwidth_bits_per_s = self.bandwidth_bits_per_s;
        plan.warmup = warmup;
        plan.cooldown = self.cooldown;
        plan.stop = self.stop();
        plan.seed = self.seed;
        plan.verify = self.verify;
        plan.protocol = self.protocol;
        plan.proxy_version = self.proxy_version;
        Ok(plan)
    }

    /// Room for all requests that are due until the first of them times out. They wait from their
    /// intended start on; a request without room would be missing from the percentiles, in just the
    /// moments in which the server stalls.
    fn waiting_max(&self, schedule: &RateSchedule) -> u32 {
        let rates = schedule.0.iter().map(|step| step.from.max(step.to));
        let peak_per_s = rates.fold(0.0, f64::max);
        let length = self.timeout().unwrap_or_else(|| self.length());
        // Poisson arrivals come in bursts.
        let due = peak_per_s * length.as_secs_f64() * 1.5 + 1_000.0;
        due.min(f64::from(WAITING_MAX)) as u32
    }

    fn timeout(&self) -> Option<Duration> {
        let chosen = self.timeout.unwrap_or(match self.demand {
            Demand::Closed => TIMEOUT_CLOSED,
            Demand::Open { .. } => TIMEOUT_OPEN,
        });
        (!chosen.is_zero()).then_some(chosen)
    }

    /// How long a run takes that is ended by time: warm-up, measured part and cool-down.
    pub(crate) fn length(&self) -> Duration {
        self.warmup() + self.stop().duration.unwrap_or(DURATION) + self.cooldown
    }

    /// A run of a number of requests has no warm-up unless it was asked for: its end is near.
    fn warmup(&self) -> Duration {
        let counted = self.requests.is_some() && self.duration.is_none();
        let default = if counted { Duration::ZERO } else { WARMUP };
        self.warmup.unwrap_or(default)
    }

    fn stop(&self) -> Stop {
        let scheduled = match &self.demand {
            Demand::Open { schedule, .. } if !is_single_rate(schedule) => Some(schedule.length()),
            _ => None,
        };
        let default = self.requests.is_none().then_some(DURATION);
        Stop {
            duration: self.duration.or(scheduled).or(default),
            requests: self.requests,
        }
    }

    fn check_limits(&self, plan: &Plan, limits: &ClientLimits) -> Result<(), SessionError> {
        let connections = match plan.mode {
            Mode::Closed { connections } => connections,
            Mode::Open {
                connections_max, ..
            } => connections_max,
        };
        // The descriptors are shared; the ports are those towards one of the targets.
        limits.check(connections.into(), 0)?;
        let explicit = matches!(plan.mode, Mode::Closed { .. }) || self.connections.is_some();
        let inet = plan
            .targets
            .iter()
            .filter(|one| matches!(one.address, Address::Inet(_)));
        let share = u64::from(connections).div_ceil(plan.targets.len() as u64);
        for target in inet.filter(|_| explicit) {
            let sources = match &target.sources {
                Sources::Any => 1,
                Sources::List(list) => list.len() as u64,
                Sources::Loopback => continue,
            };
            limits.check(share, sources)?;
        }
        Ok(())
    }

    /// Every connection would fail to bind, one row each, and the run would look like one of an
    /// unreachable server.
    fn check_sources(&self) -> Result<(), SessionError> {
        for &address in &self.sources {
            // A datagram socket takes none of the ports that the run needs.
            if let Err(source) = UdpSocket::bind((address, 0)) {
                return Err(SessionError::Source { address, source });
            }
        }
        Ok(())
    }

    fn describe(&self, plan: &Plan) -> LoadInfo {
        let mut load = LoadInfo {
            method: (plan.method != Method::Get).then(|| plan.method.name().to_owned()),
            headers: plan.headers.iter().map(redaction::header).collect(),
            body_bytes: plan.body.len() as u64,
            protocol: match plan.protocol {
                Protocol::Http1 => None,
                Protocol::Http10 => Some("http/1.0".to_owned()),
                Protocol::Http2 { .. } => Some("h2".to_owned()),
            },
            streams: match plan.protocol {
                Protocol::Http1 | Protocol::Http10 => None,
                Protocol::Http2 { streams } => Some(streams.into()),
            },
            requests_per_connection: plan.requests_per_connection.map(Into::into),
            timeout_ms: plan.timeout.map(|timeout| timeout.as_secs_f64() * 1e3),
            think_ms: plan.think.as_secs_f64() * 1e3,
            first_pause_ms: plan.first_pause.as_secs_f64() * 1e3,
            bandwidth_bits_per_s: plan.bandwidth_bits_per_s,
            warmup_s: plan.warmup.as_secs_f64(),
            cooldown_s: plan.cooldown.as_secs_f64(),
            duration_s: plan.stop.duration.map(|length| length.as_secs_f64()),
            requests: plan.stop.requests,
            seed: plan.seed,
            verify: plan.verify,
            cookies: self.cookies,
            ..LoadInfo::default()
        };
        match (&plan.mode, &self.demand) {
            (
                Mode::Open {
                    connections_max, ..
                },
                Demand::Open { schedule, arrivals },
            ) => {
                load.mode = description::Mode::Open;
                load.connections = Some((*connections_max).into());
                load.arrivals = Some(match arrivals {
                    Arrivals::Poisson => description::Arrivals::Poisson,
                    Arrivals::Constant => description::Arrivals::Constant,
                });
                load.rate_rps = Some(schedule.requests() / schedule.length().as_secs_f64());
                load.schedule = schedule.0.iter().map(step).collect();
            }
            (Mode::Closed { connections }, _) => load.connections = Some((*connections).into()),
            (Mode::Open { .. }, Demand::Closed) => {}
        }
        load
    }
}

fn step(step: &crate::cli_types::RateStep) -> ScheduleStep {
    ScheduleStep {
        duration_s: step.length.as_secs_f64(),
        from_rps: step.from,
        to_rps: step.to,
    }
}

/// A single rate lasts as long as the run does.
fn is_single_rate(schedule: &RateSchedule) -> bool {
    matches!(schedule.0.as_slice(), [only] if only.from == only.to)
}

/// The engine's schedule: the warm-up at the first rate before it, so that the figures begin with
/// the schedule.
fn segments(schedule: &RateSchedule, warmup: Duration) -> Schedule {
    let segment = |from_per_s, to_per_s, length| Segment {
        from_per_s,
        to_per_s,
        length,
    };
    let mut segments = Vec::with_capacity(schedule.0.len() + 2);
    if let Some(first) = schedule.0.first().filter(|_| !warmup.is_zero()) {
        segments.push(segment(first.from, first.from, warmup));
    }
    segments.extend(
        schedule
            .0
            .iter()
            .map(|one| segment(one.from, one.to, one.length)),
    );
    // The engine continues at the last rate, which may not be 0; the run ends before.
    if schedule.0.last().is_some_and(|last| last.to == 0.0) {
        segments.push(segment(1.0, 1.0, Duration::ZERO));
    }
    Schedule { segments }
}

#[cfg(test)]
mod tests;
