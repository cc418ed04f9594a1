//! Errands: what a helper does that this crate knows nothing of.
//!
//! Whoever starts helpers gives them a function for it ([`crate::helper_main_with`]); its words and
//! what it brings pass through here as bytes. It is for what may wait and is none of a file
//! server's work, such as an append under a lock that other processes hold.

use super::jobs::{Key, Waiter};
use super::{Full, Pool};

/// Whether an errand may be shared, and repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errand {
    /// Done once, for one waiter. When its helper dies it has failed: nobody can tell whether it
    /// had been done.
    Once,
    /// Equal ones under way are one, and it is done again when a helper dies on it.
    Shared,
}

impl Pool {
    /// Have a helper do what `words` say, for `waiter`. They are at most
    /// [`crate::protocol::ERRAND_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`Full`].
    pub fn errand(&mut self, kind: Errand, words: &[u8], waiter: Waiter) -> Result<(), Full> {
        debug_assert!(words.len() <= crate::protocol::ERRAND_BYTES_MAX);
        self.statistics.errands += 1;
        let number = match kind {
            Errand::Once => {
                self.errands += 1;
                Some(self.errands)
            }
            Errand::Shared => None,
        };
        let words = words.into();
        self.ask(Key::Errand { number, words }, None, Some(waiter))
    }
}
