//! The status page: one self-contained, self-refreshing HTML document.
//!
//! The first line says whether the event loops ever blocked. The page loads nothing from elsewhere
//! and runs no script, so it works in any browser and under the strictest content policy.

mod upstreams;

use headway_base::format::{self, time_ns};
use headway_base::html::escaped;
use headway_debox::{Report, TraceLevel};
use std::fmt::Write;

use crate::families::{FixedFamily, GROUPS};
use crate::{Counters, Histogram, NetworkDrops, Overview, Pinned, Snapshot, Stored};

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
            out.push_str("<h1>Waiting for the first worker</h1>");
            workers(&mut out, overview);
        }
        Some(total) => {
            blocking_summary(&mut out, total, overview);
            sleeps(&mut out, &total.trace);
            workers(&mut out, overview);
            upstreams::table(&mut out, &total.upstreams);
            out.push_str("<div class=\"cards\">");
            responses(&mut out, &total.counters);
            numbers(&mut out, &total.counters);
            let (stored, pinned) = (&overview.master.stored, &overview.master.pinned);
            section(&mut out, "Content store", stored.as_ref().map(Stored::all));
            section(
                &mut out,
                "Page-cache pinning",
                pinned.as_ref().map(Pinned::all),
            );
            accepting(&mut out, &total.counters, overview);
            loop_times(&mut out, &total.counters);
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

fn blocking_summary(out: &mut String, total: &Snapshot, overview: &Overview) {
    let trace = &total.trace;
    let blocked = trace.blocked_count();
    let calls = format::count(trace.calls.values().copied().fold(0, u64::saturating_add));
    let time = duration_ms(overview.master.uptime_ms);
    let (class, title, detail) = match (&trace.level, blocked) {
        (TraceLevel::Off { why }, _) => (
            "unknown",
            "The event loops are not traced".into(),
            format!("Cannot tell whether they blocked: {why}"),
        ),
        (_, 0) if trace.lost_records > 0 => (
            "unknown",
            "The event loops blocked 0 times, as far as recorded".into(),
            format!("{calls} system calls in {time}."),
        ),
        (_, 0) => (
            "good",
            "The event loops blocked 0 times".into(),
            format!(
                "{calls} system calls in {time}. This page names every sleep outside the event wait."
            ),
        ),
        (_, blocked) => (
            "bad",
            format!(
                "The event loops blocked {} time{}",
                format::count(blocked),
                if blocked == 1 { "" } else { "s" }
            ),
            format!(
                "{} in total, in {calls} system calls over {time}. The table below names the calls.",
                time_ns(trace.blocked_ns() as f64)
            ),
        ),
    };
    let _ = write!(
        out,
        "<header class=\"{class}\"><h1>{title}</h1><p>{}</p>",
        escaped(&detail)
    );
    if trace.lost_records > 0 {
        let lost = format::count(trace.lost_records);
        let _ = write!(
            out,
            "<p class=\"warn\">{lost} trace records were lost, so sleeps may be missing.</p>"
        );
    }
    if let TraceLevel::SwitchesOnly { why } = &trace.level {
        let _ = write!(
            out,
            "<p class=\"warn\">The kernel functions of sleeps are unknown: {}</p>",
            escaped(why)
        );
    }
    if let Some(error) = &overview.master.log_error {
        let lost = format::count(overview.master.log_lines_lost);
        let error = escaped(error);
        let _ = write!(
            out,
            "<p class=\"warn\">Access log: {error}; {lost} lines lost.</p>"
        );
    }
    if let Some(error) = &overview.master.reload_error {
        let error = escaped(error);
        let _ = write!(
            out,
            "<p class=\"warn\">The last reload failed: {error}. The configuration before is in use.</p>"
        );
    }
    out.push_str("</header>");
}

fn responses(out: &mut String, counters: &Counters) {
    let rows: Vec<(String, String)> = counters
        .http_requests
        .by_status()
        .into_iter()
        .map(|(status, count)| (format!("{status} {}", phrase(status)), format::count(count)))
        .collect();
    card(
        out,
        &format!(
            "Responses: {}",
            format::count(counters.http_requests.total())
        ),
        &rows,
    );
}

fn phrase(status: u16) -> &'static str {
    headway_http::Status::from_code(status).map_or("", headway_http::Status::phrase)
}

/// One table for each group of counters.
fn numbers(out: &mut String, counters: &Counters) {
    let all = counters.series();
    for group in GROUPS {
        let mut series = all.iter().filter(|series| series.group == group).peekable();
        if series.peek().is_none() {
            continue;
        }
        let _ = write!(out, "<section><h2>{group}</h2><table>");
        for series in series {
            row(out, series.key, series.help, series.value);
        }
        out.push_str("</table></section>");
    }
}

/// One number with its description as a tooltip.
fn row(out: &mut String, key: &str, help: &str, value: u64) {
    let value = match key.contains("bytes") {
        true => format::bytes(value as f64),
        false if key.ends_with("_us") => format::time_us(value as f64),
        false => format::count(value),
    };
    // The value has its unit.
    let name = key.trim_end_matches("_us").replace('_', " ");
    let help = escaped(help);
    let _ = write!(
        out,
        "<tr title=\"{help}\"><th>{name}</th><td>{value}</td></tr>"
    );
}

/// Numbers of the store process, if it does this.
fn section<const COUNT: usize>(
    out: &mut String,
    heading: &str,
    numbers: Option<[(&'static FixedFamily, u64); COUNT]>,
) {
    let Some(numbers) = numbers else { return };
    let _ = write!(out, "<section><h2>{heading}</h2><table>");
    for (family, value) in numbers {
        let name = family.name.trim_start_matches("headway_");
        row(out, name.trim_end_matches("_total"), family.help, value);
    }
    out.push_str("</table></section>");
}

/// How connections are accepted, and what the kernel dropped before (Brecht and Ostrowski, section
/// 6).
fn accepting(out: &mut String, counters: &Counters, overview: &Overview) {
    let share = |part: u64, of: u64| match of {
        0 => "–".into(),
        of => format!("{:.1} %", 100.0 * part as f64 / of as f64),
    };
    let mean = |of: &Histogram| of.mean().map_or("–".into(), |mean| format!("{mean:.2}"));
    let (accepted, rejected) = (
        counters.connections_accepted,
        counters.connections_rejected_per_address,
    );
    let successful = accepted.saturating_add(rejected);
    let mut rows = vec![
        (
            "successful accept calls".to_owned(),
            share(successful, counters.accept_calls),
        ),
        (
            "connections per accept batch".to_owned(),
            mean(&counters.accept_batch_connections),
        ),
        (
            "open connections at accept, mean".to_owned(),
            mean(&counters.connections_at_accept),
        ),
    ];
    let drops = overview.master.network.as_ref();
    for (key, _, value) in drops.map(NetworkDrops::all).unwrap_or_default() {
        rows.push((
            format!("kernel: {}", key.replace('_', " ")),
            format::count(value),
        ));
    }
    card(out, "Accept statistics", &rows);
}

/// How long the loops computed, which holds up clients as a sleep does.
fn loop_times(out: &mut String, counters: &Counters) {
    let of = [
        ("turn", &counters.loop_turn_us),
        ("wait of a ready event", &counters.loop_lag_us),
    ];
    times(out, "Turns of the event loops", of);
}

fn helper_times(out: &mut String, counters: &Counters) {
    let of = [
        ("waiting", &counters.helper_wait_us),
        ("service", &counters.helper_service_us),
    ];
    times(out, "Helper job times", of);
}

fn times(out: &mut String, title: &str, of: [(&str, &Histogram); 2]) {
    let mut rows = Vec::new();
    for (what, times) in of {
        for (quantile, name) in [(0.5, "p50"), (0.95, "p95"), (0.99, "p99"), (1.0, "max")] {
            let shown = times
                .quantile(quantile)
                .map_or("–".into(), |us| format::time_us(us as f64));
            rows.push((format!("{what}, {name}"), shown));
        }
    }
    card(out, title, &rows);
}

/// The distribution of ready events per wakeup (Figure 1 of the 2006 paper). A loop that never
/// blocks finds few; one that blocked finds many.
fn ready_events(out: &mut String, histogram: &Histogram) {
    const WIDTH: f64 = 300.0;
    const HEIGHT: f64 = 120.0;
    let Some(mean) = histogram.mean() else {
        return card(
            out,
            "Ready events per wakeup",
            &[("wakeups".into(), "0".into())],
        );
    };
    let top = (histogram.max().max(2) as f64 + 1.0).log2();
    let x = |value: u64| (value as f64 + 1.0).log2() / top * WIDTH;
    let mut path = format!("M0 {HEIGHT}");
    let mut below = 0;
    for (upper, count) in histogram.buckets() {
        below = count.saturating_add(below);
        let height = HEIGHT - below as f64 / histogram.count() as f64 * HEIGHT;
        let _ = write!(path, "H{:.1}V{height:.1}", x(upper.min(histogram.max())));
    }
    let _ = write!(
        out,
        "<section><h2>Ready events per wakeup</h2><svg viewBox=\"-28 -8 344 152\" role=\"img\" \
         aria-label=\"cumulative distribution of ready events per wakeup\">\
         <path class=\"axis\" d=\"M0 0V{HEIGHT}H{WIDTH}\"/><path class=\"curve\" d=\"{path}H{WIDTH}\"/>\
         <text x=\"-4\" y=\"4\" text-anchor=\"end\">1</text>\
         <text x=\"-4\" y=\"{HEIGHT}\" text-anchor=\"end\">0</text>"
    );
    let next = |tick: &u64| tick.checked_mul(if *tick < 16 { 2 } else { 4 });
    let ticks = std::iter::successors(Some(1), next);
    for tick in ticks.take_while(|tick| *tick <= histogram.max().max(2)) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"136\" text-anchor=\"middle\">{tick}</text>",
            x(tick)
        );
    }
    let (count, max) = (
        format::count(histogram.count()),
        format::count(histogram.max()),
    );
    let _ = write!(
        out,
        "</svg><p>Cumulative share of {count} wakeups; mean {mean:.2}, maximum {max}.</p></section>"
    );
}

fn sleeps(out: &mut String, trace: &Report) {
    out.push_str("<section class=\"wide\"><h2>Sleeps outside the event wait</h2>");
    if trace.sleeps.is_empty() {
        out.push_str("<p>None.</p></section>");
        return;
    }
    out.push_str("<div class=\"scroll\"><table><tr><th>System call</th><th>Resource</th><th>Kernel function</th>");
    out.push_str("<td>Count</td><td>Total</td><td>Max</td></tr>");
    for site in &trace.sleeps {
        let symbol = site.symbol.as_deref().unwrap_or("unknown");
        let _ = write!(
            out,
            "<tr><th>{}</th><th>{}</th><th><code>{}</code></th><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&site.call),
            site.label,
            escaped(symbol),
            format::count(site.count),
            time_ns(site.total_ns as f64),
            time_ns(site.max_ns as f64)
        );
    }
    out.push_str("</table></div></section>");
}

fn calls(out: &mut String, trace: &Report) {
    let mut calls: Vec<_> = trace.calls.iter().collect();
    calls.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let mut rows: Vec<(String, String)> = calls
        .into_iter()
        .map(|(call, count)| (call.clone(), format::count(*count)))
        .collect();
    let waits = format!(
        "{} ({})",
        format::count(trace.waits.count),
        time_ns(trace.waits.total_ns as f64)
    );
    rows.push(("sleeps in the event wait".into(), waits));
    rows.push(("preemptions".into(), format::count(trace.preemptions.count)));
    card(out, "System calls of the event loops", &rows);
}

fn workers(out: &mut String, overview: &Overview) {
    out.push_str(
        "<section class=\"wide\"><h2>Workers</h2><div class=\"scroll\"><table><tr><th>Worker</th>",
    );
    out.push_str(
        "<td>PID</td><td>Uptime</td><td>Connections</td><td>Accepted</td><td>Requests</td>",
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
            format::count(counters.connections_open),
            format::count(counters.connections_accepted),
            format::count(counters.requests_received),
            format::count(counters.helpers),
            format::count(worker.trace.blocked_count()),
            escaped(&worker.events),
            escaped(&worker.residency)
        );
    }
    for number in &overview.unresponsive {
        let _ = write!(
            out,
            "<tr><th>{number}</th><td colspan=\"8\">no answer in time</td></tr>"
        );
    }
    out.push_str("</table></div>");
    skew(out, overview);
    out.push_str("</section>");
}

/// Whether one worker has more than its share.
fn skew(out: &mut String, overview: &Overview) {
    let found = overview.skew.all();
    let ratios: Vec<String> = found
        .iter()
        .filter_map(|(name, skew)| Some(format!("{} {:.2}", name.replace('_', " "), (*skew)?)))
        .collect();
    if !ratios.is_empty() {
        let _ = write!(
            out,
            "<p>Busiest worker ÷ average (1 is balanced): {}.</p>",
            ratios.join(", ")
        );
    }
}

fn footer(out: &mut String, overview: &Overview) {
    let master = &overview.master;
    let _ = write!(
        out,
        "<footer>Headway {} on {} · master {}, uptime {} · worker crashes: {} · helpers started: {} · \
         <a href=\"/status.json\">JSON</a> · <a href=\"/metrics\">metrics</a></footer>",
        escaped(&overview.version),
        escaped(&master.listen.join(", ")),
        master.pid,
        duration_ms(master.uptime_ms),
        master.worker_deaths,
        master.helpers_started
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
    use crate::{MasterStatus, Upstream};
    use headway_debox::{Site, Wait};

    fn overview(level: TraceLevel, sleeps: Vec<Site>, lost_records: u64) -> Overview {
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
            upstreams: vec![
                Upstream {
                    location: "/<app>".into(),
                    address: "127.0.0.1:1".into(),
                    ejected: 2,
                    ejection_remaining_ms: 1_500,
                    ..Upstream::default()
                },
                Upstream::default(),
            ],
            trace: Report {
                level,
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
            master: MasterStatus::default(),
            total: Some(total),
            workers: Vec::new(),
            unresponsive: vec![1],
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
    fn status_page_is_green_only_when_all_calls_were_traced_and_none_blocked() {
        let off = TraceLevel::Off {
            why: "no <privilege>".into(),
        };
        for (page, expected) in [
            (
                overview(TraceLevel::Stacks, vec![], 0),
                "class=\"good\"><h1>The event loops blocked 0 times<",
            ),
            (
                overview(TraceLevel::Stacks, vec![sleep()], 0),
                "class=\"bad\"><h1>The event loops blocked 3 times<",
            ),
            (
                overview(TraceLevel::Stacks, vec![], 2),
                "class=\"unknown\"><h1>The event loops blocked 0 times, as",
            ),
            (
                overview(off, vec![], 0),
                "class=\"unknown\"><h1>The event loops are not traced<",
            ),
        ] {
            let page = render(&page);
            assert!(page.contains(expected), "{expected}\n{page}");
            assert!(!page.contains("no <privilege>"));
        }
    }

    #[test]
    fn status_page_lists_a_blocking_call_with_call_site_and_durations() {
        let page = render(&overview(TraceLevel::Stacks, vec![sleep()], 0));
        let row = "<th>openat2</th><th>page-io</th><th><code>a&lt;b</code></th><td>3</td><td>4.50 ms</td><td>2.00 ms</td>";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("no answer in time"));
    }

    #[test]
    fn status_page_lists_upstreams_when_there_are_any() {
        let mut page = overview(TraceLevel::Stacks, vec![], 0);
        let shown = render(&page);
        let row = "<th>/&lt;app&gt;</th><th>127.0.0.1:1</th><td>0</td><td>0</td><td>0</td><th>ejected by 2 workers for ";
        assert!(shown.contains(row), "{shown}");
        page.total.as_mut().unwrap().upstreams.clear();
        assert!(!render(&page).contains("Upstreams"));
    }

    #[test]
    fn status_page_shows_skew_between_several_workers() {
        let mut page = overview(TraceLevel::Stacks, vec![], 0);
        assert!(!render(&page).contains("Busiest worker"));
        let one = |accepted| {
            let mut worker = page.total.clone().unwrap();
            worker.counters.connections_accepted = accepted;
            worker
        };
        page.workers = vec![one(30), one(10)];
        page.skew = crate::Skew::of(&page.workers);
        let expected = "Busiest worker ÷ average (1 is balanced): connections accepted 1.50.";
        assert!(render(&page).contains(expected), "{}", render(&page));
    }

    #[test]
    fn status_page_shows_every_number_once() {
        let page = render(&overview(TraceLevel::Stacks, vec![], 0));
        for series in Counters::default().series() {
            let name = series.key.trim_end_matches("_us").replace('_', " ");
            let row = format!("<th>{name}</th>");
            assert_eq!(page.matches(&row).count(), 1, "{}", series.key);
        }
    }
}
