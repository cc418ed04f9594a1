//! A request body that is read and thrown away, within a bound.

use http::Framing;
use http::chunked::{ChunkedDrain, DrainLimits, LengthDrain, Progress};

/// A body on its way to nowhere.
pub enum Body {
    /// Of known length.
    Length(LengthDrain),
    /// In chunks.
    Chunked(ChunkedDrain),
}

impl Body {
    /// A body framed as its head says, of which at most `bytes_max` are read.
    pub fn new(framing: Framing, bytes_max: u64) -> Self {
        let limits = DrainLimits {
            body_bytes_max: bytes_max,
            ..DrainLimits::default()
        };
        match framing {
            Framing::Length(length) => Self::Length(LengthDrain::new(length)),
            Framing::Chunked => Self::Chunked(ChunkedDrain::new(limits)),
            Framing::None => Self::Length(LengthDrain::new(0)),
        }
    }

    /// Takes in what has arrived.
    pub fn feed(&mut self, bytes: &[u8]) -> Progress {
        match self {
            Self::Length(drain) => drain.feed(bytes),
            Self::Chunked(drain) => drain.feed(bytes),
        }
    }
}
