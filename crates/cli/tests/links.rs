//! The documents hold together: every link between them leads to a file, every link to a heading to
//! a heading, and the guide's pages stay within the guide.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

/// Every document below `directory`; what is built or fetched is not ours.
fn documents(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().expect("a type").is_dir() {
            if name != "target" && !name.starts_with('.') {
                documents(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The lines of a document that are not code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence
    });
    lines.collect()
}

/// What `](…)` leads to, links and pictures alike.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // Code in a line is no link.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in line.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(link, _)| link.to_owned()));
        }
    }
    found
}

/// The names of a document's headings as a link has them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    let named = headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    named.collect()
}

/// What is wrong with a link, if anything.
fn fault(document: &Path, link: &str, guide: &Path) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => document.to_owned(),
        file => document.parent()?.join(file),
    };
    let Ok(target) = target.canonicalize() else {
        return Some("leads nowhere");
    };
    if document.starts_with(guide) && !target.starts_with(guide) {
        return Some("leads out of the guide, where the built book has nothing");
    }
    let is_missing = || {
        let text = fs::read_to_string(&target).unwrap_or_default();
        !anchors(&text).contains(anchor)
    };
    (!anchor.is_empty() && is_missing()).then_some("names a heading that is not there")
}

#[test]
fn every_link_leads_somewhere_when_documents_refer_to_each_other() {
    let (root, mut all) = (repository(), Vec::new());
    documents(&root, &mut all);
    let guide = root.join("docs/src");
    let (mut faults, mut seen) = (Vec::new(), 0);
    for document in &all {
        let text = fs::read_to_string(document).expect("a document");
        for link in links(&text) {
            seen += 1;
            if let Some(why) = fault(document, &link, &guide) {
                faults.push(format!("{}: {link} {why}", document.display()));
            }
        }
    }
    assert!(seen > 10, "{seen} links: are they still recognised?");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_chapter_is_in_the_table_of_contents_when_there_is_one() {
    let guide = repository().join("docs/src");
    let contents = fs::read_to_string(guide.join("SUMMARY.md")).expect("SUMMARY.md");
    let listed: BTreeSet<String> = links(&contents).into_iter().collect();
    let mut chapters = Vec::new();
    documents(&guide, &mut chapters);
    let there: BTreeSet<String> = chapters
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .filter(|name| name != "SUMMARY.md")
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn fault_is_seen_when_a_link_has_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().canonicalize().expect("a path");
    let guide = base.join("guide");
    fs::create_dir(&guide).expect("a directory");
    let page = guide.join("page.md");
    fs::write(&page, "# One `two`: three\n```\n# not this\n```\n").expect("a page");
    fs::write(base.join("outside.md"), "").expect("a page");
    let told = |link: &str| fault(&page, link, &guide);
    for good in ["page.md", "#one-two-three", "https://example.org/x"] {
        assert_eq!(told(good), None, "{good}");
    }
    for bad in ["none.md", "page.md#not-this", "../outside.md"] {
        assert!(told(bad).is_some(), "{bad}");
    }
    assert_eq!(links("a [b](c) `[no](no)` ![d](e.png)"), ["c", "e.png"]);
}
