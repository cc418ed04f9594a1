//! Sessions on a stand-in for the kernel: a few counters per CPU, groups that take turns,
//! events that are refused.

use std::cell::{Cell, RefCell};

use headway_os::perf::counter::Reading;

use super::*;
use crate::machine::tests::{machine_of, zen5};

/// A kernel whose events happen at a rate that follows from their code, for one second.
struct FakePerf {
    /// Programmable counters of a CPU.
    counters: usize,
    /// Codes that it does not have.
    absent: Vec<u64>,
    /// Codes that open and never count.
    silent: Vec<u64>,
    /// Answers EACCES to everything.
    locked: bool,
    groups: RefCell<Vec<FakeGroup>>,
    started: Cell<usize>,
}

struct FakeGroup {
    counter_scope: CounterScope,
    words: Vec<EventWords>,
}

#[derive(Debug)]
struct FakeHandle {
    group: usize,
    words: EventWords,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Of the core's own unit, whether by the kernel's names or by code.
fn is_core_event(words: &EventWords) -> bool {
    matches!(words.kind, 0 | 4)
}

/// Events in a second.
fn rate(words: &EventWords) -> u64 {
    1_000_000 + words.config % 1000 * 1000
}

impl FakePerf {
    fn new(counters: usize) -> FakePerf {
        FakePerf {
            counters,
            absent: Vec::new(),
            silent: Vec::new(),
            locked: false,
            groups: RefCell::new(Vec::new()),
            started: Cell::new(0),
        }
    }
}

impl Perf for FakePerf {
    type Handle = FakeHandle;

    fn open(
        &self,
        words: &EventWords,
        counter_scope: CounterScope,
        leader: Option<&FakeHandle>,
    ) -> Result<FakeHandle, OpenError> {
        if self.locked {
            return Err(OpenError::NotPermitted);
        }
        if is_core_event(words) && self.absent.contains(&words.config) {
            return Err(OpenError::Absent);
        }
        let mut groups = self.groups.borrow_mut();
        let group = match leader {
            // A group is on one unit.
            Some(leader) if is_core_event(&leader.words) != is_core_event(words) => {
                return Err(OpenError::DoesNotFit);
            }
            Some(leader) => leader.group,
            None => {
                groups.push(FakeGroup {
                    counter_scope,
                    words: Vec::new(),
                });
                groups.len() - 1
            }
        };
        let used = groups[group]
            .words
            .iter()
            .filter(|words| is_core_event(words))
            .count();
        if is_core_event(words) && used == self.counters {
            return Err(OpenError::DoesNotFit);
        }
        groups[group].words.push(*words);
        Ok(FakeHandle {
            group,
            words: *words,
        })
    }

    fn start(&self, _: &FakeHandle) -> io::Result<()> {
        self.started.set(self.started.get() + 1);
        Ok(())
    }

    fn stop(&self, _: &FakeHandle) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, handle: &FakeHandle) -> io::Result<Reading> {
        let groups = self.groups.borrow();
        let here = groups[handle.group].counter_scope;
        let takes_turns = |group: &&FakeGroup| {
            group.counter_scope == here && group.words.iter().any(is_core_event)
        };
        let turns = match is_core_event(&handle.words) {
            true => groups.iter().filter(takes_turns).count() as u64,
            false => 1,
        };
        let silent = is_core_event(&handle.words) && self.silent.contains(&handle.words.config);
        let running_ns = if silent { 0 } else { SECOND_NS / turns };
        Ok(Reading {
            value: rate(&handle.words) * running_ns / SECOND_NS,
            enabled_ns: SECOND_NS,
            running_ns,
        })
    }
}

fn cpus(cpus: &[usize]) -> Target {
    Target::Cpus {
        cpus: cpus.to_vec(),
        cores: vec![cpus.to_vec()],
    }
}

const WANTED: [Meaning; 12] = [
    Meaning::Cycles,
    Meaning::Instructions,
    Meaning::Branches,
    Meaning::Mispredictions,
    Meaning::L1dReferences,
    Meaning::L1dMisses,
    Meaning::L2References,
    Meaning::L2Misses,
    Meaning::ItlbMisses,
    Meaning::DtlbMisses,
    Meaning::StoreBufferStalls,
    Meaning::ContextSwitches,
];

#[test]
fn scaled_counts_are_the_true_rates_when_groups_are_multiplexed() {
    let (_root, machine) = zen5("0");
    let perf = FakePerf::new(6);
    let session =
        Session::open(&perf, &machine, &WANTED, &cpus(&[3]), &[Space::Both]).expect("opened");
    session.start().expect("started");
    assert_eq!(perf.started.get(), session.opened());
    let counts = session.counts().expect("read");
    assert!(counts.missing.is_empty(), "{:?}", counts.missing);
    for meaning in WANTED {
        let resolved = machine.resolve(meaning).expect("there");
        let count = counts.spaces[&Space::Both][&meaning];
        let truth = rate(&resolved.events[0].words) as f64;
        assert!(
            (count.value / truth - 1.0).abs() < 1e-3,
            "{meaning}: {count:?} instead of {truth}"
        );
        // Cycles and instructions are in every group, and so are counted all the time.
        let always = matches!(
            meaning,
            Meaning::Cycles | Meaning::Instructions | Meaning::ContextSwitches
        );
        assert!(always || count.is_scaled(), "{meaning}: {count:?}");
    }
}

#[test]
fn group_is_divided_when_the_hardware_has_fewer_counters_than_assumed() {
    let (_root, machine) = zen5("0");
    // Another program holds three of the six.
    let perf = FakePerf::new(3);
    let session =
        Session::open(&perf, &machine, &WANTED, &cpus(&[0]), &[Space::Both]).expect("opened");
    for group in perf.groups.borrow().iter() {
        assert!(
            group
                .words
                .iter()
                .filter(|words| is_core_event(words))
                .count()
                <= 3
        );
    }
    let counts = session.counts().expect("read");
    assert!(counts.missing.is_empty(), "{:?}", counts.missing);
}

#[test]
fn user_and_kernel_are_counted_apart_when_both_are_asked_for() {
    let (_root, machine) = zen5("0");
    let perf = FakePerf::new(6);
    let spaces = [Space::User, Space::Kernel];
    let wanted = [Meaning::Instructions, Meaning::ContextSwitches];
    let session = Session::open(&perf, &machine, &wanted, &cpus(&[0]), &spaces).expect("opened");
    let groups = perf.groups.borrow();
    let words: Vec<EventWords> = groups
        .iter()
        .flat_map(|group| group.words.clone())
        .collect();
    let hardware: Vec<&EventWords> = words.iter().filter(|words| words.kind == 0).collect();
    assert!(hardware[0].exclude_kernel && hardware[1].exclude_user);
    drop(groups);
    let counts = session.counts().expect("read");
    assert!(counts.of(Space::User, Meaning::Instructions).is_some());
    assert!(
        counts.value(Meaning::ContextSwitches).is_some(),
        "once, for both"
    );
}

#[test]
fn uncore_events_are_counted_on_their_own_cpus_and_for_no_process() {
    let (_root, machine) = zen5("0");
    let perf = FakePerf::new(6);
    let wanted = [Meaning::L3Misses, Meaning::MemoryReads];
    let session =
        Session::open(&perf, &machine, &wanted, &cpus(&[5]), &[Space::Both]).expect("opened");
    let counter_scope: Vec<CounterScope> = perf
        .groups
        .borrow()
        .iter()
        .map(|group| group.counter_scope)
        .collect();
    assert!(
        counter_scope.contains(&CounterScope::Cpu(8))
            && !counter_scope.contains(&CounterScope::Cpu(5)),
        "{counter_scope:?}"
    );
    // Two controllers on CPU 0, one level-3 cache on each of CPUs 0 and 8.
    let counts = session.counts().expect("read");
    let reads = counts.value(Meaning::MemoryReads).expect("counted");
    assert_eq!(
        reads,
        2.0 * rate(&EventWords {
            config: 0x10a,
            ..EventWords::default()
        }) as f64
    );

    let session = Session::open(
        &perf,
        &machine,
        &wanted,
        &Target::Threads(vec![1]),
        &[Space::Both],
    )
    .expect("opened");
    let counts = session.counts().expect("read");
    assert!(counts.missing[&Meaning::L3Misses].contains("count CPUs"));
}

#[test]
fn available_events_are_counted_in_a_guest() {
    let (_root, machine) = zen5("0");
    let mut perf = FakePerf::new(6);
    let config = |meaning| {
        machine.resolve(meaning).expect("there").events[0]
            .words
            .config
    };
    perf.absent = vec![config(Meaning::L2Misses)];
    perf.silent = vec![config(Meaning::StoreBufferStalls)];
    let session =
        Session::open(&perf, &machine, &WANTED, &cpus(&[0]), &[Space::Both]).expect("opened");
    let counts = session.counts().expect("read");
    assert_eq!(counts.missing.len(), 2, "{:?}", counts.missing);
    assert!(counts.missing[&Meaning::L2Misses].contains("does not count it"));
    assert!(counts.missing[&Meaning::StoreBufferStalls].contains("never counted"));
    assert!(counts.value(Meaning::L2References).is_some());
}

#[test]
fn counting_fails_without_events_or_processes() {
    let (_root, machine) = zen5("0");
    let mut perf = FakePerf::new(6);
    perf.locked = true;
    let opened = Session::open(&perf, &machine, &WANTED, &cpus(&[0]), &[Space::Both]);
    assert_eq!(opened.err(), Some(OpenError::NotPermitted));
    let (_root, bare) = machine_of(&[]);
    perf.locked = false;
    let session =
        Session::open(&perf, &bare, &WANTED, &cpus(&[0]), &[Space::Both]).expect("software");
    let counts = session.counts().expect("read");
    assert!(!counts.has_hardware());
    assert_eq!(counts.missing[&Meaning::Cycles], "no CPU counters here");
    assert!(counts.value(Meaning::ContextSwitches).is_some());
}

#[test]
fn cpu_targets_have_no_cpu_time() {
    let (_root, machine) = zen5("0");
    let perf = FakePerf::new(6);
    let counted = |target: &Target| {
        let wanted = [Meaning::TaskClock, Meaning::ContextSwitches];
        let session = Session::open(&perf, &machine, &wanted, target, &[Space::Both]);
        session.expect("opened").counts().expect("read")
    };
    let counts = counted(&cpus(&[0]));
    assert_eq!(counts.value(Meaning::TaskClock), None);
    assert!(counts.missing[&Meaning::TaskClock].contains("count processes"));
    let counts = counted(&Target::Threads(vec![1]));
    assert!(counts.value(Meaning::TaskClock).is_some());
}

#[test]
fn core_event_is_counted_once_per_core() {
    let (_root, machine) = zen5("0");
    let mut event = machine.resolve(Meaning::L2Misses).expect("there");
    event.scope = Scope::Core;
    let group = Group {
        events: vec![event],
    };
    let target = Target::Cpus {
        cpus: vec![0, 1, 4, 5],
        cores: vec![vec![0, 4], vec![1, 5]],
    };
    let found = scopes(&group, &target).ok();
    assert_eq!(
        found,
        Some(vec![CounterScope::Cpu(0), CounterScope::Cpu(1)])
    );
    let nobody = scopes(&group, &Target::Children);
    assert!(matches!(nobody, Err(Unplaced::Nowhere(why)) if why.contains("whole core")));
}
