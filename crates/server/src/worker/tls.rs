//! TLS in the worker: passes handshakes to the handshake process, and takes connections over when they
//! are done.
//!
//! A handshake computes for up to 5 ms. So the worker only splits the client's input into records and
//! passes them on. While the handshake process has records of a client, the worker does not read from it. A
//! process gets at most [`AWAY_MAX`] clients at a time; the others wait in the worker, until the handshake
//! timeout. With `tls-handshakes = "inline"` the worker does handshakes itself.

mod channel;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use headway_config::{Config, Handshakes};
use headway_connection::{Connection, Phase};
use headway_event::{Interest, Ready, Token};
use headway_gateway::client_address::ProxyPreface;
use headway_send::Sealer;
use headway_tls::wire::Answer;
use headway_tls::{Acceptor, Established, Handshake, Records, Splitter, Stage, Step};
use rustix::io::Errno;

use super::context::LoopContext;
use super::{Disposition, Worker};
use channel::Channel;
pub(super) use channel::RAW_BYTES;

/// Clients whose records the handshake process may have at a time.
const AWAY_MAX: usize = 64;

/// What a worker has for TLS.
pub(super) struct Tls {
    /// The listeners from this one on speak TLS.
    pub first_listener: u32,
    timeout_ms: u64,
    by: By,
}

/// What does handshakes.
enum By {
    /// The worker.
    Worker(Acceptor),
    /// The handshake process.
    Process(Outside),
}

/// The handshake process, and the clients that wait for it.
#[derive(Default)]
struct Outside {
    /// `None` until there is a process, or another one after a death.
    channel: Option<Channel>,
    /// Clients whose records it has.
    away: usize,
    /// Clients whose records it has not got yet.
    waiting: VecDeque<Token>,
}

/// What becomes of a handshake.
enum Progress {
    /// More of it has to come.
    Wait,
    /// It is done. Data of the client may have come with it.
    Open(Vec<u8>),
    /// A trusted proxy has named the client, whose first records are next.
    Entered,
    /// It is not a handshake, but may be a request without TLS.
    NoTls(Vec<u8>),
    /// It has failed; the client may have to read why.
    Failed,
    /// The client has disconnected.
    Gone,
}

impl Tls {
    /// `None` without TLS. The acceptor is there if the worker does handshakes itself.
    pub(super) fn new(
        config: &Config,
        first_listener: u32,
        acceptor: Option<Acceptor>,
    ) -> Option<Tls> {
        let tls = config.tls.as_ref()?;
        let by = match (tls.handshakes, acceptor) {
            (Handshakes::Inline, Some(acceptor)) => By::Worker(acceptor),
            _ => By::Process(Outside::default()),
        };
        Some(Tls {
            first_listener,
            timeout_ms: tls.handshake_timeout_ms,
            by,
        })
    }
}

impl LoopContext {
    /// Time for a handshake, if this listener speaks TLS.
    pub(super) fn handshake_timeout_ms(&self, listener: u32) -> Option<u64> {
        let tls = self.tls.as_ref()?;
        (listener >= tls.first_listener).then_some(tls.timeout_ms)
    }

    /// Receives a part of a handshake.
    fn receive_handshake(&mut self, connection: &mut Connection) -> Progress {
        let mut raw = std::mem::take(&mut self.raw);
        let progress = self.receive_handshake_into(connection, &mut raw);
        self.raw = raw;
        progress
    }

    fn receive_handshake_into(&mut self, connection: &mut Connection, raw: &mut [u8]) -> Progress {
        let Some(tls) = &mut connection.tls else {
            return Progress::Gone;
        };
        let kept = tls.restore_input(raw);
        // If there is no room, records have to be taken first.
        let received = match kept < raw.len() {
            true => self.receive_bytes(connection, &mut raw[kept..]),
            false => Ok(None),
        };
        let received = match received {
            Err(()) => return Progress::Gone,
            Ok(received) => received.unwrap_or(0),
        };
        let input = &raw[..kept + received];
        if connection.awaits_proxy_header() {
            return self.take_preface(connection, input);
        }
        let Some(tls) = &mut connection.tls else {
            return Progress::Gone;
        };
        let (whole, is_other) = Splitter::whole_records(input);
        if whole == 0 && is_other {
            return match tls.is_begun {
                true => self.break_off(connection),
                false => Progress::NoTls(input.to_vec()),
            };
        }
        if whole == 0 {
            tls.keep_input(input);
            self.watch(connection, Interest::READ);
            return Progress::Wait;
        }
        self.feed(connection, input, whole)
    }

    /// Reads the header that a trusted proxy sends in the clear before the first record.
    fn take_preface(&mut self, connection: &mut Connection, input: &[u8]) -> Progress {
        let preface = self.read_preface(connection, input);
        match (preface, &mut connection.tls) {
            (ProxyPreface::Partial, Some(client)) => {
                client.keep_preface(input);
                self.watch(connection, Interest::READ);
                Progress::Wait
            }
            (ProxyPreface::Complete { length, .. }, Some(client)) => {
                client.keep_input(&input[length..]);
                Progress::Entered
            }
            _ => {
                self.counters.tls_handshakes_failed += 1;
                Progress::Gone
            }
        }
    }

    /// Ends a handshake that has begun, and whose client continues with something else.
    fn break_off(&mut self, connection: &mut Connection) -> Progress {
        self.forget_handshake(connection);
        if let Some(client) = &mut connection.tls {
            client.stage = Stage::Over;
        }
        self.counters.tls_handshakes_failed += 1;
        Progress::Failed
    }

    /// Passes the whole records at the front of `input` to what does the handshake.
    fn feed(&mut self, connection: &mut Connection, input: &[u8], whole: usize) -> Progress {
        let token = connection.token;
        let (Some(tls), Some(client)) = (&mut self.tls, &mut connection.tls) else {
            return Progress::Gone;
        };
        match &mut tls.by {
            By::Worker(acceptor) => {
                client.keep_input(&input[whole..]);
                client.is_begun = true;
                let begun = match std::mem::replace(&mut client.stage, Stage::Over) {
                    Stage::Inline(handshake) => Ok(handshake),
                    _ => Handshake::new(acceptor).map(Box::new),
                };
                let Ok(mut handshake) = begun else {
                    return Progress::Failed;
                };
                let mut output = Vec::new();
                let step = handshake.feed(&input[..whole], &mut output);
                client.stage = Stage::Inline(handshake);
                self.apply_step(connection, step, &output)
            }
            By::Process(outside) => {
                let has_room = outside.away < AWAY_MAX;
                match outside.channel.as_mut().filter(|_| has_room) {
                    Some(channel) => {
                        client.keep_input(&input[whole..]);
                        (client.is_begun, client.stage) = (true, Stage::Away);
                        outside.away += 1;
                        channel.feed(&self.tracer, token, &input[..whole]);
                    }
                    None => {
                        client.keep_input(input);
                        outside.waiting.push_back(token);
                    }
                }
                self.watch(connection, Interest::NONE);
                Progress::Wait
            }
        }
    }

    /// Applies what a handshake has made of the client's records.
    fn apply_step(&mut self, connection: &mut Connection, step: Step, output: &[u8]) -> Progress {
        let Some(client) = &mut connection.tls else {
            return Progress::Gone;
        };
        client.keep_unsent(output);
        let flushed = headway_send::flush(client, &connection.socket, &self.tracer);
        let Ok(is_flushed) = flushed else {
            return Progress::Gone;
        };
        match step {
            Step::More => {
                if matches!(client.stage, Stage::Away) {
                    client.stage = Stage::Begun;
                }
                let interest = match is_flushed {
                    true => Interest::READ,
                    false => Interest::BOTH,
                };
                self.watch(connection, interest);
                Progress::Wait
            }
            Step::Failed(_) => {
                client.stage = Stage::Over;
                self.counters.tls_handshakes_failed += 1;
                Progress::Failed
            }
            Step::Done(established) => self.open(connection, *established),
        }
    }

    /// The handshake is done.
    fn open(&mut self, connection: &mut Connection, established: Established) -> Progress {
        let records = Records::new(&established);
        let (Some(records), Some(client)) = (records, &mut connection.tls) else {
            return Progress::Failed;
        };
        client.stage = Stage::Open(Box::new(records));
        let counter = match established.is_resumed {
            true => &mut self.counters.tls_handshakes_resumed,
            false => &mut self.counters.tls_handshakes_full,
        };
        *counter += 1;
        connection.phase = Phase::AwaitHead;
        if established.protocol == b"h2" {
            self.prepare_http2(connection);
        }
        self.set_timeout(connection, self.config.header_timeout_ms);
        Progress::Open(established.early)
    }

    /// Sends these bytes with one call, as far as the socket takes them: the hot path.
    pub(super) fn send_now(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        more: bool,
    ) -> Result<usize, Errno> {
        let sealer = connection.tls.as_deref_mut().map(|client| Sealer {
            client,
            buffer: &mut self.sealed,
            now_ms: self.now_ms,
        });
        let stream = connection.stream.as_mut().map(|of| &mut of.stream);
        headway_send::send_whole(
            &connection.socket,
            sealer,
            stream,
            bytes,
            more,
            &self.tracer,
        )
    }

    /// Tells the client that nothing more follows, as far as its socket takes that now. A client whose
    /// response is not complete must not take this for its end.
    pub(super) fn end_tls(&mut self, connection: &mut Connection) {
        let is_cut = connection.outgoing.status != 0 && connection.phase.request().is_some();
        if let Some(client) = &mut connection.tls
            && client.is_open()
            && !is_cut
        {
            client.seal_end();
            // The client may be gone.
            let _ = headway_send::flush(client, &connection.socket, &self.tracer);
        }
    }

    /// Has the handshake process forget a connection that closes.
    pub(super) fn forget_handshake(&mut self, connection: &Connection) {
        let is_begun = connection.tls.as_ref().is_some_and(|tls| tls.is_begun);
        if let (true, Phase::Handshake, Some(tls)) = (is_begun, &connection.phase, &mut self.tls)
            && let By::Process(outside) = &mut tls.by
            && let Some(channel) = &mut outside.channel
        {
            channel.forget(&self.tracer, connection.token);
        }
    }

    /// Passes clients that have waited on to the handshake process.
    fn next_waiting(&mut self) -> Option<Token> {
        let By::Process(outside) = &mut self.tls.as_mut()?.by else {
            return None;
        };
        match outside.channel.is_some() && outside.away < AWAY_MAX {
            true => outside.waiting.pop_front(),
            false => None,
        }
    }

    fn outside(&mut self) -> Option<&mut Outside> {
        match &mut self.tls.as_mut()?.by {
            By::Process(outside) => Some(outside),
            By::Worker(_) => None,
        }
    }

    /// Sends what the socket of the handshake process has not taken.
    pub(super) fn maintain_tls(&mut self) {
        if let Some(tls) = &mut self.tls
            && let By::Process(outside) = &mut tls.by
            && let Some(channel) = &mut outside.channel
        {
            channel.flush(&self.tracer, &mut self.events);
        }
    }
}

impl Worker {
    /// Handles an event on the socket of a client whose handshake is not done.
    pub(super) fn on_handshake_event(
        &mut self,
        connection: &mut Connection,
        event: &Ready,
    ) -> Disposition {
        let Some(client) = &mut connection.tls else {
            return Disposition::Close;
        };
        if client.has_unsent() && event.writable {
            match headway_send::flush(client, &connection.socket, &self.context.tracer) {
                Ok(true) => self.context.watch(connection, Interest::READ),
                Ok(false) => {}
                Err(_) => return Disposition::Close,
            }
        }
        match connection.interest {
            // The process has its records, or will get them.
            Some(Interest::NONE) if event.hangup => Disposition::Close,
            Some(Interest::NONE) => Disposition::Keep,
            _ if event.readable || event.hangup => self.receive_handshake(connection),
            _ => Disposition::Keep,
        }
    }

    /// Receives a part of a handshake.
    pub(super) fn receive_handshake(&mut self, connection: &mut Connection) -> Disposition {
        let progress = self.context.receive_handshake(connection);
        self.apply_progress(connection, progress)
    }

    fn apply_progress(&mut self, connection: &mut Connection, progress: Progress) -> Disposition {
        match progress {
            Progress::Wait => Disposition::Keep,
            Progress::Open(early) => match connection.http2 {
                Some(_) => self.begin_http2(connection, &early),
                None => self.handle_requests(connection, &early),
            },
            Progress::Entered if self.acceptor.enter_behind_proxy(connection) => {
                self.receive_handshake(connection)
            }
            Progress::Entered => {
                self.context.counters.connections_rejected_per_address += 1;
                Disposition::Close
            }
            Progress::NoTls(input) => self.answer_in_the_clear(connection, &input),
            // The alert would be lost in a reset.
            Progress::Failed => self.context.linger_close(connection, true),
            Progress::Gone => Disposition::Close,
        }
    }

    /// The handshake process has made something, or has ended.
    pub(super) fn on_handshake_process(&mut self) {
        let mut buffer = std::mem::take(&mut self.context.handshake_buffer);
        loop {
            let context = &mut self.context;
            let tracer = &context.tracer;
            let Some(By::Process(outside)) = context.tls.as_mut().map(|tls| &mut tls.by) else {
                break;
            };
            let Some(channel) = &outside.channel else {
                break;
            };
            match channel.receive(tracer, &mut buffer) {
                Ok(Some(answer)) => {
                    outside.away = outside.away.saturating_sub(1);
                    self.on_answer(answer);
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
        let (token, step, output) = match answer {
            Answer::More { token, output } => (token, Step::More, output),
            Answer::Done {
                token,
                established,
                output,
            } => (token, Step::Done(Box::new(established)), output),
            Answer::Failed { token, why, output } => {
                let why = String::from_utf8_lossy(&why).into_owned();
                (token, Step::Failed(why), output)
            }
        };
        let Some(slot) = self.context.connections.find(Token(token)) else {
            return;
        };
        self.with_connection(slot, |worker, connection| {
            if !matches!(connection.phase, Phase::Handshake) {
                return Disposition::Keep;
            }
            let progress = worker.context.apply_step(connection, step, output);
            worker.apply_progress(connection, progress)
        });
    }

    /// Gives the handshake process the records of clients that have waited.
    fn feed_waiting(&mut self) {
        while let Some(token) = self.context.next_waiting() {
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
    pub(super) fn attach_handshakes(&mut self, socket: OwnedFd) {
        self.lose_handshake_process();
        match Channel::new(socket, &mut self.context.events) {
            Ok(channel) => {
                if let Some(outside) = self.context.outside() {
                    outside.channel = Some(channel);
                }
                self.feed_waiting();
            }
            Err(error) => self
                .context
                .notice(format!("cannot watch the handshake process: {error}")),
        }
    }

    /// The handshake process has gone, and with it the handshakes that it had begun. Connections whose
    /// handshake is done do not need it, and others wait for the next one.
    fn lose_handshake_process(&mut self) {
        let Some(channel) = self.context.outside().and_then(|outside| {
            outside.away = 0;
            outside.channel.take()
        }) else {
            return;
        };
        channel.close(&mut self.context.events);
        for slot in self.context.connections.occupied() {
            self.with_connection(slot, |worker, connection| {
                let is_begun = connection.tls.as_ref().is_some_and(|tls| tls.is_begun);
                match (is_begun, &connection.phase) {
                    (true, Phase::Handshake) => {
                        worker.context.counters.tls_handshakes_failed += 1;
                        Disposition::Close
                    }
                    _ => Disposition::Keep,
                }
            });
        }
    }
}
