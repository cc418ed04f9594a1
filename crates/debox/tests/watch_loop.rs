//! Metrics of event loops: those of a loop by hand, and those of the example for tokio.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use headway_debox::{LoopWatch, kernel_symbols, watch_loop};
use headway_test_support::skip;

#[allow(dead_code, missing_docs)]
#[path = "../examples/watch_tokio.rs"]
mod watch_tokio;

/// The value of a series.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{metrics}"));
    let number = line.rsplit(' ').next().expect("a value");
    number.parse().unwrap_or_else(|_| panic!("{line}"))
}

/// Why sleeps have no call here, if they have none.
fn missing(metrics: &str) -> Option<&'static str> {
    let seen = value(metrics, "headway_trace_level ") == 2.0 && kernel_symbols().is_some();
    (!seen).then_some("stacks and names (perf_event_paranoid, CAP_PERFMON, kptr_restrict)")
}

const SLEPT: &str = "{call=\"clock_nanosleep\",resource=\"timer\"";

/// Needs: tracing with stacks and kernel symbols
#[test]
fn sleep_of_a_handler_is_blocking_and_the_wait_for_events_is_not() {
    let test = "sleep_of_a_handler_is_blocking_and_the_wait_for_events_is_not";
    let watch = watch_loop();
    for _ in 0..3 {
        watch.end_turn();
        std::thread::sleep(Duration::from_millis(2));
        watch.begin_turn();
        std::thread::sleep(Duration::from_millis(5));
    }
    watch.end_turn();
    let metrics = watch.metrics();
    assert_eq!(value(&metrics, "headway_loop_turn_seconds_count "), 3.0);
    if let Some(missing) = missing(&metrics) {
        return skip(test, missing);
    }
    assert_eq!(
        value(&metrics, &format!("headway_loop_blocked_total{SLEPT}")),
        3.0
    );
    let blocked = value(
        &metrics,
        &format!("headway_loop_blocked_seconds_total{SLEPT}"),
    );
    let turns = value(&metrics, "headway_loop_turn_seconds_sum ");
    assert!((0.015..=turns).contains(&blocked), "{blocked} of {turns} s");
    // Another thread may have had a lock of the process's memory meanwhile.
    assert!(value(&metrics, "headway_loop_waits_total ") >= 3.0);
    assert!(value(&metrics, "headway_loop_wait_seconds_total ") >= 0.006);
    assert_eq!(value(&metrics, "headway_trace_lost_records_total "), 0.0);
}

#[test]
fn threads_of_a_loop_add_up_and_another_watch_has_none_of_it() {
    let (watch, other) = (watch_loop(), watch_loop());
    let turn = |watch: &LoopWatch| {
        watch.begin_turn();
        watch.end_turn();
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                turn(&watch);
                turn(&watch);
            });
        }
    });
    // One thread with two loops, one after the other.
    turn(&watch);
    turn(&other);
    let count = |watch: &LoopWatch| value(&watch.metrics(), "headway_loop_turn_seconds_count ");
    assert_eq!((count(&watch), count(&other)), (9.0, 1.0));
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut client = TcpStream::connect(address).expect("the example listens");
    client
        .set_read_timeout(Some(headway_test_support::WAIT_MAX))
        .expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    client.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Needs: tracing with stacks and kernel symbols
#[test]
fn tokio_loop_names_the_call_that_made_its_timer_late() {
    let test = "tokio_loop_names_the_call_that_made_its_timer_late";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || watch_tokio::serve(listener));
    assert!(get(address, "/").ends_with("hello\n"));
    let before = get(address, "/metrics");
    if let Some(missing) = missing(&before) {
        return skip(test, missing);
    }
    assert!(!before.contains(SLEPT), "{before}");
    assert!(get(address, "/slow").ends_with("slept\n"));
    let after = get(address, "/metrics");
    assert_eq!(
        value(&after, &format!("headway_loop_blocked_total{SLEPT}")),
        1.0
    );
    assert!(
        value(
            &after,
            &format!("headway_loop_blocked_seconds_total{SLEPT}")
        ) >= 0.2
    );
    // The timer was due in the first half of the sleep.
    let late = value(&after, "headway_loop_lag_seconds_count ")
        - value(&after, "headway_loop_lag_seconds_bucket{le=\"0.065536\"}");
    assert!(late >= 1.0, "{after}");
}
