//! Percentiles of an access log: `cargo run --release --example log_percentiles -- access.log`

use std::path::Path;

use headway_latency::{Analyzer, RunDescription};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: percentiles LOG")?;
    let mut analyzer = Analyzer::new(&RunDescription::default());
    let summary = headway_log_reader::read(Path::new(&path), None, |row| analyzer.push(row))?;
    println!(
        "{} requests in the format {}",
        summary.requests, summary.format
    );
    if let Some(response) = analyzer.finish().response {
        println!("p50 {} µs, p99 {} µs", response.p50_us, response.p99_us);
    }
    Ok(())
}
