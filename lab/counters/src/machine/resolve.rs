//! From a meaning to the words the kernel takes on this machine, or the reason why there are none.

use headway_os::perf::counter::EventWords;

use super::Machine;
use crate::events::{Meaning, Scope, table};

/// How a meaning is counted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The meaning that is counted.
    pub meaning: Meaning,
    /// What is opened: one event, or one for each of several equal units, whose counts are added.
    pub events: Vec<Placed>,
    /// What one counter counts for.
    pub scope: Scope,
    /// What the maker or the kernel calls it.
    pub name: String,
    /// Where that is described.
    pub source: String,
    /// The event takes a programmable counter of a hardware thread.
    pub is_programmable: bool,
}

/// An event, and where it is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The words of the event for perf_event_open(2).
    pub words: EventWords,
    /// The CPUs on which its unit is asked; `None` for any.
    pub cpus: Option<Vec<usize>>,
}

/// Why a meaning cannot be counted here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// There is nothing to count with.
    #[error("no CPU counters here")]
    NoCounters,
    /// Nothing on this core counts it.
    #[error("nothing on this CPU counts it")]
    NoCounterpart,
    /// The table does not know this core, and the kernel has no name for it.
    #[error("not known for this CPU")]
    UnknownCore,
    /// The kernel does not offer the unit.
    #[error("the kernel offers no counting unit {0}")]
    NoUnit(String),
    /// The kernel's description of the unit and the table do not fit.
    #[error("the kernel's description of the unit does not fit the table: {0}")]
    Code(#[from] super::BadCode),
}

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const TYPE_CACHE: u32 = 3;

/// The kernel's names, perf_event_open(2). Cache events are level | operation << 8 | result << 16;
/// all here are reads but the stores.
fn generic_event(name: &str) -> Option<(u32, u64)> {
    let cache =
        |level: u64, operation: u64, miss: u64| (TYPE_CACHE, level | operation << 8 | miss << 16);
    Some(match name {
        "cpu-cycles" => (TYPE_HARDWARE, 0),
        "instructions" => (TYPE_HARDWARE, 1),
        "cache-references" => (TYPE_HARDWARE, 2),
        "cache-misses" => (TYPE_HARDWARE, 3),
        "branch-instructions" => (TYPE_HARDWARE, 4),
        "branch-misses" => (TYPE_HARDWARE, 5),
        "stalled-cycles-frontend" => (TYPE_HARDWARE, 7),
        "stalled-cycles-backend" => (TYPE_HARDWARE, 8),
        "ref-cycles" => (TYPE_HARDWARE, 9),
        "L1-dcache-loads" => cache(0, 0, 0),
        "L1-dcache-load-misses" => cache(0, 0, 1),
        "L1-dcache-stores" => cache(0, 1, 0),
        "L1-icache-loads" => cache(1, 0, 0),
        "L1-icache-load-misses" => cache(1, 0, 1),
        "dTLB-loads" => cache(3, 0, 0),
        "dTLB-load-misses" => cache(3, 0, 1),
        "iTLB-loads" => cache(4, 0, 0),
        "iTLB-load-misses" => cache(4, 0, 1),
        "task-clock" => (TYPE_SOFTWARE, 1),
        "context-switches" => (TYPE_SOFTWARE, 3),
        "cpu-migrations" => (TYPE_SOFTWARE, 4),
        "minor-faults" => (TYPE_SOFTWARE, 5),
        "major-faults" => (TYPE_SOFTWARE, 6),
        _ => return None,
    })
}

impl Machine {
    /// How a meaning is counted here.
    ///
    /// # Errors
    /// [`Absent`], a reason that can stand in a report.
    pub fn resolve(&self, meaning: Meaning) -> Result<Resolved, Absent> {
        let event = table().event(meaning);
        if !meaning.is_software() && self.core_unit().is_none() {
            return Err(Absent::NoCounters);
        }
        let core = self.core.as_ref();
        let raw = core.and_then(|(name, core)| Some((event.raw.get(name)?, core)));
        if let Some((raw, core)) = raw {
            let fixed = core.fixed.contains(&meaning);
            // The metrics of top-down come from a register of their own, whose fields have these
            // codes.
            let metric = raw.code.starts_with("event=0x00,umask=0x8");
            return Ok(Resolved {
                meaning,
                events: self.placed(raw.pmu.as_deref(), &raw.code)?,
                scope: raw.scope,
                name: raw.name.clone(),
                source: format!("{}, {}", core.source, raw.file),
                is_programmable: raw.scope != Scope::Unit && !fixed && !metric,
            });
        }
        let generic = event.generic.as_deref();
        let Some((name, (kind, config))) =
            generic.and_then(|name| Some((name, generic_event(name)?)))
        else {
            return Err(match core {
                Some(_) => Absent::NoCounterpart,
                None => Absent::UnknownCore,
            });
        };
        let fixed = core.is_some_and(|(_, core)| core.fixed.contains(&meaning));
        let words = EventWords {
            kind,
            config,
            ..EventWords::default()
        };
        Ok(Resolved {
            meaning,
            events: vec![Placed { words, cpus: None }],
            scope: Scope::Thread,
            name: name.into(),
            source: "the kernel's name, perf_event_open(2)".into(),
            is_programmable: !meaning.is_software() && !fixed,
        })
    }

    /// The words of a code on the core's unit, or on all units of a name.
    fn placed(&self, pmu: Option<&str>, code: &str) -> Result<Vec<Placed>, Absent> {
        let units: Vec<_> = match pmu {
            None => self.core_unit().into_iter().collect(),
            Some(name) => {
                let is_one = |unit: &&super::CountingUnit| {
                    let rest = unit.name.strip_prefix(name);
                    // uncore_imc_0 is one of uncore_imc, uncore_imc_free_running_0 is none.
                    rest.is_some_and(|rest| {
                        let number = rest.strip_prefix('_').unwrap_or(rest);
                        number.bytes().all(|byte| byte.is_ascii_digit())
                    })
                };
                self.units.iter().filter(is_one).collect()
            }
        };
        if units.is_empty() {
            return Err(Absent::NoUnit(pmu.unwrap_or("cpu").into()));
        }
        let placed = units.into_iter().map(|unit| {
            let [config, config1, config2] = unit.encode(code)?;
            let words = EventWords {
                kind: unit.kind,
                config,
                config1,
                config2,
                ..EventWords::default()
            };
            let cpus = unit.cpus.clone();
            Ok(Placed { words, cpus })
        });
        placed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine_of, zen5};
    use super::*;

    #[test]
    fn core_specific_event_code_is_preferred() {
        let (_root, machine) = zen5("0");
        let branches = machine.resolve(Meaning::Mispredictions).expect("there");
        assert_eq!(branches.name, "ex_ret_brn_misp");
        assert_eq!(branches.events[0].words.config, 0xc3);
        assert_eq!(branches.events[0].words.kind, 4);
        assert!(branches.source.contains("amdzen5") && branches.is_programmable);
        let cycles = machine.resolve(Meaning::Cycles).expect("there");
        assert_eq!(
            (cycles.name.as_str(), cycles.events[0].words.kind),
            ("cpu-cycles", 0)
        );
    }

    #[test]
    fn every_equal_unit_is_counted_on_its_cpus() {
        let (_root, machine) = zen5("0");
        let reads = machine.resolve(Meaning::MemoryReads).expect("there");
        assert_eq!(reads.scope, Scope::Unit);
        let kinds: Vec<u32> = reads.events.iter().map(|event| event.words.kind).collect();
        assert_eq!(kinds, [20, 21]);
        assert_eq!(reads.events[0].words.config, 0x10a);
        assert_eq!(reads.events[0].cpus, Some(vec![0]));
        assert!(!reads.is_programmable);
        let l3 = machine.resolve(Meaning::L3Misses).expect("there");
        assert_eq!(l3.events[0].cpus, Some(vec![0, 8]));
    }

    #[test]
    fn event_that_cannot_be_counted_is_listed_with_the_reason() {
        let (_root, machine) = zen5("0");
        assert_eq!(machine.resolve(Meaning::Slots), Err(Absent::NoCounterpart));
        let (_root, bare) = machine_of(&[("proc/cpuinfo", "vendor_id : x\nmodel : 1\n")]);
        assert_eq!(bare.resolve(Meaning::Cycles), Err(Absent::NoCounters));
        assert!(bare.resolve(Meaning::TaskClock).is_ok());
        let unknown = [
            ("proc/cpuinfo", "vendor_id : x\nmodel : 1\n"),
            ("sys/bus/event_source/devices/cpu/type", "4\n"),
        ];
        let (_root, unknown) = machine_of(&unknown);
        assert_eq!(unknown.resolve(Meaning::Aliasing), Err(Absent::UnknownCore));
        assert_eq!(
            unknown.resolve(Meaning::L1dMisses).expect("generic").events[0]
                .words
                .config,
            0x1_0000
        );
    }

    #[test]
    fn every_generic_event_has_a_description() {
        for meaning in table().meanings() {
            if let Some(name) = &table().event(meaning).generic {
                assert!(generic_event(name).is_some(), "{meaning}: {name}");
            }
        }
    }
}
