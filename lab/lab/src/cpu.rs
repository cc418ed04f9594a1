//! CPUs: which ones the server and the client run on, and a quota that stands for a slower
//! one.
//!
//! The quota is the scheduler's bandwidth control: of each period the group may run a share, then
//! it stands still until the next. This *emulates* a slower CPU as far as throughput goes.
//! Latency it emulates only above the length of a period: a request that finds the quota spent
//! waits for the next one. The period is therefore as short as the kernel keeps exactly: at a tick
//! of 250 Hz a shorter one than 4 ms let a spinning program have 0.55 of the time for a share of
//! 1.0 and 0.39 for one of 0.5, where 4 ms gave 0.50 and 0.25 (with gaps of 4 and of 11 ms).
//!
//! Source: the kernel's Documentation/scheduler/sched-bwc.rst.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::LabError;
use crate::groups::{self, ControlGroup, Version};

/// The shortest period that the kernel's accounting, which happens at its tick, keeps to.
const PERIOD_US_MIN: u64 = 4_000;

/// The kernel refuses a quota below this, sched-bwc.rst.
const QUOTA_US_MIN: u64 = 1_000;

/// The longest period the kernel takes, and so the smallest share: 1 ms of a second.
const SHARE_MIN: f64 = 0.001;

/// What the quota did.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct QuotaStatus {
    /// Of one CPU: 0.5 is half of one, 2 is two whole ones.
    pub share: f64,
    /// Length of a period.
    pub period_us: u64,
    /// Time of a CPU in each period.
    pub quota_us: u64,
    /// Periods in which the quota was spent before the period was over.
    pub throttled_periods: u64,
    /// Time for which processes were throttled.
    pub throttled_us: u64,
}

/// Period and quota for a share of one CPU.
fn period_and_quota_us(share: f64) -> Result<(u64, u64), LabError> {
    if !(SHARE_MIN..=1024.0).contains(&share) {
        let why = format!("a CPU share of {share} cannot be kept: give 0.001 to 1024");
        return Err(LabError::Value(why));
    }
    let period = PERIOD_US_MIN.max((QUOTA_US_MIN as f64 / share).ceil() as u64);
    Ok((period, (period as f64 * share).round() as u64))
}

/// A share that can be kept.
///
/// # Errors
/// [`LabError::Value`] says which can.
pub fn check(share: f64) -> Result<(), LabError> {
    period_and_quota_us(share).map(drop)
}

/// Creates the group and sets its quota.
pub(crate) fn make(name: &str, share: f64) -> Result<ControlGroup, LabError> {
    let hierarchy = groups::find("cpu").ok_or_else(|| {
        LabError::Value("no mounted control group hierarchy has the cpu controller".into())
    })?;
    let group = hierarchy.make(name, "cpu")?;
    limit(&group, share)?;
    Ok(group)
}

/// Limits a group of a hierarchy with the cpu controller to a share of one CPU, all its processes
/// together.
///
/// # Errors
/// A share that cannot be kept, or a group that is not there.
pub fn limit(group: &ControlGroup, share: f64) -> Result<(), LabError> {
    let (period_us, quota_us) = period_and_quota_us(share)?;
    match group.version {
        Version::V1 => {
            group.set("cpu.cfs_period_us", &period_us.to_string())?;
            group.set("cpu.cfs_quota_us", &quota_us.to_string())
        }
        Version::V2 => group.set("cpu.max", &format!("{quota_us} {period_us}")),
    }
}

/// Reads the statistics of the group; `None` when it has no quota.
pub(crate) fn status(group: &ControlGroup) -> Option<QuotaStatus> {
    let (quota_us, period_us, throttled_us) = match group.version {
        Version::V1 => (
            group.number("cpu.cfs_quota_us")?,
            group.number("cpu.cfs_period_us")?,
            group.field("cpu.stat", "throttled_time").unwrap_or(0) / 1000,
        ),
        Version::V2 => {
            let text = std::fs::read_to_string(group.file("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            let throttled = group.field("cpu.stat", "throttled_usec").unwrap_or(0);
            (quota.parse().ok()?, period.parse().ok()?, throttled)
        }
    };
    Some(QuotaStatus {
        share: quota_us as f64 / period_us as f64,
        period_us,
        quota_us,
        throttled_periods: group.field("cpu.stat", "nr_throttled").unwrap_or(0),
        throttled_us,
    })
}

/// The CPUs this process may run on.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// The usual split: the server on the first CPU, the client on the last, which are the same
/// only if there is one.
pub fn usual_split() -> (Vec<usize>, Vec<usize>) {
    let allowed = allowed();
    let take = |cpu: Option<&usize>| cpu.copied().into_iter().collect();
    (take(allowed.first()), take(allowed.last()))
}

/// Restricts the calling thread, and what it starts, to CPUs; an empty list changes nothing.
pub(crate) fn pin(cpus: &[usize]) -> Result<(), LabError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
        .map_err(|error| LabError::Value(format!("running on CPUs {cpus:?}: {error}")))
}

/// Does something while the calling thread, and so what it starts, is bound to these CPUs.
pub(crate) fn pinned<T>(
    cpus: &[usize],
    work: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    let before = allowed();
    pin(cpus)?;
    let done = work();
    pin(&before)?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_kept_in_the_shortest_exact_period_when_it_is_turned_into_a_quota() {
        let of = |share| period_and_quota_us(share).expect("a share that can be kept");
        assert_eq!(of(1.0), (4_000, 4_000));
        assert_eq!(of(0.5), (4_000, 2_000));
        assert_eq!(of(0.1), (10_000, 1_000));
        assert_eq!(of(2.0), (4_000, 8_000));
        assert_eq!(of(0.001), (1_000_000, 1_000));
    }

    #[test]
    fn cpu_share_is_an_error_when_the_kernel_cannot_enforce_it() {
        for share in [0.0, -1.0, 0.000_9, 4096.0, f64::NAN, f64::INFINITY] {
            assert!(period_and_quota_us(share).is_err(), "{share}");
        }
    }

    #[test]
    fn quota_is_set_and_read_when_the_version_is_1() {
        // No quota, as in a new group.
        let files = [
            ("cpu.cfs_period_us", "250000"),
            ("cpu.cfs_quota_us", "-1"),
            (
                "cpu.stat",
                "nr_periods 9\nnr_throttled 4\nthrottled_time 7000000\n",
            ),
        ];
        let (_directory, group) = groups::fixture(Version::V1, &files);
        assert_eq!(status(&group), None);
        limit(&group, 0.1).expect("set");
        let read = |name| std::fs::read_to_string(group.file(name)).expect("there");
        assert!(read("cpu.cfs_period_us").starts_with("10000"));
        assert_eq!(read("cpu.cfs_quota_us"), "1000");
        std::fs::write(group.file("cpu.cfs_period_us"), "10000\n").expect("written");
        let expected = QuotaStatus {
            share: 0.1,
            period_us: 10_000,
            quota_us: 1_000,
            throttled_periods: 4,
            throttled_us: 7_000,
        };
        assert_eq!(status(&group), Some(expected));
    }

    #[test]
    fn quota_is_set_and_read_when_the_version_is_2() {
        let stat = "usage_usec 100\nnr_periods 9\nnr_throttled 4\nthrottled_usec 7000\n";
        let files = [("cpu.max", "max 100000"), ("cpu.stat", stat)];
        let (_directory, group) = groups::fixture(Version::V2, &files);
        assert_eq!(status(&group), None);
        limit(&group, 0.1).expect("set");
        let expected = QuotaStatus {
            share: 0.1,
            period_us: 10_000,
            quota_us: 1_000,
            throttled_periods: 4,
            throttled_us: 7_000,
        };
        assert_eq!(status(&group), Some(expected));
    }

    #[test]
    fn affinity_is_as_before_when_the_work_is_done() {
        let before = allowed();
        let inside = pinned(&before[..1], || Ok(allowed())).expect("pinned");
        assert_eq!(inside, before[..1]);
        assert_eq!(allowed(), before);
    }
}
