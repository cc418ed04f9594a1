//! The clients: they pipeline, write in pieces, read slowly, half-close and give up.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use headway_base::random::{Draw, SplitMix64};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, recv,
    send, shutdown, socket_with,
};

use crate::clock;
use crate::faults::span;
use crate::kernel::Kernel;
use crate::model::{Excuses, Model, may_be_cut};
use crate::reply::Head;
use crate::request::{self, Planned, Subject};
use crate::site::Site;

/// A server that owes something to a client which reads fast has sent it after this time.
const WAIT_MAX_NS: u64 = 20_000_000_000;

/// How long a helper may take for a lookup.
const LOOKUP_NS: u64 = 1_000_000_000;

/// What clients share.
pub struct Surroundings<'w> {
    pub kernel: &'w Kernel,
    pub listener: &'w SocketAddrUnix,
    pub site: &'w Site,
    pub model: &'w mut Model,
    pub random: &'w mut SplitMix64,
    /// Where received bytes go first.
    pub buffer: &'w mut Vec<u8>,
    /// The shortest timeout of the server.
    pub timeout_ns: u64,
    /// When the whole machine last stood still.
    pub stalled_ns: u64,
    /// The worker is about to end.
    pub is_draining: bool,
    /// So few connections may be open that idle ones close for new ones.
    pub is_crowded: bool,
}

/// How a client behaves.
struct Manner {
    /// The mean time between two actions.
    pace_ns: u64,
    read_bytes: usize,
    write_bytes: usize,
    pipeline: usize,
    /// Gives up after this number of bytes.
    abort_after: Option<usize>,
    half_closes: bool,
    /// Stays when all is answered, until the server closes.
    stays: bool,
}

/// A client with one connection.
pub struct Client {
    manner: Manner,
    socket: Option<OwnedFd>,
    connection: Option<usize>,
    requests_left: usize,
    unsent: VecDeque<u8>,
    pending: VecDeque<Planned>,
    received: Vec<u8>,
    received_bytes: usize,
    head: Option<Head>,
    /// The server has said that it will close.
    must_end: bool,
    /// A write has failed, so the server has closed already.
    is_refused: bool,
    has_half_closed: bool,
    is_done: bool,
    /// When the connection or the last reply was complete.
    quiet_since_ns: u64,
    /// Since when the server owes something and has sent nothing.
    owed_since_ns: u64,
    pub next_ns: u64,
    /// How often in a row it has had nothing to do.
    idle_turns: u32,
    pub replies: usize,
}

impl Client {
    /// A client that connects at this time.
    pub fn new(begin_ns: u64, random: &mut SplitMix64) -> Client {
        let pace_ns = 20_000 << random.below(11);
        Client {
            manner: Manner {
                pace_ns,
                read_bytes: 4096 << random.below(6),
                write_bytes: 1 << (2 + random.below(12)),
                pipeline: [1, 1, 2, 5, 100][random.index(5)],
                abort_after: (random.below(6) == 0).then(|| span(random, 0, 20) as usize),
                half_closes: random.below(8) == 0,
                stays: random.below(8) == 0,
            },
            socket: None,
            connection: None,
            requests_left: 1 + span(random, 0, 5) as usize,
            unsent: VecDeque::new(),
            pending: VecDeque::new(),
            received: Vec::new(),
            received_bytes: 0,
            head: None,
            must_end: false,
            is_refused: false,
            has_half_closed: false,
            is_done: false,
            quiet_since_ns: begin_ns,
            owed_since_ns: begin_ns,
            next_ns: begin_ns,
            idle_turns: 0,
            replies: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// From now on it reads all there is, and asks for nothing new.
    pub fn hurry(&mut self) {
        self.requests_left = 0;
        self.manner.stays = false;
        self.manner.pace_ns = self.manner.pace_ns.min(1_000_000);
        self.manner.read_bytes = 1 << 20;
    }

    /// Does something: connects, sends or reads.
    ///
    /// # Errors
    /// The server has done what it must not.
    pub fn act(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        let pace = (self.manner.pace_ns as f64 * around.random.exponential()) as u64;
        // Nothing happens for a long time where a timeout is waited for.
        let idle = (self.idle_turns > 20).then(|| 1_000_000 << (self.idle_turns - 20).min(7));
        self.next_ns = clock::now_ns() + 1_000 + pace.max(idle.unwrap_or(0));
        if self.socket.is_none() {
            self.connect(around);
            return Ok(());
        }
        self.write(around);
        self.read(around)
    }

    fn connect(&mut self, around: &mut Surroundings<'_>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        match rustix::net::connect(&socket, around.listener) {
            Ok(()) => {}
            // The accept queue is full.
            Err(Errno::AGAIN) => return,
            // The worker has stopped listening.
            Err(Errno::CONNREFUSED) if around.is_draining => {
                self.is_done = true;
                return;
            }
            Err(error) => panic!("connect: {error}"),
        }
        let mut state = around.kernel.state();
        let connection = state.connections.len();
        state.connections.push(Default::default());
        state.waiting.push_back(connection);
        self.connection = Some(connection);
        self.socket = Some(socket);
        self.quiet_since_ns = clock::now_ns();
        self.owed_since_ns = clock::now_ns();
    }

    /// Sends the next piece, and thinks of a request if there is none.
    fn write(&mut self, around: &mut Surroundings<'_>) {
        let Some(socket) = &self.socket else { return };
        while self.requests_left > 0
            && self.unsent.is_empty()
            && self.pending.len() < self.manner.pipeline
        {
            let planned = request::plan(around.site, around.model, around.random);
            self.unsent.extend(&planned.bytes);
            self.requests_left -= 1;
            if planned.is_last {
                self.requests_left = 0;
            }
            if self.pending.is_empty() {
                self.owed_since_ns = clock::now_ns();
            }
            around.model.note_request(&planned);
            self.pending.push_back(planned);
            if around.random.below(2) == 0 {
                break;
            }
        }
        let bytes: Vec<u8> = self
            .unsent
            .iter()
            .take(self.manner.write_bytes)
            .copied()
            .collect();
        if !bytes.is_empty() && !self.is_refused {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(socket.as_fd(), &bytes, flags) {
                Ok(count) => {
                    self.unsent.drain(..count);
                    self.idle_turns = 0;
                    self.owed_since_ns = clock::now_ns();
                    self.note(around, || {
                        format!("sends {:?}", String::from_utf8_lossy(&bytes[..count]))
                    });
                }
                Err(Errno::AGAIN) => {}
                Err(_) => self.is_refused = true,
            }
        }
        let is_sent = self.unsent.is_empty() && self.requests_left == 0;
        if is_sent && self.manner.half_closes && !self.has_half_closed {
            self.has_half_closed = true;
            self.note(around, || "half-closes".to_owned());
            let _ = shutdown(socket.as_fd(), Shutdown::Write);
        }
    }

    fn read(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let connection = self.connection.expect("it is connected");
        if around.kernel.state().connections[connection].is_reset {
            self.note(around, || "is reset".to_owned());
            return self.ended(around);
        }
        if around.buffer.len() < self.manner.read_bytes {
            around.buffer.resize(self.manner.read_bytes, 0);
        }
        let buffer = &mut around.buffer[..self.manner.read_bytes];
        match recv(socket.as_fd(), buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return self.ended(around),
            Ok((count, _)) => {
                self.received.extend_from_slice(&around.buffer[..count]);
                self.received_bytes += count;
                self.idle_turns = 0;
                self.owed_since_ns = clock::now_ns();
                self.take_replies(around)?;
            }
            Err(Errno::AGAIN) => {
                self.idle_turns += 1;
                self.check_patience(around)?;
            }
            Err(error) => panic!("recv: {error}"),
        }
        let gives_up = self
            .manner
            .abort_after
            .is_some_and(|most| self.received_bytes > most);
        let has_all = self.pending.is_empty() && self.requests_left == 0;
        // After a response that announces the end, the client waits for it.
        if gives_up || has_all && !self.manner.stays && !self.must_end {
            self.leave(around);
        }
        Ok(())
    }

    fn note(&self, around: &Surroundings<'_>, what: impl FnOnce() -> String) {
        let mut state = around.kernel.state();
        let connection = self.connection.unwrap_or_default();
        state.trace.add(&[connection as i64], || {
            format!("connection {connection} {}", what())
        });
    }

    fn leave(&mut self, around: &Surroundings<'_>) {
        self.note(around, || "leaves".to_owned());
        self.socket = None;
        self.is_done = true;
    }

    /// Checks the replies that are complete.
    fn take_replies(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        loop {
            if self.head.is_none() {
                self.head = Head::parse(&self.received)?;
            }
            let Some(head) = &self.head else {
                return Ok(());
            };
            let Some(planned) = self.pending.front() else {
                return Err(format!("a reply to no request: {head:?}"));
            };
            let length = head.content_length(planned.is_head)?;
            if self.received.len() < head.length + length {
                return Ok(());
            }
            let content = &self.received[head.length..head.length + length];
            let excuses = self.excuses(around);
            around
                .model
                .check(planned, (head, content, true), around.site, excuses)
                .map_err(|reason| self.describe(&reason, planned))?;
            around.model.note_reply(planned);
            // An error can also come before the end of the request.
            if !self.must_end && planned.is_last && !head.closes() {
                return Err(self.describe("the connection should be closed", planned));
            }
            self.must_end |= head.closes();
            let status = head.status;
            self.received.drain(..head.length + length);
            self.note(around, || format!("has got {status} with {length} bytes"));
            self.head = None;
            self.pending.pop_front();
            self.replies += 1;
            self.quiet_since_ns = clock::now_ns();
            if self.must_end {
                self.requests_left = 0;
                self.unsent.clear();
            }
        }
    }

    fn describe(&self, reason: &str, planned: &Planned) -> String {
        let request = String::from_utf8_lossy(&planned.bytes[..planned.bytes.len().min(400)]);
        format!(
            "connection {:?}: {reason}\nrequest: {request}",
            self.connection
        )
    }

    /// The server has closed. Says whether it may.
    fn ended(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        self.note(around, || "sees the end".to_owned());
        self.socket = None;
        self.is_done = true;
        let excuses = self.excuses(around);
        // A short error page that does not fit into the socket ends the connection.
        let is_rejected = self.pending.front().is_some_and(Planned::is_rejected);
        let is_explained = self.must_end
            || is_rejected
            || self.has_half_closed && self.pending.is_empty()
            || excuses.is_draining
            || around.is_crowded && self.head.is_none()
            || may_be_cut(excuses);
        match (&self.head, self.pending.front()) {
            (Some(head), Some(planned)) if !is_rejected => {
                let content = &self.received[head.length..];
                let result =
                    around
                        .model
                        .check(planned, (head, content, false), around.site, excuses);
                result
                    .map_err(|reason| self.describe(&format!("it ended early: {reason}"), planned))
            }
            _ if is_explained => Ok(()),
            // A header whose beginning is sent says of which version it is.
            (None, Some(planned))
                if !self.received.is_empty() && around.model.is_rewritten(planned, around.site) =>
            {
                Ok(())
            }
            (None, Some(planned)) => Err(self.describe("it ended without a reply", planned)),
            _ => Err(format!(
                "connection {:?} was closed for no reason",
                self.connection
            )),
        }
    }

    fn excuses(&self, around: &Surroundings<'_>) -> Excuses {
        let state = around.kernel.state();
        let fate = self
            .connection
            .map_or_else(Default::default, |one| state.connections[one]);
        // A job that failed may have begun for another request before this one.
        let begun_ns = self.pending.front().map_or(0, |planned| planned.begun_ns);
        let since = begun_ns.saturating_sub(5_000_000_000);
        let within = |times: &[u64]| times.last().is_some_and(|time| *time >= since);
        let now = clock::now_ns();
        let end_ns = match fate.closed_ns {
            0 => now,
            closed => closed,
        };
        // An idle connection closes when descriptors run out, and its client may notice later.
        let is_evicted = state
            .exhausted_ns
            .iter()
            .any(|time| (*time..*time + 1_000_000_000).contains(&fate.closed_ns));
        // A body has a least rate.
        let planned = self.pending.front();
        let is_slow = planned.is_some_and(|planned| {
            planned.subject == Subject::Status(405) && now >= begun_ns + around.timeout_ns
        });
        // Some timeouts are renewed by each byte, and others are not.
        let quiet_ns = now
            .saturating_sub(self.quiet_since_ns)
            .max(end_ns.saturating_sub(fate.idle_since_ns));
        Excuses {
            disk_failed: within(&state.disk_failed_ns),
            exhausted: is_evicted || within(&state.exhausted_ns),
            lookup_waited: state.lookup_waited_ns + LOOKUP_NS >= begun_ns,
            // Where the machine stood still the reply itself may have ended the silence.
            timed_out: is_slow
                || quiet_ns + 300_000_000 >= around.timeout_ns
                || begun_ns > 0 && around.stalled_ns > begun_ns,
            is_broken: fate.is_broken,
            is_draining: around.is_draining,
        }
    }

    /// Nothing has come. Says whether something should have.
    fn check_patience(&self, around: &Surroundings<'_>) -> Result<(), String> {
        let connection = self.connection.expect("a connection waits");
        let fate = around.kernel.state().connections[connection];
        // One that is not accepted waits for others to close; one that is not watched, for its deadline.
        if fate.active_ns == 0 || fate.is_broken {
            return Ok(());
        }
        let since = self
            .owed_since_ns
            .max(around.stalled_ns)
            .max(fate.active_ns);
        let is_owed = self.unsent.is_empty() && (self.must_end || !self.pending.is_empty());
        match is_owed && clock::now_ns() > since + WAIT_MAX_NS {
            true => Err(format!(
                "connection {:?} waits for {} replies, or for the end, and nothing comes: {:?}",
                self.connection,
                self.pending.len(),
                self.pending
                    .front()
                    .map(|planned| String::from_utf8_lossy(&planned.bytes).into_owned()),
            )),
            false => Ok(()),
        }
    }
}
