//! The kernel of the simulation: real sockets and files behind it, and decisions of the seed before
//! it. It injects faults, and checks what must hold of every call, such as that the loop never
//! makes one that may wait.

mod calls;
mod costs;
mod layout;
mod memory;
mod wait;

pub use memory::CALLS_WITH_MEMORY;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use headway_base::random::{Draw, SplitMix64};

use crate::clock;
use crate::faults::Faults;
use crate::task::Baton;
use crate::trap::{Arguments, Calls};

/// Which simulated process makes a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Worker,
    Helper(usize),
}

/// What a kernel says about the pages of a file (`cachestat`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CachestatAnswer {
    Counts,
    /// Before Linux 6.5.
    Missing,
    /// Another user's files, from Linux 6.13 on.
    Forbidden,
}

/// How a file system answers a read that may not wait (`RWF_NOWAIT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NowaitAnswer {
    Reads,
    /// As tmpfs: `mincore` tells what is in memory.
    InMemory,
    /// As FUSE: nothing tells what is in memory.
    Opaque,
}

/// What was done to a connection, for the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionFate {
    /// A fault has broken it: it may end anywhere.
    pub is_broken: bool,
    /// When the server last moved bytes, or accepted it; 0 before.
    pub active_ns: u64,
    /// Since when it is idle for the server, which reads its clock once in an iteration.
    pub idle_since_ns: u64,
    /// When the server closed its socket; 0 before.
    pub closed_ns: u64,
    /// It closed with input unread. TCP then sends a reset, which destroys what the client has not
    /// read (RFC 9112, 9.6).
    pub is_reset: bool,
}

/// What the kernel and the world share.
pub struct State {
    pub random: SplitMix64,
    pub faults: Faults,
    pub cachestat: CachestatAnswer,
    pub nowait: NowaitAnswer,
    /// Names that do not exist are in memory, too. A file system in memory, which the test has, forgets them.
    pub remembers_missing: bool,
    /// The event mechanism reports edges, so a fault may not swallow one.
    pub is_edge_triggered: bool,
    /// No faults any more: what is in flight must end well.
    pub is_calm: bool,
    /// Connections in the order in which they wait to be accepted.
    pub waiting: VecDeque<usize>,
    pub connections: Vec<ConnectionFate>,
    /// Send buffer of each accepted socket.
    pub send_buffer_bytes: u64,
    /// When calls failed for want of descriptors or memory, or by the disk.
    pub exhausted_ns: Vec<u64>,
    pub disk_failed_ns: Vec<u64>,
    /// The wait in which the worker is, and the result of the last one.
    pub wait: Option<wait::Wait>,
    wait_result: i64,
    /// Waits that have ended, and when the last one has.
    pub waits: u64,
    pub iteration_ns: u64,
    /// When a lookup of the worker last could not be answered from memory.
    pub lookup_waited_ns: u64,
    /// The worker has sent a message to its master or a helper, or has left one.
    pub has_messages: bool,
    /// The link to the second root is new: following it writes its access time.
    pub is_link_new: bool,
    /// What the loop has spent.
    pub costs: costs::Costs,
    /// Calls that failed for want of memory in the kernel.
    pub without_memory: usize,
    /// The last wait has failed, so the loop may pause.
    may_pause: bool,
    /// What must never happen.
    pub violations: Vec<String>,
    /// The helper whose next answer is lost with it.
    pub dying: Option<usize>,
    /// The process that gave up its turn before a call, not to wait for anything.
    pub preempted: Option<Role>,
    /// The kernel has said that something is not in memory, or not whether it is.
    pub was_cold: bool,
    pub trace: Trace,
    /// The worker's socket to its master.
    control: Option<u64>,
    sockets: BTreeMap<i32, usize>,
    inodes: BTreeMap<u64, u64>,
    is_serving: bool,
}

/// Every call, as a checksum, and as text if the seed runs with its trace.
#[derive(Default)]
pub struct Trace {
    pub hash: u64,
    pub lines: Option<Vec<String>>,
}

impl Trace {
    pub fn add(&mut self, values: &[i64], line: impl FnOnce() -> String) {
        for value in values {
            self.hash = SplitMix64(self.hash ^ *value as u64).next_u64();
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!(
                "{:>12.6} {}",
                clock::now_ns() as f64 / 1e9 - 1000.0,
                line()
            ));
        }
    }
}

/// The kernel of one simulation.
#[derive(Clone)]
pub struct Kernel(Arc<Mutex<State>>);

impl Kernel {
    pub fn new(seed: u64, is_edge_triggered: bool, is_traced: bool) -> Kernel {
        let mut random = SplitMix64::for_stream(seed, 1);
        let faults = Faults::draw(&mut random);
        let cachestat = match random.below(4) {
            0 => CachestatAnswer::Missing,
            1 => CachestatAnswer::Forbidden,
            _ => CachestatAnswer::Counts,
        };
        let nowait = match random.below(6) {
            0 => NowaitAnswer::InMemory,
            1 => NowaitAnswer::Opaque,
            _ => NowaitAnswer::Reads,
        };
        let send_buffer_bytes = 2048 << random.below(8);
        Kernel(Arc::new(Mutex::new(State {
            random,
            faults,
            cachestat,
            nowait,
            remembers_missing: seed.is_multiple_of(2),
            is_edge_triggered,
            is_calm: false,
            waiting: VecDeque::new(),
            connections: Vec::new(),
            send_buffer_bytes,
            exhausted_ns: Vec::new(),
            disk_failed_ns: Vec::new(),
            wait: None,
            wait_result: 0,
            waits: 0,
            iteration_ns: 0,
            lookup_waited_ns: 0,
            has_messages: false,
            is_link_new: false,
            costs: costs::Costs::default(),
            without_memory: 0,
            may_pause: false,
            violations: Vec::new(),
            dying: None,
            preempted: None,
            was_cold: nowait == NowaitAnswer::Opaque,
            trace: Trace {
                hash: seed,
                lines: is_traced.then(Vec::new),
            },
            control: None,
            sockets: BTreeMap::new(),
            inodes: BTreeMap::new(),
            is_serving: false,
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic with the kernel")
    }

    /// The system calls of a simulated process, which waits at `baton`.
    pub fn calls(&self, role: Role, baton: &Arc<Baton>) -> Caller {
        Caller {
            kernel: self.clone(),
            baton: baton.clone(),
            role,
        }
    }
}

/// The system calls of one simulated process.
pub struct Caller {
    kernel: Kernel,
    baton: Arc<Baton>,
    role: Role,
}

impl Calls for Caller {
    fn call(&self, number: i64, arguments: Arguments) -> i64 {
        if self.role == Role::Worker && wait::is_wait(number) {
            return self.wait(number, arguments);
        }
        if self.role != Role::Worker && calls::waits_for_a_job(number, arguments) {
            self.baton.park();
        }
        let mut state = self.kernel.state();
        if state.happens(|faults| faults.preempted) {
            state.preempted = Some(self.role);
            drop(state);
            self.baton.park();
            state = self.kernel.state();
        }
        let result = state.call(self.role, number, arguments);
        state.record(self.role, number, arguments, result);
        result
    }
}

impl State {
    /// Whether a fault of this rate happens now.
    fn happens(&mut self, rate: fn(&Faults) -> u64) -> bool {
        !self.is_calm && self.is_serving && Faults::happens(rate(&self.faults), &mut self.random)
    }

    /// Whether the helper whose turn it is dies on its job.
    pub fn draw_helper_death(&mut self) -> bool {
        self.happens(|faults| faults.helper_death)
    }

    /// One of these errnos, as the result of a call.
    fn one_of(&mut self, errnos: &[i32]) -> i64 {
        -i64::from(errnos[self.random.index(errnos.len())])
    }

    fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn record(&mut self, role: Role, number: i64, arguments: Arguments, result: i64) {
        // At its start the worker reads files of procfs, which are not the same twice.
        if number == libc::SYS_read && !self.is_serving {
            return;
        }
        let who = match role {
            Role::Worker => -1,
            Role::Helper(index) => index as i64,
        };
        let would_wait = number == libc::SYS_openat2 && result == -i64::from(libc::EAGAIN);
        if role == Role::Worker && would_wait {
            self.lookup_waited_ns = clock::now_ns();
        }
        // Pointers are elsewhere in every run.
        let first = i32::try_from(arguments[0]).unwrap_or(-1);
        let now = clock::now_ns() as i64;
        self.trace
            .add(&[now, who, number, i64::from(first), result], || {
                let connection = self.sockets.get(&first);
                let of = connection.map_or_else(String::new, |connection| {
                    format!(" of connection {connection}")
                });
                format!("{role:?}: {} ({first}{of}) = {result}", calls::name(number))
            });
    }
}
