//! Numbers for a terminal: units that fit, three digits, aligned by their
//! points.

use headway_base::format::time_ns;
pub use headway_base::format::{NONE, count as grouped, counted};

/// A length of time, always with a unit of two columns so that columns of them align: `850 ns`,
/// `12.3 µs`, `2.00 s `.
pub fn time(ns: u64) -> String {
    match ns {
        0 => "0   ".to_owned(),
        // A clock of whole nanoseconds has no digits after the point.
        1..1000 => format!("{ns} ns"),
        1000..999_500_000 => time_ns(ns as f64),
        _ => time_ns(ns as f64) + " ",
    }
}

/// A time for a sentence, without padding.
pub fn time_unpadded(ns: u64) -> String {
    if ns == 0 {
        return "0 s".to_owned();
    }
    time(ns).trim_end().to_owned()
}

/// A time that may not be known.
pub fn time_or_none(ns: Option<u64>) -> String {
    ns.map_or_else(|| format!("{NONE}   "), time)
}

/// A share of a whole; small ones are not rounded to nothing.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return NONE.to_owned();
    }
    match part as f64 * 100.0 / whole as f64 {
        0.0 => "0 %".to_owned(),
        share if share < 0.1 => "<0.1 %".to_owned(),
        share => format!("{share:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::{counted, grouped, percent, time, time_unpadded};

    #[test]
    fn time_has_the_unit_that_fits_when_it_spans_orders_of_magnitude() {
        let cases = [
            (0, "0   "),
            (7, "7 ns"),
            (850, "850 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (999_499, "999 µs"),
            (999_600, "1.00 ms"),
            (12_340_000, "12.3 ms"),
            (2_000_000_000, "2.00 s "),
            (125_000_000_000, "125 s "),
        ];
        for (ns, shown) in cases {
            assert_eq!(time(ns), shown, "{ns}");
        }
        assert_eq!(time_unpadded(2_000_000_000), "2.00 s");
    }

    #[test]
    fn numbers_are_readable_when_they_are_large_and_shares_when_they_are_small() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(999), "999");
        assert_eq!(counted(1, "call", "calls"), "1 call");
        assert_eq!(counted(2000, "call", "calls"), "2,000 calls");
        assert_eq!(percent(1, 10_000), "<0.1 %");
        assert_eq!(percent(0, 10), "0 %");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 0), "–");
    }
}
