//! What a study finds beside throughput: scores of slow clients, and instructions of user code.

use std::time::{Duration, Instant};

use headway_lab::servers::{Kind, available};

use super::callgrind;
use super::client::{Demand, Running};
use super::outcome::Instructions;
use super::plan::sized;
use super::run::{CLIENT_TIMEOUT, Listener, RunError, Study, end_of};
use super::score::{self, ConnectionTrial, Score};
use super::workspace::Confined;
use crate::smt::{Configuration, CpuState, Layout};

impl Study<'_> {
    /// Scores of all servers in a configuration whose throughput was measured.
    pub(super) fn scores(
        &mut self,
        configuration: Configuration,
        layout: &Layout,
        confined: &Confined,
        notify: &mut Listener,
    ) -> Result<(), RunError> {
        for server in &self.plan.servers {
            if self.outcome.has_score(*server, configuration) {
                notify(&format!("{server} {configuration}, connections: kept"));
                continue;
            }
            let Some(bits_per_s) = self.outcome.bits_per_s(*server, configuration) else {
                continue; // Its measurement failed, and said why.
            };
            // Throughput is that of all of the configuration.
            let expected = bits_per_s * self.plan.score_share.unwrap_or(1.0);
            let found = score::search(*server, expected, |connections| {
                self.score_of(*server, configuration, layout, confined, connections)
            });
            let found = match found {
                Err(RunError::Failed(why)) => Score {
                    failed: Some(why),
                    ..Score::default()
                },
                other => other?,
            };
            let found = Score {
                server: server.name().into(),
                configuration: configuration.name().into(),
                share: self.plan.score_share,
                ..found
            };
            notify(&format!("{}: {}", found.name(), found.result_text()));
            self.outcome.put_score(found);
            self.keep()?;
        }
        Ok(())
    }

    /// One number of slow connections, on a server that was started for it.
    fn score_of(
        &self,
        kind: Kind,
        configuration: Configuration,
        layout: &Layout,
        confined: &Confined,
        connections: u64,
    ) -> Result<ConnectionTrial, RunError> {
        let mut spec = self.spec(kind)?;
        sized(&mut spec, configuration.contexts(), connections as usize);
        let server = confined.start(&spec, &self.workspace.servers(), &[])?;
        let folder = tempfile::tempdir_in(&self.plan.directory);
        let folder =
            folder.map_err(|error| RunError::Failed(format!("a folder for a score: {error}")))?;
        let run = folder.path().join("run");
        let demand = Demand {
            connections: connections as usize,
            requests_per_connection: None,
            warmup_s: self.plan.workload.warmup_s,
            seconds: self.plan.workload.seconds.max(score::SECONDS_MIN),
            bits_per_s: Some(score::CONNECTION_BITS_PER_S_MAX),
        };
        let mut client = Running::start(&mut demand.command(
            &server,
            &self.workspace.set(),
            &layout.client,
            &run,
        ))?;
        let time = Duration::from_secs_f64(demand.warmup_s + demand.seconds);
        let deadline = Instant::now() + time + CLIENT_TIMEOUT;
        // Without a server there are no conforming connections, and 0 would look like a score.
        client.wait(deadline, self.interrupted, end_of(&server))?;
        client.finish(deadline, self.interrupted)?;
        server
            .stop()
            .map_err(|error| RunError::Failed(error.to_string()))?;
        score::conforming(&run, connections)
    }

    /// Instructions of all servers, which do not depend on a configuration.
    pub(super) fn instructions(
        &mut self,
        state: &mut CpuState,
        notify: &mut Listener,
    ) -> Result<(), RunError> {
        let online = self.topology.online();
        for server in &self.plan.servers {
            let done = |one: &Instructions| one.server == server.name() && one.failed.is_none();
            if self.outcome.instructions.iter().any(done) {
                notify(&format!("{server}, instructions: kept"));
                continue;
            }
            let confined = Confined::to(&online, state)?;
            let spec = self.spec(*server)?;
            let mut found = match callgrind::instructions(
                &spec,
                &confined,
                &self.workspace,
                self.interrupted,
            ) {
                Err(RunError::Failed(why)) => Instructions {
                    failed: Some(why),
                    ..Instructions::default()
                },
                other => other?,
            };
            state.restore()?;
            found.server = server.name().into();
            found.version =
                available(*server).map_or_else(|_| String::new(), |installed| installed.version);
            notify(&match (&found.per_request, &found.failed) {
                (Some(many), _) => {
                    format!("{server}, instructions of user code: {many:.0} a request")
                }
                (None, why) => format!(
                    "{server}, instructions: {}",
                    why.as_deref().unwrap_or("none")
                ),
            });
            self.outcome
                .instructions
                .retain(|one| one.server != found.server);
            self.outcome.instructions.push(found);
            self.keep()?;
        }
        Ok(())
    }
}
