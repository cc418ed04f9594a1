//! Writes a run directory of made-up requests, opens it again, and prints what a client would have
//! noticed.
//!
//! ```text
//! $ cargo run -p headway-latency --example percentiles
//! 1000 requests; a stall of 100 ms in the middle
//! from the intended start: p50 400 us, p99 90407 us
//! from the actual start:   p50 400 us, p99 400 us
//! ```

use std::error::Error;

use headway_latency::analysis::Distribution;
use headway_latency::{Outcome, Row, Run, RunDescription, RunWriter};

const MS: u64 = 1_000_000;

/// Public, since a test calls it.
pub fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("run");
    let description = RunDescription {
        label: Some("made up".into()),
        ..RunDescription::default()
    };
    let rows: Vec<Row> = (0..1000).map(request).collect();
    let mut writer = RunWriter::create(&path, &description)?;
    writer.append(&rows)?;
    writer.finish(&description)?;

    let analysis = Run::open(&path)?.analysis()?;
    let requests = analysis.counts.requests;
    println!("{requests} requests; a stall of 100 ms in the middle");
    print("from the intended start:", analysis.response);
    print("from the actual start:  ", analysis.service);
    Ok(())
}

/// One request per millisecond. Those of the stall start when it is over.
fn request(number: u64) -> Row {
    let intended_ns = number * MS;
    let start_ns = match number {
        500..600 => 600 * MS,
        _ => intended_ns,
    };
    Row {
        intended_ns,
        start_ns,
        first_byte_ns: start_ns + 300_000,
        end_ns: start_ns + 400_000,
        size_bytes: 512,
        bytes: 512,
        status: 200,
        error: Outcome::Ok,
        connection: 0,
        ordinal: number as u32,
        class: Row::NO_CLASS,
        target: 0,
        warmup: false,
        handshake_ns: 0,
    }
}

fn print(what: &str, distribution: Option<Distribution>) {
    let Some(found) = distribution else { return };
    println!(
        "{what} p50 {:.0} us, p99 {:.0} us",
        found.p50_us, found.p99_us
    );
}
