//! Reports that the machine lacks what a unit test of this crate needs.

use std::io::Write;

/// Says why, and writes it where the run of all tests looks.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        // One write a line, since tests that run side by side append to one file.
        log.write_all(format!("{test}: {reason}\n").as_bytes())
            .unwrap();
    }
}
