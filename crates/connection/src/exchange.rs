//! One request and the handler that answers it: the data in transit in both directions.
//!
//! The body goes from the client through [`Upload::waiting`] to the program or upstream. The
//! response goes through the connection's outgoing pieces to the client, and through the
//! [`ResponseBuffer`] if the client is slow. All buffers are bounded: while one is full, the side
//! that fills it is not read from. So a slow client slows down a fast program in the end, and the
//! other way round.
//!
//! These types make no decisions; `worker/gateway` does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use headway_event::{Interest, Token};
use headway_files::OpenFile;
use headway_gateway::FieldList;
use headway_gateway::cgi::{NphReader, ResponseReader};
use headway_gateway::upstream::{Lease, TriedUpstreams};
use headway_request::{Charge, Frame, ProgramName, Request};

use super::{Body, Pace};

/// Most body bytes that wait for the handler, except for what one more read adds.
const BODY_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// State of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The body must be complete before the handler can start.
    BufferingBody,
    /// Waits for a free slot.
    Queued,
    /// The handler has been requested.
    Starting,
    /// The handler runs, or has ended and left its output behind.
    Running,
    /// The program has the client's socket and writes the response itself.
    HandedOff,
    /// The exchange has released its handler.
    Finished,
}

/// One end of a program's input or output.
pub struct Channel {
    descriptor: OwnedFd,
    /// The event mechanism has registered it.
    pub watched: bool,
}

impl Channel {
    /// Wraps a descriptor that is not registered yet.
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

/// The request body on its way to the handler.
#[derive(Default)]
pub struct Upload {
    /// The parser for the rest of the body; `None` when all has arrived.
    pub body: Option<Body>,
    /// What followed the body.
    pub trailers: FieldList,
    /// Bytes that the handler has not accepted yet.
    pub waiting: Vec<u8>,
    /// How much of `waiting` has been accepted.
    pub taken: usize,
    /// Body bytes received so far.
    pub bytes: u64,
    /// The client waits for `100 Continue`.
    pub expects_continue: bool,
    /// The program's input; `None` before it is open and after it is closed.
    pub sink: Option<Channel>,
    /// The handler does not want the rest.
    pub discarded: bool,
    /// The spool file: the buffered part of the body that is not in `waiting`.
    pub spooled: Option<Rc<OpenFile>>,
    /// Length of the spooled part.
    pub spooled_bytes: u64,
    /// Bytes that a helper is writing, which were in `waiting`.
    pub spooling_bytes: u64,
    /// The client must wait: there is no room for more of the body.
    pub held: bool,
    /// Until when it waits; 0 if it has not had to since its last byte.
    pub held_until_ms: u64,
    /// How fast the client sends.
    pub pace: Pace,
    /// How much of the spooled part has been read back into `waiting`.
    pub read_back_bytes: u64,
    /// A helper is reading the next chunk.
    pub reading_back: bool,
}

impl Upload {
    /// Whether the client may send more now.
    pub fn has_room(&self) -> bool {
        self.discarded || self.waiting.len() - self.taken < BODY_BUFFER_BYTES_MAX
    }

    /// Whether a helper is writing.
    pub fn is_spooling(&self) -> bool {
        self.spooling_bytes > 0
    }

    /// Bytes that the handler has not accepted yet.
    pub fn remaining(&self) -> &[u8] {
        &self.waiting[self.taken..]
    }

    /// The handler has accepted `count` more bytes.
    pub fn advance(&mut self, count: usize) {
        self.taken += count;
        if self.taken == self.waiting.len() {
            self.waiting.clear();
            self.taken = 0;
        } else if self.taken >= BODY_BUFFER_BYTES_MAX {
            self.waiting.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Whether the handler has accepted the whole body.
    pub fn is_complete(&self) -> bool {
        let restored = self.spooled.is_none() || self.read_back_bytes == self.spooled_bytes;
        self.body.is_none() && self.remaining().is_empty() && restored && !self.reading_back
    }

    /// Prepares to send a spooled body again from its start.
    pub fn rewind(&mut self) {
        self.waiting.clear();
        (self.taken, self.read_back_bytes) = (0, 0);
    }

    /// Discards what is here and what is still to come.
    pub fn discard(&mut self) {
        self.discarded = true;
        self.waiting = Vec::new();
        self.taken = 0;
    }
}

/// Parser for a handler's output.
pub enum Reader {
    /// CGI: a head and a body (RFC 3875 section 6).
    Cgi(Box<ResponseReader>),
    /// A non-parsed-header program: a whole HTTP response.
    Nph(NphReader),
    /// An upstream's protocol; the codec of its [`UpstreamRequest`] parses it.
    Upstream,
}

/// A connection to an upstream.
pub struct UpstreamConn {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// The event token, the same from opening to closing.
    pub token: Token,
    /// What the event mechanism watches for; `None` while the socket is not registered.
    pub interest: Option<Interest>,
    /// It is TCP, not a Unix socket.
    pub is_tcp: bool,
}

/// A request in progress at an upstream.
pub struct UpstreamRequest {
    /// Encodes the request and parses the response.
    pub codec: Box<dyn headway_gateway::Codec>,
    /// The connection.
    pub conn: UpstreamConn,
    /// The lease from the selector, which names the upstream.
    pub lease: Lease,
    /// The connection was idle before, so the upstream may just have closed it.
    pub reused: bool,
    /// The connection was idle and nothing has shown since then that the upstream is still there.
    pub is_doubtful: bool,
    /// Something has been sent.
    pub started: bool,
    /// The upstream accepts nothing more.
    pub write_closed: bool,
    /// The end of the body has been passed to the codec.
    pub body_ended: bool,
    /// Body bytes passed to the codec.
    pub body_bytes: u64,
}

/// A connection that has changed to another protocol after the upstream's 101 (RFC 9110, 7.8).
/// Bytes pass uninterpreted: those for the upstream wait in [`Upload::waiting`], those for the
/// client among the connection's outgoing pieces.
pub struct UpgradedConn {
    /// The connection to the upstream.
    pub conn: UpstreamConn,
    /// The client sends nothing more …
    pub client_ended: bool,
    /// … and the upstream's direction has been shut down.
    pub upstream_shut_down: bool,
    /// The upstream sends nothing more …
    pub upstream_ended: bool,
    /// … and the client's direction has been shut down.
    pub client_shut_down: bool,
    /// The upstream accepts nothing more.
    pub write_closed: bool,
}

/// The part of a response that waits for its client: first what is in the spool file, then what is
/// in memory.
#[derive(Default)]
pub struct ResponseBuffer {
    /// The part in memory.
    pub tail: Vec<u8>,
    /// The spool file.
    pub file: Option<Rc<OpenFile>>,
    /// Bytes written to the spool file, or being written.
    pub written_bytes: u64,
    /// How much of that has been read back.
    pub read_back_bytes: u64,
    /// Bytes that a helper is writing.
    pub spooling_bytes: u64,
    /// A helper is reading.
    pub reading_back: bool,
}

impl ResponseBuffer {
    /// Appends bytes to the part in memory.
    pub fn push(&mut self, bytes: Vec<u8>) {
        match self.tail.is_empty() && self.tail.capacity() <= bytes.capacity() {
            true => self.tail = bytes,
            false => self.tail.extend_from_slice(&bytes),
        }
    }

    /// Gives back the room for more bytes. Shrinking in place would leave a hole that is too small for
    /// the next long piece, behind the last bytes of each response.
    pub fn fit(&mut self) {
        self.tail = self.tail.as_slice().to_vec();
    }

    /// Whether nothing is buffered.
    pub fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.read_back_bytes == self.written_bytes
    }

    /// Whether a helper is working on it.
    pub fn is_busy(&self) -> bool {
        self.is_spooling() || self.reading_back
    }

    /// Whether a helper is writing.
    pub fn is_spooling(&self) -> bool {
        self.spooling_bytes > 0
    }
}

/// The response on its way to the client.
pub struct Download {
    /// The program's output; `None` before it is open and after its end.
    pub source: Option<Channel>,
    /// The parser.
    pub reader: Reader,
    /// The response's head, until it is sent.
    pub response: Option<headway_gateway::ResponseHead>,
    /// How the body is framed, once the head has been sent.
    pub frame: Option<Frame>,
    /// The declared body length.
    pub length: Option<u64>,
    /// What follows the body, once it has ended.
    pub trailers: FieldList,
    /// Body bytes so far.
    pub bytes: u64,
    /// Whether more may be read: earlier output has been sent or buffered.
    pub wanted: bool,
    /// How fast the client reads.
    pub pace: Pace,
    /// Bytes that wait for the client behind the queued pieces.
    pub response_buffer: ResponseBuffer,
    /// Whether all of the response has come.
    pub ended: bool,
}

impl Download {
    /// A download before the first byte.
    pub fn new(reader: Reader) -> Self {
        Self {
            source: None,
            reader,
            response: None,
            frame: None,
            length: None,
            trailers: FieldList::default(),
            bytes: 0,
            wanted: true,
            pace: Pace::default(),
            response_buffer: ResponseBuffer::default(),
            ended: false,
        }
    }
}

/// What an exchange takes of the room for bodies and responses.
pub struct BufferCharges {
    /// Bytes in memory.
    pub memory: Charge,
    /// Bytes in files.
    pub disk: Charge,
    /// Files.
    pub files: Charge,
}

/// A request that a handler answers.
pub struct Exchange {
    /// The ID of the exchange; the spawner knows the program by it.
    pub id: u64,
    /// The client's connection.
    pub client: Token,
    /// The program.
    pub program: ProgramName,
    /// The request.
    pub request: Box<Request>,
    /// The state of the exchange.
    pub stage: Stage,
    /// When the exchange started.
    pub begun: Instant,
    /// When the request was complete enough to be answered or queued.
    pub admitted: Instant,
    /// Deadline of the whole request; `u64::MAX` for none.
    pub end_ms: u64,
    /// The client's socket is not read any more: the client ended its direction, or sent bytes of a
    /// later request.
    pub read_closed: bool,
    /// How much had been written to the client's socket before it was handed off, if known.
    pub written_before: Option<u64>,
    /// The request at an upstream, if there is one.
    pub upstream: Option<Box<UpstreamRequest>>,
    /// The pipe process that answers, by its slot.
    pub process: Option<usize>,
    /// The upgraded upstream connection, after a 101.
    pub upgraded: Option<Box<UpgradedConn>>,
    /// The upstreams tried so far.
    pub tried: TriedUpstreams,
    /// A reused connection failed; the retry needs a new one.
    pub needs_new_conn: bool,
    /// The exchange counts towards its location's `concurrency`.
    pub holds_slot: bool,
    /// Its part of the requests of its client's address that the location answers.
    pub address_slot: Option<Charge>,
    /// Its share of the memory, the disk space and the files for bodies and responses.
    pub buffers: BufferCharges,
    /// The request body.
    pub upload: Upload,
    /// The response.
    pub download: Download,
}

impl Exchange {
    /// Whether the program has been requested and not released.
    pub fn is_started(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Running)
    }

    /// Updates what its body and response take. `sending_bytes` of the response are on their way to the
    /// client.
    pub fn charge_buffers(&mut self, sending_bytes: u64) {
        let (upload, response) = (&self.upload, &self.download.response_buffer);
        let in_memory = upload.waiting.capacity() + response.tail.capacity();
        let being_written = upload.spooling_bytes + response.spooling_bytes;
        let charges = &mut self.buffers;
        charges
            .memory
            .set(in_memory as u64 + being_written + sending_bytes);
        charges
            .disk
            .set(upload.spooled_bytes + response.written_bytes);
        let files = u64::from(upload.spooled_bytes > 0) + u64::from(response.written_bytes > 0);
        charges.files.set(files);
    }

    /// Whether an upstream connection is being established.
    pub fn is_connecting(&self) -> bool {
        matches!(&self.upstream, Some(upstream) if !upstream.started && !upstream.reused)
    }

    /// Whether the connection to the upstream may have died while it was idle.
    pub fn is_upstream_doubtful(&self) -> bool {
        matches!(&self.upstream, Some(upstream) if upstream.is_doubtful)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_memory_is_bounded_for_a_slow_program() {
        let (mut upload, mut sent, mut taken) = (Upload::default(), 0_u64, Vec::new());
        let mut most = 0;
        while taken.len() < 1 << 20 {
            while upload.has_room() {
                upload.waiting.extend((0..20_000).map(|_| {
                    sent += 1;
                    sent as u8
                }));
            }
            let some = upload.remaining().len().min(7_001);
            taken.extend_from_slice(&upload.remaining()[..some]);
            upload.advance(some);
            most = most.max(upload.waiting.capacity());
        }
        assert!(most < 6 * BODY_BUFFER_BYTES_MAX, "{most}");
        assert!(
            (1_u64..)
                .zip(&taken)
                .all(|(number, byte)| number as u8 == *byte)
        );
    }

    #[test]
    fn discarded_upload_always_has_room() {
        let mut upload = Upload {
            waiting: vec![0; BODY_BUFFER_BYTES_MAX],
            ..Upload::default()
        };
        assert!(!upload.has_room());
        upload.discard();
        assert!(upload.has_room() && upload.remaining().is_empty());
    }
}
