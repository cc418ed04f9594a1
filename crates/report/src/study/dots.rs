//! A table drawn as dots: a panel for each column, a lane for each row. For columns that are no
//! numbers, so that no line may join them.

use headway_latency::study::StudyResult;
use headway_latency::study::result::{OurCell, OurRow, Table};

use super::styles::ServerStyles;
use super::tables::{row_style, shown};
use crate::chart::{Axis, Dot, Dots, Lane, Scale};
use crate::figure::Drawing;
use crate::standalone::dots_document;
use crate::units::plain;

/// The drawing in both widths; `None` if no row has a value.
pub(super) fn drawing(
    result: &StudyResult,
    table: &Table,
    styles: &ServerStyles,
) -> Option<Drawing> {
    let lanes = lanes(result, table, styles)?;
    let dots = dots(table, &lanes);
    let drawn = [dots.svg_wide("wide"), dots.svg_narrow("narrow")];
    Some(Drawing::One(String::new(), drawn))
}

/// A table of a study as one picture, a whole SVG document; `None` if no row has a value.
pub fn table_svg(result: &StudyResult, table: &Table) -> Option<String> {
    let styles = ServerStyles::of(std::slice::from_ref(result));
    let lanes = lanes(result, table, &styles)?;
    let dots = dots(table, &lanes);
    let svg = dots.svg_wide("alone");
    Some(dots_document(&svg, dots.description, dots.wide()))
}

fn dots<'a>(table: &'a Table, lanes: &'a [Lane]) -> Dots<'a> {
    let all = || lanes.iter().flat_map(|lane| lane.dots.iter().flatten());
    let values = all().flat_map(|dot| {
        let (low, high) = dot.interval.unwrap_or((dot.value, dot.value));
        [dot.value, low, high]
    });
    let scale = match table.log {
        true => Scale::log_around(values.flat_map(|value| [value * 0.93, value * 1.07])),
        false => Scale::from_zero(values.fold(0.0, f64::max)),
    };
    Dots {
        title: &table.title,
        description: &table.title,
        axis: Axis {
            scale,
            title: table.unit.clone(),
            format: plain,
        },
        panels: &table.columns,
        lanes,
    }
}

fn lanes(result: &StudyResult, table: &Table, styles: &ServerStyles) -> Option<Vec<Lane>> {
    let lane = |row: &OurRow| Lane {
        name: row.row.clone(),
        style: row_style(result, row, styles),
        dots: row
            .cells
            .iter()
            .enumerate()
            .map(|(column, cell)| dot(table, row, column, cell))
            .collect(),
    };
    let lanes: Vec<Lane> = table.ours.iter().map(lane).collect();
    let any = lanes
        .iter()
        .any(|lane| lane.dots.iter().any(Option::is_some));
    any.then_some(lanes)
}

fn dot(table: &Table, row: &OurRow, column: usize, cell: &OurCell) -> Option<Dot> {
    let value = cell.value.filter(|value| value.is_finite())?;
    let text = shown(value, table.digits);
    let column = table.columns.get(column).map_or("", String::as_str);
    Some(Dot {
        value,
        interval: cell.interval.map(|range| (range.low, range.high)),
        tooltip: format!("{}, {column}: {text} {}", row.row, table.unit),
        text,
    })
}
