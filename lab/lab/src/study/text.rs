//! The result of a study for a terminal: tables with the paper's rows above ours, and the claims.

use std::fmt::Write as _;

use headway_latency::StudyResult;
use headway_latency::run::Verdict;
use headway_latency::study::reasons::Reasons;
use headway_latency::study::result::{
    ClaimOutcome, ClaimResult, OurCell, OurRow, PaperCell, Table,
};

/// In the reason of a cell that another scale fills; there would be a note for each of them.
const OTHER_SCALE: &str = "is not measured at scale";

/// Columns of a terminal, for sentences.
const WIDTH: usize = 100;

/// The whole result. Ends with a line end.
pub fn render(result: &StudyResult) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}. {} ({})",
        result.number, result.title, result.scale
    );
    sentence(&mut out, "", &result.source);
    sentence(&mut out, "", &result.question);
    for environment in &result.environments {
        let _ = writeln!(out, "{}: {}", environment.name, environment.summary);
        for missing in &environment.missing {
            sentence(&mut out, "  ", missing);
        }
    }
    for table in &result.tables {
        out.push('\n');
        render_table(&mut out, table);
    }
    if !result.claims.is_empty() {
        out += "\nClaims\n";
    }
    for claim in &result.claims {
        render_claim(&mut out, claim);
    }
    if !result.complete {
        out += "\nSome measurements are missing; repeat the same `headway-lab study run` to make them.\n";
    }
    out
}

fn render_table(out: &mut String, table: &Table) {
    let unit = match table.unit.as_str() {
        "" => String::new(),
        unit => format!(" [{unit}]"),
    };
    let _ = writeln!(out, "{}{unit}", table.title);
    let mut lines: Vec<(String, Vec<String>)> = vec![(table.corner.clone(), table.columns.clone())];
    let mut notes = Reasons::default();
    for row in &table.paper {
        let cells = row.cells.iter().enumerate();
        let cells = cells.map(|(column, cell)| paper_cell(cell, table, column));
        lines.push((format!("paper: {}", row.row), cells.collect()));
    }
    for row in &table.ours {
        lines.push((
            format!("here: {}", row.row),
            our_cells(row, table, &mut notes),
        ));
    }
    aligned(out, &lines);
    if table.ours.iter().flat_map(|row| &row.cells).any(left_out) {
        out.push_str("  · stands for what this scale leaves out\n");
    }
    for (at, note) in notes.sentences().iter().enumerate() {
        sentence(out, &format!("  {}) ", at + 1), note);
    }
}

fn our_cells(row: &OurRow, table: &Table, notes: &mut Reasons) -> Vec<String> {
    if let Some(why) = &row.absent {
        return vec![format!("– {}", mark(notes, why))];
    }
    // A row without any value has one reason, however many figures it misses.
    let empty = row.cells.iter().all(|cell| cell.value.is_none());
    let mut tried = row.cells.iter().filter(|cell| !left_out(cell));
    let common = tried.next().filter(|_| empty);
    row.cells
        .iter()
        .map(|cell| match common {
            Some(common) if !left_out(cell) => our_cell(common, table, notes),
            _ => our_cell(cell, table, notes),
        })
        .collect()
}

/// Whether only the other scale measures it.
fn left_out(cell: &OurCell) -> bool {
    let why = cell.missing.as_deref();
    why.is_some_and(|why| why.contains(OTHER_SCALE))
}

fn our_cell(cell: &OurCell, table: &Table, notes: &mut Reasons) -> String {
    let Some(value) = cell.value else {
        let why = cell.missing.as_deref().unwrap_or("not known");
        if why.contains(OTHER_SCALE) {
            return "·".to_owned();
        }
        return format!("– {}", mark(notes, why));
    };
    let mut text = figure(value, table.digits);
    if let Some(interval) = cell.interval {
        let half = (interval.high - interval.low) / 2.0;
        let _ = write!(text, " ±{}", figure(half, table.digits));
    }
    // The client's doubts stand at the figure itself.
    match cell.verdict {
        Verdict::Valid => {}
        Verdict::Suspect => text += "?",
        Verdict::Invalid => text += "!",
    }
    if cell.verdict != Verdict::Valid || !cell.reasons.is_empty() {
        let why = cell
            .reasons
            .first()
            .map_or("no reason is given", String::as_str);
        let _ = write!(text, " {}", mark(notes, why));
    }
    text
}

/// The number of a note, which is new or known.
fn mark(notes: &mut Reasons, why: &str) -> String {
    format!("{})", notes.add(why) + 1)
}

fn paper_cell(cell: &PaperCell, table: &Table, column: usize) -> String {
    match cell {
        // As printed, even where ours has other digits: 450.0 among 437.5 stays 450.0.
        PaperCell::Number(value) => format!("{value:.*}", table.paper_decimals(column)),
        PaperCell::Text(text) => text.clone(),
    }
}

/// With the table's digits, or three significant ones.
pub fn figure(value: f64, digits: Option<u8>) -> String {
    if let Some(digits) = digits {
        return format!("{value:.*}", usize::from(digits));
    }
    match value.abs() {
        0.0 => "0".to_owned(),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 1.0 => format!("{value:.2}"),
        tiny => {
            let digits = (-tiny.log10()).ceil() as usize + 2;
            format!("{value:.*}", digits.min(9))
        }
    }
}

fn aligned(out: &mut String, lines: &[(String, Vec<String>)]) {
    let columns = lines
        .iter()
        .map(|(_, cells)| cells.len())
        .max()
        .unwrap_or(0);
    let width = |text: &str| text.chars().count();
    let first = lines.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let at = |column: usize| {
        // A single cell of a row that has a reason only may stick out.
        let cells = lines.iter().filter(|(_, cells)| cells.len() == columns);
        cells
            .filter_map(|(_, cells)| cells.get(column))
            .map(|cell| width(cell))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(at).collect();
    for (name, cells) in lines {
        let mut line = format!("  {name:first$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn render_claim(out: &mut String, claim: &ClaimResult) {
    let outcome = match claim.outcome {
        ClaimOutcome::Untestable => "cannot be tested here",
        other => other.name(),
    };
    sentence(out, &format!("  {outcome:<21}  "), &claim.text);
    let indent = format!("  {:<21}  ", "");
    for comparison in &claim.comparisons {
        let (Some(left), Some(right)) = (comparison.left, comparison.right) else {
            continue;
        };
        let mut text = format!("{} ", figure(left, None));
        if let Some(interval) = comparison.left_interval {
            let _ = write!(
                text,
                "({} to {}) ",
                figure(interval.low, None),
                figure(interval.high, None)
            );
        }
        let _ = write!(text, "{} {}", comparison.operator, figure(right, None));
        if let Some(interval) = comparison.right_interval {
            let _ = write!(
                text,
                " ({} to {})",
                figure(interval.low, None),
                figure(interval.high, None)
            );
        }
        sentence(
            out,
            &indent,
            &format!("{text}: {}", comparison.outcome.name()),
        );
    }
    for why in claim.why.iter().collect::<Reasons>().sentences() {
        sentence(out, &indent, &why);
    }
    for caveat in claim.caveats.iter().collect::<Reasons>().sentences() {
        sentence(out, &indent, &format!("note: {caveat}"));
    }
    if let (ClaimOutcome::NotConfirmed, Some(explain)) = (claim.outcome, &claim.explain) {
        sentence(out, &indent, explain);
    }
}

/// Wraps words to the terminal's width; further lines are indented to the first word.
fn sentence(out: &mut String, before: &str, text: &str) {
    let indent = before.chars().count();
    let mut line = before.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        let length = line.chars().count() + 1 + word.chars().count();
        if length > WIDTH && !empty {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    if !empty {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::analysis::Interval;
    use headway_latency::study::result::{EnvironmentResult, PaperRow};

    fn cell(value: f64, verdict: Verdict) -> OurCell {
        OurCell {
            value: Some(value),
            interval: Some(Interval {
                low: value - 0.02,
                high: value + 0.02,
            }),
            verdict,
            reasons: match verdict {
                Verdict::Valid => Vec::new(),
                _ => vec!["the loop was busy".to_owned()],
            },
            ..OurCell::default()
        }
    }

    #[test]
    fn verdicts_and_reasons_are_shown_at_the_figures() {
        let table = Table {
            title: "Table 4".into(),
            digits: Some(2),
            columns: vec!["0.20".into(), "0.95".into()],
            paper: vec![PaperRow {
                row: "Flash".into(),
                cells: vec![PaperCell::Number(0.25), PaperCell::Text("–".into())],
            }],
            ours: vec![
                OurRow {
                    row: "flash".into(),
                    cells: vec![cell(0.3, Verdict::Valid), cell(0.5, Verdict::Invalid)],
                    ..OurRow::default()
                },
                OurRow {
                    row: "Haboob".into(),
                    absent: Some("not packaged".into()),
                    ..OurRow::default()
                },
            ],
            ..Table::default()
        };
        let result = StudyResult {
            number: 7,
            title: "Inversion".into(),
            scale: "quick".into(),
            complete: true,
            environments: vec![EnvironmentResult {
                name: "disk".into(),
                summary: "slow".into(),
                ..EnvironmentResult::default()
            }],
            tables: vec![table],
            claims: vec![ClaimResult {
                text: "It exceeds half".into(),
                outcome: ClaimOutcome::Inconclusive,
                why: vec!["the loop was busy".into()],
                ..ClaimResult::default()
            }],
            ..StudyResult::default()
        };
        let expected = "\
7. Inversion (quick)
disk: slow

Table 4
                      0.20            0.95
  paper: Flash        0.25               –
  here: flash   0.30 ±0.02  0.50 ±0.02! 1)
  here: Haboob        – 2)
  1) the loop was busy
  2) not packaged

Claims
  inconclusive           It exceeds half
                         the loop was busy
";
        assert_eq!(render(&result), expected);
    }

    #[test]
    fn paper_figures_keep_trailing_zeros() {
        let row = |value: f64| PaperRow {
            row: value.to_string(),
            cells: vec![PaperCell::Number(value)],
        };
        let table = Table {
            columns: vec!["capacity".into()],
            paper: vec![row(437.5), row(450.0)],
            ..Table::default()
        };
        let mut out = String::new();
        render_table(&mut out, &table);
        assert!(out.contains("paper: 450       450.0"), "{out}");
    }

    #[test]
    fn row_without_values_has_its_reason_once() {
        let missing = |why: &str| OurCell {
            missing: Some(why.into()),
            ..OurCell::default()
        };
        let other = format!("a point: {OTHER_SCALE}");
        let row = OurRow {
            row: "h2o".into(),
            cells: vec![
                missing(&other),
                missing("median_ms: no package"),
                missing("mean_ms: no package"),
            ],
            ..OurRow::default()
        };
        let mut notes = Reasons::default();
        let cells = our_cells(&row, &Table::default(), &mut notes);
        assert_eq!(cells, ["·", "– 1)", "– 1)"]);
        assert_eq!(notes.sentences(), ["median_ms: no package"]);
    }

    #[test]
    fn figure_has_three_digits_when_the_table_asks_for_none() {
        for (value, text) in [
            (0.0, "0"),
            (1234.5, "1234"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.01234, "0.0123"),
        ] {
            assert_eq!(figure(value, None), text);
        }
        assert_eq!(figure(0.5, Some(2)), "0.50");
    }
}
