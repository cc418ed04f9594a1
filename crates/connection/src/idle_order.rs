//! The connections that wait for a request, in the order in which they began to wait.
//!
//! A linked list through an array by slot: a connection enters and leaves it with every request, so
//! both are a few stores, and nothing is searched.

/// Where the list begins and ends; slot `n` has link `n + 1`.
const END: u32 = 0;
/// In `before` of a slot that is not in the list.
const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    since_ms: u64,
}

/// Slots by the time at which they entered, the longest ago first.
pub(crate) struct IdleOrder(Vec<Link>);

impl Default for IdleOrder {
    fn default() -> IdleOrder {
        IdleOrder(vec![Link {
            before: END,
            after: END,
            since_ms: 0,
        }])
    }
}

impl IdleOrder {
    /// Adds a slot that is not in the list, as the last one.
    pub(crate) fn push(&mut self, slot: usize, since_ms: u64) {
        let (own, last) = (slot + 1, self.0[END as usize].before);
        if self.0.len() <= own {
            let absent = Link {
                before: ABSENT,
                after: END,
                since_ms: 0,
            };
            self.0.resize(own + 1, absent);
        }
        self.0[own] = Link {
            before: last,
            after: END,
            since_ms,
        };
        self.0[last as usize].after = own as u32;
        self.0[END as usize].before = own as u32;
    }

    /// Removes a slot, if it is in the list.
    pub(crate) fn remove(&mut self, slot: usize) {
        let Some(link) = self.0.get_mut(slot + 1) else {
            return;
        };
        let Link { before, after, .. } = *link;
        if before == ABSENT {
            return;
        }
        link.before = ABSENT;
        self.0[before as usize].after = after;
        self.0[after as usize].before = before;
    }

    /// When a slot entered, if it is in the list.
    pub(crate) fn since_ms(&self, slot: usize) -> Option<u64> {
        let link = self.0.get(slot + 1)?;
        (link.before != ABSENT).then_some(link.since_ms)
    }

    /// The slot that entered longest ago, and when.
    pub(crate) fn first(&self) -> Option<(usize, u64)> {
        let first = self.0[END as usize].after;
        (first != END).then(|| (first as usize - 1, self.0[first as usize].since_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(mut order: IdleOrder) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        while let Some(first) = order.first() {
            order.remove(first.0);
            all.push(first);
        }
        all
    }

    #[test]
    fn slots_come_in_the_order_of_their_last_entry() {
        let mut order = IdleOrder::default();
        assert_eq!(order.first(), None);
        for (slot, since_ms) in [(4, 10), (0, 20), (7, 30), (2, 40)] {
            order.push(slot, since_ms);
        }
        order.remove(4);
        order.push(4, 50);
        order.remove(7);
        for absent in [7, 5, 99] {
            order.remove(absent);
        }
        assert_eq!(order.first(), Some((0, 20)));
        assert_eq!(drained(order), [(0, 20), (2, 40), (4, 50)]);
    }

    #[test]
    fn list_is_usable_after_its_last_slot_was_removed() {
        let mut order = IdleOrder::default();
        order.push(0, 1);
        order.remove(0);
        assert_eq!(order.first(), None);
        order.push(1, 2);
        order.push(0, 3);
        assert_eq!(drained(order), [(1, 2), (0, 3)]);
    }
}
