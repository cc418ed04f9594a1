//! What is measured: servers, configurations, and the work they are given.
//!
//! The defaults are the dissertation's (section 4.2.4): a set of 500 MB that stays in memory, 1024
//! connections that ask again as soon as they are answered, no log, a worker for each hardware
//! context.

use std::path::PathBuf;

use headway_lab::servers::{Family, Kind, ServerSpec};
use serde::{Deserialize, Serialize};

use crate::smt::Configuration;
use crate::smt::configuration::Choice;

/// The servers of the study, if none is named: ours and today's, with Apache as processes and as
/// threads.
pub const SERVERS: [Kind; 6] = [
    Kind::Headway,
    Kind::Nginx,
    Kind::ApachePrefork,
    Kind::ApacheWorker,
    Kind::Lighttpd,
    Kind::H2o,
];

/// The work of all measurements; those of another are not put beside them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Bytes of the set of files.
    pub set_bytes: u64,
    /// `specweb96`, where all directories are alike, or `specweb99`.
    pub profile: String,
    /// Connections that ask at the same time.
    pub connections: usize,
    /// Requests on a connection before it is closed; `None` for no end.
    pub requests_per_connection: Option<u64>,
    /// Length of the warm-up.
    pub warmup_s: f64,
    /// For which it counts.
    pub seconds: f64,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload {
            set_bytes: 500_000_000,
            profile: "specweb96".into(),
            connections: 1024,
            requests_per_connection: None,
            warmup_s: 5.0,
            seconds: 20.0,
        }
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyPlan {
    /// The servers, in the order in which each configuration measures them.
    pub servers: Vec<Kind>,
    /// The configurations, in order.
    pub configurations: Vec<Configuration>,
    /// Measurements of each.
    pub repeats: u32,
    /// The workload of all measurements.
    pub workload: Workload,
    /// CPUs that the user has chosen.
    pub choice: Choice,
    /// User and kernel are counted apart, which takes twice the counters.
    pub split: bool,
    /// How many slow clients each server satisfies is found, too.
    pub scores: bool,
    /// The share of each of its CPUs that a server has while its score is sought; `None`: all
    /// of them.
    pub score_share: Option<f64>,
    /// Instructions of user code are counted by callgrind, too.
    pub instructions: bool,
    /// Where everything is kept: the outcome, and the run directory of each measurement.
    pub directory: PathBuf,
}

/// A plan that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The plan names no server.
    #[error("no server is named")]
    NoServer,
    /// Twice the same.
    #[error("{0} is named twice")]
    Twice(String),
    /// A number that measures nothing.
    #[error("{0}")]
    Number(&'static str),
    /// A share of a CPU that cannot be kept.
    #[error("{0}")]
    Share(String),
}

impl StudyPlan {
    /// A plan with the dissertation's work for servers and configurations.
    pub fn new(
        servers: Vec<Kind>,
        configurations: Vec<Configuration>,
        directory: PathBuf,
    ) -> StudyPlan {
        StudyPlan {
            servers,
            configurations,
            repeats: 1,
            workload: Workload::default(),
            choice: Choice::default(),
            split: false,
            scores: false,
            score_share: None,
            instructions: false,
            directory,
        }
    }

    /// Whether the plan can be carried out as far as its words go.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        if self.servers.is_empty() || self.configurations.is_empty() {
            return Err(PlanError::NoServer);
        }
        for (index, server) in self.servers.iter().enumerate() {
            if self.servers[..index].contains(server) {
                return Err(PlanError::Twice(server.to_string()));
            }
        }
        for (index, configuration) in self.configurations.iter().enumerate() {
            if self.configurations[..index].contains(configuration) {
                return Err(PlanError::Twice(configuration.to_string()));
            }
        }
        let work = &self.workload;
        let checks = [
            (work.connections >= 1, "at least one connection has to ask"),
            (work.seconds >= 1.0, "less than a second is no measurement"),
            (work.warmup_s >= 0.0, "a warm-up cannot be negative"),
            (
                work.set_bytes >= 5_000_000,
                "a set of less than 5 MB has not one whole directory",
            ),
            (
                self.repeats >= 1,
                "at least one measurement of each has to be made",
            ),
        ];
        if let Some((_, why)) = checks.into_iter().find(|(fine, _)| !fine) {
            return Err(PlanError::Number(why));
        }
        match self.score_share.map(headway_lab::cpu::check) {
            Some(Err(error)) => Err(PlanError::Share(error.to_string())),
            _ => Ok(()),
        }
    }
}

/// A server's size in a configuration: a loop for each hardware context, and a process or thread
/// for each connection where a server needs one.
pub(super) fn sized(spec: &mut ServerSpec, contexts: usize, connections: usize) {
    spec.sizes.workers = contexts;
    spec.sizes.clients = match spec.kind.family() {
        Family::Apache { .. } | Family::Civetweb => connections,
        _ => spec.sizes.clients,
    };
    spec.sizes.connections = spec.sizes.connections.max(connections + 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> StudyPlan {
        StudyPlan::new(vec![Kind::Nginx], vec![Configuration::One], "out".into())
    }

    #[test]
    fn plan_is_an_error_when_empty_or_with_duplicates() {
        assert_eq!(plan().check(), Ok(()));
        let mut empty = plan();
        empty.servers.clear();
        assert_eq!(empty.check(), Err(PlanError::NoServer));
        let mut twice = plan();
        twice.servers.push(Kind::Nginx);
        assert_eq!(
            twice.check().expect_err("twice").to_string(),
            "nginx is named twice"
        );
        let mut short = plan();
        short.workload.seconds = 0.5;
        assert!(matches!(short.check(), Err(PlanError::Number(_))));
    }

    #[test]
    fn server_has_a_worker_per_hardware_thread() {
        let address = "127.0.0.1:8080".parse().expect("an address");
        let mut loops = ServerSpec::new(Kind::Nginx, "/srv", address);
        sized(&mut loops, 4, 1024);
        assert_eq!((loops.sizes.workers, loops.sizes.clients), (4, 256));
        let mut processes = ServerSpec::new(Kind::ApachePrefork, "/srv", address);
        sized(&mut processes, 2, 1024);
        assert_eq!(processes.sizes.clients, 1024);
    }
}
