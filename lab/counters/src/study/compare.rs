//! The dissertation's figures and tables from an outcome: throughput, speed-ups, the comparison of
//! Table 4.6.
//!
//! Repeats are put together as sums: what was counted in all of them over what was served in all of
//! them. A figure whose parts were not measured has no value and a reason.

use serde::Serialize;

use super::outcome::{Measured, Outcome};
use crate::count::Counts;
use crate::metrics::bus::{Memory, memory};
use crate::metrics::{Breakdown, Figure, Served, Slots, cpi, figures, slots};
use crate::smt::Configuration;

/// A server in a configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The server's name.
    pub server: String,
    /// The configuration.
    pub configuration: Configuration,
    /// Measurements that are ones.
    pub repeats: usize,
    /// Why other measurements failed.
    pub failed: Vec<String>,
    /// Bits of content a second, the mean; `None` if there is no measurement.
    pub bits_per_s: Option<f64>,
    /// The least and the most of the measurements.
    pub bits_range: Option<[f64; 2]>,
    /// Requests per second.
    pub requests_per_s: Option<f64>,
    /// Requests that failed.
    pub errors: u64,
    /// CPU time of the server per request, in microseconds.
    pub cpu_us_per_request: Option<f64>,
    /// Verdicts of the client that are not *valid*; those that differ in their figures alone once,
    /// the first of them.
    pub doubts: Vec<String>,
    /// The responses that were served.
    pub served: Served,
    /// The counts of the events.
    pub counts: Counts,
    /// Ratios of counts.
    pub figures: Vec<Figure>,
    /// Figure 4.19.
    pub breakdown: Breakdown,
    /// Top-down level 1.
    pub slots: Option<Slots>,
    /// Use of the memory bus.
    pub memory: Memory,
}

/// Every server in every configuration that was measured or tried, servers in their order.
pub fn cells(outcome: &Outcome) -> Vec<Cell> {
    let mut cells = Vec::new();
    for server in outcome.servers() {
        for configuration in Configuration::ALL {
            let is_it =
                |one: &&Measured| one.server == server && one.configuration == configuration.name();
            let measured: Vec<&Measured> = outcome.measured.iter().filter(is_it).collect();
            if !measured.is_empty() {
                cells.push(cell(outcome, server, configuration, &measured));
            }
        }
    }
    cells
}

fn cell(
    outcome: &Outcome,
    server: &str,
    configuration: Configuration,
    measured: &[&Measured],
) -> Cell {
    let good: Vec<&Measured> = measured
        .iter()
        .filter(|one| one.failed.is_none())
        .copied()
        .collect();
    let mut served = Served::default();
    let mut counts = Counts::default();
    for one in &good {
        served.bytes += one.served.bytes;
        served.requests += one.served.requests;
        served.seconds += one.served.seconds;
        counts.merge(one.counts.clone());
    }
    let rates: Vec<f64> = good
        .iter()
        .map(|one| one.served.bytes * 8.0 / one.served.seconds)
        .collect();
    let is_there = !good.is_empty();
    let cpu_ms: f64 = good.iter().map(|one| one.cpu_ms).sum();
    let bandwidth = outcome
        .probed
        .as_ref()
        .map(|probed| probed.bandwidth.read_bytes_per_s);
    Cell {
        server: server.into(),
        configuration,
        repeats: good.len(),
        failed: measured
            .iter()
            .filter_map(|one| one.failed.clone())
            .collect(),
        bits_per_s: is_there.then(|| rates.iter().sum::<f64>() / rates.len() as f64),
        bits_range: is_there.then(|| {
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            [least, rates.iter().copied().fold(0.0, f64::max)]
        }),
        requests_per_s: is_there.then(|| served.requests / served.seconds),
        errors: good.iter().map(|one| one.errors).sum(),
        cpu_us_per_request: is_there.then(|| cpu_ms * 1e3 / served.requests),
        doubts: joined_verdicts(&good),
        figures: figures(&counts, &served),
        breakdown: cpi::breakdown(&counts, &outcome.penalties()),
        slots: slots(&counts, outcome.width),
        memory: memory(&counts, &served, bandwidth),
        served,
        counts,
    }
}

/// Equal doubts of several measurements read as one.
fn joined_verdicts(measured: &[&Measured]) -> Vec<String> {
    let without_figures =
        |verdict: &str| verdict.replace(|c: char| c.is_ascii_digit() || c == '.', "");
    let mut found: Vec<(&str, usize)> = Vec::new();
    for one in measured.iter().filter(|one| one.verdict != "valid") {
        let known = found
            .iter_mut()
            .find(|(verdict, _)| without_figures(verdict) == without_figures(&one.verdict));
        match known {
            Some((_, times)) => *times += 1,
            None => found.push((&one.verdict, 1)),
        }
    }
    let verdicts = found.into_iter().map(|(verdict, times)| match times {
        1 => verdict.to_owned(),
        _ => format!("{times} times {verdict}"),
    });
    verdicts.collect()
}

/// A comparison of two configurations, as a figure of the dissertation has it.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The name of the figure.
    pub figure: &'static str,
    /// What the figure shows.
    pub title: &'static str,
    /// The configuration above the line.
    pub of: Configuration,
    /// The configuration below the line.
    pub over: Configuration,
}

/// The comparisons of section 4.3.
pub const COMPARISONS: [Comparison; 4] = [
    Comparison {
        figure: "section 4.3.1",
        title: "Kernel for several CPUs, on one",
        of: Configuration::One,
        over: Configuration::OneUniprocessor,
    },
    Comparison {
        figure: "Figure 4.4",
        title: "SMT on one CPU, with the same kernel",
        of: Configuration::OneWithSmt,
        over: Configuration::One,
    },
    Comparison {
        figure: "Figure 4.5",
        title: "SMT on one CPU, over a kernel for one",
        of: Configuration::OneWithSmt,
        over: Configuration::OneUniprocessor,
    },
    Comparison {
        figure: "Figure 4.6",
        title: "SMT on two CPUs",
        of: Configuration::TwoWithSmt,
        over: Configuration::Two,
    },
];

impl Comparison {
    /// The speed-up of a server, 0.1 for 10 %, or what was not measured for it.
    ///
    /// # Errors
    /// The configurations that have no measurement.
    pub fn speed_up(&self, cells: &[Cell], server: &str) -> Result<f64, String> {
        let rate = |configuration: Configuration| {
            let found = cells
                .iter()
                .find(|cell| cell.server == server && cell.configuration == configuration);
            found
                .and_then(|cell| cell.bits_per_s)
                .ok_or(configuration.name())
        };
        match (rate(self.of), rate(self.over)) {
            (Ok(of), Ok(over)) => Ok(of / over - 1.0),
            (Err(of), Err(over)) => Err(format!("{of} and {over} were not measured")),
            (Err(one), _) | (_, Err(one)) => Err(format!("{one} was not measured")),
        }
    }
}

/// A row of Table 4.6, with ours beside it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// What the row shows.
    pub title: &'static str,
    /// The simulation with SMT and without, and the dissertation's measurement with SMT and
    /// without, as printed.
    pub paper: [&'static str; 4],
    /// Ours with SMT and without.
    pub ours: [Option<f64>; 2],
    /// Whether ours are estimates, whose counters took turns with others.
    pub are_estimates: [bool; 2],
    /// The values are shares of 1, which the paper prints in percent.
    pub is_share: bool,
}

/// Table 4.6 as printed: title, our figure's word, and the four columns.
const TABLE_4_6: [(&str, &str, [&str; 4]); 7] = [
    ("IPC", "ipc", ["5.6", "2.6", "0.43", "0.33"]),
    (
        "Branch mispredict (%)",
        "misprediction-rate",
        ["9.3", "5.0", "12.0", "8.0"],
    ),
    (
        "L1-I miss (%)",
        "l1i-miss-rate",
        ["2.0", "1.3", "17.1", "10.5"],
    ),
    (
        "L1-D miss (%)",
        "l1d-miss-rate",
        ["3.6", "0.5", "5.7", "4.7"],
    ),
    ("L2 miss (%)", "l2-miss-rate", ["1.4", "1.8", "3.9", "5.1"]),
    (
        "ITLB miss (%)",
        "itlb-miss-rate",
        ["0.0", "0.0", "3.7", "5.1"],
    ),
    (
        "DTLB miss (%)",
        "dtlb-miss-rate",
        ["0.6", "0.05", "3.5", "2.9"],
    ),
];

/// Table 4.6 for a server: with SMT is 2T, without is 1T-SMP.
pub fn table_4_6(cells: &[Cell], server: &str) -> Vec<ComparisonRow> {
    let figure = |configuration: Configuration, name: &str| {
        let cell = cells
            .iter()
            .find(|cell| cell.server == server && cell.configuration == configuration)?;
        cell.figures.iter().find(|figure| figure.name == name)
    };
    let rows = TABLE_4_6.iter().map(|(title, name, paper)| {
        let figures = [Configuration::OneWithSmt, Configuration::One].map(|one| figure(one, name));
        ComparisonRow {
            title,
            paper: *paper,
            ours: figures.map(|figure| figure?.value),
            are_estimates: figures.map(|figure| figure.is_some_and(Figure::is_estimate)),
            is_share: *name != "ipc",
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::Workload;
    use super::*;
    use crate::events::Meaning;
    use crate::metrics::figures::tests::counts_of;

    fn measured(configuration: &str, repeat: u32, megabytes: f64, instructions: f64) -> Measured {
        Measured {
            server: "apache-prefork".into(),
            configuration: configuration.into(),
            repeat,
            served: Served {
                bytes: megabytes * 1e6,
                requests: 1000.0,
                seconds: 10.0,
            },
            verdict: "valid".into(),
            cpu_ms: 500.0,
            counts: counts_of(&[
                (Meaning::Instructions, instructions),
                (Meaning::Cycles, instructions * 2.0),
            ]),
            ..Measured::default()
        }
    }

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new(Workload::default());
        outcome.put(measured("1T-SMP", 1, 900.0, 9e9));
        outcome.put(measured("1T-SMP", 2, 1100.0, 7e9));
        outcome.put(measured("2T", 1, 1300.0, 1e10));
        outcome.put(Measured {
            failed: Some("it died".into()),
            ..measured("2P", 1, 0.0, 0.0)
        });
        outcome
    }

    #[test]
    fn repeats_are_put_together_as_sums_when_there_are_several() {
        let cells = cells(&outcome());
        assert_eq!(cells.len(), 3);
        let one = &cells[0];
        assert_eq!((one.repeats, one.bits_per_s), (2, Some(800e6)));
        assert_eq!(one.bits_range, Some([720e6, 880e6]));
        assert_eq!(one.cpu_us_per_request, Some(500.0));
        let per_byte = one
            .figures
            .iter()
            .find(|figure| figure.name == "instructions-per-byte");
        assert_eq!(per_byte.expect("a figure").value, Some(8.0));
        let died = &cells[2];
        assert_eq!((died.bits_per_s, died.failed.len()), (None, 1));
    }

    #[test]
    fn verdicts_that_differ_in_figures_only_are_joined() {
        let mut outcome = Outcome::new(Workload::default());
        let verdicts = [
            "suspect: waited 1.8 %",
            "valid",
            "suspect: waited 2 %",
            "invalid: busy",
        ];
        for (repeat, verdict) in (1..).zip(verdicts) {
            outcome.put(Measured {
                verdict: verdict.into(),
                ..measured("1T-SMP", repeat, 900.0, 9e9)
            });
        }
        let cells = cells(&outcome);
        assert_eq!(
            cells[0].doubts,
            ["2 times suspect: waited 1.8 %", "invalid: busy"]
        );
    }

    #[test]
    fn speed_up_says_what_was_not_measured_when_a_configuration_is_missing() {
        let cells = cells(&outcome());
        let found = COMPARISONS[1]
            .speed_up(&cells, "apache-prefork")
            .expect("measured");
        assert!((found - 0.3).abs() < 1e-12, "{found}");
        let missing = COMPARISONS[3].speed_up(&cells, "apache-prefork");
        assert_eq!(missing, Err("4T and 2P were not measured".into()));
    }

    #[test]
    fn comparison_has_the_papers_rows_when_ours_are_missing() {
        let rows = table_4_6(&cells(&outcome()), "apache-prefork");
        assert_eq!(rows.len(), 7);
        assert_eq!(
            (rows[0].paper[2], rows[0].ours),
            ("0.43", [Some(0.5), Some(0.5)])
        );
        assert_eq!(rows[3].ours, [None, None]);
    }
}
