//! The SPECweb99-like application as a program behind a server: `specweb` with three interfaces.
//!
//! A server starts it for each request (CGI), connects to it (FastCGI, [`fastcgi`]), or hands it
//! clients' sockets ([`direct`]). The program detects which, as programs for these interfaces do.
//! As a CGI program it ignores its arguments: some servers make them from a query without `=` (RFC
//! 3875, 4.4), so a client could choose them.
//!
//! The environment names the documents and, optionally, the application's own files. Errors go to
//! standard error, which the server logs.
#![forbid(unsafe_code)]

mod arguments;
mod direct;
mod fastcgi;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use headway_specweb::cgi::{self, Variables};
use headway_specweb::state::State;

use arguments::{Action, USAGE};

/// The directory of the file set.
const ROOT: &str = "HEADWAY_SPECWEB99_ROOT";

/// The directory of the application's own files.
const STATE: &str = "HEADWAY_SPECWEB99_STATE";

/// Where its files are.
#[derive(Clone, Debug)]
struct Directories {
    root: PathBuf,
    state: Option<PathBuf>,
}

impl Directories {
    /// Uses the environment unless arguments say otherwise.
    fn new(root: Option<OsString>, state: Option<OsString>) -> Option<Directories> {
        Some(Directories {
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
        return run_cgi();
    }
    if std::env::var_os("HEADWAY_DIRECT").is_some() {
        return run_many(None, None, |directories| {
            direct::serve(io::stdin(), directories)
        });
    }
    match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Action::Help) => {
            // A closed standard output is no error here.
            let _ = writeln!(io::stdout(), "{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Action::FastCgi(options)) => run_many(options.root, options.state, |directories| {
            fastcgi::serve(
                fastcgi::listen(&options.address)?,
                directories,
                options.connections,
            )
        }),
        // A FastCGI process manager passes the listening socket as standard input (section 2.2 of
        // the specification).
        Ok(Action::Nothing) if fastcgi::is_listening(&io::stdin()) => {
            run_many(None, None, |directories| {
                fastcgi::serve(
                    fastcgi::inherited_listener()?,
                    directories,
                    fastcgi::CONNECTIONS,
                )
            })
        }
        Ok(Action::Nothing) => fail(USAGE, 2),
        Err(why) => fail(&format!("headway-specweb99: {why}; see --help"), 2),
    }
}

/// Runs as a CGI program.
fn run_cgi() -> ExitCode {
    let variables = Variables::of(|name| std::env::var(name).ok());
    let Some(directories) = Directories::new(None, None) else {
        let head = "Status: 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n";
        // The exit code reports the failure even if the server does not read.
        let _ = writeln!(io::stdout(), "{head}the program is not configured");
        return unconfigured(1);
    };
    let mut state = directories.open();
    exit_code(cgi::run(
        &variables,
        &mut state,
        &mut io::stdin(),
        &mut io::stdout(),
    ))
}

/// Runs as a program that answers many requests.
fn run_many(
    root: Option<OsString>,
    state: Option<OsString>,
    serve: impl FnOnce(&Directories) -> io::Result<()>,
) -> ExitCode {
    match Directories::new(root, state) {
        Some(directories) => exit_code(serve(&directories)),
        None => unconfigured(2),
    }
}

fn unconfigured(code: u8) -> ExitCode {
    let message =
        format!("headway-specweb99: {ROOT} is not set; set it to the directory of the file set");
    fail(&message, code)
}

fn exit_code(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A client that disconnects is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&format!("headway-specweb99: {error}"), 1),
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    log(message);
    ExitCode::from(code)
}

fn log(message: &str) {
    // If standard error is closed, nothing can be reported.
    let _ = writeln!(io::stderr(), "{message}");
}
