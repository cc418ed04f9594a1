//! Errors of attaching, with texts that say what to do.

use std::error::Error;
use std::io;

/// Why a process cannot be observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No clang when this program was built.
    #[error(
        "this program was built without its BPF part: {why}; install clang (Debian: `apt install clang`) and build \
         again"
    )]
    NotBuilt {
        /// The failure of the build.
        why: String,
    },
    /// The kernel does not let this user load programs.
    #[error("loading BPF programs is not permitted: {why}")]
    NotPermitted {
        /// Which capability or setting is in the way.
        why: String,
    },
    /// The kernel does not describe its types.
    #[error(
        "/sys/kernel/btf/vmlinux: {why}; the kernel has to be built with CONFIG_DEBUG_INFO_BTF, as those of Debian 11, \
         Ubuntu 20.10, RHEL 8.2 and later are"
    )]
    NoBtf {
        /// The error of reading it.
        why: String,
    },
    /// A tracepoint without which nothing can be seen is missing or was refused.
    #[error("{tracepoint}: {why}; Linux 5.18 or later is needed")]
    Tracepoint {
        /// Name of the tracepoint.
        tracepoint: &'static str,
        /// The kernel's error.
        why: String,
    },
    /// Loading failed otherwise.
    #[error("loading the BPF programs failed: {why}")]
    Load {
        /// The error of the kernel or the loader.
        why: String,
    },
    /// The process does not exist.
    #[error("no such process: {pid}{hint}")]
    UnknownPid {
        /// The process ID.
        pid: u32,
        /// Where the number exists after all, if it does.
        hint: String,
    },
    /// The number is that of a thread.
    #[error("{pid} is a thread of process {process}; trace that process")]
    Thread {
        /// The process ID.
        pid: u32,
        /// The process it belongs to.
        process: u32,
    },
    /// Numbers of processes mean something else here than to BPF.
    #[error(
        "process {pid}: process ids in this container differ from the host's, which BPF uses; run headway on the host with \
         the host's process id, or start the container with `docker run --pid=host`"
    )]
    Namespace {
        /// The process ID.
        pid: u32,
    },
    /// More processes than [`Limits::processes_max`](crate::Limits::processes_max).
    #[error("{given} processes were given; at most {limit} can be traced at a time")]
    TooMany {
        /// Number of processes that were given.
        given: usize,
        /// Number of processes that can be traced at a time.
        limit: u32,
    },
}

/// The system's error at the bottom of a chain.
pub(crate) fn os_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut next: Option<&'a (dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// A chain of errors in one line. Only the first line of each, since the verifier's log follows it.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = first_line(&error.to_string());
    let mut next = error.source();
    while let Some(error) = next {
        let more = first_line(&error.to_string());
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = error.source();
    }
    text
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}
