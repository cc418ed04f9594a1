//! Any bytes as what a FastCGI application sends.
#![no_main]

use headway_gateway::cgi::Variables;
use headway_gateway::fastcgi::{FastCgiCodec, GetValues};
use headway_gateway::{Codec, HeadLimits, ResponseEvent};
use libfuzzer_sys::fuzz_target;

/// Short inputs are cut everywhere, long ones at this many places, which find the same and take
/// less time.
const CUTS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let whole = outcome(&[bytes]);
    for cut in (0..bytes.len()).step_by(bytes.len() / CUTS + 1) {
        let (front, back) = bytes.split_at(cut);
        assert_eq!(outcome(&[front, back]), whole, "cut at {cut}");
    }
    let _ = GetValues::default().feed(&mut &bytes[..]);
});

/// Heads, body, standard error, and how it ended; not whether the connection is clean, which
/// depends on what has arrived.
fn outcome(pieces: &[&[u8]]) -> (String, Vec<u8>, Vec<u8>) {
    let mut codec =
        FastCgiCodec::new(&Variables::default(), true, &HeadLimits::default(), false);
    let (mut text, mut body, mut stderr) = (String::new(), Vec::new(), Vec::new());
    for piece in pieces {
        let mut input = *piece;
        loop {
            match codec.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(answer))) => text += &format!("{answer:?}"),
                Ok(Some(ResponseEvent::Body(bytes))) => body.extend_from_slice(bytes),
                Ok(Some(ResponseEvent::Stderr(bytes))) => stderr.extend_from_slice(bytes),
                Ok(Some(ResponseEvent::End(end))) => {
                    text += &format!("{} {}", end.excess, end.exit_status);
                    return (text, body, stderr);
                }
                Err(fault) => return (text + &fault.to_string(), body, stderr),
            }
        }
    }
    text += &format!("{:?}", codec.finish());
    (text, body, stderr)
}
