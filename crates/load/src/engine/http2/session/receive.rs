//! Processes the frames of the server.
//!
//! These are connection errors ([`Broken`]): a first frame that is not SETTINGS, a frame that is too long or has a
//! wrong length, a pushed stream, a window above its limit, and a server that does not read our answers
//! ([`OUTPUT_BYTES_MAX`]).

use headway_latency::Outcome;

use super::super::super::response::{HEADER_BYTES_MAX, Malformed};
use super::super::frames::{self, Header};
use super::super::hpack;
use super::{Broken, Receiver, Session, StreamEnd};

/// With more output, the server does not read our answers.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The most frames of a header block.
const CONTINUATIONS_MAX: u32 = 64;

const fn broken(code: u32, why: &'static str) -> Broken {
    Broken { code, why }
}

const NOT_HTTP2: Broken = broken(
    frames::PROTOCOL_ERROR,
    "the answer is not HTTP/2; a server that only speaks HTTP/1.1 there needs a run without --http2",
);
const BAD_FRAME: Broken = broken(frames::FRAME_SIZE_ERROR, "a frame has a wrong length");
const BAD_PADDING: Broken = broken(
    frames::PROTOCOL_ERROR,
    "a frame has more padding than payload",
);
const BAD_WINDOW: Broken = broken(frames::FLOW_CONTROL_ERROR, "a window is too large");
const BAD_SEQUENCE: Broken = broken(
    frames::PROTOCOL_ERROR,
    "a frame is not allowed in this state",
);
const NOT_READING: Broken = broken(
    frames::ENHANCE_YOUR_CALM,
    "the server sends PING or SETTINGS frames and does not read the answers",
);
const BAD_HEADER: Broken = broken(frames::COMPRESSION_ERROR, "a header is malformed");

/// A DATA frame whose payload is incomplete.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataFrame {
    stream: u32,
    left: usize,
    padding: usize,
    /// The length of the padding comes next.
    is_padded: bool,
    is_last: bool,
}

/// A header block that needs more CONTINUATION frames.
#[derive(Debug)]
pub(super) struct Block {
    stream: u32,
    is_last: bool,
    frames: u32,
}

impl Session {
    /// Parses the next bytes.
    pub(in super::super) fn feed(
        &mut self,
        bytes: &[u8],
        to: &mut Receiver<'_>,
    ) -> Result<(), Broken> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some(data) = self.data {
                let (piece, behind) = rest.split_at(data.left.min(rest.len()));
                rest = behind;
                self.on_data(data, piece, to)?;
                continue;
            }
            rest = match self.input.is_empty() {
                true => self.parse_frame(rest, to)?,
                false => self.complete_frame(rest, to)?,
            };
        }
        match self.output().len() > OUTPUT_BYTES_MAX {
            true => Err(NOT_READING),
            false => Ok(()),
        }
    }

    /// Processes the first frame of `bytes`, or stores it if it is incomplete. Returns the rest.
    fn parse_frame<'b>(
        &mut self,
        bytes: &'b [u8],
        to: &mut Receiver<'_>,
    ) -> Result<&'b [u8], Broken> {
        let Some((header, rest)) = bytes.split_first_chunk() else {
            self.input.extend_from_slice(bytes);
            return Ok(&[]);
        };
        let frame = self.check(Header::read(header))?;
        if frame.kind == frames::DATA {
            self.begin_data(frame, to)?;
            return Ok(rest);
        }
        match rest.split_at_checked(frame.length) {
            Some((payload, rest)) => {
                self.on_frame(frame, payload, to)?;
                Ok(rest)
            }
            None => {
                self.input.extend_from_slice(bytes);
                Ok(&[])
            }
        }
    }

    /// Adds to the incomplete frame, and processes it if it is complete. Returns the rest.
    fn complete_frame<'b>(
        &mut self,
        bytes: &'b [u8],
        to: &mut Receiver<'_>,
    ) -> Result<&'b [u8], Broken> {
        let wanted = match self.input.first_chunk() {
            None => frames::HEADER_BYTES,
            Some(header) => frames::HEADER_BYTES + Header::read(header).length,
        };
        let missing = (wanted - self.input.len()).min(bytes.len());
        self.input.extend_from_slice(&bytes[..missing]);
        let mut kept = std::mem::take(&mut self.input);
        let taken = if kept.len() == wanted {
            self.parse_frame(&kept, to).map(drop)
        } else {
            self.input.append(&mut kept);
            Ok(())
        };
        if self.input.is_empty() {
            kept.clear();
            self.input = kept;
        }
        taken.map(|()| &bytes[missing..])
    }

    /// Checks whether a frame is allowed in this state, and its length.
    fn check(&self, frame: Header) -> Result<Header, Broken> {
        if !self.is_greeted && (frame.kind != frames::SETTINGS || frame.has(frames::ACK)) {
            return Err(NOT_HTTP2);
        }
        if frame.length > frames::PAYLOAD_BYTES_MAX {
            return Err(BAD_FRAME);
        }
        let continues = self.block.as_ref().map(|block| block.stream);
        let is_continuation = frame.kind == frames::CONTINUATION;
        match continues {
            Some(stream) if !is_continuation || frame.stream != stream => Err(BAD_SEQUENCE),
            None if is_continuation => Err(BAD_SEQUENCE),
            _ => Ok(frame),
        }
    }

    fn on_frame(
        &mut self,
        frame: Header,
        payload: &[u8],
        to: &mut Receiver<'_>,
    ) -> Result<(), Broken> {
        match frame.kind {
            frames::HEADERS => {
                self.check_id(frame.stream)?;
                let fragment = fragment(frame, payload)?;
                let is_last = frame.has(frames::END_STREAM);
                if frame.has(frames::END_HEADERS) {
                    return self.on_header(frame.stream, fragment, is_last, to);
                }
                self.block_bytes.clear();
                self.block_bytes.extend_from_slice(fragment);
                self.block = Some(Block {
                    stream: frame.stream,
                    is_last,
                    frames: 1,
                });
                Ok(())
            }
            frames::CONTINUATION => self.on_continuation(frame, payload, to),
            frames::RST_STREAM => {
                self.check_id(frame.stream)?;
                let end = match number(payload)? {
                    frames::REFUSED_STREAM => StreamEnd::Unprocessed(Outcome::Reset),
                    _ => StreamEnd::Failed(Outcome::Reset),
                };
                self.end(frame.stream, end, to);
                Ok(())
            }
            frames::SETTINGS => self.on_settings(frame, payload),
            frames::PING => {
                if payload.len() != 8 {
                    return Err(BAD_FRAME);
                }
                if !frame.has(frames::ACK) {
                    frames::put_header(&mut self.output, 8, frames::PING, frames::ACK, 0);
                    self.output.extend_from_slice(payload);
                }
                Ok(())
            }
            frames::GOAWAY => self.on_goaway(payload, to),
            frames::WINDOW_UPDATE => self.on_window(frame, payload, to),
            frames::PUSH_PROMISE => Err(BAD_SEQUENCE),
            // PRIORITY and unknown frames are ignored (RFC 9113 section 5.5).
            _ => Ok(()),
        }
    }

    /// Only streams that the client has started can have frames.
    fn check_id(&self, id: u32) -> Result<(), Broken> {
        match id % 2 == 1 && id < self.next_id {
            true => Ok(()),
            false => Err(BAD_SEQUENCE),
        }
    }

    fn on_continuation(
        &mut self,
        frame: Header,
        payload: &[u8],
        to: &mut Receiver<'_>,
    ) -> Result<(), Broken> {
        let Some(mut block) = self.block.take() else {
            return Err(BAD_SEQUENCE);
        };
        block.frames += 1;
        self.block_bytes.extend_from_slice(payload);
        if block.frames > CONTINUATIONS_MAX || self.block_bytes.len() > HEADER_BYTES_MAX {
            return Err(broken(frames::ENHANCE_YOUR_CALM, "a header is too long"));
        }
        if !frame.has(frames::END_HEADERS) {
            self.block = Some(block);
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.block_bytes);
        let taken = self.on_header(block.stream, &bytes, block.is_last, to);
        self.block_bytes = bytes;
        taken
    }

    /// Processes a header block: of a response, of an interim response, or trailers.
    fn on_header(
        &mut self,
        id: u32,
        block: &[u8],
        is_last: bool,
        to: &mut Receiver<'_>,
    ) -> Result<(), Broken> {
        let place = self.place(id);
        let client = place.and_then(|at| {
            let slot = &mut to.slots[self.streams[at].slot as usize];
            slot.client.as_deref_mut()
        });
        let read = hpack::read(&mut self.decoder, block, to.server, client);
        let header = read.map_err(|Malformed| BAD_HEADER)?;
        // The client has cancelled the stream.
        let Some(at) = place else {
            return Ok(());
        };
        let slot = &mut to.slots[self.streams[at].slot as usize];
        slot.request.first_byte_ns = match slot.request.first_byte_ns {
            0 => to.now_ns,
            earlier => earlier,
        };
        if slot.response.status != 0 {
            let end = match is_last {
                true => self.whole(at, to),
                false => StreamEnd::Failed(Outcome::Malformed),
            };
            self.end_by_client(id, end, to);
            return Ok(());
        }
        if header.is_malformed || header.status == 0 {
            return Err(BAD_HEADER);
        }
        match slot.response.begin_stream(header.status, header.length) {
            Ok(true) if is_last => {
                let end = self.whole(at, to);
                self.end_by_client(id, end, to);
            }
            Ok(false) if is_last => {
                self.end_by_client(id, StreamEnd::Failed(Outcome::Malformed), to);
            }
            Ok(_) => {}
            Err(Malformed) => self.end_by_client(id, StreamEnd::Failed(Outcome::Malformed), to),
        }
        Ok(())
    }

    fn begin_data(&mut self, frame: Header, to: &mut Receiver<'_>) -> Result<(), Broken> {
        self.check_id(frame.stream)?;
        if frame.has(frames::PADDED) && frame.length == 0 {
            return Err(BAD_FRAME);
        }
        self.acknowledge(frame);
        let data = DataFrame {
            stream: frame.stream,
            left: frame.length,
            padding: 0,
            is_padded: frame.has(frames::PADDED),
            is_last: frame.has(frames::END_STREAM),
        };
        match data.left {
            // An empty frame ends here, because no payload follows.
            0 => self.on_data(data, &[], to),
            _ => {
                self.data = Some(data);
                Ok(())
            }
        }
    }

    /// Gives the server its windows back, when half of them is used.
    fn acknowledge(&mut self, frame: Header) {
        let bytes = frame.length as u32;
        self.unacknowledged += bytes;
        if self.unacknowledged >= frames::WINDOW_BYTES / 2 {
            let bytes = std::mem::take(&mut self.unacknowledged);
            frames::put_number(&mut self.output, frames::WINDOW_UPDATE, 0, bytes);
        }
        let Some(at) = self.place(frame.stream) else {
            return;
        };
        let stream = &mut self.streams[at];
        stream.unacknowledged += bytes;
        if stream.unacknowledged >= frames::WINDOW_BYTES / 2 {
            let bytes = std::mem::take(&mut stream.unacknowledged);
            frames::put_number(&mut self.output, frames::WINDOW_UPDATE, frame.stream, bytes);
        }
    }

    /// Processes a part of the payload of DATA.
    fn on_data(
        &mut self,
        mut data: DataFrame,
        mut piece: &[u8],
        to: &mut Receiver<'_>,
    ) -> Result<(), Broken> {
        if data.is_padded
            && let Some((&padding, rest)) = piece.split_first()
        {
            (data.is_padded, data.padding, piece) = (false, padding.into(), rest);
            data.left -= 1;
            if data.padding > data.left {
                return Err(BAD_PADDING);
            }
        }
        let content = &piece[..piece.len().min(data.left - data.padding.min(data.left))];
        data.left -= piece.len();
        self.data = (data.left > 0).then_some(data);
        let Some(at) = self.place(data.stream) else {
            return Ok(());
        };
        let slot = &mut to.slots[self.streams[at].slot as usize];
        if let Some(client) = &mut slot.client {
            client.body(content);
        }
        match slot.response.feed_data(content) {
            Ok(fits) => self.streams[at].excess |= !fits,
            Err(Malformed) => {
                self.end_by_client(data.stream, StreamEnd::Failed(Outcome::Malformed), to);
                return Ok(());
            }
        }
        if data.is_last && data.left == 0 {
            let end = self.whole(at, to);
            self.end_by_client(data.stream, end, to);
        }
        Ok(())
    }

    /// The end of a stream whose last frame was received.
    fn whole(&self, at: usize, to: &Receiver<'_>) -> StreamEnd {
        let stream = &self.streams[at];
        let response = &to.slots[stream.slot as usize].response;
        match response.end_data() {
            true => StreamEnd::Whole {
                excess: stream.excess,
            },
            false => StreamEnd::Failed(Outcome::ClosedEarly),
        }
    }

    /// Ends a stream. Sends RST_STREAM unless both sides have already ended it.
    fn end_by_client(&mut self, id: u32, end: StreamEnd, to: &mut Receiver<'_>) {
        let is_sent = self.place(id).is_some_and(|at| self.streams[at].is_sent);
        let code = match end {
            StreamEnd::Failed(Outcome::Malformed) => Some(frames::PROTOCOL_ERROR),
            _ if !is_sent => Some(frames::CANCEL),
            _ => None,
        };
        if let Some(code) = code {
            frames::put_number(&mut self.output, frames::RST_STREAM, id, code);
        }
        self.end(id, end, to);
    }

    fn end(&mut self, id: u32, end: StreamEnd, to: &mut Receiver<'_>) {
        if let Some(at) = self.place(id) {
            let stream = self.streams.remove(at);
            self.has_answered |= matches!(end, StreamEnd::Whole { .. });
            to.ended.push((stream.slot, end));
        }
    }

    fn on_settings(&mut self, frame: Header, payload: &[u8]) -> Result<(), Broken> {
        let (pairs, []) = payload.as_chunks::<6>() else {
            return Err(BAD_FRAME);
        };
        if frame.has(frames::ACK) {
            return match pairs {
                [] => Ok(()),
                _ => Err(BAD_FRAME),
            };
        }
        self.is_greeted = true;
        for &[high, low, value @ ..] in pairs {
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([high, low]) {
                frames::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                frames::INITIAL_WINDOW_SIZE => self.resize_windows(value)?,
                _ => {}
            }
        }
        frames::put_header(&mut self.output, 0, frames::SETTINGS, frames::ACK, 0);
        Ok(())
    }

    /// Applies SETTINGS_INITIAL_WINDOW_SIZE, also to open streams (RFC 9113 section 6.9.2).
    fn resize_windows(&mut self, bytes: u32) -> Result<(), Broken> {
        let change = i64::from(bytes) - self.stream_window;
        self.stream_window += change;
        for stream in &mut self.streams {
            stream.window += change;
        }
        let windows = self.streams.iter().map(|stream| stream.window);
        match windows.chain([self.stream_window]).max() {
            Some(largest) if largest > frames::WINDOW_BYTES_MAX => Err(BAD_WINDOW),
            _ => Ok(()),
        }
    }

    fn on_window(
        &mut self,
        frame: Header,
        payload: &[u8],
        to: &mut Receiver<'_>,
    ) -> Result<(), Broken> {
        let more = i64::from(number(payload)? & (u32::MAX >> 1));
        if frame.stream == 0 {
            self.window += more;
            return match more > 0 && self.window <= frames::WINDOW_BYTES_MAX {
                true => Ok(()),
                false => Err(BAD_WINDOW),
            };
        }
        self.check_id(frame.stream)?;
        if let Some(at) = self.place(frame.stream) {
            let stream = &mut self.streams[at];
            stream.window += more;
            if more == 0 || stream.window > frames::WINDOW_BYTES_MAX {
                self.end_by_client(frame.stream, StreamEnd::Failed(Outcome::Malformed), to);
            }
        }
        Ok(())
    }

    /// Processes GOAWAY. The server accepts no more requests, and has not processed those after its last stream.
    fn on_goaway(&mut self, payload: &[u8], to: &mut Receiver<'_>) -> Result<(), Broken> {
        let [last, code] = match payload.first_chunk::<8>() {
            Some(&[a, b, c, d, e, f, g, h]) => [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes),
            None => return Err(BAD_FRAME),
        };
        self.is_draining = true;
        if code != frames::NO_ERROR {
            self.goaway = Some(code);
        }
        let last = last & (u32::MAX >> 1);
        let kept = self.streams.partition_point(|stream| stream.id <= last);
        let unprocessed = self.streams.drain(kept..);
        let end = StreamEnd::Unprocessed(Outcome::ClosedEarly);
        to.ended
            .extend(unprocessed.map(|stream| (stream.slot, end)));
        Ok(())
    }
}

/// The payload of HEADERS without padding and priority.
fn fragment(frame: Header, payload: &[u8]) -> Result<&[u8], Broken> {
    let (mut fragment, mut padding) = (payload, 0);
    if frame.has(frames::PADDED) {
        let (&length, rest) = fragment.split_first().ok_or(BAD_FRAME)?;
        (fragment, padding) = (rest, usize::from(length));
    }
    if frame.has(frames::HAS_PRIORITY) {
        fragment = fragment.get(5..).ok_or(BAD_FRAME)?;
    }
    let length = fragment.len().checked_sub(padding).ok_or(BAD_PADDING)?;
    Ok(&fragment[..length])
}

/// The number of a payload that is one number.
fn number(payload: &[u8]) -> Result<u32, Broken> {
    let bytes = payload.try_into().map_err(|_| BAD_FRAME)?;
    Ok(u32::from_be_bytes(bytes))
}
