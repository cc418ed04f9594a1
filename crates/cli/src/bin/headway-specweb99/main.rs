//! The application of a SPECweb99-like measurement as a program behind a server: `specweb` with a
//! way to be asked.
//!
//! A server asks it in one of three ways: by starting it for each request (CGI), through
//! connections (FastCGI, [`fastcgi`]), or by handing it clients' sockets ([`direct`]). Which one,
//! it finds out for itself, as programs for these interfaces do. A CGI program never looks at its
//! words: a server makes them of a query without `=` (RFC 3875, 4.4), so they are a client's, and
//! not for choosing another way.
//!
//! Glue only. Where the documents are and, if they are not beside them, its own files, comes from
//! the environment. It says what went wrong on standard error, which the server writes into its
//! log.
#![forbid(unsafe_code)]

mod direct;
mod fastcgi;
mod words;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use headway_specweb::cgi::{self, Variables};
use headway_specweb::state::State;

use words::{Asked, USE};

/// The directory of the file set.
const ROOT: &str = "HEADWAY_SPECWEB99_ROOT";

/// The directory of the application's own files.
const STATE: &str = "HEADWAY_SPECWEB99_STATE";

/// Where its files are.
#[derive(Clone, Debug)]
struct Place {
    root: PathBuf,
    state: Option<PathBuf>,
}

impl Place {
    /// What the environment says, unless words said otherwise.
    fn new(root: Option<OsString>, state: Option<OsString>) -> Option<Place> {
        Some(Place {
            root: root.or_else(|| std::env::var_os(ROOT))?.into(),
            state: state.or_else(|| std::env::var_os(STATE)).map(PathBuf::from),
        })
    }

    fn open(&self) -> State {
        State::new(&self.root, self.state.clone())
    }
}

fn main() -> ExitCode {
    if std::env::var_os("REQUEST_METHOD").is_some() {
        return answer_once();
    }
    if std::env::var_os("HEADWAY_DIRECT").is_some() {
        return stay(None, None, |place| direct::serve(io::stdin(), place));
    }
    match words::read(std::env::args_os().skip(1)) {
        Ok(Asked::Help) => {
            // If nobody reads it, nobody wanted it.
            let _ = writeln!(io::stdout(), "{USE}");
            ExitCode::SUCCESS
        }
        Ok(Asked::FastCgi(words)) => stay(words.root, words.state, |place| {
            fastcgi::serve(fastcgi::listen(&words.address)?, place, words.connections)
        }),
        // The starter of a FastCGI application leaves its listening socket there (section 2.2 of
        // the specification).
        Ok(Asked::Nothing) if fastcgi::is_listening(&io::stdin()) => stay(None, None, |place| {
            fastcgi::serve(fastcgi::inherited()?, place, fastcgi::CONNECTIONS)
        }),
        Ok(Asked::Nothing) => said(USE, 2),
        Err(why) => said(
            &format!("headway-specweb99: {why}; --help says what it takes"),
            2,
        ),
    }
}

/// The life of a CGI program.
fn answer_once() -> ExitCode {
    let variables = Variables::of(|name| std::env::var(name).ok());
    let Some(place) = Place::new(None, None) else {
        let head = "Status: 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n";
        // Whether the server still reads or not, the exit code says that it failed.
        let _ = writeln!(io::stdout(), "{head}the program is not configured");
        return unconfigured(1);
    };
    let mut state = place.open();
    ended(cgi::run(
        &variables,
        &mut state,
        &mut io::stdin(),
        &mut io::stdout(),
    ))
}

/// The life of a program that answers one request after the other.
fn stay(
    root: Option<OsString>,
    state: Option<OsString>,
    serve: impl FnOnce(&Place) -> io::Result<()>,
) -> ExitCode {
    match Place::new(root, state) {
        Some(place) => ended(serve(&place)),
        None => unconfigured(2),
    }
}

fn unconfigured(code: u8) -> ExitCode {
    let words =
        format!("headway-specweb99: {ROOT} is not set; name the file set's directory there");
    said(&words, code)
}

fn ended(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The client went away in the middle, which is its right.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => said(&format!("headway-specweb99: {error}"), 1),
    }
}

fn said(words: &str, code: u8) -> ExitCode {
    say(words);
    ExitCode::from(code)
}

fn say(words: &str) {
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "{words}");
}
