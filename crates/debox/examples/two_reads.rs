//! Reads from a pipe that is full and from one that is empty: the same call, and two records.
//!
//! ```text
//! $ cargo run -p headway-debox --example two_reads
//! sleeps are counted, timed and located in the kernel
//! full pipe: read took 3 us
//! empty pipe: read took 20148 us
//!     slept 1 times, 20131 us: pipe
//! ```

use std::io::{PipeReader, Read, Write};
use std::time::Duration;

use headway_debox::{Debox, Limits, calls};

/// Public, since a test calls it.
pub fn main() -> std::io::Result<()> {
    let debox = Debox::enable(Limits::default());
    println!("{}", debox.level());
    let full = pipe_written_after(Duration::ZERO)?;
    // Writing has to be over, or the first read would wait as well.
    std::thread::sleep(Duration::from_millis(10));
    read(&debox, "full pipe", full)?;
    read(
        &debox,
        "empty pipe",
        pipe_written_after(Duration::from_millis(20))?,
    )
}

fn read(debox: &Debox, what: &str, mut pipe: PipeReader) -> std::io::Result<()> {
    let number = calls::number("read").expect("a system call");
    debox.call(number, || pipe.read(&mut [0; 4]))?;
    // The record lasts until the next call.
    let record = debox.last().expect("records are on");
    println!("{what}: read took {} us", record.wall_ns / 1000);
    for sleep in record.sleeps() {
        let blocked_us = sleep.blocked_ns / 1000;
        println!(
            "    slept {} times, {blocked_us} us: {}",
            sleep.count, sleep.label
        );
    }
    Ok(())
}

fn pipe_written_after(delay: Duration) -> std::io::Result<PipeReader> {
    let (reader, mut writer) = std::io::pipe()?;
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        writer.write_all(b"late")
    });
    Ok(reader)
}
