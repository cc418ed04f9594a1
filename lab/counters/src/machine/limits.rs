//! What the kernel allows, and what it has taken for itself.
//!
//! Sources: Documentation/admin-guide/sysctl/kernel.rst (`perf_event_paranoid`, `nmi_watchdog`).

use std::path::Path;

use serde::Serialize;

/// The kernel's settings that decide what can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `kernel.perf_event_paranoid`; `None` where the kernel has no perf events.
    pub paranoid: Option<i32>,
    /// The watchdog for hard lock-ups.
    pub watchdog: Watchdog,
}

/// Whether the kernel's watchdog for hard lock-ups holds a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watchdog {
    /// The watchdog counts cycles on every CPU.
    Counts,
    /// The watchdog is off, or takes no counter in this kernel.
    Absent,
}

impl Limits {
    /// Reads the limits of the machine below a root.
    pub fn at(root: &Path) -> Limits {
        let number = |name: &str| {
            let file = root.join("proc/sys/kernel").join(name);
            let text = std::fs::read_to_string(file).ok()?;
            text.trim().parse::<i32>().ok()
        };
        Limits {
            paranoid: number("perf_event_paranoid"),
            watchdog: match number("nmi_watchdog") {
                Some(1..) => Watchdog::Counts,
                _ => Watchdog::Absent,
            },
        }
    }

    /// What to do when counting was not permitted.
    pub fn advice(&self) -> String {
        let level = self
            .paranoid
            .map_or_else(|| "absent".to_owned(), |level| level.to_string());
        format!(
            "counting whole CPUs and the kernel takes root, CAP_PERFMON or kernel.perf_event_paranoid at most 0 (it is {level})"
        )
    }
}
