//! What a server under load sends: no panic, and the outcome does not depend on where the bytes are cut.
#![no_main]

use headway_load::engine::read_in_pieces;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = read_in_pieces(bytes, &[]);
    for cut in 0..bytes.len() {
        assert_eq!(read_in_pieces(bytes, &[cut]), whole, "cut at {cut}");
    }
    if let Some((Some(length), status, body_bytes)) = whole {
        assert!(length <= bytes.len() && body_bytes < length as u64);
        assert!((200..1000).contains(&status), "{status}");
    }
});
