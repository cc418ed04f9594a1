//! Any bytes as a program's output: one outcome however they are cut, and a head that is one head.
#![no_main]

use headway_gateway::cgi::{NphReader, ReplyReader};
use headway_gateway::{HeadLimits, ReplyAction, ReplyEvent};
use libfuzzer_sys::fuzz_target;

/// Small, so that the limits are met often.
const LIMITS: HeadLimits = HeadLimits {
    head_bytes_max: 256,
    fields_max: 6,
};

/// Short inputs are cut everywhere, long ones at this many places, which find the same and take less time.
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
    let mut reader = ReplyReader::new(&LIMITS, false);
    let (mut head, mut body) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut input = *piece;
        while let Ok(Some(event)) = reader.feed(&mut input) {
            match event {
                ReplyEvent::Head(ReplyAction::Reply(reply)) => {
                    reply.write_head(&mut head);
                    assert_eq!(
                        head.split(|byte| *byte == b'\n').count(),
                        reply.fields.len() + 2
                    );
                    assert!(!head.contains(&0));
                }
                ReplyEvent::Head(ReplyAction::LocalRedirect(to)) => head = to.into_vec(),
                ReplyEvent::Body(bytes) => body.extend_from_slice(bytes),
                event => panic!("{event:?}"),
            }
        }
    }
    (head, body, format!("{:?}", reader.finish()))
}
