//! One request and its response. A stream replaces the client's socket while the request is answered.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;

use crate::connection::Connection;
use crate::frame::Reason;
use crate::priority::Priority;
use crate::request::{Translated, Upload};
use crate::response::{Body, HEAD_BYTES_MAX, translate};

/// The most data that a stream sends at a time, so that other streams get their turn.
const TURN_BYTES_MAX: usize = 16 << 10;
/// The most bytes of a chunk's framing: its size and two line ends.
const FRAME_BYTES_MAX: usize = 20;
/// The most capacity that the buffer for header blocks keeps.
const BLOCK_BYTES_MAX: usize = 4 << 10;

/// The result of [`Stream::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This number of bytes of the body, framed as in HTTP/1.1.
    Data(usize),
    /// No bytes now.
    Nothing,
    /// The client sends nothing more on a WebSocket.
    End,
    /// The client has cancelled the stream.
    Reset,
}

/// The error of a stream that accepts no more bytes: the client has cancelled it, or the bytes are not a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// One request and its response.
pub struct Stream {
    id: u32,
    connection: Rc<RefCell<Connection>>,
    upload: Upload,
    /// The last chunk of the body and its trailers, without the bytes that `receive` has already returned.
    last_chunk: Option<Vec<u8>>,
    /// `receive` has returned the end of the body.
    is_upload_over: bool,
    /// The `Sec-WebSocket-Accept` of an upstream that agrees to a WebSocket.
    websocket_answer: Option<String>,
    /// The stream has become a WebSocket.
    is_websocket: bool,
    /// The upstream's answer to a WebSocket is wrong. The upstream must not wait for the client.
    is_cut: bool,
    is_head: bool,
    /// The incomplete header of the response.
    head: Vec<u8>,
    /// The framing of the response's body, once the header was sent.
    body: Option<Body>,
    status: u16,
    /// END_STREAM was sent, or the stream was reset.
    is_over: bool,
    is_reset_by_us: bool,
    priority: Priority,
}

impl Stream {
    pub(crate) fn new(id: u32, request: Translated, connection: Rc<RefCell<Connection>>) -> Stream {
        Stream {
            id,
            connection,
            upload: request.upload,
            last_chunk: None,
            is_upload_over: request.upload == Upload::None,
            websocket_answer: request.websocket_answer,
            is_websocket: false,
            is_cut: false,
            is_head: request.is_head,
            head: Vec::new(),
            body: None,
            status: 0,
            is_over: false,
            is_reset_by_us: false,
            priority: request.priority,
        }
    }

    /// The number of the stream in its connection.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The status that was sent to the client, if any. For a WebSocket it differs from the status of the HTTP/1.1
    /// response.
    pub fn status(&self) -> Option<u16> {
        (self.status != 0).then_some(self.status)
    }

    /// The priority of the response: that of the client's last PRIORITY_UPDATE, or else of its `Priority` header.
    pub fn priority(&mut self) -> Priority {
        if let Some(priority) = self.connection.borrow_mut().updates.take(self.id) {
            self.priority = priority;
        }
        self.priority
    }

    /// Whether the stream has ended without a complete response, usually because the client has cancelled it.
    pub fn is_reset(&mut self) -> bool {
        let is_raw = self.upload == Upload::Raw;
        if self.is_over && (!is_raw || self.is_reset_by_us) {
            return self.is_cut && is_raw;
        }
        let mut connection = self.connection.borrow_mut();
        let is_reset = connection
            .stream(self.id)
            .is_none_or(|state| state.is_reset);
        is_reset || (self.is_cut && is_raw)
    }

    /// Whether [`receive`](Stream::receive) has something to return.
    pub fn has_input(&mut self) -> bool {
        // Bytes that a client sends before the WebSocket is open wait, within the flow-control window.
        if self.is_upload_over || (self.upload == Upload::Raw && !self.is_websocket) {
            return false;
        }
        let mut connection = self.connection.borrow_mut();
        let Some(state) = connection.stream(self.id) else {
            return false;
        };
        if !state.data().is_empty() {
            return true;
        }
        // A body with a length ends with its last byte, so no end is returned.
        let has_end_marker = matches!(self.upload, Upload::Chunked | Upload::Raw);
        self.is_upload_over = state.is_at_end() && !has_end_marker;
        state.is_at_end() && has_end_marker
    }

    /// Reads a part of the body, framed as in HTTP/1.1. The buffer must have room for more than the framing of a
    /// chunk, which is 20 bytes.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Received {
        if !self.has_input() {
            return match self.is_reset() {
                true => Received::Reset,
                false => Received::Nothing,
            };
        }
        let mut connection = self.connection.borrow_mut();
        let Some(state) = connection.stream(self.id) else {
            return Received::Reset;
        };
        if state.data().is_empty() {
            let trailers = std::mem::take(&mut state.trailers);
            drop(connection);
            return self.receive_end(&trailers, buffer);
        }
        let is_chunked = self.upload == Upload::Chunked;
        let frame = if is_chunked { FRAME_BYTES_MAX } else { 0 };
        let room = buffer.len().saturating_sub(frame);
        if room == 0 {
            // An empty chunk would end the body.
            return Received::Nothing;
        }
        let count = state.data().len().min(room);
        let data = &state.data()[..count];
        let written = match is_chunked {
            true => copy(
                buffer,
                &[format!("{count:x}\r\n").as_bytes(), data, b"\r\n"],
            ),
            false => copy(buffer, &[data]),
        };
        connection.consume_data(self.id, count);
        Received::Data(written)
    }

    /// Returns the end of a WebSocket, or the last chunk and the trailers.
    fn receive_end(&mut self, trailers: &[u8], buffer: &mut [u8]) -> Received {
        if self.upload == Upload::Raw {
            self.is_upload_over = true;
            return Received::End;
        }
        let left = self
            .last_chunk
            .get_or_insert_with(|| [b"0\r\n", trailers, b"\r\n"].concat());
        let count = left.len().min(buffer.len());
        let written = copy(buffer, &[&left[..count]]);
        left.drain(..count);
        self.is_upload_over = left.is_empty();
        match written {
            0 => Received::Nothing,
            _ => Received::Data(written),
        }
    }

    /// Whether [`send`](Stream::send) would accept bytes now.
    pub fn can_send(&mut self) -> bool {
        let mut connection = self.connection.borrow_mut();
        let has_room = !self.is_over && connection.buffers.room() > 0;
        has_room
            && self
                .body
                .as_ref()
                .is_none_or(|body| connection.send_window_of(self.id) > 0 || body.is_between_data())
    }

    /// Sends bytes of the response, and returns how many it has accepted. `None` if there is no room now.
    ///
    /// # Errors
    /// If the client has cancelled the stream, or the bytes are not a response.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Gone> {
        if self.is_over || self.is_reset() {
            return Err(Gone);
        }
        if self.connection.borrow().buffers.room() == 0 {
            return Ok(None);
        }
        let mut taken = 0;
        for part in parts {
            let count = match self.is_over {
                // Bytes after the end of the response are dropped.
                true => part.len(),
                false => self.send_part(part)?,
            };
            taken += count;
            if count < part.len() {
                break;
            }
        }
        Ok((taken > 0 || parts.iter().all(|part| part.is_empty())).then_some(taken))
    }

    fn send_part(&mut self, part: &[u8]) -> Result<usize, Gone> {
        if part.is_empty() {
            return Ok(0);
        }
        let Some(body) = &mut self.body else {
            return self.send_head(part);
        };
        let mut connection = self.connection.borrow_mut();
        let most = TURN_BYTES_MAX.min(connection.buffers.room());
        let mut room = connection.send_window_of(self.id).min(most).min(part.len());
        if room == 0 {
            // The rest of a chunk's framing is not sent, so it needs no room in the windows.
            room = body.frame_bytes(part);
        }
        if room == 0 {
            return Ok(0);
        }
        let (count, data, is_last) = next_data(body, &part[..room], part)?;
        let mut block = Vec::new();
        let has_trailers = is_last && body.encode_trailers(&mut connection.encoder, &mut block);
        connection.buffers.count_use(data.len());
        if !data.is_empty() || (is_last && !has_trailers) {
            connection.write_data(self.id, &data, is_last && !has_trailers);
        }
        if has_trailers {
            connection.write_headers(self.id, &block, true);
        }
        self.is_over = is_last;
        Ok(count)
    }

    /// Accepts a part of the response's header, and of the body that follows.
    fn send_head(&mut self, part: &[u8]) -> Result<usize, Gone> {
        let before = self.head.len();
        let joined;
        let head = match before {
            0 => part,
            _ => {
                let most = part.len().min(HEAD_BYTES_MAX);
                self.head.extend_from_slice(&part[..most]);
                joined = std::mem::take(&mut self.head);
                &joined[..]
            }
        };
        let mut connection = self.connection.borrow_mut();
        let mut block = std::mem::take(&mut connection.block);
        block.clear();
        let answer = self.websocket_answer.as_deref();
        let encoder = &mut connection.encoder;
        let translated = translate(head, self.is_head, answer, encoder, &mut block);
        let Some(translated) = translated.map_err(|()| Gone)? else {
            self.head = head.to_vec();
            return Ok(part.len());
        };
        let is_open = (200..300).contains(&translated.status);
        self.status = translated.status;
        self.is_websocket = is_open && self.websocket_answer.is_some();
        // An upstream with a wrong answer may wait for the client, which gets an error instead.
        self.is_cut |= translated.changes_protocol && !is_open;
        let used = translated.length.saturating_sub(before);
        if translated.status < 200 {
            // HTTP/2 clients do not need 100 Continue.
            return Ok(used);
        }
        let is_last = matches!(translated.body, Body::Length(0));
        connection.write_headers(self.id, &block, is_last);
        if block.capacity() <= BLOCK_BYTES_MAX {
            connection.block = block;
        }
        if let Some(state) = connection.stream(self.id) {
            state.is_answered = true;
        }
        drop(connection);
        self.body = Some(translated.body);
        self.is_over = is_last;
        match is_last {
            // Bytes after the end of the response are dropped.
            true => Ok(part.len()),
            false => Ok(used + self.send_part(&part[used..])?),
        }
    }

    /// Refuses the request, which the client may send again elsewhere (RFC 9113, 8.7).
    pub fn refuse(mut self) {
        self.reset(Reason::RefusedStream);
    }

    fn reset(&mut self, reason: Reason) {
        self.connection.borrow_mut().reset(self.id, reason);
        (self.is_over, self.is_reset_by_us) = (true, true);
    }

    /// Ends the response. A response that is shorter than its length is reset.
    pub fn end(&mut self) {
        if self.is_over {
            return;
        }
        if matches!(self.body, Some(Body::ToEnd)) && !self.is_reset() {
            self.connection.borrow_mut().write_data(self.id, &[], true);
            self.is_over = true;
        } else {
            self.reset(Reason::Internal);
        }
    }
}

/// A stream that is dropped before its response is complete is reset.
impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_reset() {
            self.connection.borrow_mut().cancelled += 1;
        } else if !self.is_over {
            self.reset(Reason::Internal);
        }
        self.connection.borrow_mut().remove(self.id);
    }
}

fn copy(buffer: &mut [u8], parts: &[&[u8]]) -> usize {
    let mut at = 0;
    for part in parts {
        buffer[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    at
}

/// Removes the HTTP/1.1 framing from `allowed`, which are the first bytes of `whole`. Returns how many bytes of `whole`
/// are used up, the data, and whether the body ends with it. If it does, all of `whole` is used up.
fn next_data<'a>(
    body: &mut Body,
    allowed: &'a [u8],
    whole: &[u8],
) -> Result<(usize, Cow<'a, [u8]>, bool), Gone> {
    match body {
        Body::ToEnd => Ok((allowed.len(), allowed.into(), false)),
        Body::Length(left) => {
            let count = (allowed.len() as u64).min(*left) as usize;
            *left -= count as u64;
            let is_last = *left == 0;
            let used = if is_last { whole.len() } else { count };
            Ok((used, allowed[..count].into(), is_last))
        }
        Body::Chunked(chunks) => {
            use headway_http::chunked::DrainProgress;
            let mut data = Vec::with_capacity(allowed.len());
            let progress = chunks.feed_body(allowed, |piece| data.extend_from_slice(piece));
            match progress {
                DrainProgress::More => Ok((allowed.len(), data.into(), false)),
                DrainProgress::Done(_) => Ok((whole.len(), data.into(), true)),
                DrainProgress::Bad | DrainProgress::TooLarge => Err(Gone),
            }
        }
    }
}
