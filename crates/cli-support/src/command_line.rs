//! The command line as Markdown, from clap's own description of it.

use clap::{Arg, Command};
use std::collections::HashMap;
use std::fmt::Write;

use crate::{Group, Program};

/// Where the text of a page is wrapped.
const COLUMNS: usize = 110;

/// The heading of options that have none of their own.
const PLAIN_HEADING: &str = "Options";

/// Options of one subcommand that are documented elsewhere, and what is said instead of them.
#[derive(Debug)]
pub struct Elsewhere {
    /// The name of the subcommand.
    pub command: &'static str,
    /// The long options, without dashes.
    pub options: Vec<String>,
    /// Markdown that says where they are.
    pub text: &'static str,
}

/// A page for all visible subcommands of a program, in the order of its groups.
pub fn page(
    title: &str,
    program: &Program,
    mut command: Command,
    elsewhere: Option<&Elsewhere>,
) -> String {
    // Fills in usage lines and values.
    command.build();
    let name = program.name;
    let mut out = format!(
        "# {title}\n\n{}",
        wrapped(
            "",
            &format!(
                "This page is generated from the code. `{name} COMMAND --help` prints the same options with more detail, \
                 and examples. Every command exits with 0 for success, 1 for a failure and 2 for a usage error."
            ),
        )
    );
    let groups = program
        .groups
        .iter()
        .flat_map(|group: &Group| group.commands);
    let mut seen = HashMap::new();
    for of in groups.filter(|of| **of != "help") {
        if let Some(command) = command.find_subcommand(of) {
            section(&mut out, &mut seen, name, command, 2, elsewhere);
        }
    }
    out
}

/// The command under which each line with an option was written first.
type Seen = HashMap<String, String>;

fn section(
    out: &mut String,
    seen: &mut Seen,
    parent: &str,
    command: &Command,
    depth: usize,
    elsewhere: Option<&Elsewhere>,
) {
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
    options(
        out,
        seen,
        (&name, command),
        elsewhere.filter(|other| other.command == command.get_name()),
    );
    for child in command
        .get_subcommands()
        .filter(|child| !child.is_hide_set())
    {
        if child.get_name() != "help" {
            section(out, seen, &name, child, depth + 1, elsewhere);
        }
    }
}

/// The arguments under their headings, in the order in which the command declares them. Those of a
/// heading which another command has as well are only named.
fn options(
    out: &mut String,
    seen: &mut Seen,
    (name, command): (&str, &Command),
    elsewhere: Option<&Elsewhere>,
) {
    let mut headings: Vec<(&str, Vec<&Arg>)> = Vec::new();
    if let Some(elsewhere) = elsewhere {
        let _ = writeln!(out, "\n{}", elsewhere.text);
    }
    let is_elsewhere = |arg: &Arg| {
        let mut names = elsewhere.iter().flat_map(|elsewhere| &elsewhere.options);
        names.any(|name| Some(name.as_str()) == arg.get_long())
    };
    for arg in command
        .get_arguments()
        .filter(|arg| is_documented(arg) && !is_elsewhere(arg))
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
        let lines: Vec<String> = args.iter().map(|arg| described(arg)).collect();
        let first = seen.get(&lines[0]).filter(|_| lines.len() > 1).cloned();
        if let Some(other) =
            first.filter(|other| lines.iter().all(|line| seen.get(line) == Some(other)))
        {
            let names: Vec<String> = args.iter().map(|arg| named(arg)).collect();
            out.push_str(&wrapped(
                "",
                &format!("As for `{other}`: {}.", names.join(", ")),
            ));
            continue;
        }
        for line in lines {
            out.push_str(&wrapped("- ", &line));
            seen.entry(line).or_insert_with(|| name.to_owned());
        }
    }
}

/// An argument with its help.
fn described(arg: &Arg) -> String {
    let help = arg.get_help().or(arg.get_long_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    format!("{}: {}", as_typed(arg), first_paragraph(&help))
}

/// The name of an argument: `--rate`.
fn named(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => format!("`--{long}`"),
        None => as_typed(arg),
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

/// Words in lines of limited length; those after the first are indented by the width of `mark`.
pub fn wrapped(mark: &str, text: &str) -> String {
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
