//! Descriptors kept back from new clients, for those already here.
//!
//! To answer a client the worker opens files and looks at names, which takes descriptors. If new
//! clients could take the last one, everybody would be let in and nobody served. So some are held
//! by the reserve while accepting goes on, and given up as soon as a shortage is met, be it by a
//! new client or by a name; accepting then pauses until the reserve can be whole again.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Enough for a name being looked at, and for the files of a few answers on their way from helpers
/// (four each at most).
const KEPT_BACK: usize = 16;

/// The descriptors kept back.
#[derive(Default)]
pub struct Reserve(Vec<OwnedFd>);

impl Reserve {
    /// Makes it whole. It is already, but after a shortage; then an error says that the shortage
    /// lasts.
    pub fn fill(&mut self) -> Result<(), Errno> {
        while self.0.len() < KEPT_BACK {
            // The cheapest descriptor there is: nothing behind it can wait when it is closed.
            self.0.push(eventfd(0, EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    /// Gives the descriptors to whoever needs them; `false` when there are none to give.
    pub fn give_up(&mut self) -> bool {
        let had_some = !self.0.is_empty();
        self.0.clear();
        had_some
    }
}
