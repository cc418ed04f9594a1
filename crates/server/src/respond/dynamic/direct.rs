//! The direct interface, and the one of old beside it: what the server and a program that stays say
//! to each other, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet on the program's standard input; descriptors travel
//! beside it. Integers are little-endian. The layout is written down for people in
//! docs/src/reference/direct-protocol.md, and spoken by the libraries in `clients/`.
//!
//! | kind | message | fields after version u8 (1) and kind u8 | descriptors |
//! |---|---|---|---|
//! | 1 | Request | flags u16, id u32, body u64, variables u32, the variables, the body if it is here | the client's socket, unless the reply is to be sent back; and the body's file if it is not here |
//! | 129 | Ready | – | – |
//! | 130 | Done | flags u16, id u32, status u16, bytes u64 | – |
//! | 131 | Output | id u32, bytes of the reply | – |
//!
//! What it refuses: anything else, as `None`; the program that said it is ended.
//!
//! Source: dissertation 2.5.5 and 2.5.7: programs that write to the client themselves.

/// The version of the interface.
pub const VERSION: u8 = 1;
/// No message is longer.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// A body up to this travels with its request.
pub const INLINE_BYTES_MAX: usize = 32 * 1024;

/// No reply is longer, 1 TiB: who says so does not know what it says.
const REPLY_BYTES_MAX: u64 = 1 << 40;

/// The connection may stay after the reply.
const KEEP: u16 = 1;
/// Only the head of the reply is to be sent.
const HEAD_ONLY: u16 = 2;
/// The client speaks HTTP/1.0.
const OLD: u16 = 4;
/// The body is in a file.
const FILE: u16 = 8;
/// There is no client's socket: the reply is to be sent back.
const BACK: u16 = 16;

/// What a program is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The server's number for it; comes back with its end.
    pub id: u32,
    /// The connection may stay.
    pub keep_alive: bool,
    /// The method is HEAD.
    pub head_only: bool,
    /// The client speaks HTTP/1.0.
    pub old: bool,
    /// The reply is to be sent back.
    pub back: bool,
    /// The length of the body.
    pub body_bytes: u64,
    /// The body is in the second descriptor.
    pub in_file: bool,
    /// `NAME=value` and NUL for each.
    pub variables: &'a [u8],
    /// The body, if it is not in a file.
    pub body: &'a [u8],
}

/// What a program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// It waits for a request.
    Ready,
    /// Some of its reply, to be passed on.
    Output {
        /// To which request.
        id: u32,
        /// As a CGI program would write it.
        bytes: &'a [u8],
    },
    /// Its reply is over, and it waits for the next request.
    Done(Done),
}

/// How a reply has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// To which request.
    pub id: u32,
    /// The reply's status, for the log.
    pub status: u16,
    /// Bytes of the reply's body.
    pub bytes: u64,
    /// The reply was complete, and the client can tell: the connection may stay.
    pub keep: bool,
}

/// A request as a message; `None` if it is longer than one may be.
pub fn encode(asked: &Asked<'_>) -> Option<Vec<u8>> {
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    let flags = flag(asked.keep_alive, KEEP)
        | flag(asked.head_only, HEAD_ONLY)
        | flag(asked.old, OLD)
        | flag(asked.in_file, FILE)
        | flag(asked.back, BACK);
    let mut bytes = Vec::with_capacity(20 + asked.variables.len() + asked.body.len());
    bytes.extend([VERSION, 1]);
    bytes.extend(flags.to_le_bytes());
    bytes.extend(asked.id.to_le_bytes());
    bytes.extend(asked.body_bytes.to_le_bytes());
    bytes.extend((asked.variables.len() as u32).to_le_bytes());
    bytes.extend_from_slice(asked.variables);
    bytes.extend_from_slice(asked.body);
    (bytes.len() <= MESSAGE_BYTES_MAX).then_some(bytes)
}

/// What a program has said; `None` if it makes no sense.
pub fn decode(bytes: &[u8]) -> Option<Said<'_>> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    match (head, rest) {
        ([VERSION, 129], []) => Some(Said::Ready),
        ([VERSION, 130], rest) => {
            let (flags, rest) = rest.split_first_chunk::<2>()?;
            let (id, rest) = rest.split_first_chunk::<4>()?;
            let (status, rest) = rest.split_first_chunk::<2>()?;
            let (bytes, rest) = rest.split_first_chunk::<8>()?;
            let (flags, status) = (u16::from_le_bytes(*flags), u16::from_le_bytes(*status));
            let bytes = u64::from_le_bytes(*bytes);
            let known = flags <= KEEP && (200..600).contains(&status);
            let sound = known && bytes <= REPLY_BYTES_MAX && rest.is_empty();
            sound.then(|| {
                Said::Done(Done {
                    id: u32::from_le_bytes(*id),
                    status,
                    bytes,
                    keep: flags == KEEP,
                })
            })
        }
        ([VERSION, 131], rest) => {
            let (id, bytes) = rest.split_first_chunk::<4>()?;
            let id = u32::from_le_bytes(*id);
            (!bytes.is_empty()).then_some(Said::Output { id, bytes })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_the_documented_layout() {
        let asked = Asked {
            id: 0x0102_0304,
            keep_alive: true,
            head_only: false,
            old: true,
            back: false,
            body_bytes: 3,
            in_file: false,
            variables: b"A=b\0",
            body: b"xyz",
        };
        let expected = [
            &[1, 1, 5, 0, 4, 3, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0][..],
            b"A=b\0xyz",
        ]
        .concat();
        assert_eq!(encode(&asked), Some(expected));
        let back = encode(&Asked {
            back: true,
            ..asked
        });
        assert_eq!(back.unwrap()[2..4], [21, 0]);
        let long = vec![b'x'; MESSAGE_BYTES_MAX];
        let asked = Asked {
            variables: &long,
            ..asked
        };
        assert_eq!(encode(&asked), None);
    }

    #[test]
    fn programs_are_understood_only_when_they_speak_the_protocol() {
        assert_eq!(decode(&[1, 129]), Some(Said::Ready));
        let done = [1, 130, 1, 0, 9, 0, 0, 0, 200, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        let said = Said::Done(Done {
            id: 9,
            status: 200,
            bytes: 5,
            keep: true,
        });
        assert_eq!(decode(&done), Some(said));
        for length in 0..done.len() {
            assert_eq!(decode(&done[..length]), None, "{length}");
        }
        assert_eq!(decode(&[&done[..], &[0]].concat()), None);
        for (at, byte) in [(0, 2), (1, 132), (2, 2), (8, 99), (9, 3), (15, 2), (17, 1)] {
            let mut wrong = done;
            wrong[at] = byte;
            assert_eq!(decode(&wrong), None, "{at}");
        }
        let output = Said::Output { id: 9, bytes: b"x" };
        assert_eq!(decode(&[1, 131, 9, 0, 0, 0, b'x']), Some(output));
        for length in 0..7 {
            assert_eq!(decode(&[1, 131, 9, 0, 0, 0][..length.min(6)]), None);
        }
        assert_eq!(decode(b"HTTP/1.1 200 OK"), None);
    }
}
