//! The helper protocol: no bytes make a decoder panic, and what decodes has exactly one encoding.
#![no_main]

use headway_files::protocol::{decode_reply, decode_request, encode_reply, encode_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(request) = decode_request(bytes) {
        encode_request(&request, &mut again);
        assert_eq!(again, bytes);
    }
    again.clear();
    if let Ok(response) = decode_reply(bytes) {
        encode_reply(&response, &mut again);
        assert_eq!(again, bytes);
    }
});
