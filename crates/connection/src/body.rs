//! A request body that is discarded or passed on without its framing, up to a size limit.

use headway_http::Framing;
use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress, LengthDrain};

/// A body that is being received.
pub enum Body {
    /// A body with Content-Length.
    Length(LengthDrain),
    /// A chunked body.
    Chunked(ChunkedDrain),
}

impl Body {
    /// A body with this framing, of at most `bytes_max` bytes.
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

    /// Keeps its trailer section.
    pub fn keeping_trailers(self) -> Self {
        match self {
            Self::Chunked(drain) => Self::Chunked(drain.keeping_trailers()),
            length @ Self::Length(_) => length,
        }
    }

    /// The field lines of its trailer section, if those are kept.
    pub fn trailers(&self) -> &[u8] {
        match self {
            Self::Length(_) => b"",
            Self::Chunked(drain) => drain.trailers(),
        }
    }

    /// The least bytes that are still to come: all of them where the length is known.
    pub fn left_bytes_min(&self) -> u64 {
        match self {
            Self::Length(drain) => drain.left_bytes(),
            Self::Chunked(_) => 1,
        }
    }

    /// Consumes received bytes and discards the content.
    pub fn feed(&mut self, bytes: &[u8]) -> DrainProgress {
        match self {
            Self::Length(drain) => drain.feed(bytes),
            Self::Chunked(drain) => drain.feed(bytes),
        }
    }

    /// Consumes received bytes and appends the content to `out`.
    pub fn feed_into(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> DrainProgress {
        match self {
            Self::Length(drain) => {
                let progress = drain.feed(bytes);
                let own = match progress {
                    DrainProgress::Done(used) => &bytes[..used],
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
    fn body_is_passed_on_without_framing_when_it_is_split_anywhere() {
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
                    DrainProgress::More => match body.feed_into(second, &mut out) {
                        DrainProgress::Done(used) => at + used,
                        other => panic!("{framing:?} at {at}: {other:?}"),
                    },
                    DrainProgress::Done(used) => used,
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
