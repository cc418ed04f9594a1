//! The section of a SPECweb99-like run: score, log and each kind of request, and what is said when
//! an iteration is gone.

use crate::support;
use std::path::Path;

use headway_latency::run::{Kind, Mode};
use headway_latency::specweb99::{Conformance, LogInfo, RequestKind, SpecWeb99Info};
use headway_latency::{Outcome, Row};
use headway_report::Report;
use support::{Behaviour, Example, write_description, write_rows};

fn page(path: &Path) -> String {
    let report = Report::read(&[path.to_owned()]);
    report.expect("run directories that can be opened").html()
}

/// A SPECweb99-like run of two connections, one of which is too slow, as its directory would be.
fn write_specweb99(path: &Path, label: &str) {
    let example = Example::new(label, Behaviour::Steady, 900.0).seconds(4.0);
    let mut description = example.description(100.0);
    description.load.mode = Mode::Closed;
    description.load.rate_rps = None;
    description.load.connections = Some(2);
    let rows: Vec<Row> = (0..200_u64)
        .map(|number| {
            let connection = (number % 2) as u32;
            let length_ns = 300_000_000 + u64::from(connection) * 200_000_000;
            let start_ns = 2_000_000_000 + number / 2 * length_ns;
            Row {
                intended_ns: start_ns,
                start_ns,
                first_byte_ns: start_ns + 1_500_000,
                end_ns: start_ns + length_ns,
                size_bytes: 15_000,
                bytes: 15_000,
                status: 200,
                error: Outcome::Ok,
                connection,
                ordinal: 0,
                class: RequestKind::ALL[number as usize / 2 % 5].class(1),
                target: 0,
                warmup: false,
                handshake_ns: 0,
            }
        })
        .collect();
    let mut conformance = Conformance::new(2, 0);
    rows.iter().for_each(|row| conformance.push(row));
    let mut iteration = conformance.finish();
    write_rows(&path.join("iterations/1"), &description, &rows);
    iteration.directory = "iterations/1".into();
    let mut info = SpecWeb99Info {
        connections: 2,
        data_rule: true,
        rate_max_bits_per_s: 400_000,
        rate_min_bits_per_s: 320_000.0,
        iterations: vec![iteration],
        log: Some(LogInfo {
            records: 40,
            acknowledged: 40,
            ..LogInfo::default()
        }),
        ..SpecWeb99Info::default()
    };
    info.conclude(1);
    description.kind = Kind::SpecWeb99;
    description.specweb99 = Some(info);
    write_description(path, &description);
}

#[test]
fn score_and_each_kind_of_request_are_shown_when_a_run_is_specweb99_like() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    write_specweb99(directory.path(), "<b>a server</b>");
    let html = page(directory.path());
    let (_, section) = html
        .split_once("<section id=\"specweb99\">")
        .expect("the section");
    let (section, _) = section.split_once("</section>").expect("its end");
    for text in [
        "1 of 2 connections conform",
        "the load is not held",
        "not a SPEC result",
        "400\u{202f}kbit/s",
        "240\u{202f}kbit/s",
        "custom GET",
        "CGI GET",
        "40 records, in order",
        "conforms from here",
        "1.50\u{202f}ms",
        "&lt;b&gt;a server",
    ] {
        assert!(section.contains(text), "{text}: {section}");
    }
    assert!(!html.contains("<b>a server"));
    let other = tempfile::tempdir().expect("a directory for the test");
    let alone = Example::new("alone", Behaviour::Steady, 900.0).seconds(4.0);
    alone.write_load(&other.path().join("run"), 400.0);
    let plain = page(&other.path().join("run"));
    assert!(
        !plain.contains("specweb99\""),
        "a run of another kind has no score"
    );
}

#[test]
fn page_says_which_iteration_is_missing_when_it_was_removed() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    write_specweb99(directory.path(), "a server");
    std::fs::remove_dir_all(directory.path().join("iterations/1")).expect("an iteration");
    let html = page(directory.path());
    assert!(html.contains("Iteration 1: "), "nothing is said");
}
