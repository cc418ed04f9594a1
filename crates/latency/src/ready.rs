//! The counters of a Headway server in `server.json`: ready events per wakeup, and sleeps of its
//! loops.
//!
//! The file holds a status as `headway serve` returns it at `/status.json`, or two of them,
//! `before` and `after` the measurement, whose difference is taken. Other content is ignored.

use serde_json::Value;

/// Ready events at each wakeup, and sleeps of the loops outside the event wait.
///
/// ```
/// use headway_latency::ready::ReadyEvents;
///
/// let status = serde_json::json!({ "total": { "counters": { "ready_events": {
///     "buckets": [[1, 30], [2, 10]], "sum": 50, "max": 2,
/// } } } });
/// let events = ReadyEvents::from_status(&status).expect("a status");
/// assert_eq!(events.mean(), 1.25);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ReadyEvents {
    /// (inclusive upper limit, wakeups), ascending.
    pub buckets: Vec<(u64, u64)>,
    /// Number of wakeups.
    pub count: u64,
    /// Events of all wakeups.
    pub sum: u64,
    /// The most events of one wakeup; since the start of the server if there are two statuses.
    pub max: u64,
    /// Sleeps outside the event wait; absent if the loops were not traced.
    pub blocked: Option<u64>,
}

impl ReadyEvents {
    /// Reads a status, or the difference of two.
    pub fn from_status(value: &Value) -> Option<ReadyEvents> {
        ReadyEvents::of_histogram(value, "ready_events")
    }

    /// The same of another histogram of the loops, such as `loop_turn_us`.
    pub fn of_histogram(value: &Value, name: &str) -> Option<ReadyEvents> {
        let found = match (value.get("before"), value.get("after")) {
            (Some(before), Some(after)) => {
                let after = ReadyEvents::of_one(after, name)?;
                // A server without workers yet has counted nothing before.
                match ReadyEvents::of_one(before, name) {
                    Some(before) => after.since(&before),
                    None => after,
                }
            }
            (None, Some(after)) => ReadyEvents::of_one(after, name)?,
            _ => ReadyEvents::of_one(value, name)?,
        };
        (found.count > 0).then_some(found)
    }

    fn of_one(value: &Value, name: &str) -> Option<ReadyEvents> {
        let snapshot = value
            .get("total")
            .filter(|total| !total.is_null())
            .unwrap_or(value);
        let histogram = snapshot.get("counters")?.get(name)?;
        let number = |name: &str| histogram.get(name).and_then(Value::as_u64);
        let mut buckets = Vec::new();
        for bucket in histogram.get("buckets")?.as_array()? {
            buckets.push((bucket.get(0)?.as_u64()?, bucket.get(1)?.as_u64()?));
        }
        buckets.sort_unstable();
        Some(ReadyEvents {
            count: buckets.iter().map(|(_, count)| count).sum(),
            sum: number("sum")?,
            max: number("max")?,
            buckets,
            blocked: blocked(snapshot),
        })
    }

    fn since(self, before: &ReadyEvents) -> ReadyEvents {
        let earlier = |bound: u64| {
            let known = before.buckets.iter().find(|(upper, _)| *upper == bound);
            known.map_or(0, |(_, count)| *count)
        };
        let less = |(upper, count): &(u64, u64)| (*upper, count.saturating_sub(earlier(*upper)));
        let buckets: Vec<_> = self
            .buckets
            .iter()
            .map(less)
            .filter(|(_, count)| *count > 0)
            .collect();
        ReadyEvents {
            count: buckets.iter().map(|(_, count)| count).sum(),
            sum: self.sum.saturating_sub(before.sum),
            max: buckets.last().map_or(0, |(upper, _)| self.max.min(*upper)),
            blocked: self
                .blocked
                .zip(before.blocked)
                .map(|(now, then)| now.saturating_sub(then)),
            buckets,
        }
    }

    /// Mean events per wakeup.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The smallest limit that covers at least this share of the wakeups.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.count as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (upper, count) in &self.buckets {
            below += count;
            if below >= wanted {
                return (*upper).min(self.max);
            }
        }
        self.max
    }
}

/// Sleeps outside the event wait. A loop that is not traced has none recorded, which is not the
/// same as zero.
fn blocked(snapshot: &Value) -> Option<u64> {
    let trace = snapshot.get("trace")?;
    if trace.get("level")?.get("sees")? == "off" {
        return None;
    }
    let sleeps = trace.get("sleeps")?.as_array()?;
    Some(
        sleeps
            .iter()
            .filter_map(|site| site.get("count")?.as_u64())
            .sum(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(buckets: Value, sum: u64, max: u64, sleeps: Value) -> Value {
        json!({ "total": {
            "counters": { "ready_events": { "count": 1, "sum": sum, "max": max, "buckets": buckets } },
            "trace": { "level": { "sees": "stacks" }, "sleeps": sleeps }
        } })
    }

    #[test]
    fn histogram_is_found_in_the_status_of_headway() {
        let found = ReadyEvents::from_status(&status(
            json!([[1, 60], [2, 30], [128, 10]]),
            900,
            100,
            json!([{ "count": 3 }]),
        ));
        let found = found.expect("a status");
        assert_eq!((found.count, found.max, found.blocked), (100, 100, Some(3)));
        assert_eq!(
            (
                found.quantile(0.5),
                found.quantile(0.9),
                found.quantile(1.0)
            ),
            (1, 2, 100)
        );
        assert_eq!(found.mean(), 9.0);
    }

    #[test]
    fn only_the_measurement_counts_when_there_are_two_statuses() {
        let both = json!({
            "before": status(json!([[1, 10], [4, 5]]), 30, 4, json!([{ "count": 1 }])),
            "after": status(json!([[1, 15], [2, 7], [4, 5]]), 49, 4, json!([{ "count": 1 }])),
        });
        let found = ReadyEvents::from_status(&both).expect("two statuses");
        assert_eq!(found.buckets, [(1, 5), (2, 7)]);
        assert_eq!(
            (found.count, found.sum, found.max, found.blocked),
            (12, 19, 2, Some(0))
        );
    }

    #[test]
    fn status_of_another_server_is_ignored() {
        for other in [
            json!(null),
            json!([1]),
            json!({ "total": null }),
            json!({ "counters": { "ready_events": 3 } }),
        ] {
            assert_eq!(ReadyEvents::from_status(&other), None, "{other}");
        }
        let mut untraced = status(json!([[1, 1]]), 1, 1, json!([]));
        untraced["total"]["trace"]["level"] = json!({ "sees": "off", "why": "not permitted" });
        assert_eq!(
            ReadyEvents::from_status(&untraced)
                .expect("a status")
                .blocked,
            None
        );
    }
}
