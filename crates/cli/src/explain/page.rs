//! The answer of `headway explain` as a page, in the form of `headway report`.

use headway_base::format::{count, percent, time_ns, time_us};
use headway_explain::{CauseShare, Report};
use headway_report::{Sheet, SheetBars, SheetPart, SheetSection, SheetTable, sheet};

/// Rows of a table.
const ROWS_MAX: usize = 25;

/// The whole document.
pub fn page(report: &Report) -> String {
    let mut sections = vec![causes(report)];
    sections.extend(paths(report));
    sections.extend(upstreams(report));
    sections.extend(sleeps(report));
    sections.extend(ready_events(report));
    sections.extend(server(report));
    sheet(&Sheet {
        maker: "Headway explain".to_owned(),
        title: format!("Why requests of {} wait", report.server),
        about: format!(
            "{} requests in {:.0} s · p50 {} · p95 {} · p99 {}",
            count(report.requests.answered),
            report.duration_s,
            time_us(report.latency.p50_us),
            time_us(report.latency.p95_us),
            time_us(report.latency.p99_us)
        ),
        alarms: report.missing.clone(),
        sections,
        footer: "A request begins when its first bytes arrive at the server's socket.".to_owned(),
    })
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn causes(report: &Report) -> SheetSection {
    let groups = ["all", "p50", "p95", "p99"].map(|point| {
        let share = |phase: &headway_explain::PhaseShare| match point {
            "all" => phase.share.all,
            "p50" => phase.share.p50,
            "p95" => phase.share.p95,
            _ => phase.share.p99,
        };
        let shares = report.phases.iter().map(|phase| Some(share(phase)));
        (point.to_owned(), shares.collect::<Vec<Option<f64>>>(), None)
    });
    let mut parts = vec![SheetPart::Text(report.summary.clone())];
    if report.requests.answered > 0 {
        parts.push(SheetPart::Bars(SheetBars {
            id: "phases".to_owned(),
            title: "Where requests were".to_owned(),
            caption: vec!["Of all requests, and of those around each percentile.".to_owned()],
            source: String::new(),
            above: "share of the time".to_owned(),
            series: (report.phases.iter())
                .map(|phase| phase.phase.name().to_owned())
                .collect(),
            stacked: true,
            groups: Vec::from(groups),
            format: percent,
        }));
    }
    parts.push(SheetPart::Table(SheetTable {
        title: "Causes".to_owned(),
        note: "What the thread did that then accepted, read or answered the request.".to_owned(),
        head: head(&[
            "cause",
            "p50",
            "p95",
            "p99",
            "time",
            "requests",
            "file, holder, waiters",
        ]),
        rows: report.causes.iter().take(ROWS_MAX).map(cause).collect(),
    }));
    if !report.advice.is_empty() {
        parts.push(SheetPart::Table(SheetTable {
            title: "What to change".to_owned(),
            note: String::new(),
            head: head(&["found", "evidence", "what to change"]),
            rows: (report.advice.iter())
                .map(|one| vec![one.finding.clone(), one.evidence.clone(), one.text.clone()])
                .collect(),
        }));
    }
    SheetSection {
        id: "causes",
        title: "Causes".to_owned(),
        lead: String::new(),
        parts,
    }
}

fn cause(cause: &CauseShare) -> Vec<String> {
    let file = cause.files.first().map(|file| file.path.clone());
    let holder = (cause.holders.first()).map(headway_explain::text::holder_in_words);
    let details = [file, holder, headway_explain::text::waiters_in_words(cause)];
    let details: Vec<String> = details.into_iter().flatten().collect();
    vec![
        format!("{}: {}", cause.phase.name(), cause.cause),
        percent(cause.share.p50),
        percent(cause.share.p95),
        percent(cause.share.p99),
        time_ns(cause.total_ns as f64),
        count(cause.requests),
        details.join("; "),
    ]
}

/// A section with one table; `None` if it has no rows.
fn table(
    id: &'static str,
    title: &str,
    names: &[&str],
    rows: Vec<Vec<String>>,
) -> Option<SheetSection> {
    (!rows.is_empty()).then(|| SheetSection {
        id,
        title: title.to_owned(),
        lead: String::new(),
        parts: vec![SheetPart::Table(SheetTable {
            head: head(names),
            rows,
            ..SheetTable::default()
        })],
    })
}

fn paths(report: &Report) -> Option<SheetSection> {
    let rows = report.paths.iter().take(ROWS_MAX).map(|path| {
        vec![
            path.path.clone(),
            headway_explain::text::statuses(path),
            count(path.requests),
            time_us(path.p50_us),
            time_us(path.p99_us),
            percent(path.share),
        ]
    });
    let names = [
        "method and path",
        "status",
        "requests",
        "p50",
        "p99",
        "share of the time",
    ];
    table("paths", "Requests", &names, rows.collect())
}

fn upstreams(report: &Report) -> Option<SheetSection> {
    let rows = report.upstreams.iter().take(ROWS_MAX).map(|upstream| {
        vec![
            upstream.address.clone(),
            upstream.program.clone().unwrap_or_default(),
            count(upstream.connections_max),
            count(upstream.waiting_max),
            percent(upstream.waiting_looks as f64 / upstream.looks.max(1) as f64),
        ]
    });
    let names = [
        "upstream",
        "program",
        "connections",
        "not accepted",
        "of looks",
    ];
    table("upstreams", "Upstreams", &names, rows.collect())
}

fn ready_events(report: &Report) -> Option<SheetSection> {
    let waits = report.ready_events.iter().enumerate();
    let rows = waits
        .filter(|(_, waits)| **waits > 0)
        .map(|(bucket, waits)| {
            let events = match bucket {
                0 | 1 => bucket.to_string(),
                _ => format!("{} to {}", 1_u64 << (bucket - 1), (1_u64 << bucket) - 1),
            };
            vec![events, count(*waits)]
        });
    table(
        "events",
        "Ready events per wait",
        &["events", "waits"],
        rows.collect(),
    )
}

fn sleeps(report: &Report) -> Option<SheetSection> {
    let rows = report.sleeps.iter().take(ROWS_MAX).map(|sleep| {
        vec![
            sleep.call.clone(),
            sleep.label.name().to_owned(),
            count(sleep.times),
            time_ns(sleep.total_ns as f64),
        ]
    });
    let names = ["call", "for", "sleeps", "time"];
    table("sleeps", "Sleeps of its threads", &names, rows.collect())
}

/// Turns of loops, run queue, service inversion and failed calls.
fn server(report: &Report) -> Option<SheetSection> {
    let mut rows: Vec<Vec<String>> = headway_explain::text::of_server(report)
        .into_iter()
        .map(|line| vec![line])
        .collect();
    rows.extend(report.failures.iter().map(|failure| {
        let file = failure.file.as_deref().unwrap_or_default();
        let calls = count(failure.count);
        vec![format!(
            "{calls} × {}: {} {file}",
            failure.call, failure.error
        )]
    }));
    table("server", "The server", &["figure"], rows)
}

#[cfg(test)]
mod tests {
    use headway_explain::{
        CauseShare, Failure, HolderShare, PathShare, Report, Requests, SleepCount, Upstream,
    };

    #[test]
    fn page_has_the_answer_and_escapes_what_came_from_outside() {
        let report = Report {
            server: "ngi<nx".to_owned(),
            summary: "it sleeps & waits".to_owned(),
            requests: Requests {
                answered: 9,
                ..Requests::default()
            },
            causes: vec![CauseShare {
                cause: "asleep in openat".to_owned(),
                blocked: true,
                waiters_max: 2,
                holders: vec![HolderShare {
                    name: "sh (process 7)".to_owned(),
                    woken_in: vec!["up_write".to_owned(), "vfs_unlink".to_owned()],
                    total_ns: 1,
                }],
                ..CauseShare::default()
            }],
            paths: vec![PathShare {
                path: "GET /<b>".to_owned(),
                requests: 9,
                statuses: std::collections::BTreeMap::from([(404, 9)]),
                share: 1.0,
                p50_us: 1.0,
                p99_us: 2.0,
            }],
            upstreams: vec![Upstream {
                address: "127.0.0.1:9000".to_owned(),
                ..Upstream::default()
            }],
            ready_events: vec![0, 0, 5],
            sleeps: vec![SleepCount {
                label: headway_debox::Label::InodeLock,
                call: "readlink".to_owned(),
                times: 84,
                total_ns: 1,
            }],
            failures: vec![Failure {
                call: "write".to_owned(),
                error: "ENOSPC",
                count: 3,
                file: Some("/l<og".to_owned()),
            }],
            ..Report::default()
        };
        let page = super::page(&report);
        for text in [
            "ngi&lt;nx",
            "sleeps &amp; waits",
            "sh (process 7), woken in up_write &lt; vfs_unlink; up to 2 more waiters",
            "asleep in openat",
            "GET /&lt;b&gt;",
            ">404<",
            "127.0.0.1:9000",
            "2 to 3",
            "readlink",
            "3 × write: ENOSPC /l&lt;og",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<b>/"), "{page}");
    }
}
