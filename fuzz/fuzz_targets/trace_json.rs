//! A saved trace from another machine: its summary and its exports do not panic, and no control character passes.
#![no_main]

use std::path::PathBuf;

use headway_trace::Trace;
use headway_trace::export;
use headway_trace::show::{Part, Style, sentence, summary};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = PathBuf::from(format!("/dev/shm/headway-fuzz-{}.json", std::process::id()));
    std::fs::write(&path, bytes).expect("a file in memory");
    let Ok(trace) = Trace::read(&path) else {
        return;
    };
    let style = Style {
        width: 80,
        colour: false,
        rows_max: 10,
    };
    for text in [summary(&trace, &Part::ALL, &style), sentence(&trace)] {
        assert!(
            text.chars().all(|one| one == '\n' || !one.is_control()),
            "{text:?}"
        );
    }
    export::chrome(&trace);
    export::folded(&trace);
    export::csv(&trace);
    export::svg(&trace);
    export::parquet(&trace).expect("a table in memory");
});
