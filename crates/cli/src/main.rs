//! The `headway` command: one file per sub-command, glue only; the libraries do the work.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error, 3 a condition of the user is not met.
#![forbid(unsafe_code)]

use clap::{CommandFactory, Parser, Subcommand};
use headway_cli_support::serve::Contents;
use headway_cli_support::{Failure, Group, Program, Shell, output, serve, signals};
use headway_server::Extensions;
use std::path::PathBuf;
use std::process::ExitCode;

mod acme;
mod backend;
mod reload;
mod explain;
mod trace;
mod fileset;
mod load;
mod compare;
mod merge;
mod profile;
mod report;
mod scenario;
mod analyze;
mod upload;
mod export;
mod hints;
mod reference;

const PROGRAM: Program = Program {
    name: "headway",
    groups: &[
        Group {
            name: "Serve",
            commands: &["serve", "reload", "upgrade", "backend", "acme"],
        },
        Group {
            name: "Measure",
            commands: &[
                "load", "profile", "compare", "merge", "upload", "analyze", "report", "fileset",
                "scenario",
            ],
        },
        Group {
            name: "Trace",
            commands: &["explain", "trace"],
        },
        Group {
            name: "Other",
            commands: &["version", "completions", "help"],
        },
    ],
    examples: "  headway serve /srv/www                            serve a directory on http://127.0.0.1:8080
  headway load http://127.0.0.1:8080/ --cpu 1       load-test any HTTP server
  headway trace -- git status                       show what a program waits for
",
    hints: hints::HINTS,
    elsewhere: hints::ELSEWHERE,
};

/// A web server that never blocks on disk I/O, with tools to load-test and trace servers
#[derive(Debug, Parser)]
#[command(name = "headway", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Arguments<Server>>),
    Reload(reload::Reload),
    Upgrade(reload::Upgrade),
    Backend(Box<backend::Arguments>),
    Acme(acme::Arguments),
    Explain(explain::Arguments),
    Trace(Box<trace::Arguments>),
    Fileset(fileset::Arguments),
    Load(Box<load::Arguments>),
    Profile(Box<profile::Arguments>),
    Compare(Box<compare::Arguments>),
    Merge(merge::Arguments),
    Upload(upload::Arguments),
    Report(report::Arguments),
    Scenario(scenario::Arguments),
    Analyze(analyze::Arguments),
    /// Print the version, and what this kernel offers
    Version,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// An existing directory.
        directory: PathBuf,
    },
    /// Writes the generated pages of the guide.
    #[command(hide = true)]
    Reference {
        /// The root of a checkout.
        root: PathBuf,
    },
    /// Beside `trace --functions`: removes the kernel's tracer if that command is killed.
    #[command(hide = true)]
    TraceGuard {
        /// The trace instance.
        instance: PathBuf,
    },
    /// A command of `trace --attach` that waits until it is observed.
    #[command(hide = true)]
    TraceGate {
        /// The gate.
        fifo: PathBuf,
        /// The command that the gate becomes.
        #[arg(last = true)]
        command: Vec<std::ffi::OsString>,
    },
}

/// The server for users.
#[derive(Debug)]
struct Server;

impl Contents for Server {
    const EXTENSIONS: Extensions = Extensions::NONE;
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    if let Some(done) = first.and_then(|word| serve::run_child::<Server>(&word)) {
        return PROGRAM.exit_code(done);
    }
    let arguments = match PROGRAM.parsed::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let done = match arguments.command {
        // The exit code is that of the traced command.
        Command::Trace(arguments) => {
            return trace::run(&arguments).unwrap_or_else(|failure| PROGRAM.failed(&failure));
        }
        Command::TraceGate { fifo, command } => {
            return trace::gate(&fifo, &command).unwrap_or_else(|failure| PROGRAM.failed(&failure));
        }
        Command::TraceGuard { instance } => {
            return trace::guard(&instance).unwrap_or_else(|failure| PROGRAM.failed(&failure));
        }
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Reload(arguments) => reload::reload(&arguments),
        Command::Upgrade(arguments) => reload::upgrade(&arguments),
        Command::Backend(arguments) => backend::run(&arguments),
        Command::Acme(arguments) => acme::run(&arguments),
        Command::Fileset(arguments) => fileset::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Merge(arguments) => merge::run(&arguments),
        Command::Upload(arguments) => upload::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Scenario(arguments) => scenario::run(&arguments),
        Command::Analyze(arguments) => analyze::run(&arguments),
        Command::Version => PROGRAM.version(),
        Command::Reference { root } => reference::write(&root, Arguments::command()),
        Command::Completions { shell } => PROGRAM.completions(shell, Arguments::command()),
        Command::Man { directory } => PROGRAM.man(&directory, Arguments::command()),
    };
    PROGRAM.exit_code(done)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use headway_cli_support::check;

    use super::{Arguments, PROGRAM};

    fn usage_error(arguments: &[&str]) -> String {
        check::usage_error(&PROGRAM, Arguments::command(), arguments)
    }

    #[test]
    fn every_visible_command_is_in_one_group() {
        check::assert_grouped(&PROGRAM, &Arguments::command());
    }

    #[test]
    fn short_help_of_every_command_fits_on_a_screen() {
        check::assert_short_help_fits(Arguments::command());
    }

    #[test]
    fn hints_are_for_what_the_command_does_not_have() {
        check::assert_hints(&PROGRAM, &Arguments::command());
    }

    #[test]
    fn unknown_option_of_another_tool_is_answered_with_the_right_one() {
        let text = usage_error(&["load", "http://127.0.0.1/", "-z", "4"]);
        assert!(text.contains("hint: set the duration"), "{text}");
        assert!(!text.contains("as a value"), "{text}");
    }

    #[test]
    fn unknown_option_without_a_hint_is_answered_with_a_similar_one() {
        let text = usage_error(&["serve", "--worker", "4"]);
        assert!(text.contains("'--workers'"), "{text}");
    }

    #[test]
    fn command_of_the_lab_is_answered_with_the_program_that_has_it() {
        let text = usage_error(&["study", "run", "inversion", "-o", "out"]);
        assert!(
            text.contains("hint: ") && text.contains("headway-lab study"),
            "{text}"
        );
    }

    #[test]
    fn option_of_the_papers_is_answered_with_the_program_that_has_it() {
        for option in ["--preset", "--eager-read=off", "--send-method"] {
            let text = usage_error(&["serve", option, "flash"]);
            assert!(
                text.contains("hint: ") && text.contains("headway-lab serve"),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_value_of_json_is_answered_with_the_value_in_the_help() {
        let text = usage_error(&["load", "--json=all", "http://127.0.0.1/"]);
        assert!(text.contains("[possible values: full]"), "{text}");
    }
}
