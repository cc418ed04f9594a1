//! The capacity without a closed loop: open loops search for the knee.
//!
//! A closed loop waits for a slow server and so never overruns it, and its throughput depends on the number of
//! its connections. Users do not wait. The knee is the highest rate of independent arrivals that the server answers in
//! time ([`crate::knee`]).

use std::fmt;
use std::time::Duration;

use headway_latency::RunDescription;
use headway_latency::format::{number, time_us};
use headway_latency::run::description::ClientBound;

use super::{Listener, ProfileError, RunningProfile, Wanted, client};
use crate::knee::{Search, Step, is_good};

/// Which knee is looked for, and from where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knee {
    /// The mean response time is within this.
    pub mean: Duration,
    /// The first rate.
    pub start_rps: f64,
}

impl fmt::Display for Knee {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = time_us(self.mean.as_secs_f64() * 1e6);
        write!(out, "with a mean within {mean}, from {}/s", self.start_rps)
    }
}

impl Knee {
    /// Whether a run at a rate was answered in time.
    fn is_met(&self, run: &RunDescription, rate_rps: f64) -> bool {
        let summary = run.summary.clone().unwrap_or_default();
        let mean_ms = summary.mean_us.map(|us| us / 1e3);
        let limit_ms = self.mean.as_secs_f64() * 1e3;
        is_good(
            summary.rate_rps,
            rate_rps,
            summary.duration_s,
            mean_ms,
            limit_ms,
        )
    }
}

impl RunningProfile<'_> {
    /// The knee. If the client was the bottleneck above it, the knee is its own. Probes from before an interruption
    /// count.
    pub(super) fn find_knee(
        &mut self,
        knee: Knee,
        listener: &mut dyn Listener,
    ) -> Result<(f64, Option<ClientBound>), ProfileError> {
        loop {
            let tried = self.indices(|point| point.of_knee && point.done);
            let mut search = Search::from_rate(knee.start_rps);
            let mut above = Vec::new();
            for (&index, run) in tried.iter().zip(self.descriptions(&tried)?) {
                let rate_rps = self.points()[index].rate_rps;
                let is_met = knee.is_met(&run, rate_rps);
                search.take(rate_rps, is_met);
                if !is_met {
                    // Each is lower than those before.
                    above = vec![run];
                }
            }
            let found = match search.step() {
                Step::Probe(rate_rps) => {
                    self.search_at((rate_rps, tried.len() + 1), Wanted::Knee, listener)?;
                    continue;
                }
                Step::Found(rate_rps) => rate_rps,
                Step::AtLeast(rate_rps) => {
                    let most = number(rate_rps);
                    listener.remarks(&format!(
                        "every rate up to {most}/s was answered in time, so the knee may be higher"
                    ));
                    rate_rps
                }
                Step::Below(rate_rps) => {
                    return Err(ProfileError::NoKnee {
                        lowest_rps: number(rate_rps),
                        limit: time_us(knee.mean.as_secs_f64() * 1e6),
                    });
                }
            };
            return self.bound_of_knee(found, &above);
        }
    }

    fn bound_of_knee(
        &self,
        knee_rps: f64,
        above: &[RunDescription],
    ) -> Result<(f64, Option<ClientBound>), ProfileError> {
        let bound = client::client_bound(above, &self.settings.client_limit);
        let bound = bound.map(|bound| ClientBound {
            closed_rps: bound.closed_rps.max(knee_rps),
            valid_rps: Some(knee_rps),
            ..bound
        });
        match &bound {
            Some(bound) if self.settings.strict => {
                let why = client::limit_text(bound, true);
                let what = format!("the client was the bottleneck ({why})");
                Err(ProfileError::ClientBound(what))
            }
            _ => Ok((knee_rps, bound)),
        }
    }
}
