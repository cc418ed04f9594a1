//! How long the client's thread waited for a CPU, according to the kernel's scheduler.
//!
//! `schedstat` of a thread counts the time it was ready to run and waited for a CPU. Responses that
//! lay in the socket meanwhile look slow. On a virtual machine the hypervisor takes time as well,
//! which a process sees only as the *steal* of its CPUs. Sources:
//! Documentation/scheduler/sched-stats.rst, proc_stat(5).

use std::path::PathBuf;

/// What is read at one moment. Both counters only grow, so two readings bound a stretch of time.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    run_queue_ns: Option<u64>,
    steal_ticks: Option<u64>,
    total_ticks: Option<u64>,
}

/// The difference of two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Waited {
    /// Time that the thread was ready to run and waited for a CPU; `None` if the kernel does not
    /// count it.
    pub run_queue_s: Option<f64>,
    /// Share of the allowed CPUs' time that the hypervisor took; `None` if unknown.
    pub steal_share: Option<f64>,
}

/// Reads the counters of one thread, also from another one.
#[derive(Clone, Debug)]
pub(crate) struct ThreadWatch {
    schedstat: PathBuf,
    cpus: Vec<usize>,
}

impl ThreadWatch {
    /// A watch of the calling thread, on the CPUs it may use.
    pub(crate) fn this_thread() -> ThreadWatch {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        ThreadWatch {
            schedstat: format!("/proc/self/task/{thread}/schedstat").into(),
            cpus: allowed_cpus(),
        }
    }

    /// The counters of this moment.
    pub(crate) fn read(&self) -> Reading {
        let schedstat = std::fs::read_to_string(&self.schedstat).ok();
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks = steal_and_total(&stat, &self.cpus);
        Reading {
            run_queue_ns: schedstat.as_deref().and_then(run_queue_ns),
            steal_ticks: ticks.map(|(steal, _)| steal),
            total_ticks: ticks.map(|(_, total)| total),
        }
    }
}

impl Reading {
    /// What happened between an earlier reading and this one.
    pub(crate) fn since(&self, earlier: &Reading) -> Waited {
        let grown = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let total = grown(self.total_ticks, earlier.total_ticks).filter(|&ticks| ticks > 0);
        let steal = grown(self.steal_ticks, earlier.steal_ticks);
        Waited {
            run_queue_s: grown(self.run_queue_ns, earlier.run_queue_ns).map(|ns| ns as f64 / 1e9),
            steal_share: steal.zip(total).map(|(part, all)| part as f64 / all as f64),
        }
    }
}

/// The CPUs this thread may run on, by number.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// The second of three numbers: time on the run queue. All three are 0 if the kernel does not
/// count.
fn run_queue_ns(schedstat: &str) -> Option<u64> {
    let mut fields = schedstat.split_whitespace();
    let ran: u64 = fields.next()?.parse().ok()?;
    let waited = fields.next()?.parse().ok()?;
    (ran > 0).then_some(waited)
}

/// Ticks taken by the hypervisor, and all ticks, over the given CPUs.
fn steal_and_total(stat: &str, cpus: &[usize]) -> Option<(u64, u64)> {
    let mut sum = None;
    for line in stat.lines() {
        let mut fields = line.split_whitespace();
        let number = fields.next().and_then(|name| name.strip_prefix("cpu"));
        let Some(cpu) = number.and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        if !cpus.contains(&cpu) {
            continue;
        }
        // user nice system idle iowait irq softirq steal; the two guest columns are part of user
        // and nice.
        let ticks: Vec<u64> = fields
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        let (steal, total) = sum.get_or_insert((0, 0));
        *steal += ticks.get(7).copied().unwrap_or(0);
        *total += ticks.iter().sum::<u64>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_queue_delay_is_unknown_when_the_kernel_does_not_count() {
        assert_eq!(run_queue_ns("500 70 3\n"), Some(70));
        assert_eq!(run_queue_ns("0 0 0\n"), None);
        assert_eq!(run_queue_ns(""), None);
    }

    #[test]
    fn steal_is_of_the_allowed_cpus_when_others_lost_more() {
        let stat = "cpu  0 0 0 0 0 0 0 99 0 0\ncpu0 1 1 1 1 1 1 1 3 9 9\ncpu1 0 0 0 0 0 0 0 90 0 0\nintr 5\n";
        assert_eq!(steal_and_total(stat, &[0]), Some((3, 10)));
        assert_eq!(steal_and_total(stat, &[0, 1]), Some((93, 100)));
        assert_eq!(steal_and_total(stat, &[7]), None);
    }

    #[test]
    fn difference_is_unknown_when_one_reading_is() {
        let reading = |run_queue_ns, steal_ticks, total_ticks| Reading {
            run_queue_ns,
            steal_ticks,
            total_ticks,
        };
        let before = reading(Some(1_000_000_000), Some(10), Some(100));
        let waited = reading(Some(3_500_000_000), Some(15), Some(200)).since(&before);
        assert_eq!(
            (waited.run_queue_s, waited.steal_share),
            (Some(2.5), Some(0.05))
        );
        assert_eq!(reading(None, None, None).since(&before), Waited::default());
        assert_eq!(before.since(&before).steal_share, None);
    }

    #[test]
    fn thread_reads_its_own_counters_when_it_watches_itself() {
        let watch = ThreadWatch::this_thread();
        assert!(!watch.cpus.is_empty());
        let waited = watch.read().since(&watch.read());
        assert!(
            waited
                .steal_share
                .is_none_or(|share| (0.0..=1.0).contains(&share))
        );
    }
}
