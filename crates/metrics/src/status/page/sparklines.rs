//! The row of curves at the top of the status page: the last minute.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Instant;

use headway_base::format;

use crate::status::history::{Point, SPAN};

const WIDTH: f64 = 160.0;
const HEIGHT: f64 = 36.0;

/// A curve: what it shows, how a value is written, its values, and a second curve beside it.
struct Tile {
    title: &'static str,
    /// In front of the range.
    unit: &'static str,
    help: &'static str,
    shown: fn(f64) -> String,
    value: fn(&Point) -> Option<f64>,
    /// The curve of a lower percentile.
    lower: Option<fn(&Point) -> Option<f64>>,
    /// The smallest upper end of the scale, so that noise near 0 is not shown as a mountain.
    top_min: f64,
}

const TILES: [Tile; 6] = [
    Tile {
        title: "Requests",
        unit: "per second, ",
        help: "Requests answered per second, with any status.",
        shown: format::number,
        value: |point| Some(point.requests_per_s),
        lower: None,
        top_min: 1.0,
    },
    Tile {
        title: "Errors",
        unit: "",
        help: "Share of responses with a status of 500 or more.",
        shown: format::percent,
        value: |point| point.error_share,
        lower: None,
        top_min: 0.01,
    },
    Tile {
        title: "Request time, p99",
        unit: "",
        help: "Time from the first byte of a request to the last byte of its response. The grey curve \
               is the median.",
        shown: format::time_us,
        value: |point| point.p99_us,
        lower: Some(|point| point.p50_us),
        top_min: 0.0,
    },
    Tile {
        title: "Longest loop lag",
        unit: "",
        help: "The longest time that a ready event waited for those before it. Long turns delay every client of a \
               worker.",
        shown: format::time_us,
        value: |point| point.lag_us,
        lower: None,
        top_min: 1000.0,
    },
    Tile {
        title: "File cache hits",
        unit: "",
        help: "Share of lookups that the file cache answered.",
        shown: format::percent,
        value: |point| point.hit_share,
        lower: None,
        top_min: 1.0,
    },
    Tile {
        title: "Disk waits",
        unit: "per second, ",
        help: "Requests per second that waited for a helper, because a file or its name was not in memory. The loop \
               went on meanwhile.",
        shown: format::number,
        value: |point| Some(point.waits_per_s),
        lower: None,
        top_min: 1.0,
    },
];

/// Writes the row.
pub(super) fn row(out: &mut String, points: &VecDeque<Point>, now: Instant) {
    out.push_str("<div class=\"tiles\">");
    for tile in &TILES {
        tile.write(out, points, now);
    }
    out.push_str("</div>");
}

impl Tile {
    fn write(&self, out: &mut String, points: &VecDeque<Point>, now: Instant) {
        let values = || points.iter().filter_map(self.value);
        let most = values().fold(f64::NAN, f64::max);
        let last = |of: fn(&Point) -> Option<f64>| {
            let last = points.back().and_then(of);
            last.map_or("–".to_owned(), self.shown)
        };
        let median = self.lower.map(|lower| format!("median {}, ", last(lower)));
        let range = match most.is_nan() {
            true => "no data yet".to_owned(),
            false => {
                let (unit, median) = (self.unit, median.unwrap_or_default());
                format!("{unit}{median}at most {}", (self.shown)(most))
            }
        };
        let current = last(self.value);
        let Tile { title, help, .. } = self;
        let _ = write!(
            out,
            "<section title=\"{help}\"><h2>{title}</h2><p class=\"now\">{current}</p>\
             <svg viewBox=\"0 -2 {WIDTH} {}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{title} in the last minute: {range}\"><path class=\"axis\" d=\"M0 {HEIGHT}H{WIDTH}\"/>",
            HEIGHT + 4.0
        );
        let top = if most.is_nan() {
            1.0
        } else {
            most.max(self.top_min)
        };
        if let Some(lower) = self.lower {
            let path = curve(points, lower, top, now);
            let _ = write!(out, "<path class=\"curve lower\" d=\"{path}\"/>");
        }
        let path = curve(points, self.value, top, now);
        let _ = write!(
            out,
            "<path class=\"curve\" d=\"{path}\"/></svg><p>{range}</p></section>"
        );
    }
}

/// The path of a curve, whose right end is now. Points without a value are gaps.
fn curve(
    points: &VecDeque<Point>,
    value: fn(&Point) -> Option<f64>,
    top: f64,
    now: Instant,
) -> String {
    let mut path = String::new();
    let mut is_in_gap = true;
    for point in points {
        let Some(value) = value(point) else {
            is_in_gap = true;
            continue;
        };
        let age = now.saturating_duration_since(point.at).as_secs_f64();
        let x = (1.0 - age / SPAN.as_secs_f64()).clamp(0.0, 1.0) * WIDTH;
        let y = HEIGHT - (value / top).clamp(0.0, 1.0) * HEIGHT;
        // A single point is a dot, since the ends of lines are round.
        let command = match is_in_gap {
            true => format!("M{x:.1} {y:.1}h0"),
            false => format!("L{x:.1} {y:.1}"),
        };
        path.push_str(&command);
        is_in_gap = false;
    }
    path
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn curve_ends_now_and_has_a_gap_where_there_is_no_value() {
        let now = Instant::now() + Duration::from_secs(100);
        let point = |age: u64, error_share| Point {
            at: now - Duration::from_secs(age),
            requests_per_s: 0.0,
            error_share,
            p50_us: None,
            p99_us: None,
            lag_us: None,
            hit_share: None,
            waits_per_s: 0.0,
        };
        let points: VecDeque<Point> = [
            point(60, Some(0.0)),
            point(45, Some(0.5)),
            point(30, None),
            point(0, Some(1.0)),
        ]
        .into();
        let path = curve(&points, |point| point.error_share, 1.0, now);
        assert_eq!(path, "M0.0 36.0h0L40.0 18.0M160.0 0.0h0");
        let mut out = String::new();
        row(&mut out, &points, now);
        assert!(
            out.contains("<h2>Errors</h2><p class=\"now\">100 %</p>"),
            "{out}"
        );
        assert_eq!(out.matches("no data yet</p>").count(), 3, "{out}");
        row(&mut out, &VecDeque::new(), now);
        assert!(!out.contains("NaN"), "{out}");
    }
}
