//! Health of one upstream: available, ejected, or being probed.

use crate::upstream::UpstreamPolicy;

/// The record of one upstream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    /// Failures in a row, since the last answer or ejection.
    pub(super) failures: u32,
    last_failure_ms: u64,
    /// Ejections in a row, since the last answer.
    pub(super) ejections: u32,
    /// Set from the ejection until the next answer, even after that time has passed.
    pub(super) ejected_until_ms: Option<u64>,
    is_probed: bool,
}

impl Health {
    /// Whether the upstream may get an ordinary request, or is due for a probe.
    pub(super) fn is_available(&self, now_ms: u64) -> bool {
        match self.ejected_until_ms {
            None => true,
            Some(until_ms) => until_ms <= now_ms && !self.is_probed,
        }
    }

    /// Remaining time of the ejection.
    pub(super) fn ejected_ms(&self, now_ms: u64) -> Option<u64> {
        self.ejected_until_ms
            .map(|until_ms| until_ms.saturating_sub(now_ms))
            .filter(|left_ms| *left_ms > 0)
    }

    /// Starts a request; returns whether it is a probe, whose outcome decides about the ejection.
    pub(super) fn begin_probe(&mut self, now_ms: u64) -> bool {
        let is_probe = self.ejected_until_ms.is_some() && self.is_available(now_ms);
        self.is_probed |= is_probe;
        is_probe
    }

    pub(super) fn abandon_probe(&mut self) {
        self.is_probed = false;
    }

    /// Any answer proves health, even that of a request which started before the ejection.
    pub(super) fn answered(&mut self) {
        *self = Health::default();
    }

    /// A failed probe ejects again at once. Failures of requests that started before the ejection
    /// are ignored.
    pub(super) fn failed(&mut self, now_ms: u64, was_probe: bool, policy: &UpstreamPolicy) {
        if self.ejected_until_ms.is_some() && !was_probe {
            return;
        }
        if now_ms.saturating_sub(self.last_failure_ms) > policy.failure_window_ms {
            self.failures = 0;
        }
        self.failures += 1;
        self.last_failure_ms = now_ms;
        if was_probe || self.failures >= policy.failures_max {
            self.eject(now_ms, policy);
        }
    }

    fn eject(&mut self, now_ms: u64, policy: &UpstreamPolicy) {
        let doublings = self.ejections.min(32);
        let back_off_ms = policy
            .ejection_ms
            .saturating_mul(1 << doublings)
            .min(policy.ejection_ms_max);
        self.ejected_until_ms = Some(now_ms.saturating_add(back_off_ms));
        self.ejections = self.ejections.saturating_add(1);
        self.failures = 0;
        self.is_probed = false;
    }
}
