//! What was counted, scaled where an event had to take turns, and what was not counted and why.

use std::collections::BTreeMap;

use headway_os::perf::counter::Reading;
use serde::{Deserialize, Serialize};

use crate::events::{Meaning, Scope};

/// The privilege level whose code is counted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// User space and the kernel.
    #[default]
    Both,
    /// User space alone.
    User,
    /// The kernel alone.
    Kernel,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// Events, estimated for the whole time if they were counted for a part of it only.
    pub value: f64,
    /// The part of the time for which they were counted: 1, or less if the counter took turns with
    /// others.
    pub counted_share: f64,
    /// What one counter counted for.
    #[serde(default)]
    pub scope: Scope,
}

impl Count {
    /// Whether the count is an estimate.
    pub fn is_scaled(&self) -> bool {
        self.counted_share < 1.0
    }
}

/// All counts of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// By whose code, then by meaning.
    pub spaces: BTreeMap<Space, BTreeMap<Meaning, Count>>,
    /// What was asked for and not counted, with the reason.
    pub missing: BTreeMap<Meaning, String>,
}

/// Readings of one event in one place, on their way to one count. Cycles and instructions stand in
/// several groups there, which take turns or count at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventReading {
    value: u64,
    enabled_ns: u64,
    running_ns: u64,
}

impl EventReading {
    /// Adds a reading: the time for which it was wanted is the same for all, that for which it
    /// counted adds up.
    pub fn add(&mut self, reading: Reading) {
        self.value += reading.value;
        self.enabled_ns = self.enabled_ns.max(reading.enabled_ns);
        self.running_ns += reading.running_ns;
    }
}

/// What was counted in several places, on its way to one count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    value: f64,
    enabled_ns: u64,
    running_ns: u64,
    silent: bool,
}

impl Sum {
    /// Adds one place. Each is scaled by its own times: a thread that lived for a moment has turns
    /// of its own.
    pub fn add(&mut self, here: EventReading) {
        self.enabled_ns += here.enabled_ns;
        self.running_ns += here.running_ns.min(here.enabled_ns);
        match (here.running_ns, here.enabled_ns) {
            // A place where nothing ran has nothing to count.
            (0, 0) => {}
            // Wanted, and never on the hardware.
            (0, _) => self.silent = true,
            // Above one where it took turns, below where two groups counted it at the same time.
            (running, enabled) => {
                self.value += here.value as f64 * (enabled as f64 / running as f64)
            }
        }
    }

    /// The count; `None` if it never was on the hardware where it was wanted.
    pub fn count(&self, scope: Scope) -> Option<Count> {
        // Half of the CPUs without a figure would be half of the figure.
        if self.silent {
            return None;
        }
        let counted_share = match self.enabled_ns {
            0 => 1.0,
            enabled => self.running_ns as f64 / enabled as f64,
        };
        Some(Count {
            value: self.value,
            counted_share,
            scope,
        })
    }
}

impl Counts {
    /// Events of a meaning in all code.
    pub fn value(&self, meaning: Meaning) -> Option<f64> {
        self.of(Space::Both, meaning)
    }

    /// Events of a meaning in some code; those of both are added up where they were counted apart.
    pub fn of(&self, space: Space, meaning: Meaning) -> Option<f64> {
        let direct = |space| {
            let counts = self.spaces.get(&space)?;
            Some(counts.get(&meaning)?.value)
        };
        match space {
            Space::Both => {
                direct(Space::Both).or_else(|| Some(direct(Space::User)? + direct(Space::Kernel)?))
            }
            _ => direct(space),
        }
    }

    /// The smallest share of the time for which any of these was counted; `None` if one is missing.
    pub fn counted_share(&self, meanings: &[Meaning]) -> Option<f64> {
        let mut least = 1.0_f64;
        for meaning in meanings {
            let shares = self
                .spaces
                .values()
                .filter_map(|counts| counts.get(meaning));
            let share = shares.map(|count| count.counted_share).reduce(f64::min)?;
            least = least.min(share);
        }
        Some(least)
    }

    /// Adds the counts of another session: of other meanings beside these, or of the same in
    /// another measurement, which are added up. A meaning that only one of two measurements has is
    /// missing.
    pub fn merge(&mut self, other: Counts) {
        for (space, counts) in other.spaces {
            let here = self.spaces.entry(space).or_default();
            for (meaning, count) in counts {
                here.entry(meaning)
                    .and_modify(|sum| {
                        sum.value += count.value;
                        sum.counted_share = sum.counted_share.min(count.counted_share);
                    })
                    .or_insert(count);
            }
        }
        self.missing.extend(other.missing);
        for counts in self.spaces.values_mut() {
            counts.retain(|meaning, _| !self.missing.contains_key(meaning));
        }
    }

    /// Whether any hardware event was counted.
    pub fn has_hardware(&self) -> bool {
        let all = self.spaces.values().flat_map(BTreeMap::keys);
        all.into_iter().any(|meaning| !meaning.is_software())
    }

    /// A counter of cycles or instructions that stands still while time passes counts nothing:
    /// hypervisors that pass only some events on answer zero for the others. Such figures go, with
    /// the reason.
    pub(super) fn drop_standing(&mut self) {
        let busy = self.value(Meaning::TaskClock).is_none_or(|ns| ns > 1e6);
        // In whatever spaces it was counted.
        let stands = |meaning: &Meaning| {
            let counts = self.spaces.values();
            let mut found = counts.filter_map(|counts| counts.get(meaning)).peekable();
            found.peek().is_some() && found.all(|count| count.value == 0.0)
        };
        let standing: Vec<Meaning> = [Meaning::Cycles, Meaning::Instructions]
            .into_iter()
            .filter(stands)
            .collect();
        if !busy {
            return;
        }
        for meaning in standing {
            self.spaces.values_mut().for_each(|counts| {
                counts.remove(&meaning);
            });
            let why = "its counter stands still, as under a hypervisor that does not pass it on";
            self.missing.insert(meaning, why.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: u64, enabled_ns: u64, running_ns: u64) -> EventReading {
        let mut here = EventReading::default();
        here.add(Reading {
            value,
            enabled_ns,
            running_ns,
        });
        here
    }

    #[test]
    fn shared_event_of_several_groups_is_counted_once() {
        let of = |readings: &[(u64, u64)]| {
            let mut here = EventReading::default();
            for &(value, running_ns) in readings {
                here.add(Reading {
                    value,
                    enabled_ns: 1000,
                    running_ns,
                });
            }
            let mut sum = Sum::default();
            sum.add(here);
            sum.count(Scope::Thread).expect("counted")
        };
        // Three groups in turn, of which two were seen, and two groups at the same time.
        assert_eq!(of(&[(30, 300), (30, 300)]).value, 100.0);
        let both = of(&[(100, 1000), (100, 1000)]);
        assert!(both.value == 100.0 && !both.is_scaled(), "{both:?}");
    }

    #[test]
    fn multiplexed_count_is_scaled_and_marked() {
        let mut sum = Sum::default();
        sum.add(reading(1000, 4_000, 1_000));
        sum.add(reading(500, 4_000, 4_000));
        let count = sum.count(Scope::Thread).expect("counted");
        assert_eq!(count.value, 4500.0);
        assert_eq!(count.counted_share, 5.0 / 8.0);
        assert!(count.is_scaled());
        let mut whole = Sum::default();
        whole.add(reading(7, 10, 10));
        whole.add(reading(0, 0, 0));
        let count = whole.count(Scope::Thread).expect("counted");
        assert!(!count.is_scaled() && count.value == 7.0);
    }

    #[test]
    fn count_is_missing_when_a_counter_never_ran() {
        let mut sum = Sum::default();
        sum.add(reading(1000, 4_000, 4_000));
        sum.add(reading(0, 4_000, 0));
        assert_eq!(sum.count(Scope::Thread), None);
    }

    #[test]
    fn stuck_counter_is_missing_in_every_space() {
        let of = |value| {
            let count = Count {
                value,
                counted_share: 1.0,
                scope: Scope::Thread,
            };
            BTreeMap::from([(Meaning::Cycles, count)])
        };
        for (user, kernel, is_there) in [(0.0, 0.0, false), (0.0, 1.0, true)] {
            let mut counts = Counts {
                spaces: BTreeMap::from([(Space::User, of(user)), (Space::Kernel, of(kernel))]),
                ..Counts::default()
            };
            counts.drop_standing();
            assert_eq!(counts.value(Meaning::Cycles).is_some(), is_there);
            assert_eq!(counts.missing.contains_key(&Meaning::Cycles), !is_there);
        }
    }

    #[test]
    fn user_and_kernel_are_added_when_they_were_counted_apart() {
        let of = |value| {
            let count = Count {
                value,
                counted_share: 1.0,
                scope: Scope::Thread,
            };
            BTreeMap::from([(Meaning::Instructions, count)])
        };
        let counts = Counts {
            spaces: BTreeMap::from([(Space::User, of(3.0)), (Space::Kernel, of(4.0))]),
            ..Counts::default()
        };
        assert_eq!(counts.value(Meaning::Instructions), Some(7.0));
        assert_eq!(counts.value(Meaning::Cycles), None);
        assert_eq!(counts.counted_share(&[Meaning::Cycles]), None);
    }
}
