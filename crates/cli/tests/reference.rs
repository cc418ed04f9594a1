//! The generated pages of the guide are those that this build writes.
//!
//! After a change of options, settings or metrics: `cargo run -p headway -- reference .`

use std::path::Path;
use std::process::Command;

const PAGES: [&str; 3] = [
    "docs/src/reference/configuration.md",
    "docs/src/reference/command-line.md",
    "docs/src/reference/metrics.md",
];

#[test]
fn generated_pages_of_the_guide_are_up_to_date() {
    let written = tempfile::tempdir().expect("a scratch directory");
    let status = Command::new(env!("CARGO_BIN_EXE_headway"))
        .arg("reference")
        .arg(written.path())
        .status();
    assert!(status.expect("headway").success());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in PAGES {
        let read = |root: &Path| std::fs::read_to_string(root.join(page)).unwrap_or_default();
        let (committed, generated) = (read(&root), read(written.path()));
        assert!(!generated.is_empty(), "{page} is not written");
        let same = committed == generated;
        assert!(
            same,
            "{page} is old; run: cargo run -p headway -- reference ."
        );
    }
}
