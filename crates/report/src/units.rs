//! The notation of [`headway_latency::format`], for a page.
//!
//! A number and its unit are held together by a narrow no-break space (U+202F).

const NARROW_NO_BREAK_SPACE: char = '\u{202f}';

use headway_latency::format;

pub(crate) use headway_latency::format::NONE;

/// A length of time given in nanoseconds: `850 ns`, `12.3 µs`, `1.23 ms`, `2.00 s`, `125 s`.
pub(crate) fn time(ns: f64) -> String {
    unbroken(&format::time_ns(ns))
}

/// A number of bytes in decimal units: `512 B`, `5.12 kB`, `1.50 GB`.
pub(crate) fn bytes(count: f64) -> String {
    unbroken(&format::bytes(count))
}

/// A plain number with k, M, G: `950`, `12.3k`, `1.20M`; for axes and labels.
pub(crate) fn plain(value: f64) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    let units = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];
    format::scaled(value, &units).replace(' ', "")
}

/// A rate in bits.
pub(crate) fn bit_rate(bits_per_s: f64) -> String {
    unbroken(&format::bit_rate(bits_per_s))
}

/// A share from 0 to 1 as a percentage. A part never reads as nothing or as all.
pub(crate) fn percent(share: f64) -> String {
    unbroken(&format::percent(share))
}

/// A whole number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    format::count(number)
}

/// A rate or another measured number: three significant digits below 1,000, whole numbers above.
pub(crate) fn measured(value: f64) -> String {
    format::number(value)
}

/// `1 request`, `2 requests`, with grouped digits.
pub(crate) fn counted(number: u64, one: &str) -> String {
    format::counted(number, one, &format!("{one}s"))
}

/// The label of a tick: what the axis's formatter writes, without zeros at the end.
pub(crate) fn tick(label: &str) -> String {
    let end = label
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-')
        .unwrap_or(label.len());
    let (number, unit) = label.split_at(end);
    format!("{}{unit}", format::trimmed(number.into()))
}

/// A number and its unit stay on one line.
fn unbroken(text: &str) -> String {
    text.replace(' ', &NARROW_NO_BREAK_SPACE.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ascii(text: String) -> String {
        text.replace(NARROW_NO_BREAK_SPACE, " ")
    }

    #[test]
    fn number_and_unit_do_not_break_and_a_missing_number_is_a_dash() {
        assert_eq!(time(1_234_000.0), "1.23\u{202f}ms");
        assert_eq!(time(f64::NAN), NONE);
    }

    #[test]
    fn counts_bytes_and_rates_are_short_when_they_are_large() {
        assert_eq!(ascii(bytes(512.0)), "512 B");
        assert_eq!(ascii(bytes(5120.0)), "5.12 kB");
        assert_eq!(ascii(bytes(1.5e9)), "1.50 GB");
        assert_eq!(plain(12_345.0), "12.3k");
        assert_eq!(plain(950.0), "950");
        assert_eq!(plain(-1500.0), "-1.50k");
        assert_eq!(ascii(bit_rate(400_000.0)), "400 kbit/s");
        assert_eq!(ascii(bit_rate(1e9)), "1.00 Gbit/s");
        assert_eq!(bit_rate(f64::INFINITY), NONE);
        assert_eq!(ascii(grouped(1_234_567)), "1,234,567");
        assert_eq!(ascii(measured(12_345.6)), "12,346");
        assert_eq!(measured(12.345), "12.3");
        assert_eq!(counted(1, "error"), "1 error");
        assert_eq!(counted(0, "error"), "0 errors");
    }

    #[test]
    fn tick_labels_have_no_trailing_zeros() {
        assert_eq!(tick("1.00\u{202f}ms"), "1\u{202f}ms");
        assert_eq!(tick("2.50k"), "2.5k");
        assert_eq!(tick("100"), "100");
        assert_eq!(tick("0.20"), "0.2");
    }
}
