//! How long requests take, by host, handler and class of status.
//!
//! The hosts are those of the configuration, so clients cannot create series. A row is made when a
//! host, handler and class first occur together; after that a request costs an index and a few
//! additions.
//!
//! The buckets are few and the same for all: a dashboard with a hundred hosts has to read them.

use std::collections::HashMap;

use headway_config::{HandlerConfig, Host, Protocol};
use serde::{Deserialize, Serialize};

/// Upper bounds of the buckets in microseconds, from 0.1 ms to 10 s.
pub const LIMITS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];
/// With one for what takes longer.
const BUCKETS: usize = LIMITS_US.len() + 1;
/// The most rows of a sum: what a worker reports is not trusted.
const ROWS_MAX: usize = 1 << 16;

/// Value of the label `handler`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum HandlerLabel {
    /// No handler has answered: the request was malformed, came too late, or was not allowed.
    #[default]
    None,
    /// Files and listings.
    Files,
    /// Redirects.
    Redirect,
    /// CGI programs.
    Cgi,
    /// Direct handlers.
    Direct,
    /// Pipe handlers.
    Pipe,
    /// FastCGI upstreams.
    Fastcgi,
    /// SCGI upstreams.
    Scgi,
    /// HTTP upstreams.
    Proxy,
    /// Applications inside the server.
    Application,
}

const HANDLERS: [&str; 10] = [
    "none",
    "files",
    "redirect",
    "cgi",
    "direct",
    "pipe",
    "fastcgi",
    "scgi",
    "proxy",
    "application",
];

impl HandlerLabel {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        HANDLERS[self as usize]
    }
}

impl From<&HandlerConfig> for HandlerLabel {
    fn from(handler: &HandlerConfig) -> HandlerLabel {
        match handler {
            HandlerConfig::Files => HandlerLabel::Files,
            HandlerConfig::Redirect(_) => HandlerLabel::Redirect,
            HandlerConfig::Cgi(_) => HandlerLabel::Cgi,
            HandlerConfig::Direct(_) => HandlerLabel::Direct,
            HandlerConfig::Pipe(_) => HandlerLabel::Pipe,
            HandlerConfig::Application(_) => HandlerLabel::Application,
            HandlerConfig::Upstreams(upstreams) => match upstreams.protocol {
                Protocol::FastCgi => HandlerLabel::Fastcgi,
                Protocol::Scgi => HandlerLabel::Scgi,
                Protocol::Proxy => HandlerLabel::Proxy,
            },
        }
    }
}

/// Classes of status codes; the first is of impossible codes.
const CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Number of requests by their duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// The sum of all durations in microseconds.
    pub sum_us: u64,
    /// The number of requests in each bucket: up to each of [`LIMITS_US`], and longer.
    pub buckets: [u64; BUCKETS],
}

impl Durations {
    pub(crate) fn record(&mut self, duration_us: u64) {
        let bucket = LIMITS_US.partition_point(|limit| *limit < duration_us);
        self.buckets[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(duration_us);
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().copied().fold(0, u64::saturating_add)
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Durations) {
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// What has been added since `before`.
    pub fn since(&self, before: &Durations) -> Durations {
        let mut since = *self;
        since.sum_us = since.sum_us.saturating_sub(before.sum_us);
        for (mine, theirs) in since.buckets.iter_mut().zip(before.buckets) {
            *mine = mine.saturating_sub(theirs);
        }
        since
    }

    /// The duration that the fraction `quantile` does not exceed, interpolated in its bucket as
    /// `histogram_quantile` of Prometheus does. `None` without requests.
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        let wanted = quantile.clamp(0.0, 1.0) * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (limit, count) in LIMITS_US.into_iter().zip(self.buckets) {
            let count = count as f64;
            if count > 0.0 && below + count >= wanted {
                let inside = (wanted - below) / count;
                return Some(lower + (limit as f64 - lower) * inside);
            }
            (below, lower) = (below + count, limit as f64);
        }
        (self.buckets[BUCKETS - 1] > 0).then_some(lower)
    }
}

/// The requests of one host, handler and class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationRow {
    /// The first name of the host. For a default host without a name `default`, or its address.
    pub host: Box<str>,
    /// What answered.
    pub handler: HandlerLabel,
    /// The first digit of the status.
    pub class: u8,
    /// Their durations.
    pub durations: Durations,
}

impl DurationRow {
    /// The class as a label, such as `2xx`.
    pub fn class_name(&self) -> &'static str {
        CLASSES.get(usize::from(self.class)).unwrap_or(&CLASSES[0])
    }
}

/// How long requests took, by host, handler and class of status.
///
/// Serialises as the list of its rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<DurationRow>", into = "Vec<DurationRow>")]
pub struct RequestDurations {
    hosts: Vec<Box<str>>,
    /// For each host, handler and class the number of its row, from 1.
    places: Vec<u32>,
    rows: Vec<DurationRow>,
}

impl RequestDurations {
    /// For the requests of these hosts.
    pub fn new(hosts: &[Host]) -> RequestDurations {
        let name = |(number, host): (usize, &Host)| match (host.names.first(), number) {
            (Some(name), _) => name.as_str().into(),
            (None, 0) => "default".into(),
            // One without a name is the default of an address, or that of challenges.
            (None, _) => match host.listen.first() {
                Some(address) => address.to_string().into(),
                None => "acme".into(),
            },
        };
        RequestDurations {
            hosts: hosts.iter().enumerate().map(name).collect(),
            places: vec![0; hosts.len() * HANDLERS.len() * CLASSES.len()],
            rows: Vec::with_capacity(64),
        }
    }

    /// Counts a request to the host with this number.
    #[inline]
    pub fn record(&mut self, host: u32, handler: HandlerLabel, status: u16, duration_us: u64) {
        let class = match status / 100 {
            class @ 1..=5 => class as u8,
            _ => 0,
        };
        let handlers = host as usize * HANDLERS.len() + handler as usize;
        let place = handlers * CLASSES.len() + usize::from(class);
        let row = match self.places.get(place).copied() {
            Some(0) => self.add_row(place, host, handler, class),
            Some(row) => row as usize - 1,
            None => return,
        };
        if let Some(row) = self.rows.get_mut(row) {
            row.durations.record(duration_us);
        }
    }

    #[cold]
    fn add_row(&mut self, place: usize, host: u32, handler: HandlerLabel, class: u8) -> usize {
        self.rows.push(DurationRow {
            host: self.hosts[host as usize].clone(),
            handler,
            class,
            durations: Durations::default(),
        });
        self.places[place] = self.rows.len() as u32;
        self.rows.len() - 1
    }

    /// All rows, each host, handler and class at most once.
    pub fn rows(&self) -> &[DurationRow] {
        &self.rows
    }

    /// The durations of all responses. Those of connections that were upgraded to another protocol
    /// do not count: they last as long as the connection.
    pub fn responses(&self) -> Durations {
        let mut sum = Durations::default();
        for row in self.rows.iter().filter(|row| row.class != 1) {
            sum.merge(&row.durations);
        }
        sum
    }

    /// Adds another worker's requests. Hosts are the same if they have the same name.
    pub fn merge(&mut self, other: &RequestDurations) {
        let key = |row: &DurationRow| (row.host.clone(), row.handler, row.class);
        let mine = self.rows.iter().enumerate();
        let mut places: HashMap<_, usize> = mine.map(|(at, row)| (key(row), at)).collect();
        for row in &other.rows {
            match places.get(&key(row)) {
                Some(at) => self.rows[*at].durations.merge(&row.durations),
                None if self.rows.len() < ROWS_MAX => {
                    places.insert(key(row), self.rows.len());
                    self.rows.push(row.clone());
                }
                None => {}
            }
        }
    }
}

impl PartialEq for RequestDurations {
    fn eq(&self, other: &RequestDurations) -> bool {
        self.rows == other.rows
    }
}

impl Eq for RequestDurations {}

impl From<Vec<DurationRow>> for RequestDurations {
    fn from(rows: Vec<DurationRow>) -> RequestDurations {
        let mut durations = RequestDurations::default();
        // A row may be there twice only if its sender is broken.
        durations.merge(&RequestDurations {
            rows,
            ..RequestDurations::default()
        });
        durations
    }
}

impl From<RequestDurations> for Vec<DurationRow> {
    fn from(durations: RequestDurations) -> Vec<DurationRow> {
        durations.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if from hosts of these names.
    fn of(names: &[&str]) -> RequestDurations {
        RequestDurations {
            hosts: names.iter().map(|name| (*name).into()).collect(),
            places: vec![0; names.len() * HANDLERS.len() * CLASSES.len()],
            rows: Vec::new(),
        }
    }

    #[test]
    fn bucket_contains_its_upper_bound_and_longer_ones_go_into_the_last() {
        let mut durations = Durations::default();
        for (bucket, limit) in LIMITS_US.into_iter().enumerate() {
            durations.record(limit);
            assert_eq!(durations.buckets[bucket], 1, "{limit}");
            durations.record(limit + 1);
            assert_eq!(durations.buckets[bucket + 1], 1, "{limit}");
            durations = Durations::default();
        }
        durations.record(u64::MAX);
        assert_eq!((durations.buckets[BUCKETS - 1], durations.count()), (1, 1));
    }

    #[test]
    fn quantiles_are_interpolated_in_their_bucket() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile_us(0.5), None);
        (0..50).for_each(|_| durations.record(10));
        (0..50).for_each(|_| durations.record(200));
        assert_eq!(durations.quantile_us(0.25), Some(50.0));
        assert_eq!(durations.quantile_us(0.5), Some(100.0));
        assert_eq!(durations.quantile_us(0.75), Some(175.0));
        durations = Durations::default();
        durations.record(60_000_000);
        assert_eq!(durations.quantile_us(0.5), Some(10_000_000.0));
    }

    #[test]
    fn each_host_handler_and_class_has_a_row_of_its_own() {
        let mut durations = of(&["a.example", "b.example"]);
        for (host, handler, status) in [
            (0, HandlerLabel::Files, 200),
            (0, HandlerLabel::Files, 206),
            (0, HandlerLabel::Files, 404),
            (1, HandlerLabel::Application, 599),
            (1, HandlerLabel::None, 999),
            // A host which does not exist.
            (2, HandlerLabel::None, 200),
        ] {
            durations.record(host, handler, status, 1_500);
        }
        let rows = durations.rows().iter().map(|row| {
            let labels = (&*row.host, row.handler.as_str(), row.class_name());
            (labels, row.durations.count(), row.durations.sum_us)
        });
        let expected = [
            (("a.example", "files", "2xx"), 2, 3_000),
            (("a.example", "files", "4xx"), 1, 1_500),
            (("b.example", "application", "5xx"), 1, 1_500),
            (("b.example", "none", "other"), 1, 1_500),
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn workers_with_other_hosts_are_summed_by_name() {
        let (mut one, mut other) = (of(&["a", "b"]), of(&["b", "c"]));
        one.record(1, HandlerLabel::Proxy, 200, 5);
        one.record(0, HandlerLabel::Proxy, 101, 5_000_000);
        other.record(0, HandlerLabel::Proxy, 200, 7);
        other.record(1, HandlerLabel::Proxy, 200, 9);
        one.merge(&other);
        let sums: Vec<_> = one
            .rows()
            .iter()
            .map(|row| (&*row.host, row.durations.sum_us))
            .collect();
        assert_eq!(sums, [("b", 12), ("a", 5_000_000), ("c", 9)]);
        assert_eq!(one.responses().sum_us, 21, "an upgraded connection counts");
        // A worker goes on to record after others were added to a copy.
        let text = serde_json::to_string(&one).unwrap();
        let read: RequestDurations = serde_json::from_str(&text).unwrap();
        assert_eq!(read, one);
    }
}
