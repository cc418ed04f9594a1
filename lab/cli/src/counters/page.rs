//! A study as a page: configurations, throughput and speed-ups in the form of Figures 4.1 to 4.6,
//! counts, the cycle breakdown of Figure 4.19, and Table 4.6 with ours beside it.

mod counted;
mod processors;

use headway_counters::smt::Configuration;
use headway_counters::study::compare::{COMPARISONS, Cell};
use headway_counters::study::{Outcome, Setup};
use headway_lab::servers::Kind;
use headway_report::{Sheet, SheetBars, SheetPart, SheetSection, SheetTable};

use super::numbers;
use super::text::{number, percent};
use counted::{comparison, cycles, details, misses, probed, work_section};

const NONE: &str = "–";

/// The page.
pub fn sheet(outcome: &Outcome, cells: &[Cell]) -> Sheet {
    let sections = [
        configurations(outcome),
        throughput(outcome, cells),
        speed_ups(outcome, cells),
        scores(outcome, cells),
        work_section(cells),
        instructions(outcome),
        misses(cells),
        cycles(cells),
        comparison(outcome, cells),
        processors::bus(cells),
        processors::processors(outcome),
        probed(outcome),
        details(outcome, cells),
    ];
    Sheet {
        maker: "Headway counters".into(),
        title: "Servers with and without SMT".into(),
        about: description(outcome),
        alarms: outcome.notices.clone(),
        sections: sections.into_iter().flatten().collect(),
        footer: format!(
            "Made by headway-lab counters {}. Throughput is content that clients received; counts are of the server's CPUs, the \
             kernel's own of its processes. Figures of several measurements are those of their sums.",
            env!("CARGO_PKG_VERSION")
        ),
    }
}

fn description(outcome: &Outcome) -> String {
    let work = &outcome.workload;
    let of = |name: &str| outcome.machine.get(name).cloned().unwrap_or_default();
    let facts = [
        outcome.made.get(..10).unwrap_or_default().to_owned(),
        of("host"),
        of("cpu"),
        of("kernel"),
        format!("{} build", of("build")),
        format!(
            "{} set of {} MB, {} connections",
            work.profile,
            work.set_bytes / 1_000_000,
            work.connections
        ),
    ];
    let known: Vec<String> = facts
        .into_iter()
        .filter(|fact| !fact.trim().is_empty())
        .collect();
    known.join(" · ")
}

/// A server's title, or its word where that is unknown.
fn title(server: &str) -> String {
    server
        .parse::<Kind>()
        .map_or_else(|_| server.to_owned(), |kind| kind.title().to_owned())
}

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| NONE.into())
}

fn head(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

fn configurations(outcome: &Outcome) -> Option<SheetSection> {
    let remarks = |setup: &Setup| -> String {
        match &setup.impossible {
            Some(why) => format!("cannot be had here: {why}"),
            None => setup
                .changed
                .iter()
                .chain(&setup.remarks)
                .cloned()
                .collect::<Vec<_>>()
                .join("; "),
        }
    };
    let rows = outcome.setups.iter().map(|setup| {
        let cpus = |list: &[usize]| {
            if list.is_empty() {
                NONE.into()
            } else {
                numbers(list)
            }
        };
        let configuration = setup.configuration;
        vec![
            configuration.name().into(),
            configuration.cores().to_string(),
            configuration.threads().to_string(),
            cpus(&setup.server),
            cpus(&setup.client),
            remarks(setup),
        ]
    });
    let table = SheetTable {
        title: "The five configurations on this machine".into(),
        note: "A CPU of the dissertation is a core here. The client runs beside the server, on other cores where there are any."
            .into(),
        head: head(&["", "cores", "threads each", "server on", "client on", "what was changed, and what to know"]),
        rows: rows.collect(),
    };
    section(
        "configurations",
        "Configurations",
        "Table 4.3 of the dissertation.",
        vec![SheetPart::Table(table)],
    )
}

fn section(
    id: &'static str,
    title: &str,
    lead: &str,
    parts: Vec<SheetPart>,
) -> Option<SheetSection> {
    (!parts.is_empty()).then(|| SheetSection {
        id,
        title: title.into(),
        lead: lead.into(),
        parts,
    })
}

/// Configurations that at least one server was measured in.
fn measured_configurations(cells: &[Cell]) -> Vec<Configuration> {
    let is_there = |one: &Configuration| {
        cells
            .iter()
            .any(|cell| cell.configuration == *one && cell.repeats > 0)
    };
    Configuration::ALL.into_iter().filter(is_there).collect()
}

fn find<'a>(cells: &'a [Cell], server: &str, configuration: Configuration) -> Option<&'a Cell> {
    cells
        .iter()
        .find(|cell| cell.server == server && cell.configuration == configuration)
}

/// A figure with a group for each server and a bar for each configuration.
fn bars(
    outcome: &Outcome,
    cells: &[Cell],
    texts: [&str; 4],
    format: fn(f64) -> String,
    value: impl Fn(&Cell) -> Option<f64>,
) -> Option<SheetPart> {
    let present = measured_configurations(cells);
    let [id, name, source, above] = texts.map(str::to_owned);
    let groups: Vec<(String, Vec<Option<f64>>, Option<f64>)> = outcome
        .servers()
        .into_iter()
        .map(|server| {
            let values = present
                .iter()
                .map(|one| find(cells, server, *one).and_then(&value));
            (title(server), values.collect(), None)
        })
        .collect();
    let something = groups
        .iter()
        .any(|(_, values, _)| values.iter().any(Option::is_some));
    something.then_some(SheetPart::Bars(SheetBars {
        id,
        title: name,
        caption: Vec::new(),
        source,
        above,
        series: present.iter().map(|one| one.name().to_owned()).collect(),
        stacked: false,
        groups,
        format,
    }))
}

fn throughput(outcome: &Outcome, cells: &[Cell]) -> Option<SheetSection> {
    let form = "The form of Figures 4.1 to 4.3.";
    let figure = bars(
        outcome,
        cells,
        ["throughput", "Throughput", form, "Mb/s"],
        number,
        |cell| cell.bits_per_s.map(|bits| bits / 1e6),
    );
    let rows =
        cells.iter().map(|cell| {
            let range = cell.bits_range.filter(|_| cell.repeats > 1);
            vec![
                format!("{}, {}", title(&cell.server), cell.configuration),
                or_none(cell.bits_per_s.map(|bits| number(bits / 1e6))),
                or_none(range.map(|[least, most]| {
                    format!("{} to {}", number(least / 1e6), number(most / 1e6))
                })),
                or_none(cell.requests_per_s.map(number)),
                or_none(cell.cpu_us_per_request.map(number)),
                cell.errors.to_string(),
                cell.failed
                    .iter()
                    .chain(&cell.doubts)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join("; "),
            ]
        });
    let table = SheetTable {
        title: "All measurements".into(),
        note: "CPU time is that of the server's own processes, user and kernel; what the kernel does for it elsewhere is not in it."
            .into(),
        head: head(&["", "Mb/s", "range", "requests/s", "CPU µs per request", "failed requests", "doubts and failures"]),
        rows: rows.collect(),
    };
    let has_rows = !table.rows.is_empty();
    let parts = figure
        .into_iter()
        .chain(has_rows.then_some(SheetPart::Table(table)));
    section(
        "throughput",
        "Throughput",
        "Infinite demand: every connection asks again when it is answered.",
        parts.collect(),
    )
}

fn speed_ups(outcome: &Outcome, cells: &[Cell]) -> Option<SheetSection> {
    let mut rows = Vec::new();
    let mut parts = Vec::new();
    for comparison in COMPARISONS {
        let mut groups = Vec::new();
        for server in outcome.servers() {
            let found = comparison.speed_up(cells, server);
            groups.push((title(server), vec![found.as_ref().ok().copied()], None));
            rows.push(vec![
                format!(
                    "{} over {}, {}",
                    comparison.of,
                    comparison.over,
                    title(server)
                ),
                found.map_or_else(|why| why, percent),
                comparison.figure.into(),
            ]);
        }
        if groups.iter().any(|(_, values, _)| values[0].is_some()) {
            parts.push(SheetPart::Bars(SheetBars {
                id: format!("speed-up-{}", parts.len() + 1),
                title: comparison.title.into(),
                caption: vec!["Above zero the configuration named first serves more.".into()],
                source: format!("The form of {}.", comparison.figure),
                above: "speed-up".into(),
                series: vec![format!("{} over {}", comparison.of, comparison.over)],
                stacked: false,
                groups,
                format: percent,
            }));
        }
    }
    let table = SheetTable {
        title: "Speed-ups".into(),
        note: String::new(),
        head: head(&["", "speed-up", "in the dissertation"]),
        rows,
    };
    parts.push(SheetPart::Table(table));
    section(
        "speed-ups",
        "What SMT gives",
        "Section 4.3: SMT must be compared with the best that a machine can do without it, which on one CPU is a kernel for one.",
        parts,
    )
}

fn scores(outcome: &Outcome, cells: &[Cell]) -> Option<SheetSection> {
    if outcome.scores.is_empty() {
        return None;
    }
    // A bound can neither be drawn beside a number nor divided by one.
    let connections = |server: &str, configuration| {
        let found = outcome.score(server, configuration)?.exact()?;
        Some(found as f64)
    };
    let texts = [
        "scores",
        "Simultaneous connections",
        "The form of Figure 4.20; bounds are in the table alone.",
        "connections",
    ];
    let figure = bars(outcome, cells, texts, number, |cell| {
        connections(&cell.server, cell.configuration)
    });
    let mut rows: Vec<Vec<String>> = outcome
        .scores
        .iter()
        .map(|score| {
            let share = score.share.map_or(String::new(), |share| {
                format!(", with {:.0} % of its CPUs", share * 100.0)
            });
            let name = format!("{}, {}{share}", title(&score.server), score.configuration);
            vec![name, score.result_text(), NONE.into()]
        })
        .collect();
    for comparison in COMPARISONS {
        for server in outcome.servers() {
            let both = connections(server, comparison.of).zip(connections(server, comparison.over));
            if let Some((of, over)) = both {
                let name = format!(
                    "{} over {}, {}",
                    comparison.of,
                    comparison.over,
                    title(server)
                );
                rows.push(vec![name, NONE.into(), percent(of / over - 1.0)]);
            }
        }
    }
    let table = SheetTable {
        title: "Scores and their speed-ups".into(),
        note: "Figures 4.20 and 4.21.".into(),
        head: head(&["", "connections", "speed-up"]),
        rows,
    };
    let lead = "How many connections of at most 400 kbit/s get at least 320 kbit/s, nineteen in twenty of them: SPECweb99's rule, with \
                its static requests alone. Not comparable with published scores, a third of whose requests are dynamic.";
    let parts = figure.into_iter().chain([SheetPart::Table(table)]);
    section("scores", "Slow clients", lead, parts.collect())
}

fn instructions(outcome: &Outcome) -> Option<SheetSection> {
    if outcome.instructions.is_empty() {
        return None;
    }
    let rows = outcome.instructions.iter().map(|one| {
        vec![
            format!("{} {}", title(&one.server), one.version),
            or_none(one.per_request.map(number)),
            or_none(one.per_byte.map(number)),
            match &one.failed {
                Some(why) => why.clone(),
                None => format!("{} less {}", one.requests[1], one.requests[0]),
            },
        ]
    });
    let table = SheetTable {
        title: "Instructions of user code, by callgrind".into(),
        note: "Counted by valgrind, not by the CPU: what the kernel does for a request is not in it, and the same code costs the same on \
               every machine. One worker, four connections."
            .into(),
        head: head(&["", "instructions a request", "instructions a byte", "requests"]),
        rows: rows.collect(),
    };
    section(
        "instructions",
        "User instructions",
        "",
        vec![SheetPart::Table(table)],
    )
}
