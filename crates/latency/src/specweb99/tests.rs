use super::*;

const MS: u64 = 1_000_000;

/// A response of 15,000 bytes, which takes 300 ms at 400,000 bit/s, after a wait for the server.
fn row(connection: u32, number: u64, wait_ms: u64, error: Outcome) -> Row {
    let start_ns = 1_000 * MS + number * (300 + wait_ms) * MS;
    Row {
        intended_ns: start_ns,
        start_ns,
        first_byte_ns: start_ns + wait_ms * MS,
        end_ns: start_ns + (300 + wait_ms) * MS,
        size_bytes: 15_000,
        bytes: 15_000,
        status: 200,
        error,
        connection,
        ordinal: 0,
        class: RequestKind::Static.class(1),
        target: 0,
        warmup: false,
        handshake_ns: 0,
    }
}

fn run(waits_ms: &[u64]) -> Iteration {
    let mut conformance = Conformance::new(waits_ms.len() as u32, 0);
    for (connection, &wait_ms) in (0..).zip(waits_ms) {
        (0..200)
            .for_each(|number| conformance.push(&row(connection, number, wait_ms, Outcome::Ok)));
    }
    conformance.finish()
}

#[test]
fn connection_conforms_as_long_as_waiting_costs_a_fifth_when_times_are_known() {
    // 15,000 bytes at 320,000 bit/s are 375 ms: 300 of the line and 75 of waiting.
    let found = run(&[0, 50, 75, 76, 300]);
    assert_eq!(
        (found.connections, found.conforming, found.erring),
        (5, 3, 0)
    );
    assert_eq!(
        found.rates_bits_per_s,
        [400_000, 342_857, 320_000, 319_148, 200_000]
    );
    assert_eq!(found.rate_least_bits_per_s(), 200_000);
    assert_eq!(found.requests, 1000);
    // 200 requests in 60, 70, 75, 75.2 and 120 s: a thousand in 80.04 s.
    assert!((found.rate_rps - 1000.0 / 80.04).abs() < 1e-9);
}

#[test]
fn connection_does_not_conform_when_a_hundredth_of_its_requests_failed() {
    let mut conformance = Conformance::new(3, 0);
    for number in 0..200 {
        let failed = |most| {
            if number < most {
                Outcome::Content
            } else {
                Outcome::Ok
            }
        };
        conformance.push(&row(0, number, 0, failed(1)));
        conformance.push(&row(1, number, 0, failed(2)));
    }
    let found = conformance.finish();
    assert_eq!(
        (found.conforming, found.erring),
        (1, 2),
        "2 of 200 is too much, and the third did nothing"
    );
    assert_eq!(
        found.rates_bits_per_s,
        [398_000, 396_000, 0],
        "wrong responses are no service"
    );
    assert_eq!(found.errors, 3);
}

#[test]
fn rate_is_the_limit_when_a_response_was_ahead_of_it() {
    let mut conformance = Conformance::new(1, 0);
    let mut quick = row(0, 0, 0, Outcome::Ok);
    quick.end_ns = quick.start_ns + MS;
    conformance.push(&quick);
    assert_eq!(conformance.finish().rates_bits_per_s, [400_000]);
}

#[test]
fn rows_do_not_count_when_they_ended_in_the_warm_up_or_were_cut_off() {
    let mut conformance = Conformance::new(1, 31_000 * MS);
    let mut warm = row(0, 0, 5_000, Outcome::TimedOut);
    warm.warmup = true;
    conformance.push(&warm);
    conformance.push(&row(0, 900, 0, Outcome::Abandoned));
    for number in 100..300 {
        conformance.push(&row(0, number, 0, Outcome::Ok));
    }
    let found = conformance.finish();
    assert_eq!(
        (found.conforming, found.requests, found.errors),
        (1, 200, 0)
    );
}

#[test]
fn connection_conforms_when_one_large_file_takes_all_of_the_measured_time() {
    let mut conformance = Conformance::new(1, 5_000 * MS);
    let large = Row {
        bytes: 900_000,
        end_ns: 19_000 * MS,
        warmup: true,
        ..row(0, 0, 0, Outcome::Ok)
    };
    conformance.push(&large);
    let found = conformance.finish();
    assert_eq!((found.conforming, found.requests), (1, 0));
    assert_eq!(found.rates_bits_per_s, [400_000]);
}

#[test]
fn rows_are_counted_by_the_kind_of_their_class() {
    let mut conformance = Conformance::new(1, 0);
    for (number, kind) in (0..).zip(RequestKind::ALL) {
        for class in 0..4 {
            assert_eq!(RequestKind::of_class(kind.class(class)), Some(kind));
        }
        let mut row = row(0, number, 10 * (number + 1), Outcome::Ok);
        row.class = kind.class(2);
        conformance.push(&row);
    }
    assert_eq!(RequestKind::of_class(Row::NO_CLASS), None);
    let found = conformance.finish().kinds;
    let median = |name: &str| {
        let kind = found.iter().find(|one| one.kind == name).expect(name);
        (kind.first_byte.expect("a response").p50_us / 1e3).round()
    };
    assert_eq!(median("static"), 10.0);
    assert_eq!(median("CGI GET"), 50.0);
    assert_eq!(median("dynamic"), 30.0);
    let all = found.iter().find(|one| one.kind == "all").expect("the sum");
    assert_eq!(all.requests, 5);
    assert!(
        all.response.expect("responses").mean_us
            > all.first_byte.expect("responses").mean_us + 299_000.0
    );
}

#[test]
fn score_is_the_median_and_needs_a_right_log_when_all_is_done() {
    let iteration = |conforming| Iteration {
        connections: 100,
        conforming,
        ..Iteration::default()
    };
    let mut info = SpecWeb99Info {
        connections: 100,
        iterations: vec![iteration(97), iteration(100)],
        ..SpecWeb99Info::default()
    };
    info.conclude(3);
    assert_eq!((info.score, info.held), (None, None), "one is missing");
    info.iterations.push(iteration(96));
    info.conclude(3);
    assert_eq!(
        (info.score, info.held),
        (Some(97), Some(false)),
        "the log was not checked"
    );
    info.log = Some(LogInfo::default());
    info.conclude(3);
    assert_eq!((info.score, info.held), (Some(97), Some(true)));
    info.log = Some(LogInfo {
        missing: 1,
        ..LogInfo::default()
    });
    info.conclude(3);
    assert_eq!(info.held, Some(false));
    info.iterations[0].conforming = 94;
    info.iterations[2].conforming = 93;
    info.log = Some(LogInfo::default());
    info.conclude(3);
    assert_eq!((info.score, info.held), (Some(94), Some(false)));
    assert_eq!(info.median().map(|one| one.conforming), Some(94));
}
