//! The time of a loop: milliseconds since the clock was made, never backwards.
//!
//! A loop reads it once a turn and passes the number on, so that everything in a turn agrees on the
//! time. The reading is `CLOCK_MONOTONIC` through the vDSO (some 20 ns, no system call where the
//! machine's clock source allows it). Calendar time is refused here: a log line or a `Date` field
//! needs another clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock in whole milliseconds, or one that a test moves by hand. Clones show the same
/// time.
///
/// ```
/// use headway_event::Clock;
/// use std::time::Duration;
///
/// let clock = Clock::simulated();
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(clock.now_ms(), 2000);
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Monotonic(Instant),
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that starts at 0 now.
    pub fn monotonic() -> Clock {
        Clock(Source::Monotonic(Instant::now()))
    }

    /// A clock that stands at 0 until [`Clock::advance`] moves it.
    pub fn simulated() -> Clock {
        Clock(Source::Simulated(Arc::new(AtomicU64::new(0))))
    }

    /// Milliseconds since the start, rounded down.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Source::Monotonic(start) => start.elapsed().as_millis() as u64,
            Source::Simulated(now_ms) => now_ms.load(Ordering::Relaxed),
        }
    }

    /// Moves a simulated clock forward, by whole milliseconds rounded up.
    ///
    /// # Panics
    /// When the clock is a real one.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::Monotonic(_) => panic!("only a simulated clock can be advanced"),
            Source::Simulated(now_ms) => {
                now_ms.fetch_add(whole_ms(by), Ordering::Relaxed);
            }
        }
    }
}

/// Milliseconds in `length`, rounded up, so that a wait never ends before its deadline.
pub(crate) fn whole_ms(length: Duration) -> u64 {
    let ms = length
        .as_secs()
        .saturating_mul(1000)
        .saturating_add(length.subsec_millis().into());
    ms.saturating_add(u64::from(!length.subsec_nanos().is_multiple_of(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_rounded_up_when_it_is_not_whole() {
        assert_eq!(whole_ms(Duration::ZERO), 0);
        assert_eq!(whole_ms(Duration::from_nanos(1)), 1);
        assert_eq!(whole_ms(Duration::from_millis(7)), 7);
        assert_eq!(whole_ms(Duration::from_micros(7_001)), 8);
        assert_eq!(whole_ms(Duration::MAX), u64::MAX);
    }

    #[test]
    fn clones_agree_when_one_is_advanced() {
        let clock = Clock::simulated();
        let other = clock.clone();
        clock.advance(Duration::from_millis(5));
        assert_eq!(other.now_ms(), 5);
    }

    #[test]
    fn monotonic_clock_does_not_go_back_when_read_twice() {
        let clock = Clock::monotonic();
        let first = clock.now_ms();
        assert!(clock.now_ms() >= first);
    }
}
