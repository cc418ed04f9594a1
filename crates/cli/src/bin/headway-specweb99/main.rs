//! The CGI program of a SPECweb99-like measurement: `specweb`'s application behind CGI/1.1, one request a process.
//!
//! Glue only. A CGI program gets no words of a user, so what it has to know comes from the environment: where the documents are and, if they
//! are not beside them, its own files. It says what went wrong on standard error, which the server writes into its log.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use specweb::cgi::{self, Variables};
use specweb::state::State;

/// The directory of the file set.
const ROOT: &str = "HEADWAY_SPECWEB99_ROOT";

/// The directory of the application's own files.
const STATE: &str = "HEADWAY_SPECWEB99_STATE";

const USE: &str = "\
This is a CGI program: a web server starts it for a request, with that request in its environment.
It answers as a SPECweb99-like measurement wants it (headway load --specweb99) and needs
  HEADWAY_SPECWEB99_ROOT    the directory of a file set (headway fileset create DIR --profile specweb99-dynamic --connections N)
  HEADWAY_SPECWEB99_STATE   its own files, which it writes [default: .specweb99 in that directory]";

fn main() -> ExitCode {
    let variables = Variables::of(|name| std::env::var(name).ok());
    if std::env::var_os("REQUEST_METHOD").is_none() {
        return said(USE, 2);
    }
    let Some(root) = std::env::var_os(ROOT) else {
        let head = "Status: 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n";
        // Whether the server still reads or not, the exit code says that it failed.
        let _ = writeln!(io::stdout(), "{head}the program is not configured");
        return said(
            &format!("headway-specweb99: {ROOT} is not set; name the file set's directory there"),
            1,
        );
    };
    let mut state = State::new(root, std::env::var_os(STATE).map(PathBuf::from));
    match cgi::run(&variables, &mut state, &mut io::stdin(), &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        // The client went away in the middle, which is its right.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => said(&format!("headway-specweb99: {error}"), 1),
    }
}

fn said(words: &str, code: u8) -> ExitCode {
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "{words}");
    ExitCode::from(code)
}
