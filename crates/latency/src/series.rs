//! The four size series of the dissertation's Table 3.2, and the latency deciles by series.
//!
//! The table groups the SPECweb99 sizes so that the series are asked for about equally often:
//! 0.1–0.5 KB, 0.6–4 KB, 5–6 KB, 7–900 KB. Between the series lies no size of the set; the
//! boundaries here are those upper ends, with 1 KB = 1024 bytes. That also puts sizes in decimal
//! kilobytes where the table has them.
//!
//! The deciles are Figures 3.10, 3.11 and 3.19: complete responses by latency, fastest first, cut
//! into ten equal parts. Without service inversion each series would fill its own.

use crate::cells::Cells;
use crate::histogram::Bucket;
use crate::histogram::Histogram;

/// The largest size of each series but the last, in bytes.
pub const HIGH_BYTES: [u64; 3] = [512, 4 * 1024, 6 * 1024];

/// The share of requests that the dissertation gives for each series.
pub const PAPER_SHARE: [f64; 4] = [0.2506, 0.2805, 0.2355, 0.2334];

/// The series of a size: 0 to 3 for the table's 1 to 4.
///
/// ```
/// use headway_latency::series::series;
///
/// assert_eq!([500, 4_000, 5_000, 900_000].map(series), [0, 1, 2, 3]);
/// ```
pub fn series(size_bytes: u64) -> usize {
    HIGH_BYTES.iter().filter(|high| size_bytes > **high).count()
}

/// The latencies of the complete responses of each series.
pub fn histograms(cells: &Cells) -> [Histogram; 4] {
    let mut histograms = [const { None }; 4];
    for (cell, count) in cells.iter().filter(|(cell, _)| cell.complete) {
        let histogram = &mut histograms[series(cell.size_bytes)];
        histogram
            .get_or_insert_with(Histogram::new)
            .record_n(Bucket::mid(cell.bucket), count);
    }
    histograms.map(Option::unwrap_or_default)
}

/// Complete responses by latency decile (fastest first) and series.
///
/// A cell that lies across a boundary is divided at it. Of responses in one latency bucket the
/// smaller ones count as faster, as they do for service inversion.
///
/// ```
/// use headway_latency::{Cells, series::deciles};
///
/// let mut cells = Cells::new();
/// for request in 1..=10 {
///     cells.record(500, request * 100_000, true);
/// }
/// cells.compact();
/// assert_eq!(deciles(&cells)[0], [1, 0, 0, 0], "the fastest tenth, all of the first series");
/// ```
pub fn deciles(cells: &Cells) -> [[u64; 4]; 10] {
    let complete = cells.iter().filter(|(cell, _)| cell.complete);
    let total: u64 = complete.map(|(_, count)| count).sum();
    let end = |decile: u64| (u128::from(total) * u128::from(decile + 1) / 10) as u64;
    let mut table = [[0; 4]; 10];
    for (cell, count, mut from) in cells.placed() {
        let behind = from + count;
        // Rounded down this may be one decile early, never late.
        let mut decile = (u128::from(from) * 10 / u128::from(total)) as u64;
        while from < behind {
            let part = end(decile).clamp(from, behind) - from;
            table[decile as usize][series(cell.size_bytes)] += part;
            from += part;
            decile += u64::from(from < behind);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_those_of_the_paper_when_the_sizes_are_those_of_specweb99() {
        let class_weights = [0.35, 0.50, 0.14, 0.01];
        let file_weights = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
        // The sizes as SPECweb99 makes them, and as the dissertation rounds them.
        for unit in [102.4, 100.0] {
            let mut shares = [0.0; 4];
            for (class, weight) in (0..).zip(class_weights) {
                for (file, part) in (1..).zip(file_weights) {
                    let size = f64::from(file) * unit * 10_f64.powi(class);
                    shares[series(size as u64)] += weight * part / 100.0;
                }
            }
            for (share, paper) in shares.into_iter().zip(PAPER_SHARE) {
                // The weights of the paper's Table 1.1 are rounded and sum to 0.999.
                assert!((share - paper).abs() < 0.0012, "{unit}: {shares:?}");
            }
        }
    }

    #[test]
    fn each_series_fills_its_own_deciles_when_latency_follows_size() {
        let mut cells = Cells::new();
        for (i, size) in (0..).zip([500, 4096, 6000, 90_000]) {
            (0..250).for_each(|j| cells.record(size, i * 250 + j, true));
        }
        let table = deciles(&cells);
        assert_eq!(table[0], [100, 0, 0, 0]);
        assert_eq!(table[2], [50, 50, 0, 0]);
        assert_eq!(table[9], [0, 0, 0, 100]);
        let mut failed = Cells::new();
        failed.record(1, 1, false);
        assert_eq!(deciles(&failed), [[0; 4]; 10]);
        assert_eq!(
            histograms(&cells).map(|histogram| histogram.count()),
            [250; 4]
        );
    }

    proptest! {
        #[test]
        fn deciles_hold_a_tenth_each_when_any_requests_are_cut(
            requests in proptest::collection::vec((0..10_000_u64, 0..500_u64), 0..200),
        ) {
            let mut cells = Cells::new();
            requests.iter().for_each(|&(size, latency)| cells.record(size, latency, true));
            let table = deciles(&cells);
            let total = requests.len() as u64;
            for (decile, counts) in (0..).zip(table) {
                prop_assert_eq!(counts.iter().sum::<u64>(), total * (decile + 1) / 10 - total * decile / 10);
            }
        }
    }
}
