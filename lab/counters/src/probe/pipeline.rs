//! The length of a cycle, and what a mispredicted branch costs.
//!
//! A chain of rotations and exclusive ors, each of which needs the result before it, takes a cycle
//! for each on every CPU that the table knows. A branch on random bits is wrong half of the
//! time, one on equal bits hardly ever; the difference is half of a misprediction's price.

use std::hint::black_box;
use std::time::Instant;

use headway_base::random::{Draw, SplitMix64};

/// Measurements, of which the fastest counts.
const MEASUREMENTS: usize = 5;

/// Links of the chain, in operations.
const OPERATIONS: usize = 1 << 22;

/// Branches of one measurement.
const BRANCHES: usize = 1 << 20;

/// Nanoseconds of a cycle.
pub(super) fn cycle_ns() -> f64 {
    let (mut x, y) = (
        black_box(0x1234_5678_9abc_def1_u64),
        black_box(0x0f0f_f0f0_3333_cccc_u64),
    );
    fastest(|| {
        for _ in 0..OPERATIONS / 16 {
            // Eight times two operations; without them in a row the loop's own would be a part of
            // the figure.
            x = x.rotate_left(5) ^ y;
            x = x.rotate_left(7) ^ y;
            x = x.rotate_left(9) ^ y;
            x = x.rotate_left(11) ^ y;
            x = x.rotate_left(13) ^ y;
            x = x.rotate_left(17) ^ y;
            x = x.rotate_left(19) ^ y;
            x = x.rotate_left(23) ^ y;
        }
        x = black_box(x);
    }) / OPERATIONS as f64
}

/// Nanoseconds that a misprediction costs.
pub(super) fn misprediction_ns() -> f64 {
    let mut random = SplitMix64(0);
    let random: Vec<bool> = (0..BRANCHES).map(|_| random.next_u64() & 1 == 1).collect();
    let equal = vec![true; BRANCHES];
    let time = |bits: &[bool]| fastest(|| walk(black_box(bits))) / BRANCHES as f64;
    ((time(&random) - time(&equal)) * 2.0).max(0.0)
}

fn walk(bits: &[bool]) {
    let mut steps = [0_u64; 2];
    for bit in bits {
        // Opaque on both sides, or the compiler would make an addition of it.
        if *bit {
            steps[0] = black_box(steps[0] + 1);
        } else {
            steps[1] = black_box(steps[1] + 3);
        }
    }
    black_box(steps);
}

fn fastest(mut work: impl FnMut()) -> f64 {
    work();
    let tries = (0..MEASUREMENTS).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64() * 1e9
    });
    tries.fold(f64::INFINITY, f64::min)
}
