//! Any text as a rule or a quantity of a study: an error, or something to evaluate.
#![no_main]

use headway_latency::study::expression::{Expression, parse_rule};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(rule) = parse_rule(text) {
        assert!(!rule.is_empty());
    }
    if let Ok(expression) = Expression::parse(text) {
        expression.references();
    }
});
