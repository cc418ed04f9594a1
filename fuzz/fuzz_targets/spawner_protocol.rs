//! The protocol between a worker and its spawner: no bytes make a decoder panic, and what decodes has exactly one
//! encoding.
#![no_main]

use headway_spawner::wire::{decode_order, decode_report, encode_order, encode_report};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(order) = decode_order(bytes) {
        encode_order(&order, &mut again);
        assert_eq!(again, bytes);
    }
    again.clear();
    if let Ok(report) = decode_report(bytes) {
        encode_report(&report, &mut again);
        assert_eq!(again, bytes);
    }
});
