//! Ratios of counts: cycles per instruction and micro-operation, work per byte and per request,
//! miss rates.
//!
//! Source: dissertation section 4.4. "Per byte" is per byte of content that clients received.

use serde::{Deserialize, Serialize};

use crate::count::{Counts, Space};
use crate::events::Meaning;

/// What was served while it was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// Bytes of content that clients received.
    pub bytes: f64,
    /// Requests that were answered.
    pub requests: f64,
    /// Length of the measurement.
    pub seconds: f64,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The name of the figure: `cpi`, `l2-miss-rate`.
    pub name: &'static str,
    /// Description of the figure.
    pub title: &'static str,
    /// Unit of the figure.
    pub unit: FigureUnit,
    /// The value, if all its counts were counted.
    pub value: Option<f64>,
    /// The share of the time for which the least counted of its counts was counted; below 1 the
    /// value is an estimate.
    pub counted_share: Option<f64>,
    /// The counts that it lacks.
    pub lacks: Vec<Meaning>,
}

impl Figure {
    /// Whether a counter of it took turns with others.
    pub fn is_estimate(&self) -> bool {
        self.value.is_some() && self.counted_share.is_some_and(|share| share < 1.0)
    }
}

/// What a figure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureUnit {
    /// One number by another.
    Ratio,
    /// A share of 1.
    Share,
    /// Events for a byte of content.
    PerByte,
    /// Events for a request.
    PerRequest,
}

/// A figure in the table: sums of counts above and below.
struct FigureRow(
    &'static str,
    &'static str,
    FigureUnit,
    &'static [Meaning],
    Below,
    Space,
);

enum Below {
    Count(&'static [Meaning]),
    Bytes,
    Requests,
}

use Below::{Bytes, Count, Requests};
use FigureUnit::{PerByte, PerRequest, Ratio, Share};
use Meaning as M;

const ROWS: &[FigureRow] = &[
    FigureRow(
        "cpi",
        "cycles per instruction",
        Ratio,
        &[M::Cycles],
        Count(&[M::Instructions]),
        Space::Both,
    ),
    FigureRow(
        "ipc",
        "instructions per cycle",
        Ratio,
        &[M::Instructions],
        Count(&[M::Cycles]),
        Space::Both,
    ),
    FigureRow(
        "cpu-op",
        "cycles per micro-operation",
        Ratio,
        &[M::Cycles],
        Count(&[M::UopsRetired]),
        Space::Both,
    ),
    FigureRow(
        "uops-per-instruction",
        "micro-operations per instruction",
        Ratio,
        &[M::UopsRetired],
        Count(&[M::Instructions]),
        Space::Both,
    ),
    FigureRow(
        "instructions-per-byte",
        "instructions per byte",
        PerByte,
        &[M::Instructions],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "uops-per-byte",
        "micro-operations per byte",
        PerByte,
        &[M::UopsRetired],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "cycles-per-byte",
        "cycles per byte",
        PerByte,
        &[M::Cycles],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "instructions-per-request",
        "instructions per request",
        PerRequest,
        &[M::Instructions],
        Requests,
        Space::Both,
    ),
    FigureRow(
        "uops-per-request",
        "micro-operations per request",
        PerRequest,
        &[M::UopsRetired],
        Requests,
        Space::Both,
    ),
    FigureRow(
        "user-instructions-per-request",
        "instructions per request, user",
        PerRequest,
        &[M::Instructions],
        Requests,
        Space::User,
    ),
    FigureRow(
        "kernel-instructions-per-request",
        "instructions per request, kernel",
        PerRequest,
        &[M::Instructions],
        Requests,
        Space::Kernel,
    ),
    FigureRow(
        "branch-share",
        "branches among instructions",
        Share,
        &[M::Branches],
        Count(&[M::Instructions]),
        Space::Both,
    ),
    FigureRow(
        "misprediction-rate",
        "branches mispredicted",
        Share,
        &[M::Mispredictions],
        Count(&[M::Branches]),
        Space::Both,
    ),
    FigureRow(
        "l1i-miss-rate",
        "L1 instruction cache misses",
        Share,
        &[M::L1iMisses],
        Count(&[M::L1iReferences]),
        Space::Both,
    ),
    FigureRow(
        "l1d-miss-rate",
        "L1 data cache misses",
        Share,
        &[M::L1dMisses],
        Count(&[M::L1dReferences]),
        Space::Both,
    ),
    FigureRow(
        "l2-miss-rate",
        "L2 cache misses",
        Share,
        &[M::L2Misses],
        Count(&[M::L2References]),
        Space::Both,
    ),
    FigureRow(
        "l3-miss-rate",
        "L3 cache misses",
        Share,
        &[M::L3Misses],
        Count(&[M::L3References]),
        Space::Both,
    ),
    FigureRow(
        "itlb-miss-rate",
        "instruction TLB misses",
        Share,
        &[M::ItlbMisses],
        Count(&[M::ItlbReferences]),
        Space::Both,
    ),
    FigureRow(
        "dtlb-miss-rate",
        "data TLB misses",
        Share,
        &[M::DtlbMisses],
        Count(&[M::DtlbReferences]),
        Space::Both,
    ),
    FigureRow(
        "frontend-stalls-per-byte",
        "cycles without delivery per byte",
        PerByte,
        &[M::FrontendStalls],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "store-stalls-per-byte",
        "cycles without store buffers per byte",
        PerByte,
        &[M::StoreBufferStalls],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "clears-per-byte",
        "pipeline clears per byte",
        PerByte,
        &[M::PipelineClears],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "aliasing-per-byte",
        "aliasing conflicts per byte",
        PerByte,
        &[M::Aliasing],
        Bytes,
        Space::Both,
    ),
    FigureRow(
        "switches-per-request",
        "context switches per request",
        PerRequest,
        &[M::ContextSwitches],
        Requests,
        Space::Both,
    ),
    FigureRow(
        "faults-per-request",
        "page faults per request",
        PerRequest,
        &[M::MinorFaults, M::MajorFaults],
        Requests,
        Space::Both,
    ),
    FigureRow(
        "cpu-ns-per-request",
        "CPU time per request, ns",
        PerRequest,
        &[M::TaskClock],
        Requests,
        Space::Both,
    ),
    FigureRow(
        "cpu-ns-per-byte",
        "CPU time per byte, ns",
        PerByte,
        &[M::TaskClock],
        Bytes,
        Space::Both,
    ),
];

/// All figures that the table has, with and without a value.
pub fn figures(counts: &Counts, served: &Served) -> Vec<Figure> {
    ROWS.iter().map(|row| figure(row, counts, served)).collect()
}

fn figure(row: &FigureRow, counts: &Counts, served: &Served) -> Figure {
    let FigureRow(name, title, unit, above, below, space) = row;
    let below_counts: &[Meaning] = match below {
        Count(meanings) => meanings,
        Bytes | Requests => &[],
    };
    let sum = |meanings: &[Meaning]| {
        meanings
            .iter()
            .map(|meaning| counts.of(*space, *meaning))
            .sum::<Option<f64>>()
    };
    let needed: Vec<Meaning> = above.iter().chain(below_counts).copied().collect();
    let lacks: Vec<Meaning> = needed
        .iter()
        .copied()
        .filter(|meaning| counts.of(*space, *meaning).is_none())
        .collect();
    let divisor = match below {
        Count(meanings) => sum(meanings),
        Bytes => Some(served.bytes),
        Requests => Some(served.requests),
    };
    let quotient = sum(above).zip(divisor).map(|(above, below)| above / below);
    let value = quotient.filter(|value| value.is_finite());
    Figure {
        name,
        title,
        unit: *unit,
        value,
        counted_share: value.and(counts.counted_share(&needed)),
        lacks,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::events::Scope;
    use std::collections::BTreeMap;

    /// Counts that were counted all the time.
    pub(crate) fn counts_of(values: &[(Meaning, f64)]) -> Counts {
        let count = |value| crate::count::Count {
            value,
            counted_share: 1.0,
            scope: Scope::Thread,
        };
        let all = values
            .iter()
            .map(|(meaning, value)| (*meaning, count(*value)));
        Counts {
            spaces: BTreeMap::from([(Space::Both, all.collect())]),
            ..Counts::default()
        }
    }

    fn value(figures: &[Figure], name: &str) -> Option<f64> {
        figures
            .iter()
            .find(|figure| figure.name == name)
            .expect("a figure")
            .value
    }

    #[test]
    fn figures_are_those_of_the_paper_for_its_ratios() {
        // Apache-MP of Table 4.4: 6.8 instructions and 12.5 micro-operations per byte.
        let counts = counts_of(&[
            (M::Instructions, 6.8e9),
            (M::UopsRetired, 12.5e9),
            (M::Cycles, 27.0e9),
        ]);
        let served = Served {
            bytes: 1e9,
            requests: 1e5,
            seconds: 10.0,
        };
        let found = figures(&counts, &served);
        assert_eq!(value(&found, "instructions-per-byte"), Some(6.8));
        assert_eq!(value(&found, "uops-per-byte"), Some(12.5));
        assert!((value(&found, "cpu-op").expect("counted") - 2.16).abs() < 1e-9);
        assert_eq!(value(&found, "instructions-per-request"), Some(68_000.0));
    }

    #[test]
    fn figure_names_the_missing_count() {
        let counts = counts_of(&[(M::Cycles, 5.0)]);
        let found = figures(&counts, &Served::default());
        let cpi = found
            .iter()
            .find(|figure| figure.name == "cpi")
            .expect("there");
        assert_eq!(
            (cpi.value, cpi.lacks.as_slice()),
            (None, &[M::Instructions][..])
        );
        // Nothing was served: no division by nothing.
        assert_eq!(value(&found, "cycles-per-byte"), None);
    }
}
