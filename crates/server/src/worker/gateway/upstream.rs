//! Upstreams of a location: which one gets a request, over which connection, and what happens after
//! a failure.
//!
//! The gateway crate's selector chooses an upstream and remembers failures; its idle list keeps
//! connections for reuse. Connecting never blocks: data waits until the socket accepts it. If a
//! connection fails, the first write reports it; if it does not complete, `connect-timeout` ends
//! it; then the next upstream is tried. Idle connections are watched, and closed when the upstream
//! closes them. Only requests that may be repeated use an idle connection, because it can be closed
//! at any moment; `keepalive-unsafe-methods` lifts that rule.
//!
//! `connect` resolves the path of a Unix socket and may wait for a disk if that path is on one and
//! not cached. Sockets are usually below `/run`, which is in memory. The tracer lists this call
//! under its own name.

use std::os::fd::OwnedFd;

use headway_event::{Interest, Token};
use headway_gateway::upstream::{
    Address, AttemptStage, IdleConnections, IdleLimits, Lease, Unavailable, UpstreamOutcome,
    UpstreamPolicy, UpstreamSelector, is_idempotent, may_retry,
};
use headway_http::Status;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::upstream_conn::ConnUse;
use super::{ExchangeStep, Gateway};
use crate::calls::Call;
use crate::config::{Handler, Upstreams};
use crate::connection::{Connection, Exchange, Stage, UpstreamConn, UpstreamRequest};
use crate::metrics;
use crate::respond::handlers::{CodecContext, Route, Routes, new_codec};
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
                Handler::Upstreams(upstreams) => {
                    Some(UpstreamPool::new(upstreams, location.concurrency))
                }
                _ => None,
            })
            .collect()
    }

    fn new(upstreams: &Upstreams, concurrency: u32) -> UpstreamPool {
        let addresses = upstreams.addresses.iter();
        // The configuration check has parsed these addresses before.
        let addresses: Vec<Address> = addresses.flat_map(|text| Address::parse(text)).collect();
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
}

impl Gateway {
    fn pool(&mut self, route: usize) -> Option<&mut UpstreamPool> {
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
    ) -> Vec<metrics::Upstream> {
        let mut all = Vec::new();
        for (route, pool) in self.pools.iter().enumerate() {
            let Some(pool) = pool else { continue };
            let location = routes.get(route).location.path.to_string();
            let views = pool.selector.views(now_ms).enumerate();
            for ((number, view), address) in views.zip(&pool.addresses) {
                let one = metrics::Upstream {
                    location: location.clone(),
                    address: address.to_string(),
                    requests_active: u64::from(view.requests),
                    idle_connections: pool.idle.count(number) as u64,
                    consecutive_failures: u64::from(view.failures),
                    ejections: u64::from(view.ejections),
                    ejected: u64::from(view.ejected_ms.is_some()),
                    ejection_remaining_ms: view.ejected_ms.unwrap_or(0),
                };
                metrics::Upstream::merge(&mut all, &one);
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
    /// Sends a request to an upstream; its turn in the queue has come.
    pub(super) fn start_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        exchange.stage = Stage::Running;
        exchange.holds_slot = true;
        self.running[exchange.program.route] += 1;
        if let ExchangeStep::ClientGone =
            Gateway::continue_if_expected(context, connection, exchange)
        {
            return ExchangeStep::ClientGone;
        }
        Gateway::renew_deadline(context, connection, exchange);
        self.try_upstreams(context, connection, exchange, Status::BAD_GATEWAY)
    }

    /// Tries upstreams until one can be connected to. `status` is the response if none is left.
    fn try_upstreams(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        status: Status,
    ) -> ExchangeStep {
        let route = context.routes.get(exchange.program.route).clone();
        let Handler::Upstreams(upstreams) = &route.location.handler else {
            return ExchangeStep::Fail(Status::INTERNAL_SERVER_ERROR);
        };
        let now_ms = context.now_ms;
        loop {
            let pool = self.pool(route.number);
            let Some(pool) = pool else {
                return ExchangeStep::Fail(Status::INTERNAL_SERVER_ERROR);
            };
            let lease = match pool.selector.choose(now_ms, &mut exchange.tried) {
                Ok(lease) => lease,
                Err(Unavailable::Busy) => return ExchangeStep::Fail(Status::SERVICE_UNAVAILABLE),
                Err(Unavailable::Exhausted) => return ExchangeStep::Fail(status),
            };
            match self.connect_upstream(context, connection, exchange, &route, upstreams, &lease) {
                Ok(Connected {
                    codec,
                    conn,
                    reused,
                }) => {
                    context.counters.upstream_retries += u64::from(exchange.tried.count() > 1);
                    exchange.upstream = Some(Box::new(UpstreamRequest {
                        codec,
                        conn,
                        lease,
                        reused,
                        started: false,
                        write_closed: false,
                        body_ended: false,
                        body_bytes: 0,
                    }));
                    Gateway::renew_deadline(context, connection, exchange);
                    return self.write_upstream(context, connection, exchange);
                }
                Err(ConnectFailed::Unreachable(errno)) => {
                    self.log_upstream_failure(
                        context,
                        exchange,
                        &lease,
                        &format!("connecting: {errno}"),
                    );
                    self.end_lease(context, route.number, lease, UpstreamOutcome::Failed);
                }
                Err(ConnectFailed::Answer(status)) => {
                    self.end_lease(context, route.number, lease, UpstreamOutcome::Unknown);
                    return ExchangeStep::Fail(status);
                }
            }
        }
    }

    /// Connects to the upstream that was chosen, or takes an idle connection, and creates the
    /// codec.
    fn connect_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &Exchange,
        route: &Route,
        upstreams: &Upstreams,
        lease: &Lease,
    ) -> Result<Connected, ConnectFailed> {
        let broken = ConnectFailed::Answer(Status::INTERNAL_SERVER_ERROR);
        let head = exchange.request.head.head();
        let pool = self.pools[route.number].as_ref();
        let Some(address) = pool.and_then(|pool| pool.addresses.get(lease.upstream())) else {
            return Err(broken);
        };
        let address = address.clone();
        let Some(endpoints) = Gateway::endpoints(connection) else {
            return Err(broken);
        };
        let hosts = context.hosts();
        let codec_context = CodecContext {
            route,
            site: hosts.get(exchange.request.virtual_host),
            program: &exchange.program,
            endpoints,
            body_bytes: super::launch::body_bytes(&head, exchange.upload.bytes),
        };
        let request = headway_gateway::Request::new(&head, exchange.request.head.bytes());
        let codec = new_codec(
            &context.routes,
            upstreams,
            &codec_context,
            &request,
            &address,
            upstreams.keepalive > 0,
        )
        .map_err(ConnectFailed::Answer)?;
        let reused = match may_use_idle(exchange, upstreams) {
            true => self.take_idle(context, route.number, lease.upstream(), connection.token),
            false => None,
        };
        if let Some(conn) = reused {
            context.counters.upstream_connections_reused += 1;
            let reused = true;
            return Ok(Connected {
                codec,
                conn,
                reused,
            });
        }
        context.counters.upstream_connects += 1;
        let socket = context
            .tracer
            .call(Call::UpstreamConnect, || connect(&address))
            .map_err(ConnectFailed::Unreachable)?;
        Ok(Connected {
            codec,
            conn: self.open_upstream_conn(socket, connection.token),
            reused: false,
        })
    }

    /// Takes an idle connection that is still open, as far as is known.
    fn take_idle(
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

    fn log_upstream_failure(
        &mut self,
        context: &mut LoopContext,
        exchange: &Exchange,
        lease: &Lease,
        why: &str,
    ) {
        context.counters.upstream_failures += 1;
        let route = exchange.program.route;
        let pool = self.pools[route].as_ref();
        let address = pool.and_then(|pool| pool.addresses.get(lease.upstream()));
        if let Some(address) = address {
            context.notice(format!("upstream {address}: {why}"));
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

    /// Frees the exchange's slot. The queue is served at the end of the loop iteration.
    pub(super) fn release_slot(&mut self, exchange: &mut Exchange) {
        let route = exchange.program.route;
        if std::mem::take(&mut exchange.holds_slot) {
            self.running[route] -= 1;
            self.freed.push(route);
        }
    }

    /// Handles the failure of an upstream: tries another one if repeating the request is safe.
    pub(super) fn upstream_failed(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        progressed: AttemptStage,
        (status, why): (Status, &str),
    ) -> ExchangeStep {
        let Some(upstream) = &exchange.upstream else {
            return ExchangeStep::Fail(status);
        };
        let upload = &exchange.upload;
        // The chunk that a helper is reading would be taken for the start of the body.
        let is_on_disk = upload.spooled.is_some() && !upload.reading_back;
        let body_is_kept = is_on_disk || (upstream.body_bytes == 0 && !upload.discarded);
        let may_repeat = may_retry(exchange.request.head.method(), progressed, body_is_kept);
        let ended_idle = upstream.reused && progressed != AttemptStage::Answered;
        if !(ended_idle && may_repeat) {
            self.log_upstream_failure(context, exchange, &upstream.lease, why);
        }
        let outcome = match ended_idle {
            // Not a failure: the upstream closed the connection just when it was reused.
            true => {
                exchange.tried.forget(upstream.lease.upstream());
                exchange.needs_new_conn = true;
                UpstreamOutcome::Unknown
            }
            false => UpstreamOutcome::Failed,
        };
        self.release_upstream(context, exchange, outcome, false);
        if !may_repeat {
            return ExchangeStep::Fail(status);
        }
        if exchange.upload.spooled.is_some() {
            exchange.upload.rewind();
        }
        self.try_upstreams(context, connection, exchange, status)
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

/// A connection to an upstream and its codec.
struct Connected {
    codec: Box<dyn headway_gateway::Codec>,
    conn: UpstreamConn,
    /// The connection was idle before.
    reused: bool,
}

/// Why there is no connection to an upstream.
enum ConnectFailed {
    /// The upstream does not accept it.
    Unreachable(Errno),
    /// The server answers the request itself.
    Answer(Status),
}

/// Whether the request may be sent over an idle connection, which can be closed at any moment.
fn may_use_idle(exchange: &Exchange, upstreams: &Upstreams) -> bool {
    // A body that has been sent on and is not kept cannot be sent again.
    let upload = &exchange.upload;
    let is_kept = upload.spooled.is_some() || (upload.bytes == 0 && upload.body.is_none());
    let may_repeat = is_idempotent(exchange.request.head.method()) && is_kept;
    (may_repeat || upstreams.keepalive_unsafe_methods) && !exchange.needs_new_conn
}

/// Starts to connect. The first call on the socket reports the result. A Unix socket with a full
/// backlog fails at once, because no event would report that it has room.
fn connect(address: &Address) -> Result<OwnedFd, Errno> {
    let family = match address {
        Address::Unix(_) => AddressFamily::UNIX,
        Address::Tcp(address) if address.is_ipv4() => AddressFamily::INET,
        Address::Tcp(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let connected = match address {
        Address::Unix(path) => rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?),
        Address::Tcp(address) => {
            // A request is sent in as few calls as possible, so delaying small packets gains
            // nothing.
            rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
            rustix::net::connect(&socket, address)
        }
    };
    match connected {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}
