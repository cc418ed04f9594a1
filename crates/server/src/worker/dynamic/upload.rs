//! A request's body on its way from the client to the program.
//!
//! While the program takes nothing, the client is not read from beyond a bounded buffer. A program
//! that does not want the body may say so by closing its input, or by ending: the rest is thrown
//! away.

use headway_debox::Call;
use headway_http::Status;
use headway_http::chunked::DrainProgress;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Step;
use crate::connection::{Connection, Exchange, Stage};
use crate::worker::Worker;

impl Worker {
    /// Whether more of the body may be received now.
    pub(super) fn takes_body(&self, exchange: &Exchange) -> bool {
        match exchange.stage {
            Stage::Gathering => !exchange.upload.spilling,
            Stage::Queued | Stage::Lent | Stage::Over => false,
            Stage::Starting | Stage::Running => exchange.upload.has_room(),
        }
    }

    /// The client's socket is readable: more of the body, or its departure, or what belongs to a
    /// later request.
    pub(super) fn hear_client(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        if exchange.upload.body.is_some() {
            return match self.takes_body(exchange) {
                true => self.receive_upload(connection, exchange),
                false => Step::Go,
            };
        }
        if exchange.deaf {
            return Step::Go;
        }
        let peeked = self.tracer.call(Call::Receive, || {
            rustix::net::recv(
                &connection.socket,
                &mut [0; 1],
                RecvFlags::PEEK | RecvFlags::DONTWAIT,
            )
        });
        match peeked {
            Err(Errno::AGAIN | Errno::INTR) => Step::Go,
            Ok((1.., _)) => {
                exchange.deaf = true;
                Step::Go
            }
            Ok((0, _)) if self.answers_half_closed(exchange) => {
                exchange.deaf = true;
                Step::Go
            }
            _ => Step::Gone,
        }
    }

    fn answers_half_closed(&self, exchange: &Exchange) -> bool {
        self.places.get(exchange.program.place).location.half_close
    }

    fn receive_upload(&mut self, connection: &mut Connection, exchange: &mut Exchange) -> Step {
        let mut scratch = std::mem::take(&mut self.scratch);
        let step = match self.receive_into(connection, &mut scratch) {
            Ok(Some(count)) => self.take_body(connection, exchange, &scratch[..count]),
            Ok(None) => Step::Go,
            Err(()) => Step::Gone,
        };
        self.scratch = scratch;
        step
    }

    fn take_body(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        bytes: &[u8],
    ) -> Step {
        let upload = &mut exchange.upload;
        let Some(body) = &mut upload.body else {
            return Step::Go;
        };
        let before = upload.waiting.len();
        let progress = body.feed_into(bytes, &mut upload.waiting);
        upload.bytes += (upload.waiting.len() - before) as u64;
        if upload.unwanted {
            upload.waiting.clear();
        }
        let gathers = exchange.stage == Stage::Gathering;
        match progress {
            DrainProgress::More if gathers => return self.gather_more(connection, exchange),
            DrainProgress::More => {}
            DrainProgress::Done(used) => {
                upload.body = None;
                connection.stash_input(&bytes[used..]);
                if gathers {
                    return self.gathered(connection, exchange);
                }
            }
            DrainProgress::TooLarge => return Step::Fail(Status::CONTENT_TOO_LARGE),
            DrainProgress::Bad => return Step::Fail(Status::BAD_REQUEST),
        }
        self.renew(connection, exchange);
        self.feed_program(connection, exchange)
    }

    /// Gives the program what it takes of the body; when all of it is there, its end.
    pub(super) fn feed_program(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        if exchange.peer.is_some() {
            return self.feed_peer(connection, exchange);
        }
        let mut progressed = false;
        while let Some(sink) = &exchange.upload.sink {
            let left = exchange.upload.left();
            if left.is_empty() {
                break;
            }
            let written = self
                .tracer
                .call(Call::ProgramWrite, || rustix::io::write(sink, left));
            match written {
                Ok(count) => {
                    exchange.upload.advance(count);
                    self.counters.dynamic_received_bytes += count as u64;
                    progressed = true;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    exchange.upload.throw_away();
                    let sink = exchange.upload.sink.take();
                    self.close_channel(sink);
                }
            }
        }
        if exchange.upload.left().is_empty() && exchange.upload.body.is_none() {
            let sink = exchange.upload.sink.take();
            self.close_channel(sink);
        }
        if progressed {
            self.renew(connection, exchange);
        }
        Step::Go
    }
}
