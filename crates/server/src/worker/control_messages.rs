//! Handles control messages from the master: new helpers, snapshots, a new log process, draining.

use std::rc::Rc;

use headway_debox::Call;

use super::{Worker, WorkerError, helpers};
use crate::config::SendMethod;
use crate::control::{FromWorker, Received, ToWorker};
use crate::metrics::{Counters, Snapshot, Upstream};

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
                (ToWorker::PollListeners, _) => self.poll_listeners(),
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
            upstreams: self.upstreams(),
            trace: self.tracer.report(),
        }
    }

    fn upstreams(&self) -> Vec<Upstream> {
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
        counters.connections_idle = self.connections.idle() as u64;
        counters.response_cache_bytes = self.response_cache.used_bytes().get();
        counters.response_cache_evictions = self.response_cache.evictions();
        self.lookup.gauges(counters);
        counters.mapping_cache_entries = self.mappings.count();
        counters.mapping_cache_bytes = self.mappings.bytes();
        counters.mapping_cache_evictions = self.mappings.evicted();
        counters.recent_cache_entries = self.recent.count();
        counters.recent_cache_bytes = self.recent.bytes();
        if let Some(auto) = &self.auto {
            auto.gauges(counters);
        }
        helpers::gauges(self.pool.statistics(), counters);
        if let Some(handlers) = &self.handlers {
            handlers.gauges(counters);
        }
        if let Some(log) = &self.log {
            (counters.log_lines, counters.log_lines_dropped) = log.lines();
        }
    }

    /// The virtual hosts, shared so that one can be borrowed while the worker is used.
    pub(super) fn hosts(&self) -> Rc<crate::lookup::VirtualHosts> {
        self.hosts.clone()
    }
}
