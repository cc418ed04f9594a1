//! The answers of the handshake process, its end, and its replacement.

use std::os::fd::OwnedFd;

use headway_config::ErrorLevel;
use headway_connection::Phase;
use headway_event::Token;
use headway_tls::wire::{Answer, wipe};
use headway_tls::{Reason, Step};

use super::By;
use super::channel::Channel;
use super::handshake_process::HandshakeProcess;
use crate::worker::{Disposition, Worker};

impl Worker {
    /// Handles answers of the handshake process, or its end.
    pub(in crate::worker) fn on_handshake_process(&mut self) {
        let mut buffer = std::mem::take(&mut self.context.handshake_buffer);
        loop {
            let context = &mut self.context;
            let tracer = &context.tracer;
            let Some(By::Process(process)) = context.tls.as_mut().map(|tls| &mut tls.by) else {
                break;
            };
            let Some(channel) = &process.channel else {
                break;
            };
            match channel.receive(tracer, &mut buffer) {
                Ok(Some((answer, length))) => {
                    process.away = process.away.saturating_sub(1);
                    self.on_answer(answer);
                    // The buffer may have traffic secrets.
                    wipe(&mut buffer[..length]);
                    // No other answer can be there.
                    let away = self
                        .context
                        .handshake_process()
                        .map_or(0, |process| process.away);
                    if away == 0 {
                        break;
                    }
                }
                Ok(None) => break,
                Err(()) => {
                    self.lose_handshake_process();
                    break;
                }
            }
        }
        self.context.handshake_buffer = buffer;
        self.feed_waiting();
    }

    fn on_answer(&mut self, answer: Answer<'_>) {
        let (token, step, server_name, output) = match answer {
            Answer::More {
                token,
                server_name,
                output,
            } => (token, Step::More, server_name, output),
            Answer::Done {
                token,
                established,
                output,
            } => (token, Step::Done(Box::new(established)), None, output),
            Answer::Failed {
                token,
                failure,
                server_name,
                output,
            } => (token, Step::Failed(failure), server_name, output),
        };
        let Some(slot) = self.context.connections.find(Token(token)) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            if !matches!(connection.phase, Phase::Handshake) {
                return Disposition::Keep;
            }
            if let Some(client) = &mut connection.tls {
                client.server_name = server_name.map(Into::into);
            }
            let progress = worker.context.apply_step(connection, step, output);
            worker.apply_progress(connection, progress)
        });
    }

    /// Sends the records of waiting clients to the handshake process.
    fn feed_waiting(&mut self) {
        while let Some(token) = self
            .context
            .handshake_process()
            .and_then(HandshakeProcess::next_waiting)
        {
            let Some(slot) = self.context.connections.find(token) else {
                continue;
            };
            self.with_connection(slot, |worker, connection| match connection.phase {
                Phase::Handshake => worker.receive_handshake(connection),
                _ => Disposition::Keep,
            });
        }
    }

    /// Connects a new handshake process.
    pub(in crate::worker) fn attach_handshakes(&mut self, socket: OwnedFd) {
        self.lose_handshake_process();
        match Channel::new(socket, &mut self.context.events) {
            Ok(channel) => {
                if let Some(process) = self.context.handshake_process() {
                    process.channel = Some(channel);
                }
                self.feed_waiting();
            }
            Err(error) => self.context.notice(
                ErrorLevel::Error,
                format!("cannot watch the handshake process: {error}"),
            ),
        }
    }

    /// Called when the handshake process has ended. The handshakes which it had begun fail. Connections whose
    /// handshake is complete do not need the process. The other ones wait for the next process.
    fn lose_handshake_process(&mut self) {
        let Some(channel) = self.context.handshake_process().and_then(|process| {
            process.away = 0;
            process.channel.take()
        }) else {
            return;
        };
        channel.close(&mut self.context.events);
        for slot in self.context.connections.occupied() {
            self.with_connection(slot, |worker, connection| {
                let tls = connection.tls.as_ref();
                let is_lost = tls.is_some_and(|tls| tls.is_begun && !tls.is_open());
                match (is_lost, &connection.phase) {
                    (true, Phase::Handshake) => {
                        let context = &mut worker.context;
                        context.fail_handshake(connection, &Reason::ProcessGone.into());
                        Disposition::Close
                    }
                    _ => Disposition::Keep,
                }
            });
        }
    }
}
