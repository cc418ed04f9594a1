//! Latencies as a histogram in text: a line for each range, 1, 2 and 5 times a power of ten.

use headway_latency::analysis::CdfPoint;
use headway_latency::format::percent;

/// From 1 µs to 500 s.
const DECADES: i32 = 9;

/// Parts of a character, from an eighth to a whole one.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A range of latencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Its end. Infinite for the last one.
    pub up_to_us: f64,
    /// The share of requests in it.
    pub share: f64,
}

/// The ranges from the first to the last with requests. `within` is the share of requests up to a latency in
/// microseconds.
pub fn ranges(within: impl Fn(f64) -> f64) -> Vec<Range> {
    let limits =
        (0..DECADES).flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(decade)));
    let (mut found, mut below) = (Vec::new(), 0.0);
    for up_to_us in limits {
        let share = within(up_to_us) - below;
        below = within(up_to_us);
        if share > 0.0 || !found.is_empty() {
            found.push(Range { up_to_us, share });
        }
        if below >= 1.0 {
            return found;
        }
    }
    let above = within(f64::INFINITY) - below;
    if above > 0.0 {
        found.push(Range {
            up_to_us: f64::INFINITY,
            share: above,
        });
    }
    found
}

/// The same of a distribution.
pub fn ranges_of(cdf: &[CdfPoint]) -> Vec<Range> {
    ranges(|us| {
        let after = cdf.partition_point(|point| point.latency_us <= us);
        after.checked_sub(1).map_or(0.0, |last| cdf[last].share)
    })
}

/// A line for each range; bars have at most `width` characters.
pub fn lines(ranges: &[Range], width: usize) -> Vec<String> {
    let largest = ranges.iter().map(|range| range.share).fold(0.0, f64::max);
    let line = |range: &Range| {
        let name = match range.up_to_us.is_finite() {
            true => format!("up to {}", limit(range.up_to_us)),
            false => "longer".to_owned(),
        };
        let share = match range.share > 0.0 {
            true => percent(range.share),
            false => String::new(),
        };
        let line = format!(
            "{name:<14}{share:>10}  {}",
            bar(range.share / largest, width)
        );
        line.trim_end().to_owned()
    };
    ranges.iter().map(line).collect()
}

/// Limits are whole numbers of their unit.
fn limit(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us} µs"),
        us if us < 1e6 => format!("{} ms", us / 1e3),
        us => format!("{} s", us / 1e6),
    }
}

/// Something is shown of every share that is not 0.
fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * 8.0 * width as f64).ceil() as usize;
    let mut bar: String = std::iter::repeat_n(EIGHTHS[7], eighths / 8).collect();
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_in_one_range() {
        let point = |latency_us, share| CdfPoint { latency_us, share };
        let cdf = [point(150.0, 0.25), point(190.0, 0.5), point(900.0, 1.0)];
        let found = ranges_of(&cdf);
        let expected = [(200.0, 0.5), (500.0, 0.0), (1_000.0, 0.5)];
        assert_eq!(
            found,
            expected.map(|(up_to_us, share)| Range { up_to_us, share })
        );
        let shown = lines(&found, 4);
        assert_eq!(shown[0], "up to 200 µs        50 %  ████");
        assert_eq!(shown[1], "up to 500 µs");
        assert!(ranges_of(&[]).is_empty() && lines(&[], 4).is_empty());
        let longest = ranges_of(&[point(1e9, 1.0)]);
        assert_eq!(lines(&longest, 1), ["longer             100 %  █"]);
    }

    #[test]
    fn limits_are_whole_and_small_shares_are_seen() {
        let shown = [1.0, 500.0, 1e3, 5e5, 1e6, 5e8].map(limit);
        assert_eq!(shown, ["1 µs", "500 µs", "1 ms", "500 ms", "1 s", "500 s"]);
        assert_eq!(bar(0.0, 10), "");
        assert_eq!(bar(1e-9, 10), "▏");
        assert_eq!(bar(0.5, 1), "▌");
        assert_eq!(bar(1.0, 2), "██");
    }
}
