//! Who of the workers that share a queue takes a client: not one that has more than its share.
//!
//! The kernel wakes workers for clients without knowing whom they have, and whoever is first takes
//! all who are there: sixteen clients that come at once and stay were one worker's. So each worker
//! shows the others how many it has ([`Board`]), and a round ends at the worker's share of all,
//! those who wait included. Who has its share while others wait *stands back*: does not look at the
//! queue for a moment, or until it has no more than the others. The others are told to look
//! meanwhile ([`super::Listeners::take_left`]); should they be unable to, the moment ends and
//! everybody is served all the same.
//!
//! Shares are rounded up, so there is always one that has less than its share while somebody waits.
//! Workers that take nobody, since they are full or gone, have none ([`ABSENT`]).

use std::sync::atomic::Ordering;

use headway_os::board::Board;

/// How long a worker stands back at most, and how long it then does not.
const MOMENT_MS: u64 = 5;

/// What stands on the board for a worker that takes nobody now.
pub const ABSENT: u32 = u32::MAX;

/// One worker's view of all.
pub struct Balance {
    board: Board,
    worker: usize,
    /// Standing back until then, or until it was.
    until_ms: Option<u64>,
    /// When it may stand back again.
    again_ms: u64,
}

/// What a worker that was told of clients is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Take so many at most.
    Take(u32),
    /// Leave them to the others.
    StandBack,
}

impl Balance {
    /// Of the worker with this number, which has nobody yet.
    pub fn new(board: Board, worker: u32) -> Balance {
        let balance = Balance {
            board,
            worker: worker as usize,
            until_ms: None,
            again_ms: 0,
        };
        balance.show(0);
        balance
    }

    /// Shows the others how many clients this worker has; [`ABSENT`] if they are not to leave any
    /// to it.
    pub fn show(&self, own: u32) {
        if let Some(place) = self.board.place(self.worker) {
            place.store(own, Ordering::Relaxed);
        }
    }

    /// For a worker with so many clients, while so many wait.
    pub fn turn(&mut self, own: u32, waiting: u32, now_ms: u64) -> Turn {
        if self.until_ms.is_some() {
            return Turn::StandBack;
        }
        self.show(own);
        let (all, workers) = self.all();
        let share = all.saturating_add(waiting).div_ceil(workers);
        if own < share {
            return Turn::Take(share - own);
        }
        if waiting == 0 || now_ms < self.again_ms {
            return Turn::Take(waiting.div_ceil(workers).max(1));
        }
        self.until_ms = Some(now_ms + MOMENT_MS);
        self.again_ms = now_ms + 2 * MOMENT_MS;
        Turn::StandBack
    }

    /// Whether standing back ends now.
    pub fn comes_forward(&mut self, own: u32, now_ms: u64) -> bool {
        let ends = self
            .until_ms
            .is_some_and(|until| now_ms >= until || self.has_no_more(own));
        if ends {
            self.until_ms = None;
        }
        ends
    }

    /// When standing back ends, if it does.
    pub fn next_ms(&self) -> Option<u64> {
        self.until_ms
    }

    fn has_no_more(&self, own: u32) -> bool {
        let (all, workers) = self.all();
        own <= all / workers
    }

    /// Clients of all workers that take some, and how many workers these are; this one at least.
    fn all(&self) -> (u32, u32) {
        let shown = self
            .board
            .places()
            .map(|place| place.load(Ordering::Relaxed));
        let present = shown.filter(|number| *number != ABSENT);
        let (all, workers) = present.fold((0_u32, 0), |(all, workers), number| {
            (all.saturating_add(number), workers + 1)
        });
        (all, workers.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> Vec<Balance> {
        let board = Board::new(4).unwrap();
        let again = || Board::open(rustix::io::fcntl_dupfd_cloexec(&board, 0).unwrap()).unwrap();
        (0..4).map(|worker| Balance::new(again(), worker)).collect()
    }

    #[test]
    fn each_takes_its_share_when_many_come_at_once() {
        let mut workers = four();
        // The same one is told again and again, and the others when it stands back.
        let (mut has, mut waiting) = ([0; 4], 18);
        for worker in 0..4 {
            while let Turn::Take(most) = workers[worker].turn(has[worker], waiting, 0) {
                let taken = most.min(waiting);
                if taken == 0 {
                    break;
                }
                has[worker] += taken;
                waiting -= taken;
            }
        }
        assert_eq!((has, waiting), ([5, 5, 5, 3], 0));
    }

    #[test]
    fn nobody_waits_long_when_those_with_room_do_not_come() {
        let mut workers = four();
        workers[0].show(10);
        assert_eq!(workers[0].turn(10, 1, 100), Turn::StandBack);
        assert_eq!(workers[0].next_ms(), Some(100 + MOMENT_MS));
        assert!(!workers[0].comes_forward(10, 100 + MOMENT_MS - 1));
        assert!(workers[0].comes_forward(10, 100 + MOMENT_MS));
        assert_eq!(workers[0].turn(10, 1, 100 + MOMENT_MS), Turn::Take(1));
        assert_eq!(workers[0].next_ms(), None);
        assert_eq!(workers[0].turn(11, 1, 100 + 2 * MOMENT_MS), Turn::StandBack);
    }

    #[test]
    fn nothing_is_left_to_workers_that_take_nobody() {
        let mut workers = four();
        (1..4).for_each(|absent| workers[absent].show(ABSENT));
        assert_eq!(workers[0].turn(10, 4, 0), Turn::Take(4));
        workers[1].show(10);
        assert_eq!(workers[0].turn(10, 4, 0), Turn::Take(2));
    }

    #[test]
    fn worker_comes_forward_when_its_clients_have_left() {
        let mut workers = four();
        workers[1].show(4);
        assert_eq!(workers[0].turn(10, 1, 0), Turn::StandBack);
        workers[0].show(5);
        assert!(!workers[0].comes_forward(5, 1));
        workers[0].show(1);
        assert!(workers[0].comes_forward(1, 1));
        assert!(
            !workers[0].comes_forward(1, 100),
            "it stands where it should"
        );
    }
}
