//! The connection of a client: it reads frames and returns the requests of their streams.

use std::cell::RefCell;
use std::rc::Rc;

use crate::connection::{Connection, SUSPECT_INPUT_BYTES};
use crate::stream::Stream;

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Concurrent requests.
    pub streams_max: u32,
    /// Longest header list of a request, as RFC 9113, 6.5.2 counts it.
    pub header_bytes_max: u32,
    /// The scheme of the connection. A request with another one gets an absolute target; `None` for any.
    pub scheme: Option<&'static str>,
}

impl Settings {
    /// The memory limit of a connection with the headers of its requests, for any input: 4.3 MiB with 100 streams and
    /// headers of 16 KiB, the defaults. The rest of a request has limits of its own and is not included.
    pub const fn memory_bytes_max(&self) -> u64 {
        // Twice, because a list of short headers needs more memory than its limit counts.
        let stream = STREAM_BYTES + 2 * self.header_bytes_max as u64;
        CONNECTION_BYTES + self.streams_max as u64 * stream
    }
}

/// Memory of a connection without its streams: received bodies, input, output and HPACK tables. It includes the
/// unused capacity of growing buffers.
const CONNECTION_BYTES: u64 = 1 << 20;
/// Memory of a stream without its header.
const STREAM_BYTES: u64 = 2 << 10;

/// A client's connection.
pub struct Session(Rc<RefCell<Connection>>);

impl Session {
    /// Creates a connection which expects the client's preface.
    pub fn new(settings: Settings) -> Session {
        Session(Rc::new(RefCell::new(Connection::new(settings))))
    }

    /// Adds bytes of the client. If the client is a [suspect](Session::is_suspect), only a part of its bytes is
    /// processed before the next call of [`go_on`](Session::go_on).
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.borrow_mut().feed(bytes);
    }

    /// Whether the caller should read from the client: more bytes would be processed at once.
    pub fn takes_input(&self) -> bool {
        self.0.borrow().takes_input()
    }

    /// Whether bytes of a suspect wait for a call of [`go_on`](Session::go_on).
    pub fn withholds(&self) -> bool {
        self.0.borrow().withholds()
    }

    /// Allows more of the bytes which wait to be processed. Returns whether there were any.
    pub fn go_on(&mut self) -> bool {
        self.0.borrow_mut().go_on()
    }

    /// Makes the client a [suspect](Session::is_suspect) until its first request.
    pub fn distrust(&mut self) {
        self.0.borrow_mut().is_distrusted = true;
    }

    /// Whether the client is a suspect: many of the bytes that it has sent lately had no effect, or it is
    /// [distrusted](Session::distrust). The caller should serve other clients first.
    pub fn is_suspect(&self) -> bool {
        self.0.borrow().is_suspect()
    }

    /// Whether the connection has ended because of a flood: too many bytes of the client had no effect.
    pub fn has_flooded(&self) -> bool {
        self.0.borrow().has_flooded
    }

    /// The most bytes that the caller should read at a time. Frames without effect need the most CPU time per byte:
    /// many clients that send them would delay the others.
    pub fn input_max(&self) -> usize {
        let connection = self.0.borrow();
        match !connection.has_requests() || connection.is_suspect() {
            true => SUSPECT_INPUT_BYTES,
            false => usize::MAX,
        }
    }

    /// Processes the input until a request is complete. Returns its HTTP/1.1 header and its stream.
    pub fn next_request(&mut self) -> Option<(Vec<u8>, Stream)> {
        let request = self.0.borrow_mut().next_request()?;
        let (stream, mut translated) = (request.stream, request.translated);
        let head = std::mem::take(&mut translated.head);
        Some((head, Stream::new(stream, translated, self.0.clone())))
    }

    /// Whether frames since the last call may have changed what open streams can do: they may have input or room, have
    /// another priority, or be reset.
    pub fn take_changes(&mut self) -> bool {
        self.0.borrow_mut().take_changes()
    }

    /// Sends GOAWAY: the connection accepts no more requests, and ends when the accepted ones are answered.
    pub fn shut_down(&mut self) {
        self.0.borrow_mut().shut_down();
    }

    /// Whether the connection has ended. Only the bytes of [`with_output`](Session::with_output) remain to be sent.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_over()
    }

    /// Calls `use_` with the bytes for the client.
    pub fn with_output<T>(&self, use_: impl FnOnce(&[u8]) -> T) -> T {
        use_(self.0.borrow().buffers.output())
    }

    /// Whether there are bytes for the client.
    pub fn has_output(&self) -> bool {
        !self.0.borrow().buffers.output().is_empty()
    }

    /// Removes the first `count` bytes for the client, which were sent.
    pub fn sent(&mut self, count: usize) {
        self.0.borrow_mut().buffers.sent(count);
    }

    /// Whether the output buffer has room for data of streams.
    pub fn has_room(&self) -> bool {
        self.0.borrow().buffers.room() > 0
    }
}

/// Streams may outlive the session. They are reset.
impl Drop for Session {
    fn drop(&mut self) {
        let mut connection = self.0.borrow_mut();
        connection.close();
        connection.buffers.forget_input();
    }
}
