//! The matching against every pairing, and against the proof of its own duals.

use super::*;

use headway_base::random::{Draw, SplitMix64};

fn weight(weights: &Weights, mate: &[usize]) -> i64 {
    let twice: i64 = mate
        .iter()
        .enumerate()
        .map(|(u, &v)| weights.at(u, v))
        .sum();
    twice / 2
}

fn is_perfect(mate: &[usize]) -> bool {
    mate.iter()
        .enumerate()
        .all(|(u, &v)| v != u && v < mate.len() && mate[v] == u)
}

/// The heaviest of all pairings of the vertices that are left.
fn brute(weights: &Weights, left: &[usize]) -> i64 {
    let Some((&first, rest)) = left.split_first() else {
        return 0;
    };
    let all = rest.iter().map(|&other| {
        let others: Vec<usize> = rest.iter().copied().filter(|&v| v != other).collect();
        weights.at(first, other) + brute(weights, &others)
    });
    all.max().expect("a program is left to pair with")
}

/// Weights that differ much, or of which many are equal, so that blossoms are formed.
fn random(vertices: usize, seed: u64, range: usize) -> Weights {
    let mut drawn = SplitMix64::for_stream(seed, 0);
    let half: Vec<i64> = (0..vertices * vertices)
        .map(|_| drawn.index(range) as i64 - range as i64 / 2)
        .collect();
    Weights::new(vertices, |u, v| half[u * vertices + v])
}

#[test]
fn matching_weight_equals_the_heaviest_of_all_pairings() {
    for (vertices, range, seeds) in [
        (2, 9, 5),
        (4, 3, 100),
        (6, 4, 300),
        (8, 4, 300),
        (8, 1000, 300),
    ] {
        for seed in 0..seeds {
            let weights = random(vertices, seed, range);
            let mate = heaviest(&weights);
            assert!(is_perfect(&mate), "{mate:?}");
            let all: Vec<usize> = (0..vertices).collect();
            assert_eq!(
                weight(&weights, &mate),
                brute(&weights, &all),
                "{vertices} vertices, seed {seed}, range {range}"
            );
        }
    }
}

/// The doubled duals of a finished search: an upper bound of every matching's doubled weight, if
/// they are feasible.
fn certified(search: &Search) -> i64 {
    let n = search.vertices;
    let around = |v: usize| {
        let parent = |id: usize| Some(search.blossoms[id].parent).filter(|&id| id != NONE);
        std::iter::successors(parent(v), move |&id| parent(id)).collect::<Vec<_>>()
    };
    let nests: Vec<Vec<usize>> = (0..n).map(around).collect();
    for u in 0..n {
        for v in 0..u {
            let both = nests[u].iter().filter(|id| nests[v].contains(id));
            let inside: i64 = both.map(|&id| search.dual[id]).sum();
            assert!(
                search.slack(u, v) + inside >= 0,
                "edge {u} {v} is infeasible"
            );
        }
    }
    let blossoms = (n..search.blossoms.len()).filter(|&id| !search.blossoms[id].members.is_empty());
    let inner: i64 = blossoms
        .map(|id| {
            assert!(search.dual[id] >= 0);
            search.dual[id] * (search.blossoms[id].members.len() as i64 - 1) / 2
        })
        .sum();
    search.dual[..n].iter().sum::<i64>() + inner
}

#[test]
fn duals_prove_the_matching_weight() {
    for (vertices, range) in [(26, 5), (26, 1 << 40), (60, 3), (100, 10), (120, 100_000)] {
        for seed in 0..4 {
            let weights = random(vertices, seed, range);
            let search = Search::solve(&weights);
            assert!(is_perfect(&search.mate));
            assert_eq!(2 * weight(&weights, &search.mate), certified(&search));
        }
    }
}

#[test]
fn blossoms_nest_and_expand_in_odd_clusters() {
    // Points on a line in clusters of odd size: each cluster becomes a blossom and has to give one
    // vertex away.
    let mut random = SplitMix64::for_stream(7, 0);
    for clusters in [2, 4, 6, 12] {
        let position: Vec<i64> = (0..clusters * 9)
            .map(|v| (v as i64 / 3) * 1000 + (v as i64 / 9) * 90_000 + random.index(50) as i64)
            .collect();
        let weights = Weights::new(position.len(), |u, v| -(position[u] - position[v]).abs());
        let search = Search::solve(&weights);
        assert!(is_perfect(&search.mate));
        assert_eq!(2 * weight(&weights, &search.mate), certified(&search));
    }
}
