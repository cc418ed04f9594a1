//! Numbers as a reader wants them: fitting units, three significant digits, digits in groups.
//!
//! A number and its unit are held together by a narrow no-break space (U+202F), as are groups of
//! digits.

const GAP: char = '\u{202f}';

/// What stands where there is no number.
pub(crate) const NONE: &str = "–";

/// A length of time given in nanoseconds: `850 ns`, `12.3 µs`, `1.23 ms`, `2.00 s`, `125 s`.
pub(crate) fn time(ns: f64) -> String {
    if !ns.is_finite() {
        return NONE.into();
    }
    if ns == 0.0 {
        return format!("0{GAP}s");
    }
    scaled(ns, &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")])
}

/// A number of bytes in decimal units: `512 B`, `5.12 kB`, `1.50 GB`.
pub(crate) fn bytes(count: f64) -> String {
    if !count.is_finite() {
        return NONE.into();
    }
    if count.abs() < 1000.0 {
        return format!("{}{GAP}B", digits(count));
    }
    let units = [(1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")];
    scaled(count, &units)
}

/// A plain number with k, M, G: `950`, `12.3k`, `1.20M`; for axes and labels.
pub(crate) fn plain(value: f64) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    let units = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];
    scaled(value, &units).replace(GAP, "")
}

/// A rate in bits.
pub(crate) fn bit_rate(bits_per_s: f64) -> String {
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

/// A share from 0 to 1 as a percentage that never rounds something to nothing nor a part to the
/// whole.
pub(crate) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.into();
    }
    let shown = match share {
        0.0 => "0".into(),
        1.0 => "100".into(),
        s if s > 0.0 && s < 0.000_01 => "<0.001".into(),
        s if s > 0.999_99 && s < 1.0 => ">99.999".into(),
        s if s.abs() < 0.01 || s > 0.99 => trimmed(format!("{:.3}", s * 100.0)),
        s => format!("{:.1}", s * 100.0),
    };
    format!("{shown}{GAP}%")
}

/// A whole number, its digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(GAP);
        }
        out.push(digit);
    }
    out
}

/// A rate or another measured number: three significant digits below 1000, grouped whole digits
/// above.
pub(crate) fn measured(value: f64) -> String {
    match value {
        v if !v.is_finite() => NONE.into(),
        v if v.abs() >= 999.5 => grouped(v.round() as u64),
        v => digits(v),
    }
}

/// `1 request`, `2 requests`, with grouped digits.
pub(crate) fn counted(number: u64, one: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {one}{ending}", grouped(number))
}

/// A tick's label: like its formatter says, but without the zeros that only pretend precision.
pub(crate) fn tick(label: &str) -> String {
    let end = label
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-')
        .unwrap_or(label.len());
    let (number, unit) = label.split_at(end);
    format!("{}{unit}", trimmed(number.into()))
}

fn trimmed(number: String) -> String {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.').into()
}

/// The largest unit in which the value, rounded to three digits, is at least 1.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |(factor, _): &&(f64, &str)| value.abs() / factor >= 0.9995;
    let (factor, unit) = units.iter().rev().find(fits).unwrap_or(&units[0]);
    format!("{}{GAP}{unit}", digits(value / factor))
}

/// Three significant digits, whole numbers from 100 on.
fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ascii(text: String) -> String {
        text.replace(GAP, " ")
    }

    #[test]
    fn times_get_the_unit_that_fits_when_they_span_orders_of_magnitude() {
        let cases = [
            (0.0, "0 s"),
            (850.0, "850 ns"),
            (999.6, "1.00 µs"),
            (12_340.0, "12.3 µs"),
            (999_499.0, "999 µs"),
            (999_600.0, "1.00 ms"),
            (1_234_000.0, "1.23 ms"),
            (2e9, "2.00 s"),
            (125e9, "125 s"),
            (f64::NAN, "–"),
        ];
        for (ns, shown) in cases {
            assert_eq!(ascii(time(ns)), shown, "{ns}");
        }
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
        assert_eq!(ascii(grouped(1_234_567)), "1 234 567");
        assert_eq!(ascii(measured(12_345.6)), "12 346");
        assert_eq!(measured(12.345), "12.3");
        assert_eq!(counted(1, "error"), "1 error");
        assert_eq!(counted(0, "error"), "0 errors");
    }

    #[test]
    fn a_share_is_never_rounded_to_none_or_all_when_it_is_neither() {
        assert_eq!(ascii(percent(0.0)), "0 %");
        assert_eq!(ascii(percent(1e-7)), "<0.001 %");
        assert_eq!(ascii(percent(0.0012)), "0.12 %");
        assert_eq!(ascii(percent(0.5)), "50.0 %");
        assert_eq!(ascii(percent(0.9999)), "99.99 %");
        assert_eq!(ascii(percent(0.999_999)), ">99.999 %");
        assert_eq!(ascii(percent(1.0)), "100 %");
    }

    #[test]
    fn ticks_lose_zeros_that_say_nothing_when_they_are_round() {
        assert_eq!(tick("1.00\u{202f}ms"), "1\u{202f}ms");
        assert_eq!(tick("2.50k"), "2.5k");
        assert_eq!(tick("100"), "100");
        assert_eq!(tick("0.20"), "0.2");
    }
}
