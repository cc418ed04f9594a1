//! What has to hold for the description of a command: each program's tests call it with their own.

use std::collections::BTreeSet;

use clap::Command;

use crate::{Program, usage};

/// Columns that the help is written for.
const COLUMNS: usize = 100;

/// Lines of a short help, so that it fits on a screen.
const LINES: usize = 40;

/// Fails unless every visible subcommand is in one group, with a line of description.
pub fn assert_grouped(program: &Program, command: &Command) {
    let listed: Vec<&str> = program
        .groups
        .iter()
        .flat_map(|group| group.commands)
        .copied()
        .collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(listed.len(), unique.len(), "{listed:?}");
    let visible = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let mut visible: BTreeSet<&str> = visible.map(Command::get_name).collect();
    visible.insert("help");
    assert_eq!(unique, visible);
    let text = program.help(command);
    for name in listed {
        let start = format!("  {name:<12} ");
        let line = text.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("no line for {name} in {text}"));
        assert!(line.len() > start.len() && line.len() <= COLUMNS, "{line}");
    }
}

/// Fails unless the short help of every subcommand fits on a screen.
pub fn assert_short_help_fits(command: Command) {
    let mut command = command.term_width(COLUMNS);
    for command in command.get_subcommands_mut() {
        if command.is_hide_set() {
            continue;
        }
        assert_fits(command);
        command.get_subcommands_mut().for_each(assert_fits);
    }
}

/// At most 40 lines of short help, whose examples are not wrapped at 100 columns.
fn assert_fits(command: &mut Command) {
    let text = command.render_help().to_string();
    assert!(text.lines().count() <= LINES, "{text}");
    let after = command.get_after_help().map(ToString::to_string);
    let after = after.unwrap_or_default();
    for line in after.lines().filter(|line| line.starts_with("  ")) {
        assert!(
            line.chars().count() <= COLUMNS,
            "wrapped in the help of {}: {line}",
            command.get_name()
        );
    }
}

/// Fails unless every hint is printed, and is for a subcommand or an option that the program does
/// not have.
pub fn assert_hints(program: &Program, command: &Command) {
    for (of, options, hint) in program.hints {
        for option in *options {
            let command_of = command.find_subcommand(of).expect("a command");
            let known = command_of.get_arguments().any(|arg| {
                let names = arg.get_long_and_visible_aliases().unwrap_or_default();
                let shorts = arg.get_short_and_visible_aliases().unwrap_or_default();
                names.iter().any(|long| *option == format!("--{long}"))
                    || shorts.iter().any(|short| *option == format!("-{short}"))
            });
            assert!(!known, "{of} has {option} itself; remove the hint: {hint}");
            let text = usage_error(program, command.clone(), &[of, option, "4"]);
            assert_hint_alone(&text, hint);
        }
    }
    for (name, instead) in program.elsewhere {
        assert!(command.find_subcommand(name).is_none(), "{name}");
        let text = usage_error(program, command.clone(), &[name, "--help"]);
        assert_hint_alone(&text, instead);
    }
}

fn assert_hint_alone(text: &str, hint: &str) {
    assert!(text.contains(hint), "{hint}: {text}");
    assert!(!text.contains("similar"), "{hint}: {text}");
    assert!(!text.contains("Usage:"), "{hint}: {text}");
}

/// What is printed for a command line that has to be a usage error.
pub fn usage_error(program: &Program, command: Command, arguments: &[&str]) -> String {
    let line = std::iter::once(program.name).chain(arguments.iter().copied());
    let error = command
        .try_get_matches_from(line)
        .expect_err("a usage error");
    usage::plain(program, error, arguments.first().copied(), false)
}
