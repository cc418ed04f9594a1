//! Stacked bars of equal height: how a whole is made up, again and again along an axis.

use std::fmt::Write;

use super::{Size, opening};
use crate::html::escaped;

/// One bar: its parts as shares of one, in the order of the series, and its name below.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Below the bar.
    pub name: String,
    /// Shares, together at most one.
    pub parts: Vec<f64>,
    /// Tooltip of each part.
    pub tooltip: Vec<String>,
}

/// Bars side by side, the first series at the bottom.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Size of the drawing.
    pub size: Size,
    /// The name of the chart, for screen readers.
    pub title: String,
    /// What the chart shows, for screen readers.
    pub description: String,
    /// Above the bars, on the left.
    pub above: String,
    /// Below the bars, in the middle.
    pub below: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

const LEFT: f64 = 52.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;
/// Below this height a part has no room for its series' number.
const NUMBER_MIN: f64 = 15.0;

impl Stack {
    /// The SVG element. Part n has the classes `part q{n}`; its number stands in it if there is
    /// room.
    pub fn svg(&self, class: &str) -> String {
        let mut out = opening(self.size, class, &self.title, &self.description);
        let (width, height) = (self.size.width, self.size.height);
        let bottom = height - BOTTOM;
        let full = bottom - TOP;
        let _ = write!(
            out,
            "<text class=\"axis-title\" x=\"0\" y=\"13\">{}</text>",
            escaped(&self.above)
        );
        for share in [0.0, 0.5, 1.0] {
            let (y, label) = (bottom - share * full, share * 100.0);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{width}\"/>\
                 <text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{label:.0}\u{202f}%</text>",
                LEFT - 7.0,
                y + 4.0
            );
        }
        let pitch = (width - LEFT) / self.bars.len().max(1) as f64;
        for (index, bar) in self.bars.iter().enumerate() {
            let left = LEFT + pitch * (index as f64 + 0.06);
            bar.svg(&mut out, left, pitch * 0.88, bottom, full);
        }
        let _ = write!(
            out,
            "<text class=\"axis-title mid\" x=\"{:.1}\" y=\"{:.1}\">{}</text></svg>",
            (LEFT + width) / 2.0,
            height - 6.0,
            escaped(&self.below)
        );
        out
    }
}

impl Bar {
    fn svg(&self, out: &mut String, left: f64, width: f64, bottom: f64, full: f64) {
        let middle = left + width / 2.0;
        let mut base = bottom;
        for (series, share) in self.parts.iter().enumerate() {
            let height = share.clamp(0.0, 1.0) * full;
            if height <= 0.0 {
                continue;
            }
            base -= height;
            let tooltip = escaped(self.tooltip.get(series).map_or("", String::as_str));
            let _ = write!(
                out,
                "<rect class=\"part q{series}\" x=\"{left:.1}\" y=\"{base:.1}\" width=\"{width:.1}\" \
                 height=\"{height:.1}\"><title>{tooltip}</title></rect>"
            );
            if height >= NUMBER_MIN && width >= 14.0 {
                let (y, number) = (base + height / 2.0 + 4.0, series + 1);
                let _ = write!(
                    out,
                    "<text class=\"number n{series} mid\" x=\"{middle:.1}\" y=\"{y:.1}\">{number}</text>"
                );
            }
        }
        let (name, y) = (escaped(&self.name), bottom + 17.0);
        let _ = write!(
            out,
            "<text class=\"tick mid\" x=\"{middle:.1}\" y=\"{y:.1}\">{name}</text>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_parts_are_stacked() {
        let bar = Bar {
            name: "1".into(),
            parts: vec![0.5, 0.0, 0.25, 0.25],
            tooltip: vec!["a & b".into()],
        };
        let stack = Stack {
            size: Size::NARROW,
            title: "t".into(),
            description: "d".into(),
            above: "share".into(),
            below: "decile".into(),
            bars: vec![bar],
        };
        let svg = stack.svg("narrow");
        assert_eq!(
            svg.matches("<rect").count(),
            3,
            "an empty part is not drawn"
        );
        assert!(svg.contains("<title>a &amp; b</title>"));
        let full = Size::NARROW.height - TOP - BOTTOM;
        assert!(
            svg.contains(&format!("y=\"{:.1}\" width", TOP)),
            "the last part reaches the top"
        );
        assert!(svg.contains(&format!("height=\"{:.1}\"", full / 2.0)));
    }
}
