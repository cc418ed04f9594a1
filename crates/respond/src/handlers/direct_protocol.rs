//! The messages between the server and a long-running program (direct and pipe locations), as pure
//! functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet on the program's standard input; descriptors travel
//! beside it. Integers are little-endian. The protocol is documented in
//! docs/research/src/direct-protocol.md (for pipes docs/research/src/handlers.md) and implemented by
//! the libraries in `clients/`.
//!
//! | kind | message | fields after version u8 (1) and kind u8 | descriptors |
//! |---|---|---|---|
//! | 1 | Request | flags u16, id u32, body u64, variables u32, the variables, the body if it is inline | the client's socket, unless the response is to be sent back; and the body's file if it is not inline |
//! | 129 | Ready | – | – |
//! | 130 | Done | flags u16, id u32, status u16, bytes u64 | – |
//! | 131 | Output | id u32, bytes of the response | – |
//!
//! Anything else decodes to `None`, and the program that sent it is killed.
//!
//! Source: dissertation 2.5.5 and 2.5.7: programs that write to the client themselves.

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Longest body that is sent inline with its request.
pub const INLINE_BYTES_MAX: usize = 32 * 1024;

/// Longest response that is believed, 1 TiB; a larger count is a program error.
const RESPONSE_BYTES_MAX: u64 = 1 << 40;

/// Flag: the connection may stay open after the response.
const FLAG_KEEP_ALIVE: u16 = 1;
/// Flag: only the head of the response is to be sent.
const FLAG_HEAD_ONLY: u16 = 2;
/// Flag: the client speaks HTTP/1.0.
const FLAG_HTTP_1_0: u16 = 4;
/// Flag: the body is in a file.
const FLAG_BODY_IN_FILE: u16 = 8;
/// Flag: there is no client socket; the response is to be sent back.
const FLAG_SEND_BACK: u16 = 16;

/// A request as it is sent to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectRequest<'a> {
    /// The request's ID, which comes back in the Done message.
    pub id: u32,
    /// The connection may stay open.
    pub keep_alive: bool,
    /// The method is HEAD.
    pub head_only: bool,
    /// The client speaks HTTP/1.0.
    pub old: bool,
    /// The response is to be sent back.
    pub back: bool,
    /// Length of the body.
    pub body_bytes: u64,
    /// The body is in the second descriptor.
    pub in_file: bool,
    /// `NAME=value` and NUL for each variable.
    pub variables: &'a [u8],
    /// The body, if it is inline.
    pub body: &'a [u8],
}

/// A message of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectMessage<'a> {
    /// The program is ready for requests.
    Ready,
    /// A part of the response, to be passed on.
    Output {
        /// The request's ID.
        id: u32,
        /// Bytes in CGI format.
        bytes: &'a [u8],
    },
    /// The response is complete, and the program is ready for the next request.
    Done(DirectDone),
}

/// The end of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectDone {
    /// The request's ID.
    pub id: u32,
    /// Status of the response, for the access log.
    pub status: u16,
    /// Bytes of the response's body.
    pub bytes: u64,
    /// The response was complete and framed, so the connection may stay open.
    pub keep: bool,
}

/// Encodes a request; `None` if it exceeds the message limit.
pub fn encode(request: &DirectRequest<'_>) -> Option<Vec<u8>> {
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    let flags = flag(request.keep_alive, FLAG_KEEP_ALIVE)
        | flag(request.head_only, FLAG_HEAD_ONLY)
        | flag(request.old, FLAG_HTTP_1_0)
        | flag(request.in_file, FLAG_BODY_IN_FILE)
        | flag(request.back, FLAG_SEND_BACK);
    let mut bytes = Vec::with_capacity(20 + request.variables.len() + request.body.len());
    bytes.extend([VERSION, 1]);
    bytes.extend(flags.to_le_bytes());
    bytes.extend(request.id.to_le_bytes());
    bytes.extend(request.body_bytes.to_le_bytes());
    bytes.extend((request.variables.len() as u32).to_le_bytes());
    bytes.extend_from_slice(request.variables);
    bytes.extend_from_slice(request.body);
    (bytes.len() <= MESSAGE_BYTES_MAX).then_some(bytes)
}

/// Decodes a message of a program; `None` if it is malformed.
pub fn decode(bytes: &[u8]) -> Option<DirectMessage<'_>> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    match (head, rest) {
        ([VERSION, 129], []) => Some(DirectMessage::Ready),
        ([VERSION, 130], rest) => {
            let (flags, rest) = rest.split_first_chunk::<2>()?;
            let (id, rest) = rest.split_first_chunk::<4>()?;
            let (status, rest) = rest.split_first_chunk::<2>()?;
            let (bytes, rest) = rest.split_first_chunk::<8>()?;
            let (flags, status) = (u16::from_le_bytes(*flags), u16::from_le_bytes(*status));
            let bytes = u64::from_le_bytes(*bytes);
            let known = flags <= FLAG_KEEP_ALIVE && (200..600).contains(&status);
            let sound = known && bytes <= RESPONSE_BYTES_MAX && rest.is_empty();
            sound.then(|| {
                DirectMessage::Done(DirectDone {
                    id: u32::from_le_bytes(*id),
                    status,
                    bytes,
                    keep: flags == FLAG_KEEP_ALIVE,
                })
            })
        }
        ([VERSION, 131], rest) => {
            let (id, bytes) = rest.split_first_chunk::<4>()?;
            let id = u32::from_le_bytes(*id);
            (!bytes.is_empty()).then_some(DirectMessage::Output { id, bytes })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_the_documented_layout() {
        let request = DirectRequest {
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
        assert_eq!(encode(&request), Some(expected));
        let back = encode(&DirectRequest {
            back: true,
            ..request
        });
        assert_eq!(back.unwrap()[2..4], [21, 0]);
        let long = vec![b'x'; MESSAGE_BYTES_MAX];
        let request = DirectRequest {
            variables: &long,
            ..request
        };
        assert_eq!(encode(&request), None);
    }

    #[test]
    fn malformed_program_messages_are_rejected() {
        assert_eq!(decode(&[1, 129]), Some(DirectMessage::Ready));
        let done = [1, 130, 1, 0, 9, 0, 0, 0, 200, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        let message = DirectMessage::Done(DirectDone {
            id: 9,
            status: 200,
            bytes: 5,
            keep: true,
        });
        assert_eq!(decode(&done), Some(message));
        for length in 0..done.len() {
            assert_eq!(decode(&done[..length]), None, "{length}");
        }
        assert_eq!(decode(&[&done[..], &[0]].concat()), None);
        for (at, byte) in [(0, 2), (1, 132), (2, 2), (8, 99), (9, 3), (15, 2), (17, 1)] {
            let mut wrong = done;
            wrong[at] = byte;
            assert_eq!(decode(&wrong), None, "{at}");
        }
        let output = DirectMessage::Output { id: 9, bytes: b"x" };
        assert_eq!(decode(&[1, 131, 9, 0, 0, 0, b'x']), Some(output));
        for length in 0..7 {
            assert_eq!(decode(&[1, 131, 9, 0, 0, 0][..length.min(6)]), None);
        }
        assert_eq!(decode(b"HTTP/1.1 200 OK"), None);
    }
}
