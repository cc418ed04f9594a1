//! The times of requests of a server that was not made for it, and what its threads did meanwhile
//! (`bpf/requests.bpf.c`).

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use headway_debox::Label;

use crate::attach::monotonic_ns;
use crate::error::AttachError;
use crate::load::{self as tracepoints, Switchable, Visibility};
use crate::lost::Lost;
use crate::maps::{load_error, lost_of};
use crate::target::Pids;

mod events;
mod load;
mod reasons;
mod sample;

pub use events::{
    FailedCall, SeenHead, SeenRequest, SeenResponse, SeenStatus, SleepFile, Thread, Waker,
};
use events::{RawEvent, RawOffCpu};
pub use reasons::Within;
use reasons::{Reason, Reasons};
use sample::Sample;

/// `struct connection`, in words.
const CONNECTION_WORDS: usize = 18;

/// `struct activity`, in words.
type ActivityWords = [u64; 6 + events::OFF_CPU_WORDS + events::NAME_WORDS];

/// `struct failure`, in words.
type FailureWords = [u64; 1 + events::OFF_CPU_WORDS + events::NAME_WORDS];

/// `enum control`.
const CONNECTIONS: u32 = 0;
const ESTABLISHED: u32 = 1;
const SAMPLE: u32 = 2;
const SEES_UNIX: u32 = 3;
const CALLS_SINCE: u32 = 4;

/// Buckets of ready events: 0, 1, 2 to 3, 4 to 7, …
pub const READY_BUCKETS: usize = 16;

/// Buckets of turns of event loops: from 2^N ns on.
pub const TURN_BUCKETS: usize = 64;

/// How much room the kernel's part gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Processes of the server at a time.
    pub processes_max: u32,
    /// Threads of the server at a time.
    pub threads_max: u32,
    /// Connections at a time. About 200 bytes each.
    pub connections_max: u32,
    /// How many kernel stacks are kept apart.
    pub stacks_max: u32,
    /// Bytes of the ring buffer through which events come; a power of two, at least a page.
    pub ring_bytes: u32,
    /// Whether the method, path and status of HTTP/1 requests are reported.
    pub heads: bool,
}

impl Default for RequestLimits {
    /// Some thirty megabytes of kernel memory.
    fn default() -> RequestLimits {
        RequestLimits {
            processes_max: 4096,
            threads_max: 16384,
            connections_max: 131_072,
            stacks_max: 8192,
            ring_bytes: 8 << 20,
            heads: false,
        }
    }
}

/// A port on which the server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerPort {
    /// The inode of the network namespace, as `/proc/PID/ns/net` shows it.
    pub namespace: u32,
    /// The TCP port.
    pub port: u16,
}

/// What was observed, in the order in which the kernel reported it.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// The response to a request has begun, or its connection has ended.
    Request(SeenRequest),
    /// A response has ended.
    Response(SeenResponse),
    /// A thread of the server was not on a CPU.
    OffCpu(OffCpu),
    /// A request has a method and a path. It comes before [`ServerEvent::Request`].
    Head(SeenHead),
    /// A response has a status. It comes after [`ServerEvent::Request`].
    Status(SeenStatus),
}

/// A time that a thread of the server was not on a CPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OffCpu {
    /// The thread.
    pub thread: Thread,
    /// The call that it slept in; `None` outside calls, or if it was preempted.
    pub call: Option<u32>,
    /// When it left the CPU; 0 if that was before the observation, and then the rest is not known.
    pub start_ns: u64,
    /// When it could run again; `None` if it was preempted, and could run all the time.
    pub woken_ns: Option<u64>,
    /// When it ran again.
    pub end_ns: u64,
    /// What it waited for.
    pub label: Label,
    /// The kernel function in which it waited.
    pub symbol: Option<String>,
    /// What the kernel did then beside the call.
    pub within: Option<Within>,
    /// How many other threads of the server waited for the same, at its beginning or at its wakeup: the larger count.
    pub waiters: u64,
    /// The connection that it used last; `None` after a wait for events.
    pub connection: Option<u64>,
    /// The task that woke it; `None` if an interrupt did.
    pub waker: Option<Waker>,
    /// The file that the call uses.
    pub file: Option<SleepFile>,
}

/// A response that has not ended, or whose end nothing has shown yet.
pub type OpenResponse = SeenResponse;

/// Observes the requests of some processes and their threads until it is dropped. Then the kernel
/// removes all of its parts, also if this process is killed.
///
/// ```no_run
/// use headway_debox_bpf::{RequestLimits, RequestObserver, ServerEvent, ServerPort};
///
/// let ports = [ServerPort { namespace: 4026531840, port: 80 }];
/// let mut observer = RequestObserver::start(&[1234], &ports, &RequestLimits::default())?;
/// observer.poll(|event| {
///     if let ServerEvent::Request(request) = event {
///         println!("waited {} ns", request.written_ns - request.arrived_ns);
///     }
/// });
/// # Ok::<(), headway_debox_bpf::AttachError>(())
/// ```
pub struct RequestObserver {
    ebpf: Ebpf,
    events: RingBuf<MapData>,
    visibility: Visibility,
    /// Whether Unix sockets are observed.
    sees_unix: bool,
    /// What sees the ends of calls.
    calls: Option<Switchable>,
    heads: bool,
    sample: Sample,
    reasons: Reasons,
}

impl RequestObserver {
    /// Starts observing processes, and those that they fork from now on. Ports on which they listen
    /// later are added by themselves.
    ///
    /// # Errors
    ///
    /// As [`Attach::start`](crate::Attach::start). Linux 6.3 has all that is needed.
    pub fn start(
        pids: &[u32],
        ports: &[ServerPort],
        limits: &RequestLimits,
    ) -> Result<RequestObserver, AttachError> {
        let checked = Pids {
            pids: pids.to_vec(),
            follow_children: true,
        };
        checked.check(limits.processes_max)?;
        let mut ebpf = load::load(limits)?;
        let events = ebpf.take_map("events").expect("the object has this map");
        let events = RingBuf::try_from(events).map_err(load_error)?;
        let mut visibility = tracepoints::attach(&mut ebpf, load::TRACEPOINTS)?;
        let calls = Switchable::attached(&mut ebpf, &load::CALLS)
            .map_err(|why| {
                visibility
                    .missing
                    .push(format!("{} (sys_exit: {why})", load::WITHOUT_CALLS))
            })
            .ok();
        let mut observer = RequestObserver {
            ebpf,
            events,
            visibility,
            sees_unix: false,
            calls,
            heads: limits.heads,
            sample: Sample::default(),
            reasons: Reasons::load(),
        };
        observer.control(CALLS_SINCE, monotonic_ns())?;
        ports.iter().try_for_each(|port| observer.add_port(*port))?;
        pids.iter().try_for_each(|pid| observer.add_process(*pid))?;
        Ok(observer)
    }

    /// Observes a port, too.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn add_port(&mut self, port: ServerPort) -> Result<(), AttachError> {
        let key = u64::from(port.namespace) << 16 | u64::from(port.port);
        let mut ports: HashMap<_, u64, u64> =
            HashMap::try_from(self.map_mut("ports")).map_err(load_error)?;
        ports.insert(key, 1, 0).map_err(load_error)?;
        self.expect_port(port.port)
    }

    /// Sockets with this local port may be the server's; 0 stands for Unix sockets.
    fn expect_port(&mut self, port: u16) -> Result<(), AttachError> {
        let mut known: Array<_, u8> =
            Array::try_from(self.map_mut("local_ports")).map_err(load_error)?;
        known.set(u32::from(port), 1, 0).map_err(load_error)
    }

    /// Observes a Unix socket which listens, too. Those of its connections that are older are not seen before
    /// another client connects.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn add_listener(&mut self, inode: u64) -> Result<(), AttachError> {
        self.see_unix()?;
        let mut listeners: HashMap<_, u64, u64> =
            HashMap::try_from(self.map_mut("listeners")).map_err(load_error)?;
        listeners.insert(inode, 1, 0).map_err(load_error)
    }

    /// Observes Unix sockets too, from when the server accepts its first client there. Costs each call of the
    /// system some nanoseconds.
    ///
    /// # Errors
    ///
    /// The kernel refused to write a map. That it refused the program is in [`RequestObserver::visibility`].
    pub fn see_unix(&mut self) -> Result<(), AttachError> {
        if self.sees_unix {
            return Ok(());
        }
        self.sees_unix = true;
        let types = std::fs::read(tracepoints::KERNEL_TYPES).unwrap_or_default();
        let mut missing = load::missing_structures(&types);
        if missing.is_empty() {
            missing = tracepoints::attach(&mut self.ebpf, load::UNIX)?.missing;
        }
        if !missing.is_empty() {
            self.visibility.missing.extend(missing);
            return Ok(());
        }
        self.expect_port(0)?;
        self.control(SEES_UNIX, 1)
    }

    /// Observes a process, too: one that was forked before the observation was complete.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn add_process(&mut self, pid: u32) -> Result<(), AttachError> {
        let mut targets: HashMap<_, u32, u64> =
            HashMap::try_from(self.map_mut("targets")).map_err(load_error)?;
        targets.insert(pid, 1, 0).map_err(load_error)
    }

    /// The processes that are observed now.
    pub fn processes(&self) -> Vec<u32> {
        let targets = HashMap::<_, u32, u64>::try_from(self.map("targets"));
        let mut pids: Vec<u32> = targets
            .map(|targets| targets.keys().filter_map(Result::ok).collect())
            .unwrap_or_default();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The ports that are observed now.
    pub fn ports(&self) -> Vec<u16> {
        let ports = HashMap::<_, u64, u64>::try_from(self.map("ports"));
        let mut ports: Vec<u16> = ports
            .map(|ports| ports.keys().filter_map(Result::ok).collect::<Vec<u64>>())
            .unwrap_or_default()
            .into_iter()
            // Others are names of Unix sockets.
            .filter(|key| *key < 1 << 48)
            .map(|key| key as u16)
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// From now on observes one in about 2^`halvings` connections, each of them with all of its requests. At least
    /// one of those that are known stays.
    ///
    /// # Errors
    ///
    /// The kernel refused to write a map.
    pub fn sample(&mut self, halvings: u32) -> Result<(), AttachError> {
        let known: Vec<(u64, u32)> = {
            let connections: HashMap<_, u64, [u64; CONNECTION_WORDS]> =
                HashMap::try_from(self.map("connections")).map_err(load_error)?;
            let known = connections.iter().filter_map(Result::ok);
            known
                .map(|(address, words)| (address, sample::hash(words[16])))
                .collect()
        };
        let hashes: Vec<u32> = known.iter().map(|(_, hash)| *hash).collect();
        self.sample = self.sample.narrowed(halvings, &hashes);
        self.control(SAMPLE, self.sample.word())?;
        let sample = self.sample;
        let mut connections: HashMap<_, u64, [u64; CONNECTION_WORDS]> =
            HashMap::try_from(self.map_mut("connections")).map_err(load_error)?;
        for (address, _) in known.into_iter().filter(|(_, hash)| !sample.has(*hash)) {
            // It may have ended.
            let _ = connections.remove(&address);
        }
        Ok(())
    }

    /// Whether the ends of calls can be left out for a while: neither the beginnings of requests nor Unix sockets
    /// are seen by them.
    pub fn can_leave_out_calls(&self) -> bool {
        self.calls.is_some() && !self.heads && !self.sees_unix
    }

    /// Sees the ends of calls, or not. They cost each call of the system some time. Without them it is not known when
    /// connections are accepted, so the first request of a new connection is left out. Ready events, turns of loops and
    /// failed calls are not known either.
    ///
    /// # Errors
    ///
    /// The kernel refused it.
    pub fn see_calls(&mut self, on: bool) -> Result<(), AttachError> {
        let Some(calls) = self.calls.as_mut().filter(|calls| calls.is_on() != on) else {
            return Ok(());
        };
        (calls.switch(&mut self.ebpf, on)).map_err(|why| AttachError::Tracepoint {
            tracepoint: "sys_exit",
            why,
        })?;
        self.control(CALLS_SINCE, if on { monotonic_ns() } else { 0 })?;
        match on {
            true => Ok(()),
            false => self.forget_unaccepted(),
        }
    }

    /// Forgets connections that are not accepted yet: their accept will not be seen.
    fn forget_unaccepted(&mut self) -> Result<(), AttachError> {
        let mut connections: HashMap<_, u64, [u64; CONNECTION_WORDS]> =
            HashMap::try_from(self.map_mut("connections")).map_err(load_error)?;
        let waiting: Vec<u64> = (connections.iter().filter_map(Result::ok))
            .filter(|(_, words)| words[4] != 0 && words[5] == 0 && words[8] == 0)
            .map(|(address, _)| address)
            .collect();
        for address in waiting {
            let _ = connections.remove(&address);
        }
        Ok(())
    }

    fn control(&mut self, number: u32, value: u64) -> Result<(), AttachError> {
        let mut control: Array<_, u64> =
            Array::try_from(self.map_mut("control")).map_err(load_error)?;
        control.set(number, value, 0).map_err(load_error)
    }

    /// Connections that were observed.
    pub fn connections(&self) -> u64 {
        self.control_of(CONNECTIONS)
    }

    /// Connections over TCP that were established, whether they are observed or not.
    pub fn established(&self) -> u64 {
        self.control_of(ESTABLISHED)
    }

    fn control_of(&self, number: u32) -> u64 {
        let control = Array::<_, u64>::try_from(self.map("control"));
        let value = control.and_then(|control| control.get(&number, 0));
        value.unwrap_or_default()
    }

    /// Passes on what has come since the last time. Never waits; call it several times per second,
    /// lest the ring buffer overflow. Returns the number of events.
    pub fn poll(&mut self, mut take: impl FnMut(ServerEvent)) -> u64 {
        let mut taken = 0;
        while let Some(event) = self.events.next().map(|item| RawEvent::of(&item)) {
            let event = match event {
                Some(RawEvent::Request(request)) => ServerEvent::Request(request),
                Some(RawEvent::Response(response)) => ServerEvent::Response(response),
                Some(RawEvent::OffCpu(raw)) => ServerEvent::OffCpu(self.off_cpu(raw)),
                Some(RawEvent::Head(head)) => ServerEvent::Head(head),
                Some(RawEvent::Status(status)) => ServerEvent::Status(status),
                None => continue,
            };
            taken += 1;
            take(event);
        }
        taken
    }

    fn off_cpu(&mut self, raw: RawOffCpu) -> OffCpu {
        let by_name = raw.call.and_then(load::label_of_call);
        let named = |label: Label| Reason {
            label,
            ..Reason::default()
        };
        let reason = match (raw.woken_ns, by_name) {
            (None, _) => named(Label::Unknown),
            (_, Some(label)) => named(label),
            (Some(_), None) => self.reasons.of_sleep(&self.ebpf, raw.stack),
        };
        let waker = raw.waker.and_then(|waker| {
            let functions = self.reasons.of_waker(&self.ebpf, raw.waker_stack)?;
            Some(Waker { functions, ..waker })
        });
        OffCpu {
            thread: raw.thread,
            call: raw.call,
            start_ns: raw.start_ns,
            woken_ns: raw.woken_ns,
            end_ns: raw.end_ns,
            label: reason.label,
            symbol: reason.symbol,
            within: reason.within,
            waiters: raw.waiters,
            connection: raw.connection,
            waker,
            file: raw.file,
        }
    }

    /// What keeps a thread off the CPU now, with the present as its end; `None` if it runs.
    pub fn off_cpu_now(&mut self, thread: Thread) -> Option<OffCpu> {
        let activities = HashMap::<_, u32, ActivityWords>::try_from(self.map("activities")).ok()?;
        let words = activities.get(&thread.tid, 0).ok()?;
        let [off_ns, asleep, _, event @ ..] = words;
        let mut raw = RawOffCpu::of(&event);
        if off_ns == 0 || raw.thread != thread {
            return None;
        }
        raw.end_ns = monotonic_ns();
        raw.woken_ns = raw.woken_ns.or((asleep != 0).then_some(raw.end_ns));
        Some(self.off_cpu(raw))
    }

    /// The responses under way, of connections that are open.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn open_responses(&self) -> Result<Vec<OpenResponse>, AttachError> {
        let connections: HashMap<_, u64, [u64; CONNECTION_WORDS]> =
            HashMap::try_from(self.map("connections")).map_err(load_error)?;
        let mut open = Vec::new();
        for entry in connections.iter() {
            let Ok((_, words)) = entry else { continue };
            if words[11] != 0 {
                open.push(OpenResponse {
                    connection: words[0],
                    sequence: words[1],
                    last_written_ns: words[12],
                    drained_ns: (words[13] != 0).then_some(words[13]),
                    written_bytes: words[15],
                });
            }
        }
        Ok(open)
    }

    /// How many connections are open.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn open_connections(&self) -> Result<usize, AttachError> {
        let connections: HashMap<_, u64, [u64; CONNECTION_WORDS]> =
            HashMap::try_from(self.map("connections")).map_err(load_error)?;
        Ok(connections.keys().filter_map(Result::ok).count())
    }

    /// Requests of open connections that have arrived and have no answer: how many, and since when
    /// the oldest one waits.
    ///
    /// # Errors
    ///
    /// The kernel refused to read a map.
    pub fn waiting(&self) -> Result<(u64, Option<u64>), AttachError> {
        let connections: HashMap<_, u64, [u64; CONNECTION_WORDS]> =
            HashMap::try_from(self.map("connections")).map_err(load_error)?;
        let since = connections
            .iter()
            .filter_map(Result::ok)
            .filter_map(|(_, words)| {
                let [queued_ns, arrived_ns] = [words[6], words[7]];
                let since_ns = if arrived_ns != 0 {
                    arrived_ns
                } else {
                    queued_ns
                };
                (words[11] == 0 && since_ns != 0).then_some(since_ns)
            });
        Ok(since.fold(
            (0, None),
            |(count, oldest): (u64, Option<u64>), since_ns| {
                let oldest = oldest.map_or(since_ns, |oldest| oldest.min(since_ns));
                (count + 1, Some(oldest))
            },
        ))
    }

    /// How many waits for events returned 0, 1, 2 to 3, 4 to 7, … ready events.
    pub fn ready_events(&self) -> [u64; READY_BUCKETS] {
        self.counts("ready")
    }

    /// How many turns of event loops took 2^N ns or more, but less than twice that. A turn is the time between two
    /// waits for events.
    pub fn turns(&self) -> [u64; TURN_BUCKETS] {
        self.counts("turns")
    }

    /// Sums over all CPUs.
    fn counts<const N: usize>(&self, map: &str) -> [u64; N] {
        let mut sums = [0; N];
        if let Ok(map) = PerCpuArray::<_, u64>::try_from(self.map(map)) {
            for (bucket, sum) in sums.iter_mut().enumerate() {
                let counts = map.get(&(bucket as u32), 0);
                *sum = counts.map_or(0, |counts| counts.iter().sum());
            }
        }
        sums
    }

    /// Calls that failed for lack of space, descriptors or memory, or with an error of the disk.
    pub fn failures(&self) -> Vec<FailedCall> {
        let failures = HashMap::<_, u64, FailureWords>::try_from(self.map("failures"));
        let mut failed: Vec<FailedCall> = failures
            .map(|failures| {
                failures
                    .iter()
                    .filter_map(Result::ok)
                    .map(FailedCall::of)
                    .collect()
            })
            .unwrap_or_default();
        failed.sort_by_key(|failed| (std::cmp::Reverse(failed.count), failed.call));
        failed
    }

    /// What this kernel keeps from the observer.
    pub fn visibility(&self) -> &Visibility {
        &self.visibility
    }

    /// What could not be reported up to now: [`Lost::records`] are events, [`Lost::threads`] and
    /// [`Lost::connections`] are beyond the limits.
    pub fn lost(&self) -> Lost {
        lost_of(&self.ebpf)
    }

    fn map(&self, name: &str) -> &aya::maps::Map {
        self.ebpf.map(name).expect("the object has this map")
    }

    fn map_mut(&mut self, name: &str) -> &mut aya::maps::Map {
        self.ebpf.map_mut(name).expect("the object has this map")
    }
}

impl std::fmt::Debug for RequestObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("RequestObserver"))
            .field("visibility", &self.visibility)
            .finish_non_exhaustive()
    }
}
