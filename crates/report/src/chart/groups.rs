//! Bars in groups beside one another, or stacked, over an axis of values: one group for each
//! server, as chapter 4's figures have them.

use std::fmt::Write;

use super::{Scale, Size, opening};
use crate::html::escaped;
use crate::units::tick;

/// One group: its name below, and a value for each series; `None` leaves a gap.
#[derive(Clone, Debug)]
pub struct Group {
    /// Below the group.
    pub name: String,
    /// In the order of the series.
    pub values: Vec<Option<f64>>,
    /// A dash across the group at this value, for stacks.
    pub dash: Option<f64>,
}

/// Bars in groups.
#[derive(Clone, Debug)]
pub struct Groups<'a> {
    /// Size of the drawing.
    pub size: Size,
    /// The name of the chart, for screen readers.
    pub title: &'a str,
    /// What the chart shows, for screen readers.
    pub description: &'a str,
    /// Above the bars, on the left.
    pub above: &'a str,
    /// What the series are called.
    pub series: &'a [String],
    /// Values stand on one another instead of side by side.
    pub stacked: bool,
    /// The groups.
    pub groups: &'a [Group],
    /// A value as text.
    pub format: fn(f64) -> String,
}

const LEFT: f64 = 56.0;
const TOP: f64 = 28.0;
/// Two lines of a name.
const BOTTOM: f64 = 44.0;

/// The class with the colour of a series: runs' colours side by side, shades of one in a stack.
pub fn colour(series: usize, stacked: bool) -> String {
    match (stacked, series) {
        (false, _) => format!("c{}", series % 6),
        (true, 0..7) => format!("c{}", 10 + series),
        (true, _) => "c5".into(),
    }
}

impl Groups<'_> {
    /// The SVG element.
    pub fn svg(&self, class: &str) -> String {
        let mut out = opening(self.size, class, self.title, self.description);
        let axis = self.axis();
        let bottom = self.size.height - BOTTOM;
        let y = |value: f64| bottom - axis.at(value) * (bottom - TOP);
        let _ = write!(
            out,
            "<text class=\"axis-title\" x=\"0\" y=\"13\">{}</text>",
            escaped(self.above)
        );
        for value in axis.ticks(4) {
            let (at, label) = (y(value), tick(&(self.format)(value)));
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/><text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                self.size.width,
                LEFT - 7.0,
                at + 4.0,
                escaped(&label)
            );
        }
        let pitch = (self.size.width - LEFT) / self.groups.len().max(1) as f64;
        for (index, group) in self.groups.iter().enumerate() {
            let left = LEFT + pitch * (index as f64 + 0.1);
            match self.stacked {
                true => self.stack(&mut out, group, left, pitch * 0.8, &y),
                false => self.side_by_side(&mut out, group, left, pitch * 0.8, &y),
            }
            self.named(&mut out, group, left + pitch * 0.4, pitch, bottom);
        }
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{LEFT} {:.1}H{}\"/></svg>",
            y(0.0),
            self.size.width
        );
        out
    }

    /// From zero, or around it where values are on both sides.
    fn axis(&self) -> Scale {
        let all = || self.groups.iter();
        let tops = all().map(|group| match self.stacked {
            true => group.values.iter().flatten().sum::<f64>(),
            false => group.values.iter().flatten().copied().fold(0.0, f64::max),
        });
        let high = tops
            .chain(all().filter_map(|group| group.dash))
            .fold(0.0, f64::max);
        let low = all()
            .flat_map(|group| group.values.iter().flatten())
            .copied()
            .fold(0.0, f64::min);
        let up = Scale::from_zero(high.max(-low));
        match (up, low < 0.0) {
            (Scale::Linear { high: top, .. }, true) => Scale::Linear {
                low: -top,
                high: if high > 0.0 { top } else { 0.0 },
            },
            (scale, _) => scale,
        }
    }

    fn side_by_side(
        &self,
        out: &mut String,
        group: &Group,
        left: f64,
        width: f64,
        y: &impl Fn(f64) -> f64,
    ) {
        let each = width / self.series.len().max(1) as f64;
        for (series, value) in group.values.iter().enumerate() {
            if let Some(value) = value {
                let tooltip = self.tooltip(group, series, *value);
                let at = left + each * series as f64;
                rect(
                    out,
                    series,
                    false,
                    [at, each * 0.92, y(value.max(0.0)), y(value.min(0.0))],
                    &tooltip,
                );
            }
        }
    }

    fn stack(
        &self,
        out: &mut String,
        group: &Group,
        left: f64,
        width: f64,
        y: &impl Fn(f64) -> f64,
    ) {
        let mut base = 0.0;
        for (series, value) in group.values.iter().enumerate() {
            if let Some(value) = value.filter(|value| *value > 0.0) {
                let tooltip = self.tooltip(group, series, value);
                rect(
                    out,
                    series,
                    true,
                    [left, width, y(base + value), y(base)],
                    &tooltip,
                );
                base += value;
            }
        }
        if let Some(dash) = group.dash {
            let (at, right) = (y(dash), left + width + 4.0);
            let tooltip = escaped(&format!(
                "{}, measured: {}",
                group.name,
                (self.format)(dash)
            ));
            let _ = write!(
                out,
                "<path class=\"measured\" d=\"M{:.1} {at:.1}H{right:.1}\"><title>{tooltip}</title></path>",
                left - 4.0
            );
        }
    }

    fn tooltip(&self, group: &Group, series: usize, value: f64) -> String {
        let series = self.series.get(series).map_or("", String::as_str);
        format!("{}, {series}: {}", group.name, (self.format)(value))
    }

    /// The name in two lines where it has two words and little room.
    fn named(&self, out: &mut String, group: &Group, middle: f64, pitch: f64, bottom: f64) {
        let fits = group.name.chars().count() as f64 * 6.4 < pitch;
        let lines = match group.name.rsplit_once(' ') {
            Some((first, second)) if !fits => vec![first, second],
            _ => vec![group.name.as_str()],
        };
        for (index, line) in lines.into_iter().enumerate() {
            let _ = write!(
                out,
                "<text class=\"tick mid\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 17.0 + 15.0 * index as f64,
                escaped(line)
            );
        }
    }
}

fn rect(
    out: &mut String,
    series: usize,
    stacked: bool,
    [left, width, top, bottom]: [f64; 4],
    tooltip: &str,
) {
    let (colour, height) = (colour(series, stacked), (bottom - top).max(0.5));
    let _ = write!(
        out,
        "<rect class=\"bar {colour}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"><title>{}</title></rect>",
        escaped(tooltip)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(groups: &[Group], stacked: bool) -> String {
        let series = ["a".to_owned(), "b".to_owned()];
        Groups {
            size: Size::WIDE,
            title: "t",
            description: "d",
            above: "Mb/s",
            series: &series,
            stacked,
            groups,
            format: |value| format!("{value:.1}"),
        }
        .svg("wide")
    }

    fn group(name: &str, values: [Option<f64>; 2], dash: Option<f64>) -> Group {
        Group {
            name: name.into(),
            values: values.to_vec(),
            dash,
        }
    }

    #[test]
    fn missing_bar_leaves_a_gap() {
        let svg = drawn(&[group("x & y", [Some(5.0), None], None)], false);
        assert_eq!(svg.matches("<rect").count(), 1);
        assert!(
            svg.contains("x &amp; y, a: 5.0") && !svg.contains("NaN"),
            "{svg}"
        );
        let nothing = drawn(&[group("x", [None, None], None)], true);
        assert_eq!(nothing.matches("<rect").count(), 0);
    }

    #[test]
    fn negative_bar_is_below_zero() {
        let svg = drawn(&[group("x", [Some(0.1), Some(-0.05)], None)], false);
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains(">-0.1<"), "{svg}");
    }

    #[test]
    fn measured_value_of_a_stack_is_a_dash() {
        let svg = drawn(&[group("x", [Some(1.0), Some(2.0)], Some(4.0))], true);
        assert!(
            svg.contains("class=\"measured\"") && svg.contains("x, measured: 4.0"),
            "{svg}"
        );
        assert!(svg.contains("class=\"bar c10\""));
    }
}
