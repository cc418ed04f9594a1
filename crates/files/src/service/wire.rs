//! The protocol between a client and the open-file service, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; integers are little-endian. Each message names the
//! protocol and its version, so that either end may be restarted with another version at any time.
//! A client may have several requests under way; answers come in any order and repeat the number of
//! the request.
//!
//! | bytes | request                          | reply                                                        |
//! |-------|----------------------------------|--------------------------------------------------------------|
//! | 0–3   | `HWOF`                           | `HWOF`                                                       |
//! | 4–5   | version: 1                       | version: 1                                                   |
//! | 6     | kind: 1 open                     | kind: 1 file, 2 directory, 3 failed, 4 elsewhere, 5 busy, 6 version |
//! | 7     | flags: 1 pass the descriptor     | flags: 1 a descriptor is attached, 2 the bytes are in memory |
//! | 8–15  | number                           | number                                                       |
//! | 16–23 | bytes to have in memory          | errno u32 (failed), 0 u32                                    |
//! | 24–   | path, absolute, without NUL      | device, inode, size, modified s, changed s (8 each), modified ns, changed ns (4 each) |
//!
//! The last 48 bytes of a reply describe the file, and are zero in all others. `elsewhere` means
//! that the path is below none of the service's roots, `busy` that its queue is full, `version`
//! that the request has another version than the reply; the service then closes the connection.
//!
//! What it refuses: everything that differs from the table, as [`Malformed`]; each message has
//! exactly one encoding. docs/src/reference/open-file-protocol.md describes the same
//! layout, and clients/headway_ask.c implements it.

use crate::file::Meta;
use crate::protocol::{Malformed, PATH_BYTES_MAX};

/// What every message begins with.
pub const MAGIC: [u8; 4] = *b"HWOF";
/// The version this build speaks.
pub const VERSION: u16 = 1;
/// A request without its path.
pub const REQUEST_HEAD_BYTES: usize = 24;
/// No request is longer.
pub const REQUEST_BYTES_MAX: usize = REQUEST_HEAD_BYTES + PATH_BYTES_MAX;
/// The length of every reply.
pub const REPLY_BYTES: usize = 72;

const KIND_OPEN: u8 = 1;
const FLAG_DESCRIPTOR: u8 = 1;
const FLAG_IN_MEMORY: u8 = 2;

/// From client to service: open a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The client's number for it.
    pub number: u64,
    /// Pass the open file; else the answer alone is wanted.
    pub descriptor: bool,
    /// How many bytes from the file's start are to be in memory before the answer.
    pub read_in: u64,
    /// Absolute; at most [`PATH_BYTES_MAX`] bytes, none of them NUL.
    pub path: &'a [u8],
}

/// What a packet from a client is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParsedRequest<'a> {
    /// A request of this version.
    Request(Request<'a>),
    /// A client of another version; its number, so that it gets an answer.
    OtherVersion {
        /// The client's number for its request.
        number: u64,
    },
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// A regular file.
    File {
        /// What it is.
        meta: Meta,
        /// It is attached, open for reading.
        descriptor: bool,
        /// The requested bytes are in memory.
        in_memory: bool,
    },
    /// A directory.
    Directory,
    /// No file, and the error number that opening it gave the service.
    Failed {
        /// As in errno(3).
        errno: u32,
    },
    /// Below none of the roots.
    Elsewhere,
    /// Too much is waiting already.
    Busy,
    /// The request is of another version.
    Version,
}

/// From service to client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The request's number.
    pub number: u64,
    /// Outcome of it.
    pub answered: Answered,
}

/// Append the bytes of a request. A path beyond [`PATH_BYTES_MAX`] is cut: it is too long already.
pub fn encode_request(request: &Request<'_>, bytes: &mut Vec<u8>) {
    head(
        bytes,
        KIND_OPEN,
        if request.descriptor {
            FLAG_DESCRIPTOR
        } else {
            0
        },
        request.number,
    );
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
    if flags & !FLAG_DESCRIPTOR != 0 {
        return Err(malformed("unknown flag"));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(malformed("too long"));
    }
    if path.first() != Some(&b'/') || path.contains(&0) {
        return Err(malformed("no absolute path"));
    }
    Ok(ParsedRequest::Request(Request {
        number,
        descriptor: flags & FLAG_DESCRIPTOR != 0,
        read_in: u64::from_le_bytes(*read_in),
        path,
    }))
}

/// The bytes of a reply.
pub fn encode_reply(reply: &Reply) -> [u8; REPLY_BYTES] {
    let (kind, flags, errno, meta) = match reply.answered {
        Answered::File {
            meta,
            descriptor,
            in_memory,
        } => {
            let descriptor = if descriptor { FLAG_DESCRIPTOR } else { 0 };
            let in_memory = if in_memory { FLAG_IN_MEMORY } else { 0 };
            (1, descriptor | in_memory, 0, Some(meta))
        }
        Answered::Directory => (2, 0, 0, None),
        Answered::Failed { errno } => (3, 0, errno, None),
        Answered::Elsewhere => (4, 0, 0, None),
        Answered::Busy => (5, 0, 0, None),
        Answered::Version => (6, 0, 0, None),
    };
    let mut bytes = Vec::with_capacity(REPLY_BYTES);
    head(&mut bytes, kind, flags, reply.number);
    bytes.extend(errno.to_le_bytes());
    bytes.extend([0; 4]);
    if let Some(meta) = meta {
        for field in [meta.device, meta.inode, meta.size] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(meta.modified.0.to_le_bytes());
        bytes.extend(meta.changed.0.to_le_bytes());
        bytes.extend(meta.modified.1.to_le_bytes());
        bytes.extend(meta.changed.1.to_le_bytes());
    }
    let mut whole = [0; REPLY_BYTES];
    whole[..bytes.len()].copy_from_slice(&bytes);
    whole
}

/// Decodes a reply.
///
/// # Errors
/// [`Malformed`]. That includes a reply of another version: such a service sends `version` in its
/// own form.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Malformed> {
    let bytes: &[u8; REPLY_BYTES] = bytes.try_into().map_err(|_| malformed("wrong length"))?;
    let (version, kind, flags, number) = decode_head(bytes)?;
    let errno = u32::from_le_bytes(part(bytes, 16));
    let answered = match kind {
        1 if flags & !(FLAG_DESCRIPTOR | FLAG_IN_MEMORY) == 0 => Answered::File {
            meta: decode_meta(bytes),
            descriptor: flags & FLAG_DESCRIPTOR != 0,
            in_memory: flags & FLAG_IN_MEMORY != 0,
        },
        2 => Answered::Directory,
        3 => Answered::Failed { errno },
        4 => Answered::Elsewhere,
        5 => Answered::Busy,
        6 => Answered::Version,
        _ => return Err(malformed("unknown kind or flag")),
    };
    let reply = Reply { number, answered };
    // Version, reserved bytes and the fields of other kinds are checked in one: they have one
    // encoding.
    if version != VERSION || encode_reply(&reply) != *bytes {
        return Err(malformed("not this version's encoding"));
    }
    Ok(reply)
}

fn decode_meta(bytes: &[u8; REPLY_BYTES]) -> Meta {
    Meta {
        device: u64::from_le_bytes(part(bytes, 24)),
        inode: u64::from_le_bytes(part(bytes, 32)),
        size: u64::from_le_bytes(part(bytes, 40)),
        modified: (
            i64::from_le_bytes(part(bytes, 48)),
            u32::from_le_bytes(part(bytes, 64)),
        ),
        changed: (
            i64::from_le_bytes(part(bytes, 56)),
            u32::from_le_bytes(part(bytes, 68)),
        ),
    }
}

fn head(bytes: &mut Vec<u8>, kind: u8, flags: u8, number: u64) {
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([kind, flags]);
    bytes.extend(number.to_le_bytes());
}

/// Version, kind, flags and number: the 16 bytes that every version begins with.
fn decode_head(bytes: &[u8]) -> Result<(u16, u8, u8, u64), Malformed> {
    let head = bytes.first_chunk::<16>().ok_or(malformed("too short"))?;
    if head[..4] != MAGIC {
        return Err(malformed("not this protocol"));
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    Ok((version, head[6], head[7], u64::from_le_bytes(part(head, 8))))
}

/// `N` bytes from `at`, of a message that is known to be long enough.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

fn malformed(what: &'static str) -> Malformed {
    Malformed { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(request: &Request<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_request(request, &mut bytes);
        bytes
    }

    fn meta() -> impl Strategy<Value = Meta> {
        let stamp = || (any::<i64>(), any::<u32>());
        (any::<u64>(), stamp(), stamp(), any::<u64>(), any::<u64>()).prop_map(
            |(size, modified, changed, device, inode)| Meta {
                size,
                modified,
                changed,
                device,
                inode,
            },
        )
    }

    fn answered() -> impl Strategy<Value = Answered> {
        prop_oneof![
            (meta(), any::<bool>(), any::<bool>()).prop_map(|(meta, descriptor, in_memory)| {
                Answered::File {
                    meta,
                    descriptor,
                    in_memory,
                }
            }),
            any::<u32>().prop_map(|errno| Answered::Failed { errno }),
            prop::sample::select(vec![
                Answered::Directory,
                Answered::Elsewhere,
                Answered::Busy,
                Answered::Version
            ]),
        ]
    }

    proptest! {
        #[test]
        fn reply_is_read_back_when_it_was_written(number: u64, answered in answered()) {
            let reply = Reply { number, answered };
            prop_assert_eq!(decode_reply(&encode_reply(&reply)), Ok(reply));
        }

        #[test]
        fn request_is_read_back_when_its_path_has_any_bytes(
            number: u64, descriptor: bool, read_in: u64, rest in prop::collection::vec(1_u8.., 0..300),
        ) {
            let path = [b"/", &rest[..]].concat();
            let request = Request { number, descriptor, read_in, path: &path };
            let bytes = encoded(&request);
            prop_assert_eq!(decode_request(&bytes), Ok(ParsedRequest::Request(request.clone())));
        }

        #[test]
        fn bytes_do_no_harm_when_they_are_no_message(
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
        let mut bytes = encoded(&Request {
            number: 77,
            descriptor: true,
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
    fn path_is_refused_when_it_is_relative_too_long_or_has_a_nul() {
        let long = vec![b'/'; PATH_BYTES_MAX + 1];
        for path in [&b"relative"[..], b"", b"/a\0b", &long] {
            let mut bytes = encoded(&Request {
                number: 1,
                descriptor: false,
                read_in: 0,
                path: b"",
            });
            bytes.extend(path);
            assert!(decode_request(&bytes).is_err(), "{} bytes", path.len());
        }
    }
}
