//! What a person reads when a run has ended: the verdict on top, then the figures, aligned.
//!
//! Everything comes from the run's description and analysis, so that a run read from its directory
//! prints the same.

use headway_latency::analysis::Distribution;
use headway_latency::format::{
    bit_rate, bytes, count, duration, number, percent, printable, time_us,
};
use headway_latency::run::description::{
    ClientInfo, LoadInfo, Mode, ScheduleStep, TlsInfo, Verdict,
};
use headway_latency::{Analysis, RunDescription};
use std::fmt::Write;

use super::bars;

/// How the text may look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Bold and colours, for a terminal.
    pub colour: bool,
}

const NAME_WIDTH: usize = 16;

/// The longest bar of the histogram.
const BAR_WIDTH: usize = 40;

/// Longer names of steps are cut.
const STEP_NAME_WIDTH_MAX: usize = 36;

/// The summary of a run; ends with a line end.
pub fn render(description: &RunDescription, analysis: &Analysis, style: Style) -> String {
    let mut out = verdict(description.client.as_ref(), style);
    out.push('\n');
    line(&mut out, "server", &server(description));
    line(&mut out, "load", &load(&description.load));
    line(&mut out, "measured", &measured(description, analysis));
    out.push('\n');
    figures(&mut out, description, analysis);
    out.push('\n');
    latency_table(&mut out, description, analysis);
    step_table(&mut out, analysis);
    histogram(&mut out, analysis);
    if let Some(client) = &description.client {
        out.push('\n');
        line(&mut out, "client", &client_text(client, &description.load));
        if let Some(tls) = &client.tls {
            line(&mut out, "TLS", &tls_text(tls));
        }
    }
    out
}

/// The verdict and its reasons, one per line.
pub(crate) fn verdict(client: Option<&ClientInfo>, style: Style) -> String {
    let Some(client) = client else {
        return "not judged: the run was cut off\n".to_owned();
    };
    let (word, colour) = match client.verdict {
        Verdict::Valid => ("valid", 32),
        Verdict::Suspect => ("suspect", 33),
        Verdict::Invalid => ("invalid", 31),
    };
    let word = match style.colour {
        true => format!("\x1b[1;{colour}m{word}\x1b[0m"),
        false => word.to_owned(),
    };
    if client.reasons.is_empty() {
        return format!("{word}: no sign that the client was the bottleneck\n");
    }
    let mut out = String::new();
    for (index, reason) in client.reasons.iter().enumerate() {
        let lead = if index == 0 { word.as_str() } else { "    and" };
        let _ = writeln!(out, "{lead}: {reason}");
    }
    out
}

fn line(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "  {name:<width$}{text}", width = NAME_WIDTH - 2);
}

fn server(description: &RunDescription) -> String {
    let targets = printable(&description.targets.join(" ")).into_owned();
    let named = description.server.as_ref().map(|server| &server.field);
    let label = description.label.as_ref();
    match label.or(named).filter(|name| !name.is_empty()) {
        Some(name) => format!("{targets} ({})", printable(name)),
        None => targets,
    }
}

fn load(load: &LoadInfo) -> String {
    let mut text = match load.mode {
        Mode::Closed => format!(
            "closed loop, {} connections",
            count(load.connections.unwrap_or(0))
        ),
        Mode::Open => format!("open loop, {}", offered(load)),
    };
    if let Some(scenario) = &load.scenario {
        let _ = write!(text, ", scenario {}", printable(&scenario.path));
    }
    match load.streams {
        Some(1) => text += ", HTTP/2",
        Some(streams) => {
            let _ = write!(text, ", HTTP/2 with {} streams each", count(streams));
        }
        None => {}
    }
    if load.protocol.as_deref() == Some("http/1.0") {
        text += ", HTTP/1.0";
    }
    match load.requests_per_connection {
        Some(1) => text += ", 1 request per connection",
        Some(number) => {
            let _ = write!(text, ", {} requests per connection", count(number));
        }
        None => {}
    }
    if load.think_ms > 0.0 {
        let _ = write!(text, ", think time {}", time_us(load.think_ms * 1e3));
    }
    if load.first_pause_ms > 0.0 {
        let pause = time_us(load.first_pause_ms * 1e3);
        let _ = write!(text, ", first request {pause} after the connection");
    }
    if let Some(bits) = load.bandwidth_bits_per_s {
        let _ = write!(text, ", {} per connection", bit_rate(bits as f64));
    }
    text
}

fn offered(load: &LoadInfo) -> String {
    let how = match load.arrivals {
        Some(headway_latency::run::description::Arrivals::Constant) => "constant",
        _ => "Poisson",
    };
    if load.schedule.len() > 1 {
        let pieces: Vec<String> = load.schedule.iter().map(step).collect();
        return format!("{how} arrivals, {}", pieces.join(", "));
    }
    let rate = load.rate_rps.unwrap_or(0.0);
    let what = if load.scenario.is_some() {
        "flows"
    } else {
        "requests"
    };
    format!("{how} arrivals, {} {what}/s", number(rate))
}

fn step(step: &ScheduleStep) -> String {
    match step.from_rps == step.to_rps {
        true => format!(
            "{}/s for {}",
            number(step.from_rps),
            duration(step.duration_s)
        ),
        false => format!(
            "{} to {}/s in {}",
            number(step.from_rps),
            number(step.to_rps),
            duration(step.duration_s)
        ),
    }
}

fn measured(description: &RunDescription, analysis: &Analysis) -> String {
    let mut text = duration(analysis.duration_s);
    let (before_s, after_s) = (description.load.warmup_s, description.load.cooldown_s);
    let around = [
        (before_s > 0.0).then(|| format!("after a warm-up of {}", duration(before_s))),
        (after_s > 0.0).then(|| format!("before a cool-down of {}", duration(after_s))),
    ];
    let around: Vec<String> = around.into_iter().flatten().collect();
    if !around.is_empty() {
        let left_out = count(analysis.counts.warmup);
        let _ = write!(text, " {} ({left_out} requests)", around.join(" and "));
    }
    if let Some(why) = description.environment.extra.get(super::INTERRUPTED) {
        let _ = write!(text, ", interrupted ({why})");
    }
    text
}

fn figures(out: &mut String, description: &RunDescription, analysis: &Analysis) {
    let counts = &analysis.counts;
    let mut rate = format!("{} good responses/s", number(analysis.achieved_rps));
    let open = description.load.mode == Mode::Open;
    if let Some(offered) = analysis.offered_rps.filter(|_| open) {
        let _ = write!(rate, ", {} offered", number(offered));
    }
    let body = analysis.throughput_bytes_per_s;
    let rows = [
        ("requests", count(counts.requests), rate),
        (
            "body",
            bytes(body * analysis.duration_s),
            format!("{}/s", bytes(body)),
        ),
        ("errors", count(counts.errors), errors(analysis)),
    ];
    let width = rows.iter().map(|(_, figure, _)| figure.len()).max();
    for (name, figure, text) in rows {
        let figure = format!("{figure:>width$}   {text}", width = width.unwrap_or(0));
        line(out, name, figure.trim_end());
    }
    if counts.abandoned > 0 {
        let text = format!(
            "{} requests when the run ended, the oldest {} old",
            count(counts.abandoned),
            time_us(analysis.late.abandoned_oldest_us)
        );
        line(out, "in flight", &text);
    }
}

/// What the errors were. Their share first, then each kind, then statuses that were not expected.
fn errors(analysis: &Analysis) -> String {
    let counts = &analysis.counts;
    if counts.errors == 0 || counts.requests == 0 {
        return String::new();
    }
    let share = percent(counts.errors as f64 / counts.requests as f64);
    let kinds = analysis
        .errors
        .iter()
        .map(|kind| match kind.outcome.as_str() {
            "status" => format!("{} status ({})", count(kind.requests), statuses(analysis)),
            name => format!("{} {name}", count(kind.requests)),
        });
    format!("{share}: {}", kinds.collect::<Vec<_>>().join(", "))
}

fn statuses(analysis: &Analysis) -> String {
    let odd = analysis
        .statuses
        .iter()
        .filter(|one| one.status != 0 && !(200..300).contains(&one.status))
        .map(|one| format!("{} × {}", count(one.requests), one.status));
    odd.collect::<Vec<_>>().join(", ")
}

/// One line from the intended start; for an open loop a second one from the actual start.
fn latency_table(out: &mut String, description: &RunDescription, analysis: &Analysis) {
    let mut lines = Vec::new();
    match description.load.mode {
        Mode::Open => {
            lines.push(("from intended", &analysis.response));
            lines.push(("from start", &analysis.service));
        }
        Mode::Closed => lines.push(("from start", &analysis.response)),
    }
    if analysis.handshake.is_some() {
        lines.push(("TLS handshake", &analysis.handshake));
    }
    let _ = write!(out, "  {:<width$}", "latency", width = NAME_WIDTH - 2);
    for name in ["mean", "p50", "p90", "p95", "p99", "p99.9", "max"] {
        let _ = write!(out, "{name:>10}");
    }
    out.push('\n');
    for (name, distribution) in lines {
        let cells = distribution.as_ref().map(cells);
        let text = match cells {
            Some(cells) => cells
                .iter()
                .map(|us| format!("{:>10}", us.map_or("–".to_owned(), time_us)))
                .collect(),
            None if analysis.withheld => "  withheld: too many requests have no latency".to_owned(),
            None => "  no request ended".to_owned(),
        };
        line(out, name, &text);
    }
}

fn cells(of: &Distribution) -> [Option<f64>; 7] {
    [
        Some(of.mean_us),
        Some(of.p50_us),
        Some(of.p90_us),
        Some(of.p95_us),
        Some(of.p99_us),
        of.p99_9_us,
        of.max_us,
    ]
}

/// One line per step of the scenario.
fn step_table(out: &mut String, analysis: &Analysis) {
    let names = analysis
        .by_step
        .iter()
        .map(|step| step.name.chars().count());
    let Some(longest) = names.max() else { return };
    let width = longest.clamp(NAME_WIDTH - 2, STEP_NAME_WIDTH_MAX);
    let _ = write!(out, "\n  {:<width$}", "step");
    for name in ["requests", "errors", "p50", "p90", "p99", "max"] {
        let _ = write!(out, "{name:>10}");
    }
    out.push('\n');
    for step in &analysis.by_step {
        let name: String = printable(&step.name).chars().take(width).collect();
        let _ = write!(out, "  {name:<width$}");
        let _ = write!(
            out,
            "{:>10}{:>10}",
            count(step.requests),
            count(step.errors)
        );
        let known = step.response.as_ref();
        let figures = [
            known.map(|of| of.p50_us),
            known.map(|of| of.p90_us),
            known.map(|of| of.p99_us),
            known.and_then(|of| of.max_us),
        ];
        for us in figures {
            let _ = write!(out, "{:>10}", us.map_or("–".to_owned(), time_us));
        }
        out.push('\n');
    }
}

/// The response times that the first line of the table is about.
fn histogram(out: &mut String, analysis: &Analysis) {
    let cdf = analysis.response.as_ref().map(|response| &response.cdf);
    let ranges = cdf.map_or(Vec::new(), |cdf| bars::ranges_of(cdf));
    for (at, text) in bars::lines(&ranges, BAR_WIDTH).iter().enumerate() {
        let name = if at == 0 { "\n  response time" } else { "" };
        let _ = writeln!(
            out,
            "{name:<width$}{text}",
            width = NAME_WIDTH + usize::from(at == 0)
        );
    }
}

fn tls_text(tls: &TlsInfo) -> String {
    format!(
        "{}, {} handshakes, {} resumed",
        printable(&tls.protocol),
        count(tls.handshakes),
        count(tls.resumed)
    )
}

fn client_text(client: &ClientInfo, load: &LoadInfo) -> String {
    let mut parts = Vec::new();
    let threads = match load.threads {
        Some(threads) => format!("{} threads", count(threads)),
        None => "1 thread".to_owned(),
    };
    match &load.threads_why {
        Some(why) => parts.push(format!("{threads} ({})", printable(why))),
        None if load.threads.is_some() => parts.push(threads),
        None => {}
    }
    if let Some(busy) = client.busy_share {
        let at_most = if load.threads.is_some() {
            "at most "
        } else {
            ""
        };
        parts.push(format!("busy {at_most}{}", percent(busy)));
    }
    if let Some(waited) = client.run_queue_delay_s {
        parts.push(format!("waited {} for a CPU", time_us(waited * 1e6)));
    }
    if let Some(lag) = client.lag_p99_us {
        parts.push(format!("lag p99 {}", time_us(lag)));
        parts.push(format!("late starts {}", count(client.late_starts)));
    }
    if let Some(opened) = client.connections_opened {
        parts.push(format!("{} connections opened", count(opened)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::run::description::Arrivals;
    use headway_latency::{Analyzer, Outcome, Row};

    fn rows(description: &RunDescription, errors: u64) -> Analysis {
        let mut analyzer = Analyzer::new(description);
        for index in 0..1000 {
            let failed = index < errors;
            let start_ns = index * 1_000_000;
            analyzer.push(&Row {
                intended_ns: start_ns,
                start_ns: start_ns + 50_000,
                first_byte_ns: start_ns + 900_000,
                end_ns: start_ns + 1_250_000,
                size_bytes: 5000,
                bytes: 5000,
                status: if failed { 404 } else { 200 },
                error: if failed { Outcome::Status } else { Outcome::Ok },
                connection: 0,
                ordinal: 0,
                class: 255,
                target: 0,
                warmup: false,
                handshake_ns: 0,
            });
        }
        analyzer.finish()
    }

    fn open() -> RunDescription {
        RunDescription {
            targets: vec!["http://127.0.0.1:8080/".to_owned()],
            load: LoadInfo {
                mode: Mode::Open,
                arrivals: Some(Arrivals::Poisson),
                rate_rps: Some(1000.0),
                requests_per_connection: Some(5),
                warmup_s: 2.0,
                ..LoadInfo::default()
            },
            client: Some(ClientInfo {
                busy_share: Some(0.123),
                lag_p99_us: Some(80.0),
                ..ClientInfo::default()
            }),
            ..RunDescription::default()
        }
    }

    #[test]
    fn summary_begins_with_the_verdict() {
        let mut description = open();
        let analysis = rows(&description, 0);
        let text = render(&description, &analysis, Style::default());
        assert!(
            text.starts_with("valid: no sign that the client was the bottleneck"),
            "{text}"
        );
        let client = description.client.as_mut().expect("the client of `open`");
        client.verdict = Verdict::Invalid;
        client.reasons = vec!["the first".to_owned(), "the second".to_owned()];
        let text = render(&description, &analysis, Style::default());
        assert!(
            text.starts_with("invalid: the first\n    and: the second\n"),
            "{text}"
        );
    }

    #[test]
    fn summary_has_latency_from_intended_and_actual_start_when_the_loop_is_open() {
        let description = open();
        let text = render(&description, &rows(&description, 0), Style::default());
        assert!(
            text.contains("open loop, Poisson arrivals, 1,000 requests/s"),
            "{text}"
        );
        let cell = |name: &str| {
            let found = text
                .lines()
                .find(|line| line.trim_start().starts_with(name));
            found
                .and_then(|line| line.split("  ").filter(|cell| !cell.is_empty()).nth(1))
                .map(|cell| cell.trim().to_owned())
        };
        assert_eq!(cell("from intended").as_deref(), Some("1.25 ms"), "{text}");
        assert_eq!(cell("from start").as_deref(), Some("1.20 ms"), "{text}");
        let bars = "\n  response time up to 2 ms         100 %  ██";
        assert!(text.contains(bars), "{text}");
    }

    #[test]
    fn statuses_are_shown_when_responses_were_not_expected() {
        let description = open();
        let text = render(&description, &rows(&description, 250), Style::default());
        assert!(text.contains("25 %: 250 status (250 × 404)"), "{text}");
    }

    #[test]
    fn no_escape_is_printed_when_colour_is_off() {
        let description = open();
        let analysis = rows(&description, 3);
        assert!(!render(&description, &analysis, Style { colour: false }).contains('\x1b'));
        assert!(render(&description, &analysis, Style { colour: true }).contains('\x1b'));
    }

    #[test]
    fn lines_fit_a_terminal_when_figures_are_large() {
        let description = open();
        let text = render(&description, &rows(&description, 0), Style::default());
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
