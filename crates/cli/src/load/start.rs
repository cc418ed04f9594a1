//! Several clients share a load: when each of them begins. That is a time, or when all have met.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use clap::Args;
use headway_latency::run::{AgentInfo, ClockInfo};
use headway_load::cli_types::Time;
use headway_load::meeting::{Meeting, wall_clock};

use crate::Failure;

/// How long agents wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options about the begin.
#[derive(Debug, Args)]
pub(super) struct StartOptions {
    /// Begin at this time, in seconds since 1970, so that several machines begin together
    #[arg(long, value_name = "SECONDS", hide_short_help = true)]
    start_at: Option<f64>,
    /// Meet the other agents at this address of agent 0, and begin together
    ///
    /// Agent 0 listens there. All begin when all are there, and `run.json` has the offset of each clock, which `headway
    /// merge` uses. It needs --agent.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_parser = host_and_port,
        requires = "agent",
        conflicts_with = "start_at",
        hide_short_help = true
    )]
    meet: Option<String>,
    /// How long to wait for the other agents [default: 60s]
    #[arg(
        long,
        value_name = "TIME",
        requires = "meet",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    meet_timeout: Option<Time>,
}

/// A mistake in it would otherwise show only when the agents have waited for each other.
fn host_and_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err(format!("`{text}` is not HOST:PORT; example: host-0:7070")),
    }
}

impl StartOptions {
    /// Waits until it is time. Returns what is known of the clock.
    pub(super) fn wait(
        &self,
        agent: Option<AgentInfo>,
        interrupt: &AtomicBool,
    ) -> Result<Option<ClockInfo>, Failure> {
        if let Some(unix_s) = self.start_at {
            check(unix_s)?;
            wait_until(unix_s, interrupt)?;
        }
        let (Some(address), Some(agent)) = (&self.meet, agent) else {
            return Ok(None);
        };
        let patience = self.meet_timeout.map_or(PATIENCE, |Time(time)| time);
        let met = Meeting::new(address, agent, patience, interrupt).attend();
        let met = met.map_err(|error| Failure::Runtime(anyhow!("{error}")))?;
        wait_until(met.start_unix_ns as f64 / 1e9, interrupt)?;
        Ok(Some(met.clock))
    }
}

fn left_s(unix_s: f64) -> f64 {
    let now = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| unix_s - now.as_secs_f64())
}

fn check(unix_s: f64) -> Result<(), Failure> {
    let first_s = left_s(unix_s);
    if (0.0..=86_400.0).contains(&first_s) {
        return Ok(());
    }
    let text =
        format!("--start-at {unix_s}: it is within the next day; now it is in {first_s:.1} s");
    Err(Failure::Usage(text))
}

/// Waits until this time of the clock.
fn wait_until(unix_s: f64, interrupt: &AtomicBool) -> Result<(), Failure> {
    while left_s(unix_s) > 0.0 {
        if interrupt.load(Ordering::Relaxed) {
            return Err(anyhow!("interrupted before the start").into());
        }
        std::thread::sleep(Duration::from_secs_f64(left_s(unix_s).clamp(0.0, 0.1)));
    }
    Ok(())
}
