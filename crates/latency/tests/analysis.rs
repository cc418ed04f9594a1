//! The analysis of rows with known results.

use crate::support;
use headway_base::random::{Draw, SplitMix64};
use headway_latency::analysis::Distribution;
use headway_latency::compare::{CompareError, Evidence, compare};
use headway_latency::run::{LoadInfo, Mode, Window};
use headway_latency::{Analysis, Analyzer, Outcome, Row, RunDescription};
use support::{description, rows};

fn analyze(rows: &[Row]) -> Analysis {
    analyze_as(&description(), rows)
}

fn analyze_as(description: &RunDescription, rows: &[Row]) -> Analysis {
    let mut analyzer = Analyzer::new(description).with_deadline_ms(0.2);
    rows.iter().for_each(|row| analyzer.push(row));
    analyzer.finish()
}

#[test]
fn counts_add_up_when_some_requests_fail() {
    let rows = rows(10_000);
    let found = analyze(&rows);
    let measured: Vec<_> = rows.iter().filter(|row| !row.warmup).collect();
    let failed = measured
        .iter()
        .filter(|row| row.error != Outcome::Ok)
        .count() as u64;
    assert!(failed > 10);
    assert_eq!(
        (
            found.counts.requests,
            found.counts.errors,
            found.counts.warmup
        ),
        (9_000, failed, 1_000)
    );
    assert_eq!(
        (found.errors[0].outcome.as_str(), found.errors[0].requests),
        ("timed-out", failed)
    );
    assert_eq!(
        found
            .statuses
            .iter()
            .map(|count| count.requests)
            .collect::<Vec<_>>(),
        [failed, 9_000 - failed]
    );
    let distribution = found.response.expect("requests");
    let mean = measured.iter().map(|row| row.response_ns()).sum::<u64>() as f64 / 9e6;
    assert!((distribution.mean_us - mean).abs() < 1e-9 && distribution.requests == 9_000);
    let goodput = measured
        .iter()
        .filter(|row| row.error == Outcome::Ok && row.response_ns() <= 200_000)
        .count() as u64;
    assert_eq!(
        (found.goodput[0].deadline_ms, found.goodput[0].requests),
        (0.2, goodput)
    );
    assert!((found.offered_rps.expect("an open loop") - 1000.0).abs() < 1.0);
}

#[test]
fn failed_requests_are_left_out_when_responses_are_grouped() {
    let rows = rows(10_000);
    let found = analyze(&rows);
    let is_complete = |row: &&Row| !row.warmup && row.error == Outcome::Ok;
    let complete = rows.iter().filter(is_complete).count() as u64;
    assert!(complete < 9_000 - 10);
    assert_eq!(found.complete.expect("responses").requests, complete);
    assert_eq!(found.first_byte.expect("responses").requests, complete);
    let handshake = found.handshake.expect("new connections");
    let opened = rows
        .iter()
        .filter(|row| !row.warmup && row.handshake_ns > 0);
    assert_eq!(handshake.requests, opened.count() as u64);
    assert_eq!(handshake.mean_us, 80.0);
    assert_eq!(
        found
            .series
            .iter()
            .map(|series| series.requests)
            .sum::<u64>(),
        complete
    );
    assert_eq!(found.deciles.iter().flatten().sum::<u64>(), complete);
    assert_eq!(
        found
            .by_size
            .iter()
            .map(|group| group.requests)
            .sum::<u64>(),
        complete
    );
    assert_eq!(
        found
            .by_class
            .iter()
            .map(|group| group.class)
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn analysis_has_no_figures_without_requests() {
    for rows in [vec![], rows(100)[..10].to_vec()] {
        let found = analyze(&rows);
        assert_eq!(
            (found.counts.requests, found.response, found.inversion),
            (0, None, None)
        );
        assert_eq!(
            (found.duration_s, found.achieved_rps, found.goodput[0].share),
            (0.0, 0.0, 0.0)
        );
        assert_eq!(found.deciles, [[0; 4]; 10]);
    }
}

#[test]
fn errors_have_their_time_in_the_distribution_when_all_requests_fail() {
    let timed_out = |row: Row| Row {
        error: Outcome::TimedOut,
        end_ns: row.intended_ns + 3_000_000_000,
        ..row
    };
    let found = analyze(&rows(1_000).into_iter().map(timed_out).collect::<Vec<_>>());
    let response = found.response.expect("requests that ended");
    assert_eq!(
        (response.min_us, response.max_us, response.p50_us),
        (3e6, Some(3e6), 3e6)
    );
    assert_eq!(
        (found.complete, found.inversion, found.achieved_rps),
        (None, None, 0.0)
    );
    assert_eq!(found.goodput[0].share, 0.0);
}

/// Four clients begin at once and each gets a part of its body; a run of a number of requests has
/// no other length than theirs.
fn four_rows(error: Outcome) -> Vec<Row> {
    let row = |connection| Row {
        intended_ns: 0,
        start_ns: 0,
        first_byte_ns: 1_000_000,
        end_ns: 1_120_000_000,
        size_bytes: 1000,
        bytes: 700,
        status: 200,
        error,
        connection,
        ordinal: 0,
        class: Row::NO_CLASS,
        target: 0,
        warmup: false,
        handshake_ns: 0,
    };
    (0..4).map(row).collect()
}

#[test]
fn run_is_as_long_as_its_requests_when_none_of_them_is_good() {
    let closed = RunDescription::default();
    for error in [
        Outcome::Ok,
        Outcome::Status,
        Outcome::Length,
        Outcome::ClosedEarly,
        Outcome::Reset,
        Outcome::TimedOut,
        Outcome::Abandoned,
    ] {
        let found = analyze_as(&closed, &four_rows(error));
        assert_eq!(found.duration_s, 1.12, "{error:?}");
        assert_eq!(found.throughput_bytes_per_s, 2800.0 / 1.12, "{error:?}");
    }
}

#[test]
fn waiting_for_timeouts_is_left_out_when_other_requests_were_answered() {
    let mut rows = four_rows(Outcome::Ok);
    let last = rows.last_mut().expect("four");
    (last.error, last.end_ns) = (Outcome::TimedOut, 30_000_000_000);
    let found = analyze_as(&RunDescription::default(), &rows);
    assert_eq!(found.duration_s, 1.12);
    assert_eq!(found.achieved_rps, 3.0 / 1.12);
    // The bytes arrived in a time that does not count.
    assert_eq!(found.throughput_bytes_per_s, 2100.0 / 1.12);
}

#[test]
fn request_the_client_could_not_send_is_an_error_without_a_latency() {
    for outcome in [Outcome::NoPort, Outcome::NoDescriptor] {
        let mut rows = rows(4_000);
        let before = analyze(&rows);
        let last = rows[3_999];
        rows.push(Row {
            error: outcome,
            start_ns: last.intended_ns,
            end_ns: last.intended_ns,
            ..last
        });
        let found = analyze(&rows);
        assert_eq!(found.counts.errors, before.counts.errors + 1);
        assert_eq!(found.counts.requests, before.counts.requests + 1);
        let fastest = |found: &Analysis| found.response.as_ref().map(|response| response.min_us);
        assert_eq!(fastest(&found), fastest(&before), "{outcome}");
    }
}

#[test]
fn request_in_flight_at_the_end_is_counted_and_has_no_latency() {
    let mut rows = rows(4_000);
    let before = analyze(&rows);
    let last = rows[3_999];
    rows.push(Row {
        error: Outcome::Abandoned,
        start_ns: last.intended_ns,
        end_ns: last.intended_ns + 9_000_000_000,
        ..last
    });
    let found = analyze(&rows);
    assert_eq!(
        (found.counts.abandoned, found.counts.requests),
        (1, before.counts.requests)
    );
    assert_eq!(
        found.response.map(|response| response.p99_us),
        before.response.map(|response| response.p99_us)
    );
    assert_eq!(found.late.abandoned_oldest_us, 9e6);
    // It was offered all the same, in a window that it does not lengthen.
    let load = LoadInfo {
        mode: Mode::Open,
        measured: Some(Window {
            start_ns: 0,
            end_ns: 1_000_000_000,
        }),
        ..LoadInfo::default()
    };
    let open = RunDescription {
        load,
        ..description()
    };
    let offered = |rows: &[Row]| analyze_as(&open, rows).offered_rps.expect("an open loop");
    assert_eq!(offered(&rows), offered(&rows[..4_000]) + 1.0);
}

#[test]
fn percentiles_are_withheld_when_requests_without_a_latency_would_change_them() {
    let with = |outcome, requests| {
        let mut rows = rows(4_000);
        let last = rows[3_999];
        let error = outcome;
        rows.extend(std::iter::repeat_n(Row { error, ..last }, requests));
        let found = analyze(&rows);
        let each = [
            !found.withheld,
            found.response.is_some(),
            found.service.is_some(),
            found.complete.is_some(),
            found.first_byte.is_some(),
            found.series.iter().all(|series| series.latency.is_some()),
            !found.by_size.is_empty(),
            !found.by_class.is_empty(),
            found.deciles != [[0; 4]; 10],
            found.inversion.is_some(),
            found.timeline.points.iter().any(|at| at.p50_us.is_some()),
            found.timeline.points.iter().any(|at| at.p99_us.is_some()),
        ];
        assert!(each.iter().all(|shown| *shown == each[0]), "{each:?}");
        // What is counted is shown in any case.
        assert!(found.series.iter().any(|series| series.requests > 0));
        each[0]
    };
    for outcome in [Outcome::NoPort, Outcome::NoDescriptor, Outcome::Abandoned] {
        assert!(with(outcome, 1), "{outcome}");
        assert!(!with(outcome, 5), "{outcome}");
    }
    assert!(!with(Outcome::NoConnection, 1));
    assert!(with(Outcome::TimedOut, 50));
}

#[test]
fn slowest_percentiles_are_withheld_when_a_request_without_a_latency_may_be_there() {
    let with = |untimed| {
        let mut rows = rows(40_000);
        let error = Outcome::Abandoned;
        let last = rows[39_999];
        rows.extend(std::iter::repeat_n(Row { error, ..last }, untimed));
        let response = analyze(&rows).response.expect("requests");
        let last = response.cdf.last().expect("requests").share;
        let shown = [response.p99_9_us, response.p99_99_us, response.max_us];
        (shown.map(|us| us.is_some()), last < 1.0)
    };
    assert_eq!(with(0), ([true; 3], false));
    // A tenth of the requests beyond p99.9 is 0.01 %, and of those beyond p99.99 0.001 %.
    assert_eq!(with(1), ([true, false, false], true));
    assert_eq!(with(8), ([false, false, false], true));
}

#[test]
fn time_from_the_start_leaves_out_requests_that_never_had_a_connection() {
    let mut rows = rows(1_000);
    let before = analyze(&rows);
    let last = rows[999];
    let late = Row {
        start_ns: last.intended_ns + 3_000_000_000,
        end_ns: last.intended_ns + 3_000_000_000,
        ..last
    };
    // A refusal that did not come at once has the number of a connection that it never got.
    for (error, connection) in [
        (Outcome::TimedOut, Row::NO_CONNECTION),
        (Outcome::Refused, Row::NO_CONNECTION),
        (Outcome::Refused, last.connection),
    ] {
        rows.push(Row {
            error,
            connection,
            ..late
        });
    }
    let found = analyze(&rows);
    let requests = |of: &Option<Distribution>| of.as_ref().map_or(0, |of| of.requests);
    assert_eq!(requests(&found.response), requests(&before.response) + 3);
    assert_eq!(requests(&found.service), requests(&before.service));
}

#[test]
fn first_byte_runs_from_the_actual_start_when_the_request_was_late() {
    let late = |row: Row| Row {
        start_ns: row.intended_ns + 700_000_000,
        first_byte_ns: row.intended_ns + 700_250_000,
        end_ns: row.intended_ns + 701_000_000,
        ..row
    };
    let found = analyze(&rows(1_000).into_iter().map(late).collect::<Vec<_>>());
    let max = |found: Option<Distribution>| found.expect("requests").max_us.expect("timed");
    assert_eq!(
        (
            max(found.first_byte),
            max(found.service),
            max(found.response)
        ),
        (250.0, 1_000.0, 701_000.0)
    );
}

#[test]
fn throughput_is_what_ended_in_the_window_when_one_is_described() {
    let rows = rows(1_000);
    let window = Window {
        start_ns: 100_000_000,
        end_ns: 600_000_000,
    };
    let load = LoadInfo {
        mode: Mode::Closed,
        measured: Some(window),
        ..LoadInfo::default()
    };
    let found = analyze_as(
        &RunDescription {
            load,
            ..description()
        },
        &rows,
    );
    let ended =
        |row: &&Row| row.error == Outcome::Ok && (100_000_000..=600_000_000).contains(&row.end_ns);
    assert_eq!(found.duration_s, 0.5);
    assert_eq!(
        found.achieved_rps,
        rows.iter().filter(ended).count() as f64 / 0.5
    );
    assert_eq!(found.offered_rps, None);
}

#[test]
fn figures_are_the_same_when_the_window_is_known_only_at_the_end() {
    let rows = rows(1_000);
    let window = |start_ms: u64, end_ms: u64| Window {
        start_ns: start_ms * 1_000_000,
        end_ns: end_ms * 1_000_000,
    };
    let described = |measured| RunDescription {
        load: LoadInfo {
            mode: Mode::Closed,
            measured,
            ..LoadInfo::default()
        },
        ..description()
    };
    // Planned window, interruption, and result: by time, by interruption, by the number of
    // requests.
    for (planned, interrupted_ms, found) in [
        (window(100, 600), None, Some(window(100, 600))),
        (window(100, 900), Some(600), Some(window(100, 600))),
        (window(100, u64::MAX / 1_000_000), None, None),
    ] {
        let mut analyzer = Analyzer::new(&described(None)).expecting(planned);
        for row in &rows {
            if let Some(interrupted_ms) =
                interrupted_ms.filter(|interrupted_ms| row.end_ns > interrupted_ms * 1_000_000)
            {
                analyzer.end_by(interrupted_ms * 1_000_000);
            }
            analyzer.push(row);
        }
        analyzer.measured_in(found);
        let late = analyzer.finish();
        let early = analyze_as(&described(found), &rows);
        let figures = |of: &Analysis| {
            let rates = (of.achieved_rps, of.throughput_bytes_per_s);
            (of.duration_s, rates, of.counts.clone())
        };
        assert_eq!(figures(&late), figures(&early));
    }
}

#[test]
fn analysis_is_that_of_all_rows_when_two_analyzers_are_merged() {
    let mut rows = rows(5_000);
    // Some start late, or what is said of late starts would be 0 in any case.
    for row in rows.iter_mut().step_by(50) {
        row.start_ns += 5_000_000;
        row.end_ns += 5_000_000;
    }
    let mut halves = [Analyzer::new(&description()), Analyzer::new(&description())];
    for (at, row) in rows.iter().enumerate() {
        halves[usize::from(at % 3 == 0)].push(row);
    }
    let [mut merged, other] = halves;
    merged.merge(&other);
    let mut whole = Analyzer::new(&description());
    rows.iter().for_each(|row| whole.push(row));
    assert_eq!(whole.finish().late.starts, 90);
    assert_eq!(merged.finish(), whole.finish());
}

#[test]
fn stall_is_in_the_timeline_when_a_server_stops_for_a_second() {
    let stalled = |row: Row| {
        let until = 5_000_000_000;
        let hit = (4_000_000_000..until).contains(&row.end_ns);
        Row {
            end_ns: if hit { until } else { row.end_ns },
            ..row
        }
    };
    let description = RunDescription {
        load: LoadInfo {
            duration_s: Some(300.0),
            ..description().load
        },
        ..description()
    };
    let rows: Vec<_> = rows(10_000)
        .into_iter()
        .map(|row| {
            stalled(Row {
                warmup: false,
                ..row
            })
        })
        .collect();
    let found = analyze_as(&description, &rows).timeline;
    assert_eq!((found.step_s, found.points.len()), (1.0, 10));
    assert_eq!(
        (found.points[4].rate_rps, found.points[4].p99_us),
        (0.0, None)
    );
    assert!((found.points[4].offered_rps - 1000.0).abs() < 2.0);
    assert!(found.points[5].p99_us.expect("responses") > 900_000.0);
}

#[test]
fn timeline_has_at_most_600_steps_when_a_run_is_longer_than_described() {
    let spread = |row: Row| Row {
        intended_ns: row.intended_ns * 1000,
        end_ns: row.end_ns * 1000,
        ..row
    };
    let description = RunDescription {
        load: LoadInfo {
            duration_s: Some(10.0),
            ..description().load
        },
        ..description()
    };
    let rows: Vec<_> = rows(3_000).into_iter().map(spread).collect();
    let found = analyze_as(&description, &rows).timeline;
    assert!(
        found.points.len() <= 600 && found.points.len() > 200,
        "{}",
        found.points.len()
    );
    let responses: f64 = found
        .points
        .iter()
        .map(|point| point.rate_rps * found.step_s)
        .sum();
    let complete = rows
        .iter()
        .filter(|row| !row.warmup && row.error == Outcome::Ok)
        .count() as f64;
    assert!((responses - complete).abs() < 0.5, "{responses} {complete}");
}

#[test]
fn comparison_sees_a_difference_only_when_there_is_one() {
    let shifted = |by: u64, seed: u64| {
        let mut random = SplitMix64(seed);
        let rows = rows(20_000).into_iter().map(|row| {
            let end_ns = row.start_ns + 1_000_000 + random.next_u64() % 500_000 + by;
            Row { end_ns, ..row }
        });
        analyze(&rows.collect::<Vec<_>>())
    };
    let (first, same, slower) = (shifted(0, 1), shifted(0, 2), shifted(50_000, 3));
    let evidence = |a, b| {
        compare(a, b)
            .expect("requests")
            .into_iter()
            .map(|found| found.evidence)
            .collect::<Vec<_>>()
    };
    assert_eq!(evidence(&first, &same), [Evidence::None; 4]);
    assert_eq!(evidence(&first, &slower), [Evidence::Higher; 4]);
    assert_eq!(evidence(&slower, &first), [Evidence::Lower; 4]);
    assert_eq!(
        compare(&first, &analyze(&[])),
        Err(CompareError::Empty("second"))
    );
    let untimed = |row: Row| Row {
        error: Outcome::NoConnection,
        ..row
    };
    let withheld: Vec<Row> = rows(100).into_iter().map(untimed).collect();
    assert_eq!(
        compare(&analyze(&withheld), &first),
        Err(CompareError::Withheld("first"))
    );
}

#[test]
fn analysis_is_the_same_when_written_and_read_as_json() {
    let found = analyze(&rows(2_000));
    let text = serde_json::to_string(&found).expect("JSON");
    let mut again: Analysis = serde_json::from_str(&text).expect("an analysis");
    // Fractions may differ in the last bit after JSON; the parts that hold most of them are
    // compared by their ends.
    let ends = |found: &Analysis| {
        let response = found.response.as_ref().expect("requests");
        (
            response.requests,
            response.max_us.map(f64::round),
            response.cdf.len(),
            found.timeline.points.len(),
            found.by_size.len(),
        )
    };
    assert_eq!(ends(&again), ends(&found));
    assert_eq!(
        (&again.counts, again.deciles, &again.statuses),
        (&found.counts, found.deciles, &found.statuses)
    );
    again.response = None;
    assert!(
        serde_json::to_string(&again)
            .expect("JSON")
            .contains("\"response\":null")
    );
}

#[test]
fn percentiles_are_withheld_when_rows_were_dropped() {
    let with = |rows_dropped| {
        let description = RunDescription {
            rows_dropped,
            ..description()
        };
        let found = analyze_as(&description, &rows(4_000));
        (
            found.withheld,
            found.response.and_then(|found| found.max_us).is_some(),
        )
    };
    assert_eq!(with(0), (false, true));
    assert_eq!(with(1), (false, false));
    assert_eq!(with(5), (true, false));
}
