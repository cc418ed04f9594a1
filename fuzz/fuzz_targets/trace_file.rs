//! A damaged file of a traced process: an error or a process, and no panic, whatever its words hold.
//!
//! The input changes words of a file that is sound so far: an index of three bytes, then a value of eight.
#![no_main]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use headway_debox::collect::Process;
use libfuzzer_sys::fuzz_target;

/// A head of 64 KiB, a lane, and a log: more than a lane takes.
const FILE_BYTES: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let path = PathBuf::from(format!(
        "/dev/shm/headway-fuzz-{}.debox",
        std::process::id()
    ));
    let mut file = File::create(&path).expect("a file in memory");
    file.set_len(FILE_BYTES).expect("room");
    file.write_all(b"DeBoxRun").expect("the magic");
    // Version, lanes, words of the log, lanes used, ready.
    for (word, value) in [(1, 1), (2, 1), (3, 4096), (15, 1), (34, 1_u64)] {
        write(&file, word, value);
    }
    for change in bytes.chunks_exact(11) {
        let word = u64::from(change[0]) | u64::from(change[1]) << 8 | u64::from(change[2]) << 16;
        let value = u64::from_le_bytes(std::array::from_fn(|at| change[3 + at]));
        write(&file, word % (FILE_BYTES / 8), value);
    }
    if let Ok(process) = Process::open(&path) {
        for site in &process.sites {
            site.histogram.quantile_ns(0.5);
        }
    }
});

fn write(file: &File, word: u64, value: u64) {
    file.write_all_at(&value.to_ne_bytes(), word * 8)
        .expect("a word");
}
