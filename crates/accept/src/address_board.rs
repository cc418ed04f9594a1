//! The connections per client address of all workers, in shared memory.
//!
//! Each worker has a table of its own, into which only it writes, and reads those of the others. So
//! there is no lock, and what a worker has counted is released when the master clears its table
//! after its death. A table is divided into lines, and an address belongs into one of them. With
//! more addresses in a line than it has words, the others do not learn of the rest: the limit then
//! holds per worker for these addresses.
//!
//! Addresses are recognised by a part of a hash under a secret key, because clients choose them.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use headway_os::shared_lines::{SharedLine, SharedLines, WORDS_PER_LINE};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, Result};

use crate::address_line::{self, COUNT_BITS, COUNT_MAX};

/// Connections per line if each has another address, so that few lines ever overflow.
const CONNECTIONS_PER_LINE: usize = WORDS_PER_LINE / 4;

/// Largest table of a worker: 2 MiB.
const LINES_PER_WORKER_MAX: usize = 1 << 14;

/// The tables of all workers.
pub struct AddressBoard {
    /// One line with the secret key, then as many for each worker.
    shared: SharedLines,
    lines_per_worker: usize,
}

impl AddressBoard {
    /// Empty tables for workers with up to this many connections each.
    ///
    /// # Errors
    /// As memfd_create(2) and mmap(2).
    pub fn new(workers: usize, max_connections: u32) -> Result<AddressBoard> {
        let lines = (max_connections as usize).div_ceil(CONNECTIONS_PER_LINE);
        let lines_per_worker = lines.next_power_of_two().min(LINES_PER_WORKER_MAX);
        let shared = SharedLines::new(1 + workers * lines_per_worker)?;
        let random = RandomState::new();
        for (number, word) in shared.lines()[0].words[..2].iter().enumerate() {
            word.store(random.hash_one(number), Ordering::Relaxed);
        }
        Ok(AddressBoard {
            shared,
            lines_per_worker,
        })
    }

    /// The tables that the master has made for this many workers.
    ///
    /// # Errors
    /// `EINVAL` for any other file; others as mmap(2).
    pub fn open(file: OwnedFd, workers: usize) -> Result<AddressBoard> {
        let shared = SharedLines::open(file)?;
        let lines = shared.lines().len() - 1;
        if lines == 0 || !lines.is_multiple_of(workers) {
            return Err(Errno::INVAL);
        }
        Ok(AddressBoard {
            shared,
            lines_per_worker: lines / workers,
        })
    }

    /// Releases what a worker has counted. Only after it has ended.
    pub fn clear(&self, worker: usize) {
        let begin = 1 + worker * self.lines_per_worker;
        let lines = self.shared.lines()[begin..].iter();
        let words = lines
            .take(self.lines_per_worker)
            .flat_map(|line| &line.words);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Publishes how many connections of an address this worker has.
    pub fn publish(&self, worker: usize, address: IpAddr, count: u32) {
        let place = self.place(address);
        address_line::publish(&self.line(worker, place.line).words, place.tag, count);
    }

    /// Connections of an address that the other workers have published.
    pub fn others(&self, worker: usize, address: IpAddr) -> u64 {
        let place = self.place(address);
        let workers = 0..(self.shared.lines().len() - 1) / self.lines_per_worker;
        let others = workers.filter(|other| *other != worker);
        others
            .map(|other| address_line::count(&self.line(other, place.line).words, place.tag))
            .sum()
    }

    fn line(&self, worker: usize, line: usize) -> &SharedLine {
        &self.shared.lines()[1 + worker * self.lines_per_worker + line]
    }

    fn place(&self, address: IpAddr) -> Place {
        let mut hash = DefaultHasher::new();
        for word in &self.shared.lines()[0].words[..2] {
            hash.write_u64(word.load(Ordering::Relaxed));
        }
        address.hash(&mut hash);
        let hash = hash.finish();
        Place {
            // The number of lines divides 2^COUNT_BITS, so it uses bits which the tag does not.
            line: (hash & COUNT_MAX) as usize % self.lines_per_worker,
            tag: (hash & !COUNT_MAX).max(1 << COUNT_BITS),
        }
    }
}

impl AsFd for AddressBoard {
    /// The file descriptor to pass to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }
}

/// Where an address is found in each table.
struct Place {
    line: usize,
    tag: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn workers_see_each_others_connections_until_the_master_clears_them() {
        let master = AddressBoard::new(3, 100).unwrap();
        let file = rustix::io::fcntl_dupfd_cloexec(&master, 0).unwrap();
        let worker = AddressBoard::open(file, 3).unwrap();
        worker.publish(0, address(1), 2);
        worker.publish(1, address(1), 3);
        worker.publish(1, address(2), 7);
        let seen = |own, number| worker.others(own, address(number));
        assert_eq!((seen(0, 1), seen(1, 1), seen(2, 1)), (3, 2, 5));
        assert_eq!((seen(0, 2), seen(1, 2)), (7, 0));
        worker.publish(1, address(1), 0);
        assert_eq!((seen(2, 1), seen(2, 2)), (2, 7));
        master.clear(1);
        assert_eq!((seen(2, 1), seen(2, 2)), (2, 0));
    }

    #[test]
    fn every_address_is_seen_when_each_connection_has_another() {
        let board = AddressBoard::new(2, 1000).unwrap();
        (0..1000).for_each(|number| board.publish(0, address(number), 1));
        let seen = (0..1000).filter(|number| board.others(1, address(*number)) == 1);
        assert_eq!(seen.count(), 1000);
        (0..1000).for_each(|number| board.publish(0, address(number), 0));
        assert!((0..1000).all(|number| board.others(1, address(number)) == 0));
    }

    #[test]
    fn full_line_leaves_the_words_of_others_as_they_are() {
        let board = AddressBoard::new(2, 1).unwrap();
        (0..100).for_each(|number| board.publish(0, address(number), number + 1));
        let seen: Vec<u64> = (0..100)
            .map(|number| board.others(1, address(number)))
            .collect();
        for (number, count) in seen.iter().enumerate() {
            assert!([0, number as u64 + 1].contains(count), "{number}: {count}");
        }
        assert_eq!(seen.iter().filter(|count| **count > 0).count(), 16);
    }

    #[test]
    fn file_that_does_not_fit_the_workers_is_refused() {
        let file = rustix::io::fcntl_dupfd_cloexec(AddressBoard::new(3, 4).unwrap(), 0).unwrap();
        assert_eq!(AddressBoard::open(file, 2).err(), Some(Errno::INVAL));
    }
}
