//! Usage errors in plain words: clap's own, without Rust in them and without hints that mislead.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use headway_latency::format::printable_text;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::Program;

/// What Rust's parsers say, and the same in plain words.
const RUST_PHRASES: &[(&str, &str)] = &[
    (
        "invalid digit found in string",
        "not a whole number; write for example 10",
    ),
    (
        "cannot parse integer from empty string",
        "the number is missing",
    ),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    (
        "number too small to fit in target type",
        "the number is too small",
    ),
    (
        "number would be zero for non-zero type",
        "the number must be at least 1",
    ),
    (
        "invalid float literal",
        "not a number; write for example 0.5",
    ),
    (
        "cannot parse float from empty string",
        "the number is missing",
    ),
];

/// Prints a usage error, or the help or version that was asked for, and says how to exit.
pub fn explain(program: &Program, error: clap::Error, command: Option<&str>) -> ExitCode {
    if !error.use_stderr() {
        // A closed standard output has no reader to tell.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = plain(program, error, command, std::io::stderr().is_terminal());
    // If standard error is closed, the exit code still says it.
    let _ = write!(std::io::stderr(), "{}", printable_text(&text));
    ExitCode::from(2)
}

/// The text of a usage error, with the hint of the program if it has one.
pub fn plain(
    program: &Program,
    mut error: clap::Error,
    command: Option<&str>,
    colour: bool,
) -> String {
    let hint = hint(program, &error, command);
    // Its advice to pass an unknown option as a value, behind `--`, is never what was meant.
    error.remove(ContextKind::Suggested);
    if hint.is_some() {
        // What is spelt similarly does something else; it is also in the usage line.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Usage);
    }
    let rendered = error.render();
    let mut text = match colour {
        true => rendered.ansi().to_string(),
        false => rendered.to_string(),
    };
    for (rust, plain) in RUST_PHRASES {
        text = text.replace(rust, plain);
    }
    match hint {
        Some(hint) => text.replacen("\n\n", &format!("\n\n  hint: {hint}\n\n"), 1),
        None => text,
    }
}

fn hint(program: &Program, error: &clap::Error, command: Option<&str>) -> Option<&'static str> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let argument = text(ContextKind::InvalidArg)?.split(['=', ' ']).next()?;
            let mut known = program.hints.iter();
            let (_, _, hint) = known
                .find(|(of, options, _)| Some(*of) == command && options.contains(&argument))?;
            Some(hint)
        }
        ErrorKind::InvalidSubcommand => {
            let name = text(ContextKind::InvalidSubcommand)?;
            let mut known = program.elsewhere.iter();
            known
                .find(|(of, _)| *of == name)
                .map(|(_, instead)| *instead)
        }
        _ => None,
    }
}
