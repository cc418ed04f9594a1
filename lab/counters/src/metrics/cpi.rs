//! Where cycles go: the non-overlapped breakdown of Figure 4.19, with the measured CPI beside it.
//!
//! Each event costs its penalty as if nothing else went on; the sum is therefore above the measured
//! CPI as far as the CPU overlaps them, and below it as far as cycles go elsewhere. The
//! dissertation took penalties from the CPU's manual and lmbench; here they are the latencies
//! that the probe measures.

use serde::{Deserialize, Serialize};

use crate::count::Counts;
use crate::events::Meaning;

/// What events cost, in cycles. `None` where it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Penalties {
    /// A miss of the first level that the second serves.
    pub l2: Option<f64>,
    /// A miss of the second level that the third serves.
    pub l3: Option<f64>,
    /// A miss of all caches.
    pub memory: Option<f64>,
    /// A walk of the page tables; those of instructions and of data cost alike.
    pub walk: Option<f64>,
    /// A branch predicted wrongly.
    pub misprediction: Option<f64>,
}

/// One component of the breakdown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Component {
    /// The component's name.
    pub name: String,
    /// Cycles for an instruction.
    pub cycles: Option<f64>,
    /// Why there is no figure.
    #[serde(default)]
    pub why: Option<String>,
}

/// Figure 4.19's bar and its dash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// From top to bottom of the bar.
    pub components: Vec<Component>,
    /// Sum of the components that have a figure; `None` if none has.
    pub sum: Option<f64>,
    /// All components have a figure.
    pub is_whole: bool,
    /// Cycles per instruction as measured.
    pub measured: Option<f64>,
}

/// How many events of a kind there were, and what one costs.
struct Part {
    name: &'static str,
    events: Result<f64, String>,
    penalty: Result<f64, String>,
}

/// The breakdown for what was counted.
pub fn breakdown(counts: &Counts, penalties: &Penalties) -> Breakdown {
    let instructions = count(counts, Meaning::Instructions);
    let components: Vec<Component> = parts(counts, penalties)
        .into_iter()
        .map(|part| component(part, &instructions))
        .collect();
    let figures: Vec<f64> = components
        .iter()
        .filter_map(|component| component.cycles)
        .collect();
    let measured = count(counts, Meaning::Cycles).and_then(|cycles| Ok(cycles / instructions?));
    Breakdown {
        sum: (!figures.is_empty()).then(|| figures.iter().sum()),
        is_whole: figures.len() == components.len(),
        measured: measured.ok().filter(|cpi| cpi.is_finite()),
        components,
    }
}

/// The parts of the bar, from top to bottom.
fn parts(counts: &Counts, penalties: &Penalties) -> [Part; 8] {
    let of = |meaning: Meaning| count(counts, meaning);
    let cost = |penalty: Option<f64>, what: &str| {
        penalty.ok_or_else(|| format!("the cost of {what} was not measured"))
    };
    // Misses that the next level serves are those that are no misses there. Counts of different
    // groups are estimates, whose difference must not become negative.
    let served = |misses: Result<f64, String>, next: Result<f64, String>| {
        Ok::<f64, String>((misses? - next?).max(0.0))
    };
    let first = of(Meaning::L1iMisses).and_then(|i| Ok(i + of(Meaning::L1dMisses)?));
    [
        Part {
            name: "L1",
            events: served(first, of(Meaning::L2Misses)),
            penalty: cost(penalties.l2, "the second level"),
        },
        Part {
            name: "L2",
            events: served(of(Meaning::L2Misses), of(Meaning::L3Misses)),
            penalty: cost(penalties.l3, "the third level"),
        },
        Part {
            name: "L3",
            events: of(Meaning::L3Misses),
            penalty: cost(penalties.memory, "memory"),
        },
        Part {
            name: "ITLB",
            events: of(Meaning::ItlbMisses),
            penalty: cost(penalties.walk, "a page-table walk"),
        },
        Part {
            name: "DTLB",
            events: of(Meaning::DtlbMisses),
            penalty: cost(penalties.walk, "a page-table walk"),
        },
        Part {
            name: "mispredictions",
            events: of(Meaning::Mispredictions),
            penalty: cost(penalties.misprediction, "a misprediction"),
        },
        Part {
            name: "pipeline clears",
            events: of(Meaning::PipelineClears),
            // A clear empties the same pipeline from its end, so it costs a misprediction at least.
            penalty: cost(penalties.misprediction, "a misprediction"),
        },
        Part {
            name: "store buffers",
            // These are cycles already.
            events: of(Meaning::StoreBufferStalls),
            penalty: Ok(1.0),
        },
    ]
}

fn count(counts: &Counts, meaning: Meaning) -> Result<f64, String> {
    counts
        .value(meaning)
        .ok_or_else(|| format!("{meaning} were not counted"))
}

fn component(part: Part, instructions: &Result<f64, String>) -> Component {
    let cycles = part
        .events
        .and_then(|events| Ok(events * part.penalty? / instructions.clone()?));
    let cycles = cycles.and_then(|cycles| match cycles.is_finite() {
        true => Ok(cycles),
        false => Err("no instructions were counted".into()),
    });
    Component {
        name: part.name.into(),
        why: cycles.as_ref().err().cloned(),
        cycles: cycles.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::counts_of;
    use super::*;

    /// The dissertation's Xeon at 3.06 GHz: Table 4.2, and a pipeline of 20 cycles.
    const XEON: Penalties = Penalties {
        l2: Some(18.0),
        l3: None,
        memory: Some(344.0),
        walk: Some(20.0),
        misprediction: Some(20.0),
    };

    fn counts(l3_misses: Option<f64>) -> Counts {
        let mut values = vec![
            (Meaning::Cycles, 4_000.0),
            (Meaning::Instructions, 1_000.0),
            (Meaning::L1iMisses, 20.0),
            (Meaning::L1dMisses, 30.0),
            (Meaning::L2Misses, 10.0),
            (Meaning::ItlbMisses, 2.0),
            (Meaning::DtlbMisses, 5.0),
            (Meaning::Mispredictions, 8.0),
            (Meaning::PipelineClears, 1.0),
            (Meaning::StoreBufferStalls, 100.0),
        ];
        values.extend(l3_misses.map(|misses| (Meaning::L3Misses, misses)));
        counts_of(&values)
    }

    #[test]
    fn every_component_is_events_times_penalty_when_all_was_counted() {
        let penalties = Penalties {
            l3: Some(46.0),
            ..XEON
        };
        let found = breakdown(&counts(Some(4.0)), &penalties);
        let cycles: Vec<f64> = found
            .components
            .iter()
            .filter_map(|one| one.cycles)
            .collect();
        let wanted = [
            40.0 * 18.0,
            6.0 * 46.0,
            4.0 * 344.0,
            40.0,
            100.0,
            160.0,
            20.0,
            100.0,
        ];
        assert_eq!(cycles.len(), wanted.len());
        for (found, wanted) in cycles.iter().zip(wanted) {
            assert!((found - wanted / 1000.0).abs() < 1e-12, "{found} {wanted}");
        }
        assert!(found.is_whole);
        assert!((found.sum.expect("a sum") - wanted.iter().sum::<f64>() / 1000.0).abs() < 1e-12);
        assert_eq!(found.measured, Some(4.0));
    }

    #[test]
    fn component_says_why_it_has_no_figure_when_a_count_or_a_latency_is_missing() {
        let found = breakdown(&counts(None), &XEON);
        let l2 = &found.components[1];
        assert_eq!(
            (l2.cycles, l2.why.as_deref()),
            (None, Some("l3-misses were not counted"))
        );
        assert!(!found.is_whole && found.sum.is_some());
        let nothing = breakdown(&Counts::default(), &XEON);
        assert_eq!((nothing.sum, nothing.measured), (None, None));
        assert_eq!(nothing.components.len(), 8);
    }
}
