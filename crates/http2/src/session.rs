//! A client's connection: its frames, and the streams that they make.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection, Handshake, SendResponse};

use crate::pipe::{Buffers, Pipe};
use crate::request::translate;
use crate::stream::Stream;

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests at a time.
    pub streams_max: u32,
    /// Longest header of a request.
    pub header_bytes_max: u32,
}

/// Bytes of bodies that a client may send before they are taken, per stream and per connection. They
/// limit the memory of a connection.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Streams that a client may reset before we have looked at them (Rapid Reset, CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 20;
/// Streams that we reset because of errors of the client (MadeYouReset, CVE-2025-8671).
const OWN_RESETS_MAX: usize = 100;
/// A client that cancels most of its requests, and more than this number, is an attacker (Rapid Reset, when each
/// reset comes after its request was begun).
const GIVEN_UP_MIN: u64 = 500;
/// Table for compressed headers: small, since it is kept for each connection.
const HEADER_TABLE_BYTES: u32 = 4 << 10;

enum State {
    Handshake(Box<Handshake<Pipe, Bytes>>),
    Open(Box<Connection<Pipe, Bytes>>),
    Over,
}

/// A client's connection.
pub struct Session {
    state: State,
    buffers: Rc<RefCell<Buffers>>,
    is_shutting_down: bool,
    requests: u64,
}

impl Session {
    /// The connection before the client's preface has come.
    pub fn new(settings: Settings) -> Session {
        let buffers = Rc::new(RefCell::new(Buffers::default()));
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(settings.streams_max)
            .max_header_list_size(settings.header_bytes_max)
            .header_table_size(HEADER_TABLE_BYTES)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_local_error_reset_streams(Some(OWN_RESETS_MAX));
        let handshake = builder.handshake(Pipe(buffers.clone()));
        Session {
            state: State::Handshake(Box::new(handshake)),
            buffers,
            is_shutting_down: false,
            requests: 0,
        }
    }

    /// Takes bytes of the client.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffers.borrow_mut().feed(bytes);
    }

    /// Whether bytes of the client would be taken at once.
    pub fn takes_input(&self) -> bool {
        self.buffers.borrow().is_consumed()
    }

    /// Processes what has come and what streams have sent, and returns the next request: its header
    /// as in HTTP/1.1, and its stream.
    pub fn next_request(&mut self) -> Option<(Vec<u8>, Stream)> {
        let context = &mut Context::from_waker(Waker::noop());
        self.end_flood();
        self.buffers.borrow_mut().queued = 0;
        loop {
            match &mut self.state {
                State::Over => return None,
                State::Handshake(handshake) => match Pin::new(handshake).poll(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Ok(connection)) => {
                        self.state = State::Open(Box::new(connection));
                        if self.is_shutting_down {
                            self.shut_down();
                        }
                    }
                    Poll::Ready(Err(_)) => self.state = State::Over,
                },
                State::Open(connection) => match connection.poll_accept(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        if let Some(request) = self.request(request, respond) {
                            self.requests += 1;
                            self.buffers.borrow_mut().count_use(usize::MAX);
                            return Some(request);
                        }
                    }
                    Poll::Ready(Some(Err(_)) | None) => self.state = State::Over,
                },
            }
        }
    }

    /// Ends the connection of a client that sends much without effect: pings, settings, window updates, empty
    /// frames, requests that it cancels. The crate h2 limits only some of these.
    fn end_flood(&mut self) {
        let given_up = self.buffers.borrow().given_up;
        let gives_up = given_up > GIVEN_UP_MIN && given_up > self.requests / 2;
        if let State::Open(connection) = &mut self.state
            && (gives_up || self.buffers.borrow().is_flooded())
        {
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
    }

    /// A request that contradicts itself is reset (RFC 9113, 8.1.1).
    fn request(
        &self,
        request: http::Request<h2::RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Option<(Vec<u8>, Stream)> {
        let (parts, receive) = request.into_parts();
        let Some(translated) = translate(&parts, !receive.is_end_stream()) else {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return None;
        };
        let kind = (translated.upload, translated.is_head, translated.priority);
        let stream = Stream::new(receive, respond, kind, self.buffers.clone());
        Some((translated.head, stream))
    }

    /// Accepts no more requests (GOAWAY), and ends when the accepted ones are answered.
    pub fn shut_down(&mut self) {
        self.is_shutting_down = true;
        if let State::Open(connection) = &mut self.state {
            connection.graceful_shutdown();
        }
    }

    /// Whether nothing follows except what [`with_output`](Session::with_output) shows.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Has the bytes for the client shown.
    pub fn with_output<T>(&self, use_: impl FnOnce(&[u8]) -> T) -> T {
        use_(self.buffers.borrow().output())
    }

    /// Whether there are such bytes.
    pub fn has_output(&self) -> bool {
        !self.buffers.borrow().output().is_empty()
    }

    /// The client's socket has taken the first `count` of them.
    pub fn sent(&mut self, count: usize) {
        self.buffers.borrow_mut().sent(count);
    }

    /// Whether there is room for data of streams.
    pub fn has_room(&self) -> bool {
        self.buffers.borrow().room() > 0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.buffers.borrow_mut().forget_input();
    }
}
