//! What a worker tells the master about itself: counters, gauges of every part, and the trace.

use headway_metrics::{Counters, Snapshot};

use super::context::LoopContext;
use super::{Worker, helpers};

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
        opening: context.config.research.opening.to_string(),
        send: context.config.send_name(),
        residency: residency(context).to_owned(),
        counters,
        upstreams: worker
            .router
            .gateway
            .upstreams(&context.routes, context.now_ms),
        trace: context.tracer.report(),
    }
}

/// How the worker finds out what is resident.
fn residency(context: &LoopContext) -> &'static str {
    let other = context.sender.other.as_ref();
    other
        .and_then(|other| other.residency())
        .unwrap_or_else(|| context.residency.name())
}

fn gauges(worker: &Worker, counters: &mut Counters) {
    let (context, router) = (&worker.context, &worker.router);
    counters.connections_open = context.connections.count() as u64;
    counters.connections_idle = context.connections.idle() as u64;
    counters.tls_handshakes_waiting = context.waiting_handshakes() as u64;
    context.sender.gauges(counters);
    helpers::gauges(context.pool.statistics(), counters);
    if let Some(log) = &context.log {
        (counters.log_lines, counters.log_lines_dropped) = log.lines();
    }
    if let Some(spans) = &context.spans {
        counters.spans_dropped = spans.queue.dropped();
    }
    if let Some(auto) = &worker.acceptor.auto {
        auto.gauges(counters);
    }
    router.files.gauges(counters);
    router.listings.gauges(counters);
    router.gateway.gauges(counters);
    context.buffers.gauges(counters);
}
