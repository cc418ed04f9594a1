//! The status page: one self-contained, self-refreshing HTML document.
//!
//! The proof comes first: whether the loops ever blocked. Nothing is loaded from elsewhere and no
//! script runs, so the page works in any browser, on a phone, and behind the strictest policy.

mod back_ends;

use headway_debox::{Report, Rung};
use std::fmt::Write;

use super::{Counters, Histogram, Kept, NetworkDrops, Overview, Snapshot};

const STYLE: &str = include_str!("page.css");

/// The page of one moment.
pub fn render(overview: &Overview) -> String {
    let mut out = String::with_capacity(16 * 1024);
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    out.push_str("<meta http-equiv=\"refresh\" content=\"2\"><title>Headway</title><style>");
    out.push_str(STYLE);
    out.push_str("</style></head><body><main>");
    match &overview.total {
        None => {
            out.push_str("<h1>No worker has answered yet</h1>");
            workers(&mut out, overview);
        }
        Some(total) => {
            proof(&mut out, total, overview);
            sleeps(&mut out, &total.trace);
            workers(&mut out, overview);
            back_ends::table(&mut out, &total.back_ends);
            out.push_str("<div class=\"cards\">");
            responses(&mut out, &total.counters);
            numbers(&mut out, &total.counters);
            kept(&mut out, overview.master.kept.as_ref());
            accepting(&mut out, &total.counters, overview);
            ready_events(&mut out, &total.counters.ready_events);
            helper_times(&mut out, &total.counters);
            calls(&mut out, &total.trace);
            out.push_str("</div>");
        }
    }
    footer(&mut out, overview);
    out.push_str("</main></body></html>\n");
    out
}

fn proof(out: &mut String, total: &Snapshot, overview: &Overview) {
    let trace = &total.trace;
    let blocked = trace.blocked_count();
    let calls = grouped(trace.calls.values().sum());
    let time = duration_ms(overview.master.uptime_ms);
    let (class, title, detail) = match (&trace.rung, blocked) {
        (Rung::Off { why }, _) => (
            "unknown",
            "Nobody watches the loops".into(),
            format!("Sleeps are not seen: {why}"),
        ),
        (_, 0) if trace.lost_records > 0 => (
            "unknown",
            "The loops blocked 0 times, as far as seen".into(),
            format!("{calls} system calls in {time}."),
        ),
        (_, 0) => (
            "good",
            "The loops blocked 0 times".into(),
            format!(
                "{calls} system calls in {time}. Any sleep outside the event wait would be named here."
            ),
        ),
        (_, blocked) => (
            "bad",
            format!(
                "The loops blocked {} time{}",
                grouped(blocked),
                if blocked == 1 { "" } else { "s" }
            ),
            format!(
                "{} in all, in {calls} system calls over {time}. The table of sleeps says where.",
                duration_ns(trace.blocked_ns())
            ),
        ),
    };
    let _ = write!(
        out,
        "<header class=\"{class}\"><h1>{title}</h1><p>{}</p>",
        escaped(&detail)
    );
    if trace.lost_records > 0 {
        let lost = grouped(trace.lost_records);
        let _ = write!(
            out,
            "<p class=\"warn\">{lost} trace records were lost: sleeps may be missing.</p>"
        );
    }
    if let Rung::SwitchesOnly { why } = &trace.rung {
        let _ = write!(
            out,
            "<p class=\"warn\">Sleeps are not located: {}</p>",
            escaped(why)
        );
    }
    if let Some(trouble) = &overview.master.log_trouble {
        let lost = grouped(overview.master.log_lines_lost);
        let trouble = escaped(trouble);
        let _ = write!(
            out,
            "<p class=\"warn\">Access log: {trouble}; {lost} lines lost.</p>"
        );
    }
    out.push_str("</header>");
}

fn responses(out: &mut String, counters: &Counters) {
    let rows: Vec<(String, String)> = counters
        .responses
        .sorted()
        .into_iter()
        .map(|(status, count)| (format!("{status} {}", phrase(status)), grouped(count)))
        .collect();
    card(
        out,
        &format!("Responses: {}", grouped(counters.responses.total())),
        &rows,
    );
}

fn phrase(status: u16) -> &'static str {
    headway_http::Status::from_code(status).map_or("", headway_http::Status::phrase)
}

/// The scalars, grouped as a reader looks for them; every one of them appears in exactly one group.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Clients",
        &[
            "accept",
            "early",
            "connection",
            "first",
            "request",
            "receives",
            "timeouts",
            "resets",
        ],
    ),
    ("Bytes", &["bytes_", "body_"]),
    ("Name cache", &["names", "descriptors"]),
    ("Contents in memory", &["content"]),
    ("Probes and windows", &["probes", "windows"]),
    ("Helpers", &["helper", "retired"]),
    (
        "Programs",
        &[
            "dynamic", "backend", "tunnels", "program", "direct", "piped",
        ],
    ),
    ("Trouble and log", &[""]),
];

fn numbers(out: &mut String, counters: &Counters) {
    let group = |name: &str| {
        let matches = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        GROUPS.iter().position(|(_, prefixes)| matches(prefixes))
    };
    let scalars = counters.scalars();
    for (index, (title, _)) in GROUPS.iter().enumerate() {
        out.push_str("<section><h2>");
        out.push_str(title);
        out.push_str("</h2><table>");
        for scalar in scalars
            .iter()
            .filter(|scalar| group(scalar.name) == Some(index))
        {
            let (name, help) = (scalar.name.replace('_', " "), scalar.help);
            let value = match scalar.name.contains("bytes") {
                true => bytes(scalar.value),
                false => grouped(scalar.value),
            };
            let _ = write!(
                out,
                "<tr title=\"{help}\"><th>{name}</th><td>{value}</td></tr>"
            );
        }
        out.push_str("</table></section>");
    }
}

/// The small files that stay in the page cache for all workers, where some do.
fn kept(out: &mut String, kept: Option<&Kept>) {
    let Some(kept) = kept else { return };
    let all = kept.gauges().into_iter().chain(kept.counters());
    out.push_str("<section><h2>Kept in the page cache</h2><table>");
    for (name, help, value) in all {
        let value = match name.contains("bytes") {
            true => bytes(value),
            false => grouped(value),
        };
        let name = name.replace('_', " ");
        let _ = write!(
            out,
            "<tr title=\"{help}\"><th>{name}</th><td>{value}</td></tr>"
        );
    }
    out.push_str("</table></section>");
}

/// How new clients are taken, and who never came so far (Brecht and Ostrowski, section 6).
fn accepting(out: &mut String, counters: &Counters, overview: &Overview) {
    let share = |part: u64, of: u64| match of {
        0 => "–".into(),
        of => format!("{:.1} %", 100.0 * part as f64 / of as f64),
    };
    let mean = |of: &Histogram| of.mean().map_or("–".into(), |mean| format!("{mean:.2}"));
    let successful = counters.accepted + counters.connections_refused;
    let mut rows = vec![
        (
            "accept calls that gave a connection".to_owned(),
            share(successful, counters.accepts_tried),
        ),
        (
            "connections a round".to_owned(),
            mean(&counters.accepts_per_wakeup),
        ),
        (
            "open connections at each accept, mean".to_owned(),
            mean(&counters.open_at_accept),
        ),
    ];
    let drops = overview.master.network.as_ref();
    for (name, _, value) in drops.map(NetworkDrops::all).unwrap_or_default() {
        rows.push((
            format!("kernel: {}", name.replace('_', " ")),
            grouped(value),
        ));
    }
    card(out, "Accepting", &rows);
}

fn helper_times(out: &mut String, counters: &Counters) {
    let mut rows = Vec::new();
    for (what, times) in [
        ("waiting", &counters.helper_queue_us),
        ("working", &counters.helper_service_us),
    ] {
        for (quantile, name) in [
            (0.5, "median"),
            (0.95, "95 %"),
            (0.99, "99 %"),
            (1.0, "longest"),
        ] {
            let shown = times
                .quantile(quantile)
                .map_or("–".into(), |us| duration_ns(us * 1000));
            rows.push((format!("{what}, {name}"), shown));
        }
    }
    card(out, "Helper jobs: times", &rows);
}

/// The distribution of ready events a wake-up (Figure 1 of the 2006 paper): a loop that never
/// blocks finds few, one that blocks comes back to many.
fn ready_events(out: &mut String, histogram: &Histogram) {
    const WIDTH: f64 = 300.0;
    const HEIGHT: f64 = 120.0;
    let Some(mean) = histogram.mean() else {
        return card(
            out,
            "Ready events a wake-up",
            &[("wake-ups".into(), "0".into())],
        );
    };
    let top = (histogram.max().max(2) as f64 + 1.0).log2();
    let x = |value: u64| (value as f64 + 1.0).log2() / top * WIDTH;
    let mut path = format!("M0 {HEIGHT}");
    let mut below = 0;
    for (upper, count) in histogram.buckets() {
        below += count;
        let height = HEIGHT - below as f64 / histogram.count() as f64 * HEIGHT;
        let _ = write!(path, "H{:.1}V{height:.1}", x(upper.min(histogram.max())));
    }
    let _ = write!(
        out,
        "<section><h2>Ready events a wake-up</h2><svg viewBox=\"-28 -8 344 152\" role=\"img\" \
         aria-label=\"cumulative distribution of ready events a wake-up\">\
         <path class=\"axis\" d=\"M0 0V{HEIGHT}H{WIDTH}\"/><path class=\"curve\" d=\"{path}H{WIDTH}\"/>\
         <text x=\"-4\" y=\"4\" text-anchor=\"end\">1</text>\
         <text x=\"-4\" y=\"{HEIGHT}\" text-anchor=\"end\">0</text>"
    );
    let mut tick = 1;
    while tick <= histogram.max().max(2) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"136\" text-anchor=\"middle\">{tick}</text>",
            x(tick)
        );
        tick *= if tick < 16 { 2 } else { 4 };
    }
    let (count, max) = (grouped(histogram.count()), grouped(histogram.max()));
    let _ = write!(
        out,
        "</svg><p>Share of {count} wake-ups with at most so many events; mean {mean:.2}, most {max}.</p></section>"
    );
}

fn sleeps(out: &mut String, trace: &Report) {
    out.push_str("<section class=\"wide\"><h2>Sleeps outside the event wait</h2>");
    if trace.sleeps.is_empty() {
        out.push_str("<p>None.</p></section>");
        return;
    }
    out.push_str("<div class=\"scroll\"><table><tr><th>System call</th><th>Waited for</th><th>Kernel site</th>");
    out.push_str("<td>Times</td><td>In all</td><td>Longest</td></tr>");
    for site in &trace.sleeps {
        let symbol = site.symbol.as_deref().unwrap_or("unknown");
        let _ = write!(
            out,
            "<tr><th>{}</th><th>{}</th><th><code>{}</code></th><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&site.call),
            site.label,
            escaped(symbol),
            grouped(site.count),
            duration_ns(site.total_ns),
            duration_ns(site.max_ns)
        );
    }
    out.push_str("</table></div></section>");
}

fn calls(out: &mut String, trace: &Report) {
    let mut calls: Vec<_> = trace.calls.iter().collect();
    calls.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let mut rows: Vec<(String, String)> = calls
        .into_iter()
        .map(|(call, count)| (call.clone(), grouped(*count)))
        .collect();
    let waits = format!(
        "{} ({})",
        grouped(trace.waits.count),
        duration_ns(trace.waits.total_ns)
    );
    rows.push(("sleeps in the event wait".into(), waits));
    rows.push(("times preempted".into(), grouped(trace.preemptions.count)));
    card(out, "System calls of the loops", &rows);
}

fn workers(out: &mut String, overview: &Overview) {
    out.push_str(
        "<section class=\"wide\"><h2>Workers</h2><div class=\"scroll\"><table><tr><th>Worker</th>",
    );
    out.push_str(
        "<td>Process</td><td>Up</td><td>Connections</td><td>Accepted</td><td>Requests</td>",
    );
    out.push_str("<td>Helpers</td><td>Blocked</td><th>Events, residency</th></tr>");
    for worker in &overview.workers {
        let counters = &worker.counters;
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><th>{}, {}</th></tr>",
            worker.worker,
            worker.pid,
            duration_ms(worker.uptime_ms),
            grouped(counters.connections_open),
            grouped(counters.accepted),
            grouped(counters.requests),
            grouped(counters.helpers),
            grouped(worker.trace.blocked_count()),
            escaped(&worker.events),
            escaped(&worker.residency)
        );
    }
    for silent in &overview.silent {
        let _ = write!(
            out,
            "<tr><th>{silent}</th><td colspan=\"8\">did not answer in time</td></tr>"
        );
    }
    out.push_str("</table></div>");
    skew(out, overview);
    out.push_str("</section>");
}

/// What users of several workers ask: does one have more than its share?
fn skew(out: &mut String, overview: &Overview) {
    let found = overview.skew.all();
    let words: Vec<String> = found
        .iter()
        .filter_map(|(name, skew)| Some(format!("{} {:.2}", name.replace('_', " "), (*skew)?)))
        .collect();
    if !words.is_empty() {
        let _ = write!(
            out,
            "<p>The most of one worker by the mean of all (1 is even): {}.</p>",
            words.join(", ")
        );
    }
}

fn footer(out: &mut String, overview: &Overview) {
    let master = &overview.master;
    let listen: Vec<String> = master.listen.iter().map(ToString::to_string).collect();
    let _ = write!(
        out,
        "<footer>Headway {} on {} · master {}, up {} · workers ended unasked: {} · helpers started: {} · \
         <a href=\"/status.json\">JSON</a> · <a href=\"/metrics\">metrics</a></footer>",
        escaped(&overview.version),
        listen.join(", "),
        master.pid,
        duration_ms(master.uptime_ms),
        master.worker_deaths,
        master.helpers_spawned
    );
}

fn card(out: &mut String, title: &str, rows: &[(String, String)]) {
    let _ = write!(out, "<section><h2>{title}</h2><table>");
    for (name, value) in rows {
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td></tr>",
            escaped(name),
            escaped(value)
        );
    }
    out.push_str("</table></section>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Digits in groups of three, divided by thin spaces.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    out
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

fn duration_ns(ns: u64) -> String {
    match ns {
        0 => "0".into(),
        1..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => duration_ms(ns / 1_000_000),
    }
}

fn duration_ms(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{:.1} s", ms as f64 / 1000.0),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{BackEnd, MasterTally};
    use headway_debox::{Site, Wait};

    fn overview(rung: Rung, sleeps: Vec<Site>, lost_records: u64) -> Overview {
        let wait = Wait::default();
        let total = Snapshot {
            worker: 0,
            pid: 0,
            uptime_ms: 1000,
            events: "epoll".into(),
            opening: "probe-then-pass".into(),
            send: "copy".into(),
            residency: "cachestat".into(),
            counters: Counters::default(),
            back_ends: vec![
                BackEnd {
                    location: "/<app>".into(),
                    address: "127.0.0.1:1".into(),
                    left_alone: 2,
                    left_alone_ms: 1_500,
                    ..BackEnd::default()
                },
                BackEnd::default(),
            ],
            trace: Report {
                rung,
                calls: Default::default(),
                waits: wait,
                sleeps,
                preemptions: wait,
                lost_records,
                sites_dropped: 0,
            },
        };
        Overview {
            version: "0".into(),
            time_ms: 0,
            master: MasterTally::default(),
            total: Some(total),
            workers: Vec::new(),
            silent: vec![1],
            skew: Default::default(),
        }
    }

    fn sleep() -> Site {
        Site {
            call: "openat2".into(),
            stack: vec![1],
            symbol: Some("a<b".into()),
            label: headway_debox::Label::PageIo,
            count: 3,
            total_ns: 4_500_000,
            max_ns: 2_000_000,
        }
    }

    #[test]
    fn the_headline_is_good_only_when_everything_was_seen_and_nothing_slept() {
        let off = Rung::Off {
            why: "no <privilege>".into(),
        };
        for (page, expected) in [
            (
                overview(Rung::Stacks, vec![], 0),
                "class=\"good\"><h1>The loops blocked 0 times<",
            ),
            (
                overview(Rung::Stacks, vec![sleep()], 0),
                "class=\"bad\"><h1>The loops blocked 3 times<",
            ),
            (
                overview(Rung::Stacks, vec![], 2),
                "class=\"unknown\"><h1>The loops blocked 0 times, as",
            ),
            (
                overview(off, vec![], 0),
                "class=\"unknown\"><h1>Nobody watches the loops<",
            ),
        ] {
            let page = render(&page);
            assert!(page.contains(expected), "{expected}\n{page}");
            assert!(!page.contains("no <privilege>"));
        }
    }

    #[test]
    fn a_sleep_is_named_with_call_site_and_times_when_there_is_one() {
        let page = render(&overview(Rung::Stacks, vec![sleep()], 0));
        let row = "<th>openat2</th><th>page-io</th><th><code>a&lt;b</code></th><td>3</td><td>4.5 ms</td><td>2.0 ms</td>";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("did not answer in time"));
    }

    #[test]
    fn back_ends_are_shown_when_there_are_any() {
        let mut page = overview(Rung::Stacks, vec![], 0);
        let shown = render(&page);
        let row = "<th>/&lt;app&gt;</th><th>127.0.0.1:1</th><td>0</td><td>0</td><td>0</td><th>left alone by 2 workers for ";
        assert!(shown.contains(row), "{shown}");
        page.total.as_mut().unwrap().back_ends.clear();
        assert!(!render(&page).contains("Back ends"));
    }

    #[test]
    fn skew_is_told_when_there_are_workers_to_compare() {
        let mut page = overview(Rung::Stacks, vec![], 0);
        assert!(!render(&page).contains("by the mean of all"));
        let one = |accepted| {
            let mut worker = page.total.clone().unwrap();
            worker.counters.accepted = accepted;
            worker
        };
        page.workers = vec![one(30), one(10)];
        page.skew = crate::tally::Skew::of(&page.workers);
        let words = "by the mean of all (1 is even): accepted 1.50.";
        assert!(render(&page).contains(words), "{}", render(&page));
    }

    #[test]
    fn every_number_is_on_the_page_once_when_groups_share_it_out() {
        let page = render(&overview(Rung::Stacks, vec![], 0));
        for scalar in Counters::default().scalars() {
            let row = format!("<th>{}</th>", scalar.name.replace('_', " "));
            assert_eq!(page.matches(&row).count(), 1, "{}", scalar.name);
        }
    }
}
