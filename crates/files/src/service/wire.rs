//! The protocol between a client and the open-file service, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; integers are little-endian. Each message names the
//! protocol and its version, so that either end may be restarted with another version at any time.
//! A client may have several requests under way; answers come in any order and repeat the number of
//! the request.
//!
//! | bytes | request                          | answer                              |
//! |-------|----------------------------------|-------------------------------------|
//! | 0–3   | `HWOF`                           | `HWOF`                              |
//! | 4–5   | version: 1                       | version: 1                          |
//! | 6     | kind: 1 open                     | kind: 1 done, 2 elsewhere, 3 busy, 4 version |
//! | 7     | 0                                | 0                                   |
//! | 8–15  | number                           | number                              |
//! | 16–23 | bytes to have in memory          |                                     |
//! | 24–   | path, absolute, without NUL      |                                     |
//!
//! `done` means that the client opens the path now: the kernel knows by then what the path is, as
//! far as the service could make it. `elsewhere` means that the path is below none of the
//! service's roots, `busy` that its queue is full, `version` that the request has another version
//! than the answer; the service then closes the connection.
//!
//! An answer says nothing about a file, and no descriptor comes with it: a client learns what the
//! file is by its own call, with its own rights. The service may run as another user, so whatever
//! it told of a file could be something that the client must not know.
//!
//! What it refuses: everything that differs from the table, as [`Malformed`]; each message has
//! exactly one encoding. docs/research/src/open-file-protocol.md describes the same
//! layout, and clients/headway_request.c implements it.
//!
//! # Example
//! ```
//! use headway_files::service::wire::{ClientRequest, ParsedRequest, decode_request, encode_request};
//!
//! let request = ClientRequest { number: 7, read_in: 4096, path: b"/srv/www/index.html" };
//! let mut packet = Vec::new();
//! encode_request(&request, &mut packet);
//! assert_eq!(decode_request(&packet), Ok(ParsedRequest::Request(request)));
//! ```

use crate::protocol::{Malformed, PATH_BYTES_MAX};

/// What every message begins with.
pub const MAGIC: [u8; 4] = *b"HWOF";
/// The version this build speaks.
pub const VERSION: u16 = 1;
/// A request without its path.
pub const REQUEST_HEAD_BYTES: usize = 24;
/// No request is longer.
pub const REQUEST_BYTES_MAX: usize = REQUEST_HEAD_BYTES + PATH_BYTES_MAX;
/// The length of every answer.
pub const REPLY_BYTES: usize = 16;

const KIND_OPEN: u8 = 1;

/// From client to service: open a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRequest<'a> {
    /// The client's number for it.
    pub number: u64,
    /// How many bytes from the file's start are to be in memory before the answer.
    pub read_in: u64,
    /// Absolute; at most [`PATH_BYTES_MAX`] bytes, none of them NUL.
    pub path: &'a [u8],
}

/// What a packet from a client is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParsedRequest<'a> {
    /// A request of this version.
    Request(ClientRequest<'a>),
    /// A client of another version; its number, so that it gets an answer.
    OtherVersion {
        /// The client's number for its request.
        number: u64,
    },
}

/// Outcome of a request, as far as a client may know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// The client opens the path now.
    Done,
    /// The path is below none of the roots.
    Elsewhere,
    /// Too much is waiting already.
    Busy,
    /// The request is of another version.
    Version,
}

/// A message from the service to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientReply {
    /// The request's number.
    pub number: u64,
    /// Outcome of the request.
    pub answered: Answered,
}

/// Append the bytes of a request. A path beyond [`PATH_BYTES_MAX`] is cut: it is too long already.
pub fn encode_request(request: &ClientRequest<'_>, bytes: &mut Vec<u8>) {
    bytes.extend(head(KIND_OPEN, request.number));
    bytes.extend(request.read_in.to_le_bytes());
    bytes.extend(&request.path[..request.path.len().min(PATH_BYTES_MAX)]);
}

/// Decodes a request.
///
/// # Errors
/// [`Malformed`]: the sender does not implement this protocol.
pub fn decode_request(bytes: &[u8]) -> Result<ParsedRequest<'_>, Malformed> {
    let (version, kind, flags, number) = decode_head(bytes)?;
    if version != VERSION {
        return Ok(ParsedRequest::OtherVersion { number });
    }
    let (read_in, path) = bytes[16..]
        .split_first_chunk::<8>()
        .ok_or(malformed("too short"))?;
    if kind != KIND_OPEN {
        return Err(malformed("unknown kind"));
    }
    if flags != 0 {
        return Err(malformed("unknown flag"));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(malformed("too long"));
    }
    if path.first() != Some(&b'/') || path.contains(&0) {
        return Err(malformed("no absolute path"));
    }
    Ok(ParsedRequest::Request(ClientRequest {
        number,
        read_in: u64::from_le_bytes(*read_in),
        path,
    }))
}

/// The bytes of an answer.
pub fn encode_reply(reply: &ClientReply) -> [u8; REPLY_BYTES] {
    let kind = match reply.answered {
        Answered::Done => 1,
        Answered::Elsewhere => 2,
        Answered::Busy => 3,
        Answered::Version => 4,
    };
    head(kind, reply.number)
}

/// Decodes an answer.
///
/// # Errors
/// [`Malformed`]. That includes an answer of another version: such a service sends `version` in its
/// own form.
pub fn decode_reply(bytes: &[u8]) -> Result<ClientReply, Malformed> {
    if bytes.len() != REPLY_BYTES {
        return Err(malformed("wrong length"));
    }
    let (version, kind, flags, number) = decode_head(bytes)?;
    if version != VERSION || flags != 0 {
        return Err(malformed("not this version's encoding"));
    }
    let answered = match kind {
        1 => Answered::Done,
        2 => Answered::Elsewhere,
        3 => Answered::Busy,
        4 => Answered::Version,
        _ => return Err(malformed("unknown kind")),
    };
    Ok(ClientReply { number, answered })
}

fn head(kind: u8, number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6] = kind;
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Version, kind, flags and number: the 16 bytes that every version begins with.
fn decode_head(bytes: &[u8]) -> Result<(u16, u8, u8, u64), Malformed> {
    let head = bytes.first_chunk::<16>().ok_or(malformed("too short"))?;
    if head[..4] != MAGIC {
        return Err(malformed("not this protocol"));
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    let [.., a, b, c, d, e, f, g, h] = *head;
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    Ok((version, head[6], head[7], number))
}

fn malformed(what: &'static str) -> Malformed {
    Malformed { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(request: &ClientRequest<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_request(request, &mut bytes);
        bytes
    }

    fn answered() -> impl Strategy<Value = Answered> {
        prop::sample::select(vec![
            Answered::Done,
            Answered::Elsewhere,
            Answered::Busy,
            Answered::Version,
        ])
    }

    proptest! {
        #[test]
        fn reply_is_read_back_when_it_was_written(number: u64, answered in answered()) {
            let reply = ClientReply { number, answered };
            prop_assert_eq!(decode_reply(&encode_reply(&reply)), Ok(reply));
        }

        #[test]
        fn request_is_read_back_when_its_path_has_any_bytes(
            number: u64, read_in: u64, rest in prop::collection::vec(1_u8.., 0..300),
        ) {
            let path = [b"/", &rest[..]].concat();
            let request = ClientRequest { number, read_in, path: &path };
            let bytes = encoded(&request);
            prop_assert_eq!(decode_request(&bytes), Ok(ParsedRequest::Request(request.clone())));
        }

        #[test]
        fn random_bytes_are_decoded_without_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200), genuine: bool,
        ) {
            if genuine {
                bytes.splice(..bytes.len().min(6), *b"HWOF\x01\x00");
            }
            if let Ok(ParsedRequest::Request(request)) = decode_request(&bytes) {
                prop_assert_eq!(encoded(&request), bytes.clone());
            }
            if let Ok(reply) = decode_reply(&bytes) {
                prop_assert_eq!(encode_reply(&reply).to_vec(), bytes);
            }
        }
    }

    #[test]
    fn number_is_known_when_a_request_is_of_another_version() {
        let mut bytes = encoded(&ClientRequest {
            number: 77,
            read_in: 0,
            path: b"/x",
        });
        bytes[4] = 2;
        bytes.truncate(16);
        assert_eq!(
            decode_request(&bytes),
            Ok(ParsedRequest::OtherVersion { number: 77 })
        );
    }

    #[test]
    fn request_is_refused_when_it_has_any_flag() {
        let mut bytes = encoded(&ClientRequest {
            number: 1,
            read_in: 0,
            path: b"/x",
        });
        assert!(decode_request(&bytes).is_ok());
        for flags in 1..=u8::MAX {
            bytes[7] = flags;
            assert!(decode_request(&bytes).is_err(), "{flags}");
        }
    }

    #[test]
    fn path_is_refused_when_it_is_relative_too_long_or_has_a_nul() {
        let long = vec![b'/'; PATH_BYTES_MAX + 1];
        for path in [&b"relative"[..], b"", b"/a\0b", &long] {
            let mut bytes = encoded(&ClientRequest {
                number: 1,
                read_in: 0,
                path: b"",
            });
            bytes.extend(path);
            assert!(decode_request(&bytes).is_err(), "{} bytes", path.len());
        }
    }
}
