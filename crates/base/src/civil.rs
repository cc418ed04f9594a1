//! Dates and times in UTC as log lines have them.

use std::fmt::{self, Display};

/// A date and time in UTC; displays as `hh:mm:ss`.
///
/// ```
/// use headway_base::civil::{Civil, iso_ms};
///
/// let leap_day = Civil::from_unix(951_782_400);
/// assert_eq!((leap_day.year, leap_day.month, leap_day.day), (2000, 2, 29));
/// assert_eq!(iso_ms(971_186_136_042).to_string(), "2000-10-10T13:55:36.042Z");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// The year.
    pub year: u64,
    /// The month, from 1.
    pub month: u8,
    /// The day, from 1.
    pub day: u8,
    /// The second of the day, from 0.
    pub second_of_day: u64,
}

impl Civil {
    /// The time of this second since 1970.
    ///
    /// The Gregorian calendar is counted in years that begin in March, so that the leap day is last.
    pub fn from_unix(seconds: u64) -> Civil {
        let days = seconds / 86_400 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let leaps = day_of_era / 1460 + day_of_era / 146_096;
        let year_of_era = (day_of_era + day_of_era / 36_524 - leaps) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = (day_of_year - (153 * march_month + 2) / 5 + 1) as u8;
        let month = (if march_month < 10 {
            march_month + 3
        } else {
            march_month - 9
        }) as u8;
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Civil {
            year,
            month,
            day,
            second_of_day: seconds % 86_400,
        }
    }
}

impl Display for Civil {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.second_of_day;
        write!(
            out,
            "{:02}:{:02}:{:02}",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// A time in milliseconds since 1970, as ISO 8601 has it.
pub fn iso_ms(time_ms: u64) -> impl Display {
    fmt::from_fn(move |out| {
        let time = Civil::from_unix(time_ms / 1000);
        let (year, month, day) = (time.year, time.month, time.day);
        let milliseconds = time_ms % 1000;
        write!(
            out,
            "{year:04}-{month:02}-{day:02}T{time}.{milliseconds:03}Z"
        )
    })
}
