//! One drawing as a file of its own: an SVG picture that needs no page around it.
//!
//! The charts of the page get their colours from its style sheet, through variables that only
//! browsers understand. Here the rules of a chart are part of the file, with plain colours on white
//! paper, so that viewers, converters and text CPUs show the same.

use crate::chart::{Axis, Chart, ChartMark, LineStyle, Point, Scale, Size};
use crate::html::escaped;

pub(crate) const STYLE: &str = "svg{font-family:system-ui,'Liberation Sans',Arial,sans-serif}\
    text{font-size:12px;fill:#55606c}.mid{text-anchor:middle}.end{text-anchor:end}\
    .grid{stroke:#e9ecf0;fill:none}.axis{stroke:#d8dde3;fill:none}\
    .level{stroke:#55606c;stroke-dasharray:2 4;fill:none}\
    .line{stroke:#0a50a6;stroke-width:2;fill:none}.point{fill:#0a50a6;stroke:#fff}\
    .c1{stroke:#9e3505}.c2{stroke:#0c8372}.c3{stroke:#530a6c}.c4{stroke:#986d00}.c5{stroke:#404c5a}\
    .d1{stroke-dasharray:8 3}.d2{stroke-dasharray:2.5 2.5}.d3{stroke-dasharray:9 3 2.5 3}\
    .hair{stroke:#d8dde3;fill:none}.note{fill:#55606c}\
    .t0{fill:#0a50a6}.t1{fill:#9e3505}.t2{fill:#0c8372}.t3{fill:#530a6c}.t4{fill:#986d00}.t5{fill:#404c5a}";

/// Dots are filled with the colour of their lane, and lanes are named.
const DOTS_STYLE: &str = ".c0{fill:#0a50a6}.c1{fill:#9e3505}.c2{fill:#0c8372}.c3{fill:#530a6c}.c4{fill:#986d00}\
    .c5{fill:#404c5a}.point{stroke:#fff}.whisker{stroke-width:2;fill:none}.whisker.c0{stroke:#0a50a6}\
    .end-label{font-weight:600}.axis-title{font-weight:600}";

/// A cumulative distribution to be drawn.
#[derive(Clone, Debug, Default)]
pub struct Cumulative<'a> {
    /// The name of the chart, for screen readers.
    pub title: &'a str,
    /// What the chart shows, for screen readers.
    pub description: &'a str,
    /// What is measured, under the horizontal axis.
    pub x_title: &'a str,
    /// What the shares are of, over the vertical axis.
    pub y_title: &'a str,
    /// Values and the shares, 0 to 1, that do not exceed them, ascending.
    pub points: &'a [(f64, f64)],
    /// Values with a dotted line, and the tooltip at its upper end.
    pub marked: &'a [(f64, String)],
}

/// The picture, a whole SVG document. Words are escaped here.
///
/// ```
/// use headway_report::{Cumulative, cumulative_svg};
/// let picture = cumulative_svg(&Cumulative {
///     title: "Speed-ups",
///     x_title: "speed-up (%)",
///     y_title: "share of schedules",
///     points: &[(12.0, 0.0), (20.0, 0.5), (26.0, 1.0)],
///     marked: &[(20.0, "mean".into())],
///     ..Cumulative::default()
/// });
/// assert!(picture.starts_with("<svg xmlns="));
/// ```
pub fn cumulative_svg(of: &Cumulative) -> String {
    let style = LineStyle::of_run(0);
    let mut marks: Vec<ChartMark> = of
        .marked
        .iter()
        .map(|&(x, _)| ChartMark::Guide {
            from: (x, 0.0),
            to: (x, 1.0),
        })
        .collect();
    marks.push(ChartMark::Line {
        points: of.points.to_vec(),
        style,
        class: "",
        tooltip: of.title.into(),
    });
    let ends = of.marked.iter().map(|(x, tooltip)| Point {
        at: (*x, 1.0),
        interval: None,
        tooltip: tooltip.clone(),
    });
    marks.push(ChartMark::Points {
        points: ends.collect(),
        style,
    });
    let values = of.points.iter().map(|(x, _)| *x);
    let chart = Chart {
        size: Size::WIDE,
        title: of.title.into(),
        description: of.description.into(),
        x: Axis {
            scale: around(values.chain(of.marked.iter().map(|(x, _)| *x))),
            title: of.x_title.into(),
            format: |value| format!("{value:.2}"),
        },
        y: Axis {
            scale: Scale::Linear {
                low: 0.0,
                high: 1.0,
            },
            title: of.y_title.into(),
            format: crate::units::percent,
        },
        marks,
        left_min: 48.0,
    };
    document(&chart.svg("alone"), of.description, Size::WIDE, "")
}

/// Several series over one axis, each with its name at its end.
#[derive(Clone, Debug, Default)]
pub struct TimeSeries<'a> {
    /// The name of the chart, for screen readers.
    pub title: &'a str,
    /// What the chart shows, for screen readers.
    pub description: &'a str,
    /// What lies under the horizontal axis.
    pub x_title: &'a str,
    /// What is measured, over the vertical axis, which begins at 0.
    pub y_title: &'a str,
    /// The name of each series and its points, ascending.
    pub series: &'a [(&'a str, Vec<(f64, f64)>)],
    /// A value of the vertical axis that gets a level line, and its words.
    pub level: Option<(f64, &'a str)>,
}

/// The picture, a whole SVG document.
pub fn time_series_svg(of: &TimeSeries) -> String {
    let points = || of.series.iter().flat_map(|(_, points)| points);
    let top = points().map(|(_, y)| *y).chain(of.level.map(|(y, _)| y));
    let mut marks: Vec<ChartMark> = Vec::new();
    if let Some((y, label)) = of.level {
        marks.push(ChartMark::Level {
            y,
            label: label.into(),
        });
    }
    for (index, (name, points)) in of.series.iter().enumerate() {
        let style = LineStyle::of_run(index);
        marks.push(ChartMark::Line {
            points: points.clone(),
            style,
            class: "",
            tooltip: (*name).into(),
        });
        if let Some(&at) = points.last() {
            marks.push(ChartMark::EndLabel {
                at,
                label: (*name).into(),
                style,
            });
        }
    }
    let chart = Chart {
        size: Size::WIDE,
        title: of.title.into(),
        description: of.description.into(),
        x: Axis {
            scale: around(points().map(|(x, _)| *x)),
            title: of.x_title.into(),
            format: |value| format!("{value:.0}"),
        },
        y: Axis {
            scale: Scale::from_zero(top.fold(0.0, f64::max)),
            title: of.y_title.into(),
            format: |value| format!("{value:.0}"),
        },
        marks,
        left_min: 48.0,
    };
    document(&chart.svg("alone"), of.description, Size::WIDE, "")
}

/// A drawing of [`Dots`](crate::chart::Dots) as a document.
pub(crate) fn dots_document(svg: &str, description: &str, size: Size) -> String {
    document(svg, description, size, DOTS_STYLE)
}

/// A little more than the values need; a step of one when there is but one value.
fn around(values: impl Iterator<Item = f64>) -> Scale {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (f64::min(low, value), f64::max(high, value))
    });
    if low > high {
        return Scale::Linear {
            low: 0.0,
            high: 1.0,
        };
    }
    let room = if high > low { (high - low) * 0.03 } else { 0.5 };
    Scale::Linear {
        low: low - room,
        high: high + room,
    }
}

/// The chart with a name space, its style and paper: it was made for the inside of a page.
fn document(svg: &str, description: &str, size: Size, style: &str) -> String {
    let space = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
    let svg = svg.replacen("<svg ", space, 1);
    // The text is escaped, so this is the end of its description.
    let described = format!("{}</desc>", escaped(description));
    let Size { width, height } = size;
    let inside = format!(
        "{described}<style>{STYLE}{style}</style><path fill=\"#fff\" d=\"M0 0h{width}v{height}h-{width}z\"/>"
    );
    svg.replacen(&described, &inside, 1) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_has_a_named_panel() {
        let picture = time_series_svg(&TimeSeries {
            title: "a <b>",
            description: "c & d",
            series: &[
                ("one", vec![(0.0, 1.0), (1.0, 2.0)]),
                ("two", vec![(0.0, 2.0), (1.0, 1.0)]),
            ],
            level: Some((2.0, "most")),
            ..TimeSeries::default()
        });
        assert!(picture.starts_with("<svg xmlns="), "{picture}");
        assert_eq!(picture.matches("class=\"line ").count(), 2);
        for word in [
            ">one</text>",
            ">two</text>",
            ">most</text>",
            "c &amp; d</desc><style>",
        ] {
            assert!(picture.contains(word), "{word}: {picture}");
        }
    }

    fn picture(points: &[(f64, f64)], marked: &[(f64, String)]) -> String {
        cumulative_svg(&Cumulative {
            title: "a <b>",
            description: "c & d",
            x_title: "x",
            y_title: "y",
            points,
            marked,
        })
    }

    #[test]
    fn distribution_chart_has_curve_marks_and_style() {
        let svg = picture(
            &[(12.0, 0.0), (19.0, 0.4), (26.0, 1.0)],
            &[(20.0, "mean <i>".into())],
        );
        assert!(
            svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "),
            "{svg}"
        );
        for part in [
            "<style>",
            "fill=\"#fff\"",
            "class=\"line",
            "class=\"level\"",
            "mean &lt;i&gt;",
            ">20<",
            ">100\u{202f}%<",
        ] {
            assert_eq!(svg.matches(part).count(), 1, "{part} in {svg}");
        }
        assert!(!svg.contains("var(") && !svg.contains("<b>"));
    }

    #[test]
    fn chart_is_valid_with_one_value_or_none() {
        for points in [&[(5.0, 0.0), (5.0, 1.0)][..], &[]] {
            let svg = picture(points, &[]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
