//! Days and dates of the Gregorian calendar, in UTC.
//!
//! Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".

const DAY_S: i64 = 86_400;
/// Days in 400 years.
const ERA_DAYS: i64 = 146_097;
/// Days from 1 March of year 0 to 1 January 1970.
const EPOCH_DAYS: i64 = 719_468;

/// A time as `2027-02-26 04:05 UTC`.
pub fn shown(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX / 2);
    let days = seconds.div_euclid(DAY_S) + EPOCH_DAYS;
    let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = (shifted + 2) % 12 + 1;
    let year = year + era * 400 + i64::from(month <= 2);
    let minutes = seconds.rem_euclid(DAY_S) / 60;
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02} UTC",
        minutes / 60,
        minutes % 60
    )
}

#[cfg(test)]
mod tests {
    use headway_tls::der::days_from_date;

    use super::*;

    #[test]
    fn dates_are_those_of_date_1() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_795_884_000, "2026-11-28 16:40 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(shown(seconds), text);
        }
    }

    #[test]
    fn day_of_a_date_is_the_date_of_the_day() {
        for day in (0..60_000).step_by(17) {
            let text = shown(day * DAY_S as u64);
            let part = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
            let found = days_from_date(part(0..4), part(5..7), part(8..10));
            assert_eq!(found, day as i64, "{text}");
        }
    }
}
