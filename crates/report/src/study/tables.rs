//! Tables as the papers have them: each row as printed, and below it ours; as curves too where the
//! study asks for it.
//!
//! A paper's number is shown with as many digits as its column has, so that 450.0 stays 450.0. A
//! cell of ours that has no value shows a dash and, below the table, why.

use std::fmt::Write;

use headway_latency::analysis::Interval;
use headway_latency::run::Verdict;
use headway_latency::study::StudyResult;
use headway_latency::study::result::{OurCell, OurRow, PaperCell, PaperRow, Table};

use super::dots;
use super::styles::ServerStyles;
use crate::chart::{Axis, Chart, ChartMark, LineStyle, Point, Scale, Size};
use crate::figure::{Caption, Drawing, framed, legend};
use crate::html::escaped;
use crate::units::{NONE, measured, plain, tick};

/// One table, and its curves where it has some.
pub(super) fn html(
    result: &StudyResult,
    index: usize,
    table: &Table,
    styles: &ServerStyles,
) -> String {
    let drawing = match table.draw.as_deref() {
        None => None,
        Some("dots") => dots::drawing(result, table, styles).map(|drawing| (drawing, Vec::new())),
        Some(_) => lines(result, table, styles),
    };
    let drawn = drawing.map_or(String::new(), |(drawing, paragraphs)| {
        let caption = Caption {
            id: &format!("{}-table-{}", result.number, index + 1),
            title: &format!("{}, drawn", table.title),
            paragraphs: &paragraphs,
            source: "",
        };
        framed(&caption, &drawing, None)
    });
    let mut notes = Vec::new();
    let unit = if table.unit.is_empty() {
        String::new()
    } else {
        format!(" <small>{}</small>", escaped(&table.unit))
    };
    let name = escaped(&table.title);
    let mut out = format!(
        "<div class=\"tabled\"><h3>{name}{unit}</h3><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{name}, \
         table\"><table class=\"beside\"><thead><tr><th scope=\"col\">{}</th>",
        escaped(&table.corner)
    );
    for column in &table.columns {
        let _ = write!(
            out,
            "<th scope=\"col\"><span class=\"name\">{}</span></th>",
            escaped(column)
        );
    }
    out.push_str("</tr></thead><tbody>");
    for paper in &table.paper {
        paper_row(&mut out, table, paper);
        for ours in table
            .ours
            .iter()
            .filter(|row| row.beside.as_ref() == Some(&paper.row))
        {
            our_row(&mut out, table, ours, &mut notes);
        }
    }
    for ours in table.ours.iter().filter(|row| alone(table, row)) {
        our_row(&mut out, table, ours, &mut notes);
    }
    out.push_str("</tbody></table></div>");
    if !notes.is_empty() {
        out.push_str("<ol class=\"notes\">");
        for note in &notes {
            let _ = write!(out, "<li>{}</li>", escaped(note));
        }
        out.push_str("</ol>");
    }
    out + "</div>" + &drawn
}

/// Whether a row of ours has no row of the paper to stand under.
fn alone(table: &Table, row: &OurRow) -> bool {
    let beside = row.beside.as_ref();
    !table.paper.iter().any(|paper| Some(&paper.row) == beside)
}

fn paper_row(out: &mut String, table: &Table, row: &PaperRow) {
    let _ = write!(
        out,
        "<tr class=\"paper\"><th scope=\"row\">{} <small>paper</small></th>",
        escaped(&row.row)
    );
    for (column, cell) in row.cells.iter().enumerate() {
        let text = match cell {
            PaperCell::Number(number) => format!("{number:.*}", table.paper_decimals(column)),
            PaperCell::Text(text) => escaped(text),
        };
        let _ = write!(out, "<td>{text}</td>");
    }
    out.push_str("</tr>");
}

fn our_row(out: &mut String, table: &Table, row: &OurRow, notes: &mut Vec<String>) {
    let _ = write!(
        out,
        "<tr class=\"ours\"><th scope=\"row\">{}</th>",
        escaped(&row.row)
    );
    if let Some(reason) = &row.absent {
        let _ = write!(
            out,
            "<td class=\"absent-row\" colspan=\"{}\">{}</td></tr>",
            table.columns.len().max(1),
            with_note(NONE, reason, notes)
        );
        return;
    }
    // A row without any value has one reason, however many figures it misses.
    let empty = row.cells.iter().all(|cell| cell.value.is_none());
    let common = row
        .cells
        .first()
        .filter(|_| empty)
        .and_then(|cell| cell.missing.as_deref());
    for cell in &row.cells {
        our_cell(out, table, cell, common, notes);
    }
    out.push_str("</tr>");
}

fn our_cell(
    out: &mut String,
    table: &Table,
    cell: &OurCell,
    common: Option<&str>,
    notes: &mut Vec<String>,
) {
    let Some(value) = cell.value else {
        let reason = cell.missing.as_deref().unwrap_or("not measured");
        let note = in_short(common.unwrap_or(reason));
        let (title, dash) = (escaped(reason), with_note(NONE, note, notes));
        let _ = write!(out, "<td title=\"{title}\">{dash}</td>");
        return;
    };
    let shown = shown(value, table.digits);
    let interval = interval(cell.interval, table.digits);
    let (class, shown) = match cell.verdict {
        Verdict::Valid => ("", shown),
        Verdict::Suspect => ("", with_note(&shown, SUSPECT, notes)),
        Verdict::Invalid => (" class=\"warning\"", with_note(&shown, INVALID, notes)),
    };
    let tooltip = [cell.expression.as_str()].into_iter();
    let tooltip: Vec<&str> = tooltip
        .chain(cell.reasons.iter().map(String::as_str))
        .collect();
    let tooltip = escaped(&tooltip.join("; "));
    let _ = write!(out, "<td{class} title=\"{tooltip}\">{shown}{interval}</td>");
}

const SUSPECT: &str = "suspect: the client may have been the bottleneck; the reason is with the run under How it \
     was made";
const INVALID: &str =
    "invalid: the client was the bottleneck; the reason is with the run under How it was made";

/// A reason without the names of the cell that it belongs to, so that many cells share one note.
fn in_short(reason: &str) -> &str {
    const SHORT: [(&str, &str); 2] = [
        ("is not measured at scale", "not measured at this scale"),
        ("not measured yet", "not measured yet"),
    ];
    let known = SHORT.iter().find(|(part, _)| reason.contains(part));
    known.map_or(reason, |(_, short)| short)
}

/// A text with the number of its note, which is added if it is a new one.
fn with_note(text: &str, note: &str, notes: &mut Vec<String>) -> String {
    let known = notes.iter().position(|other| other == note);
    let number = known.unwrap_or_else(|| {
        notes.push(note.into());
        notes.len() - 1
    });
    format!("{text}<sup>{}</sup>", number + 1)
}

fn interval(interval: Option<Interval>, digits: Option<u8>) -> String {
    match interval.filter(|range| range.low.is_finite() && range.low != range.high) {
        Some(range) => format!(
            "<small>{}…{}</small>",
            shown(range.low, digits),
            shown(range.high, digits)
        ),
        None => String::new(),
    }
}

pub(super) fn shown(value: f64, digits: Option<u8>) -> String {
    // An empty sum may be a negative zero.
    let value = if value == 0.0 { 0.0 } else { value };
    match digits {
        Some(digits) if value.is_finite() => format!("{value:.*}", usize::from(digits)),
        _ => significant(value),
    }
}

/// Three significant digits, also of small numbers; whole digits in groups above a thousand.
pub(super) fn significant(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() || size == 0.0 || size >= 0.0995 {
        return match value.fract() == 0.0 && size < 1000.0 {
            true => format!("{value}"),
            false => measured(value),
        };
    }
    let decimals = (2 - size.log10().floor() as i32).clamp(0, 9) as usize;
    format!("{value:.decimals$}")
}

/// A row that can be drawn: its name, its look, its points with their intervals.
struct RowCurve {
    name: String,
    style: LineStyle,
    class: &'static str,
    points: Vec<Point>,
}

/// Rows as curves over their columns, with the paragraphs of the caption.
fn lines(
    result: &StudyResult,
    table: &Table,
    styles: &ServerStyles,
) -> Option<(Drawing, Vec<String>)> {
    let positions = positions(&table.columns)?;
    let curves = curves(result, table, &positions, styles);
    if curves.is_empty() {
        return None;
    }
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let heights: Vec<f64> = all()
        .flat_map(|point| {
            [
                point.at.1,
                point.interval.map_or(point.at.1, |(_, high)| high),
            ]
        })
        .collect();
    let most = positions.iter().copied().fold(0.0, f64::max);
    let y = Axis {
        scale: if table.log {
            Scale::log_around(
                heights
                    .iter()
                    .flat_map(|value| [value * 0.93, value * 1.07]),
            )
        } else {
            Scale::from_zero(heights.iter().copied().fold(0.0, f64::max))
        },
        title: table.unit.clone(),
        format: plain,
    };
    let x = Axis {
        scale: if most <= 1.0 {
            Scale::Linear {
                low: 0.0,
                high: 1.0,
            }
        } else {
            Scale::from_zero(most)
        },
        title: table.corner.clone(),
        format: |value| tick(&format!("{value:.2}")),
    };
    let draw = |size: Size| Chart {
        size,
        title: table.title.clone(),
        description: described(&curves),
        x: x.clone(),
        y: y.clone(),
        marks: curves.iter().flat_map(marks).collect(),
        left_min: 46.0,
    };
    let names = curves
        .iter()
        .map(|curve| (curve.style, curve.name.as_str()));
    let paragraphs = if curves.iter().any(|curve| !curve.class.is_empty()) {
        vec!["The paper's values are pale.".into()]
    } else {
        Vec::new()
    };
    Some((Drawing::one(legend(names), draw), paragraphs))
}

/// The position of each column on the axis; `None` if one of them is not a number.
fn positions(columns: &[String]) -> Option<Vec<f64>> {
    columns
        .iter()
        .map(|column| column.trim().parse::<f64>().ok())
        .collect()
}

/// The look of the server that a row is about.
pub(super) fn row_style(result: &StudyResult, row: &OurRow, styles: &ServerStyles) -> LineStyle {
    let server = result
        .servers
        .iter()
        .find(|server| server.label == row.row || server.name == row.row);
    styles.server(server.map_or(row.row.as_str(), |server| server.name.as_str()))
}

fn curves(
    result: &StudyResult,
    table: &Table,
    positions: &[f64],
    styles: &ServerStyles,
) -> Vec<RowCurve> {
    let mut curves = Vec::new();
    for row in &table.ours {
        let cells = positions.iter().zip(&row.cells);
        let points = cells.filter_map(|(x, cell)| {
            let value = cell.value.filter(|value| value.is_finite())?;
            Some(Point {
                at: (*x, value),
                interval: cell.interval.map(|range| (range.low, range.high)),
                tooltip: format!("{} at {x}: {}", row.row, shown(value, table.digits)),
            })
        });
        curves.push(RowCurve {
            name: row.row.clone(),
            style: row_style(result, row, styles),
            class: "",
            points: points.collect(),
        });
    }
    for row in &table.paper {
        let ours = table
            .ours
            .iter()
            .position(|ours| ours.beside.as_ref() == Some(&row.row));
        let Some(style) = ours.map(|index| curves[index].style) else {
            continue;
        };
        let cells = positions.iter().zip(&row.cells);
        let points = cells.filter_map(|(x, cell)| match cell {
            PaperCell::Number(value) => Some(Point {
                at: (*x, *value),
                interval: None,
                tooltip: format!("{}, paper, at {x}: {value}", row.row),
            }),
            PaperCell::Text(_) => None,
        });
        let name = format!("{}, paper", row.row);
        curves.push(RowCurve {
            name,
            style: style.with(2, style.shape),
            class: "faint",
            points: points.collect(),
        });
    }
    curves.retain(|curve| !curve.points.is_empty());
    curves
}

fn marks(curve: &RowCurve) -> [ChartMark; 2] {
    let line = ChartMark::Line {
        points: curve.points.iter().map(|point| point.at).collect(),
        style: curve.style,
        class: curve.class,
        tooltip: curve.name.clone(),
    };
    [
        line,
        ChartMark::Points {
            points: curve.points.clone(),
            style: curve.style,
        },
    ]
}

fn described(curves: &[RowCurve]) -> String {
    let one = |curve: &RowCurve| {
        let (first, last) = (curve.points.first()?, curve.points.last()?);
        Some(format!(
            "{}: {} at {}, {} at {}.",
            curve.name,
            significant(first.at.1),
            first.at.0,
            significant(last.at.1),
            last.at.0
        ))
    };
    curves.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_stay_when_a_number_is_small_or_large() {
        let cases = [
            (0.0, "0"),
            (0.000_412_3, "0.000412"),
            (0.0417, "0.0417"),
            (0.25, "0.25"),
            (12.0, "12"),
            (67.43, "67.4"),
            (1924.42, "1,924"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(significant(value), text, "{value}");
        }
    }

    #[test]
    fn printed_number_keeps_its_zeros_when_its_column_has_digits() {
        let row = |cells: [f64; 2]| PaperRow {
            row: "Flash".into(),
            cells: cells.map(PaperCell::Number).into(),
        };
        let table = Table {
            paper: vec![row([67.4, 450.0]), row([181.0, 336.0])],
            ..Table::default()
        };
        assert_eq!([table.paper_decimals(0), table.paper_decimals(1)], [1, 0]);
        let mut out = String::new();
        paper_row(&mut out, &table, &table.paper[1]);
        assert!(out.contains("<td>181.0</td><td>336</td>"), "{out}");
    }
}
