//! Bandwidth of one thread: reading, writing and copying more than the caches hold.

use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Bytes per second of one thread. Copying counts each byte once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bandwidth of reading.
    pub read_bytes_per_s: f64,
    /// Bandwidth of writing.
    pub write_bytes_per_s: f64,
    /// From one place to another.
    pub copy_bytes_per_s: f64,
}

/// Measurements, of which the fastest counts.
const MEASUREMENTS: usize = 3;

/// The most that is read at once; what counts is that it is many times the caches' share of one
/// thread.
const BYTES_MAX: u64 = 256 << 20;

/// Bandwidth over this many bytes.
pub(super) fn bandwidth(bytes: u64) -> Bandwidth {
    let words = bytes.min(BYTES_MAX) as usize / 8;
    let mut from = vec![1_u64; words];
    let mut to = vec![2_u64; words];
    Bandwidth {
        read_bytes_per_s: rate(words, || {
            // Four sums, so that additions do not wait for one another.
            let mut sums = [0_u64; 4];
            for four in black_box(&from).chunks_exact(4) {
                for (sum, word) in sums.iter_mut().zip(four) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        }),
        write_bytes_per_s: {
            let mut value = 0;
            rate(words, || {
                value += 1;
                black_box(&mut to).fill(value);
            })
        },
        copy_bytes_per_s: rate(words, || {
            black_box(&mut from).copy_from_slice(black_box(&to));
        }),
    }
}

fn rate(words: usize, mut work: impl FnMut()) -> f64 {
    let tries = (0..MEASUREMENTS).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    });
    let fastest = tries.fold(f64::INFINITY, f64::min);
    words as f64 * 8.0 / fastest
}
