//! A small chart: one frame, two axes, marks; SVG out.
//!
//! Colours and strokes are classes of the page's style sheet, so one drawing serves light, dark and
//! print. A chart is drawn for a width at which its text is legible; where a page needs two widths
//! it draws it twice. Nothing moves and nothing needs a script; a pointer that rests on a mark gets
//! its `<title>`.

use std::fmt::Write;

mod bars;
mod dots;
mod groups;
mod label;
mod mark;
mod scale;

pub use bars::{Bar, Stack};
pub use dots::{Dot, Dots, Lane};
pub use groups::{Group, Groups, colour};
use label::FONT;
pub use mark::{ChartMark, LineStyle, Point, shape};
pub use scale::Scale;

use crate::html::{escaped, shortened};
use crate::units::tick;

/// The room a chart is drawn for, in units that are about one pixel on a screen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Width of the drawing.
    pub width: f64,
    /// Height of the drawing.
    pub height: f64,
}

impl Size {
    /// A figure in the text's column of a desktop window.
    pub const WIDE: Size = Size {
        width: 740.0,
        height: 380.0,
    };
    /// A figure on a phone, and one of several panels on a desktop.
    pub const NARROW: Size = Size {
        width: 360.0,
        height: 300.0,
    };

    /// A size of the same width with another height.
    pub fn with_height(self, height: f64) -> Size {
        Size { height, ..self }
    }
}

/// One axis.
#[derive(Clone)]
pub struct Axis {
    /// How values become positions.
    pub scale: Scale,
    /// What is measured; without this text a horizontal axis has no labels either, for a chart
    /// that stands on another one with the same axis.
    pub title: String,
    /// How a tick's value is written.
    pub format: fn(f64) -> String,
}

/// A chart to be drawn.
#[derive(Clone)]
pub struct Chart {
    /// The size of the chart.
    pub size: Size,
    /// The name of the chart, for screen readers.
    pub title: String,
    /// What the chart shows, for screen readers.
    pub description: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, in order.
    pub marks: Vec<ChartMark>,
    /// The room for the labels of the vertical axis; charts under one another want the same.
    pub left_min: f64,
}

/// The frame in the chart's units.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

const RADIUS: f64 = 3.6;
const LABEL_CHARS_MAX: usize = 26;

impl Chart {
    /// The SVG element, with a class for the page's layout.
    pub fn svg(&self, class: &str) -> String {
        let frame = self.frame();
        let mut out = opening(self.size, class, &self.title, &self.description);
        self.y_axis(&mut out, &frame);
        self.x_axis(&mut out, &frame);
        for mark in &self.marks {
            self.mark(&mut out, &frame, mark);
        }
        self.end_labels(&mut out, &frame);
        out.push_str("</svg>");
        out
    }

    fn frame(&self) -> Frame {
        let labels = self
            .y_ticks()
            .into_iter()
            .map(|(_, text)| label::width(&text));
        let left = labels.fold(self.left_min, |most, width| f64::max(most, width + 10.0));
        let ends = self.marks.iter().filter_map(|mark| match mark {
            ChartMark::EndLabel { label, .. } => {
                Some(label::width(&shortened(label, LABEL_CHARS_MAX)))
            }
            _ => None,
        });
        let right = ends.fold(14.0, |most: f64, width| most.max(width + 16.0));
        let top = if self.y.title.is_empty() { 10.0 } else { 30.0 };
        let bottom = if self.x.title.is_empty() { 8.0 } else { 44.0 };
        Frame {
            left: left.min(self.size.width * 0.3),
            right: self.size.width - right.min(self.size.width * 0.5),
            top,
            bottom: self.size.height - bottom,
        }
    }

    fn y_ticks(&self) -> Vec<(f64, String)> {
        let wanted = ((self.size.height - 52.0) / 44.0).clamp(3.0, 7.0) as usize;
        labelled(&self.y, wanted)
    }

    fn y_axis(&self, out: &mut String, frame: &Frame) {
        if !self.y.title.is_empty() {
            let title = escaped(&self.y.title);
            let _ = write!(
                out,
                "<text class=\"axis-title\" x=\"0\" y=\"13\">{title}</text>"
            );
        }
        let mut last = f64::INFINITY;
        for (value, text) in self.y_ticks() {
            let y = frame.y(self.y.scale.at(value));
            let (left, right) = (frame.left, frame.right);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"
            );
            if (last - y).abs() >= FONT {
                let (x, y) = (left - 7.0, y + 4.0);
                let text = escaped(&text);
                let _ = write!(
                    out,
                    "<text class=\"tick end\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
                );
                last = y - 4.0;
            }
        }
    }

    fn x_axis(&self, out: &mut String, frame: &Frame) {
        let bottom = frame.bottom;
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{:.1} {bottom:.1}H{:.1}\"/>",
            frame.left, frame.right
        );
        let widest = labelled(&self.x, 4)
            .into_iter()
            .map(|(_, text)| label::width(&text));
        let widest = widest.fold(22.0, f64::max);
        let wanted = ((frame.right - frame.left) / (widest + 16.0)).clamp(2.0, 10.0) as usize;
        let mut taken = f64::NEG_INFINITY;
        for (value, text) in labelled(&self.x, wanted) {
            let x = frame.x(self.x.scale.at(value));
            let _ = write!(out, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v5\"/>");
            if self.x.title.is_empty() {
                continue;
            }
            let half = label::width(&text) / 2.0;
            let middle = x.clamp(half, self.size.width - half);
            if middle - half > taken + 6.0 {
                let (text, y) = (escaped(&text), bottom + 19.0);
                let _ = write!(
                    out,
                    "<text class=\"tick mid\" x=\"{middle:.1}\" y=\"{y:.1}\">{text}</text>"
                );
                taken = middle + half;
            }
        }
        if !self.x.title.is_empty() {
            let (title, y) = (escaped(&self.x.title), bottom + 38.0);
            let middle = (frame.left + frame.right) / 2.0;
            let half = label::width(&self.x.title) / 2.0;
            let middle = middle.clamp(
                half.min(self.size.width / 2.0),
                f64::max(self.size.width - half, self.size.width / 2.0),
            );
            let _ = write!(
                out,
                "<text class=\"axis-title mid\" x=\"{middle:.1}\" y=\"{y:.1}\">{title}</text>"
            );
        }
    }

    fn to_pixels(&self, frame: &Frame, at: (f64, f64)) -> (f64, f64) {
        (
            frame.x(self.x.scale.at(at.0)),
            frame.y(self.y.scale.at(at.1)),
        )
    }

    fn mark(&self, out: &mut String, frame: &Frame, mark: &ChartMark) {
        match mark {
            ChartMark::Line {
                points,
                style,
                class,
                tooltip,
            } => {
                let placed: Vec<_> = points.iter().map(|&at| self.to_pixels(frame, at)).collect();
                let (colour, dash, path) = (style.colour, style.dash, mark::path(&placed));
                let tooltip = escaped(tooltip);
                let _ = write!(
                    out,
                    "<path class=\"line c{colour} d{dash} {class}\" d=\"{path}\"><title>{tooltip}</title></path>"
                );
            }
            ChartMark::Band { edges, style } => {
                let lower = edges
                    .iter()
                    .map(|&(x, low, _)| self.to_pixels(frame, (x, low)));
                let upper = edges
                    .iter()
                    .rev()
                    .map(|&(x, _, high)| self.to_pixels(frame, (x, high)));
                let outline: Vec<_> = lower.chain(upper).collect();
                let path = mark::path(&outline);
                let _ = write!(
                    out,
                    "<path class=\"band c{}\" d=\"{path}Z\"/>",
                    style.colour
                );
            }
            ChartMark::Points { points, style } => {
                for point in points {
                    self.point(out, frame, point, *style);
                }
            }
            ChartMark::Level { y, label } => {
                let (y, label) = (frame.y(self.y.scale.at(*y)), escaped(label));
                let (left, right, above) = (frame.left, frame.right, y - 5.0);
                let _ = write!(
                    out,
                    "<path class=\"level\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\
                     <text class=\"note\" x=\"{:.1}\" y=\"{above:.1}\">{label}</text>",
                    left + 6.0
                );
            }
            ChartMark::Guide { from, to } => {
                let ((x1, y1), (x2, y2)) =
                    (self.to_pixels(frame, *from), self.to_pixels(frame, *to));
                let _ = write!(
                    out,
                    "<path class=\"level\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>"
                );
            }
            ChartMark::EndLabel { .. } => {}
        }
    }

    fn point(&self, out: &mut String, frame: &Frame, point: &Point, style: LineStyle) {
        let (x, y) = self.to_pixels(frame, point.at);
        let colour = style.colour;
        if let Some((low, high)) = point.interval {
            let (low, high) = (
                frame.y(self.y.scale.at(low)),
                frame.y(self.y.scale.at(high)),
            );
            let _ = write!(
                out,
                "<path class=\"whisker c{colour}\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>"
            );
        }
        marker(out, style, (x, y), &point.tooltip);
    }

    /// Names at the ends of lines, spread so that none covers another, each joined to its line by a
    /// hair.
    fn end_labels(&self, out: &mut String, frame: &Frame) {
        let ends: Vec<_> = self
            .marks
            .iter()
            .filter_map(|mark| match mark {
                ChartMark::EndLabel { at, label, style } => {
                    Some((self.to_pixels(frame, *at), label, style))
                }
                _ => None,
            })
            .collect();
        let wanted: Vec<f64> = ends.iter().map(|((_, y), _, _)| *y).collect();
        let placed = label::spread(&wanted, label::LINE, frame.top, frame.bottom - 2.0);
        for (((x, from), label, style), y) in ends.into_iter().zip(placed) {
            let (colour, start) = (style.colour, frame.right + 10.0);
            if (y - from).abs() > 2.0 {
                let _ = write!(
                    out,
                    "<path class=\"hair\" d=\"M{:.1} {from:.1}L{:.1} {y:.1}\"/>",
                    x + RADIUS + 1.0,
                    start - 2.0
                );
            }
            let (base, label) = (y + 4.0, escaped(&shortened(label, LABEL_CHARS_MAX)));
            let _ = write!(
                out,
                "<text class=\"end-label t{colour}\" x=\"{start:.1}\" y=\"{base:.1}\">{label}</text>"
            );
        }
    }
}

impl Frame {
    fn x(&self, position: f64) -> f64 {
        self.left + position * (self.right - self.left)
    }

    fn y(&self, position: f64) -> f64 {
        self.bottom - position * (self.bottom - self.top)
    }
}

/// The shape of a style at a place in the chart's units.
fn marker(out: &mut String, style: LineStyle, (x, y): (f64, f64), tooltip: &str) {
    let (outline, tooltip) = (shape(style.shape, x, y, RADIUS), escaped(tooltip));
    let _ = write!(
        out,
        "<path class=\"point c{}\" d=\"{outline}\"><title>{tooltip}</title></path>",
        style.colour
    );
}

/// The opening tag with the name and the description that assistive software reads.
fn opening(size: Size, class: &str, title: &str, description: &str) -> String {
    let Size { width, height } = size;
    let (title, description) = (escaped(title), escaped(description));
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title><desc>{description}</desc>"
    )
}

/// The ticks of an axis with their words.
fn labelled(axis: &Axis, wanted: usize) -> Vec<(f64, String)> {
    let ticks = axis.scale.ticks(wanted).into_iter();
    ticks
        .map(|value| (value, tick(&(axis.format)(value))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(marks: Vec<ChartMark>) -> Chart {
        let axis = |title: &str| Axis {
            scale: Scale::from_zero(10.0),
            title: title.into(),
            format: crate::units::plain,
        };
        Chart {
            size: Size::NARROW,
            title: "a <chart>".into(),
            description: "what & how".into(),
            x: axis("x"),
            y: axis("y"),
            marks,
            left_min: 40.0,
        }
    }

    fn attributes(svg: &str, name: &str) -> Vec<f64> {
        let before = format!(" {name}=\"");
        let parts = svg.split(&before).skip(1);
        let values = parts.filter_map(|part| part.split('"').next()?.parse().ok());
        values.collect()
    }

    #[test]
    fn crowded_labels_stay_inside_the_chart() {
        let label = |index: usize| ChartMark::EndLabel {
            at: (10.0, 10.0),
            label: format!("a rather long name of a run, number {index}"),
            style: LineStyle::of_run(index),
        };
        let svg = chart((0..6).map(label).collect()).svg("narrow");
        let lines = attributes(&svg, "y");
        assert!(
            lines
                .iter()
                .all(|y| (0.0..=Size::NARROW.height).contains(y)),
            "{lines:?}"
        );
        let columns = attributes(&svg, "x");
        assert!(
            columns
                .iter()
                .all(|x| (0.0..=Size::NARROW.width).contains(x)),
            "{columns:?}"
        );
    }

    #[test]
    fn names_and_descriptions_are_there_and_safe_when_drawn() {
        let svg = chart(Vec::new()).svg("narrow");
        assert!(svg.contains("<title>a &lt;chart&gt;</title><desc>what &amp; how</desc>"));
        assert!(svg.contains("role=\"img\" aria-label=\"a &lt;chart&gt;\""));
    }

    #[test]
    fn mark_is_clipped_to_the_frame() {
        let points = vec![(-5.0, -5.0), (5.0, f64::NAN), (50.0, 50.0)];
        let line = ChartMark::Line {
            points,
            style: LineStyle::of_run(0),
            class: "",
            tooltip: String::new(),
        };
        let svg = chart(vec![line]).svg("narrow");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
