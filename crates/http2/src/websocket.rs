//! WebSockets over HTTP/2: an extended CONNECT becomes the upgrade of HTTP/1.1 (RFC 8441, 5).
//!
//! HTTP/2 has no handshake key, so we make one for the upgrade and check the upstream's answer to it. The answer only
//! proves that the upstream speaks WebSocket, so SHA-1 is good enough (RFC 6455, 10.8).

use std::hash::{BuildHasher, RandomState};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use sha1_smol::Sha1;

/// The text that a server appends to the key (RFC 6455, 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A key for one handshake.
pub(crate) fn key() -> String {
    // Not predictable, and only the first key of a thread needs a system call.
    let part = || RandomState::new().hash_one(0_u8).to_be_bytes();
    STANDARD.encode([part(), part()].concat())
}

/// The `Sec-WebSocket-Accept` of an upstream that agrees to a WebSocket with this key (RFC 6455, 4.2.2).
///
/// ```
/// let answer = headway_http2::websocket_answer("dGhlIHNhbXBsZSBub25jZQ==");
/// assert_eq!(answer, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// ```
pub fn answer(key: &str) -> String {
    let digest = Sha1::from([key.as_bytes(), GUID].concat()).digest();
    STANDARD.encode(digest.bytes())
}

/// The status that replaces `status` for the client, if any. For an HTTP/2 client 200 means that the WebSocket is
/// open, so any other success becomes an error. `accept` is the upstream's `Sec-WebSocket-Accept`.
pub(crate) fn replaced(status: u16, accept: Option<&[u8]>, expected: &str) -> Option<u16> {
    match status {
        101 if accept == Some(expected.as_bytes()) => Some(200),
        101 => Some(502),
        200..=299 => Some(501),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_that_of_the_standard() {
        // RFC 6455, 1.3.
        let answer_of = answer("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(answer_of, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn keys_have_16_bytes_and_differ() {
        let keys = [key(), key(), key()];
        for key in &keys {
            assert!(key.len() == 24 && key.ends_with("=="), "{key}");
        }
        assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    }
}
