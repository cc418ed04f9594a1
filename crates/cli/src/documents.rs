//! Manual pages and shell completions, generated from the command line's own description.

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use std::path::Path;

use super::Failure;

/// Prints the completion script.
pub fn completions(shell: Shell, mut command: Command) -> Result<(), Failure> {
    // Generating to standard output itself would panic when it is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "headway", &mut script);
    super::output::print(&String::from_utf8(script)?)
}

/// Writes `headway.1` and one page a visible sub-command.
pub fn man(directory: &Path, command: Command) -> Result<(), Failure> {
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("manual pages into {}", directory.display()))?;
    Ok(())
}
