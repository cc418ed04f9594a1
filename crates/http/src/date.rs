//! HTTP dates: from seconds since 1970 to `Sun, 06 Nov 1994 08:49:37 GMT` and back.
//!
//! Formatting is our own, into a fixed array, because every response carries one or two dates.
//! Parsing uses `httpdate` and accepts all three forms of RFC 9110 section 5.6.7. Times outside
//! 1970–9999 are clamped when written and rejected when read.

use std::time::UNIX_EPOCH;

/// The length of an IMF-fixdate in bytes.
pub const DATE_BYTES: usize = 29;

/// The last second of the year 9999, the last one the format can express.
const SECONDS_MAX: i64 = 253_402_300_799;
const SECONDS_PER_DAY: i64 = 86_400;

const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Formats a time as IMF-fixdate.
///
/// ```
/// assert_eq!(&headway_http::date::format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
pub fn format(unix_seconds: i64) -> [u8; DATE_BYTES] {
    let seconds = unix_seconds.clamp(0, SECONDS_MAX);
    let days = seconds / SECONDS_PER_DAY;
    let second_of_day = seconds % SECONDS_PER_DAY;
    let (year, month, day) = civil(days);
    let mut out = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    out[0..3].copy_from_slice(DAYS[(days % 7) as usize]);
    two_digits(&mut out[5..7], day);
    out[8..11].copy_from_slice(MONTHS[(month - 1) as usize]);
    two_digits(&mut out[12..14], year / 100);
    two_digits(&mut out[14..16], year % 100);
    two_digits(&mut out[17..19], second_of_day / 3600);
    two_digits(&mut out[20..22], second_of_day / 60 % 60);
    two_digits(&mut out[23..25], second_of_day % 60);
    out
}

/// Parses a date in any of the three forms; `None` if it is malformed or before 1970.
///
/// ```
/// use headway_http::date::parse;
/// assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
/// assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
/// assert_eq!(parse(b"yesterday"), None);
/// ```
pub fn parse(field: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(field).ok()?;
    let instant = httpdate::parse_http_date(text).ok()?;
    let since_epoch = instant.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since_epoch.as_secs()).ok()
}

/// The current date as text, formatted once per second instead of once per response.
///
/// The caller passes the time; a step backwards is handled like any other change.
///
/// ```
/// use headway_http::date::DateCache;
/// let mut cache = DateCache::new(0);
/// assert_eq!(cache.at(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
#[derive(Clone, Debug)]
pub struct DateCache {
    unix_seconds: i64,
    text: [u8; DATE_BYTES],
}

impl DateCache {
    /// A cache that holds this time.
    pub fn new(unix_seconds: i64) -> DateCache {
        DateCache {
            unix_seconds,
            text: format(unix_seconds),
        }
    }

    /// The text of this time.
    pub fn at(&mut self, unix_seconds: i64) -> &[u8; DATE_BYTES] {
        if self.unix_seconds != unix_seconds {
            *self = DateCache::new(unix_seconds);
        }
        &self.text
    }
}

/// Year, month and day of a day number, in the proleptic Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year and the start of each
/// month is a linear function; 400 years are a whole number of days.
fn civil(days_since_1970: i64) -> (i64, i64, i64) {
    const DAYS_PER_400_YEARS: i64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days_since_1970 + 719_468;
    let era = days / DAYS_PER_400_YEARS;
    let day_of_era = days % DAYS_PER_400_YEARS;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

fn two_digits(out: &mut [u8], number: i64) {
    out[0] = b'0' + (number / 10) as u8;
    out[1] = b'0' + (number % 10) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn date_is_parsed_when_it_has_any_of_the_three_forms() {
        for form in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(form.as_bytes()), Some(784_111_777), "{form}");
        }
    }

    #[test]
    fn malformed_date_is_rejected() {
        for form in [
            "",
            "0",
            "yesterday",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Thu, 01 Jan 1969 00:00:00 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(form.as_bytes()), None, "{form}");
        }
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GM\xff"), None);
    }

    #[test]
    fn date_is_clamped_when_the_format_cannot_express_it() {
        assert_eq!(&format(i64::MIN), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&format(i64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn date_cache_is_updated_when_the_second_changes() {
        let mut cache = DateCache::new(0);
        assert_eq!(cache.at(0), &format(0));
        assert_eq!(cache.at(951_782_400), b"Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(cache.at(1), &format(1));
    }

    proptest! {
        #[test]
        fn formatted_date_agrees_with_httpdate(seconds in 0..=SECONDS_MAX) {
            let theirs = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds as u64));
            let ours = format(seconds);
            prop_assert_eq!(&ours[..], theirs.as_bytes());
            prop_assert_eq!(parse(&ours), Some(seconds));
        }
    }
}
