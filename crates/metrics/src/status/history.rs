//! The last minute of the server, for the curves at the top of the status page.
//!
//! The status thread takes the numbers every few seconds while the page is shown, and whenever another
//! page needs them. Each point is the difference between two moments, so a curve shows rates and not sums.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::{Counters, Durations, Histogram};

/// Time between two points.
pub const INTERVAL: Duration = Duration::from_secs(3);
/// What is remembered.
pub const SPAN: Duration = Duration::from_secs(60);

/// What happened between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The second moment.
    pub at: Instant,
    /// Requests answered per second.
    pub requests_per_s: f64,
    /// Share of responses with a status of 500 or more; `None` without responses.
    pub error_share: Option<f64>,
    /// Median duration of a request in microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile of the durations of requests.
    pub p99_us: Option<f64>,
    /// The longest that a ready event waited for those before it.
    pub lag_us: Option<f64>,
    /// Share of lookups that the file cache answered; `None` without lookups.
    pub hit_share: Option<f64>,
    /// Requests per second that waited for a helper.
    pub waits_per_s: f64,
}

/// The points of the last minute.
#[derive(Debug, Default)]
pub struct History {
    last: Option<Moment>,
    /// When the numbers were last taken, or were not to be had.
    tried: Option<Instant>,
    points: VecDeque<Point>,
}

/// The sums of one moment.
#[derive(Debug)]
struct Moment {
    at: Instant,
    requests: u64,
    errors: u64,
    durations: Durations,
    lag: Histogram,
    hits: u64,
    lookups: u64,
    waits: u64,
}

impl Moment {
    fn new(at: Instant, counters: &Counters) -> Moment {
        let by_status = counters.http_requests.by_status();
        let errors = by_status.range(500..).map(|(_, count)| *count);
        let hits = counters
            .file_cache_hits
            .saturating_add(counters.file_cache_stale_hits);
        Moment {
            at,
            requests: counters.http_requests.total(),
            errors: errors.fold(0, u64::saturating_add),
            durations: counters.request_durations.responses(),
            lag: counters.loop_lag_us.clone(),
            hits,
            lookups: hits.saturating_add(counters.file_cache_misses),
            waits: counters.requests_waited_for_helper,
        }
    }

    /// What happened since `before`. After the death of a worker a sum may be smaller than before.
    fn since(&self, before: &Moment) -> Point {
        let seconds = (self.at - before.at).as_secs_f64().max(0.001);
        let added = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let share = |part: f64, of: f64| (of > 0.0).then(|| (part / of).min(1.0));
        let requests = added(self.requests, before.requests);
        let durations = self.durations.since(&before.durations);
        Point {
            at: self.at,
            requests_per_s: requests / seconds,
            error_share: share(added(self.errors, before.errors), requests),
            p50_us: durations.quantile_us(0.5),
            p99_us: durations.quantile_us(0.99),
            lag_us: self.lag.max_since(&before.lag).map(|us| us as f64),
            hit_share: share(
                added(self.hits, before.hits),
                added(self.lookups, before.lookups),
            ),
            waits_per_s: added(self.waits, before.waits) / seconds,
        }
    }
}

impl History {
    /// When the next point is due; `None` before the first moment.
    pub fn due(&self) -> Option<Instant> {
        Some(self.tried? + INTERVAL)
    }

    /// Adds the numbers of this moment, if there are any and a point is due.
    pub fn add(&mut self, now: Instant, counters: Option<&Counters>) {
        if self.due().is_some_and(|due| now < due) {
            return;
        }
        self.tried = Some(now);
        while self
            .points
            .front()
            .is_some_and(|point| now.saturating_duration_since(point.at) > SPAN)
        {
            self.points.pop_front();
        }
        let Some(counters) = counters else { return };
        let moment = Moment::new(now, counters);
        // The mean of a longer time would hide what has happened in it.
        if let Some(before) = &self.last
            && now.saturating_duration_since(before.at) <= SPAN
        {
            self.points.push_back(moment.since(before));
        }
        self.last = Some(moment);
    }

    /// The points, the oldest first.
    pub fn points(&self) -> &VecDeque<Point> {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MethodLabel;

    #[test]
    fn point_is_the_difference_between_two_moments() {
        let (mut history, mut counters) = (History::default(), Counters::default());
        let begin = Instant::now();
        counters.http_requests.record(500, MethodLabel::Get);
        counters.loop_lag_us.record(900);
        history.add(begin, Some(&counters));
        assert!(history.points().is_empty());
        for status in [200, 200, 200, 503] {
            counters.http_requests.record(status, MethodLabel::Get);
        }
        counters.loop_lag_us.record(7);
        (counters.file_cache_hits, counters.file_cache_misses) = (9, 1);
        counters.requests_waited_for_helper = 8;
        // Too early, so nothing is added.
        history.add(begin + INTERVAL / 2, Some(&counters));
        history.add(begin + Duration::from_secs(4), Some(&counters));
        let expected = Point {
            at: begin + Duration::from_secs(4),
            requests_per_s: 1.0,
            error_share: Some(0.25),
            p50_us: None,
            p99_us: None,
            lag_us: Some(7.0),
            hit_share: Some(0.9),
            waits_per_s: 2.0,
        };
        assert_eq!(history.points(), &[expected]);
        // Nothing happens, then a worker dies with its last numbers.
        history.add(begin + Duration::from_secs(8), Some(&Counters::default()));
        let last = history.points().back().unwrap();
        assert_eq!((last.requests_per_s, last.error_share), (0.0, None));
        for seconds in 9..200 {
            history.add(begin + Duration::from_secs(seconds), Some(&counters));
        }
        assert!((20..=21).contains(&history.points().len()));
        // The page was not shown for an hour.
        history.add(begin + Duration::from_secs(3600), None);
        history.add(begin + Duration::from_secs(3603), Some(&counters));
        assert!(history.points().is_empty());
        history.add(begin + Duration::from_secs(3606), Some(&counters));
        assert_eq!(history.points().len(), 1);
    }
}
