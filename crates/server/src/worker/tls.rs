//! TLS in the worker: passes handshakes to the handshake process, and takes connections over when they
//! are done.
//!
//! A handshake computes for up to 5 ms. So the worker only splits the client's input into records and
//! passes them on. While the handshake process has records of a client, the worker does not read from it. A
//! process gets a limited number of clients at a time; the others wait in the worker, until the handshake
//! timeout. If too many wait, the worker reads from no more of them, and its TLS listeners pause. With
//! `tls-handshakes = "inline"` the worker does handshakes itself.

mod answers;
mod channel;
mod failures;
mod offload;
mod handshake_process;

use std::rc::Rc;
use std::time::Instant;

use headway_config::{Config, Handshakes};
use headway_connection::{Connection, Phase};
use headway_event::{Interest, Ready};
use headway_gateway::client_address::ProxyPreface;
use headway_os::kernel_tls::Support;
use headway_send::Sealer;
use headway_tls::{
    ACME_TLS, Acceptor, Established, Failure, Handshake, Reason, Records, Splitter, Stage, Step,
    Summary,
};
use rustix::io::Errno;

use super::context::LoopContext;
use super::{Disposition, Worker};
pub(super) use channel::RAW_BYTES;
use failures::Failures;
use handshake_process::HandshakeProcess;

/// What a worker has for TLS.
pub(super) struct Tls {
    /// The listeners from this one on speak TLS.
    pub first_listener: u32,
    timeout_ms: u64,
    by: By,
    failures: Failures,
    /// The ciphers for which the kernel can encrypt.
    support: Option<Support>,
}

/// What does handshakes.
enum By {
    /// The worker.
    Worker(Acceptor),
    /// The handshake process.
    Process(HandshakeProcess),
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
    /// The handshake has failed, and there is no alert to send.
    Over,
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
            _ => By::Process(HandshakeProcess::default()),
        };
        Some(Tls {
            first_listener,
            timeout_ms: tls.handshake_timeout_ms,
            by,
            failures: Failures::default(),
            support: offload::support(tls),
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
        if self.waits_unread(connection) {
            return Progress::Wait;
        }
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
        tls.has_spoken |= !input.is_empty();
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
                let failure = Failure::other("no valid PROXY header of a trusted proxy");
                self.fail_handshake(connection, &failure);
                Progress::Over
            }
        }
    }

    /// Ends a handshake that has begun, and whose client continues with something else.
    fn break_off(&mut self, connection: &mut Connection) -> Progress {
        self.forget_handshake(connection);
        if let Some(client) = &mut connection.tls {
            client.stage = Stage::Over;
        }
        self.fail_handshake(connection, &Reason::BadMessage.into());
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
                let mut handshake = match begun {
                    Ok(handshake) => handshake,
                    Err(failure) => return self.apply_step(connection, Step::Failed(failure), &[]),
                };
                let mut output = Vec::new();
                let begun = Instant::now();
                let step = handshake.feed(&input[..whole], &mut output);
                self.crypto_ns += begun.elapsed().as_nanos() as u64;
                client.server_name = handshake.server_name().map(Into::into);
                client.stage = Stage::Inline(handshake);
                self.apply_step(connection, step, &output)
            }
            By::Process(process) => {
                let has_room = process.has_room();
                match process.channel.as_mut().filter(|_| has_room) {
                    Some(channel) if !channel.takes(whole) => {
                        let why =
                            "its records are too long for the socket; raise net.core.wmem_default";
                        let step = Step::Failed(Failure::other(why));
                        self.forget_handshake(connection);
                        return self.apply_step(connection, step, &[]);
                    }
                    Some(channel) => {
                        client.keep_input(&input[whole..]);
                        (client.is_begun, client.stage) = (true, Stage::Away);
                        process.away += 1;
                        channel.feed(&self.tracer, token, &input[..whole]);
                        // Few clients send more before they get an answer. If this one does, the next event pauses it.
                        self.watch_for_disconnect(connection);
                    }
                    None => {
                        client.keep_input(input);
                        process.wait(token);
                        self.watch(connection, Interest::NONE);
                    }
                }
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
        // The response to a request that came with the end of the handshake shares a packet with tickets.
        let more = matches!(&step, Step::Done(established) if !established.early.is_empty());
        let flushed = headway_send::flush_before(client, &connection.socket, more, &self.tracer);
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
            Step::Failed(failure) => {
                client.stage = Stage::Over;
                self.fail_handshake(connection, &failure);
                Progress::Failed
            }
            Step::Done(established) => self.open(connection, *established),
        }
    }

    /// The handshake is done.
    fn open(&mut self, connection: &mut Connection, established: Established) -> Progress {
        let records = Records::new(&established);
        let (Some(records), Some(client)) = (records, &mut connection.tls) else {
            self.fail_handshake(connection, &Failure::other("the keys cannot be used"));
            return Progress::Failed;
        };
        client.stage = Stage::Open(Box::new(records));
        connection.tls_summary = Some(Rc::new(Summary::of(&established)));
        let counter = match established.is_resumed {
            true => &mut self.counters.tls_handshakes_resumed,
            false => &mut self.counters.tls_handshakes_full,
        };
        *counter += 1;
        // The authority has got the answer to its challenge. This protocol has no requests.
        if established.protocol == ACME_TLS {
            client.seal_end();
            let _ = headway_send::flush(client, &connection.socket, &self.tracer);
            return Progress::Failed;
        }
        client.keep_opened(&established.early);
        let is_flushed = !client.has_unsent();
        self.offload(connection, &established);
        if established.protocol == b"h2" {
            self.prepare_http2(connection);
        }
        match is_flushed {
            true => self.enter(connection),
            // The client sends nothing before it has got the rest.
            false => {
                self.watch(connection, Interest::WRITE);
                Progress::Wait
            }
        }
    }

    /// Called when the last records of the handshake were sent.
    fn enter(&mut self, connection: &mut Connection) -> Progress {
        let early = connection.tls.as_mut().map(|client| client.take_opened());
        connection.phase = Phase::AwaitHead;
        self.set_timeout(connection, self.config.header_timeout_ms);
        Progress::Open(early.unwrap_or_default())
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
            sealing_ns: &mut self.crypto_ns,
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
            && let By::Process(process) = &mut tls.by
            && let Some(channel) = &mut process.channel
        {
            channel.forget(&self.tracer, connection.token);
        }
    }

    /// The first of the listeners that are paused because too many clients wait.
    pub(super) fn first_crowded_listener(&self) -> Option<u32> {
        let tls = self.tls.as_ref()?;
        match &tls.by {
            By::Process(process) if process.is_crowded => Some(tls.first_listener),
            _ => None,
        }
    }

    /// Clients that wait for the handshake process.
    pub(super) fn waiting_handshakes(&self) -> usize {
        match self.tls.as_ref().map(|tls| &tls.by) {
            Some(By::Process(process)) => process.waiting(),
            _ => 0,
        }
    }

    /// If too many clients wait already, lets this one wait too, without reading from it.
    fn waits_unread(&mut self, connection: &mut Connection) -> bool {
        let token = connection.token;
        match self.handshake_process() {
            Some(process) if process.is_crowded && !process.has_room() => {
                process.wait(token);
                self.watch(connection, Interest::NONE);
                true
            }
            _ => false,
        }
    }

    fn handshake_process(&mut self) -> Option<&mut HandshakeProcess> {
        match &mut self.tls.as_mut()?.by {
            By::Process(process) => Some(process),
            By::Worker(_) => None,
        }
    }

    /// Sends what the socket of the handshake process has not taken.
    pub(super) fn maintain_tls(&mut self) {
        if let Some(tls) = &mut self.tls
            && let By::Process(process) = &mut tls.by
            && let Some(channel) = &mut process.channel
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
        let is_away = matches!(client.stage, Stage::Away);
        if client.has_unsent() && event.writable {
            match headway_send::flush(client, &connection.socket, &self.context.tracer) {
                Ok(true) if client.is_open() => {
                    let progress = self.context.enter(connection);
                    return self.apply_progress(connection, progress);
                }
                Ok(true) => self.context.watch(connection, Interest::READ),
                Ok(false) => {}
                Err(_) => return self.apply_progress(connection, Progress::Gone),
            }
        }
        // The process has its records, or will get them.
        if is_away || connection.interest == Some(Interest::NONE) {
            if event.hangup {
                return self.apply_progress(connection, Progress::Gone);
            }
            if event.readable {
                self.context.watch(connection, Interest::NONE);
            }
            return Disposition::Keep;
        }
        match connection.interest {
            // The handshake is complete, only its last records must be sent.
            Some(Interest::WRITE) if event.hangup => Disposition::Close,
            Some(Interest::WRITE) => Disposition::Keep,
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
            Progress::NoTls(input) => {
                let context = &mut self.context;
                context.fail_handshake(connection, &Reason::NotTls.into());
                self.answer_in_the_clear(connection, &input)
            }
            // The alert would be lost in a reset.
            Progress::Failed => self.context.linger_close(connection, true),
            Progress::Over => Disposition::Close,
            Progress::Gone => {
                // A client that only checks whether the port is open is not a failure.
                if connection.tls.as_ref().is_some_and(|tls| tls.has_spoken) {
                    let context = &mut self.context;
                    context.fail_handshake(connection, &Reason::ClientClosed.into());
                }
                Disposition::Close
            }
        }
    }
}
