//! The words of somebody who starts the program himself. Few enough to be read by hand: the program
//! that a server starts for each request carries what is linked into it.

use std::ffi::OsString;

use crate::fastcgi::CONNECTIONS;

pub(crate) const USE: &str = "\
The application of a SPECweb99-like measurement (headway load --specweb99), for a web server to run.

As a CGI program, or as the program of a direct location of headway serve, it takes no words: the server starts it.
As a FastCGI application it is started by hand, or by a server that leaves a listening socket as standard input:

  headway-specweb99 --fastcgi ADDRESS [--connections N] [--root DIR] [--state DIR]

  --fastcgi ADDRESS   listen there: unix:/run/specweb99.sock or 127.0.0.1:9000
  --connections N     answer so many connections at once, each in a thread of its own; others wait [default: 256]
  --root DIR          the directory of a file set [default: HEADWAY_SPECWEB99_ROOT]
  --state DIR         its own files, which it writes [default: HEADWAY_SPECWEB99_STATE, or .specweb99 in the file set]
  --help              say this

The file set is made by: headway fileset create DIR --profile specweb99-dynamic --connections N
Whoever may ask it may also give the housekeeping commands: do not leave it open to others.
Exit codes: 0 done, 1 failed, 2 wrong use.";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// What it takes.
    Help,
    /// To listen for web servers.
    FastCgi(FastCgi),
    /// Nothing.
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

/// Reads the words after the program's name.
pub(crate) fn read(words: impl Iterator<Item = OsString>) -> Result<Asked, String> {
    let (mut words, mut count) = (words, 0);
    let (mut address, mut connections) = (None, None);
    let (mut root, mut state) = (None, None);
    while let Some(word) = words.next() {
        count += 1;
        let shown = word.to_string_lossy().into_owned();
        let place = match shown.as_str() {
            "--help" | "-h" => return Ok(Asked::Help),
            "--fastcgi" => &mut address,
            "--connections" => &mut connections,
            "--root" => &mut root,
            "--state" => &mut state,
            _ => return Err(format!("{shown}: not known")),
        };
        let value = words.next().ok_or(format!("{shown} needs a value"))?;
        if place.replace(value).is_some() {
            return Err(format!("{shown} is given twice"));
        }
    }
    let Some(address) = address else {
        return match count {
            0 => Ok(Asked::Nothing),
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
    Ok(Asked::FastCgi(FastCgi {
        address: address.to_string_lossy().into_owned(),
        connections,
        root,
        state,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Result<Asked, String> {
        read(words.split_whitespace().map(OsString::from))
    }

    #[test]
    fn words_are_understood_or_named_when_they_are_wrong() {
        assert_eq!(asked(""), Ok(Asked::Nothing));
        assert_eq!(asked("--fastcgi x --help"), Ok(Asked::Help));
        let whole = asked("--fastcgi unix:/x --connections 9 --root /r --state /s");
        let expected = FastCgi {
            address: "unix:/x".into(),
            connections: 9,
            root: Some("/r".into()),
            state: Some("/s".into()),
        };
        assert_eq!(whole, Ok(Asked::FastCgi(expected)));
        for (words, why) in [
            ("--fastcgi", "needs a value"),
            ("--fastcgi a --fastcgi b", "twice"),
            ("--root /r", "--fastcgi ADDRESS is missing"),
            ("--fastcgi a --connections 0", "1 to 4096"),
            ("/dir00042/class1_5", "not known"),
        ] {
            let error = asked(words).expect_err(words);
            assert!(error.contains(why), "{error}");
        }
    }
}
