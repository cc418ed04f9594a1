//! The status page: one self-contained, self-refreshing HTML document.
//!
//! The first line says whether the event loops ever blocked. The page loads nothing from elsewhere
//! and runs no script, so it works in any browser and under the strictest content policy.

mod calls;
mod distributions;
mod sparklines;
mod summary;
mod upstreams;
mod workers;

use std::fmt::Write;
use std::time::Instant;

use headway_base::format;
use headway_base::html::escaped;

use super::history::History;
use crate::families::{FixedFamily, GROUPS};
use crate::features::Feature;
use crate::{Counters, NetworkDrops, Overview, Pinned, Stored};

const STYLE: &str = include_str!("page.css");

/// The page of one moment, after the last minute.
pub fn render(overview: &Overview, history: &History) -> String {
    let mut out = String::with_capacity(32 * 1024);
    let host = escaped(&overview.host_name);
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    let _ = write!(
        out,
        "<meta http-equiv=\"refresh\" content=\"2\"><title>{host} · Headway</title><style>"
    );
    out.push_str(STYLE);
    out.push_str("</style></head><body><main>");
    match &overview.total {
        None => {
            out.push_str("<h1>Waiting for the first worker</h1>");
            workers::table(&mut out, overview);
        }
        Some(total) => {
            summary::blocking_summary(&mut out, total, overview);
            sparklines::row(&mut out, history.points(), Instant::now());
            calls::sleeps(&mut out, &total.trace);
            workers::table(&mut out, overview);
            upstreams::table(&mut out, &total.upstreams);
            out.push_str("<div class=\"cards\">");
            responses(&mut out, &total.counters);
            numbers(&mut out, &total.counters, &overview.off);
            let (stored, pinned) = (&overview.master.stored, &overview.master.pinned);
            section(&mut out, "Content store", stored.as_ref().map(Stored::all));
            section(
                &mut out,
                "Page-cache pinning",
                pinned.as_ref().map(Pinned::all),
            );
            certificates(&mut out, overview);
            network(&mut out, overview.master.network.as_ref());
            distributions::accepting(&mut out, &total.counters);
            distributions::request_stages(&mut out, &total.counters);
            distributions::loop_times(&mut out, &total.counters);
            distributions::ready_events(&mut out, &total.counters.ready_events);
            distributions::helper_times(&mut out, &total.counters);
            calls::calls(&mut out, &total.trace);
            out.push_str("</div>");
        }
    }
    footer(&mut out, overview);
    out.push_str("</main></body></html>\n");
    out
}

fn responses(out: &mut String, counters: &Counters) {
    let by_status = counters.http_requests.by_status().into_iter();
    let rows: Vec<Row> = by_status
        .map(|(status, count)| {
            let name = format!("{status} {}", phrase(status));
            Row::new(
                name,
                "Requests answered with this status.",
                format::count(count),
            )
        })
        .collect();
    let total = format::count(counters.http_requests.total());
    card(out, &format!("Responses: {total}"), &rows);
}

/// How long the certificates in use are valid.
fn certificates(out: &mut String, overview: &Overview) {
    let all = &overview.master.certificate_expiry_s;
    let left = |until_s: u64| match until_s.checked_sub(overview.time_ms / 1000) {
        Some(left_s) => duration_ms(left_s * 1000),
        None => "expired".to_owned(),
    };
    let help = "Time until the certificate with this first name expires.";
    let rows: Vec<Row> = all
        .iter()
        .map(|(name, until_s)| Row::new(name, help, left(*until_s)))
        .collect();
    if !rows.is_empty() {
        card(out, "Certificates expire in", &rows);
    }
}

/// What the kernel has dropped. It counts for the whole machine, or the container.
fn network(out: &mut String, drops: Option<&NetworkDrops>) {
    let Some(drops) = drops else { return };
    let all = drops.all().into_iter();
    let rows: Vec<Row> = all
        .map(|(key, family, value)| {
            Row::new(key.replace('_', " "), family.help, format::count(value))
        })
        .collect();
    card(out, "Of the whole machine, since the start", &rows);
}

fn phrase(status: u16) -> &'static str {
    headway_http::Status::from_code(status).map_or("", headway_http::Status::phrase)
}

/// One table for each group of counters, without what is off.
fn numbers(out: &mut String, counters: &Counters, off: &[Feature]) {
    let is_off = |group, key| Feature::of(group, key).is_some_and(|feature| off.contains(&feature));
    let mut all = counters.series();
    // After a reload there may be numbers of a feature that is off now.
    all.retain(|series| series.value > 0 || !is_off(series.group, series.key));
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

fn footer(out: &mut String, overview: &Overview) {
    let master = &overview.master;
    let _ = write!(
        out,
        "<footer>{} · Headway {} on {} · master {}, uptime {} · worker crashes: {} · helpers started: {} · \
         <a href=\"/status.json\">JSON</a> · <a href=\"/metrics\">metrics</a></footer>",
        escaped(&overview.host_name),
        escaped(&overview.version),
        escaped(&master.listen.join(", ")),
        master.pid,
        duration_ms(master.uptime_ms),
        master.worker_deaths,
        master.helpers_started
    );
}

/// A column of a wide table.
struct Column {
    name: &'static str,
    help: &'static str,
    is_number: bool,
}

impl Column {
    const fn text(name: &'static str, help: &'static str) -> Column {
        Column {
            name,
            help,
            is_number: false,
        }
    }

    const fn number(name: &'static str, help: &'static str) -> Column {
        Column {
            is_number: true,
            ..Column::text(name, help)
        }
    }
}

/// Begins a table whose rows have one help, and whose columns have their own.
fn begin_table(out: &mut String, (title, help): (&str, &str), columns: &[Column]) {
    let _ = write!(
        out,
        "<section class=\"wide\" title=\"{help}\"><h2>{title}</h2><div class=\"scroll\"><table><tr title=\"{help}\">"
    );
    for column in columns {
        let tag = if column.is_number { "td" } else { "th" };
        let Column { name, help, .. } = column;
        let _ = write!(out, "<{tag} title=\"{help}\">{name}</{tag}>");
    }
    out.push_str("</tr>");
}

/// A row of a card.
struct Row {
    name: String,
    /// Shown when the mouse is over the row.
    help: String,
    value: String,
}

impl Row {
    fn new(name: impl Into<String>, help: impl Into<String>, value: String) -> Row {
        Row {
            name: name.into(),
            help: help.into(),
            value,
        }
    }
}

fn card(out: &mut String, title: &str, rows: &[Row]) {
    let _ = write!(out, "<section><h2>{title}</h2><table>");
    for Row { name, help, value } in rows {
        let _ = write!(
            out,
            "<tr title=\"{}\"><th>{}</th><td>{}</td></tr>",
            escaped(help),
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
mod tests;
