//! Instructions of user code for a request, counted by valgrind's callgrind, where no CPU
//! counts them.
//!
//! A server is run twice under callgrind, and serves more of the same requests the second time; the
//! difference belongs to those requests, without start and end. What the kernel does for them is
//! not in it: callgrind sees user code alone. Nor does it tell time.
//!
//! Source: the callgrind manual; the file format's `summary:` line is the cost of the whole
//! program.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use headway_lab::servers::{Kind, ServerSpec};

use super::client::Running;
use super::outcome::Instructions;
use super::run::RunError;
use super::workspace::{Confined, Workspace};

/// Requests of the two runs. The first also loads what is loaded once: buffers, the paths of the
/// code, and nearly all of some thousand names, which cost a server that remembers them more than
/// one that opens them again each time.
const REQUESTS: [u64; 2] = [20_000, 24_000];

/// Connections: enough that a server meets more than one at once, few enough that none of its
/// processes does nothing but wait.
const CONNECTIONS: usize = 4;

/// A run under callgrind is fifty times as slow as without.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// A part of what valgrind says when it does not know openat2(2), whose number is the same on all
/// architectures.
const UNKNOWN_OPENAT2: &str = "syscall: 437";

/// Counts for one server.
///
/// # Errors
/// [`RunError::Failed`] with what to do: valgrind is not installed, the server does not run under
/// it.
pub(super) fn instructions(
    spec: &ServerSpec,
    confined: &Confined,
    workspace: &Workspace,
    interrupted: &AtomicBool,
) -> Result<Instructions, RunError> {
    check_installed()?;
    let mut spec = spec.clone();
    spec.sizes.workers = 1;
    spec.sizes.clients = CONNECTIONS * 2;
    if spec.kind.is_ours() {
        // /proc/self/exe is valgrind's own program there.
        let program = headway_lab::headway_lab().display().to_string();
        spec.arguments = vec!["--program".into(), program];
        // valgrind 3.19 does not know openat2(2), and hands on what is asked for through a ring.
        let openings = ["--helpers", "io_uring", "--opening", "pass-descriptor"];
        spec.arguments.extend(openings.map(String::from));
    }
    let [few, many] = [
        counted(&spec, REQUESTS[0], confined, workspace, interrupted)?,
        counted(&spec, REQUESTS[1], confined, workspace, interrupted)?,
    ];
    let requests = (many.requests - few.requests) as f64;
    let bytes = many.bytes - few.bytes;
    let instructions = many.instructions as f64 - few.instructions as f64;
    if requests <= 0.0 || instructions <= 0.0 {
        return Err(RunError::Failed(format!(
            "callgrind counted {} instructions for {} requests and {} for {}, of which no cost of a request follows",
            few.instructions, few.requests, many.instructions, many.requests
        )));
    }
    Ok(Instructions {
        per_request: Some(instructions / requests),
        per_byte: (bytes > 0.0).then_some(instructions / bytes),
        requests: [few.requests, many.requests],
        ..Instructions::default()
    })
}

fn check_installed() -> Result<(), RunError> {
    let version = Command::new("valgrind").arg("--version").output();
    match version {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(RunError::Failed(
            "valgrind is not installed; scripts/setup installs it".into(),
        )),
    }
}

/// A whole life of a server.
struct Life {
    instructions: u64,
    requests: u64,
    bytes: f64,
}

fn counted(
    spec: &ServerSpec,
    requests: u64,
    confined: &Confined,
    workspace: &Workspace,
    interrupted: &AtomicBool,
) -> Result<Life, RunError> {
    let folder = tempfile::Builder::new()
        .prefix("callgrind-")
        .tempdir_in(workspace.servers());
    let folder =
        folder.map_err(|error| RunError::Failed(format!("a folder for callgrind: {error}")))?;
    // Servers have become other users when their counts are written, some into files that root has
    // made for them.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(folder.path(), open)
        .map_err(|error| RunError::Failed(format!("{}: {error}", folder.path().display())))?;
    let files = folder.path().join("counts.%p").display().to_string();
    let before = [
        "valgrind",
        "--tool=callgrind",
        "--quiet",
        "--trace-children=yes",
        // Its pipes would belong to the user that a server was at its start.
        "--vgdb=no",
        // The whole program's cost is wanted, not that of its lines.
        "--dump-line=no",
        &format!("--callgrind-out-file={files}"),
    ];
    let started = confined.start(spec, &workspace.servers(), &before.map(String::from));
    let server = started.map_err(understood)?;
    open_counts(folder.path())?;
    let run = folder.path().join("run");
    let mut command = Command::new(headway_lab::headway());
    command
        .args([
            "load",
            &format!("http://{}/set/", server.address()),
            "--quiet",
            "--closed",
        ])
        .args(["-c", &CONNECTIONS.to_string(), "-n", &requests.to_string()])
        .args(["--requests-per-connection", "unlimited", "--timeout", "60s"])
        .arg("--fileset")
        .arg(workspace.set())
        .arg("-o")
        .arg(&run);
    Running::start(&mut command)?.finish(Instant::now() + RUN_TIMEOUT, interrupted)?;
    server
        .stop()
        .map_err(|error| RunError::Failed(error.to_string()))?;
    let summary =
        headway_latency::Run::open(&run).map_err(|error| RunError::Failed(error.to_string()))?;
    let summary = summary.description().summary.clone().unwrap_or_default();
    if summary.errors > 0 {
        return Err(RunError::Failed(format!(
            "{} of {} requests failed under callgrind",
            summary.errors, summary.requests
        )));
    }
    Ok(Life {
        instructions: sum(folder.path(), spec.kind)?,
        requests: summary.requests,
        bytes: summary.throughput_bytes_per_s * summary.duration_s,
    })
}

/// A server that needs a system call which is younger than valgrind: its wrapper answers ENOSYS,
/// and says so in twenty lines.
fn understood(error: RunError) -> RunError {
    match error {
        RunError::Failed(why) if why.contains(UNKNOWN_OPENAT2) => RunError::Failed(
            "it does not serve under this valgrind, which does not know openat2(2); a newer one may"
                .into(),
        ),
        other => other,
    }
}

/// Lets all users write the files that callgrind has made at the start: a server that gives up
/// root's rights writes its counts as another user.
fn open_counts(folder: &Path) -> Result<(), RunError> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            fs::set_permissions(&path, open)
                .map_err(|error| RunError::Failed(format!("{}: {error}", path.display())))?;
        }
    }
    Ok(())
}

/// The cost of all programs that left their counts in a folder.
fn sum(folder: &Path, kind: Kind) -> Result<u64, RunError> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("counts."));
    let mut instructions = 0;
    let mut programs = 0;
    for file in files {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        let Some(cost) = cost(&text) else {
            // The rest would be a part of a figure.
            return Err(RunError::Failed(format!(
                "a process of {kind} left no counts of callgrind; it was ended before it could write them"
            )));
        };
        instructions += cost;
        programs += 1;
    }
    match programs {
        0 => Err(RunError::Failed(format!(
            "{kind} left no counts of callgrind; it was ended before it could write them"
        ))),
        _ => Ok(instructions),
    }
}

/// The cost of the program that a file of callgrind's is about: its summary, or the totals of its
/// parts; `None` if it says neither.
fn cost(text: &str) -> Option<u64> {
    let number = |line: &str| line.split_whitespace().next()?.parse::<u64>().ok();
    let of = |word: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(word));
        lines.filter_map(number).reduce(|sum, more| sum + more)
    };
    of("summary:").or_else(|| of("totals:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrind_cost_is_read_from_the_summary() {
        let text = "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\npid: 7\npart: 1\n\nevents: Ir\nsummary: 7835622\n\n\
                    fn=(1) main\n3 12\n\ntotals: 7836030\n";
        assert_eq!(cost(text), Some(7_835_622));
        assert_eq!(cost("events: Ir\ntotals: 12\n"), Some(12));
        assert_eq!(cost("nothing"), None);
    }

    #[test]
    fn reason_is_short_for_a_call_unknown_to_valgrind() {
        let with_log =
            |line: &str| RunError::Failed(format!("headway answered 500. It said:\n{line}"));
        let known = understood(with_log(
            "--7-- WARNING: unhandled amd64-linux syscall: 437",
        ));
        assert!(!known.to_string().contains("500"), "{known}");
        let other = understood(with_log(
            "--7-- WARNING: unhandled amd64-linux syscall: 9999",
        ));
        assert!(other.to_string().contains("500"), "{other}");
    }

    #[test]
    fn callgrind_adds_all_processes_of_a_server() {
        let folder = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("counts.1", "summary: 5\n"),
            ("counts.2", "summary: 7\n"),
            ("other", "summary: 100\n"),
        ] {
            fs::write(folder.path().join(name), text).expect("written");
        }
        assert_eq!(sum(folder.path(), Kind::Nginx).expect("counts"), 12);
        let empty = tempfile::tempdir().expect("a directory");
        let error = sum(empty.path(), Kind::Nginx).expect_err("nothing");
        assert!(error.to_string().contains("left no counts"), "{error}");
    }
}
