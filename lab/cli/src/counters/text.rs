//! Counts and figures as tables for a terminal.

use headway_counters::count::{Count, Counts, Space};
use headway_counters::events::{Meaning, table as events};
use headway_counters::metrics::{Figure, Slots};
use headway_counters::study::Outcome;
use headway_counters::study::compare::{COMPARISONS, Cell};

use headway_cli_support::table::table;

/// Three significant digits, or whole numbers with their thousands set off.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => headway_latency::format::count(value.round().max(0.0) as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// A share of 1 in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// All counts, with the share of the time for which each was counted, and what is missing.
pub fn counts_table(counts: &Counts, seconds: f64) -> String {
    let mut rows = Vec::new();
    let all = counts.spaces.iter().flat_map(|(space, counts)| {
        counts
            .iter()
            .map(move |(meaning, count)| (*meaning, *space, count))
    });
    let mut all: Vec<(Meaning, Space, &Count)> = all.collect();
    all.sort_by_key(|(meaning, space, _)| (*meaning, *space));
    for (meaning, space, count) in all {
        let space_text = match space {
            Space::Both => "",
            Space::User => "user",
            Space::Kernel => "kernel",
        };
        let title = &events().event(meaning).title;
        rows.push(vec![
            title.clone(),
            space_text.into(),
            headway_latency::format::count(count.value.round() as u64),
            percent(count.counted_share),
        ]);
    }
    let mut text = format!(
        "{seconds:.3} s\n\n{}",
        table(&["event", "code", "count", "counted"], &rows)
    );
    // Most are missing for one reason, where there are no counters at all.
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (meaning, why) in &counts.missing {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, meanings)) => meanings.push(meaning.name()),
            None => reasons.push((why, vec![meaning.name()])),
        }
    }
    for (why, meanings) in reasons {
        text += &format!("\nnot counted: {}: {why}\n", meanings.join(", "));
    }
    text
}

/// Figures that have a value.
pub fn figures_table(figures: &[Figure], slots: Option<&Slots>) -> String {
    let mut rows: Vec<Vec<String>> = figures
        .iter()
        .filter_map(|figure| {
            let value = figure.value?;
            let value = match figure.unit {
                headway_counters::metrics::FigureUnit::Share => percent(value),
                _ => number(value),
            };
            let mark = figure
                .counted_share
                .filter(|share| *share < 1.0)
                .map_or("", |_| "estimated");
            Some(vec![figure.title.into(), value, mark.into()])
        })
        .collect();
    if let Some(slots) = slots {
        let named = [
            ("slots: retiring", Some(slots.retiring)),
            ("slots: thrown away", Some(slots.bad_speculation)),
            ("slots: not delivered", Some(slots.frontend)),
            ("slots: no resources", Some(slots.backend)),
            ("slots: the other thread's", slots.other_thread),
        ];
        let shown = named
            .into_iter()
            .filter_map(|(name, share)| Some((name, share?)));
        rows.extend(shown.map(|(name, share)| vec![name.into(), percent(share), String::new()]));
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&["figure", "value", ""], &rows)),
    }
}

/// A study in a terminal: configurations, throughput, speed-ups, instructions.
pub fn study(outcome: &Outcome, cells: &[Cell]) -> String {
    let mut text = String::new();
    for notice in &outcome.notices {
        text += &format!("{notice}\n");
    }
    for setup in &outcome.setups {
        if let Some(why) = &setup.impossible {
            text += &format!("{} cannot be had here: {why}\n", setup.configuration);
        }
        for remark in &setup.remarks {
            text += &format!("{}: {remark}\n", setup.configuration);
        }
    }
    text += &throughput(cells);
    for cell in cells {
        for why in cell.failed.iter().chain(&cell.doubts) {
            text += &format!("\n{} {}: {why}\n", cell.server, cell.configuration);
        }
    }
    text += &speed_ups(outcome, cells);
    text += &instructions(outcome);
    for score in &outcome.scores {
        text += &format!(
            "\n{} of 400 kbit/s: {}\n",
            score.name(),
            score.result_text()
        );
    }
    for one in &outcome.instructions {
        if let Some(why) = &one.failed {
            text += &format!("\n{}, instructions: {why}\n", one.server);
        }
    }
    text
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "–".into())
}

fn throughput(cells: &[Cell]) -> String {
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|cell| {
            vec![
                cell.server.clone(),
                cell.configuration.name().into(),
                or_dash(cell.bits_per_s.map(|bits| number(bits / 1e6))),
                or_dash(cell.requests_per_s.map(number)),
                or_dash(cell.cpu_us_per_request.map(number)),
            ]
        })
        .collect();
    let head = [
        "server",
        "configuration",
        "Mb/s",
        "requests/s",
        "CPU µs/request",
    ];
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&head, &rows)),
    }
}

fn instructions(outcome: &Outcome) -> String {
    let rows: Vec<Vec<String>> = outcome
        .instructions
        .iter()
        .map(|one| {
            vec![
                one.server.clone(),
                or_dash(one.per_request.map(number)),
                or_dash(one.per_byte.map(number)),
            ]
        })
        .collect();
    let head = ["server", "user instructions a request", "a byte"];
    match rows.is_empty() {
        true => String::new(),
        false => format!("\nBy callgrind, user code alone:\n{}", table(&head, &rows)),
    }
}

fn speed_ups(outcome: &Outcome, cells: &[Cell]) -> String {
    let mut rows = Vec::new();
    for comparison in COMPARISONS {
        for server in outcome.servers() {
            if let Ok(found) = comparison.speed_up(cells, server) {
                let name = format!("{} over {}", comparison.of, comparison.over);
                rows.push(vec![name, server.to_owned(), percent(found)]);
            }
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&["speed-up", "server", ""], &rows)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_when_they_are_small_and_groups_when_large() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.25, "0.25"),
            (12.34, "12.3"),
            (123.4, "123"),
            (12_345.6, "12,346"),
            (0.001, "1.00e-3"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(percent(0.125), "12.5 %");
    }
}
