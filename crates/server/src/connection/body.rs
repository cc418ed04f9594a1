//! A request body that is read and thrown away, or passed on without its framing, within a bound.

use headway_http::Framing;
use headway_http::chunked::{ChunkedDrain, DrainLimits, LengthDrain, Progress};

/// A body under way.
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

    /// Takes in what has arrived and appends the body's own bytes to `out`.
    pub fn feed_into(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        match self {
            Self::Length(drain) => {
                let progress = drain.feed(bytes);
                let own = match progress {
                    Progress::Done(used) => &bytes[..used],
                    _ => bytes,
                };
                out.extend_from_slice(own);
                progress
            }
            Self::Chunked(drain) => drain.feed_body(bytes, |own| out.extend_from_slice(own)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_passed_on_without_its_framing_in_whatever_pieces_it_arrives() {
        let chunked = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\nGET";
        let plain = b"abcdeGET";
        for (framing, bytes) in [
            (Framing::Chunked, &chunked[..]),
            (Framing::Length(5), &plain[..]),
        ] {
            for at in 0..bytes.len() {
                let mut body = Body::new(framing, 100);
                let mut out = Vec::new();
                let (first, second) = bytes.split_at(at);
                let end = match body.feed_into(first, &mut out) {
                    Progress::More => match body.feed_into(second, &mut out) {
                        Progress::Done(used) => at + used,
                        other => panic!("{framing:?} at {at}: {other:?}"),
                    },
                    Progress::Done(used) => used,
                    other => panic!("{framing:?} at {at}: {other:?}"),
                };
                assert_eq!(
                    (&out[..], &bytes[end..]),
                    (&b"abcde"[..], &b"GET"[..]),
                    "{framing:?} at {at}"
                );
            }
        }
    }
}
