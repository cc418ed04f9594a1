//! Usage errors in plain words: clap's own, without Rust in them and without hints that mislead.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

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

const DIRECTORY: &str = "give the directory as the first argument: headway serve DIR";
const LISTEN: &str = "give the address with --listen ADDRESS:PORT";
const URL: &str = "give the address in the URL: http://HOST:PORT/path";
const PERCENTILES: &str = "percentiles are always printed";
const CONNECTIONS: &str = "set the number of connections with -c N, or a rate with -R N";
const RESPONSE_HEADERS: &str = "add response headers with [[header]] in a configuration file";
const TIMEOUTS: &str = "set a timeout by what it limits: --idle-timeout, --header-timeout, --body-timeout or --send-timeout";

/// Options of other tools, by command, and what to use here.
const HINTS: &[(&str, &[&str], &str)] = &[
    ("serve", &["--root", "--directory", "-d"], DIRECTORY),
    ("serve", &["-t"], "check the configuration with --check"),
    ("serve", &["--host", "--bind"], LISTEN),
    (
        "serve",
        &["--threads"],
        "set the number of worker processes with --workers N",
    ),
    (
        "serve",
        &["--access-log"],
        "write an access log with --log PATH",
    ),
    ("serve", &["-H", "--header"], RESPONSE_HEADERS),
    ("serve", &["--timeout", "--deadline"], TIMEOUTS),
    (
        "serve",
        &["--tls", "--cert", "--https"],
        "there is no TLS yet: put a proxy in front, see the guide's page on HTTPS",
    ),
    (
        "serve",
        &["--latency"],
        "measure latency with headway load URL",
    ),
    (
        "backend",
        &["--port", "-p", "--listen"],
        "clients connect to a Unix socket: --socket PATH",
    ),
    ("load", &["-u", "--vus"], CONNECTIONS),
    ("load", &["--latency"], PERCENTILES),
    ("load", &["-z"], "set the duration with -d TIME"),
    ("load", &["--port", "-p", "--bind", "--host"], URL),
    (
        "load",
        &["--disable-keepalive"],
        "close each connection with --requests-per-connection 1",
    ),
    (
        "load",
        &["-k"],
        "connections are kept alive unless --requests-per-connection says otherwise",
    ),
    ("profile", &["--latency"], PERCENTILES),
    ("profile", &["--port", "-p", "--bind", "--host"], URL),
    ("specweb99", &["--port", "-p", "--bind", "--host"], URL),
    ("trace", &["-f"], "child processes are always followed"),
    ("trace", &["-c"], "the summary is always printed"),
    ("trace", &["-e"], "choose system calls with --call NAME,…"),
    (
        "trace",
        &["-t", "-r"],
        "keep calls with their times: --every-call --chrome FILE",
    ),
];

/// Prints a usage error, or the help or version that was asked for, and says how to exit.
pub fn explain(error: clap::Error, command: Option<&str>) -> ExitCode {
    if !error.use_stderr() {
        // A closed standard output has no reader to tell.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = plain(error, command, std::io::stderr().is_terminal());
    // If standard error is closed, the exit code still says it.
    let _ = write!(std::io::stderr(), "{text}");
    ExitCode::from(2)
}

fn plain(mut error: clap::Error, command: Option<&str>, colour: bool) -> String {
    let hint = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) if error.kind() == ErrorKind::UnknownArgument => {
            hint(command, argument)
        }
        _ => None,
    };
    // Its advice to pass an unknown option as a value, behind `--`, is never what was meant.
    error.remove(ContextKind::Suggested);
    if hint.is_some() {
        // An option that is spelt similarly does something else; it is also in the usage line.
        error.remove(ContextKind::SuggestedArg);
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

fn hint(command: Option<&str>, argument: &str) -> Option<&'static str> {
    let mut known = HINTS.iter();
    let argument = argument.split(['=', ' ']).next()?;
    let (_, _, hint) =
        known.find(|(of, options, _)| Some(*of) == command && options.contains(&argument))?;
    Some(hint)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{HINTS, plain};
    use crate::Arguments;

    fn usage_error(words: &[&str]) -> String {
        let line = std::iter::once("headway").chain(words.iter().copied());
        let error = Arguments::try_parse_from(line).expect_err("a usage error");
        plain(error, words.first().copied(), false)
    }

    /// Command, option and hint.
    fn each_hint() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let options = |(of, options, hint): &'static (_, &'static [&'static str], _)| {
            options.iter().map(move |option| (*of, *option, *hint))
        };
        HINTS.iter().flat_map(options)
    }

    #[test]
    fn every_hint_is_for_an_option_that_the_command_does_not_have() {
        let command = Arguments::command();
        for (of, option, hint) in each_hint() {
            let command = command.find_subcommand(of).expect("a command");
            let known = command.get_arguments().any(|arg| {
                let names = arg.get_long_and_visible_aliases().unwrap_or_default();
                let shorts = arg.get_short_and_visible_aliases().unwrap_or_default();
                names.iter().any(|long| option == format!("--{long}"))
                    || shorts.iter().any(|short| option == format!("-{short}"))
            });
            assert!(!known, "{of} has {option} itself; remove the hint: {hint}");
        }
    }

    #[test]
    fn unknown_option_of_another_tool_is_answered_with_the_right_one() {
        let text = usage_error(&["load", "http://127.0.0.1/", "-z", "4"]);
        assert!(text.contains("hint: set the duration"), "{text}");
        assert!(!text.contains("as a value"), "{text}");
    }

    #[test]
    fn unknown_option_with_a_hint_is_not_answered_with_a_similar_one_too() {
        for (of, option, hint) in each_hint() {
            let text = usage_error(&[of, option, "4"]);
            assert!(text.contains(hint), "{of} {option}: {text}");
            assert!(!text.contains("similar"), "{of} {option}: {text}");
            assert!(!text.contains("Usage:"), "{of} {option}: {text}");
        }
        let text = usage_error(&["serve", "--worker", "4"]);
        assert!(text.contains("'--workers'"), "{text}");
    }

    #[test]
    fn invalid_value_of_json_is_answered_with_the_value_in_the_help() {
        let text = usage_error(&["load", "--json=all", "http://127.0.0.1/"]);
        assert!(text.contains("[possible values: full]"), "{text}");
    }

    #[test]
    fn invalid_number_is_a_usage_error_in_plain_words() {
        let text = usage_error(&["schedule", "m.csv", "--rounds", "many"]);
        assert!(text.contains("not a whole number"), "{text}");
        assert!(!text.contains("invalid digit"), "{text}");
    }
}
