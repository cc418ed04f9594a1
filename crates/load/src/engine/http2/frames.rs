//! Writes and reads HTTP/2 frames.
//!
//! Sources: RFC 9113 sections 3.4, 4 and 6.

use headway_http2::PREFACE;
pub(super) use headway_http2::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HAS_PRIORITY, HEADER_BYTES, HEADERS,
    Header, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PADDED, PAYLOAD_BYTES_MAX, PING,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_BYTES_MAX, WINDOW_UPDATE,
};
use headway_http2::frame::{ENABLE_PUSH, MAX_HEADER_LIST_SIZE};

pub(super) const NO_ERROR: u32 = 0;
pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const FLOW_CONTROL_ERROR: u32 = 3;
pub(super) const FRAME_SIZE_ERROR: u32 = 6;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const CANCEL: u32 = 8;
pub(super) const COMPRESSION_ERROR: u32 = 9;
pub(super) const ENHANCE_YOUR_CALM: u32 = 11;

/// The initial flow-control window of a stream and of a connection.
pub(super) const WINDOW_BYTES_DEFAULT: u32 = 65_535;

/// The flow-control window for the server, per stream and per connection. It is as large as h2load's. Bodies are only
/// counted, so the socket's buffer is limit enough.
pub(super) const WINDOW_BYTES: u32 = 1 << 30;

/// Writes the client's preface: the magic bytes, SETTINGS and WINDOW_UPDATE.
pub(super) fn put_preface(out: &mut Vec<u8>, header_bytes_max: u32) {
    out.extend_from_slice(PREFACE);
    let settings = [
        (ENABLE_PUSH, 0),
        (INITIAL_WINDOW_SIZE, WINDOW_BYTES),
        (MAX_HEADER_LIST_SIZE, header_bytes_max),
    ];
    put_header(out, 6 * settings.len(), SETTINGS, 0, 0);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    put_number(out, WINDOW_UPDATE, 0, WINDOW_BYTES - WINDOW_BYTES_DEFAULT);
}

/// Writes a frame header. The payload follows.
pub(super) fn put_header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let header = Header {
        length,
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&header.write());
}

/// Writes a frame with one number: RST_STREAM or WINDOW_UPDATE.
pub(super) fn put_number(out: &mut Vec<u8>, kind: u8, stream: u32, number: u32) {
    put_header(out, 4, kind, 0, stream);
    out.extend_from_slice(&number.to_be_bytes());
}

/// Writes GOAWAY. Its last stream is 0, because the server starts no streams.
pub(super) fn put_goaway(out: &mut Vec<u8>, error: u32) {
    put_header(out, 8, GOAWAY, 0, 0);
    out.extend_from_slice(&0_u32.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
}

/// The name of an error code, RFC 9113 section 7.
pub(super) fn error_name(code: u32) -> String {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    let name = NAMES.get(code as usize).copied();
    name.map_or_else(|| format!("error {code}"), str::to_owned)
}
