//! A profile as text: a line per load, over its repeats.

use std::fmt::Write;

use super::capacity_text;
use headway_latency::format::{count, number, percent, time_us};
use headway_latency::run::description::{ClientInfo, Point, Verdict};
use headway_latency::{OpenError, Run};

/// Student's t for a 95 % interval, by degrees of freedom from 1; beyond the table the normal
/// distribution's value.
const STUDENT_T: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];
const NORMAL_T: f64 = 1.96;

/// One load, over its repeats.
#[derive(Clone, Debug, Default)]
struct Load {
    relative: f64,
    offered_rps: f64,
    achieved_rps: Vec<f64>,
    mean_us: Vec<f64>,
    p50_us: Vec<f64>,
    p95_us: Vec<f64>,
    p99_us: Vec<f64>,
    requests: u64,
    errors: u64,
    verdict: Verdict,
    reason: Option<String>,
}

/// The table of a profile: capacity, then a line a load. Ends with a line end.
///
/// # Errors
/// A point that is marked as done cannot be read.
pub fn render(profile: &Run) -> Result<String, OpenError> {
    let mut loads: Vec<Load> = Vec::new();
    let info = profile.description().profile.clone().unwrap_or_default();
    // The rates of a search are no loads; the first line says what came of it.
    let done = info
        .points
        .iter()
        .filter(|point| point.done && !point.is_of_search());
    for point in done {
        let run = Run::open(profile.path().join(&point.directory))?;
        add(&mut loads, point, &run);
    }
    let mut out = String::new();
    if let Some(capacity) = capacity_text(&info) {
        let _ = writeln!(out, "{}", capacity.replace("; ", "\n"));
    }
    let _ = writeln!(
        out,
        "\n    load  offered/s answered/s      mean       p50       p95       p99    errors  verdict"
    );
    loads.iter().for_each(|load| line(&mut out, load));
    if loads.iter().any(|load| load.mean_us.len() > 1) {
        out += "\nlatency from the intended start; ± is the 95 % confidence interval of the mean over the repeats\n";
    } else {
        out += "\nlatency from the intended start\n";
    }
    for load in loads.iter().filter(|load| load.reason.is_some()) {
        let reason = load.reason.as_deref().unwrap_or_default();
        let _ = writeln!(out, "{}: {reason}", name(load));
    }
    Ok(out)
}

fn add(loads: &mut Vec<Load>, point: &Point, run: &Run) {
    let index = match loads
        .iter()
        .position(|load| load.relative == point.relative)
    {
        Some(index) => index,
        None => {
            loads.push(Load {
                relative: point.relative,
                ..Load::default()
            });
            loads.len() - 1
        }
    };
    let load = &mut loads[index];
    let summary = run.description().summary.clone().unwrap_or_default();
    load.offered_rps = point.rate_rps;
    load.achieved_rps.push(summary.rate_rps);
    load.mean_us.extend(summary.mean_us);
    load.p50_us.extend(summary.p50_us);
    load.p95_us.extend(summary.p95_us);
    load.p99_us.extend(summary.p99_us);
    load.requests += summary.requests;
    load.errors += summary.errors;
    if let Some(client) = &run.description().client {
        judge(load, client);
    }
}

/// The worst of the repeats stands for the load.
fn judge(load: &mut Load, client: &ClientInfo) {
    if grade(client.verdict) > grade(load.verdict) {
        load.verdict = client.verdict;
        load.reason = client.reasons.first().cloned();
    }
}

fn grade(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Valid => 0,
        Verdict::Suspect => 1,
        Verdict::Invalid => 2,
    }
}

fn name(load: &Load) -> String {
    match load.relative {
        0.0 => "closed".to_owned(),
        relative => percent(relative),
    }
}

/// The mean of the repeats, as text.
fn mean_time(of_us: &[f64]) -> String {
    match of_us {
        [] => "–".to_owned(),
        of_us => time_us(mean(of_us)),
    }
}

fn line(out: &mut String, load: &Load) {
    let offered = match load.relative {
        0.0 => "all".to_owned(),
        _ => number(load.offered_rps),
    };
    let verdict = match load.verdict {
        Verdict::Valid => "valid",
        Verdict::Suspect => "suspect",
        Verdict::Invalid => "invalid",
    };
    let _ = write!(
        out,
        "{:>8} {offered:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}  {verdict}",
        name(load),
        number(mean(&load.achieved_rps)),
        mean_time(&load.mean_us),
        mean_time(&load.p50_us),
        mean_time(&load.p95_us),
        mean_time(&load.p99_us),
        count(load.errors),
    );
    if let Some(half) = half_interval(&load.mean_us) {
        let _ = write!(out, "  mean ± {}", time_us(half));
    }
    out.push('\n');
}

fn mean(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        length => values.iter().sum::<f64>() / length as f64,
    }
}

/// Half the 95 % interval of the mean; `None` for fewer than two values, which say nothing of their
/// spread.
fn half_interval(values: &[f64]) -> Option<f64> {
    let freedom = values.len().checked_sub(1).filter(|&freedom| freedom > 0)?;
    let centre = mean(values);
    let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    let error = (squares / freedom as f64 / values.len() as f64).sqrt();
    Some(error * STUDENT_T.get(freedom - 1).copied().unwrap_or(NORMAL_T))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_students_when_there_are_few_repeats() {
        assert_eq!(half_interval(&[5.0]), None);
        assert_eq!(half_interval(&[5.0, 5.0]), Some(0.0));
        // Deviation 1, three values: 4.303 / sqrt(3).
        let half = half_interval(&[1.0, 2.0, 3.0]).expect("three values");
        assert!((half - 2.484).abs() < 0.001, "{half}");
    }

    /// A profile on disk: a closed loop, a load that was measured twice, one that is still to be
    /// done.
    fn profile(directory: &std::path::Path) -> Run {
        use headway_latency::RunDescription;
        use headway_latency::run::description::{Kind, ProfileInfo, Summary};
        let point = |relative, rate_rps, repeat, done| Point {
            relative,
            rate_rps,
            repeat,
            directory: format!("points/{relative:.2}-{repeat}"),
            done,
            of_client: false,
            of_knee: false,
        };
        let points = vec![
            point(0.0, 1000.0, 1, true),
            point(0.5, 500.0, 1, true),
            point(0.5, 500.0, 2, true),
            point(0.9, 900.0, 1, false),
        ];
        for (number, one) in (1..)
            .map(f64::from)
            .zip(points.iter().filter(|one| one.done))
        {
            let description = RunDescription {
                summary: Some(Summary {
                    requests: 100,
                    errors: number as u64,
                    duration_s: 1.0,
                    rate_rps: 100.0 * number,
                    throughput_bytes_per_s: 0.0,
                    mean_us: Some(1000.0 * number),
                    p50_us: Some(10_000.0 * number),
                    p95_us: Some(20_000.0 * number),
                    p99_us: Some(30_000.0 * number),
                }),
                client: Some(ClientInfo {
                    verdict: Verdict::Suspect,
                    reasons: vec![format!("reason {number}")],
                    ..ClientInfo::default()
                }),
                ..RunDescription::default()
            };
            let path = directory.join(&one.directory);
            let writer = headway_latency::RunWriter::create(&path, &description).expect("room");
            writer.finish(&description).expect("room");
        }
        let description = RunDescription {
            kind: Kind::Profile,
            profile: Some(ProfileInfo {
                capacity_rps: Some(1000.0),
                client_bound: None,
                points,
            }),
            ..RunDescription::default()
        };
        headway_latency::run::write_description(directory, &description, false).expect("room");
        Run::open(directory).expect("a profile")
    }

    #[test]
    fn line_has_the_means_of_its_repeats_when_a_load_was_repeated() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = render(&profile(directory.path())).expect("points");
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|line| !line.is_empty())
            .collect();
        // Repeats 2 and 3: the means are of 2.5, half the interval is 12.706 * 0.5.
        let expected = [
            "capacity 1,000 requests/s",
            "load offered/s answered/s mean p50 p95 p99 errors verdict",
            "closed all 100 1.00 ms 10.0 ms 20.0 ms 30.0 ms 1 suspect",
            "50 % 500 250 2.50 ms 25.0 ms 50.0 ms 75.0 ms 5 suspect mean ± 6.35 ms",
            "latency from the intended start; ± is the 95 % confidence interval of the mean over the repeats",
            "closed: reason 1",
            "50 %: reason 2",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn worst_verdict_is_shown_when_those_of_repeats_differ() {
        let mut load = Load::default();
        for (verdict, reason) in [
            (Verdict::Valid, None),
            (Verdict::Suspect, Some("late")),
            (Verdict::Invalid, Some("very late")),
            (Verdict::Suspect, Some("late again")),
            (Verdict::Valid, None),
        ] {
            let client = ClientInfo {
                verdict,
                reasons: reason.into_iter().map(str::to_owned).collect(),
                ..ClientInfo::default()
            };
            judge(&mut load, &client);
        }
        assert_eq!(load.verdict, Verdict::Invalid);
        assert_eq!(load.reason.as_deref(), Some("very late"));
    }
}
