//! Command-line arguments, for a person who starts the program. Parsed by hand, because a CGI
//! program pays for everything that is linked into it at each request.

use std::ffi::OsString;

use crate::fastcgi::CONNECTIONS;

pub(crate) const USAGE: &str = "\
The application of a SPECweb99-like benchmark (headway-lab specweb99), to be run by a web server.

As a CGI program, or as the program of a direct location of headway serve, it is started by the server without arguments.
As a FastCGI application, start it by hand, or by a process manager that passes the listening socket as standard input:

  headway-specweb99 --fastcgi ADDRESS [--connections N] [--root DIR] [--state DIR]

  --fastcgi ADDRESS   listen on unix:/run/specweb99.sock or 127.0.0.1:9000
  --connections N     most connections at once, each with a thread of its own; others wait [default: 256]
  --root DIR          the directory of the file set [default: HEADWAY_SPECWEB99_ROOT]
  --state DIR         the application's own files [default: HEADWAY_SPECWEB99_STATE, or .specweb99 in the file set]
  --help              print this text

Create the file set with: headway fileset create DIR --profile specweb99-dynamic --connections N
Clients may also send the housekeeping commands, so do not expose the application to others.
Exit codes: 0 success, 1 failure, 2 usage error.";

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The usage text.
    Help,
    /// Listening for web servers.
    FastCgi(FastCgi),
    /// Does nothing.
    Nothing,
}

/// Where a FastCGI application listens, and where its files are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FastCgi {
    pub(crate) address: String,
    pub(crate) connections: usize,
    pub(crate) root: Option<OsString>,
    pub(crate) state: Option<OsString>,
}

/// Parses the arguments after the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Action, String> {
    let (mut arguments, mut count) = (arguments, 0);
    let (mut address, mut connections) = (None, None);
    let (mut root, mut state) = (None, None);
    while let Some(word) = arguments.next() {
        count += 1;
        let shown = word.to_string_lossy().into_owned();
        let value_of = match shown.as_str() {
            "--help" | "-h" => return Ok(Action::Help),
            "--fastcgi" => &mut address,
            "--connections" => &mut connections,
            "--root" => &mut root,
            "--state" => &mut state,
            _ => return Err(format!("unknown argument: {shown}")),
        };
        let value = arguments.next().ok_or(format!("{shown} needs a value"))?;
        if value_of.replace(value).is_some() {
            return Err(format!("{shown} is given twice"));
        }
    }
    let Some(address) = address else {
        return match count {
            0 => Ok(Action::Nothing),
            _ => Err("--fastcgi ADDRESS is missing".to_owned()),
        };
    };
    let connections = match connections {
        None => CONNECTIONS,
        Some(text) => {
            let shown = text.to_string_lossy();
            let number = shown.parse::<usize>().ok();
            let number = number.filter(|number| (1..=4096).contains(number));
            number.ok_or(format!("--connections {shown}: from 1 to 4096"))?
        }
    };
    Ok(Action::FastCgi(FastCgi {
        address: address.to_string_lossy().into_owned(),
        connections,
        root,
        state,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Action, String> {
        parse(arguments.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_are_parsed_or_rejected_with_a_reason() {
        assert_eq!(parsed(""), Ok(Action::Nothing));
        assert_eq!(parsed("--fastcgi x --help"), Ok(Action::Help));
        let whole = parsed("--fastcgi unix:/x --connections 9 --root /r --state /s");
        let expected = FastCgi {
            address: "unix:/x".into(),
            connections: 9,
            root: Some("/r".into()),
            state: Some("/s".into()),
        };
        assert_eq!(whole, Ok(Action::FastCgi(expected)));
        for (arguments, why) in [
            ("--fastcgi", "needs a value"),
            ("--fastcgi a --fastcgi b", "twice"),
            ("--root /r", "--fastcgi ADDRESS is missing"),
            ("--fastcgi a --connections 0", "1 to 4096"),
            ("/dir00042/class1_5", "unknown argument"),
        ] {
            let error = parsed(arguments).expect_err(arguments);
            assert!(error.contains(why), "{error}");
        }
    }
}
