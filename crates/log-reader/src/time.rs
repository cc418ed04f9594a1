//! Times and lengths of time, as logs write them.

const SECOND_NS: u64 = 1_000_000_000;

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Nanoseconds since 1970 of `26/Nov/2026:10:00:01 +0100`, `26/Nov/2026:10:00:01.123`,
/// `2026-11-26T10:00:01.123Z` or a number of seconds.
pub(crate) fn time_ns(text: &[u8]) -> Option<u64> {
    match text.get(2) {
        Some(b'/') => common(text),
        _ if text.get(4) == Some(&b'-') => iso(text),
        _ => scaled_ns(text, SECOND_NS),
    }
}

/// A whole number of at most 18 digits.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    text.iter().try_fold(0, |sum: u64, digit| {
        (digit.is_ascii_digit()).then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

fn common(text: &[u8]) -> Option<u64> {
    let month = MONTHS
        .iter()
        .position(|name| text.get(3..6) == Some(name))? as u64
        + 1;
    let date = (number(text.get(7..11)?)?, month, number(text.get(..2)?)?);
    clock(date, text.get(12..)?)
}

fn iso(text: &[u8]) -> Option<u64> {
    let date = (
        number(text.get(..4)?)?,
        number(text.get(5..7)?)?,
        number(text.get(8..10)?)?,
    );
    clock(date, text.get(11..)?)
}

/// `10:00:01`, perhaps a fraction, perhaps a zone; without one it is UTC.
fn clock((year, month, day): (u64, u64, u64), text: &[u8]) -> Option<u64> {
    let two = |at: usize| number(text.get(at..at + 2)?);
    let (hour, minute, second) = (two(0)?, two(3)?, two(6)?);
    let valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (1970..=9999).contains(&year)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !valid {
        return None;
    }
    let rest = text.get(8..)?;
    let (fraction_ns, zone) = match rest.strip_prefix(b".") {
        None => (0, rest),
        Some(digits) => {
            let end = digits.iter().position(|byte| !byte.is_ascii_digit());
            let (digits, zone) = digits.split_at(end.unwrap_or(digits.len()));
            (fraction(digits)?, zone)
        }
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = (seconds as i64).checked_sub(zone_s(zone.trim_ascii_start())?)?;
    u64::try_from(seconds)
        .ok()?
        .checked_mul(SECOND_NS)?
        .checked_add(fraction_ns)
}

/// Seconds east of UTC.
fn zone_s(zone: &[u8]) -> Option<i64> {
    let (sign, rest) = match zone.split_first() {
        None | Some((b'Z', _)) => return Some(0),
        Some((b'+', rest)) => (1, rest),
        Some((b'-', rest)) => (-1, rest),
        Some(_) => return None,
    };
    let minutes = rest.get(2..)?;
    let minutes = number(minutes.strip_prefix(b":").unwrap_or(minutes).get(..2)?)?;
    Some(sign * (number(rest.get(..2)?)? * 3600 + minutes * 60) as i64)
}

/// Days since 1970 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Nanoseconds of the digits behind a point.
fn fraction(digits: &[u8]) -> Option<u64> {
    let digits = &digits[..digits.len().min(9)];
    if digits.is_empty() {
        return Some(0);
    }
    Some(number(digits)? * 10_u64.pow(9 - digits.len() as u32))
}

/// A decimal number of units, in nanoseconds.
pub(crate) fn scaled_ns(text: &[u8], unit_ns: u64) -> Option<u64> {
    let (whole, digits) = match memchr::memchr(b'.', text) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b""[..]),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let part = u128::from(fraction(digits)?) * u128::from(unit_ns) / u128::from(SECOND_NS);
    number(whole)?
        .checked_mul(unit_ns)?
        .checked_add(part as u64)
}

#[cfg(test)]
mod tests {
    use super::{scaled_ns, time_ns};

    #[test]
    fn times_of_all_servers_are_read() {
        let milliseconds = |text: &str| time_ns(text.as_bytes()).map(|ns| ns / 1_000_000);
        let expected = Some(1_795_687_201_000);
        assert_eq!(milliseconds("26/Nov/2026:10:00:01 +0000"), expected);
        assert_eq!(milliseconds("26/Nov/2026:11:30:01 +0130"), expected);
        assert_eq!(milliseconds("2026-11-26T10:00:01Z"), expected);
        assert_eq!(milliseconds("2026-11-26T05:00:01-05:00"), expected);
        assert_eq!(
            milliseconds("26/Nov/2026:10:00:01.250"),
            Some(1_795_687_201_250)
        );
        assert_eq!(milliseconds("1795687201.25"), Some(1_795_687_201_250));
        assert_eq!(
            milliseconds("29/Feb/2024:00:00:00 +0000"),
            Some(1_709_164_800_000)
        );
    }

    #[test]
    fn what_is_no_time_is_none() {
        let wrong = [
            "",
            "-",
            "26/Foo/2026:10:00:01",
            "26/Nov/2026",
            "2026-13-26T10:00:01Z",
            "2026-11-26T25:00:01Z",
            "26/Nov/2026:10:00:01 ?",
            "12.3.4",
            "99999999999999999999",
        ];
        for text in wrong {
            assert_eq!(time_ns(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn lengths_have_their_unit() {
        assert_eq!(scaled_ns(b"0.005", 1_000_000_000), Some(5_000_000));
        assert_eq!(scaled_ns(b"226", 1_000_000), Some(226_000_000));
        assert_eq!(scaled_ns(b"1.5", 1_000), Some(1_500));
        assert_eq!(scaled_ns(b"-1", 1_000), None);
        assert_eq!(scaled_ns(b"1e3", 1_000), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_a_panic(text: Vec<u8>) {
            let _ = time_ns(&text);
            let _ = scaled_ns(&text, 1_000_000_000);
        }
    }
}
