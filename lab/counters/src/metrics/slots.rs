//! Top-down level 1: which share of the slots for micro-operations was used, and why the others
//! were not.
//!
//! Sources: A. Yasin, "A Top-Down method for performance analysis and counters architecture",
//! ISPASS 2014; for AMD the formulas of the Linux kernel's amdzen4 and amdzen5 `pipeline.json`.

use serde::{Deserialize, Serialize};

use crate::count::Counts;
use crate::events::Meaning;

/// Shares of all slots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slots {
    /// Operations that retired.
    pub retiring: f64,
    /// Operations that were thrown away.
    pub bad_speculation: f64,
    /// Nothing was delivered.
    pub frontend: f64,
    /// Nothing could be taken.
    pub backend: f64,
    /// The core's other thread had its turn; `None` where the CPU does not tell.
    pub other_thread: Option<f64>,
}

/// The shares; `None` where the CPU does not count slots, or not all of them were counted.
/// `width` is the number of slots of a cycle where no event counts slots.
pub fn slots(counts: &Counts, width: Option<u32>) -> Option<Slots> {
    let value = |meaning| counts.value(meaning);
    if let Some(all) = value(Meaning::Slots) {
        let share = |meaning| Some(value(meaning)? / all);
        return checked(Slots {
            retiring: share(Meaning::SlotsRetired)?,
            bad_speculation: share(Meaning::SlotsSpeculation)?,
            frontend: share(Meaning::SlotsFrontend)?,
            backend: share(Meaning::SlotsBackend)?,
            other_thread: None,
        });
    }
    let all = value(Meaning::Cycles)? * f64::from(width?);
    let retired = value(Meaning::UopsRetired)?;
    checked(Slots {
        retiring: retired / all,
        // Counts of different groups are estimates, whose difference must not become negative.
        bad_speculation: (value(Meaning::UopsIssued)? - retired).max(0.0) / all,
        frontend: value(Meaning::SlotsFrontend)? / all,
        backend: value(Meaning::SlotsBackend)? / all,
        other_thread: value(Meaning::SlotsOtherThread).map(|slots| slots / all),
    })
}

fn checked(slots: Slots) -> Option<Slots> {
    let shares = [
        slots.retiring,
        slots.bad_speculation,
        slots.frontend,
        slots.backend,
    ];
    shares
        .iter()
        .all(|share| share.is_finite())
        .then_some(slots)
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::counts_of;
    use super::*;

    #[test]
    fn shares_are_of_all_slots_when_an_event_counts_them() {
        let counts = counts_of(&[
            (Meaning::Slots, 1000.0),
            (Meaning::SlotsRetired, 300.0),
            (Meaning::SlotsSpeculation, 50.0),
            (Meaning::SlotsFrontend, 250.0),
            (Meaning::SlotsBackend, 400.0),
        ]);
        let found = slots(&counts, None).expect("counted");
        assert_eq!(
            (found.retiring, found.backend, found.other_thread),
            (0.3, 0.4, None)
        );
    }

    #[test]
    fn shares_are_of_width_times_cycles_when_no_event_counts_slots() {
        let counts = counts_of(&[
            (Meaning::Cycles, 100.0),
            (Meaning::UopsRetired, 200.0),
            (Meaning::UopsIssued, 240.0),
            (Meaning::SlotsFrontend, 160.0),
            (Meaning::SlotsBackend, 300.0),
            (Meaning::SlotsOtherThread, 100.0),
        ]);
        let found = slots(&counts, Some(8)).expect("counted");
        assert_eq!((found.retiring, found.bad_speculation), (0.25, 0.05));
        assert_eq!(found.other_thread, Some(0.125));
        assert_eq!(slots(&counts, None), None, "no width, no share");
        assert_eq!(slots(&Counts::default(), Some(8)), None);
    }
}
