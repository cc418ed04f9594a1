//! What the status page shows.

use super::*;
use crate::features::Feature;
use crate::{MasterStatus, NetworkDrops, Snapshot, Upstream};
use headway_debox::{Report, Site, TraceLevel, Wait};

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
        host_name: "web<1>".into(),
        off: Vec::new(),
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
        let page = render(&page, &History::default());
        assert!(page.contains(expected), "{expected}\n{page}");
        assert!(!page.contains("no <privilege>"));
    }
}

#[test]
fn status_page_lists_a_blocking_call_with_call_site_and_durations() {
    let page = render(
        &overview(TraceLevel::Stacks, vec![sleep()], 0),
        &History::default(),
    );
    let row = "<th>openat2</th><th>page-io</th><th><code>a&lt;b</code></th><td>3</td><td>4.50 ms</td><td>2.00 ms</td>";
    assert!(page.contains(row), "{page}");
    assert!(page.contains("no answer in time"));
}

#[test]
fn status_page_lists_upstreams_when_there_are_any() {
    let mut page = overview(TraceLevel::Stacks, vec![], 0);
    let shown = render(&page, &History::default());
    let row = "<th>/&lt;app&gt;</th><th>127.0.0.1:1</th><td>0</td><td>0</td><td>0</td><th>ejected by 2 workers for ";
    assert!(shown.contains(row), "{shown}");
    page.total.as_mut().unwrap().upstreams.clear();
    assert!(!render(&page, &History::default()).contains("Upstreams"));
}

#[test]
fn each_row_card_and_curve_of_the_status_page_has_a_help() {
    let mut page = overview(TraceLevel::Stacks, vec![sleep()], 0);
    let total = page.total.as_mut().unwrap();
    total.counters.ready_events.record(3);
    total
        .counters
        .http_requests
        .record(200, crate::MethodLabel::Get);
    page.workers = vec![total.clone()];
    page.master.network = Some(NetworkDrops::default());
    page.master.certificate_expiry_s = [("a".to_owned(), 7)].into_iter().collect();
    let shown = render(&page, &History::default());
    let rows = shown.split("<tr").skip(1);
    let mut count = 0;
    for row in rows {
        let help = row
            .strip_prefix(" title=\"")
            .and_then(|rest| rest.split('"').next());
        assert!(help.is_some_and(|help| help.len() > 10), "{row}");
        count += 1;
    }
    assert!(count > 100, "{count}");
    for drawing in shown
        .split("<section")
        .skip(1)
        .filter(|one| one.contains("<svg"))
    {
        assert!(drawing.starts_with(" title=\""), "{drawing}");
    }
}

#[test]
fn status_page_shows_skew_between_several_workers() {
    let mut page = overview(TraceLevel::Stacks, vec![], 0);
    assert!(!render(&page, &History::default()).contains("Busiest worker"));
    let one = |accepted| {
        let mut worker = page.total.clone().unwrap();
        worker.counters.connections_accepted = accepted;
        worker
    };
    page.workers = vec![one(30), one(10)];
    page.skew = crate::Skew::of(&page.workers);
    let expected = "Busiest worker ÷ average (1 is balanced): connections accepted 1.50.";
    assert!(
        render(&page, &History::default()).contains(expected),
        "{}",
        render(&page, &History::default())
    );
}

#[test]
fn status_page_names_the_stage_that_made_the_longest_turn() {
    let mut page = overview(TraceLevel::Stacks, vec![], 0);
    let row = "<th>most of the longest turn</th>";
    assert!(!render(&page, &History::default()).contains(row));
    let longest = &mut page.total.as_mut().unwrap().counters.loop_longest_turn;
    longest.see(5_000, &[0, 100, 4_850, 0, 0, 0, 0, 0, 0, 50]);
    let shown = render(&page, &History::default());
    let row = format!("{row}<td>crypto, 4.85 ms</td>");
    assert!(shown.contains(&row), "{shown}");
}

#[test]
fn status_page_shows_every_number_once() {
    let page = render(
        &overview(TraceLevel::Stacks, vec![], 0),
        &History::default(),
    );
    for series in Counters::default().series() {
        let name = series.key.trim_end_matches("_us").replace('_', " ");
        let row = format!("<th>{name}</th>");
        assert_eq!(page.matches(&row).count(), 1, "{}", series.key);
    }
}

#[test]
fn status_page_names_the_machine_and_helps_with_every_row() {
    let mut overview = overview(TraceLevel::Stacks, vec![sleep()], 0);
    overview.master.network = Some(NetworkDrops::default());
    let counters = &mut overview.total.as_mut().unwrap().counters;
    counters.http_requests.record(404, crate::MethodLabel::Get);
    let page = render(&overview, &History::default());
    assert!(
        page.contains("<title>web&lt;1&gt; · Headway</title>"),
        "{page}"
    );
    let start = "<h2>Of the whole machine, since the start</h2>";
    assert!(page.contains(start), "{page}");
    // Of a wide table the help is that of the whole.
    for section in page.split("<section").skip(1) {
        let rows = section.matches("<tr").count();
        let helped = section.matches("<tr title=\"").count();
        let is_helped =
            section.starts_with(" title=\"") || section.starts_with(" class=\"wide\" title=\"");
        assert!(is_helped || rows == helped, "{section}");
    }
}

#[test]
fn status_page_hides_numbers_of_features_that_are_off() {
    let mut overview = overview(TraceLevel::Stacks, vec![], 0);
    overview.off = vec![
        Feature::Tls,
        Feature::TlsOffload,
        Feature::Http2,
        Feature::Direct,
    ];
    let counters = &mut overview.total.as_mut().unwrap().counters;
    // Counted before a reload has turned it off.
    counters.http2_streams = 7;
    let page = render(&overview, &History::default());
    assert!(!page.contains("<h2>TLS</h2>"), "{page}");
    for (name, is_shown) in [
        ("tls handshakes full", false),
        ("timeouts handshake", false),
        ("timeouts header", true),
        ("http2 connections", false),
        ("http2 streams", true),
        ("handler requests direct", false),
        ("handler requests cgi", true),
    ] {
        let row = format!("<th>{name}</th>");
        assert_eq!(page.contains(&row), is_shown, "{name}");
    }
}
