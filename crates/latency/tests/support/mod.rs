//! Rows that look like a measurement, the same on every machine.

#![allow(
    dead_code,
    missing_docs,
    reason = "each test file uses a part of it; it has no public documentation"
)]

use headway_base::random::{Draw, SplitMix64};
use headway_latency::run::{LoadInfo, Mode};
use headway_latency::{Outcome, Row, RunDescription, RunWriter};
use std::path::Path;

/// 1000 requests per second, of which one in a hundred fails, with sizes of four classes.
pub fn rows(count: u64) -> Vec<Row> {
    let mut random = SplitMix64(7);
    let mut below = |bound| random.next_u64() % bound;
    (0..count)
        .map(|i| {
            let class = below(4) as u8;
            let size_bytes = (1 + below(9)) * 102 * 10_u64.pow(class.into());
            let intended_ns = i * 1_000_000;
            let start_ns = intended_ns + below(20_000);
            let end_ns = start_ns + 50_000 + size_bytes + below(200_000);
            let failed = below(100) == 0;
            Row {
                intended_ns,
                start_ns,
                first_byte_ns: if failed { 0 } else { start_ns + 40_000 },
                end_ns,
                size_bytes,
                bytes: if failed { 0 } else { size_bytes },
                status: if failed { 0 } else { 200 },
                error: if failed {
                    Outcome::TimedOut
                } else {
                    Outcome::Ok
                },
                connection: (i / 5) as u32,
                ordinal: (i % 5) as u32,
                class: if class == 3 { Row::NO_CLASS } else { class },
                target: (i % 2) as u8,
                warmup: i < count / 10,
                handshake_ns: if i % 5 == 0 { 80_000 } else { 0 },
            }
        })
        .collect()
}

pub fn description() -> RunDescription {
    RunDescription {
        started: "2026-01-02T03:04:05Z".into(),
        targets: vec!["http://127.0.0.1:1/".into(), "http://127.0.0.1:2/".into()],
        load: LoadInfo {
            mode: Mode::Open,
            ..LoadInfo::default()
        },
        ..RunDescription::default()
    }
}

/// A finished run of these rows.
pub fn finished(path: &Path, rows: &[Row]) {
    let mut writer = RunWriter::create(path, &description()).expect("an empty directory");
    rows.chunks(700)
        .for_each(|batch| writer.append(batch).expect("room on the disk"));
    writer.finish(&description()).expect("room on the disk");
}
