//! Holds `tests/expected-skips` to the tests: a name that no test has is left over from a rename.
//!
//! The list itself is written by hand. Far more tests can skip than may do so on a machine that is
//! set up as CONTRIBUTING.md says, so a list made from the calls of `skip` would permit too much.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_expected_skip_names_a_test_with_its_need() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let list = fs::read_to_string(root.join("tests/expected-skips")).expect("the list");
    let known = known_names(&root);
    let mut seen = BTreeSet::new();
    let wrong: Vec<String> = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| {
            let (name, need) = line.split_once('#').unwrap_or((line, ""));
            let name = name.trim();
            match () {
                () if need.trim().is_empty() => Some(format!("{name}: no need is given")),
                () if !known.contains(name) => Some(format!("{name}: no test has this name")),
                () if !seen.insert(name) => Some(format!("{name}: named twice")),
                () => None,
            }
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Every word of the sources, since macros make tests too, and the areas of conversations.
fn known_names(root: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let folders = ["crates", "lab"].map(|folder| rust_files(&root.join(folder)));
    for file in folders.into_iter().flatten() {
        let text = fs::read_to_string(file).expect("a source file that was just listed");
        let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        names.extend(words.map(str::to_owned));
    }
    let areas = fs::read_dir(root.join("crates/server/tests/data")).expect("conversations");
    names.extend(areas.map(|area| {
        let name = area.expect("a directory entry").file_name();
        format!("conversations/{}", name.display())
    }));
    names
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory of the workspace");
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("a directory entry").path()) {
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
