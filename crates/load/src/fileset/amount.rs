//! Numbers of bytes as people write them: `1.5GB`, `500 MB`, `64KiB`, `4096`.
//!
//! Units of 1000 are written `kB`, `MB`, `GB`, `TB`, those of 1024 have the `i`. Whole numbers all
//! the way, so that a size means the same set on every machine.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub u64);

const UNITS: [(&str, u64); 12] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// More decimals than any unit has room for are an error.
const DECIMALS_MAX: usize = 15;

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Amount, String> {
        let wrong = || {
            format!(
                "`{text}` is not a size; write bytes, or a number and kB, MB, GB, TB, KiB, MiB, GiB: 1.5GB"
            )
        };
        let bytes = parse(text.trim()).ok_or_else(wrong)?;
        u64::try_from(bytes)
            .map(Amount)
            .map_err(|_| format!("`{text}` is larger than any file system"))
    }
}

/// `None` when it is not a size at all.
fn parse(text: &str) -> Option<u128> {
    let end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || decimals.len() > DECIMALS_MAX || whole.len() > 20 {
        return None;
    }
    let digits: u128 = format!("{whole}{decimals}").parse().ok()?;
    // 35 digits times 2^40 need not fit; the bound, divided, is still larger than anything that is
    // accepted.
    let scaled = digits.saturating_mul(u128::from(*factor));
    Some(scaled / 10_u128.pow(decimals.len() as u32))
}

impl fmt::Display for Amount {
    /// Three digits that count: `5.18 MB`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, factor) = UNITS
            .iter()
            .rev()
            .filter(|(name, _)| !name.contains('i') && *name != "KB" && !name.is_empty())
            .find(|(_, factor)| self.0 >= *factor)
            .unwrap_or(&UNITS[1]);
        let value = self.0 as f64 / *factor as f64;
        let decimals = match value {
            _ if *factor == 1 => 0,
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        write!(out, "{value:.decimals$} {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_parsed_with_usual_units() {
        for (text, bytes) in [
            ("1.5GB", 1_500_000_000),
            ("4096", 4096),
            ("0", 0),
            ("64KiB", 65_536),
            ("0.5 GiB", 1 << 29),
            ("3.22MB", 3_220_000),
            ("1kB", 1000),
            ("1.GB", 1_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Amount(bytes)), "{text}");
        }
    }

    #[test]
    fn size_is_an_error_when_it_is_malformed_or_too_large() {
        for text in [
            "", "GB", "-5", "-5GB", "1,5GB", "1.5.5", "x", "1e9", "1 XB", ".5GB", "1gb",
        ] {
            let error = text.parse::<Amount>().unwrap_err();
            assert!(error.contains("is not a size"), "{text}: {error}");
        }
        for text in [
            "99999999999GB",
            "18446744073709551616",
            "99999999999999999999.999999999999999TiB",
        ] {
            let error = text.parse::<Amount>().unwrap_err();
            assert!(error.contains("larger than any"), "{text}: {error}");
        }
    }

    #[test]
    fn size_is_printed_with_a_short_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (5_177_344, "5.18 MB"),
            (1_500_000_000, "1.50 GB"),
            (138_280_000, "138 MB"),
            (64_639_000, "64.6 MB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(Amount(bytes).to_string(), text);
        }
    }
}
