//! Figures as people read them: `1,234,567`, `12.3 MB`, `0.02 %`, `1.204` milliseconds.

/// A share for people. A small one keeps a digit that is not 0.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p == 0.0 || p >= 10.0 => format!("{p:.0} %"),
        p if p >= 0.1 => format!("{p:.1} %"),
        p if p >= 0.001 => format!("{p:.3} %"),
        _ => "less than 0.001 %".to_owned(),
    }
}

/// A name that somebody else chose, such as a label in a run directory or the `Server` field of a
/// reply: no control character of it reaches a terminal, which would obey it.
pub fn plain(name: &str) -> String {
    name.replace(char::is_control, "\u{fffd}")
}

/// A number with its thousands apart: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate or another number that may have a fraction: `51,234`, `512.4`, `0.25`.
pub fn number(value: f64) -> String {
    match value {
        v if v >= 1000.0 => count(v.round() as u64),
        v if v >= 100.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Bytes in powers of 1000: `512 B`, `12.3 MB`.
pub fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = value;
    let mut unit = 0;
    // What would round to 1000 of a unit belongs to the next one.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{value:.0} B"),
        (_, v) if v >= 99.95 => format!("{v:.0} {}", UNITS[unit]),
        (_, v) => format!("{v:.1} {}", UNITS[unit]),
    }
}

/// Microseconds as milliseconds, with four figures: `0.083`, `12.34`, `1,234`.
pub fn millis(us: f64) -> String {
    match us / 1000.0 {
        ms if ms >= 1000.0 => count(ms.round() as u64),
        ms if ms >= 100.0 => format!("{ms:.1}"),
        ms if ms >= 10.0 => format!("{ms:.2}"),
        ms => format!("{ms:.3}"),
    }
}

/// Seconds: `0.25 s`, `10.0 s`, `2 min 5 s`.
pub fn seconds(value: f64) -> String {
    match value {
        s if s < 0.995 => format!("{s:.2} s"),
        s if s < 119.95 => format!("{s:.1} s"),
        s => format!("{} min {} s", s.round() as u64 / 60, s.round() as u64 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_when_a_name_holds_them() {
        assert_eq!(
            plain("a\x1b[31m\u{9b}\nb é"),
            "a\u{fffd}[31m\u{fffd}\u{fffd}b é"
        );
    }

    #[test]
    fn numbers_are_readable_when_they_are_large_or_small() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((count(999).as_str(), count(0).as_str()), ("999", "0"));
        assert_eq!(percent(0.123), "12 %");
        assert_eq!(percent(0.012), "1.2 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(1e-9), "less than 0.001 %");
    }

    #[test]
    fn units_are_chosen_when_bytes_grow() {
        let cases = [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.0 kB"),
            (12_345_678.0, "12.3 MB"),
            (999_960.0, "1.0 MB"),
            (5e8, "500 MB"),
            (2.5e15, "2500 TB"),
        ];
        for (value, expected) in cases {
            assert_eq!(bytes(value), expected);
        }
    }

    #[test]
    fn figures_keep_their_weight_when_times_grow() {
        assert_eq!(millis(83.0), "0.083");
        assert_eq!(millis(12_345.0), "12.35");
        assert_eq!(millis(1_234_000.0), "1,234");
        assert_eq!(seconds(0.25), "0.25 s");
        assert_eq!(seconds(30.0), "30.0 s");
        assert_eq!(seconds(125.0), "2 min 5 s");
        assert_eq!(
            (number(51_234.4).as_str(), number(0.25).as_str()),
            ("51,234", "0.25")
        );
    }
}
