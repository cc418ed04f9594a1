//! The process itself: its sockets, the memory of the bodies, and the limits.
//!
//! The master starts it with a `SOCK_SEQPACKET` socket as its standard input, and sends it a socket for
//! each worker ([`join_store`]). It sends its statistics back ([`receive_store_statistics`]). It ends when
//! the master's socket is closed.

use super::index::{Index, Offered, Wanted, WorkerId};
use super::{FileKey, FromStore, ToStore, is_sealed, receive_message};
use crate::pinner::{Candidate, PinLimits, PinStatistics, PinnedFiles, memory_shares};
use headway_os::codec::Field;
use headway_os::encoding;
use headway_os::fd_passing::{Wait, send_with_descriptors};
use headway_os::mapping::{Mapping, lockable_bytes};
use headway_os::residency::page_bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

/// Interval between checks of the available memory. The kernel cannot reclaim locked pages, so keeping
/// too much triggers the OOM killer.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Messages of one worker in a row.
const BATCH_MAX: usize = 64;

/// How much the process may hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoreLimits {
    /// Memory for the content store; 0 stores nothing.
    pub store_bytes_max: u64,
    /// Bodies in the content store. Each takes a descriptor here and in each worker that serves it.
    pub files_max: u64,
    /// Memory for pinned files; 0 pins nothing.
    pub pin_bytes_max: u64,
}

/// Counters of the store process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Gauge: files in the content store.
    pub files: u64,
    /// Gauge: their bytes, in whole pages, with evicted ones that are being sent.
    pub bytes: u64,
    /// Gauge: the limit in bytes with the memory that is available now.
    pub bytes_max: u64,
    /// Bodies that a worker got which another one had copied.
    pub shared: u64,
    /// Bodies evicted for others, or because memory became scarce.
    pub evicted: u64,
    /// Offered copies that were not stored.
    pub rejected: u64,
    /// Page-cache pinning.
    pub pinned: PinStatistics,
}

encoding! {
    struct StoreLimits { store_bytes_max, files_max, pin_bytes_max }
}

encoding! {
    struct StoreStatistics { files, bytes, bytes_max, shared, evicted, rejected, pinned }
}

/// Sends the store process the socket of a worker, and the limits. Never blocks.
///
/// # Errors
/// As sendmsg(2).
pub fn join_store(store: impl AsFd, worker: BorrowedFd<'_>, limits: StoreLimits) -> io::Result<()> {
    let mut message = Vec::new();
    limits.write(&mut message);
    let parts = [IoSlice::new(&message)];
    match send_with_descriptors(store, &parts, &[worker], Wait::Never)? {
        Some(_) => Ok(()),
        None => Err(Errno::AGAIN.into()),
    }
}

/// Returns the newest statistics that the store process has sent since the last call; never blocks.
///
/// # Errors
/// As recvmsg(2); `EPIPE` if the process has ended.
pub fn receive_store_statistics(store: &OwnedFd) -> io::Result<Option<StoreStatistics>> {
    let mut newest = None;
    while let Some((statistics, _)) = receive_message(store)? {
        newest = Some(statistics);
    }
    Ok(newest)
}

/// Runs the store process until the other end of `master` is closed. `available` is that of [`PinLimits`].
///
/// # Errors
/// poll(2) fails.
///
/// # Example
/// ```
/// let (master, store) = headway_os::fd_passing::pair()?;
/// drop(master);
/// headway_files::store_main(store, || None)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn store_main(master: OwnedFd, available: fn() -> Option<u64>) -> io::Result<()> {
    let limits = PinLimits {
        bytes_max: 0,
        available,
    };
    let mut process = StoreProcess {
        master,
        workers: BTreeMap::new(),
        next_worker: 0,
        limits: StoreLimits::default(),
        available,
        index: Index::new(),
        pinned: PinnedFiles::new(limits),
        shared: 0,
        rejected: 0,
        begun: Instant::now(),
        memory_checked: None,
        reported: None,
    };
    while process.iterate()? {}
    Ok(())
}

/// The memory of a body.
#[derive(Debug)]
struct Memory {
    memfd: OwnedFd,
    /// Keeps its pages out of swap space, for which `sendfile` in a worker would wait.
    _locked: Option<Mapping>,
}

struct Worker {
    socket: OwnedFd,
    /// What found no room in its socket: an eviction for each body that it has, and answers to the few
    /// questions that it may have open.
    outbox: VecDeque<(FromStore, Option<OwnedFd>)>,
}

struct StoreProcess {
    master: OwnedFd,
    workers: BTreeMap<WorkerId, Worker>,
    next_worker: WorkerId,
    limits: StoreLimits,
    available: fn() -> Option<u64>,
    index: Index<Memory>,
    pinned: PinnedFiles,
    shared: u64,
    rejected: u64,
    begun: Instant,
    memory_checked: Option<Instant>,
    /// The statistics that the master has, and when they were sent.
    reported: Option<(StoreStatistics, Instant)>,
}

impl StoreProcess {
    /// One wait, and the messages that have come. Returns `false` at the end.
    fn iterate(&mut self) -> io::Result<bool> {
        if self
            .memory_checked
            .is_none_or(|at| at.elapsed() >= CHECK_INTERVAL)
        {
            self.check_memory();
        }
        self.pinned.evict_deleted_if_due();
        self.send_notices();
        let is_reported = self.report();
        // With nothing in memory there is nothing to check.
        let is_idle = is_reported && self.index.is_idle() && self.pinned.is_empty();
        let ready = self.wait((!is_idle).then_some(CHECK_INTERVAL))?;
        for worker in ready {
            match worker {
                None if !self.read_master() => return Ok(false),
                None => {}
                Some(worker) => self.serve(worker),
            }
        }
        Ok(true)
    }

    /// Waits for messages; from which workers there are some, `None` for the master.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Option<WorkerId>>> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut sources = vec![None];
        let mut watched = vec![PollFd::new(&self.master, PollFlags::IN)];
        for (id, worker) in &self.workers {
            let room = match worker.outbox.is_empty() {
                true => PollFlags::empty(),
                false => PollFlags::OUT,
            };
            sources.push(Some(*id));
            watched.push(PollFd::new(&worker.socket, PollFlags::IN | room));
        }
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        let ready = sources.iter().zip(&watched);
        let ready = ready.filter(|(_, watched)| !watched.revents().is_empty());
        Ok(ready.map(|(source, _)| *source).collect())
    }

    /// Takes new workers. Returns `false` if the master has closed the socket.
    fn read_master(&mut self) -> bool {
        loop {
            match receive_message::<StoreLimits>(&self.master) {
                Ok(Some((limits, Some(socket)))) => {
                    self.next_worker += 1;
                    let outbox = VecDeque::new();
                    let worker = Worker { socket, outbox };
                    self.workers.insert(self.next_worker, worker);
                    if limits != self.limits {
                        self.limits = limits;
                        self.check_memory();
                    }
                }
                // A worker without its socket serves without the store.
                Ok(Some((_, None))) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Sends a worker what has waited, and answers its messages.
    fn serve(&mut self, id: WorkerId) {
        for _ in 0..BATCH_MAX {
            let Some(worker) = self.workers.get_mut(&id) else {
                return;
            };
            let flushed = worker.flush();
            match receive_message::<ToStore>(&worker.socket) {
                Ok(Some((message, file))) if flushed.is_ok() => self.answer(id, message, file),
                Ok(None) if flushed.is_ok() => return,
                _ => {
                    self.workers.remove(&id);
                    self.index.left(id);
                }
            }
        }
    }

    fn answer(&mut self, id: WorkerId, message: ToStore, file: Option<OwnedFd>) {
        match message {
            ToStore::Want { key, always } => self.want(id, key, always),
            ToStore::Offer { key } => self.offer(id, key, file),
            ToStore::Decline { key } => self.index.decline(id, &key),
            ToStore::Returned { numbers } => {
                for number in numbers {
                    self.index.returned(id, number);
                }
            }
            ToStore::Used { numbers } => {
                for number in numbers {
                    self.index.used(number);
                }
            }
            ToStore::Pin => {
                if let Some(candidate) = file.and_then(Candidate::new) {
                    self.pinned.take(&candidate);
                }
            }
        }
        // Before an answer to a later message, so that no worker uses a body that is gone.
        self.send_notices();
    }

    fn want(&mut self, id: WorkerId, key: FileKey, always: bool) {
        let now_ms = self.now_ms();
        match self.index.want(id, key, pages_bytes(&key), always, now_ms) {
            Wanted::Given(number) => self.give(id, key, number),
            wanted => {
                // The worker that makes the copy may be the one that has to return others first.
                self.send_notices();
                let answer = match wanted {
                    Wanted::Copy => FromStore::Copy { key },
                    _ => FromStore::Refused { key },
                };
                self.send(id, answer, None);
            }
        }
    }

    fn give(&mut self, id: WorkerId, key: FileKey, number: u64) {
        let memfd = self.index.value(&key).map(|body| body.memfd.try_clone());
        match memfd {
            Some(Ok(memfd)) => {
                self.shared += 1;
                self.send(id, FromStore::Given { key, number }, Some(memfd));
            }
            // Descriptors have run out.
            _ => {
                self.index.returned(id, number);
                self.send(id, FromStore::Refused { key }, None);
            }
        }
    }

    fn offer(&mut self, id: WorkerId, key: FileKey, memfd: Option<OwnedFd>) {
        let memory = memfd.and_then(|memfd| self.hold(&key, memfd));
        let Some(memory) = memory else {
            self.index.decline(id, &key);
            return self.refuse(id, key);
        };
        match self.index.offer(id, key, pages_bytes(&key), memory) {
            Offered::Accepted(number) => self.send(id, FromStore::Accepted { key, number }, None),
            Offered::Known(number) => self.give(id, key, number),
            Offered::Refused => self.refuse(id, key),
        }
    }

    fn refuse(&mut self, id: WorkerId, key: FileKey) {
        self.rejected += 1;
        self.send(id, FromStore::Refused { key }, None);
    }

    /// Locks the pages of a memfd, if nothing can change it any more.
    fn hold(&self, key: &FileKey, memfd: OwnedFd) -> Option<Memory> {
        let meta = headway_os::open::status(&memfd).ok()?;
        if key.size == 0 || meta.size != key.size || !is_sealed(&memfd) {
            return None;
        }
        let locked = self
            .may_lock()
            .then(|| Mapping::new(&memfd, 0, key.size as usize));
        let locked = locked.and_then(Result::ok);
        Some(Memory {
            memfd,
            _locked: locked.filter(|mapping| mapping.hold().is_ok()),
        })
    }

    /// Without the right to lock as much as it wants, pinning needs what may be locked more: pages that
    /// are not pinned have to be read again.
    fn may_lock(&self) -> bool {
        let wanted = self
            .limits
            .store_bytes_max
            .saturating_add(self.limits.pin_bytes_max);
        self.limits.pin_bytes_max == 0 || lockable_bytes().is_none_or(|most| most >= wanted)
    }

    /// Adapts the limits to the available memory.
    fn check_memory(&mut self) {
        self.memory_checked = Some(Instant::now());
        let pinned = (
            self.pinned.bytes(),
            self.pinned.bytes_max(self.limits.pin_bytes_max),
        );
        let stored = (self.index.bytes(), self.limits.store_bytes_max);
        let (pin, store) = memory_shares((self.available)(), pinned, stored);
        self.pinned.set_limit(pin);
        let files_max = usize::try_from(self.limits.files_max).unwrap_or(usize::MAX);
        self.index.set_limits(store, files_max, self.now_ms());
    }

    fn send_notices(&mut self) {
        for (worker, number) in self.index.take_notices() {
            self.send(worker, FromStore::Evict { number }, None);
        }
    }

    /// Sends a message now, or when there is room for it.
    fn send(&mut self, id: WorkerId, message: FromStore, memfd: Option<OwnedFd>) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.outbox.push_back((message, memfd));
            // A socket that is broken shows that when it is read.
            let _ = worker.flush();
        }
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn statistics(&self) -> StoreStatistics {
        StoreStatistics {
            files: self.index.files() as u64,
            bytes: self.index.bytes(),
            bytes_max: self.index.bytes_max(),
            shared: self.shared,
            evicted: self.index.evicted(),
            rejected: self.rejected,
            pinned: self.pinned.statistics(),
        }
    }

    /// Sends the statistics if they have changed and the last ones are old enough. Returns whether the
    /// master has the current ones.
    fn report(&mut self) -> bool {
        let now = self.statistics();
        match self.reported {
            Some((known, _)) if known == now => return true,
            Some((_, at)) if at.elapsed() < CHECK_INTERVAL => return false,
            _ => {}
        }
        let mut message = Vec::new();
        now.write(&mut message);
        let sent = send_with_descriptors(&self.master, &[IoSlice::new(&message)], &[], Wait::Never);
        // The socket may be full, or closed; the next receive shows which.
        if let Ok(Some(_)) = sent {
            self.reported = Some((now, Instant::now()));
            return true;
        }
        false
    }
}

impl Worker {
    /// Sends what waits, as far as there is room.
    fn flush(&mut self) -> rustix::io::Result<()> {
        while let Some((message, memfd)) = self.outbox.front() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            let memfd = memfd.as_ref().map(AsFd::as_fd);
            let parts = [IoSlice::new(&bytes)];
            match send_with_descriptors(&self.socket, &parts, memfd.as_slice(), Wait::Never)? {
                Some(_) => drop(self.outbox.pop_front()),
                None => break,
            }
        }
        Ok(())
    }
}

fn pages_bytes(key: &FileKey) -> u64 {
    key.size
        .checked_next_multiple_of(page_bytes())
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_os::codec::decode;

    #[test]
    fn limits_and_statistics_arrive_as_they_were_sent() {
        let limits = StoreLimits {
            store_bytes_max: 258,
            files_max: 3,
            pin_bytes_max: 4,
        };
        let mut bytes = Vec::new();
        limits.write(&mut bytes);
        assert_eq!(decode(&bytes), Ok(limits));
        let statistics = StoreStatistics {
            files: 1,
            rejected: 6,
            pinned: PinStatistics {
                rejected: 5,
                ..PinStatistics::default()
            },
            ..StoreStatistics::default()
        };
        let mut bytes = Vec::new();
        statistics.write(&mut bytes);
        assert_eq!(decode(&bytes), Ok(statistics));
        assert!(decode::<StoreStatistics>(&bytes[1..]).is_err());
    }
}
