//! The index of the content store: which body is stored, which worker has a descriptor of it, and which
//! one is evicted. It knows neither sockets nor memory, so that a test can compare it with a model.
//!
//! Memory counts as used until no worker has a descriptor: a slow client may still be sent an evicted
//! body. It is also promised to copies that are under way, so that they find room.

use std::collections::HashMap;

use headway_base::{GreedyDualSize, Priority};

use super::FileKey;

/// A worker, by the number of its socket.
pub(super) type WorkerId = u64;

/// No file takes more than one part in this many of the store.
const FILE_DIVISOR: u64 = 8;
/// When the store is full, one candidate in this many is copied. Each evicts others, so without a limit
/// a working set that is larger than the store would be copied again and again. A worker that was refused
/// does not ask for its next candidates, so this is one in eight times as many.
const ADMISSION_DIVISOR: u32 = 2;
/// A copy that has not been offered by then does not come.
const GRANT_MS: u64 = 5_000;
/// An evicted body that has not been returned by then is being sent to a slow client, so more has to be
/// evicted in its place.
const RETURN_MS: u64 = 100;

/// The answer to a worker that wants a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// The body with this number is there.
    Given(u64),
    /// The worker shall copy the file.
    Copy,
    /// Not now.
    Refused,
}

/// The answer to an offered copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offered {
    /// It is stored with this number.
    Accepted(u64),
    /// The body with this number was there before.
    Known(u64),
    /// There is no room.
    Refused,
}

/// The stored bodies. `V` holds the memory of one.
#[derive(Debug)]
pub(super) struct Index<V> {
    bytes_max: u64,
    files_max: usize,
    files: HashMap<FileKey, Body<V>>,
    keys: HashMap<u64, FileKey>,
    bytes: u64,
    order: GreedyDualSize<FileKey>,
    /// Evicted bodies that workers still have.
    leaving: HashMap<u64, Leaving>,
    leaving_bytes: u64,
    /// Copies that workers make.
    grants: HashMap<FileKey, Grant>,
    /// Evictions that workers do not know of yet.
    notices: Vec<(WorkerId, u64)>,
    next: u64,
    declined: u32,
    evicted: u64,
}

#[derive(Debug)]
struct Body<V> {
    number: u64,
    bytes: u64,
    priority: Priority,
    was_used: bool,
    holders: Vec<WorkerId>,
    value: V,
}

#[derive(Debug)]
struct Leaving {
    bytes: u64,
    holders: Vec<WorkerId>,
    since_ms: u64,
}

#[derive(Debug)]
struct Grant {
    worker: WorkerId,
    bytes: u64,
    until_ms: u64,
}

impl<V> Index<V> {
    pub(super) fn new() -> Index<V> {
        Index {
            bytes_max: 0,
            files_max: 0,
            files: HashMap::new(),
            keys: HashMap::new(),
            bytes: 0,
            order: GreedyDualSize::new(),
            leaving: HashMap::new(),
            leaving_bytes: 0,
            grants: HashMap::new(),
            notices: Vec::new(),
            next: 1,
            declined: 0,
            evicted: 0,
        }
    }

    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// The memory in use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.leaving_bytes
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Whether time changes anything.
    pub(super) fn is_idle(&self) -> bool {
        self.files.is_empty() && self.leaving.is_empty() && self.grants.is_empty()
    }

    pub(super) fn value(&self, key: &FileKey) -> Option<&V> {
        self.files.get(key).map(|body| &body.value)
    }

    /// The evictions that workers have to know of, and the numbers of the bodies.
    pub(super) fn take_notices(&mut self) -> Vec<(WorkerId, u64)> {
        std::mem::take(&mut self.notices)
    }

    pub(super) fn set_limits(&mut self, bytes_max: u64, files_max: usize, now_ms: u64) {
        (self.bytes_max, self.files_max) = (bytes_max, files_max);
        self.grants.retain(|_, grant| now_ms < grant.until_ms);
        self.make_room(0, 0, now_ms);
    }

    /// A worker wants the body of `key`, which takes `bytes`. `always`: also if others have to be evicted
    /// for it.
    pub(super) fn want(
        &mut self,
        worker: WorkerId,
        key: FileKey,
        bytes: u64,
        always: bool,
        now_ms: u64,
    ) -> Wanted {
        if let Some(number) = self.give(worker, &key) {
            return Wanted::Given(number);
        }
        self.grants.retain(|_, grant| now_ms < grant.until_ms);
        if self
            .grants
            .get(&key)
            .is_some_and(|grant| grant.worker != worker)
        {
            return Wanted::Refused;
        }
        self.grants.remove(&key);
        if bytes > self.bytes_max / FILE_DIVISOR || self.files_max == 0 {
            return Wanted::Refused;
        }
        if !self.has_room(bytes) {
            self.declined = (self.declined + 1) % ADMISSION_DIVISOR;
            if !always && self.declined != 0 {
                return Wanted::Refused;
            }
            self.make_room(bytes, 1, now_ms);
        }
        let until_ms = now_ms + GRANT_MS;
        let grant = Grant {
            worker,
            bytes,
            until_ms,
        };
        self.grants.insert(key, grant);
        Wanted::Copy
    }

    /// A worker has a copy, and keeps its descriptor.
    pub(super) fn offer(
        &mut self,
        worker: WorkerId,
        key: FileKey,
        bytes: u64,
        value: V,
    ) -> Offered {
        self.grants.remove(&key);
        if let Some(number) = self.give(worker, &key) {
            return Offered::Known(number);
        }
        if !self.has_room(bytes) {
            return Offered::Refused;
        }
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.keys.insert(number, key);
        let body = Body {
            number,
            bytes,
            priority: self.order.insert(bytes, key),
            was_used: false,
            holders: vec![worker],
            value,
        };
        self.files.insert(key, body);
        Offered::Accepted(number)
    }

    /// The copy that a worker was to make does not come.
    pub(super) fn decline(&mut self, worker: WorkerId, key: &FileKey) {
        if self
            .grants
            .get(key)
            .is_some_and(|grant| grant.worker == worker)
        {
            self.grants.remove(key);
        }
    }

    /// A worker has no descriptor of a body any more. One that no worker serves is dropped: its file has
    /// changed, or is not requested.
    pub(super) fn returned(&mut self, worker: WorkerId, number: u64) {
        self.leave(worker, number);
        let Some(key) = self.keys.get(&number).copied() else {
            return;
        };
        let Some(body) = self.files.get_mut(&key) else {
            return;
        };
        let before = body.holders.len();
        body.holders.retain(|holder| *holder != worker);
        if body.holders.is_empty() && before > 0 {
            self.remove(&key);
        }
    }

    pub(super) fn used(&mut self, number: u64) {
        let body = self
            .keys
            .get(&number)
            .and_then(|key| self.files.get_mut(key));
        if let Some(body) = body {
            body.was_used = true;
        }
    }

    /// A worker has ended. Its bodies stay for the one that replaces it.
    pub(super) fn left(&mut self, worker: WorkerId) {
        self.grants.retain(|_, grant| grant.worker != worker);
        self.notices.retain(|(to, _)| *to != worker);
        for body in self.files.values_mut() {
            body.holders.retain(|holder| *holder != worker);
        }
        let numbers: Vec<u64> = self.leaving.keys().copied().collect();
        for number in numbers {
            self.leave(worker, number);
        }
    }

    fn give(&mut self, worker: WorkerId, key: &FileKey) -> Option<u64> {
        let body = self.files.get_mut(key)?;
        body.was_used = true;
        if !body.holders.contains(&worker) {
            body.holders.push(worker);
        }
        Some(body.number)
    }

    fn granted_bytes(&self) -> u64 {
        self.grants.values().map(|grant| grant.bytes).sum()
    }

    /// Whether one more body fits without an eviction.
    fn has_room(&self, bytes: u64) -> bool {
        let used = self.bytes() + self.granted_bytes();
        used.saturating_add(bytes) <= self.bytes_max
            && self.files.len() + self.grants.len() < self.files_max
    }

    /// Evicts until this fits as well, as soon as workers have returned what is evicted now.
    fn make_room(&mut self, bytes: u64, files: usize, now_ms: u64) {
        let old = self.leaving.values();
        let old = old.filter(|leaving| leaving.since_ms + RETURN_MS <= now_ms);
        let stuck_bytes: u64 = old.map(|leaving| leaving.bytes).sum();
        let others = stuck_bytes + self.granted_bytes() + bytes;
        let others_count = self.grants.len() + files;
        while self.bytes.saturating_add(others) > self.bytes_max
            || self.files.len() + others_count > self.files_max
        {
            let Some(key) = self.order.evict() else {
                return;
            };
            let Some(body) = self.files.get_mut(&key) else {
                continue;
            };
            // The second chance: it was used since it was queued.
            if std::mem::take(&mut body.was_used) {
                body.priority = self.order.insert(body.bytes, key);
                continue;
            }
            self.evict(&key, now_ms);
        }
    }

    fn evict(&mut self, key: &FileKey, now_ms: u64) {
        let Some(body) = self.remove(key) else {
            return;
        };
        self.evicted += 1;
        if body.holders.is_empty() {
            return;
        }
        let notices = body.holders.iter().map(|holder| (*holder, body.number));
        self.notices.extend(notices);
        self.leaving_bytes += body.bytes;
        let leaving = Leaving {
            bytes: body.bytes,
            holders: body.holders,
            since_ms: now_ms,
        };
        self.leaving.insert(body.number, leaving);
    }

    fn remove(&mut self, key: &FileKey) -> Option<Body<V>> {
        let body = self.files.remove(key)?;
        self.order.remove(body.priority);
        self.keys.remove(&body.number);
        self.bytes -= body.bytes;
        Some(body)
    }

    fn leave(&mut self, worker: WorkerId, number: u64) {
        let Some(leaving) = self.leaving.get_mut(&number) else {
            return;
        };
        leaving.holders.retain(|holder| *holder != worker);
        if leaving.holders.is_empty() {
            self.leaving_bytes -= leaving.bytes;
            self.leaving.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests;
