//! A run's trace (`trace.json`) beside its requests: which blocked calls of the server fall into
//! which slow requests.
//!
//! The two are joined on the wall clock, which both files tie to their own monotonic times at their
//! beginning. Falling into a request is no proof of having caused it; so the share of slow requests
//! that a label meets stands beside its share of all requests, and only the difference says
//! something.

use std::collections::BTreeMap;

use headway_latency::breakdown::{Flight, SLOW_SHARE, TracedCall, TracedCalls};

/// Most rows that are shown of single calls.
const CALLS_MAX: usize = 12;

/// What the join found.
#[derive(Debug, PartialEq)]
pub(crate) struct Blocked {
    /// Requests with a response.
    pub requests: u64,
    /// Slow requests among them.
    pub slow: u64,
    /// The response time from which on a request is slow.
    pub slow_ns: u64,
    /// Calls that were kept and had slept on something.
    pub calls: u64,
    /// By label, the one that meets most slow requests first.
    pub labels: Vec<LabelJoin>,
    /// The calls that fall into most slow requests.
    pub longest: Vec<CallJoin>,
    /// Whether the trace and the run overlap in time at all.
    pub overlap: bool,
}

/// The blocked calls of one label.
#[derive(Debug, PartialEq)]
pub(crate) struct LabelJoin {
    pub label: String,
    pub calls: u64,
    pub asleep_ns: u64,
    /// Requests during which at least one loop slept.
    pub requests: u64,
    /// Slow requests among them.
    pub slow: u64,
}

/// One blocked call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallJoin {
    pub call: String,
    pub label: String,
    pub site: String,
    /// Nanoseconds after the run's epoch; before it if negative.
    pub start_ns: i128,
    pub wall_ns: u64,
    /// Slow requests that were in flight meanwhile.
    pub slow: u64,
}

/// A request in flight: beginning and end after the epoch.
type Span = (i128, i128);

/// Joins the requests of a run with the calls of its trace.
pub(crate) fn join(flights: &[Flight], calls: &TracedCalls) -> Blocked {
    let flights: Vec<(Span, u64)> = flights
        .iter()
        .map(|flight| ((flight.intended_ns, flight.end_ns), flight.response_ns()))
        .collect();
    let calls = calls.calls().iter().filter(|call| !call.idle);
    joined(&flights, calls.map(CallJoin::from).collect())
}

impl From<&TracedCall> for CallJoin {
    fn from(call: &TracedCall) -> CallJoin {
        CallJoin {
            call: call.call.clone(),
            label: call.label.clone(),
            site: call.site.clone(),
            start_ns: call.start_ns,
            wall_ns: call.wall_ns,
            slow: 0,
        }
    }
}

fn joined(flights: &[(Span, u64)], mut calls: Vec<CallJoin>) -> Blocked {
    let mut times: Vec<u64> = flights
        .iter()
        .map(|(_, response_ns)| *response_ns)
        .collect();
    times.sort_unstable();
    let rank = ((times.len() as f64 * SLOW_SHARE) as usize).min(times.len().saturating_sub(1));
    let slow_ns = times.get(rank).copied().unwrap_or(u64::MAX);
    let slow: Vec<Span> = flights
        .iter()
        .filter(|(_, ns)| *ns >= slow_ns)
        .map(|(flight, _)| *flight)
        .collect();
    let all: Vec<Span> = flights.iter().map(|(flight, _)| *flight).collect();
    let overlap = calls
        .iter()
        .any(|call| all.iter().any(|flight| overlaps(flight, &span(call))));
    let mut by_label: BTreeMap<&str, Vec<&CallJoin>> = BTreeMap::new();
    for call in &calls {
        by_label.entry(&call.label).or_default().push(call);
    }
    let mut labels: Vec<LabelJoin> = by_label
        .into_iter()
        .map(|(label, calls)| {
            let spans = union(calls.iter().map(|call| span(call)).collect());
            LabelJoin {
                label: label.to_owned(),
                calls: calls.len() as u64,
                asleep_ns: calls.iter().map(|call| call.wall_ns).sum(),
                requests: count_overlapping(&all, &spans),
                slow: count_overlapping(&slow, &spans),
            }
        })
        .collect();
    labels.sort_by_key(|label| std::cmp::Reverse(label.slow));
    let count = calls.len() as u64;
    for call in &mut calls {
        call.slow = count_overlapping(&slow, &[span(call)]);
    }
    calls.retain(|call| call.slow > 0);
    calls.sort_by_key(|call| std::cmp::Reverse((call.slow, call.wall_ns)));
    calls.truncate(CALLS_MAX);
    Blocked {
        requests: all.len() as u64,
        slow: slow.len() as u64,
        slow_ns,
        calls: count,
        labels,
        longest: calls,
        overlap,
    }
}

fn span(call: &CallJoin) -> Span {
    (call.start_ns, call.start_ns + i128::from(call.wall_ns))
}

fn overlaps(one: &Span, other: &Span) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// How many flights meet at least one of some spans, which are in order and apart.
fn count_overlapping(flights: &[Span], spans: &[Span]) -> u64 {
    let hit = |flight: &&Span| {
        // The first span that ends after the flight began is the only one that has to be looked at.
        let next = spans.partition_point(|span| span.1 <= flight.0);
        spans.get(next).is_some_and(|span| overlaps(flight, span))
    };
    flights.iter().filter(hit).count() as u64
}

/// Spans in order, with overlapping ones merged.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut apart: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match apart.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => apart.push(span),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::{CallJoin, count_overlapping, joined, union};

    fn call(label: &str, start_ns: i128, wall_ns: u64) -> CallJoin {
        CallJoin {
            call: "read".into(),
            label: label.into(),
            site: "main".into(),
            start_ns,
            wall_ns,
            slow: 0,
        }
    }

    #[test]
    fn blocked_call_is_found_in_the_slow_request_when_both_are_at_one_time() {
        // Request 50 of 100 is slow, and a call sleeps in the middle of it; another sleeps between
        // requests.
        let flights: Vec<_> = (0..100)
            .map(|index| {
                let start = i128::from(index) * 1000;
                let length = if index == 50 { 900 } else { 10 };
                ((start, start + i128::from(length)), length as u64)
            })
            .collect();
        let found = joined(
            &flights,
            vec![call("page-io", 50_100, 500), call("futex", 20_500, 100)],
        );
        assert_eq!((found.requests, found.slow, found.slow_ns), (100, 1, 900));
        assert_eq!(found.labels[0].label, "page-io");
        assert_eq!((found.labels[0].slow, found.labels[0].requests), (1, 1));
        assert_eq!((found.labels[1].slow, found.labels[1].requests), (0, 0));
        assert_eq!(found.longest.len(), 1);
        assert!(found.overlap);
    }

    #[test]
    fn nothing_overlaps_when_the_trace_is_of_another_time() {
        let found = joined(&[((0, 10), 10)], vec![call("pipe", -5_000, 100)]);
        assert!(!found.overlap);
        assert_eq!(found.labels[0].requests, 0);
    }

    #[test]
    fn overlapping_spans_are_counted_once() {
        let spans = union(vec![(5, 9), (0, 3), (2, 4)]);
        assert_eq!(spans, [(0, 4), (5, 9)]);
        assert_eq!(count_overlapping(&[(3, 6), (4, 5), (9, 12)], &spans), 1);
    }
}
