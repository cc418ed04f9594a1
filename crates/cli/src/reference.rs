//! `headway reference`: the pages of the guide that are made from the code, so that they cannot
//! drift.
//!
//! A test compares what this writes with the committed pages.

use anyhow::Context;
use clap::Command;
use std::path::Path;

use super::{Failure, groups};

mod command_line;
mod configuration;
mod metrics;

/// Where the text of a page is wrapped.
const COLUMNS: usize = 110;

/// Writes every generated page below a checkout's root.
pub fn write(root: &Path, command: Command) -> Result<(), Failure> {
    let (guide, research): (Vec<_>, Vec<_>) = groups::GROUPS
        .iter()
        .partition(|group| group.name != groups::RESEARCH);
    let command = command_line::built_command(command);
    let pages = [
        ("docs/src/reference/configuration.md", configuration::page()),
        (
            "docs/research/src/configuration.md",
            configuration::research_page(),
        ),
        ("docs/src/reference/metrics.md", metrics::metrics()),
        (
            "docs/src/reference/command-line.md",
            command_line::page("Command line", &command, &guide),
        ),
        (
            "docs/research/src/command-line.md",
            command_line::page("Command line of the research tools", &command, &research),
        ),
    ];
    for (page, text) in pages {
        let path = root.join(page);
        std::fs::create_dir_all(path.parent().unwrap_or(root))
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Words in lines of limited length; those after the first are indented by the width of `mark`.
fn wrapped(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.len());
    let mut out = mark.to_owned();
    let mut columns = mark.len();
    for (index, word) in text.split_whitespace().enumerate() {
        let width = word.chars().count();
        if index > 0 && columns + 1 + width > COLUMNS {
            out.push('\n');
            out.push_str(&indent);
            columns = indent.len();
        } else if index > 0 {
            out.push(' ');
            columns += 1;
        }
        // An angle bracket would be taken for HTML.
        out.push_str(&word.replace('<', "\\<"));
        columns += width;
    }
    out.push('\n');
    out
}
