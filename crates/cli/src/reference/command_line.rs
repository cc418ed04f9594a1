//! The command line as Markdown, from clap's own description of it.

use clap::{Arg, Command};
use headway_server::config::keys::{Key, reference};
use std::fmt::Write;

use super::wrapped;
use crate::groups::Group;

/// The heading of options that have none of their own.
const PLAIN_HEADING: &str = "Options";

/// The description with usage lines and values filled in.
pub fn built_command(mut command: Command) -> Command {
    command.build();
    command
}

/// A page for some groups of commands.
pub fn page(title: &str, command: &Command, groups: &[&Group]) -> String {
    let mut out = format!(
        "# {title}\n\n{}",
        wrapped(
            "",
            "This page is generated from the code. `headway COMMAND --help` prints the same options with more detail, and examples. \
             Every command exits with 0 for success, 1 for a failure and 2 for a usage error.",
        )
    );
    for group in groups {
        for name in group.commands.iter().filter(|name| **name != "help") {
            if let Some(command) = command.find_subcommand(name) {
                section(&mut out, "headway", command, 2);
            }
        }
    }
    out
}

fn section(out: &mut String, parent: &str, command: &Command, depth: usize) {
    let name = format!("{parent} {}", command.get_name());
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "\n{} `{name}`\n", "#".repeat(depth));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        out.push_str(&paragraphs(&about.to_string()));
        out.push('\n');
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = writeln!(out, "```text\n{usage}\n```");
    options(out, command);
    for child in command
        .get_subcommands()
        .filter(|child| !child.is_hide_set())
    {
        if child.get_name() != "help" {
            section(out, &name, child, depth + 1);
        }
    }
}

/// The arguments under their headings, in the order in which the command declares them.
fn options(out: &mut String, command: &Command) {
    let mut headings: Vec<(&str, Vec<&Arg>)> = Vec::new();
    let keys = match command.get_name() {
        "serve" => reference(),
        _ => Vec::new(),
    };
    if !keys.is_empty() {
        out.push_str(
            "\nEvery top-level key of the [configuration](configuration.md) is an option too. These are the others.\n",
        );
    }
    let is_key = |arg: &Arg| {
        keys.iter()
            .any(|key: &Key| Some(key.name.as_str()) == arg.get_long())
    };
    for arg in command
        .get_arguments()
        .filter(|arg| is_documented(arg) && !is_key(arg))
    {
        let heading = arg.get_help_heading().unwrap_or(PLAIN_HEADING);
        match headings.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, args)) => args.push(arg),
            None => headings.push((heading, vec![arg])),
        }
    }
    // Research options come last, whatever the order of their declaration.
    headings.sort_by_key(|(name, _)| *name == "Research");
    for (heading, args) in headings {
        let _ = writeln!(out, "\n**{heading}**\n");
        for arg in args {
            let help = arg.get_help().or(arg.get_long_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            let line = format!("{}: {}", as_typed(arg), first_paragraph(&help));
            out.push_str(&wrapped("- ", &line));
        }
    }
}

fn is_documented(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// An argument as it is typed: `--rate RATE`, `-R`.
fn as_typed(arg: &Arg) -> String {
    let takes_value = arg
        .get_num_args()
        .is_some_and(|number| number.takes_values());
    let value = match (takes_value, arg.get_value_names()) {
        (true, Some(names)) => names
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        _ => String::new(),
    };
    let Some(long) = arg.get_long() else {
        return match arg.get_short() {
            Some(short) => format!("`-{short} {value}`"),
            None => format!("`{value}`"),
        };
    };
    let optional = arg
        .get_num_args()
        .is_some_and(|number| number.min_values() == 0);
    let long = match (value.is_empty(), optional) {
        (true, _) => format!("`--{long}`"),
        (false, true) => format!("`--{long}[={value}]`"),
        (false, false) => format!("`--{long} {value}`"),
    };
    match arg.get_short() {
        Some(short) => format!("{long}, `-{short}`"),
        None => long,
    }
}

fn first_paragraph(text: &str) -> String {
    text.replace("\n\n", " ").replace('\n', " ")
}

fn paragraphs(text: &str) -> String {
    let parts: Vec<String> = text.split("\n\n").map(|part| wrapped("", part)).collect();
    parts.join("\n")
}
