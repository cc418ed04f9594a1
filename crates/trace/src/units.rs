//! Numbers for a terminal: units that fit, three digits, aligned by their
//! points.

/// What stands where there is no number.
pub const NONE: &str = "–";

/// A length of time, always with a unit of two columns so that columns of them align: `850 ns`,
/// `12.3 µs`, `2.00 s `.
pub fn time(ns: u64) -> String {
    if ns == 0 {
        return "0   ".to_owned();
    }
    let scales = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s ")];
    let value = ns as f64;
    // The largest unit in which the value is at least 1 when rounded to three digits.
    let fits = |(scale, _): &&(f64, &str)| value / scale >= 0.9995;
    let (scale, unit) = scales.iter().rev().find(fits).unwrap_or(&scales[0]);
    let shown = value / scale;
    let digits = match shown {
        _ if *scale == 1.0 => format!("{shown:.0}"),
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    format!("{digits} {unit}")
}

/// A time for a sentence, without padding.
pub fn time_words(ns: u64) -> String {
    if ns == 0 {
        return "0 s".to_owned();
    }
    time(ns).trim_end().to_owned()
}

/// A time that may not be known.
pub fn time_or_none(ns: Option<u64>) -> String {
    ns.map_or_else(|| format!("{NONE}   "), time)
}

/// A whole number, its digits in groups of three.
pub fn counted(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 call`, `2 calls`.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        counted(number),
        if number == 1 { one } else { many }
    )
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
    use super::{counted, percent, plural, time, time_words};

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
        assert_eq!(time_words(2_000_000_000), "2.00 s");
    }

    #[test]
    fn numbers_are_readable_when_they_are_large_and_shares_when_they_are_small() {
        assert_eq!(counted(1_234_567), "1,234,567");
        assert_eq!(counted(999), "999");
        assert_eq!(plural(1, "call", "calls"), "1 call");
        assert_eq!(plural(2000, "call", "calls"), "2,000 calls");
        assert_eq!(percent(1, 10_000), "<0.1 %");
        assert_eq!(percent(0, 10), "0 %");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 0), "–");
    }
}
