//! Handles control messages from the master: new helpers, snapshots, a new log process, draining.

use std::rc::Rc;

use headway_debox::Call;

use super::{Worker, WorkerError, helpers};
use crate::config::SendMethod;
use crate::control::{FromWorker, Received, ToWorker};
use crate::tally::{BackEnd, Counters, Snapshot};

impl Worker {
    /// Handles all pending messages. Returns `false` if the master is gone.
    pub(super) fn on_control_message(&mut self) -> Result<bool, WorkerError> {
        loop {
            let received = self.tracer.call(Call::ControlReceive, || {
                self.control.try_receive::<ToWorker>()
            })?;
            let (order, mut descriptors) = match received {
                Received::Message(order, descriptors) => (order, descriptors),
                Received::WouldBlock => return Ok(true),
                Received::Closed => return Ok(false),
            };
            match (order, descriptors.pop()) {
                (ToWorker::Helper { pid }, Some(socket)) => {
                    self.helpers_requested = self.helpers_requested.saturating_sub(1);
                    self.attach_helper(socket, pid);
                }
                (ToWorker::Spawner { pid }, Some(socket)) => {
                    self.attach_spawner(socket, pid);
                }
                (ToWorker::Log, Some(socket)) => {
                    if let Some(log) = &mut self.log {
                        log.reconnect(socket);
                    }
                }
                (ToWorker::Snapshot { id }, _) => self.send_snapshot(id),
                (ToWorker::Look, _) => self.look_for_left(),
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
        let _ = self.tracer.call(Call::ControlSend, || {
            self.control
                .try_send(&FromWorker::Snapshot { id, snapshot }, &[])
        });
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut counters = self.counters.clone();
        self.gauges(&mut counters);
        Snapshot {
            worker: self.number,
            pid: std::process::id(),
            uptime_ms: self.clock.now_ms(),
            events: self.events.mechanism().to_owned(),
            opening: self.config.opening.to_string(),
            send: self.config.send.to_string(),
            residency: self.residency().to_owned(),
            counters,
            back_ends: self.back_ends(),
            trace: self.tracer.report(),
        }
    }

    fn back_ends(&self) -> Vec<BackEnd> {
        let handlers = self.handlers.as_ref();
        handlers.map_or_else(Vec::new, |handlers| {
            handlers.upstreams(&self.routes, self.now_ms)
        })
    }

    /// How the worker finds out what is resident.
    fn residency(&self) -> &'static str {
        match self.config.send {
            SendMethod::Mmap => "mincore",
            SendMethod::SendfileRecent => "used lately (a guess)",
            _ => self.residency.name(),
        }
    }

    fn gauges(&self, counters: &mut Counters) {
        counters.connections_open = self.connections.len() as u64;
        counters.content_bytes = self.response_cache.used_bytes().get();
        counters.content_evicted = self.response_cache.evictions();
        self.lookup.gauges(counters);
        counters.mapped_windows = self.mappings.count();
        counters.mapped_bytes = self.mappings.bytes();
        counters.mapped_evicted = self.mappings.evicted();
        counters.recent_windows = self.recent.count();
        counters.recent_bytes = self.recent.bytes();
        if let Some(auto) = &self.auto {
            auto.gauges(counters);
        }
        helpers::gauges(self.pool.statistics(), counters);
        if let Some(handlers) = &self.handlers {
            handlers.gauges(counters);
        }
        if let Some(log) = &self.log {
            (counters.log_lines, counters.log_dropped) = log.lines();
        }
    }

    /// The virtual hosts, shared so that one can be borrowed while the worker is used.
    pub(super) fn hosts(&self) -> Rc<crate::lookup::VirtualHosts> {
        self.hosts.clone()
    }
}
