//! The upstreams of a location: which one gets a request, and the connections that are kept for
//! reuse.
//!
//! The gateway crate's selector chooses an upstream and remembers failures; its idle list keeps
//! connections. Idle connections are watched, and closed when the upstream closes them.

use headway_config::{HandlerConfig, Upstreams};
use headway_connection::{Exchange, UpstreamConn, UpstreamRequest};
use headway_event::{Interest, Token};
use headway_gateway::upstream::{
    Address, IdleConnections, IdleLimits, Lease, TriedUpstreams, UPSTREAMS_MAX, Unavailable,
    UpstreamOutcome, UpstreamPolicy, UpstreamSelector,
};
use headway_metrics::calls::Call;
use headway_respond::handlers::Routes;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Gateway;
use super::upstream_conn::ConnUse;
use crate::worker::context::LoopContext;

/// An idle connection.
struct IdleConn {
    conn: UpstreamConn,
    /// The loop iteration in which it became idle.
    since: u64,
}

/// The upstreams of a location.
pub(super) struct UpstreamPool {
    addresses: Vec<Address>,
    selector: UpstreamSelector,
    idle: IdleConnections<IdleConn>,
}

impl UpstreamPool {
    /// The pools of all locations, by route number.
    pub(super) fn all(routes: &Routes) -> Vec<Option<UpstreamPool>> {
        let kinds = (0..routes.len()).map(|number| &routes.get(number).location);
        kinds
            .map(|location| match &location.handler {
                HandlerConfig::Upstreams(upstreams) => {
                    Some(UpstreamPool::new(upstreams, location.concurrency))
                }
                _ => None,
            })
            .collect()
    }

    fn new(upstreams: &Upstreams, concurrency: u32) -> UpstreamPool {
        let mut addresses = upstreams.addresses();
        addresses.truncate(UPSTREAMS_MAX);
        let policy = UpstreamPolicy {
            requests_max: concurrency,
            attempts_max: upstreams.attempts,
            ..UpstreamPolicy::default()
        };
        let limits = IdleLimits {
            connections_max: upstreams.keepalive as usize,
            ..IdleLimits::default()
        };
        UpstreamPool {
            // Each worker starts with a different upstream.
            selector: UpstreamSelector::new(addresses.len(), policy, std::process::id() as usize),
            idle: IdleConnections::new(addresses.len(), limits),
            addresses,
        }
    }

    /// Chooses the upstream for a request that has tried others.
    pub(super) fn choose(
        &mut self,
        now_ms: u64,
        tried: &mut TriedUpstreams,
    ) -> Result<Lease, Unavailable> {
        self.selector.choose(now_ms, tried)
    }

    /// Takes an idle connection to be closed.
    pub(super) fn take_any_idle(&mut self, upstream: usize) -> Option<UpstreamConn> {
        self.idle.take(upstream).map(|idle| idle.conn)
    }

    /// The address of the upstream that was chosen.
    pub(super) fn address(&self, lease: &Lease) -> Option<&Address> {
        self.addresses.get(lease.upstream())
    }
}

impl Gateway {
    pub(super) fn pool(&mut self, route: usize) -> Option<&mut UpstreamPool> {
        self.pools.get_mut(route)?.as_mut()
    }

    /// When the next idle connection expires.
    pub(super) fn idle_next_ms(&self) -> Option<u64> {
        let pools = self.pools.iter().flatten();
        pools.filter_map(|pool| pool.idle.deadline_ms()).min()
    }

    /// The status of each upstream, location by location. Upstreams that several hosts share are
    /// listed once.
    pub(in crate::worker) fn upstreams(
        &self,
        routes: &Routes,
        now_ms: u64,
    ) -> Vec<headway_metrics::Upstream> {
        let mut all = Vec::new();
        for (route, pool) in self.pools.iter().enumerate() {
            let Some(pool) = pool else { continue };
            let location = routes.get(route).location.path.to_string();
            let views = pool.selector.views(now_ms).enumerate();
            for ((number, view), address) in views.zip(&pool.addresses) {
                let one = headway_metrics::Upstream {
                    location: location.clone(),
                    address: address.to_string(),
                    requests_active: u64::from(view.requests),
                    idle_connections: pool.idle.count(number) as u64,
                    consecutive_failures: u64::from(view.failures),
                    ejections: u64::from(view.ejections),
                    ejected: u64::from(view.ejected_ms.is_some()),
                    ejection_remaining_ms: view.ejected_ms.unwrap_or(0),
                };
                headway_metrics::Upstream::merge(&mut all, &one);
            }
        }
        all
    }

    /// Number of idle connections.
    pub(super) fn idle_connections(&self) -> u64 {
        let pools = self.pools.iter().flatten();
        pools.map(|pool| pool.idle.len() as u64).sum()
    }
}

impl Gateway {
    /// Takes an idle connection that is still open, as far as is known.
    pub(super) fn take_idle(
        &mut self,
        context: &mut LoopContext,
        route: usize,
        upstream: usize,
        client: Token,
    ) -> Option<UpstreamConn> {
        loop {
            let (iteration, events_complete) = (self.iteration, self.events_complete);
            let IdleConn { conn, since } = self.pool(route)?.idle.take(upstream)?;
            // If the connection was idle during the last wait, that wait would have reported a
            // close.
            if (events_complete && since < iteration) || Gateway::is_silent(context, &conn) {
                self.assign_conn(conn.token, ConnUse::Request(client));
                return Some(conn);
            }
            self.close_upstream_conn(context, conn);
        }
    }

    /// Whether the connection is open and has no unexpected data.
    fn is_silent(context: &LoopContext, conn: &UpstreamConn) -> bool {
        let peeked = context.tracer.call(Call::UpstreamRead, || {
            rustix::net::recv(&conn.socket, &mut [0; 1], RecvFlags::PEEK)
        });
        matches!(peeked, Err(Errno::AGAIN))
    }

    pub(super) fn end_lease(
        &mut self,
        context: &mut LoopContext,
        route: usize,
        lease: Lease,
        outcome: UpstreamOutcome,
    ) {
        let now_ms = context.now_ms;
        if let Some(pool) = self.pool(route) {
            pool.selector.end(lease, now_ms, outcome);
        }
    }

    /// Ends the use of an upstream and returns its connection to the pool if it can be reused.
    pub(super) fn release_upstream(
        &mut self,
        context: &mut LoopContext,
        exchange: &mut Exchange,
        outcome: UpstreamOutcome,
        reusable: bool,
    ) {
        let Some(upstream) = exchange.upstream.take() else {
            return;
        };
        let UpstreamRequest { conn, lease, .. } = *upstream;
        let (route, upstream) = (exchange.program.route, lease.upstream());
        self.end_lease(context, route, lease, outcome);
        self.put_idle(context, route, upstream, conn, reusable);
    }

    /// Keeps a connection for the next request if it can be reused; closes it otherwise.
    pub(super) fn put_idle(
        &mut self,
        context: &mut LoopContext,
        route: usize,
        upstream: usize,
        mut conn: UpstreamConn,
        reusable: bool,
    ) {
        let now_ms = context.now_ms;
        if reusable {
            Gateway::watch_upstream_conn(context, &mut conn, Some(Interest::READ));
        }
        // A connection that could not be registered would be closed by the upstream unnoticed.
        let reusable = reusable && conn.interest == Some(Interest::READ);
        let closing = match reusable {
            true => {
                let next = ConnUse::Idle { route, upstream };
                self.assign_conn(conn.token, next);
                let since = self.iteration;
                let waiting = IdleConn { conn, since };
                match self.pool(route) {
                    Some(pool) => pool.idle.put(upstream, waiting, now_ms),
                    None => Some(waiting),
                }
                .map(|waiting| waiting.conn)
            }
            false => Some(conn),
        };
        if let Some(conn) = closing {
            self.close_upstream_conn(context, conn);
        }
    }

    /// Handles an event on an idle connection: the upstream closed it or sent unexpected data, or
    /// the event belongs to the request before.
    pub(super) fn on_idle_event(
        &mut self,
        context: &mut LoopContext,
        route: usize,
        upstream: usize,
        token: Token,
    ) {
        let pool = self.pool(route);
        let is_it = |waiting: &IdleConn| waiting.conn.token == token;
        if let Some(idle) = pool.and_then(|pool| pool.idle.remove(upstream, is_it)) {
            let silent = Gateway::is_silent(context, &idle.conn);
            self.put_idle(context, route, upstream, idle.conn, silent);
        }
    }

    /// Runs once per loop iteration: closes expired idle connections, and serves queues that have a
    /// free slot.
    pub(super) fn maintain_upstreams(&mut self, context: &mut LoopContext) {
        let now_ms = context.now_ms;
        let pools = self.pools.iter_mut().flatten();
        let expired: Vec<UpstreamConn> = pools
            .flat_map(|pool| std::iter::from_fn(|| pool.idle.expired(now_ms)))
            .map(|waiting| waiting.conn)
            .collect();
        for conn in expired {
            self.close_upstream_conn(context, conn);
        }
        while let Some(route) = self.freed.pop() {
            self.start_next(context, route);
        }
    }
}
