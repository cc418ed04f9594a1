//! Times, rates, bandwidths and lists: `500ms`, `20000`, `20k`, `400kbit`, `20,40,60`.
//!
//! A bare number where a time is read is a number of seconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of time: `10` (seconds), `500us`, `250ms`, `1.5s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// Requests per second, more than 0: `2000`, `2k`, `0.5`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// Bits per second, more than 0: `400kbit`, `10Mbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bandwidth {
    /// Bits per second.
    pub bits_per_s: u64,
}

/// Percentages of a capacity, in the order given: `20,40,60`. Above 100 is overload, and allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares(pub Vec<f64>);

/// How many of something, 1 or more: `5000`, `5k`, `2M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

/// The number of requests per connection: `5`, or `unlimited` for as many as the server allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerConnection(pub Option<u32>);

/// CPUs by number, as taskset writes them: `3`, `0,2`, `2-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

/// Larger values are typing errors: a year, and more requests per second than a core has cycles
/// for.
const TIME_MAX_S: f64 = 366.0 * 86_400.0;
const RATE_MAX: f64 = 1e9;
const SHARE_MAX_PERCENT: f64 = 10_000.0;
const CPU_MAX: usize = 4096;

const TIMES: &[(&str, f64)] = &[
    ("", 1.0),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];
const RATES: &[(&str, f64)] = &[("", 1.0), ("/s", 1.0), ("k", 1e3), ("k/s", 1e3), ("M", 1e6)];
const COUNTS: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("M", 1e6)];
/// Beyond, a floating-point number does not hold every whole one.
const COUNT_MAX: f64 = 9e15;
const BANDWIDTHS: &[(&str, f64)] = &[
    ("bit", 1.0),
    ("kbit", 1e3),
    ("Mbit", 1e6),
    ("Gbit", 1e9),
    ("bit/s", 1.0),
    ("kbit/s", 1e3),
    ("Mbit/s", 1e6),
    ("Gbit/s", 1e9),
];

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        match scaled(text, TIMES) {
            Some(seconds) if seconds <= TIME_MAX_S => Ok(Time(Duration::from_secs_f64(seconds))),
            Some(_) => Err(format!("`{text}` is more than a year")),
            None => Err(format!(
                "`{text}` is not a time; write seconds (10), or a number and us, ms, s, m or h: 10s, 250ms"
            )),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            0.0 => out.write_str("0"),
            s if s < 1e-3 => write!(out, "{}us", self.0.as_micros()),
            s if s < 1.0 => write!(out, "{}ms", seconds * 1e3),
            _ => write!(out, "{seconds}s"),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        match scaled(text, RATES) {
            Some(rate) if rate > 0.0 && rate <= RATE_MAX => Ok(Rate(rate)),
            Some(rate) if rate > 0.0 => Err(format!(
                "`{text}` is more than {RATE_MAX} requests per second"
            )),
            Some(_) => Err(format!(
                "`{text}`: a rate is above 0; to send as fast as the server answers, leave --rate out"
            )),
            None => Err(format!(
                "`{text}` is not a rate; write requests per second: 2000, 2k or 0.5"
            )),
        }
    }
}

impl FromStr for Bandwidth {
    type Err = String;

    fn from_str(text: &str) -> Result<Bandwidth, String> {
        match scaled(text, BANDWIDTHS) {
            Some(bits) if (8.0..=1e15).contains(&bits) => Ok(Bandwidth {
                bits_per_s: bits as u64,
            }),
            Some(_) => Err(format!(
                "`{text}`: a bandwidth has to be 8 bit/s, which is a byte, or more"
            )),
            None => Err(format!(
                "`{text}` is not a bandwidth; write a number and bit, kbit, Mbit or Gbit: 400kbit"
            )),
        }
    }
}

impl FromStr for Shares {
    type Err = String;

    fn from_str(text: &str) -> Result<Shares, String> {
        let wrong = || {
            format!(
                "`{text}` is not a list of loads; write percentages of the capacity: 20,40,60,80,90,95"
            )
        };
        let mut shares = Vec::new();
        for part in text.split(',') {
            let part = part.trim().trim_end_matches('%');
            let percent = number(part).ok_or_else(wrong)?;
            if percent <= 0.0 || percent > SHARE_MAX_PERCENT {
                return Err(format!(
                    "`{part}` in `{text}`: a load is a percentage of the capacity, above 0 and at most {SHARE_MAX_PERCENT}"
                ));
            }
            let share = percent / 100.0;
            if shares.contains(&share) {
                return Err(format!(
                    "`{text}` has {part} % twice; to repeat every point use --repeats"
                ));
            }
            shares.push(share);
        }
        Ok(Shares(shares))
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        match scaled(text, COUNTS) {
            Some(number) if number >= 1.0 && number.fract() == 0.0 && number <= COUNT_MAX => {
                Ok(Count(number as u64))
            }
            _ => Err(format!(
                "`{text}` is not a whole number, 1 or more; write 5000, 5k or 2M"
            )),
        }
    }
}

impl Count {
    /// The number, where there cannot be more than a `u32` has room for; the engine's own bounds
    /// are lower.
    pub fn as_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl FromStr for PerConnection {
    type Err = String;

    fn from_str(text: &str) -> Result<PerConnection, String> {
        match text.parse() {
            _ if text == "unlimited" => Ok(PerConnection(None)),
            Ok(0) => Err(
                "a connection carries 1 request or more; write `unlimited` for no limit".to_owned(),
            ),
            Ok(number) => Ok(PerConnection(Some(number))),
            Err(_) => Err(format!(
                "`{text}` is not a number of requests; write 5 or `unlimited`"
            )),
        }
    }
}

impl fmt::Display for PerConnection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(out),
            None => out.write_str("unlimited"),
        }
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Cpus, String> {
        let wrong =
            || format!("`{text}` is not a list of CPUs; write their numbers: 3 or 0,2 or 2-5");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| wrong())?;
            let last: usize = last.trim().parse().map_err(|_| wrong())?;
            if first > last || last > CPU_MAX {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(Cpus(cpus))
    }
}

/// A number and one of the units, multiplied; `None` when it is not that.
pub(super) fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    Some(number(digits)? * factor)
}

/// Digits with at most one point. `f64::from_str` alone would accept `inf`, `1e9` and a sign.
fn number(text: &str) -> Option<f64> {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    match plain && text.bytes().any(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_exact_with_and_without_a_unit() {
        let cases = [
            ("0", 0),
            ("10", 10_000_000),
            ("0.5", 500_000),
            ("500us", 500),
            ("250ms", 250_000),
            ("1.5s", 1_500_000),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
        ];
        for (text, micros) in cases {
            let Time(time) = text.parse().expect(text);
            assert_eq!(time, Duration::from_micros(micros), "{text}");
        }
    }

    #[test]
    fn time_is_an_error_when_it_has_a_sign_or_an_unknown_unit() {
        for text in [
            "",
            "s",
            "-1s",
            "1e3s",
            "inf",
            "1.2.3s",
            "10 parsecs",
            "400d",
        ] {
            let error = text.parse::<Time>().expect_err(text);
            assert!(error.contains("10s, 250ms"), "{error}");
        }
        assert!("9999h".parse::<Time>().unwrap_err().contains("a year"));
    }

    #[test]
    fn time_prints_as_it_parses_when_it_is_round() {
        for text in ["0", "500us", "250ms", "1.5s", "120s"] {
            assert_eq!(text.parse::<Time>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn rate_is_an_error_when_it_is_zero_or_negative() {
        assert_eq!("20k".parse(), Ok(Rate(20_000.0)));
        assert_eq!("0.5".parse(), Ok(Rate(0.5)));
        assert!(
            "0".parse::<Rate>()
                .unwrap_err()
                .contains("leave --rate out")
        );
        assert!("-5".parse::<Rate>().unwrap_err().contains("not a rate"));
        assert!("2000000000".parse::<Rate>().is_err());
    }

    #[test]
    fn bandwidth_needs_its_unit_when_parsed() {
        let bits_per_s = 400_000;
        assert_eq!("400kbit".parse(), Ok(Bandwidth { bits_per_s }));
        assert!("400".parse::<Bandwidth>().is_err());
        for text in ["0kbit", "7bit"] {
            let error = text.parse::<Bandwidth>().expect_err(text);
            assert!(error.contains("a byte, or more"), "{error}");
        }
        assert!("8bit".parse::<Bandwidth>().is_ok());
    }

    #[test]
    fn loads_are_shares_when_percentages_are_given() {
        assert_eq!("20,40%,150".parse(), Ok(Shares(vec![0.2, 0.4, 1.5])));
        assert!("".parse::<Shares>().is_err());
        assert!("20,0".parse::<Shares>().unwrap_err().contains("above 0"));
        let error = "99999999999".parse::<Shares>().unwrap_err();
        assert!(error.contains("at most 10000"), "{error}");
        assert!("20,-5".parse::<Shares>().is_err());
        assert!("20,20".parse::<Shares>().unwrap_err().contains("--repeats"));
    }

    #[test]
    fn requests_per_connection_are_an_error_when_zero() {
        assert_eq!("5".parse(), Ok(PerConnection(Some(5))));
        assert_eq!("unlimited".parse(), Ok(PerConnection(None)));
        assert!(
            "0".parse::<PerConnection>()
                .unwrap_err()
                .contains("unlimited")
        );
        assert!("-1".parse::<PerConnection>().is_err());
    }

    #[test]
    fn count_is_an_error_when_it_is_not_a_whole_number_above_zero() {
        assert_eq!("5k".parse(), Ok(Count(5000)));
        assert_eq!("1.5k".parse(), Ok(Count(1500)));
        for text in ["0", "-1", "1.5", "", "many", "1e3"] {
            let error = text.parse::<Count>().expect_err(text);
            assert!(error.contains("1 or more"), "{error}");
        }
        assert_eq!(Count(1 << 40).as_u32(), u32::MAX);
    }

    #[test]
    fn cpu_ranges_are_expanded() {
        assert_eq!("0,2-4".parse(), Ok(Cpus(vec![0, 2, 3, 4])));
        assert!("4-2".parse::<Cpus>().is_err());
        assert!("one".parse::<Cpus>().is_err());
    }
}
