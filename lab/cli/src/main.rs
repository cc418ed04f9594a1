//! The `headway-lab` command: one file per sub-command, glue only; the libraries do the work.
//!
//! Loads and file sets are made by the command `headway`, which is installed beside it. Servers are
//! this command itself: its `serve` has the servers of the papers and the applications of the lab.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use headway_cli_support::command_line::{self, Elsewhere};
use headway_cli_support::serve::Contents;
use headway_cli_support::{Failure, Group, Program, Shell, keys, output, serve, signals};
use headway_server::Extensions;
use headway_server::config::keys::{Topic, reference};
use headway_server::research::RESEARCH;
use headway_specweb_handler::APPLICATIONS;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod lab;
mod study;
mod specweb99;
mod counters;
mod schedule;

const PROGRAM: Program = Program {
    name: "headway-lab",
    groups: &[
        Group {
            name: "Lab",
            commands: &[
                "up", "fill", "exec", "disk", "write", "cool", "status", "down", "check",
            ],
        },
        Group {
            name: "Experiments",
            commands: &["study", "specweb99", "serve"],
        },
        Group {
            name: "CPUs",
            commands: &["counters", "schedule"],
        },
        Group {
            name: "Other",
            commands: &["version", "completions", "help"],
        },
    ],
    examples: "  headway-lab check                    which parts of a lab this machine can make
  headway-lab up                       a lab named `lab`: slow disk, 512 MiB, 1 Gbit/s
  headway-lab fill --fileset 1.5GB     put a file set on its disk, at full speed
  headway-lab exec -- headway serve /run/headway-lab/lab/disk/files/set --listen :8080 --user root &
  headway-lab exec --side client -- headway load http://198.18.0.1:8080/ -n 1000
  headway-lab disk stall 10s           the disk answers nothing for ten seconds
  headway-lab down                     end what runs in the lab, and remove it
  headway-lab study run inversion -o out
                                       repeat an experiment of the papers

A lab outlives the command that made it, as a container does; `down` removes it, also after a crash.
",
    hints: &[(
        "specweb99",
        &["--port", "-p", "--bind", "--host"],
        "give the address in the URL: http://HOST:PORT/path",
    )],
    elsewhere: &[
        (
            "load",
            "load-test with headway load URL; put files on a lab's disk with headway-lab fill",
        ),
        ("profile", "measure a profile with headway profile URL"),
        ("fileset", "make file sets with headway fileset create DIR"),
        (
            "report",
            "draw runs with headway report RUN, and studies with headway-lab study report",
        ),
        (
            "lab",
            "leave out the word: headway-lab up, headway-lab exec, headway-lab down",
        ),
    ],
};

const SERVE_ABOUT: &str = "Serve as headway serve or the papers' servers; has specweb99";

/// Experiments with servers: a lab with a slow disk and little memory, studies, CPU counters
#[derive(Debug, Parser)]
#[command(name = "headway-lab", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Lab(lab::Action),
    Study(study::Arguments),
    Specweb99(Box<specweb99::Arguments>),
    #[command(about = SERVE_ABOUT)]
    Serve(Box<serve::Arguments<Server>>),
    Counters(counters::Arguments),
    Schedule(Box<schedule::Arguments>),
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
    /// Writes the generated page of the research book.
    #[command(hide = true)]
    Reference {
        /// The root of a checkout.
        root: PathBuf,
    },
    /// Beside `counters run`: restores the machine's settings if that command is killed.
    #[command(hide = true)]
    CountersGuard {
        /// Where the changed settings are recorded.
        directory: PathBuf,
    },
}

/// The server for research.
#[derive(Debug)]
struct Server;

impl Contents for Server {
    const EXTENSIONS: Extensions = Extensions {
        applications: &APPLICATIONS,
        research: Some(&RESEARCH),
    };
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
        // The exit code of `exec` is that of its command.
        Command::Lab(action) => {
            return lab::run(&action).unwrap_or_else(|failure| PROGRAM.failed(&failure));
        }
        Command::Study(arguments) => study::run(&arguments),
        Command::Specweb99(arguments) => specweb99::run(&arguments),
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Counters(arguments) => counters::run(&arguments),
        Command::Schedule(arguments) => schedule::run(&arguments),
        Command::Version => PROGRAM.version(),
        Command::Completions { shell } => PROGRAM.completions(shell, Arguments::command()),
        Command::Man { directory } => PROGRAM.man(&directory, Arguments::command()),
        Command::Reference { root } => write_reference(&root),
        Command::CountersGuard { directory } => counters::guard(&directory),
    };
    PROGRAM.exit_code(done)
}

/// Writes the generated pages of the research book below a checkout's root.
fn write_reference(root: &Path) -> Result<(), Failure> {
    let title = "Command line of headway-lab";
    let all = reference(Server::EXTENSIONS.known());
    let elsewhere = Elsewhere {
        command: "serve",
        options: Arguments::command()
            .find_subcommand("serve")
            .into_iter()
            .flat_map(clap::Command::get_arguments)
            .filter_map(|option| option.get_long().map(str::to_owned))
            .collect(),
        text: "Its options are those of `headway serve`, and every key of the table `[research]`\n\
               of the [configuration](configuration.md).",
    };
    let research = all.into_iter().filter(|key| key.topic == Topic::Research);
    let configuration = format!(
        "# Configuration for research\n{}",
        keys::sections(research.collect())
    );
    let command_line = command_line::page(title, &PROGRAM, Arguments::command(), Some(&elsewhere));
    let pages = [
        ("command-line.md", command_line),
        ("configuration.md", configuration),
    ];
    let directory = root.join("docs/research/src");
    for (name, text) in pages {
        let path = directory.join(name);
        std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use headway_cli_support::check;

    use super::{Arguments, PROGRAM};

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
    fn invalid_number_is_a_usage_error_in_plain_words() {
        let arguments = ["schedule", "m.csv", "--rounds", "many"];
        let text = check::usage_error(&PROGRAM, Arguments::command(), &arguments);
        assert!(text.contains("not a whole number"), "{text}");
        assert!(!text.contains("invalid digit"), "{text}");
    }
}
