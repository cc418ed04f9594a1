//! A clock for lengths of tens of nanoseconds: the CPU's time-stamp counter where it is one,
//! else `CLOCK_MONOTONIC`.
//!
//! `clock_gettime` costs some 25 ns, the counter 10, and a system call that does nothing 70:
//! timing every call needs the cheap one. It refuses to be used where the kernel does not
//! trust the counter (`constant_tsc` and `nonstop_tsc` missing): it would drift with the
//! CPU's frequency.
//!
//! Sources: Intel SDM volume 3, "Time-Stamp Counter"; clock_gettime(2).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::published::Published;

/// How long the counter is compared with the clock: the error of reading both, some 50 ns, is then
/// 25 parts in a million.
const CALIBRATION_TIME: Duration = Duration::from_millis(2);

/// The clock of this process, once it is known.
static TICKS: Published<Ticks> = Published::new();

/// Converts ticks into nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ticks {
    /// Nanoseconds in 2³² ticks; 2³² where a tick is a nanosecond.
    ns_per_2_32: u64,
    counter: bool,
}

impl Ticks {
    /// The clock of this machine; the first call of a process spins for two milliseconds to
    /// compare.
    pub fn calibrated() -> Ticks {
        *TICKS.get_or_publish(|| {
            if has_constant_counter() {
                Ticks::compare()
            } else {
                Ticks::monotonic()
            }
        })
    }

    /// Takes over what [`Ticks::rate`] returned in another process of this boot, which saves
    /// comparing. Without effect if this process has compared already.
    pub fn adopt(rate: u64) -> Ticks {
        *TICKS.get_or_publish(|| match rate {
            0 => Ticks::monotonic(),
            ns_per_2_32 => Ticks {
                ns_per_2_32,
                counter: true,
            },
        })
    }

    /// Nanoseconds in 2³² ticks of the CPU's counter; 0 if the counter is not used.
    pub const fn rate(self) -> u64 {
        if self.counter { self.ns_per_2_32 } else { 0 }
    }

    /// `CLOCK_MONOTONIC` itself, a tick a nanosecond.
    pub const fn monotonic() -> Ticks {
        Ticks {
            ns_per_2_32: 1 << 32,
            counter: false,
        }
    }

    /// Whether ticks are the CPU's counter.
    pub const fn is_counter(self) -> bool {
        self.counter
    }

    /// The present, in ticks since some moment in the past. Not ordered with the instructions
    /// around it; a system call orders itself.
    #[inline(always)]
    pub fn now(self) -> u64 {
        if self.counter {
            counter()
        } else {
            monotonic_ns()
        }
    }

    /// A difference of two readings, in nanoseconds. Right to 0.005 %; zero if the later reading is
    /// the smaller one, as between CPUs whose counters are apart by a few ticks.
    #[inline(always)]
    pub fn ns_between(self, earlier: u64, later: u64) -> u64 {
        let ticks = later.saturating_sub(earlier);
        ((u128::from(ticks) * u128::from(self.ns_per_2_32)) >> 32) as u64
    }

    /// Ticks and nanoseconds of `CLOCK_MONOTONIC` at one moment, to place readings on that clock.
    /// Some 200 ns; apart by less than that.
    pub fn with_monotonic_ns(self) -> (u64, u64) {
        if self.counter {
            both(4)
        } else {
            let ns = monotonic_ns();
            (ns, ns)
        }
    }

    /// How many ticks a length is.
    pub fn of_ns(self, ns: u64) -> u64 {
        ((u128::from(ns) << 32) / u128::from(self.ns_per_2_32)) as u64
    }

    fn compare() -> Ticks {
        let (ticks_0, ns_0) = both(20);
        while monotonic_ns() - ns_0 < CALIBRATION_TIME.as_nanos() as u64 {}
        let (ticks, ns) = both(20);
        let ticks = ticks.wrapping_sub(ticks_0);
        if ticks == 0 {
            return Ticks::monotonic();
        }
        Ticks {
            ns_per_2_32: ((u128::from(ns - ns_0) << 32) / u128::from(ticks)) as u64,
            counter: true,
        }
    }
}

/// Both clocks at one moment: of several attempts the one with the least time around it, so that
/// neither an interrupt nor a preemption comes between.
fn both(attempts: u32) -> (u64, u64) {
    let attempt = |_| {
        let before = counter();
        let ns = monotonic_ns();
        let after = counter();
        (after.wrapping_sub(before), before, ns)
    };
    let (around, before, ns) = (0..attempts)
        .map(attempt)
        .min()
        .expect("one attempt at least");
    (before + around / 2, ns)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of the perf ring's records.
#[inline(always)]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: rdtsc is part of every x86-64 CPU; a process that forbade it to itself
    // (PR_SET_TSC) has no `tsc` it could trust either, and gets the signal it asked for.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn counter() -> u64 {
    monotonic_ns()
}

/// Whether the counter runs at one rate, in all states of the CPU.
fn has_constant_counter() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
        return false;
    };
    let flags = text.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| {
        let has = |flag| flags.split_ascii_whitespace().any(|word| word == flag);
        has("constant_tsc") && has("nonstop_tsc")
    })
}

#[cfg(test)]
mod tests {
    use super::{Ticks, monotonic_ns};

    #[test]
    fn ticks_agree_with_the_clock_when_some_time_passes() {
        for ticks in [Ticks::calibrated(), Ticks::monotonic()] {
            // The length is whatever the machine makes of it; both clocks must see the same one. A
            // preemption between two readings would be seen by one clock only, so the best of some
            // counts.
            let best = (0..20)
                .map(|_| {
                    let (before, before_ns) = (ticks.now(), monotonic_ns());
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    let length_ns = ticks.ns_between(before, ticks.now());
                    let clock_ns = monotonic_ns() - before_ns;
                    length_ns.abs_diff(clock_ns) * 1000 / clock_ns
                })
                .min();
            assert!(best < Some(5), "{ticks:?}: {best:?} per mille apart");
        }
    }

    #[test]
    fn length_is_zero_when_the_later_reading_is_smaller() {
        assert_eq!(Ticks::monotonic().ns_between(10, 7), 0);
        assert_eq!(Ticks::monotonic().ns_between(7, 10), 3);
    }
}
