//! One request and its reply over a connection to a back end, whatever the protocol.
//!
//! An [`Exchange`] owns no socket. The loop writes what is [`unsent`](Exchange::unsent), hands in
//! what it read, and takes events out one at a time. Both directions hold each other back: a body
//! is taken only while there is room ([`push_body`](Exchange::push_body) says how much it took),
//! and what has not been fed yet stays with the caller, who stops reading while the client is slow.

use headway_http::Status;

use crate::fastcgi::{Aborted, Garbage};
use crate::refusal::Refusal;
use crate::reply::{End, Event};

/// One request and its reply, as bytes to and from a back end.
pub trait Exchange {
    /// What is to be written next; empty if nothing is due.
    fn unsent(&self) -> &[u8];

    /// So many bytes of it have been written.
    fn sent(&mut self, bytes: usize);

    /// Takes the next bytes of the request's body, as many as there is room for, and says how many
    /// that were. Nothing is taken after [`end_body`](Exchange::end_body).
    fn push_body(&mut self, bytes: &[u8]) -> usize;

    /// The request's body is complete.
    fn end_body(&mut self);

    /// What comes next in `input`, which moves on by as much; `None` when it is used up. After
    /// [`Event::End`] nothing more is taken.
    ///
    /// # Errors
    /// When the back end breaks its protocol. The connection is to be closed.
    fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Event<'i>>, Fault>;

    /// The back end has closed the connection.
    ///
    /// # Errors
    /// When the reply is not complete by that.
    fn finish(&mut self) -> Result<End, Fault>;

    /// Whether nothing but the end of the connection can tell that the reply is complete. If that
    /// breaks instead, the reply is cut off, and nobody behind it could see that.
    fn is_open_ended(&self) -> bool {
        false
    }

    /// Whether the reply's head has been given out. Until then the server can still say something
    /// else, or ask another back end.
    fn has_head(&self) -> bool;

    /// Nobody wants the reply any more: what has to be said and heard until the connection can be
    /// used again. `None`: it can only be closed, which every back end understands. To be asked
    /// only after something of the request has been written.
    fn abort(self: Box<Self>) -> Option<Aborted> {
        None
    }
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The reply cannot be passed on.
    #[error(transparent)]
    Reply(#[from] Refusal),
    /// Bytes that are no FastCGI.
    #[error("not FastCGI: {0}")]
    FastCgi(#[from] Garbage),
    /// The back end takes no more requests at the moment, and has not looked at this one.
    #[error("the back end is overloaded")]
    Overloaded,
    /// The back end is no FastCGI responder.
    #[error("the back end does not answer requests (it has not the role of a responder)")]
    UnknownRole,
    /// The back end took the connection for a busy one.
    #[error("the back end refused a second request on its connection")]
    NoMultiplexing,
    /// The connection was closed in the middle of the reply.
    #[error("the back end closed the connection before its reply was complete")]
    Closed,
    /// The body's chunks are malformed.
    #[error("the reply's chunked body is malformed")]
    BadChunk,
    /// Chunk extensions or trailers beyond all measure.
    #[error("the reply's chunk extensions or trailers are too long")]
    ChunkTooLong,
}

impl Fault {
    /// What the client is told, if it has not been told anything yet.
    pub fn status(&self) -> Status {
        match self {
            Fault::Overloaded => Status::SERVICE_UNAVAILABLE,
            _ => Status::BAD_GATEWAY,
        }
    }

    /// Whether the back end certainly has not begun to work on the request.
    pub fn is_untouched(&self) -> bool {
        matches!(
            self,
            Fault::Overloaded | Fault::UnknownRole | Fault::NoMultiplexing
        )
    }
}

/// Bytes on their way to a back end.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// A body is taken while less than this waits; the head is always taken whole.
    const BYTES_MAX: usize = 64 * 1024;

    /// Most bytes of a body that are taken at once. Also below what a FastCGI record holds.
    const PIECE_BYTES_MAX: usize = 32 * 1024;

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

    /// For what is to be written behind everything else.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        // What has left is forgotten before more comes in, so that the buffer stays within its
        // bound.
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
    fn body_is_taken_again_when_enough_has_been_sent() {
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
