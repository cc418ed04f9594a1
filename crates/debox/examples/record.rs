//! Copies a file that is not in memory and prints the record of each call: the paper's Figure 2.4.
//!
//! ```text
//! $ cargo run --release -p headway-debox --example record [FILE]
//! ```
//!
//! Without a file it makes one of 10 MB. docs/src/explanation/debox.md explains the record.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use headway_debox::{Debox, Limits, Record, calls, kernel_symbols};
use rustix::fs::{Advice, fadvise};

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir_in(".")?;
    let source = match std::env::args_os().nth(1) {
        Some(path) => File::open(path)?,
        None => made_file(folder.path())?,
    };
    // What is dirty stays in memory, so it is written first.
    source.sync_all()?;
    fadvise(&source, 0, None, Advice::DontNeed)?;

    let debox = Debox::enable(Limits::default());
    println!("{}\n{}\n", debox.level(), debox.trace_source());
    let mut copy = File::create(folder.path().join("copy"))?;
    let mut bytes = vec![0; source.metadata()?.len() as usize];
    debox.call(libc::SYS_pread64 as u32, || {
        source.read_exact_at(&mut bytes, 0)
    })?;
    print(&debox);
    debox.call(libc::SYS_write as u32, || copy.write_all(&bytes))?;
    print(&debox);
    debox.call(libc::SYS_fsync as u32, || copy.sync_all())?;
    print(&debox);
    Ok(())
}

fn made_file(folder: &std::path::Path) -> std::io::Result<File> {
    let path = folder.join("source");
    std::fs::write(&path, vec![7; 10 << 20])?;
    File::open(path)
}

fn print(debox: &Debox) {
    let Some(record) = debox.last() else { return };
    let us = |ns: u64| ns as f64 / 1e3;
    println!("{} ({})", calls::name(record.number), record.number);
    println!(
        "    {:.1} us, {:.1} on a CPU; {} page faults minor, {} major",
        us(record.wall_ns),
        us(record.cpu_ns()),
        known(record.faults_minor),
        known(record.faults_major),
    );
    println!(
        "    preempted {} times, {:.1} us; {:.1} us runnable but waiting; {} records lost",
        record.preemptions.count,
        us(record.preemptions.total_ns),
        us(record.wakeup_ns.unwrap_or(0)),
        record.lost,
    );
    print_sleeps(&record);
}

fn print_sleeps(record: &Record) {
    for sleep in record.sleeps() {
        println!(
            "    {:>5} x {:<14} {:>10.1} us, longest {:>8.1}, at {}",
            sleep.count,
            sleep.label,
            sleep.blocked_ns as f64 / 1e3,
            sleep.max_ns as f64 / 1e3,
            format_site(sleep.site),
        );
    }
    if record.sleeps_dropped > 0 {
        println!("    {} more at other places", record.sleeps_dropped);
    }
}

fn format_site(site: Option<headway_debox::KernelSite>) -> String {
    site.zip(kernel_symbols())
        .and_then(|(site, symbols)| symbols.format_site(site))
        .unwrap_or_else(|| "a place the kernel hides".to_owned())
}

fn known(faults: Option<u32>) -> String {
    faults.map_or_else(|| "?".to_owned(), |faults| faults.to_string())
}
