//! What a direct program writes: no bytes make the decoder panic, and what decodes is within the limits.
#![no_main]

use headway_respond::handlers::direct_protocol::{DirectMessage, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match decode(bytes) {
    Some(DirectMessage::Done(done)) => {
        assert!((200..600).contains(&done.status));
        assert_eq!(bytes.len(), 18);
    }
    Some(DirectMessage::Output { bytes: output, .. }) => {
        assert!(bytes.ends_with(output) && !output.is_empty());
    }
    Some(DirectMessage::Ready) => assert_eq!(bytes.len(), 2),
    None => {}
});
