//! One request and the program that answers it: what is on its way in both directions.
//!
//! The body goes from the client through [`Upload::waiting`] to the program, the reply from the
//! program through the connection's outgoing pieces to the client, and through its [`Backlog`] if
//! that is slow. All are bounded: while one of them is full the side that fills it is not read
//! from, so a slow client holds a fast program back in the end, and the other way round.
//!
//! It refuses to decide anything: `worker/dynamic` does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use headway_event::{Interest, Token};
use headway_files::OpenFile;
use headway_gateway::cgi::{NphReader, ReplyReader};
use headway_gateway::upstream::{Lease, Tried};

use super::Body;
use crate::request::{Charge, Frame, ProgramName};

/// Body bytes that wait for the program at most, but for what one more read brings.
const WAITING_BYTES_MAX: usize = 64 * 1024;

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The body has to be complete before the program can be told its length.
    Gathering,
    /// As many programs as may run do.
    Queued,
    /// The program has been asked for.
    Starting,
    /// It runs, or has ended and left its output behind.
    Running,
    /// It has the client's socket and writes there itself.
    Lent,
    /// It has nothing to do with it any more.
    Over,
}

/// One end of a program's input or output.
pub struct Channel {
    descriptor: OwnedFd,
    /// The event mechanism knows it.
    pub watched: bool,
}

impl Channel {
    /// A descriptor that nobody waits for yet.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            watched: false,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The request's body on its way to the program.
#[derive(Default)]
pub struct Upload {
    /// What is still to come from the client; `None` when all has.
    pub body: Option<Body>,
    /// What the program has not taken yet.
    pub waiting: Vec<u8>,
    /// How much of `waiting` it has taken.
    pub taken: usize,
    /// All bytes of the body so far.
    pub bytes: u64,
    /// The client waits for `100 Continue`.
    pub expected: bool,
    /// The program's input; `None` before it is there, and after it is closed.
    pub sink: Option<Channel>,
    /// The program does not want the rest.
    pub unwanted: bool,
    /// What has been gathered of the body and is not in `waiting`.
    pub spilled: Option<Rc<OpenFile>>,
    /// How much that is.
    pub spilled_bytes: u64,
    /// A helper is writing what was in `waiting`.
    pub spilling: bool,
    /// How much of what is spilled has come back into `waiting`, for a back end.
    pub restored_bytes: u64,
    /// A helper is reading the next part of it.
    pub restoring: bool,
}

impl Upload {
    /// The client may send more now.
    pub fn has_room(&self) -> bool {
        self.unwanted || self.waiting.len() - self.taken < WAITING_BYTES_MAX
    }

    /// What the program has not taken yet.
    pub fn left(&self) -> &[u8] {
        &self.waiting[self.taken..]
    }

    /// The program has taken so much more.
    pub fn advance(&mut self, count: usize) {
        self.taken += count;
        if self.taken == self.waiting.len() {
            self.waiting.clear();
            self.taken = 0;
        } else if self.taken >= WAITING_BYTES_MAX {
            self.waiting.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// All of it has been taken.
    pub fn is_complete(&self) -> bool {
        let restored = self.spilled.is_none() || self.restored_bytes == self.spilled_bytes;
        self.body.is_none() && self.left().is_empty() && restored && !self.restoring
    }

    /// What is spilled is to be sent once more from its beginning.
    pub fn rewind(&mut self) {
        self.waiting.clear();
        (self.taken, self.restored_bytes) = (0, 0);
    }

    /// Nobody takes what is here and what is to come.
    pub fn throw_away(&mut self) {
        self.unwanted = true;
        self.waiting = Vec::new();
        self.taken = 0;
    }
}

/// Understands what a program writes.
pub enum Reader {
    /// A head and a body (RFC 3875 section 6).
    Cgi(ReplyReader),
    /// A whole HTTP reply.
    Nph(NphReader),
    /// What a back end says; its [`Peer`] understands it.
    Peer,
}

/// A connection to a back end, whomever it serves.
pub struct Line {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// How events name it, from its beginning to its end.
    pub name: Token,
    /// What the event mechanism was last told; `None` while it does not know the socket.
    pub interest: Option<Interest>,
}

/// A back end that answers, and what is said with it.
pub struct Peer {
    /// Its protocol.
    pub talk: Box<dyn headway_gateway::Exchange>,
    /// The connection to it.
    pub line: Line,
    /// Which one it is.
    pub lease: Lease,
    /// The connection had waited for a request, so that it may just have been closed.
    pub kept: bool,
    /// Something has been sent to it.
    pub begun: bool,
    /// It takes nothing more.
    pub mute: bool,
    /// It has been told that the body is complete.
    pub body_ended: bool,
    /// Bytes of the body that it was given.
    pub body_bytes: u64,
}

/// A connection that speaks another protocol since its back end has agreed to it (RFC 9110, 7.8):
/// bytes in both directions, of which nothing is understood. Those towards the back end wait in
/// [`Upload::waiting`], those towards the client among the connection's outgoing pieces.
pub struct Tunnel {
    /// The connection to the back end.
    pub line: Line,
    /// The client sends nothing more …
    pub client_ended: bool,
    /// … and the back end knows.
    pub told_back_end: bool,
    /// The back end sends nothing more …
    pub back_end_ended: bool,
    /// … and the client knows.
    pub told_client: bool,
    /// The back end takes nothing more.
    pub mute: bool,
}

/// What of a reply waits for its client, in the order in which it will leave: first what is in a
/// file, then what is in memory.
#[derive(Default)]
pub struct Backlog {
    /// In memory.
    pub tail: Vec<u8>,
    /// Where the rest is.
    pub file: Option<Rc<OpenFile>>,
    /// How much has been written there, or is being written.
    pub written_bytes: u64,
    /// How much of that has come back.
    pub restored_bytes: u64,
    /// A helper is writing.
    pub spilling: bool,
    /// A helper is reading.
    pub restoring: bool,
    /// Its place among its location's replies that are in files.
    pub charge: Option<Charge>,
}

impl Backlog {
    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.restored_bytes == self.written_bytes
    }

    /// A helper is at work.
    pub fn is_busy(&self) -> bool {
        self.spilling || self.restoring
    }
}

/// The reply on its way from the program.
pub struct Download {
    /// The program's output; `None` before it is there, and after its end.
    pub source: Option<Channel>,
    /// What understands it.
    pub reader: Reader,
    /// Its head, until it is sent.
    pub reply: Option<headway_gateway::Reply>,
    /// How its end is told, since its head was sent.
    pub frame: Option<Frame>,
    /// The length its head declared.
    pub length: Option<u64>,
    /// Bytes of its body so far.
    pub bytes: u64,
    /// More of it may come: what came has left for the client, or has found a place to wait.
    pub wanted: bool,
    /// What waits for the client behind what is being sent.
    pub backlog: Backlog,
    /// All of it has come.
    pub ended: bool,
}

impl Download {
    /// Nothing has come yet.
    pub fn new(reader: Reader) -> Self {
        Self {
            source: None,
            reader,
            reply: None,
            frame: None,
            length: None,
            bytes: 0,
            wanted: true,
            backlog: Backlog::default(),
            ended: false,
        }
    }
}

/// A request that a program answers.
pub struct Exchange {
    /// Its number; the fork helper knows the program by it.
    pub id: u64,
    /// Whose request it is.
    pub client: Token,
    /// The program.
    pub program: ProgramName,
    /// The request's head as received.
    pub head: Vec<u8>,
    /// How far it has come.
    pub stage: Stage,
    /// When it began.
    pub begun: Instant,
    /// When all of it was here that has to be, so that it could be answered, or wait for its turn.
    pub admitted: Instant,
    /// When it has to be over at the latest; `u64::MAX` for never.
    pub end_ms: u64,
    /// The client has ended its sending side, or sends what belongs to a later request: it is not
    /// listened to.
    pub deaf: bool,
    /// How much had been written into the client's socket when it was lent, if that can be told.
    pub written_before: Option<u64>,
    /// The back end that has been asked, if one is asked.
    pub peer: Option<Box<Peer>>,
    /// The process that sends its reply back, by its slot.
    pub process: Option<usize>,
    /// What has become of the connection to a back end, where both sides have changed to another
    /// protocol.
    pub tunnel: Option<Box<Tunnel>>,
    /// Those that have been asked so far.
    pub tried: Tried,
    /// A connection that had waited failed it; it gets a new one now.
    pub wants_new: bool,
    /// It is one of its location's requests that back ends have under way.
    pub holds_place: bool,
    /// Towards the program.
    pub upload: Upload,
    /// Towards the client.
    pub download: Download,
}

impl Exchange {
    /// Its program has been asked for.
    pub fn is_started(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Running)
    }

    /// A connection to its back end has been begun and has not come about yet.
    pub fn is_connecting(&self) -> bool {
        matches!(&self.peer, Some(peer) if !peer.begun && !peer.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_when_the_program_takes_a_body_slowly() {
        let (mut upload, mut sent, mut taken) = (Upload::default(), 0_u64, Vec::new());
        let mut most = 0;
        while taken.len() < 1 << 20 {
            while upload.has_room() {
                upload.waiting.extend((0..20_000).map(|_| {
                    sent += 1;
                    sent as u8
                }));
            }
            let some = upload.left().len().min(7_001);
            taken.extend_from_slice(&upload.left()[..some]);
            upload.advance(some);
            most = most.max(upload.waiting.capacity());
        }
        assert!(most < 6 * WAITING_BYTES_MAX, "{most}");
        assert!(
            (1_u64..)
                .zip(&taken)
                .all(|(number, byte)| number as u8 == *byte)
        );
    }

    #[test]
    fn there_is_always_room_when_the_program_wants_nothing() {
        let mut upload = Upload {
            waiting: vec![0; WAITING_BYTES_MAX],
            ..Upload::default()
        };
        assert!(!upload.has_room());
        upload.throw_away();
        assert!(upload.has_room() && upload.left().is_empty());
    }
}
