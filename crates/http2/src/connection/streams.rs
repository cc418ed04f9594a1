//! The streams of a connection: flow-control windows, bodies, trailers and resets.

use super::{
    CLOSED_MAX, CONNECTION_WINDOW_BYTES, Connection, EARLY_RESETS_MAX, OWN_RESETS_MAX,
    STREAM_WINDOW_BYTES,
};
use crate::frame::{self, Header, Reason};

/// The most capacity that the buffer of a body keeps while it is empty.
const IDLE_BYTES_MAX: usize = 4 << 10;

/// A stream that has a handle.
#[derive(Default)]
pub(crate) struct StreamState {
    pub(crate) id: u32,
    /// Bytes that we may send.
    send_window: i64,
    /// Bytes that the client may send.
    receive_window: i64,
    /// Bytes that were read, but not yet added to the client's window by WINDOW_UPDATE.
    released: u32,
    /// Received data. Its first `consumed` bytes were read.
    received: Vec<u8>,
    consumed: usize,
    /// Bytes of the body that are still missing, if the request has `Content-Length`.
    pub(super) expected: Option<u64>,
    /// END_STREAM was received.
    pub(super) is_received: bool,
    /// The body is chunked, so trailers can follow it.
    pub(super) has_lines: bool,
    /// The trailers, as lines of HTTP/1.1.
    pub(crate) trailers: Vec<u8>,
    /// The client or we have reset it, or the connection has ended.
    pub(crate) is_reset: bool,
    is_reset_by_us: bool,
    /// The header of the response was sent.
    pub(crate) is_answered: bool,
    /// The number of the read that opened the stream.
    opened_in_read: u64,
}

impl StreamState {
    pub(super) fn new(id: u32, send_window: i64, opened_in_read: u64) -> StreamState {
        StreamState {
            id,
            send_window,
            receive_window: STREAM_WINDOW_BYTES.into(),
            opened_in_read,
            ..StreamState::default()
        }
    }

    /// Data that can be read.
    pub(crate) fn data(&self) -> &[u8] {
        &self.received[self.consumed..]
    }

    /// Whether all data was received and read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.is_received && self.data().is_empty()
    }
}

/// Checks a PRIORITY frame, which has no effect.
pub(super) fn check_priority(header: &Header, payload: &[u8]) -> Result<(), Reason> {
    if header.stream == 0 {
        return Err(Reason::Protocol);
    }
    let priority = payload.try_into().map_err(|_| Reason::FrameSize)?;
    match frame::dependency(priority) == header.stream {
        true => Err(Reason::Protocol),
        false => Ok(()),
    }
}

impl Connection {
    pub(super) fn find(&self, stream: u32) -> Option<usize> {
        self.streams
            .binary_search_by_key(&stream, |one| one.id)
            .ok()
    }

    pub(crate) fn stream(&mut self, stream: u32) -> Option<&mut StreamState> {
        let at = self.find(stream)?;
        self.streams.get_mut(at)
    }

    /// Whether we have reset a stream, or `None` if it was not closed lately.
    pub(super) fn was_reset(&self, stream: u32) -> Option<bool> {
        let closed = self.closed.iter().rev();
        let mut found = closed.filter(|(id, _)| *id == stream);
        found.next().map(|(_, is_reset)| *is_reset)
    }

    pub(super) fn remember_closed(&mut self, stream: u32, is_reset: bool) {
        if self.closed.len() == CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back((stream, is_reset));
    }

    /// Whether the client has not opened this stream yet (RFC 9113, 5.1, state *idle*).
    fn is_idle(&self, stream: u32) -> bool {
        stream > self.last_stream.max(self.ignored_stream) || stream.is_multiple_of(2)
    }

    /// Sends RST_STREAM and remembers that the stream is closed.
    pub(super) fn write_reset(&mut self, stream: u32, reason: Reason) {
        self.write(frame::RST_STREAM, 0, stream, &(reason as u32).to_be_bytes());
        self.remember_closed(stream, true);
    }

    /// Resets a stream, unless it is reset already.
    pub(crate) fn reset(&mut self, stream: u32, reason: Reason) {
        if self.is_over() {
            return;
        }
        if let Some(state) = self.stream(stream) {
            if state.is_reset {
                return;
            }
            (state.is_reset, state.is_reset_by_us) = (true, true);
        }
        self.write_reset(stream, reason);
    }

    /// Resets a stream because of an error of the client. More than [`OWN_RESETS_MAX`] end the connection.
    pub(super) fn reset_faulty(&mut self, stream: u32, reason: Reason) -> Result<(), Reason> {
        self.own_resets += 1;
        if self.own_resets > OWN_RESETS_MAX {
            return Err(Reason::EnhanceYourCalm);
        }
        if let Some(state) = self.stream(stream) {
            (state.is_reset, state.is_reset_by_us) = (true, true);
        }
        self.write_reset(stream, reason);
        Ok(())
    }

    pub(super) fn on_data(&mut self, header: &Header, payload: &[u8]) -> Result<(), Reason> {
        let stream = header.stream;
        if self.is_idle(stream) {
            return Err(Reason::Protocol);
        }
        let data = header.without_padding(payload)?;
        self.receive_window -= payload.len() as i64;
        if self.receive_window < 0 {
            return Err(Reason::FlowControl);
        }
        let Some(at) = self.find(stream) else {
            self.release(None, payload.len());
            return match self.was_reset(stream) {
                Some(true) => Ok(()),
                _ => self.reset_faulty(stream, Reason::StreamClosed),
            };
        };
        let state = &mut self.streams[at];
        if state.is_reset_by_us {
            self.release(None, payload.len());
            return Ok(());
        }
        let is_last = header.has(frame::END_STREAM);
        let fault = match () {
            () if state.is_received || state.is_reset => Some(Reason::StreamClosed),
            () if state.receive_window < payload.len() as i64 => Some(Reason::FlowControl),
            () => {
                let left = state
                    .expected
                    .map(|left| left.checked_sub(data.len() as u64));
                let is_wrong = match left {
                    None => false,
                    Some(left) => left.is_none() || (is_last && left != Some(0)),
                };
                state.expected = left.flatten();
                is_wrong.then_some(Reason::Protocol)
            }
        };
        if let Some(reason) = fault {
            self.release(None, payload.len());
            return self.reset_faulty(stream, reason);
        }
        state.receive_window -= payload.len() as i64;
        state.received.extend_from_slice(data);
        state.is_received = is_last;
        self.release(Some(stream), payload.len() - data.len());
        Ok(())
    }

    /// Processes trailers, which have been decoded into the header list.
    pub(super) fn on_trailers(&mut self, at: usize, header: &Header) -> Result<(), Reason> {
        let state = &mut self.streams[at];
        let is_wrong = !header.has(frame::END_STREAM)
            || self.list.is_malformed()
            || self.list.is_too_long()
            || state.expected.is_some_and(|left| left > 0);
        if state.is_reset_by_us {
            return Ok(());
        }
        if state.is_received || state.is_reset {
            return self.reset_faulty(header.stream, Reason::StreamClosed);
        }
        if is_wrong {
            return self.reset_faulty(header.stream, Reason::Protocol);
        }
        state.is_received = true;
        if state.has_lines {
            state.trailers = self.list.lines().to_vec();
        }
        Ok(())
    }

    pub(super) fn on_reset(&mut self, header: &Header, payload: &[u8]) -> Result<(), Reason> {
        if self.is_idle(header.stream) {
            return Err(Reason::Protocol);
        }
        if payload.len() != 4 {
            return Err(Reason::FrameSize);
        }
        let read = self.reads;
        if let Some(state) = self.stream(header.stream) {
            let is_early = !state.is_answered && !state.is_reset && state.opened_in_read == read;
            state.is_reset = true;
            self.early_resets += usize::from(is_early);
        }
        match self.early_resets > EARLY_RESETS_MAX {
            true => Err(Reason::EnhanceYourCalm),
            false => Ok(()),
        }
    }

    pub(super) fn on_window_update(
        &mut self,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Reason> {
        let more = payload.try_into().map_err(|_| Reason::FrameSize)?;
        let more = i64::from(u32::from_be_bytes(more) & (u32::MAX >> 1));
        if header.stream == 0 {
            self.send_window += more;
            return match (more, self.send_window) {
                (0, _) => Err(Reason::Protocol),
                (_, window) if window > frame::WINDOW_BYTES_MAX => Err(Reason::FlowControl),
                _ => Ok(()),
            };
        }
        if self.is_idle(header.stream) {
            return Err(Reason::Protocol);
        }
        let Some(state) = self.stream(header.stream).filter(|state| !state.is_reset) else {
            return Ok(());
        };
        state.send_window += more;
        let fault = match (more, state.send_window) {
            (0, _) => Reason::Protocol,
            (_, window) if window > frame::WINDOW_BYTES_MAX => Reason::FlowControl,
            _ => return Ok(()),
        };
        self.reset_faulty(header.stream, fault)
    }

    /// Applies the client's SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, 6.9.2).
    pub(super) fn set_stream_send_window(&mut self, window: i64) -> Result<(), Reason> {
        if window > frame::WINDOW_BYTES_MAX {
            return Err(Reason::FlowControl);
        }
        let more = window - self.stream_send_window;
        self.stream_send_window = window;
        // The window of a stream that is reset may be too large: that was its error.
        for state in self.streams.iter_mut().filter(|state| !state.is_reset) {
            state.send_window += more;
            if state.send_window > frame::WINDOW_BYTES_MAX {
                return Err(Reason::FlowControl);
            }
        }
        Ok(())
    }

    /// Bytes of data that the windows of the stream and of the connection allow to send.
    pub(crate) fn send_window_of(&mut self, stream: u32) -> usize {
        let whole = self.send_window;
        let own = self.stream(stream).map_or(0, |state| state.send_window);
        usize::try_from(own.min(whole)).unwrap_or(0)
    }

    /// Writes a DATA frame. The caller has checked that the windows have room.
    pub(crate) fn write_data(&mut self, stream: u32, data: &[u8], is_last: bool) {
        self.send_window -= data.len() as i64;
        if let Some(state) = self.stream(stream) {
            state.send_window -= data.len() as i64;
        }
        let flags = if is_last { frame::END_STREAM } else { 0 };
        self.write(frame::DATA, flags, stream, data);
    }

    /// Writes a header block as HEADERS and CONTINUATION frames.
    pub(crate) fn write_headers(&mut self, stream: u32, block: &[u8], is_last: bool) {
        let mut flags = if is_last { frame::END_STREAM } else { 0 };
        let mut kind = frame::HEADERS;
        let mut rest = block;
        loop {
            let (part, others) = rest.split_at(rest.len().min(self.payload_bytes_max));
            if others.is_empty() {
                flags |= frame::END_HEADERS;
            }
            self.write(kind, flags, stream, part);
            (rest, kind, flags) = (others, frame::CONTINUATION, 0);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Removes data of a stream that was read.
    pub(crate) fn consume_data(&mut self, stream: u32, count: usize) {
        if let Some(state) = self.stream(stream) {
            state.consumed += count;
            if state.data().is_empty() {
                state.received.clear();
                state.consumed = 0;
                if state.received.capacity() > IDLE_BYTES_MAX {
                    state.received = Vec::new();
                }
            } else if state.consumed >= STREAM_WINDOW_BYTES as usize / 4 {
                state.received.drain(..state.consumed);
                state.consumed = 0;
            }
        }
        self.release(Some(stream), count);
        // Twice, because the frame headers count as bytes without effect.
        self.buffers.count_use(2 * count);
    }

    /// Gives the client back this part of the connection's window, and of the stream's if there is one.
    fn release(&mut self, stream: Option<u32>, count: usize) {
        if count == 0 || self.is_over() {
            return;
        }
        self.released += count as u32;
        if self.released >= CONNECTION_WINDOW_BYTES / 2 {
            let released = std::mem::take(&mut self.released);
            self.receive_window += i64::from(released);
            self.write(frame::WINDOW_UPDATE, 0, 0, &released.to_be_bytes());
        }
        let Some(state) = stream.and_then(|stream| self.stream(stream)) else {
            return;
        };
        state.released += count as u32;
        if state.released >= STREAM_WINDOW_BYTES / 2 && !state.is_received && !state.is_reset {
            let (id, released) = (state.id, std::mem::take(&mut state.released));
            state.receive_window += i64::from(released);
            self.write(frame::WINDOW_UPDATE, 0, id, &released.to_be_bytes());
        }
    }

    /// Removes a stream whose handle is dropped. The client is asked to stop sending its body.
    pub(crate) fn remove(&mut self, stream: u32) {
        let Some(at) = self.find(stream) else {
            return;
        };
        let state = &self.streams[at];
        if !state.is_received && !state.is_reset {
            self.reset(stream, Reason::NoError);
        }
        let state = self.streams.remove(at);
        if !state.is_reset_by_us {
            self.remember_closed(stream, false);
        }
        self.release(None, state.data().len());
        self.end_if_idle();
    }
}
