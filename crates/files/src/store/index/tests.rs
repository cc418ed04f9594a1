//! The index is compared with a model: which worker has which body, and what that takes.

use super::*;
use headway_base::random::{Draw, SplitMix64};
use proptest::prelude::*;
use std::collections::BTreeSet;

const WORKERS: u64 = 3;
const LIMIT: u64 = 800;

fn key(inode: u64) -> FileKey {
    FileKey {
        device: 1,
        inode,
        size: 10 * inode,
        changed_s: 0,
        changed_ns: 0,
        modified_s: 0,
        modified_ns: 0,
    }
}

/// Every file has another size, from 10 to 100.
fn bytes(inode: u64) -> u64 {
    10 * inode
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Want(WorkerId, u64, bool),
    /// A worker that was to copy a file does so.
    Offer(WorkerId),
    Decline(WorkerId),
    /// A worker without having been asked.
    OfferUnasked(WorkerId, u64),
    Return(WorkerId, usize),
    Use(u64),
    End(WorkerId),
    Limit(u64, usize),
    Pause(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..WORKERS;
    let file = 1..=10_u64;
    prop_oneof![
        6 => (worker.clone(), file.clone(), any::<bool>()).prop_map(|(w, f, a)| Step::Want(w, f, a)),
        5 => worker.clone().prop_map(Step::Offer),
        1 => worker.clone().prop_map(Step::Decline),
        1 => (worker.clone(), file).prop_map(|(w, f)| Step::OfferUnasked(w, f)),
        4 => (worker.clone(), any::<usize>()).prop_map(|(w, n)| Step::Return(w, n)),
        2 => (1..60_u64).prop_map(Step::Use),
        1 => worker.prop_map(Step::End),
        1 => (0..LIMIT, 0..8_usize).prop_map(|(bytes, files)| Step::Limit(bytes, files)),
        2 => (0..6000_u64).prop_map(Step::Pause),
    ]
}

/// A random step of a worker, or of the time.
fn draw_step(random: &mut SplitMix64) -> Step {
    let (worker, file) = (random.below(WORKERS), 1 + random.below(10));
    match random.below(20) {
        0..6 => Step::Want(worker, file, random.below(2) == 0),
        6..11 => Step::Offer(worker),
        11 => Step::Decline(worker),
        12 => Step::OfferUnasked(worker, file),
        13..17 => Step::Return(worker, random.index(100)),
        17 => Step::Use(random.below(60)),
        18 => Step::Limit(random.below(LIMIT), random.index(8)),
        _ => Step::Pause(random.below(6000)),
    }
}

/// What workers know: the bodies that they have, by number, and the copies that they are to make.
#[derive(Default)]
struct Model {
    held: BTreeSet<(WorkerId, u64)>,
    files: HashMap<u64, u64>,
    evicted: BTreeSet<u64>,
    to_copy: Vec<(WorkerId, u64)>,
    now_ms: u64,
    limit: u64,
}

impl Model {
    fn has(&mut self, worker: WorkerId, number: u64, inode: u64) {
        assert!(!self.evicted.contains(&number), "an evicted body is given");
        let known = self.files.entry(number).or_insert(inode);
        assert_eq!(*known, inode, "a number is of one file");
        self.held.insert((worker, number));
    }

    fn take_step(&mut self, index: &mut Index<u64>, step: Step) {
        match step {
            Step::Want(worker, inode, always) => {
                let wanted = index.want(worker, key(inode), bytes(inode), always, self.now_ms);
                match wanted {
                    Wanted::Given(number) => self.has(worker, number, inode),
                    Wanted::Copy => self.to_copy.push((worker, inode)),
                    Wanted::Refused => {}
                }
            }
            Step::Offer(worker) => {
                let found = self.to_copy.iter().position(|(of, _)| *of == worker);
                if let Some(found) = found {
                    let (_, inode) = self.to_copy.remove(found);
                    self.offer(index, worker, inode);
                }
            }
            Step::OfferUnasked(worker, inode) => self.offer(index, worker, inode),
            Step::Decline(worker) => {
                let found = self.to_copy.iter().position(|(of, _)| *of == worker);
                if let Some(found) = found {
                    index.decline(worker, &key(self.to_copy.remove(found).1));
                }
            }
            Step::Return(worker, at) => {
                let held = self.held.iter().filter(|(of, _)| *of == worker);
                let held: Vec<u64> = held.map(|(_, number)| *number).collect();
                if let Some(number) = held.get(at % held.len().max(1)) {
                    self.held.remove(&(worker, *number));
                    index.returned(worker, *number);
                }
            }
            Step::Use(number) => index.used(number),
            Step::End(worker) => {
                self.held.retain(|(of, _)| *of != worker);
                self.to_copy.retain(|(of, _)| *of != worker);
                index.left(worker);
            }
            Step::Limit(bytes, files) => {
                self.limit = bytes;
                index.set_limits(bytes, files, self.now_ms);
            }
            Step::Pause(ms) => self.now_ms += ms,
        }
    }

    fn offer(&mut self, index: &mut Index<u64>, worker: WorkerId, inode: u64) {
        let before = index.bytes();
        match index.offer(worker, key(inode), bytes(inode), inode) {
            Offered::Accepted(number) => {
                assert!(!self.files.contains_key(&number), "numbers are new");
                assert!(index.bytes() <= self.limit, "the limit is kept");
                self.has(worker, number, inode);
            }
            Offered::Known(number) => self.has(worker, number, inode),
            Offered::Refused => assert_eq!(index.bytes(), before),
        }
    }

    /// The store process has died. The next one is offered what workers have, but for what was evicted.
    fn replace_store(&mut self, index: &mut Index<u64>) {
        *index = Index::new();
        let held = std::mem::take(&mut self.held);
        let files = std::mem::take(&mut self.files);
        let evicted = std::mem::take(&mut self.evicted);
        self.take_step(index, Step::Limit(self.limit, 7));
        for (worker, number) in held {
            if !evicted.contains(&number) {
                self.offer(index, worker, files[&number]);
            }
        }
    }

    /// Evictions are sent to workers which have the body.
    fn hear(&mut self, index: &mut Index<u64>) {
        for (worker, number) in index.take_notices() {
            assert!(self.held.contains(&(worker, number)), "{worker} {number}");
            self.evicted.insert(number);
        }
    }

    fn check(&self, index: &Index<u64>) {
        let stored: u64 = index.files.keys().map(|key| bytes(key.inode)).sum();
        assert_eq!(stored, index.bytes);
        assert_eq!(index.order.len(), index.files.len());
        assert_eq!(index.keys.len(), index.files.len());
        let leaving = index.leaving.keys().map(|number| bytes(self.files[number]));
        assert_eq!(leaving.sum::<u64>(), index.leaving_bytes);
        for (key, body) in &index.files {
            assert_eq!(body.value, key.inode, "the memory is that of the file");
            let holders = body.holders.iter();
            let holders: BTreeSet<_> = holders.map(|worker| (*worker, body.number)).collect();
            let held = self.held.iter().copied();
            let held: BTreeSet<_> = held.filter(|(_, number)| *number == body.number).collect();
            assert_eq!(holders, held);
        }
        // Memory counts as long as the index or a worker has it, and no longer.
        let held = self.held.iter().map(|(_, number)| *number);
        let alive: BTreeSet<u64> = held.chain(index.keys.keys().copied()).collect();
        let taken = alive.iter().map(|number| bytes(self.files[number]));
        assert_eq!(taken.sum::<u64>(), index.bytes());
        for (number, leaving) in &index.leaving {
            let held = self.held.iter().filter(|(_, of)| of == number).count();
            assert_eq!(
                leaving.holders.len(),
                held,
                "memory counts until it is returned"
            );
        }
    }
}

proptest! {
    #[test]
    fn index_agrees_with_the_model_after_every_step(steps in prop::collection::vec(step(), 0..400)) {
        let (mut index, mut model) = (Index::new(), Model::default());
        model.take_step(&mut index, Step::Limit(LIMIT, 7));
        for step in steps {
            model.take_step(&mut index, step);
            model.hear(&mut index);
            model.check(&index);
        }
        // In the end nothing is left: no memory, no promise.
        for worker in 0..WORKERS {
            model.take_step(&mut index, Step::End(worker));
        }
        model.take_step(&mut index, Step::Limit(0, 0));
        prop_assert!(index.is_idle());
        prop_assert_eq!(index.bytes(), 0);
    }
}

/// The model checks that no number is given twice, that no bytes count which no worker has, and the limit.
#[test]
fn index_agrees_with_the_model_through_100_000_deaths_of_workers_and_store_processes() {
    let mut random = SplitMix64(34);
    let (mut index, mut model) = (Index::new(), Model::default());
    model.take_step(&mut index, Step::Limit(LIMIT, 7));
    let (mut given, mut evicted) = (0, 0);
    for _ in 0..100_000 {
        for _ in 0..random.below(8) {
            model.take_step(&mut index, draw_step(&mut random));
            model.hear(&mut index);
        }
        model.check(&index);
        match random.below(8) {
            0 => {
                (given, evicted) = (given + model.files.len(), evicted + model.evicted.len());
                model.replace_store(&mut index);
            }
            _ => model.take_step(&mut index, Step::End(random.below(WORKERS))),
        }
        model.hear(&mut index);
        model.check(&index);
    }
    assert!(given > 20_000 && evicted > 2_000, "{given} {evicted}");
    for worker in 0..WORKERS {
        model.take_step(&mut index, Step::End(worker));
    }
    model.take_step(&mut index, Step::Limit(0, 0));
    assert!(index.is_idle());
    assert_eq!(index.bytes(), 0);
}

#[test]
fn body_that_was_used_outlives_one_that_was_not() {
    let mut index = Index::new();
    index.set_limits(LIMIT, 100, 0);
    for inode in [8, 9] {
        assert_eq!(index.want(0, key(inode), 100, false, 0), Wanted::Copy);
        assert!(matches!(
            index.offer(0, key(inode), 100, inode),
            Offered::Accepted(_)
        ));
    }
    index.used(1);
    index.set_limits(100, 100, 0);
    assert_eq!(
        (index.value(&key(8)), index.value(&key(9))),
        (Some(&8), None)
    );
    assert_eq!(index.take_notices(), [(0, 2)]);
    assert_eq!(index.bytes(), 200, "until it is returned");
    index.returned(0, 2);
    assert_eq!(index.bytes(), 100);
}

#[test]
fn one_worker_copies_a_file_and_others_get_it() {
    let mut index = Index::new();
    index.set_limits(LIMIT, 100, 0);
    assert_eq!(index.want(0, key(1), 10, false, 0), Wanted::Copy);
    assert_eq!(index.want(1, key(1), 10, false, 0), Wanted::Refused);
    assert_eq!(index.offer(0, key(1), 10, 1), Offered::Accepted(1));
    assert_eq!(index.want(1, key(1), 10, false, 0), Wanted::Given(1));
    index.left(0);
    index.returned(1, 1);
    assert!(index.is_idle(), "no worker serves it any more");
    assert_eq!(index.want(0, key(1), 10, false, 0), Wanted::Copy);
    assert_eq!(
        index.want(1, key(1), 10, false, GRANT_MS),
        Wanted::Copy,
        "the other is late"
    );
}

#[test]
fn every_other_candidate_is_admitted_to_a_full_store() {
    let mut index = Index::new();
    index.set_limits(LIMIT, 8, 0);
    for inode in 1..=8 {
        assert_eq!(index.want(0, key(inode), 100, false, 0), Wanted::Copy);
        assert!(matches!(
            index.offer(0, key(inode), 100, inode),
            Offered::Accepted(_)
        ));
    }
    let wanted = (100..104).map(|inode| {
        let wanted = index.want(1, key(inode), 100, false, 0);
        // It takes the room that was made for it.
        for (worker, number) in index.take_notices() {
            index.returned(worker, number);
        }
        let _ = index.offer(1, key(inode), 100, inode);
        wanted
    });
    let wanted: Vec<Wanted> = wanted.collect();
    let (no, yes) = (Wanted::Refused, Wanted::Copy);
    assert_eq!(wanted, [no, yes, no, yes]);
    assert_eq!(
        index.want(0, key(200), 101, true, 0),
        Wanted::Refused,
        "too large"
    );
}
