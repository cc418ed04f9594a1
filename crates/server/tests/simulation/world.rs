//! One simulation: a worker, its helpers, its master, a site and clients, in an order that the seed
//! decides.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use headway_base::random::{Draw, SplitMix64};
use headway_control::{Control, Drain, FromWorker, Received, ToWorker};
use headway_server::{Extensions, helper_main, worker_main};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketAddrUnix;

use crate::client::{Client, Surroundings};
use crate::clock;
use crate::faults::{Faults, span};
use crate::kernel::{Kernel, Role};
use crate::model::Model;
use crate::setup::{Setup, listen, start};
use crate::site::Site;
use crate::task::{Baton, Task};

/// A simulation that takes more turns than this does not end.
const TURNS_MAX: u64 = 300_000;
/// After this number of turns nothing goes wrong any more, and clients hurry.
const EVENTFUL_TURNS_MAX: u64 = 20_000;

/// How long a worker without clients is watched.
const IDLE_TURNS: u64 = 100;

/// What came of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The checksum of everything that happened.
    pub hash: u64,
    pub replies: usize,
    /// Replies of 503.
    pub unavailable: usize,
    /// Calls that failed for want of memory in the kernel.
    pub without_memory: usize,
    pub turns: u64,
}

/// A helper, and when it does what lies in its socket.
struct Helper {
    task: Task,
    /// The number of its socket, which belongs to it while it lives.
    socket: i32,
    due_ns: Option<u64>,
    /// A message may lie in its socket.
    may_have_job: bool,
    /// It was stopped within a job.
    is_preempted: bool,
    /// Its answer to this job is lost with it.
    is_dying: bool,
}

/// What the master does later.
enum Order {
    GiveHelper,
}

/// A running simulation.
pub struct World {
    kernel: Kernel,
    worker: Task,
    control: Control,
    listener: SocketAddrUnix,
    helpers: Vec<Option<Helper>>,
    orders: Vec<(u64, Order)>,
    clients: Vec<Client>,
    site: Site,
    model: Model,
    random: SplitMix64,
    buffer: Vec<u8>,
    setup: Setup,
    next_change_ns: u64,
    next_stall_ns: u64,
    stalled_ns: u64,
    /// When the master stops the worker, whatever its clients do.
    drain_ns: u64,
    is_draining: bool,
    turns: u64,
    is_drained: bool,
    open_at_end: Option<u64>,
    /// The worker is not scheduled before this time.
    resumes_ns: u64,
    /// The turn and the number of waits when no connection was left.
    idle_since: Option<(u64, u64)>,
}

impl World {
    /// The world of a seed, in which nothing has happened.
    pub fn new(seed: u64, is_traced: bool) -> World {
        clock::reset();
        let mut random = SplitMix64::for_stream(seed, 0);
        let site = Site::new(seed);
        let setup = Setup::draw(&site, &mut random);
        let kernel = Kernel::new(seed, setup.is_edge_triggered(), is_traced);
        if setup.sends_pages {
            kernel.state().faults.preempted = 0;
        }
        let is_preempted = kernel.state().expect(&site, &setup);
        let name = format!("headway-simulation-{}", std::process::id());
        let listener =
            SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("an abstract name");
        let (control, theirs) = Control::pair().expect("a control pair");
        start(&control, &setup, listen(&listener));
        let baton = Baton::new();
        let worker = Task::new(
            baton.clone(),
            kernel.calls(Role::Worker, &baton),
            move || worker_main(theirs, Extensions::NONE).map_err(|error| error.to_string()),
        );
        let now = clock::now_ns();
        let clients = (0..1 + random.below(6))
            .map(|_| Client::new(now + random.below(500_000_000), &mut random))
            .collect();
        let later = |chance: u64, random: &mut SplitMix64| match random.below(chance) {
            0 => now + random.below(300_000_000),
            _ => u64::MAX,
        };
        World {
            kernel,
            worker,
            control,
            listener,
            helpers: Vec::new(),
            orders: Vec::new(),
            clients,
            model: Model::new(
                setup.revalidate_ms,
                is_preempted,
                if setup.listing { 200 } else { 403 },
            ),
            next_change_ns: later(2, &mut random),
            next_stall_ns: later(4, &mut random),
            drain_ns: later(6, &mut random),
            is_draining: false,
            site,
            random,
            buffer: Vec::new(),
            setup,
            stalled_ns: 0,
            turns: 0,
            is_drained: false,
            open_at_end: None,
            resumes_ns: 0,
            idle_since: None,
        }
    }

    /// Nothing else goes wrong than that the kernel has no memory for these calls, and not all
    /// is in memory.
    pub fn without_memory_for(self, calls: &'static [i64]) -> World {
        // A helper to which nothing can be sent is replaced, so a job needs some messages in a row.
        let no_memory = if calls.contains(&libc::SYS_sendmsg) {
            60
        } else {
            300
        };
        let mut state = self.kernel.state();
        state.faults = Faults {
            cold: 300,
            no_memory,
            no_memory_for: Some(calls),
            ..Faults::default()
        };
        // What failed is looked up again.
        state.costs.valid_ns = None;
        drop(state);
        World {
            drain_ns: u64::MAX,
            next_stall_ns: u64::MAX,
            ..self
        }
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// What the server has done wrong.
    pub fn run(mut self) -> (Result<Outcome, String>, Vec<String>) {
        let result = self.run_to_end();
        let mut state = self.kernel.state();
        let lines = state.trace.lines.take().unwrap_or_default();
        drop(state);
        match result {
            Ok(()) => (self.end(), lines),
            // Its threads wait for turns that do not come any more.
            Err(error) => (Err(error), lines),
        }
    }

    fn run_to_end(&mut self) -> Result<(), String> {
        loop {
            self.turns += 1;
            if self.turns > TURNS_MAX {
                return Err(format!("{TURNS_MAX} turns were not enough"));
            }
            if self.turns == EVENTFUL_TURNS_MAX {
                self.calm();
            }
            self.act()?;
            if clock::now_ns() < self.resumes_ns {
                self.skip_to_next_event()?;
                continue;
            }
            if !self.kernel.state().ends_wait() {
                self.skip_to_next_event()?;
                continue;
            }
            if !self.worker.run() {
                self.read_messages()?;
                return match self.is_drained {
                    true => self.read_the_rest(),
                    false => Err("the worker has ended".to_owned()),
                };
            }
            let mut state = self.kernel.state();
            if let Some(violation) = state.violations.pop() {
                return Err(violation);
            }
            let is_preempted = state.preempted.take().is_some();
            let closed = (!is_preempted).then(|| state.costs.closed.take()).flatten();
            drop(state);
            if is_preempted {
                self.preempt();
                continue;
            }
            // One that has ended has closed everything.
            if let Some(closed) = closed {
                return Err(closed);
            }
            // Work takes time.
            clock::advance(5_000 + self.random.below(100_000));
        }
    }

    /// The worker is stopped before a call: meanwhile files change, and others act.
    fn preempt(&mut self) {
        let now = clock::now_ns();
        self.resumes_ns = now + span(&mut self.random, 10, 28);
        self.note("the worker is not scheduled");
        self.change_now(now);
    }

    /// Something stands between two calls: often a file changes between them.
    fn change_now(&mut self, now: u64) {
        if !self.kernel.state().is_calm && self.random.below(4) == 0 {
            self.next_change_ns = now;
        }
    }

    /// The worker has ended. Its clients read what it has sent them.
    fn read_the_rest(&mut self) -> Result<(), String> {
        self.clients.iter_mut().for_each(Client::hurry);
        while !self.clients.iter().all(Client::is_done) {
            clock::advance(1_000_000);
            self.run_clients(clock::now_ns())?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more.
    fn calm(&mut self) {
        self.kernel.state().is_calm = true;
        self.next_change_ns = u64::MAX;
        self.next_stall_ns = u64::MAX;
        self.clients.iter_mut().for_each(Client::hurry);
    }

    /// Everything whose time has come, in a random order.
    fn act(&mut self) -> Result<(), String> {
        let now = clock::now_ns();
        if std::mem::take(&mut self.kernel.state().has_messages) {
            self.read_messages()?;
            let helpers = self.helpers.iter_mut().flatten();
            helpers.for_each(|helper| helper.may_have_job = true);
        }
        self.run_master(now);
        self.run_helpers(now);
        if now >= self.next_change_ns {
            let release = self.site.release();
            let what = self.site.change();
            let mut state = self.kernel.state();
            state.is_link_new |= release != self.site.release();
            state.costs.forget();
            drop(state);
            self.note(&what);
            self.next_change_ns = now + 1 + self.random.below(200_000_000);
        }
        if now >= self.next_stall_ns {
            self.stall();
        }
        if now >= self.drain_ns && !self.is_draining {
            self.is_draining = true;
            self.note("the master stops the worker");
            let order = ToWorker::Drain(Drain::within(30_000));
            let _ = self.control.try_send(&order, &[]);
        }
        self.run_clients(now)?;
        if self.clients.iter().all(Client::is_done) && !self.is_draining {
            self.finish()?;
        }
        Ok(())
    }

    fn run_clients(&mut self, now: u64) -> Result<(), String> {
        let mut due: Vec<usize> = (0..self.clients.len())
            .filter(|index| !self.clients[*index].is_done() && self.clients[*index].next_ns <= now)
            .collect();
        self.random.shuffle(&mut due);
        for index in due {
            let mut around = Surroundings {
                kernel: &self.kernel,
                listener: &self.listener,
                site: &self.site,
                model: &mut self.model,
                random: &mut self.random,
                buffer: &mut self.buffer,
                timeout_ns: self.setup.timeout_ms * 1_000_000,
                stalled_ns: self.stalled_ns,
                is_draining: self.is_draining,
                is_crowded: self.clients.len() > self.setup.config.max_connections as usize,
            };
            self.clients[index].act(&mut around)?;
        }
        Ok(())
    }

    fn note(&self, what: &str) {
        let mut state = self.kernel.state();
        state
            .trace
            .add(&[clock::now_ns() as i64], || what.to_owned());
    }

    /// The machine stands still, or its calendar is stepped.
    fn stall(&mut self) {
        let now = clock::now_ns();
        match self.random.below(2) {
            0 => {
                clock::advance(self.random.below(40_000_000_000));
                self.stalled_ns = clock::now_ns();
                self.note("the machine stood still");
            }
            _ => {
                clock::step_calendar(
                    self.random.below(7_200_000_000_000) as i64 - 3_600_000_000_000,
                );
                self.note("the calendar was stepped");
            }
        }
        self.next_stall_ns = match self.random.below(3) {
            0 => u64::MAX,
            _ => now + self.random.below(1_000_000_000),
        };
    }

    /// What the worker has told its master.
    fn read_messages(&mut self) -> Result<(), String> {
        loop {
            match self.control.try_receive::<FromWorker>() {
                Ok(Received::Message(message, _)) => self.on_message(message)?,
                Ok(Received::WouldBlock | Received::Closed) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn on_message(&mut self, message: FromWorker) -> Result<(), String> {
        match message {
            FromWorker::WantHelpers { count } => {
                for _ in 0..count {
                    let due = clock::now_ns() + span(&mut self.random, 10, 28);
                    self.orders.push((due, Order::GiveHelper));
                }
            }
            FromWorker::Failed { why } => return Err(format!("the worker failed: {why}")),
            FromWorker::Drained => self.is_drained = true,
            FromWorker::Snapshot { snapshot, .. } => {
                self.open_at_end = Some(snapshot.counters.connections_open);
                let cold = snapshot.counters.chunks_cold;
                if cold > 0 && !self.kernel.state().was_cold {
                    return Err(format!("{cold} chunks were cold, and all were in memory"));
                }
            }
            FromWorker::Notice { text, .. } => self.note(&format!("notice: {text}")),
            FromWorker::Ready
            | FromWorker::Directories { .. }
            | FromWorker::Pong
            | FromWorker::AcceptPending => {}
        }
        Ok(())
    }

    fn run_master(&mut self, now: u64) {
        let (due, later) = std::mem::take(&mut self.orders)
            .into_iter()
            .partition(|(due, _)| *due <= now);
        self.orders = later;
        for (_, order) in due {
            match order {
                Order::GiveHelper => self.give_helper(),
            }
        }
    }

    fn give_helper(&mut self) {
        let (ours, theirs): (OwnedFd, OwnedFd) =
            headway_os::fd_passing::pair().expect("a helper pair");
        let index = self.helpers.len();
        let baton = Baton::new();
        let socket = theirs.as_raw_fd();
        let calls = self.kernel.calls(Role::Helper(index), &baton);
        let task = Task::new(baton, calls, move || {
            helper_main(theirs, Extensions::NONE).map_err(|error| error.to_string())
        });
        // It reaches its first wait, or is stopped before.
        task.run();
        let is_preempted = self.kernel.state().preempted.take().is_some();
        self.helpers.push(Some(Helper {
            task,
            socket,
            due_ns: None,
            may_have_job: true,
            is_preempted,
            is_dying: false,
        }));
        let order = ToWorker::Helper { pid: index as u32 };
        let _ = self.control.try_send(&order, &[ours.as_fd()]);
    }

    /// Helpers take a random time for each message, and may die on it.
    fn run_helpers(&mut self, now: u64) {
        for index in 0..self.helpers.len() {
            let Some(helper) = &mut self.helpers[index] else {
                continue;
            };
            match helper.due_ns {
                None if helper.is_preempted
                    || std::mem::take(&mut helper.may_have_job) && is_readable(helper.socket) =>
                {
                    helper.due_ns = Some(now + span(&mut self.random, 4, 28));
                    helper.may_have_job = true;
                }
                Some(due) if due <= now => {
                    helper.due_ns = None;
                    let mut state = self.kernel.state();
                    if !std::mem::take(&mut helper.is_preempted) {
                        helper.is_dying = state.draw_helper_death();
                    }
                    state.dying = helper.is_dying.then_some(index);
                    drop(state);
                    let lives = helper.task.run();
                    let mut state = self.kernel.state();
                    state.dying = None;
                    helper.is_preempted = state.preempted.take().is_some();
                    drop(state);
                    match lives {
                        true if helper.is_preempted => self.change_now(now),
                        true => {}
                        false => self.bury(index),
                    }
                }
                _ => {}
            }
        }
    }

    fn bury(&mut self, index: usize) {
        if let Some(mut helper) = self.helpers[index].take()
            && let Err(error) = helper.task.join()
        {
            let what = format!("helper {index}: {error}");
            self.kernel.state().violations.push(what);
        }
    }

    /// Lets time pass until something happens: nothing is ready now.
    fn skip_to_next_event(&mut self) -> Result<(), String> {
        if self.clients.iter().all(Client::is_done) {
            // The last turns are counted, not timed.
            clock::advance(20_000_000);
            return Ok(());
        }
        let now = clock::now_ns();
        let worker = match now < self.resumes_ns {
            true => Some(self.resumes_ns),
            false => self
                .kernel
                .state()
                .wait
                .as_ref()
                .and_then(|wait| wait.deadline_ns),
        };
        let clients = self
            .clients
            .iter()
            .filter(|client| !client.is_done())
            .map(|client| client.next_ns);
        let helpers = self
            .helpers
            .iter()
            .flatten()
            .filter_map(|helper| helper.due_ns);
        let orders = self.orders.iter().map(|(due, _)| *due);
        let events = clients.chain(helpers).chain(orders).chain(worker);
        let next = events.chain(self.planned_events()).min();
        match next {
            None | Some(u64::MAX) => Err("nothing will ever happen again".to_owned()),
            Some(next) => {
                clock::advance(next.saturating_sub(now));
                Ok(())
            }
        }
    }

    /// When the world itself does something.
    fn planned_events(&self) -> [u64; 3] {
        let drain_ns = match self.is_draining {
            true => u64::MAX,
            false => self.drain_ns,
        };
        [self.next_change_ns, self.next_stall_ns, drain_ns]
    }

    /// All clients are gone: asks the worker what is left, then ends it.
    fn finish(&mut self) -> Result<(), String> {
        self.calm();
        match self.open_at_end {
            None if self.turns.is_multiple_of(50) => {
                let _ = self.control.try_send(&ToWorker::Snapshot { id: 1 }, &[]);
            }
            // It may not have noticed yet that the last clients are gone.
            Some(open) if open > 0 => self.open_at_end = None,
            Some(0) if self.idle_since.is_none() => {
                self.idle_since = Some((self.turns, self.kernel.state().waits));
            }
            Some(0) => self.end_when_idle()?,
            _ => {}
        }
        Ok(())
    }

    /// A loop without clients sleeps.
    fn end_when_idle(&mut self) -> Result<(), String> {
        let Some((turn, waits)) = self.idle_since else {
            return Ok(());
        };
        if self.turns < turn + IDLE_TURNS {
            return Ok(());
        }
        let order = ToWorker::Drain(Drain::within(1000));
        let _ = self.control.try_send(&order, &[]);
        self.open_at_end = Some(u64::MAX);
        match self.kernel.state().waits - waits > IDLE_TURNS / 2 {
            true => Err("the loop spins without clients".to_owned()),
            false => Ok(()),
        }
    }

    /// The worker has ended: everything else ends by itself then.
    fn end(mut self) -> Result<Outcome, String> {
        self.worker.join()?;
        for index in 0..self.helpers.len() {
            while self.helpers[index]
                .as_ref()
                .is_some_and(|helper| helper.task.run())
            {}
            self.bury(index);
        }
        let mut state = self.kernel.state();
        match state.violations.pop() {
            Some(violation) => Err(violation),
            None => Ok(Outcome {
                hash: state.trace.hash,
                replies: self.clients.iter().map(|client| client.replies).sum(),
                unavailable: self.model.unavailable,
                without_memory: state.without_memory,
                turns: self.turns,
            }),
        }
    }
}

fn is_readable(socket: i32) -> bool {
    // SAFETY: its task has not ended, so the number is still that of its socket.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
    let mut entries = [PollFd::new(&socket, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut entries, Some(&now)).is_ok_and(|count| count > 0)
}
