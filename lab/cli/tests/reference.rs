//! The generated page of the research book is the one that this build writes.
//!
//! After a change of options: `cargo run -p headway-lab-cli --bin headway-lab -- reference .`

use crate::common;
use std::path::Path;

const PAGE: &str = "docs/research/src/command-line.md";

#[test]
fn generated_page_of_the_research_book_is_up_to_date() {
    let written = tempfile::tempdir().expect("a scratch directory");
    let mut command = common::headway_lab();
    let status = command.arg("reference").arg(written.path()).status();
    assert!(status.expect("headway-lab").success());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |root: &Path| std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let (committed, generated) = (read(&root), read(written.path()));
    assert!(!generated.is_empty(), "{PAGE} is not written");
    assert!(
        committed == generated,
        "{PAGE} is old; run: cargo run -p headway-lab-cli --bin headway-lab -- reference ."
    );
}
