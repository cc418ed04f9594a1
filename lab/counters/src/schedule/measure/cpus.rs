//! The CPUs of this machine, as far as pairs on two of them need to know.

use std::fs;

use rustix::io;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use, ascending, in the kernel's numbering.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Whether two CPUs are hardware threads of one core; `None` if the kernel does not say.
///
/// Source: Documentation/ABI/stable/sysfs-devices-system-cpu, `thread_siblings_list`.
pub fn is_one_core(a: usize, b: usize) -> Option<bool> {
    let path = format!("/sys/devices/system/cpu/cpu{a}/topology/thread_siblings_list");
    let text = fs::read_to_string(path).ok()?;
    in_list(text.trim(), b)
}

/// Whether a list such as `0-3,8` holds a number.
fn in_list(list: &str, wanted: usize) -> Option<bool> {
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if (first..=last).contains(&wanted) {
            return Some(true);
        }
    }
    Some(false)
}

/// Binds the calling thread, and what it starts from now on, to one CPU.
///
/// # Errors
/// `EINVAL` for a CPU that is not there or not allowed.
pub fn bind_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Errno::INVAL);
    }
    set.set(cpu);
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_found_when_it_is_in_a_list_of_the_kernel() {
        assert_eq!(in_list("0-1", 1), Some(true));
        assert_eq!(in_list("0,4", 1), Some(false));
        assert_eq!(in_list("0-3,8", 8), Some(true));
        assert_eq!(in_list("?", 8), None);
    }

    #[test]
    fn cpu_is_a_thread_of_its_own_core() {
        let cpu = allowed()[0];
        assert_ne!(is_one_core(cpu, cpu), Some(false));
        assert_eq!(is_one_core(usize::MAX, 0), None);
    }
}
