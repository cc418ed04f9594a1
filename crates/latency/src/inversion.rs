//! Service inversion: how far the order of latencies is from the order of sizes (dissertation
//! 3.4.2).
//!
//! Requests in the order of their sizes have the value 0. A request's displacement is the distance
//! between its position by latency and its position by size; requests of equal size are matched in
//! order, the Nth observed with the Nth ideal. The value is the sum of displacements over
//! floor(n²/2), the sum of the reversed order when all sizes differ (equation 3.1).
//!
//! No list is sorted. Rank the ideal order by (size, latency) and the observed order by (latency,
//! size). Then all requests of one cell of the joint histogram have the same displacement, and the
//! sum runs over cells. Requests whose latencies share a bucket count as ordered by size, which is
//! exact to the width of a bucket.
//!
//! With few different sizes neither 1 nor 2/3 is reachable, so the value of the reversed order and
//! of a random order *for these sizes* are given beside it; a value alone compares only runs of one
//! file set.

use crate::analysis::Inversion;
use crate::cells::Cells;
use crate::histogram::Bucket;

/// Service inversion of the complete responses; `None` with fewer than two.
///
/// ```
/// use headway_latency::{Cells, inversion::inversion};
///
/// // The example of the paper: sizes A < B < C < D < E came back in the order B, C, A, D, E.
/// let mut cells = Cells::new();
/// for (size_bytes, latency_ns) in [(200, 10), (300, 20), (100, 30), (400, 40), (500, 50)] {
///     cells.record(size_bytes, latency_ns, true);
/// }
/// let found = inversion(&cells).expect("five complete responses");
/// assert_eq!(found.value, 4.0 / 12.0);
/// ```
pub fn inversion(cells: &Cells) -> Option<Inversion> {
    let mut sizes: Vec<u64> = Vec::new();
    let mut last = None;
    for (cell, count) in cells.iter().filter(|(cell, _)| cell.complete) {
        match sizes.last_mut().filter(|_| last == Some(cell.size_bytes)) {
            Some(of_size) => *of_size += count,
            None => sizes.push(count),
        }
        last = Some(cell.size_bytes);
    }
    let requests: u64 = sizes.iter().sum();
    if requests < 2 {
        return None;
    }
    let displacement = displacement(cells);
    let worst = half_square(requests);
    let value = displacement as f64 / worst;
    let random = random(&sizes) / worst;
    let reversed = reversed(&sizes) as f64 / worst;
    let varied = sizes.len() > 1;
    Some(Inversion {
        value,
        random,
        reversed,
        of_random: varied.then(|| value / random),
        of_reversed: varied.then(|| value / reversed),
        jain: jain(cells),
        requests,
        sizes: sizes.len() as u64,
    })
}

/// Jain's index of the response times of complete responses: (Σx)² / (n Σx²).
///
/// It asks whether all wait equally long, whatever they ask for. A server that makes everybody wait
/// has a high one (2006 paper, section 6), so it says little without service inversion beside it.
fn jain(cells: &Cells) -> Option<f64> {
    let (mut requests, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for (cell, count) in cells.iter().filter(|(cell, _)| cell.complete) {
        let (latency, count) = (Bucket::mid(cell.bucket) as f64, count as f64);
        requests += count;
        sum += count * latency;
        squares += count * latency * latency;
    }
    (squares > 0.0).then(|| sum * sum / (requests * squares))
}

/// floor(n²/2), which needs more than 64 bits from 6·10⁹ requests on.
fn half_square(requests: u64) -> f64 {
    (u128::from(requests) * u128::from(requests) / 2) as f64
}

/// The summed distance between ideal and observed position.
fn displacement(cells: &Cells) -> u128 {
    let mut ideal = 0;
    let displaced = cells.placed().map(|(_, count, observed)| {
        let distance = observed.abs_diff(ideal);
        ideal += count;
        u128::from(count) * u128::from(distance)
    });
    displaced.sum()
}

/// The summed displacement of the reversed order, which is the largest there is for these sizes.
///
/// `sizes` are the requests of each size, ascending by size.
fn reversed(sizes: &[u64]) -> u128 {
    let total: u64 = sizes.iter().sum();
    let mut below = 0;
    let displaced = sizes.iter().map(|&count| {
        let (ideal, observed) = (below, total - below - count);
        below += count;
        u128::from(count) * u128::from(observed.abs_diff(ideal))
    });
    displaced.sum()
}

/// The expected summed displacement when every order is equally likely.
///
/// Counts cuts instead of requests. The requests of one size that cross the cut behind position k
/// all cross it in the same direction, because they are matched in order. Their number is |O - I|,
/// with O requests before the cut as observed and I in the ideal order. Summed over all k this is
/// the displacement. In a random order O is hypergeometric, so the result is the sum of E|O - I|
/// over the cuts.
fn random(sizes: &[u64]) -> f64 {
    let total: u64 = sizes.iter().sum();
    let mut below = 0;
    let mut sum = 0.0;
    for &count in sizes {
        sum += Group {
            total: total as f64,
            count: count as f64,
            below: below as f64,
        }
        .expected();
        below += count;
    }
    sum
}

/// The requests of one size within all requests, `below` of which are smaller.
struct Group {
    total: f64,
    count: f64,
    below: f64,
}

impl Group {
    /// Expected displacement of the group: cuts before its ideal place, cuts behind it, cuts
    /// within.
    fn expected(&self) -> f64 {
        let &Group {
            total,
            count,
            below,
        } = self;
        let share = count / total;
        let above = total - count - below;
        let triangle = |n: f64| n * (n + 1.0) / 2.0;
        let outside = share * (triangle(below) + triangle(above));
        // Within: I = c at the cut below + c, and E|O - c| = (c - E O) + 2 E max(O - c, 0).
        let cuts = count - 1.0;
        let deficit = triangle(cuts) * (1.0 - share) - cuts * below * share;
        outside + deficit + 2.0 * self.excess()
    }

    /// The sum of E max(O - c, 0) over c from 1 to count - 1.
    ///
    /// Far below the crossing of E O and c the excess is E O - c, far above it is 0; in the window
    /// between, a recurrence steps from cut to cut. So the work grows with the square root of the
    /// group.
    fn excess(&self) -> f64 {
        let &Group {
            total,
            count,
            below,
        } = self;
        if count < 2.0 || below < 1.0 {
            return 0.0;
        }
        let share = count / total;
        let slope = 1.0 - share;
        if slope == 0.0 {
            return 0.0;
        }
        let deviation = (share * slope * total * total / 4.0 / (total - 1.0)).sqrt();
        let half = (12.0 * deviation + 60.0) / slope;
        let crossing = below * share / slope;
        let first = (crossing - half).floor().clamp(1.0, count);
        let last = (crossing + half).ceil().clamp(1.0, count - 1.0);
        let before = first - 1.0;
        let far = before * below * share - slope * before * (before + 1.0) / 2.0;
        far + self.window(first, last)
    }

    /// The sum of E max(O - c, 0) over c from `first` to `last`.
    ///
    /// Drawing one more request, O grows by one with probability (count - O) / (total - k), from
    /// which follow the steps of the excess, of P(O > c), and of P(O = c + 1).
    fn window(&self, first: f64, last: f64) -> f64 {
        let &Group {
            total,
            count,
            below,
        } = self;
        let mut cut = below + first;
        let mean = cut * count / total;
        let (mut excess, mut exceeds) = if first == 1.0 {
            let (none, one) = (
                self.log_chance(0.0, cut).exp(),
                self.log_chance(1.0, cut).exp(),
            );
            (mean - 1.0 + none, 1.0 - none - one)
        } else {
            (mean - first, 1.0)
        };
        let mut log_next = self.log_chance(first + 1.0, cut);
        let mut sum = 0.0;
        let mut inside = first;
        while inside <= last {
            sum += excess;
            let left = total - cut;
            excess += exceeds * ((count - inside) / left - 1.0) - excess / left;
            exceeds -= log_next.exp() * (1.0 - (count - inside - 1.0) / left);
            log_next += ((count - inside - 1.0) / (inside + 2.0) * (cut + 1.0) / left).ln();
            inside += 1.0;
            cut += 1.0;
        }
        sum
    }

    /// The logarithm of P(O = `drawn`) before the cut, hypergeometric.
    fn log_chance(&self, drawn: f64, cut: f64) -> f64 {
        let others = self.total - self.count;
        if drawn > self.count || drawn > cut || cut - drawn > others {
            return f64::NEG_INFINITY;
        }
        log_choose(self.count, drawn) + log_choose(others, cut - drawn)
            - log_choose(self.total, cut)
    }
}

fn log_choose(of: f64, take: f64) -> f64 {
    log_factorial(of) - log_factorial(take) - log_factorial(of - take)
}

/// ln n!, by multiplication below 20 and Stirling's series above.
fn log_factorial(n: f64) -> f64 {
    if n < 20.0 {
        return (2..=n as u64)
            .map(|factor| factor as f64)
            .product::<f64>()
            .ln();
    }
    let inverse = 1.0 / n;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0));
    n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_base::random::{Draw, SplitMix64};
    use proptest::prelude::*;

    /// Latencies below 2048 ns have a bucket each, so these are exact.
    fn cells(requests: &[(u64, u64)]) -> Cells {
        let mut cells = Cells::new();
        requests
            .iter()
            .for_each(|&(size, latency)| cells.record(size, latency, true));
        cells
    }

    fn value(requests: &[(u64, u64)]) -> f64 {
        inversion(&cells(requests)).expect("two requests").value
    }

    /// The definition, word by word: two lists, the Nth of a size against the Nth of that size.
    fn brute_force(requests: &[(u64, u64)]) -> f64 {
        let mut ideal: Vec<u64> = requests.iter().map(|request| request.0).collect();
        ideal.sort_unstable();
        let mut observed = requests.to_vec();
        observed.sort_unstable_by_key(|&(size, latency)| (latency, size));
        distance(
            &ideal,
            &observed.iter().map(|request| request.0).collect::<Vec<_>>(),
        ) as f64
            / (requests.len() * requests.len() / 2) as f64
    }

    fn distance(ideal: &[u64], observed: &[u64]) -> usize {
        let positions = |order: &[u64], size: u64| -> Vec<usize> {
            order
                .iter()
                .enumerate()
                .filter(|(_, found)| **found == size)
                .map(|(at, _)| at)
                .collect()
        };
        let mut sizes = ideal.to_vec();
        sizes.dedup();
        let of_size = |&size: &u64| -> usize {
            let pairs = positions(ideal, size)
                .into_iter()
                .zip(positions(observed, size));
            pairs
                .map(|(ideal, observed)| ideal.abs_diff(observed))
                .sum()
        };
        sizes.iter().map(of_size).sum()
    }

    /// Every order of a multiset, as often as it occurs.
    fn mean_over_all_orders(sizes: &[u64]) -> f64 {
        fn walk(
            rest: &mut Vec<u64>,
            order: &mut Vec<u64>,
            ideal: &[u64],
            total: &mut (usize, usize),
        ) {
            if rest.is_empty() {
                *total = (total.0 + distance(ideal, order), total.1 + 1);
            }
            for at in 0..rest.len() {
                order.push(rest.remove(at));
                walk(rest, order, ideal, total);
                rest.insert(at, order.pop().expect("just pushed"));
            }
        }
        let ideal: Vec<u64> = (0..)
            .zip(sizes)
            .flat_map(|(size, &count)| vec![size; count as usize])
            .collect();
        let mut total = (0, 0);
        walk(&mut ideal.clone(), &mut Vec::new(), &ideal, &mut total);
        total.0 as f64 / total.1 as f64
    }

    #[test]
    fn inversion_is_a_third_in_the_example_of_the_paper() {
        // A < B < C < D < E, observed B, C, A, D, E: 1 + 1 + 2 of 12.
        let observed = [(2, 10), (3, 20), (1, 30), (4, 40), (5, 50)];
        assert_eq!(value(&observed), 4.0 / 12.0);
    }

    #[test]
    fn inversion_is_one_in_reverse_order_and_zero_in_order() {
        for count in [2, 3, 10, 101] {
            let reversed: Vec<_> = (0..count).map(|i| (i, count - i)).collect();
            let sorted: Vec<_> = (0..count).map(|i| (i, i)).collect();
            assert_eq!((value(&reversed), value(&sorted)), (1.0, 0.0), "{count}");
            let found = inversion(&cells(&reversed)).expect("two requests");
            assert_eq!((found.reversed, found.of_reversed), (1.0, Some(1.0)));
        }
    }

    #[test]
    fn inversion_is_two_thirds_in_random_order() {
        let mut random = SplitMix64(1);
        let requests: Vec<_> = (0..20_000)
            .map(|size| (size, random.below(1 << 31)))
            .collect();
        let found = inversion(&cells(&requests)).expect("requests");
        assert!((found.value - 2.0 / 3.0).abs() < 0.01, "{}", found.value);
        assert!((found.random - 2.0 / 3.0).abs() < 1e-6, "{}", found.random);
    }

    #[test]
    fn jains_index_is_one_when_all_wait_equally_long_whatever_the_order() {
        let index = |requests: &[(u64, u64)]| inversion(&cells(requests)).unwrap().jain.unwrap();
        let uniform: Vec<_> = (0..100).map(|size| (size, 1_000_000)).collect();
        assert!((index(&uniform) - 1.0).abs() < 1e-9);
        // One waits and nine do not: 10² / (10 · 10²), but for the width of a bucket.
        let one: Vec<_> = (0..10)
            .map(|i| (i, if i == 0 { 1 << 30 } else { 1 }))
            .collect();
        assert!((index(&one) - 0.1).abs() < 1e-3, "{}", index(&one));
        // It ignores the order, which service inversion does not.
        let sorted: Vec<_> = (1..=100).map(|i| (i, i << 20)).collect();
        let reversed: Vec<_> = (1..=100).map(|i| (101 - i, i << 20)).collect();
        assert_eq!(index(&sorted), index(&reversed));
        assert_eq!((value(&sorted), value(&reversed)), (0.0, 1.0));
    }

    #[test]
    fn inversion_is_absent_when_there_is_no_order() {
        assert_eq!(inversion(&Cells::new()), None);
        assert_eq!(inversion(&cells(&[(1, 1)])), None);
        let equal = inversion(&cells(&[(5, 1), (5, 2), (5, 9)])).expect("three requests");
        assert_eq!(
            (
                equal.value,
                equal.random,
                equal.of_random,
                equal.of_reversed
            ),
            (0.0, 0.0, None, None)
        );
        let mut failed = Cells::new();
        (0..9).for_each(|i| failed.record(i, 9 - i, false));
        assert_eq!(inversion(&failed), None);
    }

    #[test]
    fn random_order_is_the_closed_form_when_all_sizes_differ() {
        for count in [2_u64, 5, 100, 5000] {
            let n = count as f64;
            let expected = (n * n - 1.0) / 3.0;
            assert!((random(&vec![1; count as usize]) / expected - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn random_order_agrees_with_every_cut_summed_when_groups_are_large() {
        for sizes in [
            vec![700, 900, 1400],
            vec![250, 3, 97],
            vec![1, 298, 1],
            vec![60; 10],
        ] {
            let total: u64 = sizes.iter().sum();
            let mut below = 0;
            let mut expected = 0.0;
            for &count in &sizes {
                let group = Group {
                    total: total as f64,
                    count: count as f64,
                    below: below as f64,
                };
                for cut in 1..total {
                    let ideal = cut.saturating_sub(below).min(count) as f64;
                    let drawn = 0..=count.min(cut);
                    expected += drawn
                        .map(|drawn| {
                            group.log_chance(drawn as f64, cut as f64).exp()
                                * (drawn as f64 - ideal).abs()
                        })
                        .sum::<f64>();
                }
                below += count;
            }
            assert!(
                (random(&sizes) / expected - 1.0).abs() < 1e-9,
                "{sizes:?}: {} {expected}",
                random(&sizes)
            );
        }
    }

    #[test]
    fn random_order_is_fast_for_billions_of_requests() {
        let sizes: Vec<u64> = (1..=36).map(|i| i * 100_000_000).collect();
        let value = random(&sizes) / half_square(sizes.iter().sum());
        assert!((0.6..0.667).contains(&value), "{value}");
    }

    proptest! {
        #[test]
        fn inversion_equals_its_definition_with_ties(
            requests in proptest::collection::vec((0..6_u64, 0..12_u64), 2..60),
        ) {
            prop_assert_eq!(value(&requests), brute_force(&requests));
        }

        #[test]
        fn inversion_equals_its_definition_when_most_sizes_differ(requests in proptest::collection::vec((0..500_u64, 0..2000_u64), 2..60)) {
            prop_assert_eq!(value(&requests), brute_force(&requests));
        }

        #[test]
        fn random_order_is_the_mean_of_all_orders_when_requests_are_few(sizes in proptest::collection::vec(1..4_u64, 1..4)) {
            prop_assume!(sizes.iter().sum::<u64>() < 8);
            prop_assert!((random(&sizes) - mean_over_all_orders(&sizes)).abs() < 1e-9);
        }

        #[test]
        fn inversion_is_largest_in_reverse_order_with_ties(requests in proptest::collection::vec((0..5_u64, 0..2000_u64), 2..40)) {
            let found = inversion(&cells(&requests)).expect("two requests");
            prop_assert!(found.value <= found.reversed);
        }
    }
}
