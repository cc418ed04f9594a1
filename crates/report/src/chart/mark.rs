//! What is drawn inside a chart's frame: lines, bands, points, rules. Values in, SVG elements out.

use std::fmt::Write;

/// How many colours tell runs apart.
pub const COLOURS: usize = 6;
/// How many dash patterns, and how many shapes.
const SHAPES: usize = 8;
/// The first of the colours that go from light to dark and tell loads apart, and how many there
/// are.
const LOAD_COLOURS: (usize, usize) = (10, 7);

/// Colour, dash and point shape of a run's curves. They change together, so that runs can be told
/// apart without colours, for example in print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineStyle {
    /// Index of the colour, class `c0` … `c5` for runs and `c10` … `c16` for loads.
    pub colour: usize,
    /// Index of the dash pattern, class `d0` … `d7`.
    pub dash: usize,
    /// Index of the points' shape.
    pub shape: usize,
}

impl LineStyle {
    /// The look of the nth run of a report.
    pub fn of_run(index: usize) -> LineStyle {
        LineStyle {
            colour: index % COLOURS,
            dash: index % SHAPES,
            shape: index % SHAPES,
        }
    }

    /// The look of the nth of some loads, the lightest first: an order, so one colour that grows
    /// darker.
    pub fn of_load(index: usize, loads: usize) -> LineStyle {
        let last = loads.saturating_sub(1).max(1);
        LineStyle {
            colour: LOAD_COLOURS.0 + (index * (LOAD_COLOURS.1 - 1) + last / 2) / last,
            dash: [2, 4, 0][(index * 3 / loads.max(1)).min(2)],
            shape: index % SHAPES,
        }
    }

    /// The style's colour with another dash and shape.
    pub fn with(self, dash: usize, shape: usize) -> LineStyle {
        LineStyle {
            dash,
            shape,
            ..self
        }
    }
}

/// A point with what is known about it.
#[derive(Clone, Debug)]
pub struct Point {
    /// Where the point is, in the values of the axes.
    pub at: (f64, f64),
    /// An interval around it on the y axis.
    pub interval: Option<(f64, f64)>,
    /// Shown when the pointer rests on it.
    pub tooltip: String,
}

/// Something drawn from values.
#[derive(Clone, Debug)]
pub enum ChartMark {
    /// A line through points, thinned to what can be seen.
    Line {
        /// The points, ascending in x.
        points: Vec<(f64, f64)>,
        /// Colour and dash.
        style: LineStyle,
        /// Further classes: `thin`, `strong`.
        class: &'static str,
        /// Shown when the pointer rests on it.
        tooltip: String,
    },
    /// A filled band between two lines over the same x values.
    Band {
        /// x, lower and upper value.
        edges: Vec<(f64, f64, f64)>,
        /// Style of the line.
        style: LineStyle,
    },
    /// Points of the look's shape.
    Points {
        /// The points.
        points: Vec<Point>,
        /// Colour and shape.
        style: LineStyle,
    },
    /// A level line through the whole frame, with words on its right end, above it.
    Level {
        /// The y value.
        y: f64,
        /// Text of the label.
        label: String,
    },
    /// A dotted straight line between two points, such as "everything offered is answered".
    Guide {
        /// One end of the line.
        from: (f64, f64),
        /// The other end of the line.
        to: (f64, f64),
    },
    /// A label at the end of a line, right of the frame, moved up or down if another one is there.
    EndLabel {
        /// Where the line ends.
        at: (f64, f64),
        /// The name.
        label: String,
        /// Style of the label.
        style: LineStyle,
    },
}

/// The outline of one point, `M…Z`, around a place in the chart's units.
pub fn shape(index: usize, x: f64, y: f64, r: f64) -> String {
    let polygon = |points: &[(f64, f64)]| {
        let mut out = String::new();
        for (number, (dx, dy)) in points.iter().enumerate() {
            let letter = if number == 0 { 'M' } else { 'L' };
            let _ = write!(out, "{letter}{:.1} {:.1}", x + dx * r, y + dy * r);
        }
        out + "Z"
    };
    match index % SHAPES {
        0 => format!(
            "M{:.1} {y:.1}a{r} {r} 0 1 0 {} 0a{r} {r} 0 1 0 {} 0Z",
            x - r,
            2.0 * r,
            -2.0 * r
        ),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.25), (1.15, 0.85), (-1.15, 0.85)]),
        3 => polygon(&[(0.0, -1.35), (1.35, 0.0), (0.0, 1.35), (-1.35, 0.0)]),
        4 => polygon(&[(0.0, 1.25), (1.15, -0.85), (-1.15, -0.85)]),
        5 => polygon(&[
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ]),
        6 => polygon(&[(1.25, 0.0), (-0.85, -1.15), (-0.85, 1.15)]),
        _ => polygon(&[(-1.25, 0.0), (0.85, -1.15), (0.85, 1.15)]),
    }
}

/// The path through points in the chart's units, without points that no eye would miss.
pub fn path(points: &[(f64, f64)]) -> String {
    let mut out = String::new();
    for (number, (x, y)) in thinned(points, 0.25).into_iter().enumerate() {
        let letter = if number == 0 { 'M' } else { 'L' };
        let _ = write!(out, "{letter}{x:.1} {y:.1}");
    }
    out
}

/// Leaves out points closer than `tolerance` to the line through the others (Ramer, Douglas and
/// Peucker). The first, the last and every visible corner stay, so a tail stays, however few points
/// it has.
pub fn thinned(points: &[(f64, f64)], tolerance: f64) -> Vec<(f64, f64)> {
    if points.len() < 3 {
        return points.to_vec();
    }
    let mut keep = vec![false; points.len()];
    keep[0] = true;
    keep[points.len() - 1] = true;
    let mut open = vec![(0, points.len() - 1)];
    while let Some((first, last)) = open.pop() {
        let inside = first + 1..last;
        let far = inside
            .map(|index| (distance(points[index], points[first], points[last]), index))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((_, index)) = far.filter(|(off, _)| *off > tolerance) {
            keep[index] = true;
            open.extend([(first, index), (index, last)]);
        }
    }
    let kept = points.iter().zip(keep).filter(|(_, keep)| *keep);
    kept.map(|(point, _)| *point).collect()
}

/// How far a point is from the line between two others.
fn distance(point: (f64, f64), from: (f64, f64), to: (f64, f64)) -> f64 {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy);
    if length == 0.0 {
        return (point.0 - from.0).hypot(point.1 - from.1);
    }
    (dx * (from.1 - point.1) - (from.0 - point.0) * dy).abs() / length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_and_ends_stay_when_a_line_is_thinned() {
        let mut line: Vec<(f64, f64)> = (0..1000).map(|x| (f64::from(x), 0.0)).collect();
        line[500].1 = 40.0;
        let kept = thinned(&line, 0.25);
        assert!(kept.len() <= 5, "{}", kept.len());
        assert!(kept.contains(&(500.0, 40.0)));
        assert_eq!((kept[0], kept[kept.len() - 1]), ((0.0, 0.0), (999.0, 0.0)));
    }

    #[test]
    fn every_left_out_point_lies_near_the_line_when_a_curve_is_thinned() {
        let curve: Vec<(f64, f64)> = (0..500)
            .map(|x| (f64::from(x), (f64::from(x) / 40.0).sin() * 100.0))
            .collect();
        let kept = thinned(&curve, 0.25);
        assert!(kept.len() < curve.len() / 3);
        for point in &curve {
            let near = kept.windows(2).any(|pair| {
                point.0 >= pair[0].0
                    && point.0 <= pair[1].0
                    && distance(*point, pair[0], pair[1]) <= 0.26
            });
            assert!(near, "{point:?}");
        }
    }

    #[test]
    fn mark_shapes_differ_between_styles() {
        let shapes: std::collections::BTreeSet<String> = (0..SHAPES)
            .map(|index| shape(index, 0.0, 0.0, 4.0))
            .collect();
        assert_eq!(shapes.len(), SHAPES);
    }
}
