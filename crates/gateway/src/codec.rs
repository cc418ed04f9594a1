//! The trait of the upstream protocols: one request and its response as bytes on a connection.
//!
//! A [`Codec`] owns no socket. The loop writes what is [`unsent`](Codec::unsent), passes in what it
//! has read, and takes events out one at a time. Both directions apply back pressure:
//! [`push_body`](Codec::push_body) accepts body bytes only while there is room, and input that has
//! not been fed stays with the caller, which stops reading while the client is slow.

use headway_http::Status;

use crate::fastcgi::{Aborted, InvalidRecord};
use crate::fields::FieldList;
use crate::invalid_response::InvalidResponse;
use crate::response::{ResponseEnd, ResponseEvent};

/// One request and its response, as bytes to and from an upstream.
pub trait Codec {
    /// The bytes to write next; empty if there are none.
    fn unsent(&self) -> &[u8];

    /// Marks this many of them as written.
    fn sent(&mut self, bytes: usize);

    /// Accepts the next bytes of the request body, as many as there is room for, and returns how
    /// many that were. Accepts nothing after [`end_body`](Codec::end_body).
    fn push_body(&mut self, bytes: &[u8]) -> usize;

    /// Marks the request body as complete. What follows it is passed on if the protocol has trailers and the
    /// body's framing allows them.
    fn end_body(&mut self, trailers: &FieldList);

    /// Returns the next event in `input` and advances it; `None` when it is used up. Nothing more
    /// is taken after [`ResponseEvent::End`].
    ///
    /// # Errors
    /// When the upstream violates its protocol. The connection must be closed.
    fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<ResponseEvent<'i>>, CodecError>;

    /// The upstream has closed the connection.
    ///
    /// # Errors
    /// When the response is incomplete.
    fn finish(&mut self) -> Result<ResponseEnd, CodecError>;

    /// Whether only the end of the connection ends the response. If such a connection is reset, the
    /// response counts as cut off, because no recipient could notice the loss.
    fn is_open_ended(&self) -> bool {
        false
    }

    /// The trailers of a response that has ended, if the client accepts any.
    fn trailers(&self) -> FieldList {
        FieldList::default()
    }

    /// Whether the response's head has been returned. Until then the server can still answer
    /// differently or try another upstream.
    fn has_head(&self) -> bool;

    /// Cancels the request. Returns what has to be sent and received until the connection can be
    /// reused; `None` if it can only be closed. Call it only after a part of the request has been
    /// written.
    fn abort(self: Box<Self>) -> Option<Aborted> {
        None
    }
}

/// Why a transaction failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The response cannot be passed on.
    #[error(transparent)]
    Response(#[from] InvalidResponse),
    /// The bytes are not valid FastCGI.
    #[error("not FastCGI: {0}")]
    FastCgi(#[from] InvalidRecord),
    /// The upstream accepts no more requests at the moment, and has not processed this one.
    #[error("the upstream is overloaded")]
    Overloaded,
    /// The upstream is not a FastCGI responder.
    #[error("the upstream does not support the responder role")]
    UnknownRole,
    /// The upstream considers the connection busy.
    #[error("the upstream rejected a second request on its connection")]
    NoMultiplexing,
    /// The connection was closed in the middle of the response.
    #[error("the upstream closed the connection before its response was complete")]
    Closed,
    /// The chunks of the body are malformed.
    #[error("the response's chunked body is malformed")]
    BadChunk,
    /// Chunk extensions or trailers exceed their limit.
    #[error("the response's chunk extensions or trailers are too long")]
    ChunkTooLong,
}

impl CodecError {
    /// The status for the client, if no response has been sent yet.
    pub fn status(&self) -> Status {
        match self {
            CodecError::Overloaded => Status::SERVICE_UNAVAILABLE,
            _ => Status::BAD_GATEWAY,
        }
    }

    /// Whether the upstream has certainly not started to process the request.
    pub fn is_untouched(&self) -> bool {
        matches!(
            self,
            CodecError::Overloaded | CodecError::UnknownRole | CodecError::NoMultiplexing
        )
    }
}

/// Bytes on their way to an upstream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Body bytes are accepted while fewer than this wait; a head is always accepted whole.
    const BYTES_MAX: usize = 64 * 1024;

    /// Most body bytes that are accepted at once. Less than a FastCGI record holds.
    const PIECE_BYTES_MAX: usize = 32 * 1024;

    /// An outbox with room for a header of about this length.
    pub(crate) fn with_room(bytes: usize) -> Outbox {
        Outbox {
            bytes: Vec::with_capacity(bytes),
            sent: 0,
        }
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// The buffer, to append to.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        // Sent bytes are removed before more are appended, so that the buffer stays within its
        // limit.
        if self.sent > 0 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// The part of a body for which there is room.
    pub(crate) fn fitting<'b>(&self, body: &'b [u8]) -> &'b [u8] {
        match self.unsent().len() < Self::BYTES_MAX {
            true => &body[..body.len().min(Self::PIECE_BYTES_MAX)],
            false => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_accepts_more_body_after_sending() {
        let mut out = Outbox::default();
        let body = vec![b'x'; 100_000];
        let mut taken = 0;
        while !out.fitting(&body[taken..]).is_empty() {
            let piece = out.fitting(&body[taken..]);
            taken += piece.len();
            out.bytes().extend_from_slice(piece);
        }
        assert_eq!(taken, 64 * 1024);
        out.advance(1);
        assert_eq!(out.fitting(&body).len(), Outbox::PIECE_BYTES_MAX);
        out.bytes().push(b'y');
        assert_eq!(out.unsent().len(), 64 * 1024);
        out.advance(usize::MAX);
        assert!(out.unsent().is_empty());
    }
}
