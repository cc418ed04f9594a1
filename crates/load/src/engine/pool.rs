//! Which slots have no request: free ones, and open connections by target.
//!
//! The connection that was used last is taken first, so that no more are open than the load needs.
//! When the server closes an idle one, the last of the list takes its place: the order then is not
//! exact, and taking it out costs nothing.

use super::slot::{ConnectionSlot, Phase};

#[derive(Debug)]
pub(crate) struct Pool {
    pub slots: Vec<ConnectionSlot>,
    slots_max: usize,
    free: Vec<u32>,
    idle: Vec<Vec<u32>>,
}

/// The slot assigned to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assigned {
    /// An open connection to the target.
    Idle(u32),
    /// A free slot, which needs a new connection.
    New(u32),
    /// A slot whose idle connection leads to another target and has to be closed.
    Evicted(u32),
}

impl Pool {
    pub(super) fn new(slots_max: u32, targets: usize) -> Pool {
        // Most runs use what they ask for; a huge bound is grown into.
        let room = slots_max.min(65_536) as usize;
        Pool {
            slots: Vec::with_capacity(room),
            slots_max: slots_max as usize,
            free: Vec::with_capacity(room),
            idle: (0..targets).map(|_| Vec::with_capacity(room)).collect(),
        }
    }

    /// A place for a request to `target`; `None` when every connection is busy.
    pub(super) fn assign(&mut self, target: u8) -> Option<Assigned> {
        if let Some(index) = self.idle[usize::from(target)].pop() {
            return Some(Assigned::Idle(index));
        }
        if let Some(index) = self.free.pop() {
            return Some(Assigned::New(index));
        }
        if self.slots.len() < self.slots_max {
            self.slots.push(ConnectionSlot::new());
            return Some(Assigned::New(self.slots.len() as u32 - 1));
        }
        let others = self.idle.iter_mut().find_map(Vec::pop);
        others.map(Assigned::Evicted)
    }

    /// The slot has no connection any more.
    pub(super) fn free(&mut self, index: u32) {
        self.slots[index as usize].phase = Phase::Free;
        self.free.push(index);
    }

    /// The slot's connection becomes idle.
    pub(super) fn idle(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let idle = &mut self.idle[usize::from(slot.target)];
        slot.phase = Phase::Idle;
        slot.idle_at = idle.len() as u32;
        idle.push(index);
    }

    /// The slot is idle, and shall not be.
    pub(super) fn not_idle(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let at = slot.idle_at as usize;
        let idle = &mut self.idle[usize::from(slot.target)];
        debug_assert_eq!(idle.get(at), Some(&index));
        idle.swap_remove(at);
        if let Some(&moved) = idle.get(at) {
            self.slots[moved as usize].idle_at = at as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_idle_connection_is_taken_when_there_are_several() {
        let mut pool = Pool::new(3, 1);
        for index in 0..3 {
            assert_eq!(pool.assign(0), Some(Assigned::New(index)));
        }
        assert_eq!(pool.assign(0), None);
        (0..3).for_each(|index| pool.idle(index));
        assert_eq!(pool.assign(0), Some(Assigned::Idle(2)));
        pool.idle(2);
        pool.not_idle(0);
        pool.free(0);
        assert_eq!(pool.assign(0), Some(Assigned::Idle(1)));
        assert_eq!(pool.assign(0), Some(Assigned::Idle(2)));
        assert_eq!(pool.assign(0), Some(Assigned::New(0)));
        assert_eq!(pool.assign(0), None);
    }

    #[test]
    fn connection_to_another_target_is_taken_when_all_are_open() {
        let mut pool = Pool::new(1, 2);
        assert_eq!(pool.assign(0), Some(Assigned::New(0)));
        pool.idle(0);
        assert_eq!(pool.assign(1), Some(Assigned::Evicted(0)));
        assert_eq!(pool.assign(0), None);
    }
}
