//! One request and its response. It takes the place of the client's socket while the request is answered.

use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};

use crate::pipe::Buffers;
use crate::priority::Priority;
use crate::request::Upload;
use crate::response::{Body, HEAD_BYTES_MAX, translate};

/// The most data that a stream gives at a time, so that others have their turn.
const TURN_BYTES_MAX: usize = 16 << 10;
/// The size of a chunk, and two line ends.
const FRAME_BYTES_MAX: usize = 20;

/// What receiving has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This number of bytes of the body, framed as in HTTP/1.1.
    Data(usize),
    /// No bytes now.
    Nothing,
    /// The client has given the stream up.
    Reset,
}

/// Why a stream takes no more bytes: the client has cancelled it, or the bytes are not a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// One request and its response.
pub struct Stream {
    upload: Upload,
    receive: RecvStream,
    /// Data that was received and not taken.
    pending: Bytes,
    /// Nothing follows except trailers, which are not passed on.
    is_received: bool,
    /// The end of the body, as chunks have it, was given.
    is_upload_over: bool,
    is_head: bool,
    respond: SendResponse<Bytes>,
    /// A part of the response's header.
    head: Vec<u8>,
    send: Option<(SendStream<Bytes>, Body)>,
    /// The end was sent, or the stream was reset.
    is_over: bool,
    buffers: Rc<RefCell<Buffers>>,
    /// How urgent its response is.
    pub priority: Priority,
}

impl Stream {
    pub(crate) fn new(
        receive: RecvStream,
        respond: SendResponse<Bytes>,
        (upload, is_head, priority): (Upload, bool, Priority),
        buffers: Rc<RefCell<Buffers>>,
    ) -> Stream {
        Stream {
            upload,
            receive,
            pending: Bytes::new(),
            is_received: false,
            is_upload_over: upload == Upload::None,
            is_head,
            respond,
            head: Vec::new(),
            send: None,
            is_over: false,
            buffers,
            priority,
        }
    }

    /// Whether the client has given the stream up.
    pub fn is_reset(&mut self) -> bool {
        let context = &mut Context::from_waker(Waker::noop());
        let reset = match &mut self.send {
            Some((send, _)) => send.poll_reset(context),
            None => self.respond.poll_reset(context),
        };
        !self.is_over && reset.is_ready()
    }

    /// Whether [`receive`](Stream::receive) has something to return.
    pub fn has_input(&mut self) -> bool {
        if self.is_upload_over {
            return false;
        }
        // A frame may be empty.
        while self.pending.is_empty() && !self.is_received {
            let context = &mut Context::from_waker(Waker::noop());
            match self.receive.poll_data(context) {
                Poll::Ready(Some(Ok(data))) => self.pending = data,
                Poll::Ready(None) => self.is_received = true,
                // The stream was reset, which is asked for elsewhere.
                Poll::Ready(Some(Err(_))) | Poll::Pending => break,
            }
        }
        // A body with a length has ended with its last byte.
        let is_told = self.upload == Upload::Chunked;
        self.is_upload_over = self.is_received && self.pending.is_empty() && !is_told;
        !self.pending.is_empty() || (self.is_received && is_told)
    }

    /// Takes a part of the body, framed as in HTTP/1.1. The buffer has room for the frame of a chunk and
    /// more.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Received {
        if !self.has_input() {
            return match self.is_reset() {
                true => Received::Reset,
                false => Received::Nothing,
            };
        }
        let is_chunked = self.upload == Upload::Chunked;
        let frame = if is_chunked { FRAME_BYTES_MAX } else { 0 };
        let room = buffer.len().saturating_sub(frame);
        if room == 0 {
            // An empty chunk would be the end.
            return Received::Nothing;
        }
        if self.pending.is_empty() {
            self.is_upload_over = true;
            return Received::Data(copy(buffer, &[b"0\r\n\r\n"]));
        }
        let count = self.pending.len().min(room);
        let size = format!("{count:x}\r\n");
        let data = &self.pending[..count];
        let written = match is_chunked {
            true => copy(buffer, &[size.as_bytes(), data, b"\r\n"]),
            false => copy(buffer, &[data]),
        };
        self.pending.advance(count);
        // The client may send as much again.
        let _ = self.receive.flow_control().release_capacity(count);
        // Twice, since frames have headers.
        self.buffers.borrow_mut().count_use(2 * count);
        Received::Data(written)
    }

    /// Whether [`send`](Stream::send) takes anything now.
    pub fn can_send(&mut self) -> bool {
        let room = self.buffers.borrow().room();
        match &mut self.send {
            None => room > 0,
            Some((send, body)) => {
                send.reserve_capacity(TURN_BYTES_MAX);
                room > 0 && (send.capacity() > 0 || body.is_between_data())
            }
        }
    }

    /// Takes bytes of the response, and returns how many. `None` if there is no room for any now.
    ///
    /// # Errors
    /// If the client has given the stream up, or the bytes are no response.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, Gone> {
        if self.is_over || self.buffers.borrow().room() == 0 {
            return if self.is_over { Err(Gone) } else { Ok(None) };
        }
        let mut taken = 0;
        for part in parts {
            let count = match self.is_over {
                // What follows the end is no part of the response.
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
        let Some((send, body)) = &mut self.send else {
            return self.send_head(part);
        };
        let most = TURN_BYTES_MAX.min(self.buffers.borrow().room());
        send.reserve_capacity(most.min(part.len()));
        let mut room = send.capacity().min(most).min(part.len());
        if room == 0 {
            // The client may wait for the end, which needs no room in its windows.
            room = body.frame_bytes(part);
        }
        if room == 0 {
            let context = &mut Context::from_waker(Waker::noop());
            return match send.poll_reset(context) {
                Poll::Ready(_) => Err(Gone),
                Poll::Pending => Ok(0),
            };
        }
        let (count, data, is_last) = take(body, &part[..room], part)?;
        {
            let mut buffers = self.buffers.borrow_mut();
            buffers.queued += data.len();
            buffers.count_use(data.len());
        }
        if !data.is_empty() || is_last {
            send.send_data(data, is_last).map_err(|_| Gone)?;
        }
        self.is_over = is_last;
        Ok(count)
    }

    /// Takes a part of the response's header, and of the body behind it.
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
        let Some(translated) = translate(head, self.is_head).map_err(|()| Gone)? else {
            self.head = head.to_vec();
            return Ok(part.len());
        };
        let used = translated.length.saturating_sub(before);
        if translated.response.status().is_informational() {
            // HTTP/2 clients do not need 100 Continue.
            return Ok(used);
        }
        let is_last = matches!(translated.body, Body::Length(0));
        let send = self.respond.send_response(translated.response, is_last);
        self.buffers.borrow_mut().queued += used;
        self.send = Some((send.map_err(|_| Gone)?, translated.body));
        self.is_over = is_last;
        match is_last {
            // What follows is no part of the response.
            true => Ok(part.len()),
            false => Ok(used + self.send_part(&part[used..])?),
        }
    }

    /// Refuses the request, which the client may send again elsewhere (RFC 9113, 8.7).
    pub fn refuse(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
        self.is_over = true;
    }

    /// The response is complete. One that is too short is cut off.
    pub fn end(&mut self) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        match &mut self.send {
            Some((send, Body::ToEnd)) => drop(send.send_data(Bytes::new(), true)),
            Some((send, _)) => send.send_reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}

/// A stream that ends without its response is reset.
impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_reset() {
            self.buffers.borrow_mut().given_up += 1;
        } else if !self.is_over {
            match &mut self.send {
                Some((send, _)) => send.send_reset(Reason::INTERNAL_ERROR),
                None => self.respond.send_reset(Reason::INTERNAL_ERROR),
            }
        }
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

/// Takes data out of the body's frames: how many bytes of `whole` are used up, the data, and whether the
/// body ends with it. Frames of chunks are no data, so the data of a chunk may be taken beyond `allowed`.
fn take(body: &mut Body, allowed: &[u8], whole: &[u8]) -> Result<(usize, Bytes, bool), Gone> {
    match body {
        Body::ToEnd => Ok((allowed.len(), Bytes::copy_from_slice(allowed), false)),
        Body::Length(left) => {
            let count = (allowed.len() as u64).min(*left) as usize;
            *left -= count as u64;
            let is_last = *left == 0;
            let used = if is_last { whole.len() } else { count };
            Ok((used, Bytes::copy_from_slice(&allowed[..count]), is_last))
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
