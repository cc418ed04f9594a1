//! The memory limit: a control group in which the server's pages, and the pages it has the kernel
//! keep, are counted.
//!
//! Pages of files are charged to the group of the process that first touched them, inodes and
//! dentries, too; at the limit the kernel evicts the group's own oldest pages. So a server in a
//! group of 512 MiB finds in memory what a machine of that size would keep for it. What another
//! group read first stays charged to that one: [`Lab::drop_caches`](crate::Lab::drop_caches) before
//! a measurement.
//!
//! Swap is off for the group: its anonymous memory stays, as on a machine without swap, and only
//! caches give way.

use crate::error::LabError;
use crate::groups::{self, ControlGroup, Version};

/// Less than this, and not even a shell starts in the group without being killed for want of
/// memory.
pub const BYTES_MIN: u64 = 8 << 20;

/// What is in the memory group.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MemoryStatus {
    /// The limit; `None`: the group only counts.
    pub limit_bytes: Option<u64>,
    /// Charged to the group: anonymous memory, caches and what the kernel keeps for it.
    pub used_bytes: u64,
    /// Pages of files among them.
    pub cache_bytes: u64,
    /// The most that was ever charged; `None` where the kernel does not say (version 2 before Linux
    /// 5.19).
    pub peak_bytes: Option<u64>,
    /// Pages of files that had been evicted not long before and were needed again.
    pub refaults: u64,
    /// Which interface of control groups: 1 or 2.
    pub cgroup_version: u8,
}

/// Creates the group and sets its limit; without one it counts and holds the lab's processes
/// together.
pub(crate) fn make(name: &str, limit_bytes: Option<u64>) -> Result<ControlGroup, LabError> {
    let hierarchy = groups::find("memory").ok_or_else(|| {
        LabError::Value("no mounted control group hierarchy has the memory controller".into())
    })?;
    let group = hierarchy.make(name, "memory")?;
    if let Some(bytes) = limit_bytes {
        limit(&group, bytes)?;
    }
    Ok(group)
}

fn limit(group: &ControlGroup, bytes: u64) -> Result<(), LabError> {
    if bytes < BYTES_MIN {
        let why = format!("a memory limit of {bytes} bytes is too little: 8 MiB at least");
        return Err(LabError::Value(why));
    }
    match group.version {
        Version::V1 => {
            group.set("memory.limit_in_bytes", &bytes.to_string())?;
            // The kernel may be built without swap accounting; then the files are not there, and
            // swappiness has to do.
            let _ = group.set("memory.memsw.limit_in_bytes", &bytes.to_string());
            let _ = group.set("memory.swappiness", "0");
        }
        Version::V2 => {
            group.set("memory.max", &bytes.to_string())?;
            let _ = group.set("memory.swap.max", "0");
        }
    }
    Ok(())
}

/// Evicts what can be evicted. Pages that a process has mapped or locked stay.
pub(crate) fn empty(group: &ControlGroup) -> Result<(), LabError> {
    match group.version {
        Version::V1 => group.set("memory.force_empty", "0"),
        Version::V2 => {
            let used = group.number("memory.current").unwrap_or(0);
            // EAGAIN says that not all could be reclaimed, which is what was to be expected.
            match group.set("memory.reclaim", &used.to_string()) {
                Err(LabError::File { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    reclaim_by_limit(group)
                }
                Err(LabError::File { source, .. })
                    if source.kind() == std::io::ErrorKind::WouldBlock =>
                {
                    Ok(())
                }
                other => other,
            }
        }
    }
}

/// Linux before 5.19 has no `memory.reclaim`; the write of a lower `memory.high` reclaims before it
/// returns.
fn reclaim_by_limit(group: &ControlGroup) -> Result<(), LabError> {
    let squeezed = group.set("memory.high", "0");
    group.set("memory.high", "max")?;
    squeezed
}

/// Reads the statistics of the group; `None` when it has no memory controller.
pub(crate) fn status(group: &ControlGroup) -> Option<MemoryStatus> {
    Some(match group.version {
        Version::V1 => MemoryStatus {
            // No limit is written as the largest number of pages.
            limit_bytes: group
                .number("memory.limit_in_bytes")
                .filter(|&bytes| bytes < 1 << 60),
            used_bytes: group.number("memory.usage_in_bytes")?,
            cache_bytes: group.field("memory.stat", "cache").unwrap_or(0),
            peak_bytes: group.number("memory.max_usage_in_bytes"),
            refaults: refaults(group),
            cgroup_version: 1,
        },
        Version::V2 => MemoryStatus {
            limit_bytes: group.number("memory.max"),
            used_bytes: group.number("memory.current")?,
            cache_bytes: group.field("memory.stat", "file").unwrap_or(0),
            peak_bytes: group.number("memory.peak"),
            refaults: refaults(group),
            cgroup_version: 2,
        },
    })
}

fn refaults(group: &ControlGroup) -> u64 {
    group
        .field("memory.stat", "workingset_refault_file")
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::fixture as group;
    use std::fs;

    #[test]
    fn limit_and_swap_are_set_when_the_version_is_2() {
        let files = [("memory.max", "max"), ("memory.swap.max", "max")];
        let (_directory, group) = group(Version::V2, &files);
        limit(&group, 64 << 20).expect("set");
        let read = |name| fs::read_to_string(group.file(name)).expect("there");
        assert!(read("memory.max").starts_with("67108864"));
        assert!(read("memory.swap.max").starts_with('0'));
    }

    #[test]
    fn limit_and_swap_are_set_when_the_version_is_1() {
        // A new group's: the largest number of pages, and the machine's own swappiness.
        let files = [
            ("memory.limit_in_bytes", "9223372036854771712"),
            ("memory.memsw.limit_in_bytes", "9223372036854771712"),
            ("memory.swappiness", "60"),
        ];
        let (_directory, group) = group(Version::V1, &files);
        limit(&group, 64 << 20).expect("set");
        let read = |name| fs::read_to_string(group.file(name)).expect("there");
        assert!(read("memory.limit_in_bytes").starts_with("67108864"));
        assert!(read("memory.memsw.limit_in_bytes").starts_with("67108864"));
        assert!(read("memory.swappiness").starts_with('0'));
    }

    #[test]
    fn limit_is_set_when_the_kernel_does_not_account_for_swap() {
        let (_directory, one) = group(Version::V1, &[("memory.limit_in_bytes", "")]);
        limit(&one, 64 << 20).expect("set");
        let (_directory, two) = group(Version::V2, &[("memory.max", "max")]);
        limit(&two, 64 << 20).expect("set");
    }

    #[test]
    fn status_is_read_when_the_version_is_1() {
        let files = [
            ("memory.limit_in_bytes", "67108864\n"),
            ("memory.usage_in_bytes", "5000000\n"),
            (
                "memory.stat",
                "cache 4000000\nrss 1000\nworkingset_refault_file 12\n",
            ),
            ("memory.max_usage_in_bytes", "6000000\n"),
        ];
        let (_directory, group) = group(Version::V1, &files);
        let expected = MemoryStatus {
            limit_bytes: Some(64 << 20),
            used_bytes: 5_000_000,
            cache_bytes: 4_000_000,
            peak_bytes: Some(6_000_000),
            refaults: 12,
            cgroup_version: 1,
        };
        assert_eq!(status(&group), Some(expected));
    }

    #[test]
    fn caches_are_emptied_by_memory_reclaim_where_available() {
        let (_directory, one) = group(Version::V1, &[("memory.force_empty", "")]);
        empty(&one).expect("ordered");
        let order =
            |group: &ControlGroup, name| fs::read_to_string(group.file(name)).expect("there");
        assert_eq!(order(&one, "memory.force_empty"), "0");
        let files = [("memory.current", "4096\n"), ("memory.reclaim", "")];
        let (_directory, two) = group(Version::V2, &files);
        empty(&two).expect("ordered");
        assert_eq!(order(&two, "memory.reclaim"), "4096");
    }

    #[test]
    fn group_is_no_memory_group_when_it_has_no_such_files() {
        for version in [Version::V1, Version::V2] {
            let (_directory, group) = group(version, &[("cpu.stat", "nr_periods 1\n")]);
            assert_eq!(status(&group), None);
        }
    }

    #[test]
    fn status_is_read_when_the_version_is_2() {
        let (_directory, group) = group(
            Version::V2,
            &[
                ("memory.max", "67108864\n"),
                ("memory.current", "5000000\n"),
                (
                    "memory.stat",
                    "anon 1000\nfile 4000000\nworkingset_refault_file 12\n",
                ),
                ("memory.peak", "6000000\n"),
            ],
        );
        let status = status(&group).expect("a memory group");
        assert_eq!(status.limit_bytes, Some(64 << 20));
        assert_eq!(status.used_bytes, 5_000_000);
        assert_eq!(status.cache_bytes, 4_000_000);
        assert_eq!(status.peak_bytes, Some(6_000_000));
        assert_eq!(status.refaults, 12);
    }

    #[test]
    fn no_limit_is_none_when_either_version_says_so() {
        let files = [
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "0\n"),
        ];
        let (_directory, first) = group(Version::V1, &files);
        assert_eq!(status(&first).expect("a group").limit_bytes, None);
        let files = [("memory.max", "max\n"), ("memory.current", "0\n")];
        let (_directory, second) = group(Version::V2, &files);
        assert_eq!(status(&second).expect("a group").limit_bytes, None);
    }

    #[test]
    fn caches_are_emptied_by_a_lower_limit_without_memory_reclaim() {
        let files = [("memory.current", "4096\n"), ("memory.high", "max")];
        let (_directory, group) = group(Version::V2, &files);
        empty(&group).expect("emptied");
        let high = fs::read_to_string(group.file("memory.high")).expect("there");
        assert!(high.starts_with("max"));
    }

    #[test]
    fn memory_limit_is_an_error_when_too_small_to_run() {
        let (_directory, group) = group(Version::V2, &[("memory.max", "max")]);
        assert!(limit(&group, 4096).is_err());
    }
}
