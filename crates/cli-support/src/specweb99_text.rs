//! What a person reads of a SPECweb99-like run: the score on top, the iterations, then the
//! latencies of each kind of request.
//!
//! Everything comes from `run.json`, so that a run read from its directory prints the same.

use std::fmt::Write;

use headway_latency::RunDescription;
use headway_latency::run::description::Verdict;
use headway_latency::specweb99::{Iteration, KindFigures, LogInfo, SpecWeb99Info, Times};

use headway_latency::format::{count, duration, number, percent, printable};

/// The text; ends with a line end.
pub fn render(description: &RunDescription) -> String {
    let Some(info) = &description.specweb99 else {
        return "this run is not SPECweb99-like\n".to_owned();
    };
    let mut out = headline(info);
    out += "SPECweb99-like and no SPEC result: the rules of docs/research/src/specweb99.md, not a licensed run\n\n";
    facts(&mut out, description, info);
    out.push('\n');
    iterations(&mut out, info);
    if let Some(iteration) = info.median().or(info.iterations.first()) {
        out.push('\n');
        let which = match info.iterations.len() {
            1 => String::new(),
            _ => format!(
                " of the iteration with {} conforming",
                count(iteration.conforming)
            ),
        };
        kinds(
            &mut out,
            &format!("first byte, ms{which}"),
            iteration,
            |kind| kind.first_byte,
        );
        out.push('\n');
        kinds(
            &mut out,
            &format!("response, ms{which}"),
            iteration,
            |kind| kind.response,
        );
    }
    out
}

/// One line: score, share, whether the load is held.
fn headline(info: &SpecWeb99Info) -> String {
    let Some(score) = info.score else {
        return format!(
            "not finished: {} iterations are done\n",
            info.iterations.len()
        );
    };
    let held = match info.held {
        Some(true) => "held",
        _ => "not held",
    };
    let of = count(info.connections);
    let share = percent(score as f64 / info.connections.max(1) as f64);
    let how = match info.iterations.len() {
        1 => "one iteration".to_owned(),
        many => format!("median of {many} iterations"),
    };
    format!(
        "{held}: {} of {of} connections conform ({share}, {how})\n",
        count(score)
    )
}

fn facts(out: &mut String, description: &RunDescription, info: &SpecWeb99Info) {
    let server = description
        .server
        .as_ref()
        .map(|server| server.field.clone());
    let name = description.label.clone().or(server).unwrap_or_default();
    let targets = description.targets.join(" ");
    let named = if name.is_empty() {
        String::new()
    } else {
        format!(" ({})", printable(&name))
    };
    let _ = writeln!(out, "  server     {targets}{named}");
    let _ = writeln!(
        out,
        "  rule       {} kbit/s at most, {} at least, fewer than 1 % errors; {} each, begun over {}",
        number(info.rate_max_bits_per_s as f64 / 1e3),
        number(info.rate_min_bits_per_s / 1e3),
        duration(description.load.duration_s.unwrap_or(0.0)),
        duration(info.ramp_s),
    );
    if info.static_only {
        out.push_str("  mix        static files only, against the rule of 30 % dynamic requests\n");
    }
    if let Some(set) = &description.fileset {
        let rule = if info.data_rule {
            "the rule's size"
        } else {
            "against the rule of 122 + 3.22 N MB"
        };
        let _ = writeln!(
            out,
            "  file set   {}, {rule}",
            headway_latency::format::bytes(set.bytes as f64)
        );
    }
    if let Some(log) = &info.log {
        let _ = writeln!(out, "  log        {}", log_text(log));
    }
}

fn log_text(log: &LogInfo) -> String {
    if let Some(fault) = &log.fault {
        return format!("cannot be believed: {}", printable(fault));
    }
    let records = format!(
        "{} records of {} acknowledged posts",
        count(log.records),
        count(log.acknowledged)
    );
    match log.is_right() {
        true => format!("{records}, in order"),
        false => format!(
            "{records}: {} missing, {} out of order, {} unknown",
            count(log.missing),
            count(log.out_of_order),
            count(log.unknown)
        ),
    }
}

fn iterations(out: &mut String, info: &SpecWeb99Info) {
    let heads = [
        "conforming",
        "share",
        "mean kbit/s",
        "least",
        "requests",
        "requests/s",
        "errors",
        "client",
    ];
    let _ = write!(out, "  iteration");
    out.extend(heads.map(|head| format!("{head:>12}")));
    out.push('\n');
    for (index, one) in info.iterations.iter().enumerate() {
        let cells = [
            count(one.conforming),
            percent(one.conforming_share()),
            number(one.rate_mean_bits_per_s() / 1e3),
            number(one.rate_least_bits_per_s() as f64 / 1e3),
            count(one.requests),
            number(one.rate_rps),
            count(one.errors),
            verdict_name(one.verdict).to_owned(),
        ];
        let _ = write!(out, "  {:<9}", index + 1);
        out.extend(cells.map(|cell| format!("{cell:>12}")));
        out.push('\n');
    }
    for (index, one) in info.iterations.iter().enumerate() {
        for reason in &one.reasons {
            let _ = writeln!(out, "  {}: {}", index + 1, printable(reason));
        }
    }
}

/// The verdict on the client of every run.
fn verdict_name(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Valid) => "valid",
        Some(Verdict::Suspect) => "suspect",
        Some(Verdict::Invalid) => "invalid",
        None => "not judged",
    }
}

/// Microseconds as milliseconds, four digits: the table has its unit in its title.
fn milliseconds(us: f64) -> String {
    match us / 1000.0 {
        ms if ms >= 1000.0 => count(ms.round() as u64),
        ms if ms >= 100.0 => format!("{ms:.1}"),
        ms if ms >= 10.0 => format!("{ms:.2}"),
        ms => format!("{ms:.3}"),
    }
}

/// A table in the form of the dissertation's Table 2.6.
fn kinds(
    out: &mut String,
    title: &str,
    iteration: &Iteration,
    of: impl Fn(&KindFigures) -> Option<Times>,
) {
    let _ = writeln!(out, "  {title}");
    let _ = write!(out, "  {:<13}", "");
    for head in ["requests", "errors", "5 %", "50 %", "95 %", "mean"] {
        let _ = write!(out, "{head:>11}");
    }
    out.push('\n');
    for kind in &iteration.kinds {
        let _ = write!(
            out,
            "  {:<13}{:>11}{:>11}",
            kind.kind,
            count(kind.requests),
            count(kind.errors)
        );
        match of(kind) {
            Some(times) => {
                for us in [times.p5_us, times.p50_us, times.p95_us, times.mean_us] {
                    let _ = write!(out, "{:>11}", milliseconds(us));
                }
            }
            None => out.push_str("  none that was right and complete"),
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::specweb99::{Conformance, RequestKind};
    use headway_latency::{Outcome, Row};

    fn description(conforming: &[u64]) -> RunDescription {
        let mut conformance = Conformance::new(2, 0);
        for number in 0..400 {
            let start_ns = number / 2 * 300_000_000;
            let kind = RequestKind::ALL[number as usize % 5];
            conformance.push(&Row {
                intended_ns: start_ns,
                start_ns,
                first_byte_ns: start_ns + 2_000_000,
                end_ns: start_ns + 300_000_000,
                size_bytes: 15_000,
                bytes: 15_000,
                status: 200,
                error: Outcome::Ok,
                connection: (number % 2) as u32,
                ordinal: 0,
                class: kind.class(1),
                target: 0,
                warmup: false,
                handshake_ns: 0,
            });
        }
        let iteration = conformance.finish();
        let iterations = conforming.iter().map(|&conforming| Iteration {
            conforming,
            verdict: Some(Verdict::Suspect),
            reasons: vec!["the client waited".to_owned()],
            ..iteration.clone()
        });
        let mut info = SpecWeb99Info {
            connections: 2,
            data_rule: true,
            static_only: true,
            rate_max_bits_per_s: 400_000,
            rate_min_bits_per_s: 320_000.0,
            iterations: iterations.collect(),
            log: Some(LogInfo::default()),
            ..SpecWeb99Info::default()
        };
        info.conclude(3);
        RunDescription {
            specweb99: Some(info),
            ..RunDescription::default()
        }
    }

    #[test]
    fn summary_begins_with_the_score_and_does_not_name_spec() {
        let text = render(&description(&[2, 2, 1]));
        assert!(
            text.starts_with("held: 2 of 2 connections conform (100 %, median of 3 iterations)\n"),
            "{text}"
        );
        assert!(text.contains("no SPEC result"), "{text}");
        let second = text.lines().find(|line| line.starts_with("  2 "));
        assert!(
            second.is_some_and(|line| line.ends_with("suspect")),
            "{text}"
        );
        assert!(text.contains("  2: the client waited\n"), "{text}");
        let text = render(&description(&[1, 1, 2]));
        assert!(text.starts_with("not held: 1 of 2"), "{text}");
        let text = render(&description(&[2]));
        assert!(text.starts_with("not finished: 1 iterations"), "{text}");
    }

    #[test]
    fn latency_table_has_a_line_per_kind() {
        let text = render(&description(&[2, 2, 2]));
        for name in [
            "static",
            "standard GET",
            "custom GET",
            "POST",
            "CGI GET",
            "dynamic",
            "all",
        ] {
            let lines = text
                .lines()
                .filter(|line| line.trim_start().starts_with(name));
            let lines: Vec<&str> = lines.collect();
            assert_eq!(lines.len(), 2, "{name}: {text}");
            assert!(
                lines[0].contains("2.00") && lines[1].contains("300.0"),
                "{lines:?}"
            );
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }

    #[test]
    fn summary_has_the_fault_of_the_log_when_there_is_one() {
        let mut log = LogInfo {
            records: 5,
            acknowledged: 6,
            missing: 1,
            ..LogInfo::default()
        };
        assert_eq!(
            log_text(&log),
            "5 records of 6 acknowledged posts: 1 missing, 0 out of order, 0 unknown"
        );
        log.fault = Some("torn".to_owned());
        assert_eq!(log_text(&log), "cannot be believed: torn");
    }
}
