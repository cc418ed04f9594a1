//! The tables of one run, and of the comparison of two.

use headway_cli_support::table::table;

use super::table::{Style, signed_time};
use headway_latency::Run;
use headway_latency::analysis::{Analysis, Distribution, Interval, Latency, StepGroup};
use headway_latency::compare::{Difference, Evidence};
use headway_latency::format::{bytes, count, duration, number, percent, printable, time_us};
use headway_latency::run::{LoadInfo, Mode, RunDescription, Verdict};

/// Every table of one run.
pub fn run(run: &Run, analysis: &Analysis, style: Style) -> String {
    title(run, run.description()) + &tables(analysis, style)
}

/// Every table, without a title.
pub fn tables(analysis: &Analysis, style: Style) -> String {
    let mut text = headline(analysis);
    text.push_str(&requests(analysis, style));
    text.push_str(&latencies(analysis, style));
    if !analysis.goodput.is_empty() {
        text.push_str(&goodput(analysis, style));
    }
    if !analysis.by_step.is_empty() {
        text.push_str(&by_step(analysis, style));
    }
    let has_sizes = match &analysis.inversion {
        Some(found) => found.sizes > 1,
        None => {
            analysis
                .series
                .iter()
                .filter(|one| one.requests > 0)
                .count()
                > 1
        }
    };
    if has_sizes {
        text.push_str(&by_series(analysis, style));
        if !analysis.withheld {
            text.push_str(&deciles(analysis, style));
            text.push_str(&inversion(analysis, style));
            text.push_str(&by_size(analysis, style));
        }
    }
    text
}

/// What the run is called: its label, else the server that answered, else its directory.
pub fn label(run: &Run) -> String {
    let described = run.description();
    let server = described
        .server
        .as_ref()
        .map(|server| server.field.clone())
        .filter(|field| !field.is_empty());
    let name = described
        .label
        .clone()
        .or(server)
        .unwrap_or_else(|| run.path().display().to_string());
    printable(&name).into_owned()
}

fn title(run: &Run, described: &RunDescription) -> String {
    let mut text = format!(
        "{} · {} · {}\n",
        label(run),
        load(&described.load),
        printable(&described.started)
    );
    if run.is_being_written() {
        text.push_str(
            "incomplete: the run is still going; the figures are of what it has written so far\n",
        );
    } else if !described.complete {
        text.push_str(
            "incomplete: the run was cut off; the figures are of what it had written until then\n",
        );
    }
    if let Some(client) = &described.client {
        text.push_str(&format!("{}\n", verdict(client.verdict)));
        client
            .reasons
            .iter()
            .for_each(|reason| text.push_str(&format!("  {}\n", printable(reason))));
    }
    text
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Valid => "valid: no sign that the client was the bottleneck",
        Verdict::Suspect => "SUSPECT: the client may have been the bottleneck",
        Verdict::Invalid => "INVALID: do not use these figures",
    }
}

fn load(load: &LoadInfo) -> String {
    let connections = load
        .connections
        .map(|n| format!(", {} connections", count(n)))
        .unwrap_or_default();
    match (load.mode, load.rate_rps) {
        (Mode::Closed, _) => format!("closed loop{connections}"),
        (Mode::Open, Some(wanted)) => {
            let what = if load.scenario.is_some() {
                "flows"
            } else {
                "requests"
            };
            format!("open loop, {} {what}/s{connections}", number(wanted))
        }
        (Mode::Open, None) => format!("open loop{connections}"),
    }
}

/// The figures that most readers want, in one line.
fn headline(analysis: &Analysis) -> String {
    let Some(response) = &analysis.response else {
        return String::new();
    };
    format!(
        "p50 {}, p99 {}, p99.9 {}, max {}; {} responses/s; {} errors\n",
        time_us(response.p50_us),
        time_us(response.p99_us),
        time_or_dash(response.p99_9_us),
        time_or_dash(response.max_us),
        number(analysis.achieved_rps),
        count(analysis.counts.errors),
    )
}

/// A time; a dash where it is withheld.
pub(super) fn time_or_dash(us: Option<f64>) -> String {
    us.map_or("–".into(), time_us)
}

fn requests(analysis: &Analysis, style: Style) -> String {
    let counts = &analysis.counts;
    let share = counts.errors as f64 / counts.requests.max(1) as f64;
    let line = |name: &str, value: String| format!("  {name:<10}  {value}\n");
    let mut text = style.heading("Requests");
    let ended = format!(
        "{} in {}",
        count(counts.requests),
        duration(analysis.duration_s)
    );
    text.push_str(&line("ended", ended));
    if let Some(offered) = analysis.offered_rps {
        text.push_str(&line("offered", format!("{}/s", number(offered))));
    }
    let throughput = bytes(analysis.throughput_bytes_per_s);
    text.push_str(&line(
        "answered",
        format!("{}/s, {throughput}/s", number(analysis.achieved_rps)),
    ));
    let errors: Vec<String> = analysis
        .errors
        .iter()
        .map(|error| format!("{} {}", error.outcome, count(error.requests)))
        .collect();
    let listed = if errors.is_empty() {
        String::new()
    } else {
        format!(": {}", errors.join(", "))
    };
    text.push_str(&line(
        "errors",
        format!("{} ({}){listed}", count(counts.errors), percent(share)),
    ));
    let unexpected = analysis.statuses.iter().filter(|status| status.status != 0);
    let statuses: Vec<String> = unexpected
        .map(|status| format!("{} × {}", status.status, count(status.requests)))
        .collect();
    if analysis
        .errors
        .iter()
        .any(|error| error.outcome == "status")
    {
        text.push_str(&line("statuses", statuses.join(", ")));
    }
    if counts.warmup > 0 {
        text.push_str(&line(
            "left out",
            format!("{} of the warm-up and the cool-down", count(counts.warmup)),
        ));
    }
    if counts.abandoned > 0 {
        let oldest = time_us(analysis.late.abandoned_oldest_us);
        text.push_str(&line(
            "in flight",
            format!(
                "{} when the run ended, the oldest for {oldest}; not in the figures",
                count(counts.abandoned)
            ),
        ));
    }
    text
}

fn latencies(analysis: &Analysis, style: Style) -> String {
    let Some(response) = &analysis.response else {
        let why = match analysis.withheld {
            false => "  no request ended\n",
            true => "  withheld: too many requests have no latency\n",
        };
        return style.heading("Latency") + why;
    };
    let head = [
        "", "requests", "mean", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max",
    ];
    let mut rows = vec![distribution("response", response)];
    rows.extend(interval_rows(response));
    let more = [
        ("complete responses", &analysis.complete),
        ("service", &analysis.service),
        ("first byte", &analysis.first_byte),
        ("TLS handshake", &analysis.handshake),
    ];
    // Without errors, complete responses are all responses.
    let wanted = more
        .into_iter()
        .filter(|(name, _)| *name != "complete responses" || analysis.counts.errors > 0);
    rows.extend(
        wanted.filter_map(|(name, found)| found.as_ref().map(|found| distribution(name, found))),
    );
    let mut text = style.heading(
        "Latency (response: from the intended start; service, first byte: from the actual start)",
    );
    text.push_str(&table(&head, &rows));
    text.push_str(&lag_text(analysis));
    text
}

fn distribution(name: &str, found: &Distribution) -> Vec<String> {
    let times = [
        Some(found.mean_us),
        Some(found.p50_us),
        Some(found.p90_us),
        Some(found.p95_us),
        Some(found.p99_us),
        found.p99_9_us,
        found.p99_99_us,
        found.max_us,
    ];
    [name.to_owned(), count(found.requests)]
        .into_iter()
        .chain(times.map(time_or_dash))
        .collect()
}

/// The ends of each interval, under the figure it belongs to.
fn interval_rows(found: &Distribution) -> Vec<Vec<String>> {
    let Some(intervals) = found.intervals else {
        return Vec::new();
    };
    let row = |name: String, end: fn(Interval) -> f64| {
        let figure = |interval: Interval| time_us(end(interval));
        let (mean, p50) = (figure(intervals.mean_us), figure(intervals.p50_us));
        let (p95, p99) = (figure(intervals.p95_us), figure(intervals.p99_us));
        vec![name, String::new(), mean, p50, String::new(), p95, p99]
    };
    let percent = intervals.confidence * 100.0;
    vec![
        row(format!("  {percent:.0} % from"), |ends| ends.low),
        row("       to".into(), |ends| ends.high),
    ]
}

fn lag_text(analysis: &Analysis) -> String {
    let late = &analysis.late;
    if analysis.offered_rps.is_none() {
        return String::new();
    }
    format!(
        "  starts later than {}: {}; lag p50 {}, p99 {}, max {}\n",
        time_us(late.threshold_us),
        count(late.starts),
        time_us(late.lag_p50_us),
        time_us(late.lag_p99_us),
        time_us(late.lag_max_us),
    )
}

fn goodput(analysis: &Analysis, style: Style) -> String {
    let row = |good: &headway_latency::analysis::Goodput| {
        vec![
            time_us(good.deadline_ms * 1e3),
            count(good.requests),
            format!("{}/s", number(good.rate_rps)),
            percent(good.share),
        ]
    };
    let rows: Vec<_> = analysis.goodput.iter().map(row).collect();
    style.heading("Goodput (complete responses within the deadline, as a share of all requests)")
        + &table(&["within", "responses", "rate", "share"], &rows)
}

fn by_series(analysis: &Analysis, style: Style) -> String {
    let row = |series: &headway_latency::analysis::SeriesShare| {
        let sizes = match series.high_bytes {
            None => format!("above {}", bytes((series.low_bytes - 1) as f64)),
            Some(high) => format!("to {}", bytes(high as f64)),
        };
        let mut row = vec![
            format!("{} ({sizes})", series.series),
            count(series.requests),
            percent(series.share),
        ];
        row.extend(figures(series.requests, series.latency));
        row
    };
    let rows: Vec<_> = analysis.series.iter().map(row).collect();
    style.heading("Latency by size series (complete responses)")
        + &table(
            &["series", "responses", "share", "mean", "p50", "p95", "p99"],
            &rows,
        )
}

fn figures(requests: u64, latency: Option<Latency>) -> [String; 4] {
    let Some(latency) = latency.filter(|_| requests > 0) else {
        return std::array::from_fn(|_| "–".into());
    };
    let times = [
        latency.mean_us,
        latency.p50_us,
        latency.p95_us,
        latency.p99_us,
    ];
    times.map(time_us)
}

fn deciles(analysis: &Analysis, style: Style) -> String {
    let row = |series: usize| {
        let share = |counts: &[u64; 4]| {
            let total: u64 = counts.iter().sum();
            if total == 0 {
                "–".to_owned()
            } else {
                format!("{:.0}", counts[series] as f64 * 100.0 / total as f64)
            }
        };
        std::iter::once(format!("{}", series + 1))
            .chain(analysis.deciles.iter().map(share))
            .collect()
    };
    let rows: Vec<Vec<String>> = (0..4).map(row).collect();
    style.heading(
        "Latency deciles (percent of each size series in each tenth of the responses, fastest first)",
    ) + &table(
        &["series", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
        &rows,
    )
}

fn inversion(analysis: &Analysis, style: Style) -> String {
    let mut text = style.heading("Service inversion (0: responses ordered by size)");
    let Some(found) = &analysis.inversion else {
        return text;
    };
    let of = |part: Option<f64>| {
        part.map_or(String::new(), |part| {
            format!("; the value is {part:.3} of it")
        })
    };
    text.push_str(&format!("  value      {:.3}\n", found.value));
    let random = of(found.of_random);
    text.push_str(&format!(
        "  random     {:.3}  what a random order gives for these sizes{random}\n",
        found.random
    ));
    let reversed = of(found.of_reversed);
    text.push_str(&format!(
        "  reversed   {:.3}  what the reversed order gives{reversed}\n",
        found.reversed
    ));
    if let Some(jain) = found.jain {
        text.push_str(&format!(
            "  Jain's     {jain:.3}  fairness index of the response times; 1 when all wait equally long\n"
        ));
    }
    text.push_str(&format!(
        "  over {} complete responses of {} sizes\n",
        count(found.requests),
        count(found.sizes)
    ));
    text
}

/// The steps of a scenario.
fn by_step(analysis: &Analysis, style: Style) -> String {
    let row = |step: &StepGroup| {
        let of = step.response.as_ref();
        let figure = |us: Option<f64>| time_or_dash(us);
        vec![
            printable(&step.name).into_owned(),
            count(step.requests),
            count(step.errors),
            figure(of.map(|of| of.p50_us)),
            figure(of.map(|of| of.p95_us)),
            figure(of.map(|of| of.p99_us)),
            figure(of.and_then(|of| of.max_us)),
        ]
    };
    let rows: Vec<_> = analysis.by_step.iter().map(row).collect();
    let headings = ["step", "requests", "errors", "p50", "p95", "p99", "max"];
    style.heading("Steps") + &table(&headings, &rows)
}

fn by_size(analysis: &Analysis, style: Style) -> String {
    let row = |group: &headway_latency::analysis::SizeGroup| {
        let (low, high) = (
            bytes(group.low_bytes as f64),
            bytes(group.high_bytes as f64),
        );
        let sizes = if group.low_bytes == group.high_bytes {
            low
        } else {
            format!("{low} – {high}")
        };
        let mut row = vec![sizes, count(group.requests)];
        row.extend(figures(group.requests, Some(group.latency)));
        row
    };
    let rows: Vec<_> = analysis.by_size.iter().map(row).collect();
    style.heading("Latency by size (complete responses)")
        + &table(&["size", "responses", "mean", "p50", "p95", "p99"], &rows)
}

/// Two runs, figure by figure.
pub fn comparison(first: &Run, second: &Run, differences: &[Difference], style: Style) -> String {
    let mut text = format!(
        "A  {}  ({})\nB  {}  ({})\n",
        label(first),
        first.path().display(),
        label(second),
        second.path().display()
    );
    for name in differing_settings(first.description(), second.description()) {
        text.push_str(&format!(
            "caution: the runs differ in {name}, which may explain the differences\n"
        ));
    }
    text + &difference_table(differences, style)
}

/// The differences, a row each.
pub fn difference_table(differences: &[Difference], style: Style) -> String {
    let mut text = String::new();
    let row = |found: &Difference| {
        let interval = found.interval_us.map_or("–".into(), |found| {
            format!("{} … {}", signed_time(found.low), signed_time(found.high))
        });
        let ratio = if found.first_us > 0.0 {
            format!("{:+.1} %", found.difference_us / found.first_us * 100.0)
        } else {
            "–".into()
        };
        let evidence = match found.evidence {
            Evidence::None => "no evidence of a difference",
            Evidence::Lower => "B is lower",
            Evidence::Higher => "B is higher",
            Evidence::TooFew => "too few requests to say",
        };
        vec![
            found.figure.clone(),
            time_us(found.first_us),
            time_us(found.second_us),
            signed_time(found.difference_us),
            ratio,
            interval,
            evidence.into(),
        ]
    };
    let rows: Vec<_> = differences.iter().map(row).collect();
    text.push_str(&style.heading("Response time"));
    text.push_str(&table(
        &["", "A", "B", "B − A", "", "95 % interval", ""],
        &rows,
    ));
    text.push_str(
        "  The intervals cover the variation within each run, not between repetitions.\n",
    );
    text
}

/// What should be equal when two servers are compared, and is not.
fn differing_settings(first: &RunDescription, second: &RunDescription) -> Vec<&'static str> {
    let (a, b) = (&first.load, &second.load);
    let set = |run: &RunDescription| run.fileset.as_ref().map(|set| set.checksum.clone());
    let both = [
        ("their completeness", first.complete != second.complete),
        ("the kind of load", a.mode != b.mode),
        (
            "the offered rate",
            a.rate_rps != b.rate_rps || a.schedule != b.schedule,
        ),
        (
            "the number of connections",
            a.connections != b.connections
                || a.streams != b.streams
                || a.requests_per_connection != b.requests_per_connection,
        ),
        ("the timeout", a.timeout_ms != b.timeout_ms),
        ("the file set", set(first) != set(second)),
        (
            "the machine",
            first.environment.host != second.environment.host,
        ),
    ];
    both.into_iter()
        .filter(|(_, differ)| *differ)
        .map(|(name, _)| name)
        .collect()
}
