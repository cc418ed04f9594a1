//! What goes wrong with a disk, as functions of time: pure, times in nanoseconds of one clock.

use super::spec::{Fault, FaultPlan};

const NS_PER_MS: u64 = 1_000_000;

/// The faults of a running disk, planned and ordered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    slow: Vec<(Span, f64)>,
    stalls: Vec<Span>,
    failing: Vec<Failing>,
}

/// From the first instant to the one after the last.
#[derive(Clone, Copy, Debug)]
struct Span {
    from_ns: u64,
    to_ns: u64,
}

impl Span {
    fn starting(from_ns: u64, for_ms: u64) -> Span {
        Span {
            from_ns,
            to_ns: from_ns.saturating_add(for_ms.saturating_mul(NS_PER_MS)),
        }
    }

    fn has(&self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    from_ns: u64,
    offset_bytes: u64,
    length_bytes: u64,
}

impl Faults {
    /// A plan whose times count from `start_ns`.
    pub(crate) fn planned(plan: &FaultPlan, start_ns: u64) -> Faults {
        let mut faults = Faults::default();
        let at = |at_ms: u64| start_ns.saturating_add(at_ms.saturating_mul(NS_PER_MS));
        for fault in &plan.0 {
            match *fault {
                Fault::Slow {
                    at_ms,
                    for_ms,
                    factor,
                } => faults.slow(at(at_ms), for_ms, factor),
                Fault::Stall { at_ms, for_ms } => faults.stall(at(at_ms), for_ms),
                Fault::Fail {
                    at_ms,
                    offset_bytes,
                    length_bytes,
                } => faults.fail(at(at_ms), offset_bytes, length_bytes),
            }
        }
        faults
    }

    pub(crate) fn slow(&mut self, from_ns: u64, for_ms: u64, factor: f64) {
        self.slow.push((Span::starting(from_ns, for_ms), factor));
    }

    pub(crate) fn stall(&mut self, from_ns: u64, for_ms: u64) {
        self.stalls.push(Span::starting(from_ns, for_ms));
    }

    pub(crate) fn fail(&mut self, from_ns: u64, offset_bytes: u64, length_bytes: u64) {
        self.failing.push(Failing {
            from_ns,
            offset_bytes,
            length_bytes,
        });
    }

    /// By how much a service that starts then is slower; slow periods that overlap multiply.
    pub(crate) fn slower(&self, at_ns: u64) -> f64 {
        let now = self.slow.iter().filter(|(span, _)| span.has(at_ns));
        now.map(|(_, factor)| factor).product()
    }

    /// The first instant from then on at which the disk is not stalled.
    pub(crate) fn released_ns(&self, at_ns: u64) -> u64 {
        let mut released_ns = at_ns;
        // A stall can end in another one.
        while let Some(stall) = self.stalls.iter().find(|stall| stall.has(released_ns)) {
            released_ns = stall.to_ns;
        }
        released_ns
    }

    /// Whether a request that touches this range fails then.
    pub(crate) fn fails(&self, at_ns: u64, offset_bytes: u64, length_bytes: u64) -> bool {
        self.failing.iter().any(|range| {
            range.from_ns <= at_ns
                && offset_bytes < range.offset_bytes.saturating_add(range.length_bytes)
                && range.offset_bytes < offset_bytes.saturating_add(length_bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_plan_times_count_from_its_start() {
        let plan = FaultPlan(vec![
            Fault::Slow {
                at_ms: 10,
                for_ms: 5,
                factor: 3.0,
            },
            Fault::Stall {
                at_ms: 20,
                for_ms: 5,
            },
            Fault::Fail {
                at_ms: 30,
                offset_bytes: 4096,
                length_bytes: 4096,
            },
        ]);
        let faults = Faults::planned(&plan, 1_000);
        let at = |ms: u64| 1_000 + ms * NS_PER_MS;
        assert_eq!(
            [9, 10, 14, 15].map(|ms| faults.slower(at(ms))),
            [1.0, 3.0, 3.0, 1.0]
        );
        assert_eq!(
            [19, 20, 24, 25].map(|ms| faults.released_ns(at(ms))),
            [at(19), at(25), at(25), at(25)]
        );
        assert!(!faults.fails(at(29), 4096, 1));
        assert!(faults.fails(at(30), 4096, 1));
    }

    #[test]
    fn stall_ends_with_the_last_one_when_stalls_overlap() {
        let mut faults = Faults::default();
        faults.stall(10 * NS_PER_MS, 10);
        faults.stall(15 * NS_PER_MS, 10);
        faults.stall(25 * NS_PER_MS, 1);
        assert_eq!(faults.released_ns(12 * NS_PER_MS), 26 * NS_PER_MS);
        assert_eq!(faults.released_ns(9 * NS_PER_MS), 9 * NS_PER_MS);
    }

    #[test]
    fn slow_periods_multiply_when_they_overlap() {
        let mut faults = Faults::default();
        faults.slow(0, 10, 2.0);
        faults.slow(5 * NS_PER_MS, 10, 3.0);
        assert_eq!(faults.slower(6 * NS_PER_MS), 6.0);
    }

    #[test]
    fn request_fails_when_one_byte_is_in_the_failing_range() {
        let mut faults = Faults::default();
        faults.fail(0, 100, 10);
        let cases = [
            ((90, 10), false),
            ((90, 11), true),
            ((109, 50), true),
            ((110, 50), false),
            ((0, 1000), true),
        ];
        for ((offset, length), expected) in cases {
            assert_eq!(
                faults.fails(0, offset, length),
                expected,
                "{offset}+{length}"
            );
        }
    }
}
