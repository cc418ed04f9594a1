//! Schedules of offered load: `1000:10s,2000:10s,2000-4000:30s` is two steps and a ramp.

use super::units::{Rate, Time};
use std::fmt;
use std::str::FromStr;

/// Steps and ramps, one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct RateSchedule(pub Vec<RateStep>);

/// A length of time with a constant rate, or an even change from one rate to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateStep {
    /// Requests per second at the beginning.
    pub from: f64,
    /// Requests per second at the end; equal to `from` for a step.
    pub to: f64,
    /// Length of the step.
    pub length: std::time::Duration,
}

/// A list longer than this was not meant.
const STEPS_MAX: usize = 1000;

impl RateSchedule {
    /// The length of all steps together.
    pub(crate) fn length(&self) -> std::time::Duration {
        self.0.iter().map(|step| step.length).sum()
    }

    /// The requests that the whole schedule intends, on average.
    pub(crate) fn requests(&self) -> f64 {
        let area = |one: &RateStep| (one.from + one.to) / 2.0 * one.length.as_secs_f64();
        self.0.iter().map(area).sum()
    }
}

impl FromStr for RateSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<RateSchedule, String> {
        let steps: Result<Vec<RateStep>, String> = text.split(',').map(rate_step).collect();
        let steps = steps.map_err(|error| format!("schedule `{text}`: {error}"))?;
        match steps.len() > STEPS_MAX {
            true => Err(format!("a schedule has at most {STEPS_MAX} parts")),
            false => Ok(RateSchedule(steps)),
        }
    }
}

impl fmt::Display for RateSchedule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, one) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(out, "{comma}{}", one.from)?;
            if one.from != one.to {
                write!(out, "-{}", one.to)?;
            }
            write!(out, ":{}", Time(one.length))?;
        }
        Ok(())
    }
}

fn rate_step(text: &str) -> Result<RateStep, String> {
    let form = "write RATE:TIME or FROM-TO:TIME, for example 1000:10s,1000-4000:30s";
    let (rates, length) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` has no time; {form}"))?;
    let Time(length) = length.trim().parse()?;
    if length.is_zero() {
        return Err(format!("`{text}` lasts no time at all; {form}"));
    }
    let (from, to) = match rates.split_once('-') {
        Some((from, to)) => (rate_or_zero(from)?, rate_or_zero(to)?),
        None => {
            let Rate(rate) = rates.trim().parse()?;
            (rate, rate)
        }
    };
    match from == 0.0 && to == 0.0 {
        true => Err(format!("`{text}` sends nothing; {form}")),
        false => Ok(RateStep { from, to, length }),
    }
}

/// A ramp may begin or end at nothing, a step may not.
fn rate_or_zero(text: &str) -> Result<f64, String> {
    match text.trim() {
        "0" => Ok(0.0),
        other => other.parse().map(|Rate(rate)| rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn schedule_has_steps_and_ramps_when_parsed() {
        let word: RateSchedule = "1000:10s, 2k:500ms,0-4000:30s".parse().expect("a schedule");
        let step = |from, to, ms| RateStep {
            from,
            to,
            length: Duration::from_millis(ms),
        };
        let expected = [
            step(1000.0, 1000.0, 10_000),
            step(2000.0, 2000.0, 500),
            step(0.0, 4000.0, 30_000),
        ];
        assert_eq!(word.0, expected);
        assert_eq!(word.length(), Duration::from_millis(40_500));
        assert_eq!(word.requests(), 10_000.0 + 1_000.0 + 60_000.0);
        assert_eq!(word.to_string(), "1000:10s,2000:500ms,0-4000:30s");
    }

    #[test]
    fn reason_is_given_when_a_schedule_is_wrong() {
        let cases = [
            ("", "no time"),
            ("1000", "no time"),
            ("1000:", "not a time"),
            ("0:10s", "above 0"),
            ("-5:10s", "not a rate"),
            ("0-0:10s", "sends nothing"),
            ("10:0s", "lasts no time"),
            ("10:1s,,", "no time"),
        ];
        for (text, part) in cases {
            let error = text.parse::<RateSchedule>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
