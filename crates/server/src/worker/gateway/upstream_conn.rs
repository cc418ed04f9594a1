//! Upstream connections from opening to closing: what each is used for, and what it is watched for.
//!
//! Connecting never blocks: data waits until the socket accepts it. If a connection fails, the first
//! write reports it; if it does not complete, `connect-timeout` ends it. Only requests that may be
//! repeated use an idle connection, because it can be closed at any moment;
//! `keepalive-unsafe-methods` lifts that rule.
//!
//! `connect` resolves the path of a Unix socket and may wait for a disk if that path is on one and
//! not cached. Sockets are usually below `/run`, which is in memory. The tracer lists this call
//! under its own name.
//!
//! The event mechanism knows a connection by one token, however many requests it serves. An idle
//! connection stays registered, so that a close or unexpected data is reported like any other
//! event, and no system call is needed between two requests.

use std::os::fd::{AsFd, OwnedFd};

use headway_config::{ErrorLevel, Upstreams};
use headway_connection::{Connection, Exchange, UpstreamConn, UpstreamRequest};
use headway_event::{EVENTS_PER_WAIT_MAX, Interest, Ready, Token};
use headway_gateway::upstream::{Address, Lease, is_idempotent};
use headway_http::Status;
use headway_metrics::calls::Call;
use headway_respond::handlers::{CodecContext, Route, new_codec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Gateway, launch};
use crate::worker::UPSTREAM_CONN;
use crate::worker::context::LoopContext;

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnUse {
    /// The request of this client.
    Request(Token),
    /// Nothing: the connection is idle, ready for the next request to this upstream of a location.
    Idle { route: usize, upstream: usize },
    /// A request that has been cancelled.
    Aborted,
}

impl Gateway {
    /// Runs first in a loop iteration: handles events of idle connections, so that no request takes
    /// one that is known to be closed.
    pub(in crate::worker) fn check_idle_upstreams(
        &mut self,
        context: &mut LoopContext,
        ready: &[Ready],
    ) {
        self.iteration += 1;
        self.events_complete = ready.len() < EVENTS_PER_WAIT_MAX;
        for event in ready
            .iter()
            .filter(|event| event.token.kind() == UPSTREAM_CONN)
        {
            if let Some(ConnUse::Idle { route, upstream }) = self.conn_use(event.token) {
                self.on_idle_event(context, route, upstream, event.token);
            }
        }
    }

    /// Changes the use of a connection.
    pub(super) fn assign_conn(&mut self, token: Token, conn_use: ConnUse) {
        if let Some(assigned) = self.upstream_conns.get_mut(token) {
            *assigned = conn_use;
        }
    }

    fn conn_use(&self, token: Token) -> Option<ConnUse> {
        self.upstream_conns.get(token).copied()
    }

    /// Handles an event on an upstream connection.
    pub(in crate::worker) fn on_upstream_conn(&mut self, context: &mut LoopContext, event: &Ready) {
        match self.conn_use(event.token) {
            Some(ConnUse::Request(client)) => self.on_upstream_event(context, client, event),
            Some(ConnUse::Idle { route, upstream }) => {
                self.on_idle_event(context, route, upstream, event.token)
            }
            Some(ConnUse::Aborted) => self.on_aborted(context, event),
            None => {}
        }
    }

    fn on_upstream_event(&mut self, context: &mut LoopContext, client: Token, event: &Ready) {
        self.step_client(
            context,
            client,
            |gateway, context, connection, exchange| match exchange.upgraded.is_some() {
                true => gateway.on_upgraded_upstream(context, connection, exchange, event),
                false => gateway.on_upstream(context, connection, exchange, event),
            },
        );
    }

    /// Connects to the upstream that was chosen, or takes an idle connection, and creates the
    /// codec.
    pub(super) fn connect_upstream(
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
        let Some(address) = pool.and_then(|pool| pool.address(lease)) else {
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
            body_bytes: launch::body_bytes(&head, exchange.upload.bytes),
        };
        let request = headway_gateway::Request::new(&head, exchange.request.head.bytes())
            .with_trace(exchange.request.trace.as_ref());
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
            conn: self.open_upstream_conn((socket, &address), connection.token),
            reused: false,
        })
    }

    /// Registers a connection that is being opened for this client's request.
    pub(super) fn open_upstream_conn(
        &mut self,
        (socket, address): (OwnedFd, &Address),
        client: Token,
    ) -> UpstreamConn {
        UpstreamConn {
            is_tcp: matches!(address, Address::Tcp(_)),
            socket,
            token: self.upstream_conns.insert(ConnUse::Request(client)),
            interest: None,
        }
    }

    /// Watches a connection for `wanted`, if that changes anything. `None` unregisters it, because
    /// a hang-up would be reported at every wait.
    pub(super) fn watch_upstream_conn(
        context: &mut LoopContext,
        conn: &mut UpstreamConn,
        wanted: Option<Interest>,
    ) {
        if wanted == conn.interest {
            return;
        }
        let (socket, token) = (conn.socket.as_fd(), conn.token);
        let result = context
            .tracer
            .call(Call::EventControl, || match (conn.interest, wanted) {
                (None, Some(wanted)) => context.events.add(socket, token, wanted),
                (_, Some(wanted)) => context.events.modify(socket, token, wanted),
                (_, None) => context.events.remove(socket),
            });
        match result {
            Ok(()) => conn.interest = wanted,
            // Out of memory or watches: only this exchange ends, by its timeout.
            Err(error) => context.notice(
                ErrorLevel::Error,
                format!("cannot watch an upstream connection: {error}"),
            ),
        }
    }

    /// Closes a connection.
    pub(super) fn close_upstream_conn(
        &mut self,
        context: &mut LoopContext,
        mut conn: UpstreamConn,
    ) {
        Gateway::watch_upstream_conn(context, &mut conn, None);
        self.upstream_conns.remove(conn.token);
        context.tracer.call(Call::Close, || drop(conn));
    }
}

/// A connection to an upstream and its codec.
pub(super) struct Connected {
    pub(super) codec: Box<dyn headway_gateway::Codec>,
    pub(super) conn: UpstreamConn,
    /// The connection was idle before.
    pub(super) reused: bool,
}

impl Connected {
    /// A request over this connection, of which nothing has been sent.
    pub(super) fn request(self, lease: Lease) -> UpstreamRequest {
        UpstreamRequest {
            codec: self.codec,
            conn: self.conn,
            lease,
            reused: self.reused,
            is_doubtful: self.reused,
            started: false,
            write_closed: false,
            body_ended: false,
            body_bytes: 0,
        }
    }
}

/// Why there is no connection to an upstream.
pub(super) enum ConnectFailed {
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
