//! A response over HTTP/2: a decoded header, a body in DATA frames, and END_STREAM.

use super::{
    HeaderFacts, INTERIM_MAX, Malformed, ParseState, Response, ResponseProgress, Transfer,
};

impl Response {
    /// Begins with a decoded header. Returns false for an interim response.
    pub(crate) fn begin_stream(
        &mut self,
        status: u16,
        length: Option<u64>,
    ) -> Result<bool, Malformed> {
        match status {
            100 | 102..=199 if self.interim < INTERIM_MAX => {
                self.interim += 1;
                Ok(false)
            }
            200..=599 => {
                let facts = HeaderFacts {
                    length,
                    transfer: Transfer::None,
                    keeps: true,
                };
                self.begin_body(status, &facts)?;
                Ok(true)
            }
            _ => Err(Malformed),
        }
    }

    /// Adds a part of the body. Returns false if the body is longer than `Content-Length`.
    pub(crate) fn feed_data(&mut self, piece: &[u8]) -> Result<bool, Malformed> {
        match self.state {
            ParseState::Ended | ParseState::Length(0) => Ok(piece.is_empty()),
            _ => Ok(match self.feed_body(piece, &mut None)? {
                ResponseProgress::More => true,
                ResponseProgress::Done(consumed) => consumed == piece.len(),
            }),
        }
    }

    /// Ends the response. Returns whether it is complete.
    pub(crate) fn end_data(&self) -> bool {
        matches!(
            self.state,
            ParseState::UntilClose | ParseState::Ended | ParseState::Length(0)
        )
    }
}
