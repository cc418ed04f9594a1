//! Checks the links of all documents: each leads to a file and, with an anchor, to a heading of it.
//! Pages of a book link only to pages of the same book, since the built book has nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The sources of the two books.
const BOOKS: [&str; 2] = ["docs/src", "docs/research/src"];

fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

/// Every document below `directory`, without what is built or fetched.
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

/// The targets of links and pictures.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // Brackets in code are not links.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in line.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(link, _)| link.to_owned()));
        }
    }
    found
}

/// The anchors of a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    let named = headings.map(|line| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    named.collect()
}

/// What is wrong with a link, if anything. `book` is the folder of the document's book.
fn fault(document: &Path, link: &str, book: Option<&Path>) -> Option<&'static str> {
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
    if book.is_some_and(|book| !target.starts_with(book)) {
        return Some("leads out of the book, where the built book has nothing");
    }
    let is_missing = || {
        let text = fs::read_to_string(&target).unwrap_or_default();
        !anchors(&text).contains(anchor)
    };
    (!anchor.is_empty() && is_missing()).then_some("names a heading that is not there")
}

#[test]
fn every_link_in_the_documents_has_a_target() {
    let (root, mut all) = (repository(), Vec::new());
    documents(&root, &mut all);
    let books = BOOKS.map(|book| root.join(book));
    let (mut faults, mut seen) = (Vec::new(), 0);
    for document in &all {
        let text = fs::read_to_string(document).expect("a document");
        let book = books.iter().find(|book| document.starts_with(book));
        for link in links(&text) {
            seen += 1;
            if let Some(why) = fault(document, &link, book.map(PathBuf::as_path)) {
                faults.push(format!("{}: {link} {why}", document.display()));
            }
        }
    }
    assert!(seen > 10, "{seen} links: are they still recognised?");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_chapter_is_in_the_table_of_contents_when_there_is_one() {
    for book in BOOKS.map(|book| repository().join(book)) {
        let contents = fs::read_to_string(book.join("SUMMARY.md")).expect("SUMMARY.md");
        let listed: BTreeSet<String> = links(&contents).into_iter().collect();
        let mut chapters = Vec::new();
        documents(&book, &mut chapters);
        let there: BTreeSet<String> = chapters
            .iter()
            .filter_map(|path| Some(path.strip_prefix(&book).ok()?.to_str()?.to_owned()))
            .filter(|name| name != "SUMMARY.md")
            .collect();
        assert_eq!(listed, there, "{}", book.display());
    }
}

#[test]
fn every_path_of_the_architecture_exists() {
    let root = repository();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    // Code is in every second part of the text.
    let code = text.split('`').skip(1).step_by(2);
    let paths =
        code.filter(|code| code.starts_with("crates/") && !code.contains(char::is_whitespace));
    let missing: Vec<&str> = paths.filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}

#[test]
fn link_check_finds_broken_links() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().canonicalize().expect("a path");
    let guide = base.join("guide");
    fs::create_dir(&guide).expect("a directory");
    let page = guide.join("page.md");
    fs::write(&page, "# One `two`: three\n```\n# not this\n```\n").expect("a page");
    fs::write(base.join("outside.md"), "").expect("a page");
    let found = |link: &str| fault(&page, link, Some(&guide));
    for good in ["page.md", "#one-two-three", "https://example.org/x"] {
        assert_eq!(found(good), None, "{good}");
    }
    for bad in ["none.md", "page.md#not-this", "../outside.md"] {
        assert!(found(bad).is_some(), "{bad}");
    }
    assert_eq!(links("a [b](c) `[no](no)` ![d](e.png)"), ["c", "e.png"]);
}
