//! Standard output of every sub-command: a reader that has seen enough is no failure, anything else
//! is, by name.
//!
//! `headway report -o - | head` closes the pipe while we write. Programs in C are ended by SIGPIPE
//! then. Rust programs ignore that signal and get EPIPE, which would become an error message and
//! exit code 1. Here a write to a closed pipe counts as success.

use std::io::{self, ErrorKind, StdoutLock, Write};

use headway_latency::format::printable_text;

use crate::Failure;

/// Standard output, locked.
pub struct Output(StdoutLock<'static>);

/// To write to piece by piece. What has been written by the end of a line is out.
pub fn stdout() -> Output {
    Output(io::stdout().lock())
}

/// Writes a text for people. What a terminal would obey is escaped, since names of files and of
/// servers may be in it.
pub fn print(text: &str) -> Result<(), Failure> {
    print_data(&printable_text(text))
}

/// Writes what programs read, such as JSON, as it is.
pub fn print_data(text: &str) -> Result<(), Failure> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes);
        without_broken_pipe(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        without_broken_pipe(flushed, ())
    }
}

/// Names standard output in the error; returns `done` if the reader has closed it.
fn without_broken_pipe<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(done),
        // `write_all` tries again, and needs to know it by the kind.
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        other => other.map_err(|error| {
            let text = format!("writing to standard output: {error}");
            io::Error::new(error.kind(), text)
        }),
    }
}
