//! The words for what is counted, the same on every CPU.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What an event means; `events.toml` describes each, under its name in lower case with hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "events.toml says what each one is")]
pub enum Meaning {
    Cycles,
    ReferenceCycles,
    Instructions,
    UopsRetired,
    UopsIssued,
    Branches,
    Mispredictions,
    Loads,
    Stores,
    L1iReferences,
    L1iMisses,
    L1dReferences,
    L1dMisses,
    L2References,
    L2Misses,
    L3References,
    L3Misses,
    ItlbReferences,
    ItlbMisses,
    DtlbReferences,
    DtlbMisses,
    FrontendStalls,
    BackendStalls,
    PipelineClears,
    StoreBufferStalls,
    Aliasing,
    OpCacheMisses,
    Slots,
    SlotsRetired,
    SlotsSpeculation,
    SlotsFrontend,
    SlotsBackend,
    SlotsOtherThread,
    MemoryReads,
    MemoryWrites,
    BusBusy,
    BusClocks,
    TaskClock,
    ContextSwitches,
    CpuMigrations,
    MinorFaults,
    MajorFaults,
}

impl Meaning {
    /// What the kernel counts itself, on every machine.
    pub const SOFTWARE: [Meaning; 5] = [
        Meaning::TaskClock,
        Meaning::ContextSwitches,
        Meaning::CpuMigrations,
        Meaning::MinorFaults,
        Meaning::MajorFaults,
    ];

    /// The name of the meaning: `l1d-misses`.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => unreachable!("a variant without fields is its name"),
        }
    }

    /// Whether the kernel counts it itself.
    pub fn is_software(self) -> bool {
        Meaning::SOFTWARE.contains(&self)
    }
}

impl fmt::Display for Meaning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.name())
    }
}
