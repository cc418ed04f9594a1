//! Writes pages of invented runs, to look at with one's own eyes after a change of the style.
//!
//! ```text
//! cargo run -p headway-report --example pages -- DIRECTORY
//! ```
//!
//! `three.html` compares three profiles, `one.html` is a single suspect run, `bad.html` has a run
//! that was killed, one whose connections were all refused, and one whose requests are missing.

#[path = "../tests/support/mod.rs"]
mod support;

use headway_latency::run::Verdict;
use headway_report::Report;
use std::path::{Path, PathBuf};
use std::time::Instant;
use support::{Behaviour, Example, write_description};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::args().nth(1).ok_or("usage: pages DIRECTORY")?);
    let scratch = tempfile::tempdir()?;
    let runs = |names: [&str; 3]| names.map(|name| scratch.path().join(name));

    let three = runs(["steady", "blocking", "stalling"]);
    let loads = [0.2, 0.4, 0.6, 0.8, 0.9, 0.95];
    Example::new("steady", Behaviour::Steady, 3000.0).write_profile(&three[0], &loads, 1);
    Example::new("blocking", Behaviour::Blocking, 2400.0).write_profile(&three[1], &loads, 1);
    Example::new("stalling", Behaviour::Stalling, 2000.0).write_profile(&three[2], &loads, 1);
    page(&out.join("three.html"), &three)?;

    let one = [scratch.path().join("one")];
    let suspect = Example::new("blocking", Behaviour::Blocking, 2400.0);
    let suspect = suspect.verdict(
        Verdict::Suspect,
        "The client's loop was 93 % busy; use another core or machine.",
    );
    suspect.write_load(&one[0], 2000.0);
    page(&out.join("one.html"), &one)?;

    let bad = runs(["killed", "refused", "gone"]);
    let name = "a server with a name that is much longer than it needs to be, to see what happens";
    let mut killed = Example::new(name, Behaviour::Stalling, 2000.0);
    killed.complete = false;
    killed.write_load(&bad[0], 1500.0);
    Example::new("refusing", Behaviour::Refusing, 900.0).write_load(&bad[1], 500.0);
    let gone = Example::new("gone", Behaviour::Steady, 900.0);
    let gone = gone.verdict(
        Verdict::Invalid,
        "The client ran out of local ports; give it more source addresses.",
    );
    write_description(&bad[2], &gone.description(500.0));
    page(&out.join("bad.html"), &bad)
}

fn page(file: &Path, runs: &[PathBuf]) -> Result<(), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let html = Report::read(runs)?.html();
    println!(
        "{}: {} bytes in {:?}",
        file.display(),
        html.len(),
        begin.elapsed()
    );
    Ok(std::fs::write(file, html)?)
}
