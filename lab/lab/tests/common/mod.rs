//! What tests that need the machine share: skipping in the open.

use std::fs;
use std::io::Write;

/// Reports that a test did not run, and why; also in the file `HEADWAY_SKIP_LOG` names, if it is
/// set.
pub fn skip(test: &str, reason: &str) {
    println!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let mut log = fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .expect("the log");
        writeln!(log, "{test}: {reason}").expect("a line");
    }
}
