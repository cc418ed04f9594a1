//! Collects a snapshot from all workers and puts them together when the last one has answered.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headway_control::ToWorker;
use headway_metrics::features::Feature;
use headway_metrics::{MasterStatus, NetworkDrops, Overview, Skew, Snapshot};

use super::predecessors::Predecessors;
use super::reload::Generation;
use super::signals;
use super::tls::Keys;
use super::worker::WorkerSlot;

/// Workers that have not answered within this time are reported as unresponsive.
const WORKER_TIMEOUT: Duration = Duration::from_secs(1);
/// The status thread waits longer than the master, so that its overview names unresponsive workers.
const OVERVIEW_TIMEOUT: Duration = Duration::from_secs(3);

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as u64
}

/// A request for an [`Overview`].
pub(super) struct Request(SyncSender<Overview>);

/// How the status thread requests overviews from the master: a queue, and a pipe that wakes it.
#[derive(Debug)]
pub struct OverviewRequester {
    requests: Sender<Request>,
    wake: UnixStream,
}

impl OverviewRequester {
    /// Requests an overview and waits for it; `None` when the master is stopping.
    pub fn request(&self) -> Option<Overview> {
        let (answer, answers) = sync_channel(1);
        self.requests.send(Request(answer)).ok()?;
        // A full pipe wakes the master just as well.
        let _ = (&self.wake).write(&[0]);
        answers.recv_timeout(OVERVIEW_TIMEOUT).ok()
    }
}

/// The master's side.
pub(super) struct Collector {
    pub(super) wake: UnixStream,
    /// The other end of `wake`, which keeps the pipe from hanging up: without a status thread the
    /// master would find it readable forever and spin.
    _waker: UnixStream,
    requests: Receiver<Request>,
    id: u64,
    collection: Option<Collection>,
    /// Last snapshots of workers that have ended, summed.
    departed: Option<Snapshot>,
    host_name: String,
    /// What the kernel had dropped before the server started.
    network_before: Option<NetworkDrops>,
}

struct Collection {
    deadline: Instant,
    waiting: Vec<usize>,
    requests: Vec<Request>,
}

impl Collector {
    pub(super) fn new() -> std::io::Result<(Collector, OverviewRequester)> {
        let (wake, waker) = signals::pair()?;
        let (sender, requests) = channel();
        let collector = Collector {
            wake,
            _waker: waker.try_clone()?,
            requests,
            id: 0,
            collection: None,
            departed: None,
            host_name: headway_metrics::overview::host_name(),
            network_before: NetworkDrops::read(),
        };
        Ok((
            collector,
            OverviewRequester {
                requests: sender,
                wake: waker,
            },
        ))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.collection
            .as_ref()
            .map(|collection| collection.deadline)
    }

    /// Sets the numbers of workers that have ended before the program was replaced.
    pub(super) fn take_over(&mut self, departed: serde_json::Value) {
        self.departed = serde_json::from_value(departed).unwrap_or_default();
    }

    /// The same for the next program.
    pub(super) fn handed(&self) -> serde_json::Value {
        serde_json::to_value(&self.departed).unwrap_or_default()
    }

    /// Reads requests. Those that come during a collection share its result.
    pub(super) fn take_requests(&mut self, slots: &mut [WorkerSlot]) {
        signals::drain(&self.wake);
        let asking: Vec<Request> = self.requests.try_iter().collect();
        match &mut self.collection {
            _ if asking.is_empty() => {}
            Some(collection) => collection.requests.extend(asking),
            None => self.begin_for(slots, asking),
        }
    }

    /// Begins a collection for the master itself.
    pub(super) fn begin(&mut self, slots: &mut [WorkerSlot]) {
        if self.collection.is_none() {
            self.begin_for(slots, Vec::new());
        }
    }

    fn begin_for(&mut self, slots: &mut [WorkerSlot], requests: Vec<Request>) {
        self.id += 1;
        let mut waiting = Vec::new();
        for (number, slot) in slots.iter_mut().enumerate() {
            if let Some(running) = slot.running.as_mut().filter(|running| running.ready)
                && running.send(ToWorker::Snapshot { id: self.id }, Vec::new())
            {
                waiting.push(number);
            }
        }
        self.collection = Some(Collection {
            deadline: Instant::now() + WORKER_TIMEOUT,
            waiting,
            requests,
        });
    }

    /// Records a worker's answer. An answer to an earlier collection does not end this one.
    pub(super) fn answered(&mut self, number: usize, id: u64) {
        if let Some(collection) = self.collection.as_mut().filter(|_| id == self.id) {
            collection.waiting.retain(|waiting| *waiting != number);
        }
    }

    /// Records that a worker has ended. Its counters stay in the total, which must never decrease.
    pub(super) fn departed(&mut self, number: usize, last: Option<Snapshot>) {
        if let Some(collection) = &mut self.collection {
            collection.waiting.retain(|waiting| *waiting != number);
        }
        if let Some(mut last) = last {
            last.counters.clear_gauges();
            last.upstreams.clear();
            match &mut self.departed {
                Some(departed) => departed.merge(&last),
                None => self.departed = Some(last),
            }
        }
    }

    /// Ends the collection when all workers have answered or time is up.
    pub(super) fn finish(
        &mut self,
        slots: &[WorkerSlot],
        current: &Rc<Generation>,
        master: &MasterStatus,
        before: &Predecessors,
    ) -> Option<Overview> {
        let over = |collection: &mut Collection| {
            collection.waiting.is_empty() || collection.deadline <= Instant::now()
        };
        let collection = self.collection.take_if(over)?;
        let overview = self.overview(slots, current, (master, before), &collection.waiting);
        for request in &collection.requests {
            // The status thread may have given up.
            let _ = request.0.try_send(overview.clone());
        }
        Some(overview)
    }

    fn overview(
        &self,
        slots: &[WorkerSlot],
        current: &Rc<Generation>,
        (master, before): (&MasterStatus, &Predecessors),
        late: &[usize],
    ) -> Overview {
        let alive = || {
            slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.running.is_some())
        };
        // Others count in the total only: their numbers are those of workers of this configuration.
        let own = || alive().filter(|(_, slot)| slot.is_of(current));
        let seen = own().filter(|(number, _)| !late.contains(number));
        let workers: Vec<Snapshot> = seen.filter_map(|(_, slot)| slot.last.clone()).collect();
        let known = alive().filter_map(|(_, slot)| slot.last.as_ref());
        let known = known.chain(before.known());
        let unresponsive =
            |(number, slot): &(usize, &WorkerSlot)| late.contains(number) || !slot.is_ready();
        let mut total = Snapshot::total(known.chain(&self.departed));
        if let Some(total) = &mut total {
            (total.worker, total.pid) = (0, 0);
        }
        Overview {
            version: env!("CARGO_PKG_VERSION").into(),
            host_name: self.host_name.clone(),
            off: Feature::off(&current.config),
            time_ms: now_ms(),
            master: MasterStatus {
                network: NetworkDrops::read().map(|now| match &self.network_before {
                    Some(before) => now.since(before),
                    None => now,
                }),
                certificate_expiry_s: current
                    .keys
                    .as_ref()
                    .map(Keys::expiry_s)
                    .unwrap_or_default(),
                ..master.clone()
            },
            total,
            skew: Skew::of(&workers),
            workers,
            unresponsive: own()
                .filter(unresponsive)
                .map(|(_, slot)| slot.number() as u32)
                .collect(),
        }
    }
}
