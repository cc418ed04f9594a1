//! Groups: events that are to be divided by one another count at the same time.
//!
//! Events of a group are on the hardware together or not at all, so a ratio inside a group is exact
//! even when groups take turns. Each group is led by cycles and instructions, which have counters
//! of their own on most CPUs; the rest is filled with families (a cache's references and its
//! misses) as long as there is room.

use crate::events::{Meaning, Scope};
use crate::machine::Resolved;

/// Events that count together; the first leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The events.
    pub events: Vec<Resolved>,
}

impl Group {
    /// Programmable counters that it takes.
    pub fn programmable(&self) -> usize {
        self.events
            .iter()
            .filter(|event| event.is_programmable)
            .count()
    }
}

/// What is divided by one another, in the order of importance.
const FAMILIES: &[&[Meaning]] = &[
    &[
        Meaning::Slots,
        Meaning::SlotsRetired,
        Meaning::SlotsSpeculation,
        Meaning::SlotsFrontend,
        Meaning::SlotsBackend,
    ],
    &[Meaning::UopsRetired, Meaning::UopsIssued],
    &[Meaning::Branches, Meaning::Mispredictions],
    &[Meaning::L1iReferences, Meaning::L1iMisses],
    &[Meaning::L1dReferences, Meaning::L1dMisses],
    &[Meaning::L2References, Meaning::L2Misses],
    &[Meaning::L3References, Meaning::L3Misses],
    &[Meaning::ItlbReferences, Meaning::ItlbMisses],
    &[Meaning::DtlbReferences, Meaning::DtlbMisses],
];

/// The groups for what is wanted, each with at most `counters` programmable counters. Software
/// events are one group; what a unit outside the cores counts is in no group with anything else.
pub fn groups(wanted: Vec<Resolved>, counters: usize) -> Vec<Group> {
    let (units, rest): (Vec<_>, Vec<_>) = wanted
        .into_iter()
        .partition(|event| event.scope != Scope::Thread);
    let (software, hardware): (Vec<_>, Vec<_>) = rest
        .into_iter()
        .partition(|event| event.meaning.is_software());
    let mut groups = hardware_groups(hardware, counters.max(1));
    if !software.is_empty() {
        groups.push(Group { events: software });
    }
    groups.extend(units.into_iter().map(|event| Group {
        events: vec![event],
    }));
    groups
}

fn hardware_groups(wanted: Vec<Resolved>, counters: usize) -> Vec<Group> {
    let is_base =
        |event: &Resolved| matches!(event.meaning, Meaning::Cycles | Meaning::Instructions);
    let (base, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_base);
    let mut groups: Vec<Group> = Vec::new();
    for family in families(wanted) {
        let needs = Group {
            events: family.clone(),
        }
        .programmable();
        let fits = |group: &&mut Group| {
            // The kernel wants slots to lead the events of top-down, so that family leads a group
            // of its own.
            !is_top_down(&family[0]) && group.programmable() + needs <= counters
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.events.extend(family),
            None => groups.push(started(&base, family, counters)),
        }
    }
    // Where a family takes all counters there is, or no family is wanted, they count by themselves.
    let is_there = |event: &&Resolved| groups.iter().any(|group| group.events.contains(event));
    let alone: Vec<Resolved> = base
        .iter()
        .filter(|event| !is_there(event))
        .cloned()
        .collect();
    match alone.iter().filter(|event| event.is_programmable).count() <= counters {
        true if alone.is_empty() => {}
        true => groups.push(Group { events: alone }),
        false => groups.extend(alone.into_iter().map(|event| Group {
            events: vec![event],
        })),
    }
    groups
}

/// A new group: cycles and instructions as far as there is room, and the family.
fn started(base: &[Resolved], family: Vec<Resolved>, counters: usize) -> Group {
    let mut group = Group { events: family };
    let leads = is_top_down(&group.events[0]);
    for event in base.iter().rev() {
        if group.programmable() + usize::from(event.is_programmable) <= counters {
            let at = if leads { group.events.len() } else { 0 };
            group.events.insert(at, event.clone());
        }
    }
    group
}

fn is_top_down(event: &Resolved) -> bool {
    event.meaning == Meaning::Slots
}

/// Families of what is wanted; what belongs to none is one by itself.
fn families(mut wanted: Vec<Resolved>) -> Vec<Vec<Resolved>> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let (members, rest): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|event| family.contains(&event.meaning));
        wanted = rest;
        if !members.is_empty() {
            found.push(members);
        }
    }
    found.extend(wanted.into_iter().map(|event| vec![event]));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::table;
    use crate::machine::Machine;

    fn resolved(machine: &Machine) -> Vec<Resolved> {
        let all = table().meanings();
        all.filter_map(|meaning| machine.resolve(meaning).ok())
            .collect()
    }

    fn together(groups: &[Group], a: Meaning, b: Meaning) -> bool {
        let has =
            |group: &Group, meaning| group.events.iter().any(|event| event.meaning == meaning);
        groups.iter().any(|group| has(group, a) && has(group, b))
    }

    #[test]
    fn groups_fit_the_hardware_when_there_are_more_events_than_counters() {
        let (_root, machine) = crate::machine::tests::zen5("0");
        for counters in [1, 2, 4, 5, 6, 100] {
            let groups = groups(resolved(&machine), counters);
            for group in &groups {
                // A family is never torn; on a machine with fewer counters than it has members,
                // opening it tells.
                assert!(
                    group.programmable() <= counters.max(2),
                    "{counters}: {group:?}"
                );
            }
            let mut seen: Vec<Meaning> = groups
                .iter()
                .flat_map(|group| &group.events)
                .map(|event| event.meaning)
                .collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), resolved(&machine).len(), "{counters}");
        }
    }

    #[test]
    fn events_of_one_ratio_are_in_one_group() {
        let (_root, machine) = crate::machine::tests::zen5("1");
        let groups = groups(resolved(&machine), machine.counters().expect("known"));
        for (a, b) in [
            (Meaning::Cycles, Meaning::Instructions),
            (Meaning::Branches, Meaning::Mispredictions),
            (Meaning::L2References, Meaning::L2Misses),
            (Meaning::DtlbReferences, Meaning::DtlbMisses),
        ] {
            assert!(together(&groups, a, b), "{a} and {b}");
        }
        assert!(!together(&groups, Meaning::Cycles, Meaning::MemoryReads));
        assert!(!together(&groups, Meaning::Cycles, Meaning::TaskClock));
    }
}
