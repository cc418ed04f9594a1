//! How many loops a client has: as many as its user says, or as its load needs and CPUs are spare.

use super::{Demand, SessionError, Settings};
use crate::client::cpus;
use crate::engine::{Mode, Plan};

/// Requests per second that one loop starts on time: `bench/pacing` measures up to this rate. Poisson
/// arrivals of several loops differ from those of one, so a lower rate does not depend on the machine.
const RATE_PER_LOOP: f64 = 20_000.0;

/// A loop with fewer connections is seldom what limits a closed loop.
const CONNECTIONS_PER_LOOP: u32 = 8;

/// The number of loops, and why it was chosen, if it was not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Threads {
    pub number: u32,
    pub why: Option<String>,
}

impl Settings {
    /// The number of loops.
    ///
    /// # Errors
    /// A number was given, and there is too little for each thread to do.
    pub(super) fn choose_threads(&self, plan: &Plan) -> Result<Threads, SessionError> {
        if let Some(number) = self.threads {
            self.check_threads(number, plan)?;
            return Ok(Threads { number, why: None });
        }
        let needed = self.threads_needed(plan);
        let enough = "enough for this load".to_owned();
        // Not the look through all processes, when it cannot change the number.
        let (number, why) = match needed {
            ..=1 => (1, enough),
            _ => {
                let spare = match self.cpus.as_slice() {
                    [] => cpus::spare(&plan.targets),
                    given => cpus::SpareCpus {
                        number: given.len(),
                        why: "as many as CPUs in --cpu".to_owned(),
                    },
                };
                let spare_cpus = u32::try_from(spare.number).unwrap_or(u32::MAX);
                match needed <= spare_cpus {
                    true => (needed, enough),
                    false => (spare_cpus, spare.why),
                }
            }
        };
        Ok(Threads {
            number,
            why: Some(why),
        })
    }

    /// How many loops can share the load with use.
    fn threads_needed(&self, plan: &Plan) -> u32 {
        let most = match (&plan.mode, &self.demand) {
            (Mode::Closed { connections }, _) => connections.div_ceil(CONNECTIONS_PER_LOOP),
            (
                Mode::Open {
                    connections_max, ..
                },
                Demand::Open { schedule, .. },
            ) => {
                let rates = schedule.0.iter().map(|step| step.from.max(step.to));
                let peak_per_s = rates.fold(0.0, f64::max);
                ((peak_per_s / RATE_PER_LOOP).ceil() as u32).min(*connections_max)
            }
            (Mode::Open { .. }, Demand::Closed) => 1,
        };
        let requests = plan.stop.requests.unwrap_or(u64::MAX);
        most.min(u32::try_from(requests).unwrap_or(u32::MAX))
            .clamp(1, crate::cli_types::THREADS_MAX)
    }

    /// Every thread needs something to do.
    fn check_threads(&self, threads: u32, plan: &Plan) -> Result<(), SessionError> {
        let (Mode::Closed { connections }
        | Mode::Open {
            connections_max: connections,
            ..
        }) = plan.mode;
        let few = |number: u64, what: &str| {
            let text = format!("--threads {threads}: there are only {number} {what}");
            Err(SessionError::Use(text))
        };
        let cpus = self.cpus.len() as u64;
        match plan.stop.requests {
            _ if threads <= 1 => Ok(()),
            _ if connections < threads => few(connections.into(), "connections"),
            Some(requests) if requests < threads.into() => few(requests, "requests"),
            _ if cpus > 0 && cpus < threads.into() => few(cpus, "CPUs in --cpu"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::settings::tests::{open, settings};

    fn chosen(settings: &Settings) -> (u32, Option<String>) {
        let prepared = settings.prepare().expect("a plan");
        let load = prepared.description.load;
        assert_eq!(load.threads.unwrap_or(1), prepared.threads as u64);
        (prepared.threads as u32, load.threads_why)
    }

    #[test]
    fn one_thread_is_enough_for_a_small_load() {
        let enough = Some("enough for this load".to_owned());
        let mut few = settings(Demand::Closed);
        few.connections = Some(8);
        let mut one = settings(Demand::Closed);
        one.requests = Some(1);
        for small in [few, one, open("20000:1s")] {
            assert_eq!(chosen(&small), (1, enough.clone()));
        }
    }

    #[test]
    fn larger_load_has_the_cpus_that_were_given_for_it() {
        let mut closed = settings(Demand::Closed);
        closed.cpus = vec![0, 1, 2];
        let why = Some("as many as CPUs in --cpu".to_owned());
        assert_eq!(chosen(&closed), (3, why.clone()));
        let mut open = open("1000:1s,20000-50000:1s");
        open.cpus = vec![0, 1];
        assert_eq!(chosen(&open), (2, why));
        open.cpus = (0..9).collect();
        assert_eq!(chosen(&open).0, 3);
        open.threads = Some(1);
        assert_eq!(chosen(&open), (1, None));
    }

    #[test]
    fn larger_load_has_one_thread_when_the_server_may_use_all_cpus() {
        // The listener of this process.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut closed = settings(Demand::Closed);
        let address = listener.local_addr().expect("an address");
        closed.urls = vec![format!("http://{address}/").parse().expect("an address")];
        let (threads, why) = chosen(&closed);
        assert_eq!(threads, 1);
        assert_eq!(why.as_deref(), Some("the server may use all CPUs"));
    }
}
