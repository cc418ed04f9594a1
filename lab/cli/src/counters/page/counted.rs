//! What was counted: work, misses and stalls, where cycles go, Table 4.6, memory, and what is
//! behind the figures.

use headway_counters::events::{Meaning, table as events};
use headway_counters::metrics::FigureUnit;
use headway_counters::smt::Configuration;
use headway_counters::study::Outcome;
use headway_counters::study::compare::{Cell, table_4_6};
use headway_lab::servers::Kind;
use headway_report::{SheetBars, SheetPart, SheetSection, SheetTable};

use super::super::text::{number, percent};
use super::{NONE, head, or_none, section, title};

/// Figures by server and configuration, one row each; columns without
/// any value are left out.
fn figures_table(cells: &[Cell], name: &str, note: &str, wanted: &[&str]) -> Option<SheetPart> {
    let value = |cell: &Cell, name: &str| {
        let figure = cell.figures.iter().find(|figure| figure.name == name)?;
        let value = figure.value?;
        let text = if figure.unit == FigureUnit::Share {
            percent(value)
        } else {
            number(value)
        };
        Some(with_estimate_mark(text, figure.is_estimate()))
    };
    let is_there = |name: &&str| cells.iter().any(|cell| value(cell, name).is_some());
    let names: Vec<&str> = wanted.iter().copied().filter(is_there).collect();
    let first = cells.first()?;
    if names.is_empty() {
        return None;
    }
    let titles = names
        .iter()
        .filter_map(|name| first.figures.iter().find(|figure| figure.name == *name));
    let mut heads = vec![String::new()];
    heads.extend(titles.map(|figure| figure.title.to_owned()));
    let rows = cells.iter().filter(|cell| cell.repeats > 0).map(|cell| {
        let mut row = vec![format!("{}, {}", title(&cell.server), cell.configuration)];
        row.extend(names.iter().map(|name| or_none(value(cell, name))));
        row
    });
    Some(SheetPart::Table(SheetTable {
        title: name.into(),
        note: note.into(),
        head: heads,
        rows: rows.collect(),
    }))
}

const ESTIMATED: &str = "≈ marks estimates: the counter took turns with others.";

fn with_estimate_mark(text: String, is_estimate: bool) -> String {
    match is_estimate {
        true => format!("≈ {text}"),
        false => text,
    }
}

/// Of figures that are put together from many counts.
fn estimates_note(cells: &[Cell]) -> &'static str {
    let mut hardware = cells
        .iter()
        .flat_map(|cell| cell.counts.spaces.values())
        .flatten();
    match hardware.any(|(meaning, count)| !meaning.is_software() && count.counted_share < 1.0) {
        true => "From estimates: counters took turns with one another.",
        false => "",
    }
}

pub(super) fn work_section(cells: &[Cell]) -> Option<SheetSection> {
    let hardware = [
        "cpi",
        "cpu-op",
        "uops-per-instruction",
        "instructions-per-byte",
        "uops-per-byte",
        "instructions-per-request",
        "user-instructions-per-request",
        "kernel-instructions-per-request",
    ];
    let software = [
        "cpu-ns-per-request",
        "cpu-ns-per-byte",
        "switches-per-request",
        "faults-per-request",
    ];
    let parts = [
        figures_table(cells, "Work by the CPU's counters", ESTIMATED, &hardware),
        figures_table(
            cells,
            "Work as the kernel counts it",
            "Of the server's own processes.",
            &software,
        ),
    ];
    section(
        "work",
        "Work per byte and per request",
        "Figure 4.8 and Table 4.4.",
        parts.into_iter().flatten().collect(),
    )
}

pub(super) fn misses(cells: &[Cell]) -> Option<SheetSection> {
    let rates = [
        "misprediction-rate",
        "l1i-miss-rate",
        "l1d-miss-rate",
        "l2-miss-rate",
        "l3-miss-rate",
        "itlb-miss-rate",
        "dtlb-miss-rate",
    ];
    let stalls = [
        "frontend-stalls-per-byte",
        "store-stalls-per-byte",
        "clears-per-byte",
        "aliasing-per-byte",
    ];
    let parts = [
        figures_table(cells, "Miss rates", ESTIMATED, &rates),
        figures_table(cells, "Stalls and conflicts per byte", ESTIMATED, &stalls),
    ];
    section(
        "misses",
        "Misses and stalls",
        "Figures 4.9 to 4.18.",
        parts.into_iter().flatten().collect(),
    )
}

pub(super) fn cycles(cells: &[Cell]) -> Option<SheetSection> {
    let parts = [breakdown(cells), slots(cells), memory(cells)];
    section(
        "cycles",
        "Where cycles go",
        "Section 4.4.",
        parts.into_iter().flatten().collect(),
    )
}

/// Cycles per instruction by event, as bars.
fn breakdown(cells: &[Cell]) -> Option<SheetPart> {
    let with: Vec<&Cell> = cells
        .iter()
        .filter(|cell| cell.breakdown.sum.is_some())
        .collect();
    let components = &with.first()?.breakdown.components;
    let groups = with.iter().map(|cell| {
        let values = cell.breakdown.components.iter().map(|one| one.cycles);
        (
            format!("{} {}", title(&cell.server), cell.configuration),
            values.collect(),
            cell.breakdown.measured,
        )
    });
    Some(SheetPart::Bars(SheetBars {
        id: "breakdown".into(),
        title: "Cycles per instruction, not overlapped".into(),
        caption: vec![
            "Each event at its full price, as if nothing else went on; the dash is the measured value. Below the bar's top, the \
             CPU overlaps events; above it, cycles go elsewhere."
                .into(),
            estimates_note(cells).into(),
        ],
        source: "The form of Figure 4.19.".into(),
        above: "cycles per instruction".into(),
        series: components.iter().map(|one| one.name.clone()).collect(),
        stacked: true,
        groups: groups.collect(),
        format: number,
    }))
}

/// Shares of the pipeline's slots.
fn slots(cells: &[Cell]) -> Option<SheetPart> {
    let row = |cell: &Cell| {
        let slots = cell.slots?;
        let shares = [
            slots.retiring,
            slots.bad_speculation,
            slots.frontend,
            slots.backend,
        ];
        let mut row = vec![format!("{}, {}", title(&cell.server), cell.configuration)];
        row.extend(shares.map(percent));
        row.push(or_none(slots.other_thread.map(percent)));
        Some(row)
    };
    let rows: Vec<Vec<String>> = cells.iter().filter_map(row).collect();
    let table = SheetTable {
        title: "Where slots go (top-down, level 1)".into(),
        note: estimates_note(cells).into(),
        head: head(&[
            "",
            "retiring",
            "thrown away",
            "not delivered",
            "no resources",
            "the other thread's",
        ]),
        rows,
    };
    (!table.rows.is_empty()).then_some(SheetPart::Table(table))
}

/// Traffic between CPU and memory.
fn memory(cells: &[Cell]) -> Option<SheetPart> {
    let row = |cell: &Cell| {
        let memory = &cell.memory;
        let gigabytes = |rate: f64| format!("{} GB/s", number(rate / 1e9));
        vec![
            format!("{}, {}", title(&cell.server), cell.configuration),
            or_none(memory.bus_share.map(percent)),
            or_none(memory.bytes_per_s.map(gigabytes)),
            or_none(memory.bandwidth_share.map(percent)),
            or_none(memory.bytes_per_byte.map(number)),
        ]
    };
    let rows: Vec<Vec<String>> = cells
        .iter()
        .filter(|cell| cell.memory.bytes_per_s.is_some() || cell.memory.bus_share.is_some())
        .map(row)
        .collect();
    let table = SheetTable {
        title: "The way to memory".into(),
        note: "Equation 4.1 for memory controllers, which have taken the front-side bus's place; of everything on the machine.".into(),
        head: head(&["", "bus in use", "moved", "of one thread's bandwidth", "bytes moved a byte served"]),
        rows,
    };
    (!table.rows.is_empty()).then_some(SheetPart::Table(table))
}

/// The server that the dissertation's table is about, or the first one.
fn compared(cells: &[Cell]) -> Option<&str> {
    let measured = || cells.iter().filter(|cell| cell.repeats > 0);
    let apache = measured().find(|cell| cell.server == Kind::ApachePrefork.name());
    apache
        .or_else(|| measured().next())
        .map(|cell| cell.server.as_str())
}

pub(super) fn comparison(outcome: &Outcome, cells: &[Cell]) -> Option<SheetSection> {
    let server = compared(cells)?;
    let rows = table_4_6(cells, server).into_iter().map(|row| {
        let ours = [0, 1].map(|column| {
            or_none(row.ours[column].map(|value| {
                let text = match row.is_share {
                    true => format!("{:.1}", value * 100.0),
                    false => number(value),
                };
                with_estimate_mark(text, row.are_estimates[column])
            }))
        });
        let mut cells = vec![row.title.to_owned()];
        cells.extend(row.paper.iter().map(|&printed| printed.to_owned()));
        cells.extend(ours);
        cells
    });
    let lacking = !cells.iter().any(|cell| cell.counts.has_hardware());
    let why = match (
        lacking,
        outcome
            .setups
            .iter()
            .find(|setup| setup.configuration == Configuration::OneWithSmt),
    ) {
        (true, _) => "Ours are missing: no CPU counters here.",
        (false, Some(setup)) if setup.impossible.is_some() => {
            "Ours with SMT are missing: 2T cannot be had here."
        }
        _ => "",
    };
    let table = SheetTable {
        title: format!(
            "Simulations, the dissertation's Xeon, and {} here",
            title(server)
        ),
        note: format!("With SMT is 2T, without 1T-SMP. {why} {ESTIMATED}"),
        head: head(&[
            "",
            "simulated, SMT",
            "simulated, without",
            "Xeon, SMT",
            "Xeon, without",
            "here, SMT",
            "here, without",
        ]),
        rows: rows.collect(),
    };
    section(
        "comparison",
        "Beside the simulations",
        "Table 4.6.",
        vec![SheetPart::Table(table)],
    )
}

pub(super) fn probed(outcome: &Outcome) -> Option<SheetSection> {
    let probed = outcome.probed.as_ref()?;
    let cycles = |ns: f64| number(ns / probed.cycle_ns);
    let mut rows: Vec<Vec<String>> = probed
        .levels
        .iter()
        .map(|level| {
            let size = level.bytes.map(|bytes| format!("{} KiB", bytes >> 10));
            vec![
                level.name.clone(),
                or_none(size),
                number(level.latency_ns),
                cycles(level.latency_ns),
            ]
        })
        .collect();
    for (name, ns) in [
        ("page-table walk, more", probed.walk_ns),
        ("misprediction, more", probed.misprediction_ns),
    ] {
        rows.push(vec![name.into(), NONE.into(), number(ns), cycles(ns)]);
    }
    let bandwidth = &probed.bandwidth;
    let rate = |bytes: f64| number(bytes / 1e9);
    let table = SheetTable {
        title: "Latencies".into(),
        note: format!(
            "One thread reads {} GB/s, writes {} and copies {}.",
            rate(bandwidth.read_bytes_per_s),
            rate(bandwidth.write_bytes_per_s),
            rate(bandwidth.copy_bytes_per_s)
        ),
        head: head(&["", "size", "ns", "cycles"]),
        rows,
    };
    section(
        "memory",
        "Memory of this machine",
        "What Table 4.2 is for the dissertation's.",
        vec![SheetPart::Table(table)],
    )
}

/// Every meaning with its reason where it was not counted, and the versions.
pub(super) fn details(outcome: &Outcome, cells: &[Cell]) -> Option<SheetSection> {
    let mut reasons: Vec<(String, Vec<Meaning>)> = Vec::new();
    for (meaning, why) in cells.iter().flat_map(|cell| &cell.counts.missing) {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, meanings)) if meanings.contains(meaning) => {}
            Some((_, meanings)) => meanings.push(*meaning),
            None => reasons.push((why.clone(), vec![*meaning])),
        }
    }
    let rows = reasons.into_iter().map(|(why, meanings)| {
        let names: Vec<&str> = meanings
            .iter()
            .map(|meaning| events().event(*meaning).title.as_str())
            .collect();
        vec![why, names.join(", ")]
    });
    let missing = SheetTable {
        title: "Not counted".into(),
        note: String::new(),
        head: head(&["why", "what"]),
        rows: rows.collect(),
    };
    let mut versions: Vec<Vec<String>> = Vec::new();
    for one in &outcome.measured {
        let row = vec![title(&one.server), one.version.clone()];
        if !one.version.is_empty() && !versions.contains(&row) {
            versions.push(row);
        }
    }
    let versions = SheetTable {
        title: "Servers".into(),
        note: String::new(),
        head: head(&["", "version"]),
        rows: versions,
    };
    let parts = [missing, versions]
        .into_iter()
        .filter(|table| !table.rows.is_empty());
    section(
        "details",
        "What is behind the figures",
        "",
        parts.map(SheetPart::Table).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::sheet;
    use super::*;
    use headway_counters::count::{Count, Counts, Space};
    use headway_counters::events::Scope;
    use headway_counters::metrics::Served;
    use headway_counters::probe::{Level, Probed};
    use headway_counters::study::compare::cells;
    use headway_counters::study::{Measured, Workload};
    use std::collections::BTreeMap;

    fn counts(values: &[(Meaning, f64)]) -> Counts {
        let count = |value| Count {
            value,
            counted_share: 0.5,
            scope: Scope::Thread,
        };
        let all = values
            .iter()
            .map(|(meaning, value)| (*meaning, count(*value)));
        Counts {
            spaces: BTreeMap::from([(Space::Both, all.collect())]),
            missing: BTreeMap::from([(Meaning::Aliasing, "nothing <here> counts it".to_owned())]),
        }
    }

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new(Workload::default());
        let level = |name: &str, latency_ns| Level {
            name: name.into(),
            latency_ns,
            ..Level::default()
        };
        outcome.probed = Some(Probed {
            cycle_ns: 0.5,
            levels: vec![level("L1", 2.0), level("L2", 7.0), level("memory", 102.0)],
            ..Probed::default()
        });
        outcome.put(Measured {
            server: "apache-prefork".into(),
            configuration: "1T-SMP".into(),
            repeat: 1,
            served: Served {
                bytes: 1e9,
                requests: 1e4,
                seconds: 10.0,
            },
            verdict: "valid".into(),
            counts: counts(&[
                (Meaning::Cycles, 4e9),
                (Meaning::Instructions, 2e9),
                (Meaning::L1iMisses, 4e7),
                (Meaning::L1dMisses, 6e7),
                (Meaning::L2Misses, 2e7),
            ]),
            ..Measured::default()
        });
        outcome
    }

    #[test]
    fn estimates_are_marked_and_gaps_left_when_counts_took_turns_or_are_missing() {
        let outcome = outcome();
        let page = headway_report::sheet(&sheet(&outcome, &cells(&outcome)));
        // Two instructions a byte, counted half of the time; 0.5 instructions a cycle beside the
        // Xeon's 0.33.
        assert!(page.contains("<td>≈ 2.00</td>"), "{page}");
        assert!(
            page.contains("Beside the simulations")
                && page.contains("<td>0.33</td><td>–</td><td>≈ 0.50</td>")
        );
        // 8e7 misses that the second level serves, at (7 - 2) / 0.5 cycles, over 2e9 instructions.
        assert!(page.contains("From estimates"));
        assert!(page.contains("L1: 0.40") && page.contains("measured: 2.00"));
        assert!(page.contains("nothing &lt;here&gt; counts it"));
        assert!(page.contains("1T-UP was not measured"));
    }
}
