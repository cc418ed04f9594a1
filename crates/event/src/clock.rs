//! The clock of an event loop: milliseconds since the clock was created, never backwards.
//!
//! A loop reads it once per iteration and passes the number on, so that everything in an iteration
//! agrees on the time. It reads `CLOCK_MONOTONIC` through the vDSO (about 20 ns, without a system
//! call where the machine's clock source permits it). It does not know calendar time, which a log
//! line or a `Date` header needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock in whole milliseconds, or a simulated one that a test advances. Clones show
/// the same time.
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
pub struct Clock(ClockKind);

#[derive(Clone, Debug)]
enum ClockKind {
    Monotonic(Instant),
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// Creates a clock that is 0 now.
    ///
    /// ```
    /// let clock = headway_event::Clock::monotonic();
    /// assert!(clock.now_ms() < 1_000);
    /// ```
    pub fn monotonic() -> Clock {
        Clock(ClockKind::Monotonic(Instant::now()))
    }

    /// Creates a clock that stays at 0 until [`Clock::advance`] moves it.
    pub fn simulated() -> Clock {
        Clock(ClockKind::Simulated(Arc::new(AtomicU64::new(0))))
    }

    /// Returns the milliseconds since the start, rounded down.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            ClockKind::Monotonic(start) => start.elapsed().as_millis() as u64,
            ClockKind::Simulated(now_ms) => now_ms.load(Ordering::Relaxed),
        }
    }

    /// Returns the microseconds since the start, rounded down.
    pub fn now_us(&self) -> u64 {
        match &self.0 {
            ClockKind::Monotonic(start) => start.elapsed().as_micros() as u64,
            ClockKind::Simulated(now_ms) => now_ms.load(Ordering::Relaxed).saturating_mul(1000),
        }
    }

    /// Advances a simulated clock, by whole milliseconds rounded up.
    ///
    /// # Panics
    /// If the clock is not simulated.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            ClockKind::Monotonic(_) => panic!("only a simulated clock can be advanced"),
            ClockKind::Simulated(now_ms) => {
                now_ms.fetch_add(whole_ms(by), Ordering::Relaxed);
            }
        }
    }
}

/// Returns the milliseconds in `length`, rounded up, so that a wait never ends before its deadline.
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
