//! Running the system's own programs (ip, tc, losetup …) for a lab.
//!
//! Each gets a process group of its own: Ctrl-C at a terminal must reach the lab, which then undoes
//! what it has made, and not the program that is just making or undoing it.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::LabError;

/// Where administrators' programs are when a user's path does not name it.
const SYSTEM_PATHS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The file of a program, on the path or where administrators' programs are.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_PATHS.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String, LabError> {
    let shown: Vec<_> = arguments
        .iter()
        .map(|argument| argument.as_ref().to_string_lossy())
        .collect();
    let failed = |why: String| LabError::Tool {
        command: format!("{program} {}", shown.join(" ")),
        why,
    };
    let file = find(program).ok_or_else(|| failed("not installed".into()))?;
    let output = Command::new(file)
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty());
    Err(failed(last.map_or_else(
        || output.status.to_string(),
        |line| line.trim().to_owned(),
    )))
}

/// Runs a command line whose words are separated by spaces; no argument holds one.
pub(crate) fn run_line(line: &str) -> Result<String, LabError> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    run(program, &words.collect::<Vec<_>>())
}
