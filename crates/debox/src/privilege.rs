//! Opening the ring with as much detail as the kernel allows, and saying what is missing if not
//! all.

use std::io;

use headway_os::perf::{Detail, Ring};

use crate::functions;
use crate::report::TraceLevel;

/// 64 KiB: about 250 sleeps within a single call, before records are lost.
const DATA_PAGES: usize = 16;

/// About 30 sleeps, for users that have used up `kernel.perf_event_mlock_kb`.
const DATA_PAGES_SMALL: usize = 2;

/// The best ring there is and the level it stands on.
pub(crate) fn best_ring() -> (Option<Ring>, TraceLevel) {
    let refused = match open(Detail::Stacks) {
        Ok(ring) => return (Some(ring), TraceLevel::Stacks),
        Err(error) => error,
    };
    match open(Detail::SwitchesOnly) {
        Ok(ring) => {
            let why = explain(&refused, 1);
            (Some(ring), TraceLevel::SwitchesOnly { why })
        }
        Err(error) => {
            let why = explain(&error, 2);
            (None, TraceLevel::Off { why })
        }
    }
}

/// The level of a child that has only its parent's handle.
pub(crate) fn forked() -> TraceLevel {
    let why = "the ring is the parent's, and the kernel does not copy it to a forked child; \
               enable records in the child"
        .to_owned();
    TraceLevel::Off { why }
}

/// What the call trace of a record holds. A function tracer writes into rings of its own, which
/// cost the thread a multiple of its time: so where the kernel has one, it is not switched on by
/// itself.
pub(crate) fn trace_source(level: &TraceLevel) -> String {
    if *level != TraceLevel::Stacks {
        return "there is no call trace without kernel stacks".to_owned();
    }
    let stacks = "the call trace is the kernel stack at each sleep";
    if functions::is_offered() {
        return format!(
            "{stacks}; this kernel also has function_graph, which times every function (FunctionTimes, or \
             `headway trace --functions`)"
        );
    }
    format!(
        "{stacks}; function_graph is not offered here (the kernel lacks it, or tracefs is not mounted)"
    )
}

fn open(detail: Detail) -> io::Result<Ring> {
    match Ring::open(detail, DATA_PAGES) {
        // The mapping counts against a limit of locked memory the user shares with all its tracers.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Ring::open(detail, DATA_PAGES_SMALL)
        }
        answer => answer,
    }
}

/// What the refusal means, and what grants the level that needs `kernel.perf_event_paranoid` ≤
/// `paranoid`.
fn explain(error: &io::Error, paranoid: u8) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES) => {
            let current = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
                .map_or_else(|_| "too high".to_owned(), |text| text.trim().to_owned());
            format!(
                "kernel.perf_event_paranoid is {current} and the process lacks CAP_PERFMON; \
                 `sysctl kernel.perf_event_paranoid={paranoid}` or that capability grants it"
            )
        }
        Some(libc::EPERM) => format!(
            "perf_event_open: {error}; a container's seccomp filter has to allow perf_event_open, \
             and kernel.perf_event_mlock_kb has to leave room for a ring"
        ),
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP) => {
            format!("perf_event_open: {error}; this kernel offers no such event")
        }
        _ => format!("perf_event_open: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::explain;
    use std::io;

    #[test]
    fn error_names_sysctl_and_capability_when_perf_access_is_denied() {
        let text = explain(&io::Error::from_raw_os_error(libc::EACCES), 1);
        assert!(text.contains("kernel.perf_event_paranoid=1"), "{text}");
        assert!(text.contains("CAP_PERFMON"), "{text}");
    }

    #[test]
    fn trace_source_names_the_stacks_when_there_are_some() {
        assert!(super::trace_source(&super::TraceLevel::Stacks).contains("stack at each sleep"));
        assert!(super::trace_source(&super::forked()).contains("no call trace"));
    }

    #[test]
    fn error_names_the_seccomp_filter_when_perf_is_not_permitted() {
        let text = explain(&io::Error::from_raw_os_error(libc::EPERM), 1);
        assert!(text.contains("seccomp"), "{text}");
    }
}
