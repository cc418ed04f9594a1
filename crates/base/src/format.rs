//! Figures as people read them, in one notation for the terminal and for reports.
//!
//! Three significant digits and the unit that fits: `1,234`, `12.5 ms`, `3.20 MB`, `0.02 %`. Bytes
//! are counted in powers of 1000.
//!
//! ```
//! use headway_base::format;
//!
//! assert_eq!(format::count(1_234_567), "1,234,567");
//! assert_eq!(format::time_us(12_540.0), "12.5 ms");
//! assert_eq!(format::bytes(3_200_000.0), "3.20 MB");
//! assert_eq!(format::percent(0.000_2), "0.02 %");
//! ```

use std::borrow::Cow;
use std::fmt::Write;

/// What stands where there is no number.
pub const NONE: &str = "–";

/// A whole number with its thousands apart: `1,234,567`.
///
/// ```
/// assert_eq!(headway_base::format::count(1_234_567), "1,234,567");
/// ```
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

/// A number with what it counts: `1 call`, `2,000 calls`.
///
/// ```
/// assert_eq!(headway_base::format::counted(2000, "call", "calls"), "2,000 calls");
/// ```
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A rate or another measured number: three significant digits below 1,000, whole numbers above.
///
/// ```
/// assert_eq!(headway_base::format::number(51_234.4), "51,234");
/// assert_eq!(headway_base::format::number(12.34), "12.3");
/// ```
pub fn number(value: f64) -> String {
    match value {
        v if !v.is_finite() => NONE.into(),
        v if v >= 999.5 => count(v.round() as u64),
        v => digits(v),
    }
}

/// A length of time given in nanoseconds, in the unit that fits.
///
/// ```
/// assert_eq!(headway_base::format::time_ns(850.0), "850 ns");
/// ```
pub fn time_ns(ns: f64) -> String {
    if !ns.is_finite() {
        return NONE.into();
    }
    if ns == 0.0 {
        return "0 s".into();
    }
    scaled(ns, &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")])
}

/// A length of time given in microseconds, in the unit that fits.
///
/// ```
/// assert_eq!(headway_base::format::time_us(12_540.0), "12.5 ms");
/// ```
pub fn time_us(us: f64) -> String {
    time_ns(us * 1e3)
}

/// The length of a run or a step, given in seconds: `0.25 s`, `10 s`, `2 min 5 s`.
///
/// ```
/// assert_eq!(headway_base::format::duration(125.0), "2 min 5 s");
/// ```
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.995 => format!("{} s", trimmed(format!("{s:.2}"))),
        s if s < 119.95 => format!("{} s", trimmed(format!("{s:.1}"))),
        s if (s.round() as u64).is_multiple_of(60) => format!("{} min", s.round() as u64 / 60),
        s => format!("{} min {} s", s.round() as u64 / 60, s.round() as u64 % 60),
    }
}

/// A number of bytes in powers of 1000: `512 B`, `5.12 kB`, `1.50 GB`.
///
/// ```
/// assert_eq!(headway_base::format::bytes(1.5e9), "1.50 GB");
/// ```
pub fn bytes(count: f64) -> String {
    if !count.is_finite() {
        return NONE.into();
    }
    if count.abs() < 999.5 {
        return format!("{count:.0} B");
    }
    let units = [(1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")];
    scaled(count, &units)
}

/// A rate in bits per second: `400 kbit/s`.
///
/// ```
/// assert_eq!(headway_base::format::bit_rate(1e9), "1.00 Gbit/s");
/// ```
pub fn bit_rate(bits_per_s: f64) -> String {
    if !bits_per_s.is_finite() {
        return NONE.into();
    }
    let units = [
        (1.0, "bit/s"),
        (1e3, "kbit/s"),
        (1e6, "Mbit/s"),
        (1e9, "Gbit/s"),
    ];
    scaled(bits_per_s, &units)
}

/// A share from 0 to 1 in percent. What is not zero never reads as zero, and a part never as all.
///
/// ```
/// assert_eq!(headway_base::format::percent(0.25), "25 %");
/// assert_eq!(headway_base::format::percent(0.999_999), ">99.999 %");
/// ```
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.into();
    }
    let shown = match share {
        s if s > 0.0 && s < 0.000_01 => "<0.001".into(),
        s if s > 0.999_99 && s < 1.0 => ">99.999".into(),
        s if s.abs() < 0.01 || (s > 0.99 && s < 1.0) => trimmed(format!("{:.3}", s * 100.0)),
        s => trimmed(format!("{:.1}", s * 100.0)),
    };
    format!("{shown} %")
}

/// A name that came from outside, such as that of a file or the `Server` header of a response, with
/// the characters escaped that a terminal would obey: control characters, line ends among them, and
/// those which change the direction of text.
///
/// ```
/// assert_eq!(headway_base::format::printable("a\x1b[31m\n"), r"a\x1b[31m\n");
/// ```
pub fn printable(name: &str) -> Cow<'_, str> {
    match name.contains(is_obeyed) {
        true => Cow::Owned(escape(name)),
        false => Cow::Borrowed(name),
    }
}

/// A whole text of ours that may contain names from outside: as [`printable`], except that line ends
/// stay, and the sequences for bold and colours (SGR), which only change how the text looks.
///
/// ```
/// let text = "\x1b[1mname\x1b[0m\n\x1b]0;title\x07";
/// assert_eq!(headway_base::format::printable_text(text), "\x1b[1mname\x1b[0m\n\\x1b]0;title\\x07");
/// ```
pub fn printable_text(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && is_obeyed(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c| c != '\n' && is_obeyed(c)) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length =
            sgr_bytes(rest).unwrap_or_else(|| rest.chars().next().map_or(0, char::len_utf8));
        let (found, after) = rest.split_at(length);
        match sgr_bytes(found) {
            Some(_) => out.push_str(found),
            None => out.push_str(&escape(found)),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The length of the sequence for bold or a colour that the text begins with: `ESC [ 1 ; 31 m`.
fn sgr_bytes(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[end..].starts_with('m').then_some(end + 3)
}

/// Whether a terminal does something other than show it (ECMA-48, Unicode annex 9).
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        // Writing to a String cannot fail.
        let _ = match character {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)),
            c if is_obeyed(c) => write!(out, "\\u{{{:x}}}", u32::from(c)),
            c => out.write_char(c),
        };
    }
    out
}

/// Three significant digits, whole numbers from 100 on: `0.25`, `12.3`, `512`.
///
/// ```
/// assert_eq!(headway_base::format::digits(12.34), "12.3");
/// ```
pub fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A decimal number without the zeros at its end: `2.50` becomes `2.5`, `100` stays.
///
/// ```
/// assert_eq!(headway_base::format::trimmed("2.50".into()), "2.5");
/// ```
pub fn trimmed(number: String) -> String {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.').into()
}

/// A value in the largest unit of a list in which it is at least 1, rounded to three digits.
///
/// ```
/// let units = [(1.0, "bit/s"), (1e3, "kbit/s")];
/// assert_eq!(headway_base::format::scaled(400_000.0, &units), "400 kbit/s");
/// ```
pub fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |(factor, _): &&(f64, &str)| value.abs() / factor >= 0.9995;
    let found = units.iter().rev().find(fits).or(units.first());
    let (factor, unit) = found.copied().unwrap_or((1.0, ""));
    format!("{} {unit}", digits(value / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_the_fitting_unit_when_it_spans_orders_of_magnitude() {
        let cases = [
            (0.0, "0 s"),
            (850.0, "850 ns"),
            (999.6, "1.00 µs"),
            (12_340.0, "12.3 µs"),
            (999_499.0, "999 µs"),
            (999_600.0, "1.00 ms"),
            (1_234_000.0, "1.23 ms"),
            (-2_500_000.0, "-2.50 ms"),
            (2e9, "2.00 s"),
            (125e9, "125 s"),
            (f64::NAN, "–"),
        ];
        for (ns, shown) in cases {
            assert_eq!(time_ns(ns), shown, "{ns}");
        }
        assert_eq!(time_us(1_234.0), "1.23 ms");
    }

    #[test]
    fn duration_has_minutes_when_it_is_long() {
        let cases = [
            (0.2, "0.2 s"),
            (0.25, "0.25 s"),
            (10.0, "10 s"),
            (1.5, "1.5 s"),
            (125.0, "2 min 5 s"),
            (180.0, "3 min"),
        ];
        for (seconds, shown) in cases {
            assert_eq!(duration(seconds), shown, "{seconds}");
        }
    }

    #[test]
    fn bytes_have_the_fitting_unit_when_they_grow() {
        let cases = [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.00 kB"),
            (5120.0, "5.12 kB"),
            (12_345_678.0, "12.3 MB"),
            (999_960.0, "1.00 MB"),
            (5e8, "500 MB"),
            (2.5e15, "2500 TB"),
        ];
        for (value, shown) in cases {
            assert_eq!(bytes(value), shown, "{value}");
        }
    }

    #[test]
    fn numbers_have_three_digits_and_grouped_thousands() {
        assert_eq!(
            [0, 999, 1000, 12_345_678].map(count),
            ["0", "999", "1,000", "12,345,678"]
        );
        assert_eq!(
            [0.0, 0.25, 12.3, 512.4, 99_999.6].map(number),
            ["0", "0.25", "12.3", "512", "100,000"]
        );
    }

    #[test]
    fn percent_is_never_zero_or_all_when_the_share_is_neither() {
        let cases = [
            (0.0, "0 %"),
            (1e-7, "<0.001 %"),
            (0.0012, "0.12 %"),
            (0.5, "50 %"),
            (0.123, "12.3 %"),
            (0.9999, "99.99 %"),
            (0.999_999, ">99.999 %"),
            (1.0, "100 %"),
            (1.5, "150 %"),
        ];
        for (share, shown) in cases {
            assert_eq!(percent(share), shown, "{share}");
        }
    }

    #[test]
    fn control_characters_are_escaped_in_names_from_outside() {
        assert_eq!(
            printable("a\x1b[31m\u{9b}\n\t\r\x7f\u{202e}b é"),
            r"a\x1b[31m\u{9b}\n\t\r\x7f\u{202e}b é"
        );
        assert!(matches!(printable("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn text_keeps_its_lines_and_colours_and_nothing_else() {
        let shown = [
            ("a\nb\n", "a\nb\n"),
            ("\x1b[1;31mred\x1b[0m é\n", "\x1b[1;31mred\x1b[0m é\n"),
            ("\x1b[2J\x1b]0;t\x07", r"\x1b[2J\x1b]0;t\x07"),
            ("\x1b[", r"\x1b["),
            ("\x1b[31", r"\x1b[31"),
            ("\x1b\x1b[m\u{9b}31m\r", "\\x1b\x1b[m\\u{9b}31m\\r"),
        ];
        for (text, expected) in shown {
            assert_eq!(printable_text(text), expected, "{text:?}");
        }
    }
}
