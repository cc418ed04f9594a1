//! The state of a connection, and how each frame of the client changes it (RFC 9113).
//!
//! Frames are answered at once. There is no queue of data to send: a stream accepts only the bytes which the
//! flow-control windows and the output buffer have room for, and writes them into this buffer.

use std::collections::VecDeque;

use crate::buffers::Buffers;
use crate::frame::{self, Header, Reason};
use crate::hpack::encoder::Encoder;
use crate::hpack::{Decoder, Fault};
use crate::priority::PriorityUpdates;
use crate::request::{HeaderList, Translated, Upload};
use crate::{PREFACE, Settings};

mod streams;

pub(crate) use streams::StreamState;

/// The flow-control windows: bytes of bodies that a client may send before they are read. They limit the memory of a
/// connection.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Streams that a client may open and reset within one read of its socket (Rapid Reset, CVE-2023-44487).
const EARLY_RESETS_MAX: usize = 20;
/// Streams that we reset because of errors of the client (MadeYouReset, CVE-2025-8671).
const OWN_RESETS_MAX: usize = 100;
/// A client is an attacker if it cancels more than this number of requests, and more than half of all (Rapid Reset
/// with a later reset: the request has already begun).
const CANCELLED_MIN: u64 = 500;
/// The most closed streams that are remembered. The client may still have sent frames for them.
const CLOSED_MAX: usize = 128;
/// The most CONTINUATION frames of a header block (CVE-2024-27316 and others).
const CONTINUATIONS_MAX: usize = 64;
/// The bytes of a suspect that are processed at a time.
pub(crate) const SUSPECT_INPUT_BYTES: usize = 2 << 10;
/// The PING that follows the first GOAWAY. The client answers it after all frames which it sent before it got GOAWAY.
const LAST_PING: [u8; 8] = *b"shutdown";

/// The stage of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The preface comes next.
    Preface,
    /// The first frame comes next, which must be SETTINGS.
    Settings,
    Open,
    Over,
}

/// The GOAWAY frames that we have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goaway {
    None,
    /// The first one. Requests which the client has already sent are accepted.
    Announced,
    /// The second one, with the last stream that is accepted.
    Last,
}

/// A header block that needs more CONTINUATION frames.
struct PendingBlock {
    header: Header,
    depends_on_itself: bool,
    block: Vec<u8>,
    continuations: usize,
}

/// A request whose header is complete.
pub(crate) struct NewRequest {
    pub(crate) stream: u32,
    pub(crate) translated: Translated,
}

/// The result of processing the next bytes.
enum Progress {
    /// They are not a whole frame.
    NeedsMore,
    /// This number of bytes was processed, and may have completed a request.
    Consumed(usize, Option<NewRequest>),
}

/// The state of a connection.
pub(crate) struct Connection {
    settings: Settings,
    pub(crate) buffers: Buffers,
    stage: Stage,
    goaway: Goaway,
    decoder: Decoder,
    pub(crate) encoder: Encoder,
    /// A reusable buffer for the header blocks of responses.
    pub(crate) block: Vec<u8>,
    list: HeaderList,
    pending_block: Option<PendingBlock>,
    /// The streams that have a handle, in the order of their numbers.
    streams: Vec<StreamState>,
    /// The streams that were closed last, and whether we have reset them.
    closed: VecDeque<(u32, bool)>,
    /// The highest stream of the client.
    last_stream: u32,
    /// The highest stream that came after the last GOAWAY.
    ignored_stream: u32,
    /// Bytes that we may send: on the connection, and at first on a new stream.
    pub(crate) send_window: i64,
    stream_send_window: i64,
    pub(crate) payload_bytes_max: usize,
    /// Bytes that the client may send.
    receive_window: i64,
    /// Bytes that were read, but not yet added to the client's window by WINDOW_UPDATE.
    released: u32,
    /// The priorities of PRIORITY_UPDATE frames.
    pub(crate) updates: PriorityUpdates,
    requests: u64,
    /// Requests that were reset before their responses were complete, by the client or because of its error.
    pub(crate) cancelled: u64,
    own_resets: usize,
    early_resets: usize,
    /// Calls of [`feed`](Connection::feed): reads of the client's socket.
    reads: u64,
    /// The output buffer has no room for answers to more frames.
    is_stalled: bool,
    /// Bytes of input that may be processed before the next call of [`go_on`](Connection::go_on).
    input_budget: usize,
    /// The client is a suspect until its first request.
    pub(crate) is_distrusted: bool,
    /// The connection has ended because of a flood.
    pub(crate) has_flooded: bool,
    /// Frames may have changed what open streams can do, since the last call of `take_changes`.
    has_changed: bool,
}

impl Connection {
    pub(crate) fn new(settings: Settings) -> Connection {
        let mut connection = Connection {
            settings,
            buffers: Buffers::new(settings.header_bytes_max),
            stage: Stage::Preface,
            goaway: Goaway::None,
            decoder: Decoder::default(),
            encoder: Encoder::new(),
            block: Vec::new(),
            list: HeaderList::default(),
            pending_block: None,
            streams: Vec::new(),
            closed: VecDeque::new(),
            last_stream: 0,
            ignored_stream: 0,
            send_window: frame::WINDOW_BYTES,
            stream_send_window: frame::WINDOW_BYTES,
            payload_bytes_max: frame::PAYLOAD_BYTES_MAX,
            receive_window: CONNECTION_WINDOW_BYTES.into(),
            released: 0,
            updates: PriorityUpdates::default(),
            requests: 0,
            cancelled: 0,
            own_resets: 0,
            early_resets: 0,
            reads: 0,
            is_stalled: false,
            input_budget: 0,
            is_distrusted: false,
            has_flooded: false,
            has_changed: false,
        };
        connection.greet();
        connection
    }

    fn greet(&mut self) {
        let settings = [
            (frame::MAX_CONCURRENT_STREAMS, self.settings.streams_max),
            (frame::INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
            (frame::MAX_HEADER_LIST_SIZE, self.settings.header_bytes_max),
            (frame::ENABLE_CONNECT_PROTOCOL, 1),
        ];
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        self.write(frame::SETTINGS, 0, 0, &payload);
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        (self.reads, self.early_resets) = (self.reads + 1, 0);
        if self.stage != Stage::Over {
            self.buffers.feed(bytes);
            self.refill_budget();
        }
    }

    /// Whether more input would be processed at once.
    pub(crate) fn takes_input(&self) -> bool {
        !self.is_stalled && !self.is_over() && !self.withholds()
    }

    /// Whether input waits for a call of [`go_on`](Connection::go_on).
    pub(crate) fn withholds(&self) -> bool {
        self.input_budget == 0 && !self.is_stalled && !self.is_over() && self.buffers.has_input()
    }

    /// Allows more of the waiting input to be processed. Returns whether there was any.
    pub(crate) fn go_on(&mut self) -> bool {
        let withholds = self.withholds();
        if withholds {
            self.refill_budget();
        }
        withholds
    }

    fn refill_budget(&mut self) {
        self.input_budget = match self.is_suspect() {
            true => SUSPECT_INPUT_BYTES,
            false => usize::MAX,
        };
    }

    fn count_processed(&mut self, bytes: usize) {
        self.input_budget = self.input_budget.saturating_sub(bytes);
        // The client has become a suspect.
        if self.input_budget > SUSPECT_INPUT_BYTES && self.is_suspect() {
            self.input_budget = 0;
        }
    }

    /// Whether many of the client's latest bytes had no effect, or it is distrusted and has sent no request yet.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_distrusted && self.requests == 0 || self.buffers.is_suspect()
    }

    /// Whether frames since the last call may have changed what open streams can do.
    pub(crate) fn take_changes(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    pub(crate) fn has_requests(&self) -> bool {
        self.requests > 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Processes the input until a request is complete.
    pub(crate) fn next_request(&mut self) -> Option<NewRequest> {
        let (input, mut at) = self.buffers.begin();
        let mut found = None;
        while found.is_none() {
            self.end_faulty();
            if self.is_over() {
                at = input.len();
                break;
            }
            let has_room = self.buffers.has_room_for_answers();
            self.is_stalled = !has_room && at < input.len();
            if self.input_budget == 0 && !self.is_suspect() {
                self.refill_budget();
            }
            if !has_room || self.input_budget == 0 {
                break;
            }
            match self.process_next(&input[at..]) {
                Ok(Progress::NeedsMore) => break,
                Ok(Progress::Consumed(count, request)) => {
                    at += count;
                    self.count_processed(count);
                    found = request;
                }
                Err(reason) => self.fail(reason),
            }
        }
        self.buffers.end(input, at);
        found
    }

    fn process_next(&mut self, bytes: &[u8]) -> Result<Progress, Reason> {
        if self.stage == Stage::Preface {
            let count = bytes.len().min(PREFACE.len());
            if bytes[..count] != PREFACE[..count] {
                // The client speaks another protocol and would not understand GOAWAY.
                self.close();
                return Ok(Progress::NeedsMore);
            }
            if count < PREFACE.len() {
                return Ok(Progress::NeedsMore);
            }
            self.stage = Stage::Settings;
            let more = CONNECTION_WINDOW_BYTES - frame::WINDOW_BYTES as u32;
            self.write(frame::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
            if self.goaway != Goaway::None {
                self.goaway = Goaway::None;
                self.shut_down();
            }
            return Ok(Progress::Consumed(count, None));
        }
        let Some((header, rest)) = bytes.split_first_chunk() else {
            return Ok(Progress::NeedsMore);
        };
        let header = Header::read(header);
        if header.length > frame::PAYLOAD_BYTES_MAX {
            return Err(Reason::FrameSize);
        }
        let Some(payload) = rest.get(..header.length) else {
            return Ok(Progress::NeedsMore);
        };
        if self.stage == Stage::Settings {
            if header.kind != frame::SETTINGS || header.has(frame::ACK) {
                return Err(Reason::Protocol);
            }
            self.stage = Stage::Open;
        }
        let (headers, more) = match header.kind {
            frame::DATA => (0, 0),
            frame::HEADERS | frame::CONTINUATION => (header.length, 0),
            _ => (0, header.length),
        };
        let count = frame::HEADER_BYTES + header.length;
        let control = frame::HEADER_BYTES + more;
        self.buffers.count_frame(count, headers, control);
        let request = self.on_frame(&header, payload)?;
        Ok(Progress::Consumed(count, request))
    }

    /// Processes a whole frame.
    fn on_frame(&mut self, header: &Header, payload: &[u8]) -> Result<Option<NewRequest>, Reason> {
        if let Some(pending) = &self.pending_block
            && (header.kind != frame::CONTINUATION || header.stream != pending.header.stream)
        {
            return Err(Reason::Protocol);
        }
        self.has_changed |= matches!(
            header.kind,
            frame::DATA
                | frame::RST_STREAM
                | frame::SETTINGS
                | frame::WINDOW_UPDATE
                | frame::PRIORITY_UPDATE
        );
        match header.kind {
            frame::DATA => self.on_data(header, payload)?,
            frame::HEADERS => return self.on_headers(header, payload),
            frame::CONTINUATION => return self.on_continuation(header, payload),
            frame::PRIORITY => streams::check_priority(header, payload)?,
            frame::RST_STREAM => self.on_reset(header, payload)?,
            frame::SETTINGS => self.on_settings(header, payload)?,
            frame::PUSH_PROMISE => return Err(Reason::Protocol),
            frame::PING => self.on_ping(header, payload)?,
            frame::GOAWAY if header.stream != 0 => return Err(Reason::Protocol),
            frame::GOAWAY if payload.len() < 8 => return Err(Reason::FrameSize),
            frame::WINDOW_UPDATE => self.on_window_update(header, payload)?,
            frame::PRIORITY_UPDATE => self.updates.on_frame(header.stream, payload)?,
            _ => {}
        }
        Ok(None)
    }

    fn on_headers(
        &mut self,
        header: &Header,
        payload: &[u8],
    ) -> Result<Option<NewRequest>, Reason> {
        // Streams with even numbers are pushed ones, which a client cannot open (RFC 9113, 5.1.1).
        if header.stream.is_multiple_of(2) {
            return Err(Reason::Protocol);
        }
        let (block, depends_on_itself) = header.block(payload)?;
        if header.has(frame::END_HEADERS) {
            return self.on_header_block(header, depends_on_itself, block);
        }
        self.pending_block = Some(PendingBlock {
            header: *header,
            depends_on_itself,
            block: block.to_vec(),
            continuations: 0,
        });
        Ok(None)
    }

    fn on_continuation(
        &mut self,
        header: &Header,
        payload: &[u8],
    ) -> Result<Option<NewRequest>, Reason> {
        let pending = self.pending_block.as_mut().ok_or(Reason::Protocol)?;
        pending.block.extend_from_slice(payload);
        pending.continuations += 1;
        // A list within its limit fits, unless its Huffman code is longer than the plain text.
        let bytes_max = 2 * self.settings.header_bytes_max as usize + frame::PAYLOAD_BYTES_MAX;
        if pending.block.len() > bytes_max || pending.continuations > CONTINUATIONS_MAX {
            return Err(Reason::EnhanceYourCalm);
        }
        match self
            .pending_block
            .take_if(|_| header.has(frame::END_HEADERS))
        {
            Some(whole) => {
                self.on_header_block(&whole.header, whole.depends_on_itself, &whole.block)
            }
            None => Ok(None),
        }
    }

    /// Processes a whole header block: a request, or trailers.
    fn on_header_block(
        &mut self,
        header: &Header,
        depends_on_itself: bool,
        block: &[u8],
    ) -> Result<Option<NewRequest>, Reason> {
        let known = self.find(header.stream);
        let list = &mut self.list;
        list.begin(self.settings.header_bytes_max, known.is_some());
        // Also if the stream is then refused: the dynamic table must stay the same as the client's.
        let decoded = self
            .decoder
            .decode(block, |name, value| list.take(name, value));
        decoded.map_err(|fault| match fault {
            Fault::Invalid => Reason::Compression,
            Fault::Refused => Reason::EnhanceYourCalm,
        })?;
        if let Some(at) = known {
            self.has_changed = true;
            self.on_trailers(at, header)?;
            return Ok(None);
        }
        if header.stream <= self.last_stream {
            return match self.was_reset(header.stream) {
                Some(true) => Ok(None),
                Some(false) => Err(Reason::StreamClosed),
                None => Err(Reason::Protocol),
            };
        }
        self.begin_stream(header, depends_on_itself)
    }

    fn begin_stream(
        &mut self,
        header: &Header,
        depends_on_itself: bool,
    ) -> Result<Option<NewRequest>, Reason> {
        let (stream, is_last) = (header.stream, header.has(frame::END_STREAM));
        if self.goaway == Goaway::Last {
            // The client has got GOAWAY, so this stream and all its frames are ignored (RFC 9113, 6.8).
            self.ignored_stream = stream;
            self.remember_closed(stream, true);
            return Ok(None);
        }
        self.last_stream = stream;
        if self.streams.len() >= self.settings.streams_max as usize {
            self.write_reset(stream, Reason::RefusedStream);
            return Ok(None);
        }
        if self.list.is_too_long() {
            self.refuse_list(stream, is_last);
            return Ok(None);
        }
        let translated = self.list.translate(!is_last, self.settings.scheme);
        let Some(translated) = translated.filter(|_| !depends_on_itself) else {
            self.reset_faulty(stream, Reason::Protocol)?;
            return Ok(None);
        };
        let mut state = StreamState::new(stream, self.stream_send_window, self.reads);
        (state.expected, state.is_received) = (translated.length, is_last);
        state.has_lines = translated.upload == Upload::Chunked;
        self.streams.push(state);
        self.requests += 1;
        self.buffers.count_use(usize::MAX);
        Ok(Some(NewRequest { stream, translated }))
    }

    /// Answers a header list that is too long (RFC 6585, 5).
    fn refuse_list(&mut self, stream: u32, is_last: bool) {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        Encoder::status(&mut block, 431);
        let flags = frame::END_HEADERS | frame::END_STREAM;
        self.write(frame::HEADERS, flags, stream, &block);
        match is_last {
            true => self.remember_closed(stream, false),
            false => self.write_reset(stream, Reason::NoError),
        }
    }

    fn on_ping(&mut self, header: &Header, payload: &[u8]) -> Result<(), Reason> {
        if header.stream != 0 {
            return Err(Reason::Protocol);
        }
        if payload.len() != LAST_PING.len() {
            return Err(Reason::FrameSize);
        }
        if !header.has(frame::ACK) {
            self.write(frame::PING, frame::ACK, 0, payload);
        } else if self.goaway == Goaway::Announced && payload == LAST_PING {
            self.goaway = Goaway::Last;
            self.write_goaway(self.last_stream, Reason::NoError);
            self.end_if_idle();
        }
        Ok(())
    }

    fn on_settings(&mut self, header: &Header, payload: &[u8]) -> Result<(), Reason> {
        let is_answer = header.has(frame::ACK);
        if header.stream != 0 {
            return Err(Reason::Protocol);
        }
        if (is_answer && !payload.is_empty()) || !payload.len().is_multiple_of(6) {
            return Err(Reason::FrameSize);
        }
        if is_answer {
            return Ok(());
        }
        for [high, low, value @ ..] in payload.as_chunks::<6>().0 {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*high, *low]) {
                frame::HEADER_TABLE_SIZE => self.encoder.set_table_bytes_max(value as usize),
                frame::ENABLE_PUSH
                | frame::ENABLE_CONNECT_PROTOCOL
                | frame::NO_RFC7540_PRIORITIES
                    if value > 1 =>
                {
                    return Err(Reason::Protocol);
                }
                frame::INITIAL_WINDOW_SIZE => self.set_stream_send_window(value.into())?,
                frame::MAX_FRAME_SIZE => match value {
                    0x4000..=0xff_ffff => self.payload_bytes_max = value as usize,
                    _ => return Err(Reason::Protocol),
                },
                _ => {}
            }
        }
        self.write(frame::SETTINGS, frame::ACK, 0, &[]);
        Ok(())
    }

    /// Ends the connection of a client that floods it with frames without effect (PING, SETTINGS, WINDOW_UPDATE,
    /// empty frames) or with requests that it cancels.
    fn end_faulty(&mut self) {
        let cancels_most = self.cancelled > CANCELLED_MIN && self.cancelled > self.requests / 2;
        if !self.is_over() && (cancels_most || self.buffers.is_flooded(self.has_requests())) {
            self.fail(Reason::EnhanceYourCalm);
        }
    }

    /// Sends GOAWAY: the connection accepts no more requests, and ends when the accepted ones are answered.
    pub(crate) fn shut_down(&mut self) {
        if self.goaway != Goaway::None || self.is_over() {
            return;
        }
        self.goaway = Goaway::Announced;
        if self.stage == Stage::Preface {
            return;
        }
        self.write_goaway(u32::MAX >> 1, Reason::NoError);
        self.write(frame::PING, 0, 0, &LAST_PING);
    }

    /// Ends the connection if it has sent the last GOAWAY and the last stream has ended.
    fn end_if_idle(&mut self) {
        if self.goaway == Goaway::Last && self.streams.is_empty() {
            self.close();
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.has_flooded = reason == Reason::EnhanceYourCalm;
        self.write_goaway(self.last_stream, reason);
        self.close();
    }

    /// Ends the connection and resets all streams.
    pub(crate) fn close(&mut self) {
        self.stage = Stage::Over;
        self.is_stalled = false;
        self.has_changed = true;
        self.pending_block = None;
        for stream in &mut self.streams {
            stream.is_reset = true;
        }
    }

    fn write_goaway(&mut self, last: u32, reason: Reason) {
        let [a, b, c, d] = last.to_be_bytes();
        let [e, f, g, h] = (reason as u32).to_be_bytes();
        self.write(frame::GOAWAY, 0, 0, &[a, b, c, d, e, f, g, h]);
    }

    pub(crate) fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let header = Header {
            length: payload.len(),
            kind,
            flags,
            stream,
        };
        self.buffers.write(&header.write());
        self.buffers.write(payload);
    }
}
