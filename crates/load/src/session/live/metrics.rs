//! The metrics of a run: sums over its measured part, and its state.
//!
//! The percentiles are of one second and one client, exact to 0.1 %. The histogram is for several clients
//! together, and for averages over other times.

use crate::session::progress::Snapshot;
use headway_latency::export::Second;
use headway_latency::{Histogram, Outcome};

/// A sample of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// The name of the metric.
    pub name: String,
    /// Its own labels. Those of all samples come from the run.
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
    /// Milliseconds since 1970.
    pub at_ms: i64,
}

/// What ends a series: a NaN that is no result of arithmetic (`value.StaleNaN` of Prometheus).
pub(super) const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

/// What is known about a metric.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The whole name.
    pub name: &'static str,
    /// The labels besides those of the run.
    pub labels: &'static [&'static str],
    /// The type, as Prometheus calls it.
    pub kind: &'static str,
    /// One sentence about it.
    pub help: &'static str,
}

macro_rules! families {
    ($( $constant:ident $kind:literal $name:literal $labels:expr, $help:literal; )*) => {
        $( const $constant: &str = $name; )*

        /// All metrics.
        pub const FAMILIES: &[Family] = &[ $( Family {
            name: $name,
            labels: &$labels,
            kind: $kind,
            help: $help,
        }, )* ];
    };
}

families! {
    REQUESTS "counter" "headway_load_requests_total" ["outcome"],
        "Requests of the measured part that have ended, by outcome.";
    BODY_BYTES "counter" "headway_load_received_body_bytes_total" [],
        "Bytes of response bodies received in the measured part.";
    RESPONSE "histogram" "headway_load_response_seconds" [],
        "Response times of the measured part, from the intended start.";
    PERCENTILE "gauge" "headway_load_response_percentile_seconds" ["percent"],
        "Percentiles of the response times of the last second. Absent if nothing ended in it.";
    STARTED "counter" "headway_load_requests_started_total" [],
        "Requests started, those of the warm-up included.";
    IN_FLIGHT "gauge" "headway_load_requests_in_flight" [],
        "Requests now on a connection, or on one that is being opened.";
    WAITING "gauge" "headway_load_requests_waiting" [],
        "Requests that wait for a connection now (open loop).";
    CONNECTIONS "gauge" "headway_load_connections" [],
        "Connections open now.";
    DROPPED "counter" "headway_load_rows_dropped_total" [],
        "Requests that the client could not record.";
}

/// The limits of the histogram's buckets in microseconds, and as labels.
const LIMITS: [(u64, &str); 18] = [
    (50, "0.00005"),
    (100, "0.0001"),
    (200, "0.0002"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_000, "0.002"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (20_000, "0.02"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (200_000, "0.2"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_000_000, "2"),
    (5_000_000, "5"),
    (10_000_000, "10"),
    (20_000_000, "20"),
];

/// The percentiles and their labels.
const PERCENTS: [(f64, &str); 6] = [
    (50.0, "50"),
    (90.0, "90"),
    (95.0, "95"),
    (99.0, "99"),
    (99.9, "99.9"),
    (100.0, "100"),
];

/// The sums of a run so far.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    outcomes: [u64; Outcome::ALL.len()],
    body_bytes: u64,
    response: Histogram,
    /// Of the last second.
    last: Histogram,
    /// The end of the last second, in milliseconds since 1970.
    at_ms: i64,
}

impl Metrics {
    /// Takes a second. `start_ns` is the start of the measured part, since 1970.
    pub(super) fn add(&mut self, second: &Second, start_ns: u64) {
        let sums = self.outcomes.iter_mut().zip(second.outcomes);
        sums.for_each(|(sum, count)| *sum += count);
        self.body_bytes = self.body_bytes.saturating_add(second.bytes);
        self.response.merge(&second.response);
        self.last = second.response.clone();
        let end_ms = start_ns / 1_000_000 + (second.at + 1) * 1_000;
        self.at_ms = i64::try_from(end_ms).unwrap_or(i64::MAX);
    }

    /// All samples, at the end of the last second.
    pub(super) fn samples(&self, now: &Snapshot) -> Vec<Sample> {
        let one = |name: &str, labels: Vec<(&'static str, String)>, value: f64| Sample {
            name: name.to_owned(),
            labels,
            value,
            at_ms: self.at_ms,
        };
        let ended = Outcome::ALL.into_iter().zip(self.outcomes);
        let ended = ended.filter(|(outcome, _)| *outcome != Outcome::Abandoned);
        let mut samples: Vec<Sample> = ended
            .map(|(outcome, count)| {
                let labels = vec![("outcome", outcome.name().to_owned())];
                one(REQUESTS, labels, count as f64)
            })
            .collect();
        let bucket = |(limit, label): (u64, &str)| {
            let labels = vec![("le", label.to_owned())];
            one(&format!("{RESPONSE}_bucket"), labels, limit as f64)
        };
        let all = &self.response;
        samples.extend(LIMITS.map(|(us, label)| bucket((all.count_within(us * 1_000), label))));
        samples.push(bucket((all.count(), "+Inf")));
        let sum_s = all.mean_ns() * all.count() as f64 / 1e9;
        let (count_name, sum_name) = (format!("{RESPONSE}_count"), format!("{RESPONSE}_sum"));
        for (name, value) in [
            (count_name.as_str(), all.count() as f64),
            (sum_name.as_str(), sum_s),
            (BODY_BYTES, self.body_bytes as f64),
            (STARTED, now.started as f64),
            (IN_FLIGHT, now.in_flight as f64),
            (WAITING, now.waiting as f64),
            (CONNECTIONS, now.connections as f64),
            (DROPPED, now.dropped as f64),
        ] {
            samples.push(one(name, Vec::new(), value));
        }
        if self.last.count() > 0 {
            samples.extend(PERCENTS.map(|(percent, label)| {
                let ns = match percent {
                    100.0 => self.last.max_ns(),
                    _ => self.last.percentile(percent),
                };
                one(
                    PERCENTILE,
                    vec![("percent", label.to_owned())],
                    ns as f64 / 1e9,
                )
            }));
        }
        samples
    }

    /// What ends all series, so that no graph goes on after the run. A query with steps of a second still sees
    /// the last sample.
    pub(super) fn stale(&mut self) -> Vec<Sample> {
        self.at_ms += 1_000;
        // A second with a latency, so that all series are in it.
        self.last.record_ns(0);
        let mut samples = self.samples(&Snapshot::default());
        samples.iter_mut().for_each(|sample| sample.value = STALE);
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn second(at: u64, count: u64, ns: u64) -> Second {
        let mut second = Second {
            at,
            bytes: 10 * count,
            ..Second::default()
        };
        second.outcomes[0] = count;
        second.response.record_n(ns, count);
        second
    }

    fn value(samples: &[Sample], name: &str, label: &str) -> Option<f64> {
        let is_it = |sample: &&Sample| {
            let value = sample.labels.first().map_or("", |(_, value)| value);
            sample.name == name && value == label
        };
        samples.iter().find(is_it).map(|sample| sample.value)
    }

    #[test]
    fn sums_grow_and_percentiles_are_of_the_last_second() {
        let mut metrics = Metrics::default();
        metrics.add(&second(0, 3, 30_000), 5_000_000_000);
        metrics.add(&second(1, 5, 1_500_000), 5_000_000_000);
        let samples = metrics.samples(&Snapshot::default());
        let of = |name, label| value(&samples, name, label);
        assert_eq!(of(REQUESTS, "ok"), Some(8.0));
        assert_eq!(of(REQUESTS, "timed-out"), Some(0.0));
        assert_eq!(of(REQUESTS, "abandoned"), None);
        assert_eq!(of(BODY_BYTES, ""), Some(80.0));
        let bucket = "headway_load_response_seconds_bucket";
        let counts = ["0.00005", "0.001", "0.002", "+Inf"].map(|label| of(bucket, label));
        assert_eq!(counts, [3.0, 3.0, 8.0, 8.0].map(Some));
        let median = of(PERCENTILE, "50").expect("a percentile");
        assert!((median - 0.0015).abs() < 2e-6, "{median}");
        assert_eq!(samples[0].at_ms, 7_000, "the end of the second second");
        metrics.add(&second(2, 0, 1), 5_000_000_000);
        let samples = metrics.samples(&Snapshot::default());
        assert_eq!(value(&samples, PERCENTILE, "50"), None);
        assert_eq!(value(&samples, REQUESTS, "ok"), Some(8.0));
    }

    #[test]
    fn every_series_ends_and_has_a_description() {
        let mut metrics = Metrics::default();
        metrics.add(&second(0, 3, 30_000), 0);
        let samples = metrics.samples(&Snapshot::default());
        let names = |samples: &[Sample]| -> BTreeSet<String> {
            let name = |sample: &Sample| format!("{} {:?}", sample.name, sample.labels);
            samples.iter().map(name).collect()
        };
        let stale = metrics.stale();
        assert_eq!(names(&samples), names(&stale));
        assert!(stale.iter().all(|sample| sample.at_ms == 2_000));
        let bits: BTreeSet<u64> = stale.iter().map(|one| one.value.to_bits()).collect();
        assert_eq!(bits, BTreeSet::from([STALE.to_bits()]));
        for sample in &samples {
            let parts = ["_bucket", "_sum", "_count"].iter();
            let mut stem = parts.filter_map(|part| sample.name.strip_suffix(part));
            let stem = stem.next_back().unwrap_or(&sample.name);
            let family = FAMILIES.iter().find(|family| family.name == stem);
            let family = family.unwrap_or_else(|| panic!("{}", sample.name));
            let own = sample.labels.iter().map(|(name, _)| *name);
            let own: Vec<&str> = own.filter(|name| *name != "le").collect();
            assert_eq!(own, family.labels, "{}", family.name);
            assert_eq!(family.kind == "counter", family.name.ends_with("_total"));
        }
    }
}
