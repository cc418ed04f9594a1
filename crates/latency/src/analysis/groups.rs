//! Latency by size and by class, and the conversions from histograms to the figures of an
//! [`Analysis`](super::Analysis).

use super::{CdfPoint, ClassGroup, Distribution, Latency, SeriesShare, SizeGroup};
use crate::bootstrap;
use crate::cells::Cells;
use crate::coarse::Coarse;
use crate::histogram::Histogram;
use crate::{Bucket, series};

/// Points of a cumulative distribution.
const CDF_POINTS: usize = 300;

/// With more sizes than this, sizes are grouped into ranges.
const SIZES_MAX: usize = 40;

/// The seed of the intervals: a constant, so that the same rows always give the same intervals.
const SEED: u64 = 2005;

/// The part of the requests beyond a percentile which may lack a latency. All of them may have been
/// slower than it, so more would move it.
const UNTIMED_TAIL_SHARE: f64 = 0.1;

/// Requests without a latency, of all requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Untimed {
    pub requests: u64,
    pub all: u64,
}

impl Untimed {
    pub(super) fn share(self) -> f64 {
        self.requests as f64 / self.all.max(1) as f64
    }

    /// Whether they are too many to know this percentile.
    fn reaches(self, percent: f64) -> bool {
        self.share() > UNTIMED_TAIL_SHARE * (1.0 - percent / 100.0)
    }
}

/// The figures of a histogram with intervals from the steps of the run; `None` when it is empty.
pub(super) fn distribution(
    histogram: &Histogram,
    steps: Option<&[&Coarse]>,
    untimed: Untimed,
) -> Option<Distribution> {
    if histogram.count() == 0 {
        return None;
    }
    let percentile = |percent: f64| histogram.percentile(percent) as f64 / 1e3;
    let known = |percent: f64, us: f64| (!untimed.reaches(percent)).then_some(us);
    let point = |(ns, share): (u64, f64)| CdfPoint {
        latency_us: ns as f64 / 1e3,
        share,
    };
    Some(Distribution {
        requests: histogram.count(),
        mean_us: histogram.mean_ns() / 1e3,
        min_us: histogram.min_ns() as f64 / 1e3,
        p5_us: percentile(5.0),
        p10_us: percentile(10.0),
        p25_us: percentile(25.0),
        p50_us: percentile(50.0),
        p75_us: percentile(75.0),
        p90_us: percentile(90.0),
        p95_us: percentile(95.0),
        p99_us: percentile(99.0),
        p99_9_us: known(99.9, percentile(99.9)),
        p99_99_us: known(99.99, percentile(99.99)),
        max_us: known(100.0, histogram.max_ns() as f64 / 1e3),
        intervals: steps.and_then(|steps| bootstrap::intervals(histogram, steps, SEED)),
        cdf: histogram
            .cdf_thinned(CDF_POINTS)
            .into_iter()
            .filter(|(_, share)| !untimed.reaches(share * 100.0))
            .map(point)
            .collect(),
    })
}

fn latency(histogram: &Histogram) -> Latency {
    Latency {
        mean_us: histogram.mean_ns() / 1e3,
        p50_us: histogram.percentile(50.0) as f64 / 1e3,
        p95_us: histogram.percentile(95.0) as f64 / 1e3,
        p99_us: histogram.percentile(99.0) as f64 / 1e3,
    }
}

pub(super) fn by_series(cells: &Cells, withheld: bool) -> Vec<SeriesShare> {
    let histograms = series::histograms(cells);
    let total: u64 = histograms.iter().map(Histogram::count).sum();
    let lows = [
        0,
        series::HIGH_BYTES[0] + 1,
        series::HIGH_BYTES[1] + 1,
        series::HIGH_BYTES[2] + 1,
    ];
    let entry = |(at, histogram): (usize, &Histogram)| SeriesShare {
        series: at as u8 + 1,
        low_bytes: lows[at],
        high_bytes: series::HIGH_BYTES.get(at).copied(),
        requests: histogram.count(),
        share: histogram.count() as f64 / total.max(1) as f64,
        latency: (!withheld).then(|| latency(histogram)),
    };
    histograms.iter().enumerate().map(entry).collect()
}

pub(super) fn by_class(classes: &[Histogram; 4]) -> Vec<ClassGroup> {
    let used = (0..)
        .zip(classes)
        .filter(|(_, histogram)| histogram.count() > 0);
    used.map(|(class, histogram)| ClassGroup {
        class,
        requests: histogram.count(),
        latency: latency(histogram),
    })
    .collect()
}

/// One group a size, or with many sizes one a range of 1–2–5 steps a decade.
pub(super) fn by_size(cells: &Cells) -> Vec<SizeGroup> {
    let each = grouped(cells, |size| size, SIZES_MAX);
    each.unwrap_or_else(|| {
        grouped(cells, |size| range(size).into(), usize::MAX).unwrap_or_default()
    })
}

/// The complete responses by what `key` says of their size, which does not fall as sizes grow;
/// `None` if there are more than `most` groups.
fn grouped(cells: &Cells, key: impl Fn(u64) -> u64, most: usize) -> Option<Vec<SizeGroup>> {
    let mut groups: Vec<(SizeGroup, Histogram)> = Vec::new();
    for (cell, count) in cells.iter().filter(|(cell, _)| cell.complete) {
        let size = cell.size_bytes;
        let same = groups
            .last()
            .is_some_and(|(group, _)| key(group.low_bytes) == key(size));
        if !same {
            if groups.len() == most {
                return None;
            }
            let group = SizeGroup {
                low_bytes: size,
                ..SizeGroup::default()
            };
            groups.push((group, Histogram::new()));
        }
        let (group, histogram) = groups.last_mut()?;
        group.high_bytes = size;
        histogram.record_n(Bucket::mid(cell.bucket), count);
    }
    let figures = |(group, histogram): (SizeGroup, Histogram)| SizeGroup {
        requests: histogram.count(),
        latency: latency(&histogram),
        ..group
    };
    Some(groups.into_iter().map(figures).collect())
}

/// Numbers the ranges 0, 1, 2–4, 5–9, 10–19, 20–49, …
fn range(size: u64) -> u32 {
    let Some(decade) = size.checked_ilog10() else {
        return 0;
    };
    let leading = size / 10_u64.pow(decade);
    1 + decade * 3 + u32::from(leading >= 2) + u32::from(leading >= 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_their_own_groups_when_few_and_ranges_when_many() {
        let mut few = Cells::new();
        [(100, 1_000), (100, 3_000), (200, 5_000)]
            .iter()
            .for_each(|&(size, ns)| few.record(size, ns, true));
        few.record(300, 1, false);
        let groups = by_size(&few);
        assert_eq!(groups.len(), 2);
        assert_eq!(
            (
                groups[0].low_bytes,
                groups[0].requests,
                groups[0].latency.mean_us
            ),
            (100, 2, 2.0)
        );
        let mut many = Cells::new();
        (0..1000).for_each(|size| many.record(size, 1_000, true));
        let bounds: Vec<_> = by_size(&many)
            .iter()
            .map(|group| (group.low_bytes, group.high_bytes))
            .collect();
        assert_eq!(bounds[..5], [(0, 0), (1, 1), (2, 4), (5, 9), (10, 19)]);
        assert_eq!(bounds[bounds.len() - 1], (500, 999));
    }
}
