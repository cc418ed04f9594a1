//! Any bytes as a program's output: one outcome however they are cut, and a head that is one head.
#![no_main]

use headway_gateway::cgi::{NphReader, ResponseReader};
use headway_gateway::{HeadLimits, ResponseAction, ResponseEvent};
use libfuzzer_sys::fuzz_target;

/// Small, so that the limits are met often.
const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: 256,
    fields_max: 6,
};

/// Short inputs are cut everywhere, long ones at this many places, which find the same and take
/// less time.
const CUTS: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let whole = outcome(&[bytes]);
    for cut in (0..bytes.len()).step_by(bytes.len() / CUTS + 1) {
        let (front, back) = bytes.split_at(cut);
        assert_eq!(outcome(&[front, back]), whole, "cut at {cut}");
    }
    let (mut nph, mut input) = (NphReader::default(), bytes);
    while let Ok(Some(_)) = nph.feed(&mut input) {}
});

/// The head as it would be sent, the body, and how it ended.
fn outcome(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>, String) {
    let mut reader = ResponseReader::new(&LIMITS, false);
    let (mut head, mut body) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut input = *piece;
        while let Ok(Some(event)) = reader.feed(&mut input) {
            match event {
                ResponseEvent::Head(ResponseAction::Response(response)) => {
                    response.write_head(&mut head);
                    assert_eq!(
                        head.split(|byte| *byte == b'\n').count(),
                        response.fields.len() + 2
                    );
                    assert!(!head.contains(&0));
                }
                ResponseEvent::Head(ResponseAction::LocalRedirect(to)) => head = to.into_vec(),
                ResponseEvent::Body(bytes) => body.extend_from_slice(bytes),
                event => panic!("{event:?}"),
            }
        }
    }
    (head, body, format!("{:?}", reader.finish()))
}
