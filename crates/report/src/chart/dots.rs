//! Dots in lanes: a panel for each thing that is compared, in it a lane for each subject, and one
//! axis of values for all panels. A reader finds a subject by its name, not by a legend.

use std::fmt::Write;

use super::{Axis, LineStyle, RADIUS, label, labelled, marker, opening};
use crate::chart::Size;
use crate::html::{escaped, shortened};

/// One value in a lane.
#[derive(Clone, Debug)]
pub struct Dot {
    /// Where the dot is, on the axis.
    pub value: f64,
    /// An interval around it.
    pub interval: Option<(f64, f64)>,
    /// Written beside the dot.
    pub text: String,
    /// Shown when the pointer rests on the dot.
    pub tooltip: String,
}

/// One subject: a lane in every panel.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The name of the subject.
    pub name: String,
    /// Colour and shape of its dots.
    pub style: LineStyle,
    /// One for each panel; `None` where nothing was measured.
    pub dots: Vec<Option<Dot>>,
}

/// Panels of lanes with dots.
#[derive(Clone)]
pub struct Dots<'a> {
    /// The name of the chart, for screen readers.
    pub title: &'a str,
    /// What the chart shows, for screen readers.
    pub description: &'a str,
    /// The axis of all panels; its title stands below.
    pub axis: Axis,
    /// The names of the panels.
    pub panels: &'a [String],
    /// The subjects, from the top.
    pub lanes: &'a [Lane],
}

const LANE: f64 = 21.0;
const HEADER: f64 = 26.0;
const TICKS: f64 = 22.0;
const TITLE: f64 = 20.0;
const BETWEEN: f64 = 16.0;
/// A dot and the text beside it need this much at the end of a panel.
const MARGIN: f64 = 8.0;
const NAME_CHARS_MAX: usize = 34;

/// The place of one panel.
struct Panel {
    left: f64,
    width: f64,
    top: f64,
}

impl Dots<'_> {
    /// Height and width for all panels in one row, the names of the lanes on the left.
    pub fn wide(&self) -> Size {
        Size {
            width: Size::WIDE
                .width
                .max(self.names() + self.panels.len() as f64 * 148.0),
            height: HEADER + self.lanes_height() + TICKS + TITLE,
        }
    }

    /// Height and width for panels below one another.
    fn narrow(&self) -> Size {
        let each = HEADER + self.lanes_height() + TICKS + BETWEEN;
        Size::NARROW.with_height(self.panels.len() as f64 * each + TITLE)
    }

    /// The SVG element with all panels in a row.
    pub fn svg_wide(&self, class: &str) -> String {
        let (size, names) = (self.wide(), self.names());
        let width = (size.width - names) / self.panels.len().max(1) as f64;
        let mut out = opening(size, class, self.title, self.description);
        self.write_names(&mut out, HEADER);
        for index in 0..self.panels.len() {
            let panel = Panel {
                left: names + width * index as f64,
                width: width - BETWEEN,
                top: 0.0,
            };
            self.panel(&mut out, index, &panel);
        }
        self.finish(out, size, names)
    }

    /// The SVG element with the panels below one another.
    pub fn svg_narrow(&self, class: &str) -> String {
        let (size, names) = (self.narrow(), self.names());
        let mut out = opening(size, class, self.title, self.description);
        let each = HEADER + self.lanes_height() + TICKS + BETWEEN;
        for index in 0..self.panels.len() {
            let panel = Panel {
                left: names,
                width: size.width - names - BETWEEN,
                top: each * index as f64,
            };
            self.write_names(&mut out, panel.top + HEADER);
            self.panel(&mut out, index, &panel);
        }
        self.finish(out, size, names)
    }

    fn finish(&self, mut out: String, size: Size, left: f64) -> String {
        let (x, y) = ((left + size.width) / 2.0, size.height - 5.0);
        let title = escaped(&self.axis.title);
        let _ = write!(
            out,
            "<text class=\"axis-title mid\" x=\"{x:.1}\" y=\"{y:.1}\">{title}</text></svg>"
        );
        out
    }

    /// The room for the names of the lanes.
    fn names(&self) -> f64 {
        let widths = self
            .lanes
            .iter()
            .map(|lane| label::width(&shortened(&lane.name, NAME_CHARS_MAX)));
        widths.fold(40.0, f64::max) + 14.0
    }

    fn lanes_height(&self) -> f64 {
        LANE * self.lanes.len() as f64
    }

    fn write_names(&self, out: &mut String, top: f64) {
        for (index, lane) in self.lanes.iter().enumerate() {
            let y = top + LANE * (index as f64 + 0.5) + 4.0;
            let name = escaped(&shortened(&lane.name, NAME_CHARS_MAX));
            let _ = write!(
                out,
                "<text class=\"end-label t{}\" x=\"0\" y=\"{y:.1}\">{name}</text>",
                lane.style.colour
            );
        }
    }

    fn panel(&self, out: &mut String, index: usize, panel: &Panel) {
        let (top, bottom) = (panel.top + HEADER, panel.top + HEADER + self.lanes_height());
        let _ = write!(
            out,
            "<text class=\"axis-title\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            panel.left,
            panel.top + 15.0,
            escaped(&self.panels[index])
        );
        let mut taken = f64::NEG_INFINITY;
        for (value, text) in labelled(&self.axis, 3) {
            let x = self.x(panel, value);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>"
            );
            let half = label::width(&text) / 2.0;
            if x - half > taken + 6.0 {
                let (text, y) = (escaped(&text), bottom + 15.0);
                let _ = write!(
                    out,
                    "<text class=\"tick mid\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
                );
                taken = x + half;
            }
        }
        for (number, lane) in self.lanes.iter().enumerate() {
            let y = top + LANE * (number as f64 + 0.5);
            let (from, to) = (panel.left, panel.left + panel.width);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>"
            );
            match lane.dots.get(index).and_then(Option::as_ref) {
                Some(dot) => self.dot(out, panel, lane.style, dot, y),
                None => {
                    let (x, y) = (panel.left, y + 4.0);
                    let _ = write!(
                        out,
                        "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\">–</text>"
                    );
                }
            }
        }
    }

    fn dot(&self, out: &mut String, panel: &Panel, style: LineStyle, dot: &Dot, y: f64) {
        let (x, colour) = (self.x(panel, dot.value), style.colour);
        let mut ends = (x - RADIUS, x + RADIUS);
        if let Some((low, high)) = dot.interval {
            let (low, high) = (self.x(panel, low), self.x(panel, high));
            ends = (ends.0.min(low), ends.1.max(high));
            let _ = write!(
                out,
                "<path class=\"whisker c{colour}\" d=\"M{low:.1} {y:.1}H{high:.1}\"/>"
            );
        }
        marker(out, style, (x, y), &dot.tooltip);
        let fits = ends.1 + 4.0 + label::width(&dot.text) <= panel.left + panel.width + MARGIN;
        let (class, at) = match fits {
            true => ("tick", ends.1 + 4.0),
            false => ("tick end", ends.0 - 4.0),
        };
        let _ = write!(
            out,
            "<text class=\"{class}\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            y + 4.0,
            escaped(&dot.text)
        );
    }

    fn x(&self, panel: &Panel, value: f64) -> f64 {
        panel.left + self.axis.scale.at(value) * panel.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Scale;

    fn dot(value: f64, text: &str) -> Option<Dot> {
        Some(Dot {
            value,
            interval: Some((value * 0.9, value * 1.1)),
            text: text.into(),
            tooltip: format!("<{text}>"),
        })
    }

    fn drawn(draw: fn(&Dots) -> String) -> String {
        let lanes = [
            Lane {
                name: "ours & theirs".into(),
                style: LineStyle::of_run(0),
                dots: vec![dot(0.2, "0.2"), None],
            },
            Lane {
                name: "b".into(),
                style: LineStyle::of_run(1),
                dots: vec![dot(900.0, "900"), dot(1000.0, "1,000")],
            },
        ];
        draw(&Dots {
            title: "t",
            description: "d",
            axis: Axis {
                scale: Scale::log_around([0.2, 1000.0]),
                title: "ms".into(),
                format: crate::units::plain,
            },
            panels: &["memory".to_owned(), "a <disk>".to_owned()],
            lanes: &lanes,
        })
    }

    #[test]
    fn every_value_has_a_dot_with_its_text_and_a_missing_one_a_dash() {
        for svg in [
            drawn(|dots| dots.svg_wide("wide")),
            drawn(|dots| dots.svg_narrow("narrow")),
        ] {
            assert_eq!(svg.matches("class=\"point ").count(), 3, "{svg}");
            assert_eq!(svg.matches(">–<").count(), 1, "{svg}");
            for text in [
                ">0.2<",
                ">900<",
                ">1,000<",
                "a &lt;disk&gt;",
                "ours &amp; theirs",
            ] {
                assert!(svg.contains(text), "{text}: {svg}");
            }
        }
    }

    #[test]
    fn text_is_left_of_a_dot_at_the_end_of_its_panel() {
        let svg = drawn(|dots| dots.svg_wide("wide"));
        let text_of = |value: &str| {
            let before = svg.split(&format!(">{value}</text>")).next().unwrap_or("");
            before.rsplit("<text ").next().unwrap_or("").to_owned()
        };
        assert!(text_of("1,000").starts_with("class=\"tick end\""), "{svg}");
        assert!(text_of("0.2").starts_with("class=\"tick\""), "{svg}");
    }

    #[test]
    fn names_are_written_once_beside_a_row_of_panels_and_in_each_panel_of_a_column() {
        assert_eq!(
            drawn(|dots| dots.svg_wide("wide")).matches(">b<").count(),
            1
        );
        assert_eq!(
            drawn(|dots| dots.svg_narrow("narrow"))
                .matches(">b<")
                .count(),
            2
        );
    }
}
