//! Handles control messages from the master: new helpers, snapshots, a new log process, draining.

use super::{Worker, WorkerError, helpers};
use crate::calls::Call;
use crate::control::{FromWorker, Received, ToWorker};
use crate::metrics::{Counters, Snapshot, Upstream};

impl Worker {
    /// Handles all pending messages. Returns `false` if the master is gone.
    pub(super) fn on_control_message(&mut self) -> Result<bool, WorkerError> {
        loop {
            let received = self.context.tracer.call(Call::ControlReceive, || {
                self.context.control.try_receive::<ToWorker>()
            })?;
            let (order, mut descriptors) = match received {
                Received::Message(order, descriptors) => (order, descriptors),
                Received::WouldBlock => return Ok(true),
                Received::Closed => return Ok(false),
            };
            match (order, descriptors.pop()) {
                (ToWorker::Helper { pid }, Some(socket)) => {
                    self.helpers.requested = self.helpers.requested.saturating_sub(1);
                    self.attach_helper(socket, pid);
                }
                (ToWorker::Spawner { pid }, Some(socket)) => {
                    self.gateway.attach_spawner(&mut self.context, socket, pid);
                }
                (ToWorker::Log, Some(socket)) => {
                    if let Some(log) = &mut self.context.log {
                        log.reconnect(socket);
                    }
                }
                (ToWorker::Snapshot { id }, _) => self.send_snapshot(id),
                (ToWorker::PollListeners, _) => self.acceptor.poll_listeners(&mut self.context),
                (ToWorker::Drain { timeout_ms }, _) => self.drain(timeout_ms),
                // No other message is sent after the start. A message without its descriptor is
                // ignored.
                _ => {}
            }
        }
    }

    fn send_snapshot(&mut self, id: u64) {
        let snapshot = Box::new(self.snapshot());
        // If the channel is full, the master's request times out and it asks again.
        let _ = self.context.tracer.call(Call::ControlSend, || {
            self.context
                .control
                .try_send(&FromWorker::Snapshot { id, snapshot }, &[])
        });
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut counters = self.context.counters.clone();
        self.gauges(&mut counters);
        Snapshot {
            worker: self.number,
            pid: std::process::id(),
            uptime_ms: self.context.clock.now_ms(),
            events: self.context.events.mechanism().to_owned(),
            opening: self.context.config.research.opening.to_string(),
            send: self.context.config.send_name(),
            residency: self.residency().to_owned(),
            counters,
            upstreams: self.upstreams(),
            trace: self.context.tracer.report(),
        }
    }

    fn upstreams(&self) -> Vec<Upstream> {
        self.gateway
            .upstreams(&self.context.routes, self.context.now_ms)
    }

    /// How the worker finds out what is resident.
    fn residency(&self) -> &'static str {
        let other = self.context.sender.other.as_ref();
        other
            .and_then(|other| other.residency())
            .unwrap_or_else(|| self.context.residency.name())
    }

    fn gauges(&self, counters: &mut Counters) {
        counters.connections_open = self.context.connections.len() as u64;
        counters.connections_idle = self.context.connections.idle() as u64;
        counters.response_cache_bytes = self.files.response_cache.used_bytes().get();
        counters.response_cache_evictions = self.files.response_cache.evictions();
        self.files.lookup.gauges(counters);
        if let Some(other) = &self.context.sender.other {
            other.gauges(counters);
        }
        if let Some(auto) = &self.acceptor.auto {
            auto.gauges(counters);
        }
        helpers::gauges(self.context.pool.statistics(), counters);
        self.gateway.gauges(counters);
        if let Some(log) = &self.context.log {
            (counters.log_lines, counters.log_lines_dropped) = log.lines();
        }
    }
}
