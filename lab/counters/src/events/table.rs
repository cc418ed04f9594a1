//! `events.toml` and `appendix.toml` as values.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{Core, Identity, Meaning};

/// Cores and events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    cores: BTreeMap<String, Core>,
    events: BTreeMap<Meaning, Event>,
}

/// One meaning, and how it is counted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Event {
    /// Description of the event.
    pub title: String,
    /// The kernel's own name of it.
    #[serde(default)]
    pub generic: Option<String>,
    /// What cores call it.
    #[serde(flatten)]
    pub raw: BTreeMap<String, Raw>,
}

/// What a core calls an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// The maker's name.
    pub name: String,
    /// The code in the terms of the kernel's format files: `event=0xc4,umask=0x20`.
    pub code: String,
    /// Where that stands, below the core's source.
    pub file: String,
    /// The counting unit, or how the names of equal ones begin; `None` is the core's own.
    #[serde(default)]
    pub pmu: Option<String>,
    /// What one counter counts for.
    #[serde(default)]
    pub scope: Scope,
}

/// What one counter counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// A hardware thread; a thread or process can be followed.
    #[default]
    Thread,
    /// A core, whichever of its hardware threads reads it: counted once per core, for everything
    /// that runs there.
    Core,
    /// A part outside the cores, on the CPUs that the kernel names, for all its users.
    Unit,
}

/// A row of the dissertation's Table A.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppendixRow {
    /// What the event is, as printed; a star marks those that needed the author's patch.
    pub description: String,
    /// OProfile's name.
    pub event: String,
    /// OProfile's unit mask.
    pub mask: String,
    /// What counts the same today, or comes nearest; empty for none.
    #[serde(default)]
    pub today: Vec<Meaning>,
    /// Where today's differs, or why there is none.
    #[serde(default)]
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Appendix {
    rows: Vec<AppendixRow>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("events.toml")).expect("a table that the tests have read")
});

static APPENDIX: LazyLock<Appendix> = LazyLock::new(|| {
    toml::from_str(include_str!("appendix.toml")).expect("a list that the tests have read")
});

/// The table.
pub fn table() -> &'static Table {
    &TABLE
}

/// Table A.1, in its order.
pub fn appendix() -> &'static [AppendixRow] {
    &APPENDIX.rows
}

impl Table {
    /// The core that a CPU has, with its name in the table.
    pub fn core_of(&self, identity: &Identity) -> Option<(&str, &Core)> {
        let mut cores = self.cores.iter();
        let (name, core) = cores.find(|(_, core)| core.is(identity))?;
        Some((name, core))
    }

    /// A core by its name.
    pub fn core(&self, name: &str) -> Option<&Core> {
        self.cores.get(name)
    }

    /// All cores.
    pub fn cores(&self) -> impl Iterator<Item = (&str, &Core)> {
        self.cores.iter().map(|(name, core)| (name.as_str(), core))
    }

    /// All meanings, in the order of their declaration.
    pub fn meanings(&self) -> impl Iterator<Item = Meaning> {
        self.events.keys().copied()
    }

    /// How a meaning is counted.
    pub fn event(&self, meaning: Meaning) -> &Event {
        &self.events[&meaning]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_cores_that_exist_when_the_table_is_read() {
        let table = table();
        for meaning in table.meanings() {
            let event = table.event(meaning);
            assert!(!event.title.is_empty(), "{meaning}");
            assert!(
                event.generic.is_some() || !event.raw.is_empty(),
                "{meaning}"
            );
            for (core, raw) in &event.raw {
                assert!(table.core(core).is_some(), "{meaning}: no core {core}");
                assert!(!raw.file.is_empty() && !raw.name.is_empty(), "{meaning}");
                assert_eq!(raw.pmu.is_some(), raw.scope == Scope::Unit, "{meaning}");
            }
        }
        for meaning in Meaning::SOFTWARE {
            assert!(table.event(meaning).raw.is_empty(), "{meaning}");
        }
    }

    #[test]
    fn every_meaning_has_a_row_when_the_last_one_has() {
        let found: Vec<Meaning> = table().meanings().collect();
        assert_eq!(found.len(), Meaning::MajorFaults as usize + 1);
        assert_eq!(Meaning::L1dMisses.name(), "l1d-misses");
    }

    #[test]
    fn event_appendix_matches_the_printed_one() {
        let rows = appendix();
        assert_eq!(rows.len(), 23);
        assert_eq!(
            (rows[0].event.as_str(), rows[22].event.as_str()),
            ("GLOBAL_POWER_EVENTS", "RESOURCE_STALLS")
        );
        assert_eq!(
            rows.iter()
                .filter(|row| row.description.ends_with('*'))
                .count(),
            4
        );
        for row in rows {
            let explained = !row.today.is_empty() || !row.why.is_empty();
            assert!(explained, "{}", row.description);
        }
    }
}
