//! The processor beside the simulated ones (Table 4.5), and whether the bus follows throughput.

use headway_counters::smt::Configuration;
use headway_counters::study::Outcome;
use headway_counters::study::compare::Cell;
use headway_counters::study::processors::{PROCESSORS, bus_correlation_here, table_4_5};
use headway_report::{SheetPart, SheetSection, SheetTable};

use super::super::text::number;
use super::{head, or_none, section, title};

/// Table 4.5 with this machine.
pub(super) fn processors(outcome: &Outcome) -> Option<SheetSection> {
    let smt = outcome
        .setups
        .iter()
        .find(|setup| setup.configuration == Configuration::OneWithSmt);
    let contexts = smt.map(|setup| 1 + usize::from(setup.impossible.is_none()));
    let rows = table_4_5(outcome.probed.as_ref(), contexts);
    let rows = rows.into_iter().map(|row| {
        let mut cells = vec![row.title.to_owned()];
        cells.extend(row.paper.iter().map(|&printed| printed.to_owned()));
        cells.push(or_none(row.ours.map(number)));
        cells
    });
    let mut heads = vec![""];
    heads.extend(PROCESSORS);
    heads.push("here");
    let table = SheetTable {
        title: "Simulated processors, the dissertation's, and this one".into(),
        note: "For stages, ours is the price of a mispredicted branch in cycles. * is approximate in the dissertation."
            .into(),
        head: head(&heads),
        rows: rows.collect(),
    };
    section(
        "processors",
        "Processors",
        "Table 4.5: what simulations of SMT assumed, and what was built.",
        vec![SheetPart::Table(table)],
    )
}

/// Section 4.3.5: gains of throughput beside gains of bus use.
pub(super) fn bus(cells: &[Cell]) -> Option<SheetSection> {
    let lead = "Section 4.3.5: the gain of throughput and that of bus use have a correlation of 0.95 from 2.0 to 3.06 GHz, and of \
                0.62 to 3.06 GHz with an L3 cache. Here: each configuration over 1T-SMP.";
    let (note, rows) = match bus_correlation_here(cells) {
        Ok(found) => {
            let rows = found
                .gains
                .iter()
                .map(|(server, configuration, rate, bus)| {
                    let of = format!("{}, {configuration}", title(server));
                    vec![of, format!("{rate:.2}"), format!("{bus:.2}")]
                });
            (
                format!("Correlation: {:.2}.", found.coefficient),
                rows.collect(),
            )
        }
        Err(why) => (format!("It cannot be computed: {why}."), Vec::new()),
    };
    let table = SheetTable {
        title: "Throughput and the memory bus".into(),
        note,
        head: head(&["", "throughput, times", "bus, times"]),
        rows,
    };
    section("bus", "Memory bus", lead, vec![SheetPart::Table(table)])
}
