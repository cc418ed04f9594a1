//! Any bytes as a chunked body: the outcome does not depend on where they are cut, no content is invented, and a
//! limit holds.
#![no_main]

use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress};
use libfuzzer_sys::fuzz_target;

/// Small, so that the limits are met often.
const LIMITS: DrainLimits = DrainLimits {
    body_bytes_max: 64,
    extension_bytes_max: 16,
    trailer_bytes_max: 16,
};

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len());
    for cut in 0..bytes.len() {
        assert_eq!(read(bytes, cut), whole, "cut at {cut}");
    }
    if let (DrainProgress::Done(length), content) = whole {
        assert!(content.len() < length && content.len() as u64 <= LIMITS.body_bytes_max);
        assert!(bytes[..length].ends_with(b"\r\n"));
    }
});

/// The outcome, with the length of the whole body, and the content.
fn read(bytes: &[u8], cut: usize) -> (DrainProgress, Vec<u8>) {
    let mut drain = ChunkedDrain::new(LIMITS);
    let mut content = Vec::new();
    let first = drain.feed_body(&bytes[..cut], |piece| content.extend_from_slice(piece));
    if first != DrainProgress::More {
        return (first, content);
    }
    let progress = match drain.feed_body(&bytes[cut..], |piece| content.extend_from_slice(piece)) {
        DrainProgress::Done(length) => DrainProgress::Done(cut + length),
        other => other,
    };
    (progress, content)
}
