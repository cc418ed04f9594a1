//! Limits how many connections a server accepts per wakeup, without a change to the server.
//!
//! A small library, compiled when it is needed and loaded by `LD_PRELOAD`, stands before `accept` and
//! the calls that wait for events. It counts in a file that this process reads. So it is known
//! whether it has any effect: a server that is statically linked, makes its system calls itself, or
//! accepts by io_uring passes by it.
//!
//! Source: Brecht and Ostrowski, section 7 (TUX with at most 25 connections per wakeup).

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::ServerError;

const SOURCE: &str = include_str!("accept_limit.c");

/// The counters of the library, in its order.
const COUNTERS: usize = 4;

/// What the library has seen, over all processes of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AcceptReport {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Accept calls that were answered with an empty queue.
    pub limited: u64,
    /// The most connections after one wait for events.
    pub largest_batch: u64,
    /// Waits for events that have returned.
    pub waits: u64,
}

/// The library of one server, in its folder.
#[derive(Debug)]
pub(super) struct AcceptLimit {
    library: PathBuf,
    report: PathBuf,
    limit: usize,
}

impl AcceptLimit {
    /// Compiles the library into `folder`, for at most `limit` connections per wakeup; 0 only counts.
    pub(super) fn make(limit: usize, folder: &Path) -> Result<AcceptLimit, ServerError> {
        let failed = |why: String| ServerError::AcceptLimit { why };
        let written = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).map_err(|error| ServerError::prepare("write", path, error))
        };
        let (source, library) = (
            folder.join("accept_limit.c"),
            folder.join("accept_limit.so"),
        );
        written(&source, SOURCE.as_bytes())?;
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let compiled = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output();
        let said = match compiled {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(said) = said {
            let compiler = compiler.display();
            return Err(failed(format!(
                "{compiler} does not compile it: {said}; install a C compiler, or set CC"
            )));
        }
        let report = folder.join("accept_report");
        written(&report, &[0; 8 * COUNTERS])?;
        // Processes that have given up root's rights may load the library again.
        fs::set_permissions(&report, fs::Permissions::from_mode(0o666))
            .map_err(|error| ServerError::prepare("open up", &report, error))?;
        Ok(AcceptLimit {
            library,
            report,
            limit,
        })
    }

    /// The variables of the server's environment.
    pub(super) fn variables(&self) -> [(&'static str, OsString); 3] {
        [
            ("LD_PRELOAD", self.library.clone().into()),
            ("HEADWAY_ACCEPT_LIMIT", self.limit.to_string().into()),
            ("HEADWAY_ACCEPT_REPORT", self.report.clone().into()),
        ]
    }

    /// What was counted so far.
    pub(super) fn report(&self) -> Result<AcceptReport, ServerError> {
        let bytes = fs::read(&self.report)
            .map_err(|error| ServerError::prepare("read", &self.report, error))?;
        let number = |at: usize| {
            let eight = bytes.get(8 * at..8 * at + 8);
            eight
                .and_then(|eight| eight.try_into().ok())
                .map_or(0, u64::from_ne_bytes)
        };
        Ok(AcceptReport {
            accepted: number(0),
            limited: number(1),
            largest_batch: number(2),
            waits: number(3),
        })
    }

    /// Fails if the server has answered a request and the library has seen no connection.
    pub(super) fn expect_effect(&self, program: &Path, pids: &[i32]) -> Result<(), ServerError> {
        match self.report()?.accepted {
            0 => Err(ServerError::AcceptLimit {
                why: why_unseen(program, pids),
            }),
            _ => Ok(()),
        }
    }
}

/// Why the library sees nothing of a program.
fn why_unseen(program: &Path, pids: &[i32]) -> String {
    let name = program.display();
    if is_static(program) == Some(true) {
        return format!(
            "it has no effect: {name} is statically linked, so nothing can be loaded before it"
        );
    }
    match pids.iter().any(|pid| has_io_uring(*pid)) {
        true => format!("it has no effect: {name} accepts connections by io_uring, without a call"),
        false => format!(
            "it has no effect: {name} has answered a request without a call of accept in the C library"
        ),
    }
}

/// Whether an ELF program names no interpreter, which would load libraries; `None` if it is no such
/// program.
fn is_static(program: &Path) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    let bytes = fs::read(program).ok()?;
    let number = |at: usize, length: usize| {
        let part = bytes.get(at..at + length)?;
        Some(
            part.iter()
                .rev()
                .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    if bytes.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    // Of the 64-bit header: where the program headers are, their size and number (elf(5)).
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = (0..count).map(|at| number((start + at * size) as usize, 4));
    Some(!kinds.any(|kind| kind == Some(u64::from(INTERPRETER))))
}

fn has_io_uring(pid: i32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut targets = open
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok());
    targets.any(|target| target.as_os_str() == "anon_inode:[io_uring]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(folder: &Path, source: &str, options: &[&str]) -> Option<PathBuf> {
        let (file, program) = (folder.join("program.c"), folder.join("program"));
        fs::write(&file, source).expect("a file");
        let made = Command::new("cc")
            .args(options)
            .arg("-o")
            .args([&program, &file])
            .status();
        made.is_ok_and(|status| status.success()).then_some(program)
    }

    #[test]
    fn reason_names_a_static_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = "int main(void) { return 0; }";
        let program = compiled(folder.path(), source, &["-static"]).expect("cc -static");
        assert_eq!(is_static(&program), Some(true));
        let why = why_unseen(&program, &[]);
        assert!(why.contains("statically linked"), "{why}");
        let program = compiled(folder.path(), source, &[]).expect("cc");
        assert_eq!(is_static(&program), Some(false));
        assert!(why_unseen(&program, &[]).contains("without a call of accept"));
        assert_eq!(is_static(Path::new("/etc/passwd")), None);
    }

    /// Needs: io_uring, which a kernel or a container may forbid
    #[test]
    fn reason_names_io_uring_when_a_process_has_one() {
        let Ok(_ring) = headway_os::ring::PollRing::new(8, 16) else {
            return headway_test_support::skip(
                "reason_names_io_uring_when_a_process_has_one",
                "io_uring is not permitted",
            );
        };
        let why = why_unseen(Path::new("/bin/sh"), &[std::process::id().cast_signed()]);
        assert!(why.contains("io_uring"), "{why}");
    }

    #[test]
    fn compiler_that_is_absent_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let gone = folder.path().join("gone");
        let error = AcceptLimit::make(25, &gone).expect_err("no folder");
        assert!(error.to_string().contains("accept_limit.c"), "{error}");
    }
}
