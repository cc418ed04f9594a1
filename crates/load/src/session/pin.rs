//! Pinning threads to CPUs, so that the client's loop stays on its CPU while it measures.

use rustix::io;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread to these CPUs; an empty list changes nothing.
///
/// # Errors
/// EINVAL when none of them exists or is allowed, sched_setaffinity(2).
pub(super) fn pin_this_thread(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Errno::INVAL);
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
}

/// The CPUs for the other threads when the loop is pinned: the rest, or all if there is no rest.
pub(super) fn remaining_cpus(allowed: &[usize], pinned: &[usize]) -> Vec<usize> {
    let rest: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|cpu| !pinned.contains(cpu))
        .collect();
    match rest.is_empty() {
        true => allowed.to_vec(),
        false => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_avoids_the_pinned_cpu_when_others_are_allowed() {
        assert_eq!(remaining_cpus(&[0, 1, 2], &[1]), [0, 2]);
        assert_eq!(remaining_cpus(&[1], &[1]), [1]);
        assert_eq!(remaining_cpus(&[0, 1], &[]), [0, 1]);
    }

    #[test]
    fn pinning_fails_when_the_cpu_does_not_exist() {
        assert!(pin_this_thread(&[CpuSet::MAX_CPU]).is_err());
        assert!(pin_this_thread(&[]).is_ok());
    }
}
