//! An upgraded connection (WebSocket): passes bytes in both directions without interpreting them. The client's end
//! is its connection, or a stream of HTTP/2.
//!
//! Each direction has a bounded buffer; the side that fills it is not read from until there is
//! room. When one side ends its direction, that is passed on after all earlier bytes, and the other
//! direction continues. The connection closes when both directions have ended, when the upstream
//! disconnects, or when nothing has moved for `upgrade-timeout`. The upstream connection is never
//! reused. An upgraded connection may stay for hours, so it does not count towards `concurrency`.
//!
//! Sources: RFC 9110 section 7.8; RFC 6455 sections 1.3 and 7.1.1.

use std::ops::ControlFlow::{Break, Continue};

use headway_connection::{Connection, Exchange, UpgradedConn, UpstreamRequest};
use headway_event::{Interest, Ready};
use headway_gateway::upstream::UpstreamOutcome;
use headway_metrics::calls::Call;
use headway_request::Piece;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::{ExchangeEnd, ExchangeStep, Gateway};
use crate::worker::context::LoopContext;

impl Gateway {
    /// Whether this location may have one more upgraded connection.
    pub(super) fn has_upgrade_slot(&self, route: usize, most: u32) -> bool {
        self.upgrades[route] < most
    }
}

impl Gateway {
    /// The upstream has accepted the upgrade, and its 101 response is being sent to the client.
    pub(super) fn begin_upgrade(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let Some(upstream) = exchange.upstream.take() else {
            // The upstream has sent all it wanted to and disconnected.
            return Continue(());
        };
        if !upstream.codec.unsent().is_empty() {
            exchange.upstream = Some(upstream);
            let why = "it changed the protocol before it had the whole request";
            return self.reject_response(context, exchange, why);
        }
        let UpstreamRequest { conn, lease, .. } = *upstream;
        let route = exchange.program.route;
        self.end_lease(context, route, lease, UpstreamOutcome::Answered);
        self.release_slot(exchange);
        exchange.upgraded = Some(Box::new(UpgradedConn {
            conn,
            client_ended: false,
            upstream_shut_down: false,
            upstream_ended: false,
            client_shut_down: false,
            write_closed: false,
        }));
        exchange.end_ms = u64::MAX;
        // What follows the request's head is not HTTP any more.
        exchange.upload.waiting = std::mem::take(&mut connection.rx_buffer);
        context.counters.upgrades += 1;
        self.upgrades[route] += 1;
        Gateway::renew_deadline(context, connection, exchange);
        Continue(())
    }

    /// Handles an event on the client's socket.
    pub(super) fn on_upgraded_client(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> ExchangeStep {
        if event.readable || event.hangup {
            Gateway::read_upgraded_client(context, connection, exchange)?;
            Gateway::write_upgraded_upstream(context, connection, exchange);
        }
        if event.writable {
            self.send_response(context, connection, exchange)?;
        }
        Gateway::forward_ends(context, connection, exchange)
    }

    /// Handles an event on the upstream's socket.
    pub(super) fn on_upgraded_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
        event: &Ready,
    ) -> ExchangeStep {
        if event.writable || event.hangup {
            Gateway::write_upgraded_upstream(context, connection, exchange);
        }
        if event.readable || event.hangup {
            self.read_upgraded_upstream(context, connection, exchange);
            if context.config.research.eager_write {
                self.send_response(context, connection, exchange)?;
            }
        }
        Gateway::forward_ends(context, connection, exchange)
    }

    /// Reads from the client if there is room.
    fn read_upgraded_client(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        if !Gateway::reads_upgraded_client(exchange) {
            return Continue(());
        }
        let mut scratch = std::mem::take(&mut context.scratch);
        let resets = context.counters.connections_reset;
        let received = context.receive_into(connection, &mut scratch);
        let upload = &mut exchange.upload;
        let step = match received {
            Ok(Some(count)) => {
                if !upload.discarded {
                    upload.waiting.extend_from_slice(&scratch[..count]);
                    upload.bytes += count as u64;
                }
                Continue(())
            }
            // It would need new keys to continue.
            Ok(None) if connection.must_end() => Break(ExchangeEnd::ClientGone),
            Ok(None) => Continue(()),
            Err(()) if context.counters.connections_reset > resets => {
                Break(ExchangeEnd::ClientGone)
            }
            Err(()) => {
                if let Some(upgraded) = &mut exchange.upgraded {
                    upgraded.client_ended = true;
                }
                Continue(())
            }
        };
        context.scratch = scratch;
        step
    }

    /// Whether more may be read from the client now.
    pub(super) fn reads_upgraded_client(exchange: &Exchange) -> bool {
        let open = |upgraded: &UpgradedConn| !upgraded.client_ended;
        exchange.upgraded.as_deref().is_some_and(open) && exchange.upload.has_room()
    }

    /// Writes to the upstream as much as it accepts.
    fn write_upgraded_upstream(
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
    ) {
        let mut progressed = false;
        while let Some(upgraded) = &mut exchange.upgraded
            && !exchange.upload.remaining().is_empty()
        {
            let written = context.tracer.call(Call::UpstreamWrite, || {
                rustix::io::write(&upgraded.conn.socket, exchange.upload.remaining())
            });
            match written {
                Ok(count) => {
                    exchange.upload.advance(count);
                    context.counters.handler_request_bytes += count as u64;
                    progressed = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The upstream has disconnected. What it sent before comes first.
                Err(_) => {
                    upgraded.write_closed = true;
                    exchange.upload.discard();
                }
            }
        }
        if progressed {
            Gateway::renew_deadline(context, connection, exchange);
        }
    }

    /// Reads from the upstream when earlier data has been sent.
    fn read_upgraded_upstream(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) {
        let Some(upgraded) = &mut exchange.upgraded else {
            return;
        };
        if !exchange.download.wanted || upgraded.upstream_ended {
            return;
        }
        let buffer = &mut self.buffer;
        let read = context.tracer.call(Call::UpstreamRead, || {
            rustix::io::read(&upgraded.conn.socket, &mut buffer[..])
        });
        match read {
            Ok(count @ 1..) => {
                let bytes = buffer[..count].to_vec();
                connection.outgoing.push(Piece::bytes(bytes));
                exchange.download.wanted = false;
                context.counters.handler_response_bytes += count as u64;
                Gateway::renew_deadline(context, connection, exchange);
            }
            Ok(_) => upgraded.upstream_ended = true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                (upgraded.upstream_ended, upgraded.write_closed) = (true, true);
                exchange.upload.discard();
            }
        }
    }

    /// Shuts down a direction whose sender has ended, after all its data has been passed on.
    fn forward_ends(
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        let Some(upgraded) = &mut exchange.upgraded else {
            return Continue(());
        };
        let client_done = upgraded.client_ended && exchange.upload.remaining().is_empty();
        let upstream_done = upgraded.upstream_ended && !connection.has_unsent();
        if upstream_done && (client_done || upgraded.write_closed) {
            return Break(ExchangeEnd::Done);
        }
        if client_done && !std::mem::replace(&mut upgraded.upstream_shut_down, true) {
            // A disconnected upstream is detected by reading.
            let _ = context.tracer.call(Call::Shutdown, || {
                rustix::net::shutdown(&upgraded.conn.socket, Shutdown::Write)
            });
        }
        if upstream_done && !std::mem::replace(&mut upgraded.client_shut_down, true) {
            match &mut connection.stream {
                Some(of) => of.stream.end(),
                None => {
                    context.end_tls(connection);
                    let _ = context.tracer.call(Call::Shutdown, || {
                        rustix::net::shutdown(&connection.socket, Shutdown::Write)
                    });
                }
            }
        }
        Continue(())
    }

    /// Watches the upstream's socket for what is needed next.
    pub(super) fn watch_upgraded(context: &mut LoopContext, exchange: &mut Exchange) {
        let Some(upgraded) = &mut exchange.upgraded else {
            return;
        };
        let reads = exchange.download.wanted && !upgraded.upstream_ended;
        let writes = !exchange.upload.remaining().is_empty();
        let wanted = match (reads, writes) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        };
        Gateway::watch_upstream_conn(context, &mut upgraded.conn, wanted);
    }

    /// Closes the upstream connection.
    pub(super) fn close_upgraded(&mut self, context: &mut LoopContext, exchange: &mut Exchange) {
        let Some(upgraded) = exchange.upgraded.take() else {
            return;
        };
        self.upgrades[exchange.program.route] -= 1;
        self.close_upstream_conn(context, upgraded.conn);
    }
}
