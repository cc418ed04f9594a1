//! The figures of the server itself, below those of its requests.

use std::fmt::Write as _;

use headway_base::format::{count, counted, percent, time_ns, time_us};

use super::{cell, wrapped};
use crate::report::Report;

/// Rows of the table of sleeps.
const SLEEPS_MAX: usize = 10;

pub(super) fn write(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    sleeps(report, out, heading);
    loops(report, out, heading);
    let lines = of_server(report);
    if !lines.is_empty() {
        let _ = writeln!(out, "\n{}", heading("The server"));
    }
    for line in lines {
        *out += &wrapped(&line, "- ", 100);
    }
}

/// Turns of its loops, its run queue and service inversion: a sentence for each that is known.
pub fn of_server(report: &Report) -> Vec<String> {
    let lines = [turns(report), run_queue(report), inversion(report)];
    lines.into_iter().flatten().collect()
}

fn sleeps(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    if report.sleeps.is_empty() {
        return;
    }
    let head = format!("{:>10}{:>10}  {:<18}{}", "SLEEPS", "TIME", "FOR", "CALL");
    let _ = writeln!(out, "\n{}", heading(&head));
    for sleep in report.sleeps.iter().take(SLEEPS_MAX) {
        let _ = writeln!(
            out,
            "{:>10}{:>10}  {:<18}{}",
            count(sleep.times),
            time_ns(sleep.total_ns as f64),
            sleep.label.name(),
            sleep.call,
        );
    }
}

fn loops(report: &Report, out: &mut String, heading: &impl Fn(&str) -> String) {
    let all: u64 = report.ready_events.iter().sum();
    if all == 0 {
        return;
    }
    let _ = writeln!(out, "\n{}", heading("Ready events per wait for events"));
    for (bucket, waits) in report.ready_events.iter().enumerate() {
        let range = match bucket {
            0 | 1 => bucket.to_string(),
            _ => format!("{}–{}", 1_u64 << (bucket - 1), (1_u64 << bucket) - 1),
        };
        if *waits > 0 {
            let share = *waits as f64 / all as f64;
            let _ = writeln!(out, "{range:>12}{:>12}{:>9}", count(*waits), cell(share));
        }
    }
}

fn turns(report: &Report) -> Option<String> {
    let turns = report.loop_turns.as_ref()?;
    Some(format!(
        "Between two waits for events: half within {}, 95 % within {}, 99 % within {}, the longest within {} ({}).",
        time_us(turns.p50_us),
        time_us(turns.p95_us),
        time_us(turns.p99_us),
        time_us(turns.max_us),
        counted(turns.turns, "turn", "turns"),
    ))
}

fn run_queue(report: &Report) -> Option<String> {
    let queue = report.run_queue.as_ref()?;
    Some(format!(
        "Of {}, {} could run on average; p50 {}, p90 {}, p99 {}, at most {} ({}).",
        counted(u64::from(queue.tasks_max), "task", "tasks"),
        percent((queue.share_mean * 1000.0).round() / 1000.0),
        queue.p50,
        queue.p90,
        queue.p99,
        queue.max,
        counted(queue.samples, "sample", "samples"),
    ))
}

/// Nothing if all responses have the same size.
fn inversion(report: &Report) -> Option<String> {
    let inversion = report.inversion.as_ref()?;
    let of_random = inversion.of_random?;
    Some(format!(
        "Service inversion: {:.3}, {} of that in a random order ({} of {}).",
        inversion.value,
        percent((of_random * 100.0).round() / 100.0),
        counted(inversion.requests, "response", "responses"),
        counted(inversion.sizes, "size", "sizes"),
    ))
}
