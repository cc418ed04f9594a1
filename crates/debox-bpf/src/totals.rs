//! Everything by call site: what the maps hold, added up and named.

use std::collections::BTreeMap;

use headway_debox::{KernelSite, Label, Symbols, Wait};
use serde::Serialize;

use crate::layout::{CallWords, Process, Sleep};
use crate::mappings::CodeLocation;

/// What makes two sleeping tasks wait "for the same".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Waiters were not counted.
    None,
    /// A kernel lock.
    Lock,
    /// A futex word.
    Futex,
    /// A file, pipe or socket.
    File,
    /// No resource is known, so sleeps with the same kernel stack are counted; only traced threads
    /// count here.
    Stack,
}

impl Resource {
    pub(crate) fn of(word: u64) -> Resource {
        match word {
            1 => Resource::Lock,
            2 => Resource::Futex,
            3 => Resource::File,
            4 => Resource::Stack,
            _ => Resource::None,
        }
    }
}

/// Other tasks asleep on the same resource, summed over several sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaiterTotals {
    /// Sum of the counts found when going to sleep; divided by the number of sleeps, the mean.
    pub entry_sum: u64,
    /// Sum of the counts found at the wakeups.
    pub exit_sum: u64,
    /// The largest when going to sleep.
    pub entry_max: u64,
    /// The largest number at a wakeup.
    pub exit_max: u64,
}

/// The sleeps of a call site at one kernel stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SleepTotals {
    /// Kernel addresses, innermost first; empty if not known.
    pub stack: Vec<u64>,
    /// The resource, in terms that do not change with the kernel.
    pub label: Label,
    /// The kernel function and the offset in it.
    pub site: Option<KernelSite>,
    /// The function's name, and its caller's where it is a general way of waiting.
    pub symbol: Option<String>,
    /// Number of sleeps.
    pub count: u64,
    /// Nanoseconds from leaving the CPU to running again.
    pub total_ns: u64,
    /// Longest sleep.
    pub max_ns: u64,
    /// The part of `total_ns` after the wakeups: runnable, not yet running.
    pub wakeup_ns: u64,
    /// By what kind of resource the waiters were counted.
    pub resource: Resource,
    /// Others asleep on it.
    pub waiters: WaiterTotals,
}

impl SleepTotals {
    /// Adds sleeps in the same kernel function, whose stacks differ because of the observation.
    fn add(&mut self, more: &SleepTotals) {
        self.count += more.count;
        self.total_ns += more.total_ns;
        self.max_ns = self.max_ns.max(more.max_ns);
        self.wakeup_ns += more.wakeup_ns;
        let (waiters, others) = (&mut self.waiters, more.waiters);
        waiters.entry_sum += others.entry_sum;
        waiters.exit_sum += others.exit_sum;
        waiters.entry_max = waiters.entry_max.max(others.entry_max);
        waiters.exit_max = waiters.exit_max.max(others.exit_max);
    }
}

/// Everything about one call made from one location in one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteTotals {
    /// The process.
    pub pid: u32,
    /// How often it had called exec since it was traced; addresses mean something else after each.
    pub execs: u32,
    /// Number of the call; `None` for sleeps outside calls, in page faults of the program's own
    /// code.
    pub call: Option<u32>,
    /// Name of the call.
    pub name: String,
    /// The address behind the call in the program.
    pub site: u64,
    /// File and offset of the call site; `None` if the process ended before its mappings were read.
    pub location: Option<CodeLocation>,
    /// How many calls have ended, in whatever way.
    pub count: u64,
    /// Calls that have not ended yet; in no other figure but `under_way_ns` and their sleeps.
    pub under_way: u64,
    /// Nanoseconds that those have taken up to now.
    pub under_way_ns: u64,
    /// Of those that have ended, calls in which the thread ended.
    pub unfinished: u64,
    /// Of these, calls that failed.
    pub errors: u64,
    /// Wall-clock nanoseconds.
    pub wall_ns: u64,
    /// The shortest; 0 if none has ended.
    pub min_ns: u64,
    /// Longest call.
    pub max_ns: u64,
    /// The shortest time without preemptions, which does not depend on load.
    pub in_band_min_ns: u64,
    /// The longest of these.
    pub in_band_max_ns: u64,
    /// Time on the CPU: the wall time without sleeps and preemptions.
    pub cpu_ns: u64,
    /// Minor page faults.
    pub faults_minor: u64,
    /// Major page faults.
    pub faults_major: u64,
    /// How often the thread left the CPU while it could have run on.
    pub preemptions: Wait,
    /// Runnable without running: after wakeups and preemptions.
    pub wakeup_ns: u64,
    /// Calls that slept at least once.
    pub slept: u64,
    /// Where they slept, longest in total first. Sleeps of calls under way are in it.
    pub sleeps: Vec<SleepTotals>,
}

impl SiteTotals {
    /// Sleeps in all.
    pub fn sleep_count(&self) -> u64 {
        self.sleeps.iter().map(|sleep| sleep.count).sum()
    }

    /// Nanoseconds asleep in all.
    pub fn blocked_ns(&self) -> u64 {
        self.sleeps.iter().map(|sleep| sleep.total_ns).sum()
    }

    fn empty(key: Key) -> SiteTotals {
        let (process, call, site) = key;
        SiteTotals {
            pid: process.pid,
            execs: process.execs,
            call,
            name: call_name(call),
            site,
            location: None,
            count: 0,
            under_way: 0,
            under_way_ns: 0,
            unfinished: 0,
            errors: 0,
            wall_ns: 0,
            min_ns: 0,
            max_ns: 0,
            in_band_min_ns: 0,
            in_band_max_ns: 0,
            cpu_ns: 0,
            faults_minor: 0,
            faults_major: 0,
            preemptions: Wait::default(),
            wakeup_ns: 0,
            slept: 0,
            sleeps: Vec::new(),
        }
    }

    fn fill(&mut self, words: &CallWords) {
        let [
            count,
            wall_ns,
            max_ns,
            minor,
            major,
            blocked_ns,
            slept,
            preemptions,
            preempted_ns,
            wakeup_ns,
            unfinished,
            errors,
            min_not_ns,
            in_band_max_ns,
            in_band_min_not_ns,
        ] = *words;
        self.count = count;
        self.unfinished = unfinished;
        self.wall_ns = wall_ns;
        self.max_ns = max_ns;
        self.errors = errors;
        // The kernel's part keeps complements, where zero is "none yet".
        let complement = |word: u64| if word == 0 { 0 } else { !word };
        self.min_ns = complement(min_not_ns);
        self.in_band_max_ns = in_band_max_ns;
        self.in_band_min_ns = complement(in_band_min_not_ns);
        self.cpu_ns = wall_ns
            .saturating_sub(blocked_ns)
            .saturating_sub(preempted_ns);
        self.faults_minor = minor;
        self.faults_major = major;
        self.slept = slept;
        self.preemptions = Wait {
            count: preemptions,
            total_ns: preempted_ns,
        };
        self.wakeup_ns = wakeup_ns;
    }
}

/// The number of a call that came through x86's 32-bit entry has this bit (`bpf/layout.h`).
const COMPAT: u32 = 0x4000_0000;

/// The name of a call. Calls of 32-bit programs have the numbers of another table and keep them.
fn call_name(call: Option<u32>) -> String {
    match call {
        None => "outside calls".to_owned(),
        Some(number) if number & COMPAT != 0 => format!("32-bit call {}", number & !COMPAT),
        Some(number) => headway_debox::calls::display_name(number).into_owned(),
    }
}

type Key = (Process, Option<u32>, u64);

/// Joins calls and sleeps; either may be without the other.
#[derive(Default)]
pub(crate) struct Builder {
    sites: BTreeMap<Key, SiteTotals>,
}

impl Builder {
    pub fn call(&mut self, key: Key, words: &CallWords) {
        self.site(key).fill(words);
    }

    pub fn under_way(&mut self, key: Key, length_ns: u64) {
        let site = self.site(key);
        site.under_way += 1;
        site.under_way_ns += length_ns;
    }

    pub fn sleep(
        &mut self,
        key: Key,
        resource: Resource,
        sleep: &Sleep,
        stack: Vec<u64>,
        symbols: Option<&Symbols>,
    ) {
        let sleeps = &mut self.site(key).sleeps;
        let same = |known: &SleepTotals| {
            let way = |symbols: &Symbols| {
                symbols.without_scheduler(&known.stack) == symbols.without_scheduler(&stack)
            };
            known.resource == resource && symbols.is_some_and(way)
        };
        let known = sleeps.iter().position(same);
        let more = sleep_totals(resource, sleep, stack, symbols);
        match known {
            Some(at) => sleeps[at].add(&more),
            None => sleeps.push(more),
        }
    }

    fn site(&mut self, key: Key) -> &mut SiteTotals {
        self.sites
            .entry(key)
            .or_insert_with(|| SiteTotals::empty(key))
    }

    /// Longest in total first.
    pub fn finish(
        self,
        location: impl Fn(u32, u32, u64) -> Option<CodeLocation>,
    ) -> Vec<SiteTotals> {
        let mut sites: Vec<SiteTotals> = self.sites.into_values().collect();
        for site in &mut sites {
            site.location = location(site.pid, site.execs, site.site);
            site.sleeps
                .sort_by(|a, b| (b.total_ns.cmp(&a.total_ns)).then_with(|| a.stack.cmp(&b.stack)));
        }
        sites.sort_by(|a, b| {
            let length_ns =
                |site: &SiteTotals| (site.wall_ns + site.under_way_ns).max(site.blocked_ns());
            length_ns(b).cmp(&length_ns(a))
        });
        sites
    }
}

fn sleep_totals(
    resource: Resource,
    sleep: &Sleep,
    stack: Vec<u64>,
    symbols: Option<&Symbols>,
) -> SleepTotals {
    SleepTotals {
        label: symbols.map_or(Label::Unknown, |symbols| symbols.label(&stack)),
        site: symbols.and_then(|symbols| symbols.site(&stack)),
        symbol: symbols.and_then(|symbols| symbols.waiting_site(&stack)),
        stack,
        count: sleep.count,
        total_ns: sleep.blocked_ns,
        max_ns: sleep.max_ns,
        wakeup_ns: sleep.wakeup_ns,
        resource,
        waiters: WaiterTotals {
            entry_sum: sleep.entry_sum,
            exit_sum: sleep.exit_sum,
            entry_max: sleep.entry_max,
            exit_max: sleep.exit_max,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Builder, COMPAT, Resource, call_name};
    use crate::layout::{Process, Sleep};

    #[test]
    fn sleeps_join_their_call_when_the_site_is_the_same() {
        let process = Process { pid: 7, execs: 0 };
        let mut builder = Builder::default();
        let sleep = Sleep {
            count: 2,
            blocked_ns: 60,
            ..Sleep::default()
        };
        builder.sleep(
            (process, Some(0), 0x10),
            Resource::File,
            &sleep,
            Vec::new(),
            None,
        );
        builder.call(
            (process, Some(0), 0x10),
            &[3, 100, 50, 1, 0, 60, 2, 1, 15, 4, 0, 2, !9, 45, !8],
        );
        builder.call(
            (process, Some(0), 0x20),
            &[1, 500, 500, 0, 0, 0, 0, 0, 0, 0, 1, 0, !500, 500, !500],
        );
        let sites = builder.finish(|_, _, _| None);
        assert_eq!(
            sites.iter().map(|site| site.site).collect::<Vec<_>>(),
            [0x20, 0x10]
        );
        assert_eq!(
            (sites[1].count, sites[1].cpu_ns, sites[1].sleep_count()),
            (3, 25, 2)
        );
        let lengths = (
            sites[1].min_ns,
            sites[1].in_band_min_ns,
            sites[1].in_band_max_ns,
        );
        assert_eq!((sites[1].errors, lengths), (2, (9, 8, 45)));
        assert_eq!((sites[0].unfinished, sites[0].sleeps.len()), (1, 0));
    }

    #[test]
    fn number_stays_when_a_call_has_no_name() {
        assert_eq!(call_name(Some(9999)), "call 9999");
        assert_eq!(call_name(Some(COMPAT | 3)), "32-bit call 3");
        assert_eq!(call_name(None), "outside calls");
    }
}
