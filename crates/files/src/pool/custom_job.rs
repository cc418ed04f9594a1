//! Custom jobs: work in a helper that this crate knows nothing about.
//!
//! The process that runs the helper provides a function for them ([`crate::helper_main_with`]); the
//! payload and the result pass through here as bytes. They are for blocking work other than serving
//! files, such as an append under a lock that other processes hold.

use super::jobs::{JobKey, Waiter};
use super::{Full, Pool};

/// Whether an custom_job may be shared, and repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CustomJob {
    /// Runs once, for one waiter. If its helper dies, it has failed, since it is unknown whether it
    /// was done.
    Once,
    /// Equal ones under way are one, and it is done again when a helper dies on it.
    Shared,
}

impl Pool {
    /// Has a helper run the job `payload` for `waiter`. The payload has at most
    /// [`crate::protocol::CUSTOM_JOB_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit_custom(
        &mut self,
        kind: CustomJob,
        payload: &[u8],
        waiter: Waiter,
    ) -> Result<(), Full> {
        debug_assert!(payload.len() <= crate::protocol::CUSTOM_JOB_BYTES_MAX);
        self.statistics.custom_jobs += 1;
        let number = match kind {
            CustomJob::Once => {
                self.custom_jobs += 1;
                Some(self.custom_jobs)
            }
            CustomJob::Shared => None,
        };
        let payload = payload.into();
        self.enqueue(JobKey::Custom { number, payload }, None, Some(waiter))
    }
}
