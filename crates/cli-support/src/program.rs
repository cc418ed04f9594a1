//! A command as it describes itself: its groups of subcommands, help, version, manual pages.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, Parser};
use clap_complete::Shell;

use crate::output::{print, print_data};
use crate::{Failure, usage};

/// What a command says of itself beyond its options.
#[derive(Debug)]
pub struct Program {
    /// The command's name as it is typed.
    pub name: &'static str,
    /// Every visible subcommand, once.
    pub groups: &'static [Group],
    /// The examples of `--help`.
    pub examples: &'static str,
    /// Options of other tools: subcommand, options, and what to use instead.
    pub hints: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Subcommands that another program has, and what to type instead.
    pub elsewhere: &'static [(&'static str, &'static str)],
}

/// Commands that belong together.
#[derive(Debug)]
pub struct Group {
    /// The heading of the group in the help.
    pub name: &'static str,
    /// The commands, in the order in which they are listed.
    pub commands: &'static [&'static str],
}

impl Program {
    /// The command line; or the exit code, when help or an error has been printed.
    pub fn parsed<A: Parser>(&self) -> Result<A, ExitCode> {
        let command = A::command();
        let help = self.help(&command);
        let command = command.override_help(help).arg_required_else_help(true);
        let matches = command.try_get_matches();
        let parsed = matches.and_then(|matches| A::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let command = std::env::args().nth(1);
            usage::explain(self, error, command.as_deref())
        })
    }

    /// The text of `--help`: clap knows one list of subcommands only.
    pub(crate) fn help(&self, command: &Command) -> String {
        let mut out = String::new();
        if let Some(about) = command.get_about() {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(out, "{about}\n");
        }
        let _ = writeln!(out, "Usage: {} COMMAND [OPTIONS]", self.name);
        for group in self.groups {
            let _ = writeln!(out, "\n{}:", group.name);
            for name in group.commands {
                let _ = writeln!(out, "  {name:<12} {}", about(command, name));
            }
        }
        let _ = write!(
            out,
            "\nExamples:\n{}
`{} COMMAND -h` prints the options most people need, `--help` all of them.
Exit codes: 0 success, 1 failure, 2 usage error.
",
            self.examples, self.name
        );
        out
    }

    /// What to put into a bug report: the version, how this binary was built, and the kernel it
    /// runs on.
    pub fn version(&self) -> Result<(), Failure> {
        let build = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        print(&format!(
            "{} {} ({} {}, {build} build)\nkernel {}\n",
            self.name,
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
            std::env::consts::OS,
            kernel.trim(),
        ))
    }

    /// Prints a completion script.
    pub fn completions(&self, shell: Shell, mut command: Command) -> Result<(), Failure> {
        // Generating to standard output itself would panic when it is closed.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, self.name, &mut script);
        print_data(&String::from_utf8(script)?)
    }

    /// Writes `NAME.1` and one page per visible subcommand.
    pub fn man(&self, directory: &Path, command: Command) -> Result<(), Failure> {
        clap_mangen::generate_to(command, directory)
            .with_context(|| format!("manual pages into {}", directory.display()))?;
        Ok(())
    }
}

fn about(command: &Command, name: &str) -> String {
    if name == "help" {
        return "Print this help, or the help of a command".to_owned();
    }
    let found = command.find_subcommand(name).and_then(Command::get_about);
    found.map(ToString::to_string).unwrap_or_default()
}
