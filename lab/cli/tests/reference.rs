//! The generated pages of the research book are those that this build writes.
//!
//! After a change of options: `cargo run -p headway-lab-cli --bin headway-lab -- reference .`

use crate::common;
use std::path::Path;

const PAGES: [&str; 2] = [
    "docs/research/src/command-line.md",
    "docs/research/src/configuration.md",
];

#[test]
fn generated_pages_of_the_research_book_are_up_to_date() {
    let written = tempfile::tempdir().expect("a scratch directory");
    let mut command = common::headway_lab();
    let status = command.arg("reference").arg(written.path()).status();
    assert!(status.expect("headway-lab").success());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in PAGES {
        let read = |root: &Path| std::fs::read_to_string(root.join(page)).unwrap_or_default();
        let (committed, generated) = (read(&root), read(written.path()));
        assert!(!generated.is_empty(), "{page} is not written");
        assert!(
            committed == generated,
            "{page} is old; run: cargo run -p headway-lab-cli --bin headway-lab -- reference ."
        );
    }
}
