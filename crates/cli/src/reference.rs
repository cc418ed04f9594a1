//! `headway reference`: the pages of the guide that are made from the code, so that they cannot
//! drift.
//!
//! A test compares what this writes with the committed pages.

use anyhow::Context;
use clap::Command;
use std::path::Path;

use headway_cli_support::Failure;
use headway_cli_support::command_line::{self, Elsewhere};
use headway_server::config::KnownExtensions;
use headway_server::config::keys::reference;

mod configuration;
mod metrics;

/// Writes every generated page below a checkout's root.
pub fn write(root: &Path, command: Command) -> Result<(), Failure> {
    let keys = Elsewhere {
        command: "serve",
        options: reference(KnownExtensions::NONE)
            .into_iter()
            .map(|key| key.name)
            .collect(),
        text: "Every top-level key of the [configuration](configuration.md) is an option too. These are the others.",
    };
    let pages = [
        ("docs/src/reference/configuration.md", configuration::page()),
        ("docs/src/reference/metrics.md", metrics::metrics()),
        (
            "docs/src/reference/command-line.md",
            command_line::page("Command line", &crate::PROGRAM, command, Some(&keys)),
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
