//! Giving up privileges for good: capabilities, and the descriptors that were open before the
//! program started.
//!
//! Everything here is about the calling thread and what it starts later, so it belongs before the
//! first other thread. No function allocates, so a child may call them between `fork` and `exec`.
//!
//! Sources: capabilities(7), prctl(2), `Documentation/userspace-api/no_new_privs.rst`,
//! close_range(2).

use rustix::io::{Errno, Result};
pub use rustix::thread::CapabilitySet;
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Where descriptors are not marked at once (before Linux 5.11), these many are, one by one.
const DESCRIPTORS_MARKED_MAX: libc::c_int = 1 << 16;

/// Drops all capabilities but those in `keep`, and every way to get them back: the ambient and the
/// bounding set, and the rights that the file of a program would give (`no_new_privs`). What is
/// kept is not inherited by programs.
///
/// # Errors
/// As prctl(2) and capset(2), which do not fail here on Linux 4.3 and later.
///
/// # Example
/// ```
/// use headway_os::privileges::{CapabilitySet, drop_capabilities};
/// std::thread::spawn(|| {
///     drop_capabilities(CapabilitySet::empty()).unwrap();
///     let left = rustix::thread::capabilities(None).unwrap();
///     assert!(left.permitted.is_empty() && left.effective.is_empty());
/// })
/// .join()
/// .unwrap();
/// ```
pub fn drop_capabilities(keep: CapabilitySet) -> Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    empty_bounding_set()?;
    let now = capabilities(None)?;
    let left = CapabilitySets {
        effective: now.effective & keep,
        permitted: now.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, left)
}

/// Empties the bounding set, so that no program gets a capability by execve(2). A process that
/// becomes another user has to do it before.
///
/// # Errors
/// As prctl(2). Without CAP_SETPCAP nothing is done, and no error is returned.
pub fn empty_bounding_set() -> Result<()> {
    shrink_bounding_set(CapabilitySet::empty())
}

/// As [`empty_bounding_set`], but keeps these.
///
/// # Errors
/// As prctl(2). Without CAP_SETPCAP nothing is done, and no error is returned.
pub fn shrink_bounding_set(keep: CapabilitySet) -> Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // EINVAL: the kernel has no capability of this number.
            Ok(()) | Err(Errno::INVAL) => {}
            // Without CAP_SETPCAP. `no_new_privs` is enough then: a program gets no more than the
            // permitted set.
            Err(Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Marks all descriptors from `first` on as close-on-exec, so that programs started later do not
/// get them.
///
/// # Errors
/// None on Linux 5.11 and later. Before, only the first 65,536 are marked, and no error is
/// returned.
pub fn close_on_exec_from(first: libc::c_uint) -> Result<()> {
    // SAFETY: integers only.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if marked == 0 {
        return Ok(());
    }
    match crate::residency::last_errno() {
        Errno::NOSYS | Errno::INVAL => {
            for descriptor in first as libc::c_int..DESCRIPTORS_MARKED_MAX {
                // SAFETY: integers only. Numbers that are not open answer an error.
                unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
            Ok(())
        }
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    /// Runs in a thread of its own, whose children alone are affected.
    fn in_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(run).join().unwrap()
    }

    fn status_of_child(names: &'static [&str]) -> Vec<String> {
        let output = Command::new("cat")
            .arg("/proc/self/status")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = |name: &&str| text.lines().find(|line| line.starts_with(*name)).unwrap();
        let value = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
        names.iter().map(|name| value(line(name))).collect()
    }

    #[test]
    fn programs_have_no_capabilities_when_they_were_dropped() {
        let sets = in_thread(|| {
            drop_capabilities(CapabilitySet::empty()).unwrap();
            status_of_child(&["CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "NoNewPrivs:"])
        });
        let none = "0000000000000000";
        assert_eq!(sets, [none, none, none, none, "1"]);
    }

    /// Needs: CAP_SETPCAP
    #[test]
    fn bounding_set_is_empty_when_the_process_could_change_it() {
        let bounding = in_thread(|| {
            let may = capabilities(None).unwrap().effective;
            drop_capabilities(CapabilitySet::empty()).unwrap();
            may.contains(CapabilitySet::SETPCAP)
                .then(|| status_of_child(&["CapBnd:"]))
        });
        match bounding {
            Some(bounding) => assert_eq!(bounding, ["0000000000000000"]),
            None => headway_test_support::skip(
                "bounding_set_is_empty_when_the_process_could_change_it",
                "CAP_SETPCAP",
            ),
        }
    }

    #[test]
    fn kept_capability_is_not_inherited_by_programs() {
        let (kept, programs) = in_thread(|| {
            drop_capabilities(CapabilitySet::IPC_LOCK).unwrap();
            let kept = capabilities(None).unwrap().permitted;
            (kept, status_of_child(&["CapPrm:", "CapAmb:"]))
        });
        assert!(CapabilitySet::IPC_LOCK.contains(kept));
        assert_eq!(programs[1], "0000000000000000");
        // A program of root's gets what its parent has and the bounding set allows.
        assert_eq!(programs[0], "0000000000000000");
    }

    #[test]
    fn descriptors_are_marked_when_programs_must_not_get_them() {
        let file = File::open("/dev/null").unwrap();
        // The highest number here, so that no other test's descriptors are marked.
        let file = rustix::io::fcntl_dupfd_cloexec(&file, 900).unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        close_on_exec_from(file.as_raw_fd() as libc::c_uint).unwrap();
        let flags = rustix::io::fcntl_getfd(&file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
