//! Whether the numbers of a trace that was read can be added up. A file from elsewhere may hold
//! any.

use super::{KeptCall, LocationTotals, SleepAt, Trace};

impl Trace {
    /// Whether no sum over the trace, nor the end of a kept call or function, exceeds what 64 bits
    /// hold.
    pub(super) fn adds_up(&self) -> bool {
        let sites = self.sites.iter().map(of_site);
        let kept = self.kept.iter().map(of_kept);
        let programs = self
            .programs
            .iter()
            .map(|program| u128::from(program.calls));
        sites.chain(kept).chain(programs).sum::<u128>() <= u128::from(u64::MAX)
            && self.kept.iter().all(ends)
    }
}

/// All numbers that are added up somewhere.
fn of_site(site: &LocationTotals) -> u128 {
    let numbers = [
        site.processes,
        site.count,
        site.errors,
        site.wall_ns,
        site.faults_minor,
        site.faults_major,
        site.preemptions.count,
        site.preemptions.total_ns,
        site.slept.count,
        site.slept.total_ns,
        site.wakeup_ns,
    ];
    let buckets = site.histogram.iter().map(|bucket| u128::from(bucket.count));
    total(&numbers) + buckets.sum::<u128>() + of_sleeps(&site.sleeps)
}

fn of_kept(kept: &KeptCall) -> u128 {
    let numbers = [
        kept.wall_ns,
        kept.preemptions.count,
        kept.preemptions.total_ns,
        kept.lost,
        kept.functions_dropped,
        kept.functions.len() as u64,
    ];
    total(&numbers) + of_sleeps(&kept.sleeps)
}

fn of_sleeps(sleeps: &[SleepAt]) -> u128 {
    let of_sleep = |sleep: &SleepAt| {
        let waiters = [sleep.waiters_entry_total, sleep.waiters_exit_total];
        total(&[sleep.count, sleep.total_ns]) + total(&waiters.map(Option::unwrap_or_default))
    };
    sleeps.iter().map(of_sleep).sum()
}

fn total(numbers: &[u64]) -> u128 {
    numbers.iter().copied().map(u128::from).sum()
}

fn ends(kept: &KeptCall) -> bool {
    let functions = kept.functions.iter();
    let mut lengths = functions.map(|function| (function.start_ns, function.length_ns));
    kept.start_ns.checked_add(kept.wall_ns).is_some()
        && lengths.all(|(start_ns, length_ns)| start_ns.checked_add(length_ns).is_some())
}
