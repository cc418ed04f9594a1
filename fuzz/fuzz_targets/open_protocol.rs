//! The open-file protocol: no bytes make a decoder panic, and what decodes has exactly one
//! encoding.
#![no_main]

use headway_files::service::wire::{ParsedRequest, decode_reply, decode_request, encode_reply, encode_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(ParsedRequest::Request(request)) = decode_request(bytes) {
        let mut again = Vec::new();
        encode_request(&request, &mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(response) = decode_reply(bytes) {
        assert_eq!(encode_reply(&response)[..], *bytes);
    }
});
