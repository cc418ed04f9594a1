//! The HTTP/2 of one connection, without I/O: it reads and writes frames, and has the streams.
//!
//! Bodies are counted and never stored. The memory of a connection is an incomplete frame (16 KiB), a header block in
//! several frames (64 KiB), and frames to send. `receive` processes the frames of the server.
//!
//! Source: RFC 9113 sections 5 to 8.

use std::collections::VecDeque;

use headway_http2::hpack::Decoder;
use headway_latency::Outcome;

use super::super::response::HEADER_BYTES_MAX;
use super::super::slot::ConnectionSlot;
use super::frames;

mod receive;

use receive::{Block, DataFrame};

/// If the output has this many bytes, no more bodies of requests are written into frames.
const BODY_BYTES_QUEUED: usize = 64 * 1024;

/// A connection error: the error code for the server, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub code: u32,
    pub why: &'static str,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The response is complete. `excess` is whether it was longer than the expected file.
    Whole { excess: bool },
    /// There is no valid response.
    Failed(Outcome),
    /// The server has not processed the request (RFC 9113 section 8.7). This is its outcome if it cannot be sent again.
    Unprocessed(Outcome),
}

/// What received frames change: the requests, and the list of streams that have ended.
pub(super) struct Receiver<'a> {
    pub slots: &'a mut [ConnectionSlot],
    pub server: &'a mut Option<String>,
    pub ended: &'a mut Vec<(u32, StreamEnd)>,
    pub now_ns: u64,
}

/// A stream: a request whose response is not complete.
#[derive(Clone, Copy, Debug)]
struct Stream {
    id: u32,
    slot: u32,
    /// The flow-control window: bytes that the client may send.
    window: i64,
    /// Bytes of the request's body that were written into frames.
    body_bytes: usize,
    /// Whether the whole request was written into frames.
    is_sent: bool,
    /// The response is longer than the expected file.
    excess: bool,
    /// Bytes that were received, but not yet added to the server's window by WINDOW_UPDATE.
    unacknowledged: u32,
}

#[derive(Debug)]
pub(super) struct Session {
    /// Frames for the server. Their first `sent` bytes were sent.
    output: Vec<u8>,
    sent: usize,
    /// The beginning of an incomplete frame.
    input: Vec<u8>,
    data: Option<DataFrame>,
    block: Option<Block>,
    block_bytes: Vec<u8>,
    decoder: Decoder,
    /// In ascending order of ids.
    streams: Vec<Stream>,
    /// Slots whose requests wait for a stream.
    pub waiting: VecDeque<u32>,
    /// Streams whose bodies are not completely sent. Each sends one frame in turn.
    sending: VecDeque<u32>,
    next_id: u32,
    /// Requests started so far.
    pub started: u32,
    /// The most requests of the connection. `None` is no limit.
    carries: Option<u32>,
    streams_max: u32,
    stream_window: i64,
    window: i64,
    unacknowledged: u32,
    /// The server's SETTINGS were received.
    is_greeted: bool,
    /// The connection has completed a response.
    pub has_answered: bool,
    /// No more streams are started.
    pub is_draining: bool,
    /// The error code of the server's GOAWAY, unless it is NO_ERROR.
    pub goaway: Option<u32>,
}

impl Session {
    /// Sends these bytes before the preface.
    pub(super) fn begin_with(&mut self, bytes: Vec<u8>) {
        self.output.splice(0..0, bytes);
    }

    pub(super) fn new(carries: Option<u32>) -> Session {
        let mut output = Vec::with_capacity(1024);
        frames::put_preface(&mut output, HEADER_BYTES_MAX as u32);
        Session {
            output,
            sent: 0,
            input: Vec::new(),
            data: None,
            block: None,
            block_bytes: Vec::new(),
            decoder: Decoder::default(),
            streams: Vec::new(),
            waiting: VecDeque::new(),
            sending: VecDeque::new(),
            next_id: 1,
            started: 0,
            carries,
            streams_max: u32::MAX,
            stream_window: frames::WINDOW_BYTES_DEFAULT.into(),
            window: frames::WINDOW_BYTES_DEFAULT.into(),
            unacknowledged: 0,
            is_greeted: false,
            has_answered: false,
            is_draining: false,
            goaway: None,
        }
    }

    /// Whether the connection has neither streams nor waiting requests.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty() && self.waiting.is_empty()
    }

    /// Frames that were not sent yet.
    pub(super) fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Removes this number of bytes, which were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Starts a stream for the next waiting request. Returns its slot and its id.
    ///
    /// `put` writes the header of a slot's request with this id, and says whether a body follows.
    pub(super) fn start(
        &mut self,
        put: impl FnOnce(u32, u32, &mut Vec<u8>) -> bool,
    ) -> Option<(u32, u32)> {
        if self.is_draining || self.streams.len() as u64 >= u64::from(self.streams_max) {
            return None;
        }
        let slot = self.waiting.pop_front()?;
        let id = self.next_id;
        self.next_id += 2;
        self.started += 1;
        let has_body = put(slot, id, &mut self.output);
        if has_body {
            self.sending.push_back(id);
        }
        self.streams.push(Stream {
            id,
            slot,
            window: self.stream_window,
            body_bytes: 0,
            is_sent: !has_body,
            excess: false,
            unacknowledged: 0,
        });
        let is_full = self.carries.is_some_and(|most| self.started >= most);
        self.is_draining |= is_full || i64::from(self.next_id) > frames::WINDOW_BYTES_MAX;
        Some((slot, id))
    }

    /// Writes bodies into frames, as far as the windows allow. Each stream writes one frame in turn.
    pub(super) fn put_bodies<'b>(&mut self, body_of: impl Fn(u32) -> &'b [u8]) {
        let mut blocked = 0;
        while blocked < self.sending.len() && self.output().len() < BODY_BYTES_QUEUED {
            let Some(id) = self.sending.pop_front() else {
                return;
            };
            let (window, at) = (self.window, self.place(id));
            let Some(stream) = at.map(|at| &mut self.streams[at]) else {
                continue;
            };
            let room = window.min(stream.window).max(0) as usize;
            let body = body_of(stream.slot);
            let left = &body[stream.body_bytes..];
            let piece = &left[..left.len().min(room).min(frames::PAYLOAD_BYTES_MAX)];
            if piece.is_empty() {
                self.sending.push_back(id);
                blocked += 1;
                continue;
            }
            blocked = 0;
            stream.body_bytes += piece.len();
            stream.window -= piece.len() as i64;
            stream.is_sent = stream.body_bytes == body.len();
            let flags = if stream.is_sent {
                frames::END_STREAM
            } else {
                0
            };
            if !stream.is_sent {
                self.sending.push_back(id);
            }
            self.window -= piece.len() as i64;
            frames::put_header(&mut self.output, piece.len(), frames::DATA, flags, id);
            self.output.extend_from_slice(piece);
        }
    }

    /// Cancels a stream, or a request that waits for one.
    pub(super) fn cancel(&mut self, slot: u32, id: u32) {
        if id == 0 {
            self.waiting.retain(|&waiting| waiting != slot);
        } else if let Some(at) = self.place(id) {
            self.streams.remove(at);
            frames::put_number(&mut self.output, frames::RST_STREAM, id, frames::CANCEL);
        }
    }

    /// Removes all requests of a failed connection. Returns the slots with a stream, and the slots without one.
    pub(super) fn drain_requests(&mut self) -> (Vec<u32>, Vec<u32>) {
        let streams = self.streams.drain(..).map(|stream| stream.slot);
        (streams.collect(), self.waiting.drain(..).collect())
    }

    /// Writes GOAWAY.
    pub(super) fn put_goaway(&mut self, code: u32) {
        frames::put_goaway(&mut self.output, code);
    }

    fn place(&self, id: u32) -> Option<usize> {
        let place = self.streams.binary_search_by_key(&id, |stream| stream.id);
        place.ok()
    }
}

#[cfg(test)]
mod tests;
