//! Processors beside those that were simulated (Table 4.5), and whether throughput and the use of the
//! memory bus go together (section 4.3.5).
//!
//! Both are pure: a probe of the machine, or measured cells, in; rows or a coefficient out.

use serde::Serialize;

use super::compare::Cell;
use crate::probe::Probed;
use crate::smt::Configuration;

/// The columns of Table 4.5.
pub const PROCESSORS: [&str; 5] = [
    "simulated, 1996",
    "simulated, 2000",
    "simulated, 2003",
    "Xeon, 2003",
    "Xeon, 2004",
];

/// Table 4.5 as printed; `*` marks what is approximate or derived there.
const TABLE_4_5: [(&str, [&str; 5]); 10] = [
    ("Clock rate (MHz)", ["600*", "800*", "800*", "2000", "3060"]),
    ("Contexts", ["8", "8", "8", "2", "2"]),
    ("Stages", ["9", "9", "9", "20", "30"]),
    ("L1 instruction cache (KB)", ["32", "128", "64", "8*", "8*"]),
    ("L1 data cache (KB)", ["32", "128", "64", "8", "8"]),
    ("L2 size (KB)", ["256", "16384", "16384", "512", "512"]),
    ("L2 cycles", ["6", "20", "20", "18", "18"]),
    ("L3 size (KB)", ["2048", "–", "–", "–", "1024"]),
    ("L3 cycles", ["12", "–", "–", "–", "46"]),
    ("Memory (cycles)", ["62", "90", "90", "225", "344"]),
];

/// A row of Table 4.5, with this machine beside it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorRow {
    /// What the row shows.
    pub title: &'static str,
    /// The processors of [`PROCESSORS`], as printed.
    pub paper: [&'static str; 5],
    /// Ours; `None` if the probe does not say it. In place of stages it is the price of a mispredicted
    /// branch, in cycles.
    pub ours: Option<f64>,
}

/// Table 4.5 with this machine. `contexts` are the threads of one of its cores.
pub fn table_4_5(probed: Option<&Probed>, contexts: Option<usize>) -> Vec<ProcessorRow> {
    let ours = |title: &str| -> Option<f64> {
        if title == "Contexts" {
            return contexts.map(|contexts| contexts as f64);
        }
        let probed = probed?;
        let level = |name: &str| probed.levels.iter().find(|level| level.name == name);
        let kilobytes = |name: &str| Some(level(name)?.bytes? as f64 / 1024.0);
        let cycles = |name: &str| Some(level(name)?.latency_ns / probed.cycle_ns);
        match title {
            "Clock rate (MHz)" => Some(1e3 / probed.cycle_ns),
            "Stages" => Some(probed.misprediction_ns / probed.cycle_ns).filter(|it| *it > 0.0),
            "L1 data cache (KB)" => kilobytes("L1"),
            "L2 size (KB)" => kilobytes("L2"),
            "L2 cycles" => cycles("L2"),
            "L3 size (KB)" => kilobytes("L3"),
            "L3 cycles" => cycles("L3"),
            "Memory (cycles)" => cycles("memory"),
            _ => None,
        }
    };
    let rows = TABLE_4_5.iter().map(|&(title, paper)| ProcessorRow {
        title,
        paper,
        ours: ours(title).filter(|value| value.is_finite()),
    });
    rows.collect()
}

/// How throughput and the use of the memory bus go together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BusCorrelation {
    /// Pearson's coefficient of the two gains.
    pub coefficient: f64,
    /// Server, configuration, gain of throughput, gain of bus use; 1.2 is a fifth more.
    pub gains: Vec<(String, Configuration, f64, f64)>,
}

/// Correlates the gains from `before` to `after` of every server in every configuration that both
/// have: from one processor to another (0.95 from 2.0 to 3.06 GHz, 0.62 to that with L3).
///
/// # Errors
/// Which part is missing.
pub fn bus_correlation(before: &[Cell], after: &[Cell]) -> Result<BusCorrelation, String> {
    let same = |one: &Cell, other: &Cell| {
        one.server == other.server && one.configuration == other.configuration
    };
    let pairs = after.iter().filter_map(|cell| {
        let found = before.iter().find(|one| same(one, cell))?;
        Some((found, cell))
    });
    of_pairs(pairs)
}

/// The same on one machine: the gains of each configuration over one core without SMT.
///
/// # Errors
/// As [`bus_correlation`].
pub fn bus_correlation_here(cells: &[Cell]) -> Result<BusCorrelation, String> {
    let base = |cell: &Cell| {
        let mut all = cells.iter();
        all.find(|one| one.server == cell.server && one.configuration == Configuration::One)
    };
    let others = cells
        .iter()
        .filter(|cell| cell.configuration != Configuration::One);
    of_pairs(others.filter_map(|cell| Some((base(cell)?, cell))))
}

fn of_pairs<'c>(
    pairs: impl Iterator<Item = (&'c Cell, &'c Cell)>,
) -> Result<BusCorrelation, String> {
    let mut gains = Vec::new();
    let mut seen = 0;
    for (before, after) in pairs {
        seen += 1;
        let rates = before.bits_per_s.zip(after.bits_per_s);
        let buses = bus_use(before).zip(bus_use(after));
        if let Some(((rate, then), (bus, bus_then))) = rates.zip(buses) {
            let (throughput, busy) = (then / rate, bus_then / bus);
            gains.push((after.server.clone(), after.configuration, throughput, busy));
        }
    }
    let points: Vec<(f64, f64)> = gains.iter().map(|(_, _, x, y)| (*x, *y)).collect();
    match correlation(&points) {
        Some(coefficient) => Ok(BusCorrelation { coefficient, gains }),
        None if seen == 0 => Err("no server was measured in both".into()),
        None if gains.is_empty() => Err("the use of the memory bus was not counted".into()),
        None => Err(format!(
            "{} pairs with both gains are too few, or do not vary; three are the least",
            gains.len()
        )),
    }
}

/// The share of the bus's clocks, or the bytes per second where only those are counted.
fn bus_use(cell: &Cell) -> Option<f64> {
    cell.memory.bus_share.or(cell.memory.bytes_per_s)
}

/// Pearson's coefficient of correlation; `None` for fewer than three points, or where one side does
/// not vary.
///
/// ```
/// use headway_counters::study::processors::correlation;
/// assert_eq!(correlation(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]), Some(1.0));
/// ```
pub fn correlation(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 3 {
        return None;
    }
    let count = points.len() as f64;
    let mean = |side: fn(&(f64, f64)) -> f64| points.iter().map(side).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |term: fn(f64, f64) -> f64| {
        let terms = points.iter().map(|point| term(point.0 - x, point.1 - y));
        terms.sum::<f64>()
    };
    let (both, of_x, of_y) = (sum(|a, b| a * b), sum(|a, _| a * a), sum(|_, b| b * b));
    let coefficient = both / (of_x * of_y).sqrt();
    coefficient.is_finite().then_some(coefficient)
}

#[cfg(test)]
mod tests {
    use super::super::compare::cells;
    use super::super::outcome::{Measured, Outcome};
    use super::super::plan::Workload;
    use super::*;
    use crate::events::Meaning;
    use crate::metrics::Served;
    use crate::metrics::figures::tests::counts_of;
    use crate::probe::Level;

    /// A server on a machine: throughput in megabytes, and the share of its bus, in percent.
    fn recorded(servers: &[(&str, &str, f64, f64)]) -> Vec<Cell> {
        let mut outcome = Outcome::new(Workload::default());
        for &(server, configuration, megabytes, busy) in servers {
            let share = busy / 100.0;
            outcome.put(Measured {
                server: server.into(),
                configuration: configuration.into(),
                repeat: 1,
                served: Served {
                    bytes: megabytes * 1e6,
                    requests: 1000.0,
                    seconds: 10.0,
                },
                verdict: "valid".into(),
                // Half clocks, as the controllers count.
                counts: counts_of(&[(Meaning::BusBusy, share * 2e9), (Meaning::BusClocks, 1e9)]),
                ..Measured::default()
            });
        }
        cells(&outcome)
    }

    #[test]
    fn gains_of_throughput_and_bus_are_correlated_over_servers_and_configurations() {
        let slow = recorded(&[
            ("nginx", "1T-SMP", 100.0, 10.0),
            ("nginx", "2P", 150.0, 16.0),
            ("lighttpd", "1T-SMP", 80.0, 9.0),
            ("h2o", "1T-SMP", 70.0, 9.0),
        ]);
        let fast = recorded(&[
            ("nginx", "1T-SMP", 150.0, 15.0),
            ("nginx", "2P", 180.0, 19.2),
            ("lighttpd", "1T-SMP", 104.0, 11.7),
            ("headway", "1T-SMP", 200.0, 11.0),
        ]);
        let found = bus_correlation(&slow, &fast).expect("three pairs");
        assert_eq!(found.gains.len(), 3, "those that both machines have");
        assert!((found.coefficient - 1.0).abs() < 1e-9, "{found:?}");
        // Of the cells of one machine: two configurations over one core.
        let here = bus_correlation_here(&slow);
        assert!(here.expect_err("one pair").contains("too few"));
    }

    #[test]
    fn correlation_is_that_of_a_textbook_and_absent_for_too_little() {
        let points = [
            (43.0, 99.0),
            (21.0, 65.0),
            (25.0, 79.0),
            (42.0, 75.0),
            (57.0, 87.0),
            (59.0, 81.0),
        ];
        let found = correlation(&points).expect("six points");
        assert!((found - 0.529_808_901_9).abs() < 1e-6, "{found}");
        assert_eq!(correlation(&points[..2]), None);
        assert_eq!(correlation(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
        let reversed = points.map(|(x, y)| (x, -y));
        assert!((correlation(&reversed).expect("six") + found).abs() < 1e-12);
    }

    #[test]
    fn correlation_says_what_was_not_counted() {
        let mut cells = recorded(&[("nginx", "1T-SMP", 100.0, 10.0)]);
        cells[0].memory = Default::default();
        let why = bus_correlation(&cells, &cells).expect_err("no bus");
        assert!(why.contains("not counted"), "{why}");
        let why = bus_correlation(&[], &cells).expect_err("nothing before");
        assert!(why.contains("no server"), "{why}");
    }

    #[test]
    fn this_machine_stands_beside_the_papers_processors() {
        let level = |name: &str, bytes, latency_ns| Level {
            name: name.into(),
            bytes,
            set_bytes: 0,
            latency_ns,
        };
        let probed = Probed {
            cycle_ns: 0.25,
            levels: vec![
                level("L1", Some(32 << 10), 1.0),
                level("L2", Some(1 << 20), 3.5),
                level("memory", None, 100.0),
            ],
            misprediction_ns: 4.0,
            ..Probed::default()
        };
        let rows = table_4_5(Some(&probed), Some(2));
        let ours = |title: &str| {
            rows.iter()
                .find(|row| row.title == title)
                .expect("a row")
                .ours
        };
        assert_eq!(ours("Clock rate (MHz)"), Some(4000.0));
        assert_eq!((ours("Contexts"), ours("Stages")), (Some(2.0), Some(16.0)));
        assert_eq!(
            (ours("L2 size (KB)"), ours("L2 cycles")),
            (Some(1024.0), Some(14.0))
        );
        assert_eq!(
            (ours("L3 cycles"), ours("Memory (cycles)")),
            (None, Some(400.0))
        );
        let memory = rows
            .iter()
            .find(|row| row.title == "Memory (cycles)")
            .expect("a row");
        assert_eq!(memory.paper[4], "344");
        assert!(table_4_5(None, None).iter().all(|row| row.ours.is_none()));
    }
}
