//! Upstream connections from opening to closing: what each is used for, and what it is watched for.
//!
//! The event mechanism knows a connection by one token, however many requests it serves. An idle
//! connection stays registered, so that a close or unexpected data is reported like any other
//! event, and no system call is needed between two requests.

use std::os::fd::{AsFd, OwnedFd};

use headway_event::{EVENTS_PER_WAIT_MAX, Interest, Ready, Token};

use super::Gateway;
use crate::calls::Call;
use crate::connection::UpstreamConn;
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

    /// Registers a connection that is being opened for this client's request.
    pub(super) fn open_upstream_conn(&mut self, socket: OwnedFd, client: Token) -> UpstreamConn {
        UpstreamConn {
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
            Err(error) => context.notice(format!("cannot watch an upstream connection: {error}")),
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
