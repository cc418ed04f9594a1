//! Room for new connections: at the connection limit, and when descriptors run out, connections
//! close that have waited for a request longest.
//!
//! A connection with a request in progress is never closed for another one. If no connection has
//! been silent for long enough, clients wait in the accept queue, and each response that ends
//! meanwhile closes its connection.

use super::Acceptor;
use crate::worker::context::LoopContext;

/// How long a connection must have been silent before it closes for a new one. A request may be on
/// its way: on a new connection, or on one whose client has just received a response.
const SILENT_MS_MIN: u64 = 250;

/// While clients are left to other workers that have room, how often that is checked.
const ROOM_POLL_MS: u64 = 100;

impl Acceptor {
    /// Whether one more connection may be accepted: there is a free slot, or an idle connection
    /// that can close for it.
    pub(super) fn has_room(&self, context: &LoopContext) -> bool {
        let (open, max) = (context.connections.count(), context.config.max_connections);
        open < max as usize
            || !context.config.research.original_limits
                && open == max as usize
                && Acceptor::evictable(context).is_some()
                && !self.another_has_room(context)
    }

    /// The connection that closes next if room is needed.
    pub(in crate::worker) fn evictable(context: &LoopContext) -> Option<usize> {
        let (slot, since_ms) = context.connections.longest_waiting()?;
        (context.now_ms.saturating_sub(since_ms) >= SILENT_MS_MIN).then_some(slot)
    }

    /// Sets whether clients wait because there is no room.
    pub(super) fn set_full(&mut self, context: &mut LoopContext, full: bool) {
        self.listeners.set_full(full, &mut context.events);
        context.clients_wait = full && !self.another_has_room(context);
    }

    /// Accepts again once a connection has been idle for long enough.
    pub(super) fn look_for_room(&mut self, context: &mut LoopContext) {
        if self.listeners.is_full() && self.has_room(context) {
            self.set_full(context, false);
        }
    }

    /// When the next connection may have been idle for long enough, if clients wait for that.
    pub(super) fn room_next_ms(&self, context: &LoopContext) -> Option<u64> {
        let (_, since_ms) = context.connections.longest_waiting()?;
        let now_ms = context.now_ms;
        let next_ms = match since_ms + SILENT_MS_MIN {
            silent_ms if silent_ms > now_ms => silent_ms,
            _ => now_ms + ROOM_POLL_MS,
        };
        self.listeners.is_full().then_some(next_ms)
    }

    /// Whether a worker that shares the accept queue can accept without closing a connection.
    fn another_has_room(&self, context: &LoopContext) -> bool {
        let max = u64::from(context.config.max_connections);
        let balance = self.balance.as_ref();
        balance.is_some_and(|balance| balance.another_has_room(max))
    }
}
