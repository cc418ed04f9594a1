//! Frames (RFC 9113, 4 and 6), for servers and clients.
#![expect(missing_docs, reason = "the names are those of RFC 9113")]

/// Types of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
/// RFC 9218, 7.1.
pub const PRIORITY_UPDATE: u8 = 0x10;

/// Flags.
pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const HAS_PRIORITY: u8 = 0x20;

/// Settings (RFC 9113, 6.5.2; RFC 8441, 3; RFC 9218, 2.1).
pub const HEADER_TABLE_SIZE: u16 = 1;
pub const ENABLE_PUSH: u16 = 2;
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;
pub const MAX_FRAME_SIZE: u16 = 5;
pub const MAX_HEADER_LIST_SIZE: u16 = 6;
pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
pub const NO_RFC7540_PRIORITIES: u16 = 9;

pub const HEADER_BYTES: usize = 9;
/// The longest payload that we accept, and that a client accepts by default (SETTINGS_MAX_FRAME_SIZE).
pub const PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// The initial flow-control window of a connection and of streams.
pub const WINDOW_BYTES: i64 = 65_535;
/// The largest flow-control window.
pub const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;

/// Why a stream or a connection ends (RFC 9113, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    NoError = 0,
    Protocol = 1,
    Internal = 2,
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
    RefusedStream = 7,
    Compression = 9,
    EnhanceYourCalm = 11,
}

/// A frame header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Header {
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Header {
        let [high, middle, low, kind, flags, stream @ ..] = *bytes;
        Header {
            length: u32::from_be_bytes([0, high, middle, low]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        }
    }

    pub fn write(&self) -> [u8; HEADER_BYTES] {
        let [_, high, middle, low] = (self.length as u32).to_be_bytes();
        let [a, b, c, d] = self.stream.to_be_bytes();
        [high, middle, low, self.kind, self.flags, a, b, c, d]
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload without its padding.
    pub fn without_padding<'p>(&self, payload: &'p [u8]) -> Result<&'p [u8], Reason> {
        if !self.has(PADDED) {
            return Ok(payload);
        }
        let (padding, rest) = payload.split_first().ok_or(Reason::FrameSize)?;
        let length = rest.len().checked_sub(usize::from(*padding));
        Ok(&rest[..length.ok_or(Reason::Protocol)?])
    }

    /// The header block in the payload of HEADERS, and whether the stream depends on itself (RFC 7540, 5.3.1).
    pub fn block<'p>(&self, payload: &'p [u8]) -> Result<(&'p [u8], bool), Reason> {
        let payload = self.without_padding(payload)?;
        if !self.has(HAS_PRIORITY) {
            return Ok((payload, false));
        }
        let (priority, block) = payload.split_first_chunk::<5>().ok_or(Reason::FrameSize)?;
        Ok((block, dependency(priority) == self.stream))
    }
}

/// The stream that another one depends on. RFC 9113 has deprecated these priorities of RFC 7540.
pub fn dependency(priority: &[u8; 5]) -> u32 {
    let [stream @ .., _] = *priority;
    u32::from_be_bytes(stream) & (u32::MAX >> 1)
}
