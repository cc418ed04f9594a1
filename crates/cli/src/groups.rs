//! The sub-commands in groups, for `headway --help` and the generated reference.

use clap::Command;
use std::fmt::Write;

/// The name of the last group.
pub const RESEARCH: &str = "Research";

/// Commands that belong together.
#[derive(Debug)]
pub struct Group {
    /// The heading.
    pub name: &'static str,
    /// The commands, in the order in which they are listed.
    pub commands: &'static [&'static str],
}

/// Every visible command, once.
pub const GROUPS: &[Group] = &[
    Group {
        name: "Serve",
        commands: &["serve", "backend"],
    },
    Group {
        name: "Measure",
        commands: &["load", "profile", "analyze", "report", "fileset"],
    },
    Group {
        name: "Trace",
        commands: &["trace"],
    },
    Group {
        name: RESEARCH,
        commands: &["lab", "study", "specweb99", "counters", "schedule"],
    },
    Group {
        name: "Other",
        commands: &["version", "completions", "help"],
    },
];

/// The text of `headway --help`: clap knows one list of sub-commands only.
pub fn help(command: &Command) -> String {
    let mut out = String::new();
    if let Some(about) = command.get_about() {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "{about}\n");
    }
    let _ = writeln!(out, "Usage: headway COMMAND [OPTIONS]");
    for group in GROUPS {
        let _ = writeln!(out, "\n{}:", group.name);
        for name in group.commands {
            let _ = writeln!(out, "  {name:<12} {}", about(command, name));
        }
    }
    out.push_str(
        "\nExamples:
  headway serve /srv/www                            serve a directory on http://127.0.0.1:8080
  headway load http://127.0.0.1:8080/ --cpu 1       load-test any HTTP/1.1 server
  headway trace -- git status                       show what a program waits for

`headway COMMAND -h` prints the options most people need, `--help` all of them.
Exit codes: 0 success, 1 failure, 2 usage error.
",
    );
    out
}

fn about(command: &Command, name: &str) -> String {
    if name == "help" {
        return "Print this help, or the help of a command".to_owned();
    }
    let found = command.find_subcommand(name).and_then(Command::get_about);
    found.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    use super::{GROUPS, help};
    use crate::Arguments;

    #[test]
    fn every_visible_command_is_in_one_group() {
        let listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|group| group.commands)
            .copied()
            .collect();
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), unique.len(), "{listed:?}");
        let command = Arguments::command();
        let visible = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let mut visible: BTreeSet<&str> = visible.map(clap::Command::get_name).collect();
        visible.insert("help");
        assert_eq!(unique, visible);
    }

    #[test]
    fn short_help_of_every_command_fits_on_a_screen() {
        for name in GROUPS.iter().flat_map(|group| group.commands) {
            let mut command = Arguments::command().term_width(100);
            let Some(command) = command.find_subcommand_mut(name) else {
                continue;
            };
            assert_fits(command);
            command.get_subcommands_mut().for_each(assert_fits);
        }
    }

    /// At most 40 lines of short help, whose examples are not wrapped at 100 columns.
    fn assert_fits(command: &mut clap::Command) {
        let text = command.render_help().to_string();
        assert!(text.lines().count() <= 40, "{text}");
        let after = command.get_after_help().map(ToString::to_string);
        let after = after.unwrap_or_default();
        for line in after.lines().filter(|line| line.starts_with("  ")) {
            assert!(
                line.chars().count() <= 100,
                "wrapped in the help of {}: {line}",
                command.get_name()
            );
        }
    }

    #[test]
    fn help_has_a_line_of_description_for_each_command() {
        let text = help(&Arguments::command());
        for name in GROUPS.iter().flat_map(|group| group.commands) {
            let start = format!("  {name:<12} ");
            let line = text.lines().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("no line for {name} in {text}"));
            assert!(line.len() > start.len() && line.len() <= 100, "{line}");
        }
    }
}
