//! A run directory from another machine: an error or a page, and no panic, whatever its files hold.
//!
//! The input is `run.json`, a zero byte, `server.json`, a zero byte, then fields of rows, whose checks are made here.
#![no_main]

use std::fs;
use std::path::PathBuf;

use headway_latency::{Outcome, Row, Run};
use headway_report::Report;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let directory = PathBuf::from(format!("/dev/shm/headway-fuzz-{}.run", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory in memory");
    let write = |name: &str, content: &[u8]| {
        fs::write(directory.join(name), content).expect("room");
    };
    write("run.json", next());
    write("server.json", next());
    let mut spool = [0; 64].to_vec();
    spool[..18].copy_from_slice(b"headway-spool v1\r\n");
    for fields in next().chunks_exact(FIELDS_BYTES) {
        let mut record = [0; Row::BYTES];
        row(fields).encode(&mut record);
        spool.extend_from_slice(&record);
    }
    write("requests.spool", &spool);
    if let Ok(run) = Run::open(&directory) {
        let _ = run.analysis();
        let _ = run.cells();
    }
    if let Ok(report) = Report::read(std::slice::from_ref(&directory)) {
        assert!(report.html().trim_end().ends_with("</html>"));
        let _ = report.over_time_svg(None);
    }
});

/// The fields of a row without its check, as in a record.
const FIELDS_BYTES: usize = 62;

fn row(fields: &[u8]) -> Row {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fields[at + i]));
    let int = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| fields[at + i]));
    Row {
        intended_ns: long(0),
        start_ns: long(8),
        first_byte_ns: long(16),
        end_ns: long(24),
        size_bytes: long(32),
        bytes: long(40),
        connection: int(48),
        ordinal: int(52),
        status: u16::from_le_bytes([fields[56], fields[57]]),
        error: Outcome::from_code(fields[58] % 15).expect("one of fifteen"),
        class: fields[59],
        target: fields[60],
        warmup: fields[61] % 2 == 1,
        handshake_ns: 0,
    }
}
