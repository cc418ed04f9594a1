//! What tests of the tracer share: skipping in the open, and tracers of a known level.

use std::io::Write;

/// Reports that a test did not run, and why; also in the file `HEADWAY_SKIP_LOG` names, if it is
/// set.
pub fn skip(test: &str, reason: &str) {
    println!("SKIP: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let mut log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .expect("the skip log can be appended to");
        writeln!(log, "{test}: {reason}").expect("the skip log can be written");
    }
}
