//! The room for bodies and responses that wait: one limit in memory and one on disk for everything
//! that a worker buffers.
//!
//! A request body is received before its handler starts, and a response waits for a slow client.
//! Each is in memory first, and a helper writes it to a file when a chunk is full. When memory gets
//! scarce, smaller parts are written as well. When little is left, clients with a body are held: they
//! are not read from, in the order of their requests, and get 503 after `body-timeout`. What comes
//! with a header has been read already, so at the limit a request with more of a body gets 503 at once.
//!
//! Each worker has its share of the limits. nginx limits each request (`client_body_buffer_size`,
//! `proxy_max_temp_file_size`), and not their sum.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use headway_config::Config;
use headway_connection::{BufferCharges, Exchange};
use headway_event::Token;
use headway_metrics::Counters;
use headway_request::{Charge, Request};

/// A body or response is written to disk in chunks of at least this size.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// The same while memory is scarce.
const CHUNK_BYTES_SCARCE: usize = 16 * 1024;
/// Room on disk that writing one more chunk needs, with all that a read may have added to it.
const DISK_STEP_BYTES: u64 = 2 * CHUNK_BYTES as u64;

/// How often held clients are checked for having disconnected.
const DEPARTURES_INTERVAL_MS: u64 = 100;

/// What a held exchange waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Memory,
    Disk,
}

/// The room for buffered bodies and responses of a worker.
pub(super) struct BufferRoom {
    memory: Rc<Cell<u64>>,
    disk: Rc<Cell<u64>>,
    files: Rc<Cell<u64>>,
    memory_max_bytes: u64,
    disk_max_bytes: u64,
    files_max: u64,
    /// Clients whose bodies are held for lack of memory, by the number of their exchanges.
    held_for_memory: BTreeMap<u64, Token>,
    /// … and for lack of disk space.
    held_for_disk: BTreeMap<u64, Token>,
    /// When held clients are checked for having disconnected, and up to which exchange they were.
    departures_due_ms: u64,
    departures_hand: u64,
    /// Up to where connections were searched for what can be written to disk.
    pub(super) hand: usize,
}

impl BufferRoom {
    /// The worker's share of the room that is configured.
    pub(super) fn new(config: &Config) -> BufferRoom {
        let workers = config.workers.max(1) as u64;
        BufferRoom {
            memory: Rc::default(),
            disk: Rc::default(),
            files: Rc::default(),
            memory_max_bytes: config.buffer_memory_max_bytes / workers,
            disk_max_bytes: config.buffer_disk_max_bytes / workers,
            files_max: config.buffer_files_max as u64,
            held_for_memory: BTreeMap::new(),
            held_for_disk: BTreeMap::new(),
            departures_due_ms: 0,
            departures_hand: 0,
            hand: 0,
        }
    }

    /// The charges of a new exchange, which has taken nothing yet.
    pub(super) fn charges(&self) -> BufferCharges {
        BufferCharges {
            memory: Charge::new(&self.memory, 0),
            disk: Charge::new(&self.disk, 0),
            files: Charge::new(&self.files, 0),
        }
    }

    /// Charges the body that is received for an application.
    pub(super) fn charge_body(&self, request: &mut Request) {
        let charge = request
            .body_charge
            .get_or_insert_with(|| Charge::new(&self.memory, 0));
        charge.set(request.body.capacity() as u64);
    }

    /// Whether more may be received.
    pub(super) fn has_memory(&self) -> bool {
        self.memory.get() < self.memory_max_bytes / 4 * 3
    }

    /// Whether there is no memory even for the parts of bodies that come with headers.
    pub(super) fn is_full(&self) -> bool {
        self.memory.get() >= self.memory_max_bytes
    }

    /// Whether small parts are to be written to disk, too.
    pub(super) fn is_scarce(&self) -> bool {
        self.memory.get() > self.memory_max_bytes / 2
    }

    /// Whether a chunk may be written to disk; `is_first` needs a file.
    pub(super) fn has_disk(&self, is_first: bool) -> bool {
        self.disk.get() + DISK_STEP_BYTES <= self.disk_max_bytes
            && (!is_first || self.files.get() < self.files_max)
    }

    /// The least that is written to disk at once.
    pub(super) fn chunk_bytes_min(&self) -> usize {
        match self.is_scarce() {
            true => CHUNK_BYTES_SCARCE,
            false => CHUNK_BYTES,
        }
    }

    /// How much is read back from disk at once.
    pub(super) fn read_back_bytes(&self) -> u64 {
        match self.is_scarce() {
            true => 2 * CHUNK_BYTES_SCARCE as u64,
            false => CHUNK_BYTES as u64,
        }
    }

    /// Puts an exchange among those that wait for room.
    pub(super) fn hold(&mut self, exchange: &Exchange, lack: Lack) {
        let held = match lack {
            Lack::Memory => &mut self.held_for_memory,
            Lack::Disk => &mut self.held_for_disk,
        };
        held.insert(exchange.id, exchange.client);
    }

    /// The exchange has ended.
    pub(super) fn forget(&mut self, exchange: &Exchange) {
        if exchange.upload.held {
            self.held_for_memory.remove(&exchange.id);
            self.held_for_disk.remove(&exchange.id);
        }
    }

    /// Takes the oldest exchange for which there is room again.
    pub(super) fn next_held(&mut self) -> Option<Token> {
        let first = match (self.can_resume(Lack::Memory), self.can_resume(Lack::Disk)) {
            (true, _) => self.held_for_memory.pop_first(),
            (false, true) => self.held_for_disk.pop_first(),
            (false, false) => None,
        };
        first.map(|(_, client)| client)
    }

    /// Takes the next of the held clients, at most `count` of them, to be checked for having
    /// disconnected. None before that is due again.
    pub(super) fn take_for_departures(&mut self, now_ms: u64, count: usize) -> Vec<Token> {
        if !self.has_held() || now_ms < self.departures_due_ms {
            return Vec::new();
        }
        self.departures_due_ms = now_ms + DEPARTURES_INTERVAL_MS;
        let after = (Bound::Excluded(self.departures_hand), Bound::Unbounded);
        let of_memory = self.held_for_memory.range(after).take(count);
        let of_disk = self.held_for_disk.range(after).take(count);
        let both = of_memory.chain(of_disk);
        let mut next: Vec<(u64, Token)> = both.map(|(id, client)| (*id, *client)).collect();
        next.sort_unstable_by_key(|(id, _)| *id);
        next.truncate(count);
        // Those that are left begin again at the oldest.
        self.departures_hand = match next.len() == count {
            true => next.last().map_or(0, |(id, _)| *id),
            false => 0,
        };
        next.into_iter().map(|(_, client)| client).collect()
    }

    /// When [`BufferRoom::take_for_departures`] is due.
    pub(super) fn departures_next_ms(&self) -> Option<u64> {
        self.has_held().then_some(self.departures_due_ms)
    }

    fn has_held(&self) -> bool {
        !(self.held_for_memory.is_empty() && self.held_for_disk.is_empty())
    }

    fn can_resume(&self, lack: Lack) -> bool {
        match lack {
            Lack::Memory => !self.held_for_memory.is_empty() && self.has_memory(),
            Lack::Disk => !self.held_for_disk.is_empty() && self.has_disk(true),
        }
    }

    /// Whether [`BufferRoom::next_held`] has one.
    pub(super) fn has_next(&self) -> bool {
        self.can_resume(Lack::Memory) || self.can_resume(Lack::Disk)
    }

    /// Whether parts of silent clients must be written before others may go on.
    pub(super) fn is_awaited(&self) -> bool {
        !self.held_for_memory.is_empty()
    }

    /// Sets the gauges that describe this moment.
    pub(super) fn gauges(&self, counters: &mut Counters) {
        counters.buffer_memory_bytes = self.memory.get();
        counters.buffer_disk_bytes = self.disk.get();
        counters.buffer_bodies_held =
            (self.held_for_memory.len() + self.held_for_disk.len()) as u64;
    }
}
