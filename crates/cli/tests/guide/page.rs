//! Reads the fenced blocks of a page, and what their info strings say about running them.
//!
//! | fence | meaning |
//! |---|---|
//! | ```` ```sh run ```` | the shell of the page runs it; each command has to succeed |
//! | ```` ```sh run background ```` | a second terminal: it runs until the page ends, and has to listen on a socket |
//! | ```` ```sh run background restart ```` | the same, after the background blocks before it have been ended |
//! | ```` ```python run ````, ```` ```sql run ```` | Python runs it, or DuckDB's module for Python |
//! | ```` ```toml file=NAME ```` | it is saved under this name |
//! | ```` ```text output ```` | lines that the block before has printed, in this order; `…` is any text |
//! | ```` ```sh skip: REASON ```` | it is not run |
//!
//! Blocks in `sh`, `python`, `sql` and `toml` need one of these. Three comments belong to the test:
//! `<!-- needs: nginx, php-fpm8.2 -->` names programs without which the page is skipped,
//! `<!-- machine` … `-->` holds commands that make the machine as the page expects it, and
//! `<!-- host process numbers -->` is for a page that traces running processes by BPF.

/// One fenced block, or the commands of a `machine` comment.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the page on which the text begins, from 1.
    pub line: usize,
    pub kind: Kind,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Run,
    Background {
        is_restart: bool,
    },
    Python,
    Sql,
    File(String),
    Output,
    /// Shown only, for the reason given.
    Skipped(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Programs, or `python:MODULE`, that the page needs.
    pub needs: Vec<String>,
    pub has_host_pids: bool,
    pub blocks: Vec<Block>,
}

/// What an info string says. `None` is a block that is only shown.
fn kind(info: &str) -> Result<Option<Kind>, String> {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    if let Some(reason) = rest.strip_prefix("skip:") {
        let reason = reason.trim();
        return match reason {
            "" => Err("`skip:` needs a reason".to_owned()),
            reason => Ok(Some(Kind::Skipped(reason.to_owned()))),
        };
    }
    if let Some(name) = rest.strip_prefix("file=") {
        return Ok(Some(Kind::File(name.to_owned())));
    }
    match (language, rest) {
        ("sh", "run") => Ok(Some(Kind::Run)),
        ("sh", "run background") => Ok(Some(Kind::Background { is_restart: false })),
        ("sh", "run background restart") => Ok(Some(Kind::Background { is_restart: true })),
        ("python", "run") => Ok(Some(Kind::Python)),
        ("sql", "run") => Ok(Some(Kind::Sql)),
        ("text", "output") => Ok(Some(Kind::Output)),
        ("sh" | "python" | "sql" | "toml", "") => Err(format!(
            "`{language}` needs `run`, `file=NAME` or `skip: reason`"
        )),
        (_, "") => Ok(None),
        _ => Err(format!("`{info}` is not known")),
    }
}

/// The text up to the line that ends it, and how many lines were read.
fn until<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, end: &str) -> Option<String> {
    let mut text = String::new();
    for (_, line) in lines {
        if line.trim_end() == end {
            return Some(text);
        }
        text.push_str(line);
        text.push('\n');
    }
    None
}

/// Reads a page. The error names the line.
pub fn parse(text: &str) -> Result<Page, String> {
    let mut page = Page::default();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let at = |error: String| format!("line {}: {error}", index + 1);
        let (kind, end) = if let Some(info) = line.strip_prefix("```") {
            (kind(info.trim()).map_err(at)?, "```")
        } else if line == "<!-- machine" {
            (Some(Kind::Run), "-->")
        } else {
            page.has_host_pids |= line == "<!-- host process numbers -->";
            let needs = line.strip_prefix("<!-- needs:");
            if let Some(names) = needs.and_then(|rest| rest.strip_suffix("-->")) {
                let names = names.split(',').map(|name| name.trim().to_owned());
                page.needs.extend(names);
            }
            continue;
        };
        let text = until(&mut lines, end).ok_or_else(|| at(format!("no `{end}` ends it")))?;
        if let Some(kind) = kind {
            let line = index + 2;
            page.blocks.push(Block { line, kind, text });
        }
    }
    Ok(page)
}

/// The first line of `expected` that `printed` lacks after the lines before it.
pub fn missing_line<'a>(expected: &'a str, printed: &str) -> Option<&'a str> {
    let mut printed = printed.lines();
    expected
        .lines()
        .filter(|line| !line.trim().is_empty())
        .find(|line| !printed.any(|found| matches(line.trim(), found.trim())))
}

/// Whether a line is like a pattern, in which `…` is any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    // A pattern that ends with other text than `…` has to reach the end of the line.
    rest.is_empty() || last.is_some_and(|part| part.is_empty() || line.ends_with(part))
}
