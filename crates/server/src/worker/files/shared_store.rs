//! A worker's part of the content store that all workers share: what it has of it, and its messages to
//! and from the store process ([`headway_files::FromStore`]).
//!
//! While there is no store process, the worker keeps what it has, and stores more on its own
//! ([`super::content_store`]). A new one is offered all of it.
//!
//! What it refuses: to wait. What finds no room in the socket is sent later, or not at all.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use headway_files::{
    FileKey, FromStoreSocket, NUMBERS_MAX, OpenFile, RootId, StoreSocket, ToStore,
};
use headway_metrics::calls::{Call, Tracer};
use headway_request::{Entry, SharedBody, StoredBody, Variant};

/// How often uses are sent to the store process.
const USES_INTERVAL_MS: u64 = 1_000;
/// When what found no room in the socket is sent again.
const RETRY_MS: u64 = 50;

/// Where a response of a body is: a variant of an entry of the file cache.
pub(super) struct Place {
    pub entry: Weak<Entry>,
    pub variant: Variant,
    pub root: RootId,
    pub path: Box<[u8]>,
}

impl Place {
    /// Drops the response there, if it is of this body.
    fn clear(&self, body: &Weak<StoredBody>) {
        let Some(entry) = self.entry.upgrade() else {
            return;
        };
        let mut response = entry.prepared.responses[self.variant].borrow_mut();
        let stored = response
            .as_ref()
            .and_then(|response| response.stored.as_ref());
        if stored.is_some_and(|stored| Rc::as_ptr(stored) == body.as_ptr()) {
            *response = None;
        }
    }
}

/// A body that the worker has.
struct Held {
    body: Weak<StoredBody>,
    places: Vec<Place>,
}

/// The bodies that this worker shares with others.
#[derive(Default)]
pub(super) struct SharedStore {
    socket: Option<StoreSocket>,
    bodies: HashMap<FileKey, Held>,
    keys: HashMap<u64, FileKey>,
    /// The numbers of bodies that this worker does not have any more.
    returned: Rc<RefCell<Vec<u64>>>,
    /// Bodies that the store process has not been offered yet.
    to_offer: VecDeque<FileKey>,
    /// Bodies that were used since uses were last sent.
    used: Vec<Weak<StoredBody>>,
    uses_due_ms: u64,
    retry_ms: Option<u64>,
}

impl SharedStore {
    /// Whether there is a store process.
    pub(super) fn is_attached(&self) -> bool {
        self.socket.is_some()
    }

    /// A store process has started. Returns the socket of the last one.
    pub(super) fn attach(&mut self, socket: StoreSocket) -> Option<StoreSocket> {
        let last = self.detach();
        self.socket = Some(socket);
        self.to_offer = self.bodies.keys().copied().collect();
        last
    }

    /// The store process has ended: its numbers mean nothing any more.
    pub(super) fn detach(&mut self) -> Option<StoreSocket> {
        for held in self.bodies.values() {
            if let Some(body) = held.body.upgrade() {
                body.shared.take();
            }
        }
        self.bodies.retain(|_, held| held.body.strong_count() > 0);
        self.keys.clear();
        self.returned = Rc::default();
        self.to_offer.clear();
        self.forget_uses();
        self.socket.take()
    }

    /// The next message of the store process; `None` if there is none or it has ended.
    pub(super) fn receive(&self, tracer: &Tracer) -> FromStoreSocket {
        match &self.socket {
            Some(socket) => tracer.call(Call::StoreReceive, || socket.receive()),
            None => FromStoreSocket::WouldBlock,
        }
    }

    fn send(&self, tracer: &Tracer, message: &ToStore, file: Option<&OpenFile>) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let file = file.map(AsFd::as_fd);
        tracer.call(Call::StoreSend, || socket.send(message, file))
    }

    /// Has a small file pinned for all workers. Returns whether the message was sent.
    pub(super) fn pin(&self, tracer: &Tracer, file: &OpenFile) -> bool {
        let pin = |socket: &StoreSocket| tracer.call(Call::StoreSend, || socket.pin(file));
        self.socket.as_ref().is_some_and(pin)
    }

    /// Asks for the body of a file. Returns whether an answer will come.
    pub(super) fn want(&mut self, tracer: &Tracer, key: FileKey, always: bool) -> bool {
        // What was returned must not be given first: the store process would take the new body for the
        // returned one.
        self.send_returned(tracer) && self.send(tracer, &ToStore::Want { key, always }, None)
    }

    /// The copy that was to be made does not come.
    pub(super) fn decline(&self, tracer: &Tracer, key: FileKey) {
        // If there is no room, the store process forgets it after a while.
        self.send(tracer, &ToStore::Decline { key }, None);
    }

    /// The body of a file, if this worker has it.
    pub(super) fn body(&self, key: &FileKey) -> Option<Rc<StoredBody>> {
        self.bodies.get(key)?.body.upgrade()
    }

    /// A response of this body has been stored at this place.
    pub(super) fn add(&mut self, key: FileKey, body: &Rc<StoredBody>, place: Place) {
        let held = self.bodies.entry(key).or_insert_with(|| Held {
            body: Weak::new(),
            places: Vec::new(),
        });
        held.body = Rc::downgrade(body);
        held.places.retain(|place| place.entry.strong_count() > 0);
        held.places.push(place);
        if let Some(shared) = &*body.shared.borrow() {
            self.keys.insert(shared.number(), key);
        }
    }

    /// Offers a copy that this worker has made.
    pub(super) fn offer(&mut self, tracer: &Tracer, key: FileKey) {
        self.to_offer.push_back(key);
        self.send_offers(tracer);
    }

    /// The offered body is stored.
    pub(super) fn accepted(&mut self, key: FileKey, number: u64) {
        match self.body(&key) {
            Some(body) => {
                let shared = SharedBody::new(number, &self.returned);
                body.shared.replace(Some(shared));
                self.keys.insert(number, key);
            }
            None => {
                self.bodies.remove(&key);
                self.return_body(number);
            }
        }
    }

    /// The number of a body that has just been given.
    pub(super) fn shared(&self, number: u64) -> SharedBody {
        SharedBody::new(number, &self.returned)
    }

    /// Whether this worker has the body with this number.
    pub(super) fn has(&self, key: &FileKey, number: u64) -> bool {
        let is_same = |body: Rc<StoredBody>| {
            let shared = body.shared.borrow();
            shared
                .as_ref()
                .is_some_and(|shared| shared.number() == number)
        };
        self.body(key).is_some_and(is_same)
    }

    /// A body is not needed.
    pub(super) fn return_body(&self, number: u64) {
        self.returned.borrow_mut().push(number);
    }

    /// Takes out a body that another one replaces. Returns its places.
    pub(super) fn take_places(&mut self, key: &FileKey) -> Vec<Place> {
        self.bodies
            .remove(key)
            .map_or(Vec::new(), |held| held.places)
    }

    /// The offered body is not stored: its responses are dropped.
    pub(super) fn refused(&mut self, key: &FileKey) {
        let is_offered = |body: Rc<StoredBody>| body.shared.borrow().is_none();
        if self.body(key).is_some_and(is_offered) {
            self.drop_body(key);
        }
    }

    /// A body has been evicted. Returns whether this worker had it.
    pub(super) fn evict(&mut self, number: u64) -> bool {
        let Some(key) = self.keys.get(&number).copied() else {
            return false;
        };
        let has = self.has(&key, number);
        if has {
            self.drop_body(&key);
        }
        has
    }

    fn drop_body(&mut self, key: &FileKey) {
        if let Some(held) = self.bodies.remove(key) {
            held.places.iter().for_each(|place| place.clear(&held.body));
        }
    }

    /// A response has used a body. Returns whether it was made for this worker alone, and may be shared now.
    pub(super) fn note_use(&mut self, body: &Rc<StoredBody>, now_ms: u64) -> bool {
        if self.socket.is_none() || body.was_used.replace(true) {
            return false;
        }
        if self.used.is_empty() {
            self.uses_due_ms = now_ms + USES_INTERVAL_MS;
        }
        self.used.push(Rc::downgrade(body));
        // One that is for all has been offered, and is answered soon.
        !body.is_for_all
    }

    /// Sends what is due. Runs once per iteration.
    pub(super) fn maintain(&mut self, tracer: &Tracer, now_ms: u64) {
        if self.socket.is_none() {
            return;
        }
        if !self.used.is_empty() && now_ms >= self.uses_due_ms {
            self.send_uses(tracer);
        }
        let is_due = self.retry_ms.is_none_or(|retry_ms| now_ms >= retry_ms);
        if is_due {
            let is_done = self.send_returned(tracer) && self.send_offers(tracer);
            self.retry_ms = (!is_done).then_some(now_ms + RETRY_MS);
        }
    }

    /// When [`SharedStore::maintain`] has something to do.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let uses = (!self.used.is_empty()).then_some(self.uses_due_ms);
        uses.into_iter().chain(self.retry_ms).min()
    }

    fn send_uses(&mut self, tracer: &Tracer) {
        let number = |body: &Weak<StoredBody>| {
            let body = body.upgrade()?;
            let shared = body.shared.borrow();
            shared.as_ref().map(SharedBody::number)
        };
        let numbers: Vec<u64> = self.used.iter().filter_map(number).collect();
        for numbers in numbers.chunks(NUMBERS_MAX) {
            // Uses that find no room are lost.
            let numbers = numbers.to_vec();
            self.send(tracer, &ToStore::Used { numbers }, None);
        }
        self.forget_uses();
    }

    fn forget_uses(&mut self) {
        for body in self.used.drain(..) {
            if let Some(body) = body.upgrade() {
                body.was_used.set(false);
            }
        }
    }

    /// Returns whether all are sent.
    fn send_returned(&mut self, tracer: &Tracer) -> bool {
        let mut returned = self.returned.take();
        while !returned.is_empty() {
            let from = returned.len().saturating_sub(NUMBERS_MAX);
            let numbers = returned.split_off(from);
            for number in &numbers {
                self.forget(*number);
            }
            let message = ToStore::Returned { numbers };
            if !self.send(tracer, &message, None) {
                if let ToStore::Returned { numbers } = message {
                    returned.extend(numbers);
                }
                self.returned.borrow_mut().append(&mut returned);
                return false;
            }
        }
        true
    }

    fn forget(&mut self, number: u64) {
        if let Some(key) = self.keys.remove(&number)
            && self.body(&key).is_none()
        {
            self.bodies.remove(&key);
        }
    }

    /// Returns whether all are sent.
    fn send_offers(&mut self, tracer: &Tracer) -> bool {
        while let Some(key) = self.to_offer.front().copied() {
            match self.body(&key) {
                Some(body) if !self.send(tracer, &ToStore::Offer { key }, Some(&body.file)) => {
                    return false;
                }
                Some(_) => {}
                None => drop(self.bodies.remove(&key)),
            }
            self.to_offer.pop_front();
        }
        true
    }
}
