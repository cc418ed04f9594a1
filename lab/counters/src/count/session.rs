//! A counting session: groups opened for a target, started together, read, and added up.
//!
//! Events that count for a whole core are opened on one of its threads only; those of a unit
//! outside the cores on the CPUs that the kernel names. Neither can follow a process, which
//! the counts say where it is asked for.

use std::collections::BTreeMap;
use std::io;

use headway_os::perf::counter::{CounterScope, EventWords};

use super::counts::{Counts, EventReading, Space, Sum};
use super::perf::{OpenError, Perf};
use super::plan::{Group, groups};
use crate::events::{Meaning, Scope};
use crate::machine::{Machine, Resolved};

/// The target whose events are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All that runs on these CPUs. `cores` has the threads of each core among them.
    Cpus {
        /// The CPUs.
        cpus: Vec<usize>,
        /// The CPUs, core by core.
        cores: Vec<Vec<usize>>,
    },
    /// Threads, and all that they start from now on.
    Threads(Vec<i32>),
    /// What the calling thread starts from now on.
    Children,
}

/// Programmable counters assumed where the table does not know the core: what x86 and Arm
/// CPUs have had at least for fifteen years. A group that turns out too large is divided.
const COUNTERS_ASSUMED: usize = 4;

/// Why CPUs have no CPU time: the kernel's clock for it does not stop while nothing
/// runs.
const WALL_CLOCK: &str = "on a CPU it is the time on the wall; count processes instead";

/// Open counters.
pub struct Session<'a, P: Perf> {
    perf: &'a P,
    opened: Vec<Opened<P::Handle>>,
    missing: BTreeMap<Meaning, String>,
}

/// A group in one place: its members in order, the first leads.
struct Opened<H> {
    space: Space,
    counter_scope: CounterScope,
    members: Vec<Member<H>>,
}

/// One open counter.
struct Member<H> {
    meaning: Meaning,
    scope: Scope,
    words: EventWords,
    handle: H,
}

impl<H> Member<H> {
    fn new(event: &Resolved, words: EventWords, handle: H) -> Member<H> {
        Member {
            meaning: event.meaning,
            scope: event.scope,
            words,
            handle,
        }
    }
}

/// How often counters could not be opened for reasons that may hold for all of them.
#[derive(Default)]
struct Refusals {
    not_permitted: usize,
    gone: usize,
}

impl<'a, P: Perf> Session<'a, P> {
    /// Opens counters for meanings. What cannot be counted is noted with its reason and does not
    /// fail the rest.
    ///
    /// # Errors
    /// [`OpenError::Descriptors`] and [`OpenError::Other`], which are not about one event;
    /// [`OpenError::NotPermitted`] if nothing at all may be counted; [`OpenError::Gone`] if no
    /// thread of the target is left.
    pub fn open(
        perf: &'a P,
        machine: &Machine,
        meanings: &[Meaning],
        target: &Target,
        spaces: &[Space],
    ) -> Result<Session<'a, P>, OpenError> {
        let mut session = Session {
            perf,
            opened: Vec::new(),
            missing: BTreeMap::new(),
        };
        let mut wanted = Vec::new();
        for meaning in meanings {
            if *meaning == Meaning::TaskClock && matches!(target, Target::Cpus { .. }) {
                session.missing.insert(*meaning, WALL_CLOCK.into());
                continue;
            }
            match machine.resolve(*meaning) {
                Ok(resolved) => wanted.push(resolved),
                Err(absent) => drop(session.missing.insert(*meaning, absent.to_string())),
            }
        }
        let counters = machine.counters().unwrap_or(COUNTERS_ASSUMED);
        let mut refusals = Refusals::default();
        for group in groups(wanted, counters) {
            match scopes(&group, target) {
                Ok(scopes) => {
                    for space in spaces_of(&group, spaces) {
                        for scope in &scopes {
                            session.open_group(&group, space, *scope, &mut refusals)?;
                        }
                    }
                }
                Err(Unplaced::Units) => session.open_units(&group, &mut refusals)?,
                Err(Unplaced::Nowhere(why)) => session.record_missing(&group, why),
            }
        }
        match session.opened.is_empty() {
            true if refusals.not_permitted > 0 => Err(OpenError::NotPermitted),
            true if refusals.gone > 0 => Err(OpenError::Gone),
            _ => Ok(session),
        }
    }

    /// Opens a group in one place; what does not fit beside the others becomes another group.
    fn open_group(
        &mut self,
        group: &Group,
        space: Space,
        counter_scope: CounterScope,
        refusals: &mut Refusals,
    ) -> Result<(), OpenError> {
        let mut members: Vec<Member<P::Handle>> = Vec::new();
        let mut rest = Vec::new();
        for event in &group.events {
            let Some(placed) = event.events.first() else {
                continue;
            };
            let words = with_space(&placed.words, space);
            let leader = members.first().map(|first| &first.handle);
            let has_leader = leader.is_some();
            match self.perf.open(&words, counter_scope, leader) {
                Ok(handle) => members.push(Member::new(event, words, handle)),
                Err(OpenError::DoesNotFit) if has_leader => rest.push(event.clone()),
                Err(error) => self.refused(event, error, refusals)?,
            }
        }
        self.keep(space, counter_scope, members);
        match rest.is_empty() {
            true => Ok(()),
            false => self.open_group(&Group { events: rest }, space, counter_scope, refusals),
        }
    }

    /// Opens what units outside the cores count, each on its own CPUs and alone: a group is
    /// on one unit.
    fn open_units(&mut self, group: &Group, refusals: &mut Refusals) -> Result<(), OpenError> {
        for event in &group.events {
            for placed in &event.events {
                let cpus = placed.cpus.clone().unwrap_or_else(|| vec![0]);
                for counter_scope in cpus.into_iter().map(CounterScope::Cpu) {
                    match self.perf.open(&placed.words, counter_scope, None) {
                        Ok(handle) => {
                            let member = Member::new(event, placed.words, handle);
                            self.keep(Space::Both, counter_scope, vec![member]);
                        }
                        Err(error) => self.refused(event, error, refusals)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, space: Space, counter_scope: CounterScope, members: Vec<Member<P::Handle>>) {
        if !members.is_empty() {
            self.opened.push(Opened {
                space,
                counter_scope,
                members,
            });
        }
    }

    /// Notes why an event cannot be had; an error if it is not about this event.
    fn refused(
        &mut self,
        event: &Resolved,
        error: OpenError,
        refusals: &mut Refusals,
    ) -> Result<(), OpenError> {
        let why = match error {
            OpenError::Gone => {
                refusals.gone += 1;
                return Ok(());
            }
            OpenError::Descriptors | OpenError::Other(_) => return Err(error),
            OpenError::DoesNotFit => "the kernel refuses its code".to_owned(),
            OpenError::Absent | OpenError::NotPermitted => {
                refusals.not_permitted += usize::from(error == OpenError::NotPermitted);
                error.to_string()
            }
        };
        self.missing.insert(event.meaning, why);
        Ok(())
    }

    fn record_missing(&mut self, group: &Group, why: &str) {
        for event in &group.events {
            self.missing.insert(event.meaning, why.into());
        }
    }

    /// Starts all counters.
    ///
    /// # Errors
    /// Of the system.
    pub fn start(&self) -> io::Result<()> {
        self.each_leader(|handle| self.perf.start(handle))
    }

    /// Stops all counters.
    ///
    /// # Errors
    /// Of the system.
    pub fn stop(&self) -> io::Result<()> {
        self.each_leader(|handle| self.perf.stop(handle))
    }

    fn each_leader(&self, order: impl Fn(&P::Handle) -> io::Result<()>) -> io::Result<()> {
        let leaders = self.opened.iter().filter_map(|group| group.members.first());
        leaders
            .into_iter()
            .try_for_each(|first| order(&first.handle))
    }

    /// How many groups of hardware events take turns in one place.
    pub fn opened(&self) -> usize {
        self.opened.len()
    }

    /// What was counted so far.
    ///
    /// # Errors
    /// Of the system. An event that could never be put on the hardware is no error but missing.
    pub fn counts(&self) -> io::Result<Counts> {
        let mut here: BTreeMap<_, (EventReading, Scope)> = BTreeMap::new();
        let mut missing = self.missing.clone();
        for group in &self.opened {
            for member in &group.members {
                match self.perf.read(&member.handle) {
                    Ok(mut reading) => {
                        // The kernel's own counts take no turns; that its clocks start one after
                        // the other is no reason to scale.
                        if member.meaning.is_software() {
                            reading.running_ns = reading.enabled_ns;
                        }
                        // Equal units in one place have kinds of their own, equal events in several
                        // groups have not.
                        let identity = (scope_number(group.counter_scope), member.words.kind);
                        let entry = here
                            .entry((group.space, member.meaning, identity))
                            .or_default();
                        entry.0.add(reading);
                        entry.1 = member.scope;
                    }
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        missing
                            .insert(member.meaning, "it could not be put on the hardware".into());
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let mut sums: BTreeMap<(Space, Meaning), (Sum, Scope)> = BTreeMap::new();
        for ((space, meaning, _), (here, scope)) in here {
            let sum = sums.entry((space, meaning)).or_default();
            sum.0.add(here);
            sum.1 = scope;
        }
        let mut counts = Counts::default();
        for ((space, meaning), (sum, scope)) in sums {
            if missing.contains_key(&meaning) {
                // Missing in one place is missing: the rest would be a part of a figure.
                continue;
            }
            match sum.count(scope) {
                Some(count) => {
                    counts
                        .spaces
                        .entry(space)
                        .or_default()
                        .insert(meaning, count);
                }
                None => {
                    missing.insert(
                        meaning,
                        "it was opened and never counted, as in guests that have it only in part"
                            .into(),
                    );
                }
            }
        }
        counts.spaces.values_mut().for_each(|found| {
            found.retain(|meaning, _| !missing.contains_key(meaning));
        });
        counts.missing = missing;
        counts.drop_standing();
        Ok(counts)
    }
}

/// In which spaces a group is counted: what happens outside the cores, or in the kernel by its
/// nature, belongs to no user space.
fn spaces_of(group: &Group, wanted: &[Space]) -> Vec<Space> {
    let plain = group
        .events
        .iter()
        .any(|event| event.scope == Scope::Unit || event.meaning.is_software());
    match plain {
        true => vec![Space::Both],
        false => wanted.to_vec(),
    }
}

/// A scope as a number.
fn scope_number(counter_scope: CounterScope) -> i64 {
    match counter_scope {
        CounterScope::Thread(thread) => i64::from(thread),
        CounterScope::Children => 0,
        CounterScope::Cpu(number) => number as i64,
    }
}

fn with_space(words: &EventWords, space: Space) -> EventWords {
    EventWords {
        exclude_user: space == Space::Kernel,
        exclude_kernel: space == Space::User,
        ..*words
    }
}

/// Why a group has no scopes of its own.
enum Unplaced {
    /// The units of the group are counted on CPUs of their own.
    Units,
    /// The group cannot be counted for this target.
    Nowhere(&'static str),
}

/// Where a group is to be opened.
fn scopes(group: &Group, target: &Target) -> Result<Vec<CounterScope>, Unplaced> {
    const WHOLE_CORE: &str = "it counts for a whole core; count CPUs instead of processes";
    const UNIT: &str =
        "it counts outside the cores for all processes; count CPUs instead of processes";
    let first = group.events.first();
    let scope = first.map_or(Scope::Thread, |event| event.scope);
    Ok(match (target, scope) {
        (Target::Threads(threads), Scope::Thread) => {
            threads.iter().copied().map(CounterScope::Thread).collect()
        }
        (Target::Children, Scope::Thread) => vec![CounterScope::Children],
        (Target::Cpus { cpus, .. }, Scope::Thread) => {
            cpus.iter().copied().map(CounterScope::Cpu).collect()
        }
        (Target::Cpus { cores, .. }, Scope::Core) => {
            let first = cores.iter().filter_map(|core| core.first());
            first.copied().map(CounterScope::Cpu).collect()
        }
        (Target::Cpus { .. }, Scope::Unit) => return Err(Unplaced::Units),
        (_, Scope::Core) => return Err(Unplaced::Nowhere(WHOLE_CORE)),
        (_, Scope::Unit) => return Err(Unplaced::Nowhere(UNIT)),
    })
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
