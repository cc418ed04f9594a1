//! `headway load` and `headway profile` as their users see them: words, exit codes, files, and what
//! is said when a server or this machine does not play along. What the engine makes of each outcome
//! is tested in crates/load; here it is that a person learns of it.

pub mod responding;

pub mod agents;
mod baselines;
mod compares;
mod connections;
mod cookies;
mod effects;
mod http2;
mod https;
mod live;
mod machines;
mod profiles;
mod runs;
mod scenarios;
mod servers;
mod ssh;
mod threads;
mod uploads;
mod arguments;

use crate::serving;
use std::path::Path;
use std::process::{Command, Output};

use headway_test_support::skip;
use serde_json::Value;

/// Runs the binary; exit code, standard output, standard error.
fn finished(command: &mut Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = status.code().expect("it ended by itself");
    (code, text(stdout), text(stderr))
}

fn headway(arguments: &[&str]) -> (i32, String, String) {
    finished(serving::headway().args(arguments))
}

/// `headway load` that keeps nothing.
fn load(arguments: &[&str]) -> (i32, String, String) {
    finished(serving::headway().arg("load").args(arguments))
}

/// `headway load --json` that must succeed, in words that it measured at least something.
fn measured(arguments: &[&str]) -> Value {
    let (code, out, err) = load(&[arguments, &["--json"]].concat());
    assert_eq!(code, 0, "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
