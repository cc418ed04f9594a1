//! What a worker tells the master about itself: counters, gauges of every part, and the trace.

use super::{Worker, helpers};
use crate::config::SendMethod;
use crate::metrics::{Counters, Snapshot};

/// A snapshot of this moment.
pub(super) fn snapshot(worker: &Worker) -> Snapshot {
    let context = &worker.context;
    let mut counters = context.counters.clone();
    gauges(worker, &mut counters);
    Snapshot {
        worker: worker.number,
        pid: std::process::id(),
        uptime_ms: context.clock.now_ms(),
        events: context.events.mechanism().to_owned(),
        opening: context.config.opening.to_string(),
        send: context.config.send.to_string(),
        // How the worker finds out what is resident.
        residency: match context.config.send {
            SendMethod::Mmap => "mincore",
            SendMethod::SendfileRecent => "used lately (a guess)",
            _ => context.residency.name(),
        }
        .to_owned(),
        counters,
        upstreams: worker
            .router
            .gateway
            .upstreams(&context.routes, context.now_ms),
        trace: context.tracer.report(),
    }
}

fn gauges(worker: &Worker, counters: &mut Counters) {
    let (context, router) = (&worker.context, &worker.router);
    counters.connections_open = context.connections.len() as u64;
    counters.connections_idle = context.connections.idle() as u64;
    context.sender.gauges(counters);
    helpers::gauges(context.pool.statistics(), counters);
    if let Some(log) = &context.log {
        (counters.log_lines, counters.log_lines_dropped) = log.lines();
    }
    if let Some(auto) = &worker.acceptor.auto {
        auto.gauges(counters);
    }
    router.files.gauges(counters);
    router.listings.gauges(counters);
    router.gateway.gauges(counters);
}
