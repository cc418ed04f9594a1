//! Why a command did not do its work, and how that is said.

use std::io::Write;
use std::process::ExitCode;

use headway_latency::format::printable;

use crate::Program;
use crate::plain_errors::plain;

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Failure {
    /// A usage error: exit code 2.
    Usage(String),
    /// The command line is right, the work failed: exit code 1.
    Runtime(anyhow::Error),
    /// The work was done, and its result does not meet a condition of the user: exit code 3.
    Unmet(String),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Runtime(error.into())
    }
}

impl Program {
    /// The exit code of a command; a failure is printed.
    pub fn exit_code(&self, done: Result<(), Failure>) -> ExitCode {
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => self.failed(&failure),
        }
    }

    /// Says what failed and how.
    pub fn failed(&self, failure: &Failure) -> ExitCode {
        let (code, text) = match failure {
            Failure::Usage(text) => (2, text.clone()),
            Failure::Runtime(error) => (1, sentence(error)),
            Failure::Unmet(text) => (3, text.clone()),
        };
        // If standard error is closed, the exit code still says it.
        plain(&text).lines().for_each(|line| {
            drop(writeln!(
                std::io::stderr(),
                "{}: {}",
                self.name,
                printable(line)
            ))
        });
        ExitCode::from(code)
    }
}

/// An error and its causes in one line; a cause that the error before it ends with is not said
/// twice.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}
