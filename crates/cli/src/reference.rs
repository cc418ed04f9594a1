//! `headway reference`: the pages of the guide that are made from the code, so that they cannot drift.
//!
//! A test compares what this writes with the committed pages.

use anyhow::Context;
use clap::Command;
use std::path::Path;

use super::{Failure, groups};

mod command_line;
mod configuration;
mod metrics;

/// Writes every generated page below a checkout's root.
pub fn write(root: &Path, command: Command) -> Result<(), Failure> {
    let (guide, research): (Vec<_>, Vec<_>) = groups::GROUPS
        .iter()
        .partition(|group| group.name != groups::RESEARCH);
    let command = command_line::built(command);
    let pages = [
        ("docs/src/reference/configuration.md", configuration::page()),
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
