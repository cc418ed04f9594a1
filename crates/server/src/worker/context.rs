//! What every stage of a request may use: clocks, events, the tracer, the counters, the helpers, the
//! configuration, and the way to send bytes.
//!
//! The stages own their state and get this context as an argument. So none of them depends on the
//! worker, which composes them.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headway_accept::Reserve;
use headway_base::random::{Draw, Random};
use headway_config::{Config, ErrorLevel, HandlerConfig};
use headway_connection::{Connection, ConnectionTable, Next};
use headway_control::{Control, FromWorker};
use headway_event::{Clock, Deadlines, Events, Interest, Token};
use headway_files::{KnownFile, Pool, Residency, RootId};
use headway_gateway::{ALL_56, TraceContext};
use headway_http::{Head, HeadLimits};
use headway_lookup::{LookupContext, VirtualHosts};
use headway_metrics::calls::{Call, Tracer};
use headway_metrics::{Counters, RequestDurations, RequestStage, Snapshot};
use headway_request::{Entry, Request, Requests};
use headway_respond::handlers::Routes;
use headway_respond::{Date, ResponseContext, ResponseSettings};
use headway_tls::RECORD_BYTES_MAX;

use super::buffers::BufferRoom;
use super::http2::shares::Shares;
use super::http2::suspects::Suspects;
use super::log::Log;
use super::messages::MessageLimit;
use super::sending::Sender;
use super::spans::Spans;
use super::tls::{RAW_BYTES, Tls};

/// The parts of a worker that its stages share.
pub(super) struct LoopContext {
    pub config: Box<Config>,
    /// The channel to the master.
    pub control: Control,
    pub events: Events,
    pub tracer: Tracer,
    pub counters: Counters,
    pub clock: Clock,
    /// The time at the start of the iteration.
    pub now_ms: u64,
    /// The same in microseconds.
    pub now_us: u64,
    pub date: Date,
    /// The time of day at the start of the iteration, in milliseconds since the epoch.
    pub unix_ms: i64,
    pub limits: HeadLimits,
    pub connections: ConnectionTable,
    pub deadlines: Deadlines,
    /// Requests to be used again.
    pub requests: Requests,
    pub hosts: Rc<VirtualHosts>,
    /// The locations with handlers; empty without such locations.
    pub routes: Rc<Routes>,
    pub response_settings: ResponseSettings,
    pub residency: Residency,
    pub pool: Pool,
    pub sender: Sender,
    pub log: Option<Log>,
    /// How many messages about requests there may still be.
    pub message_limit: MessageLimit,
    /// Spans for the span process, with `otlp-endpoint`.
    pub spans: Option<Spans>,
    /// The source of trace and request IDs, with `trace-context`.
    pub trace_random: Option<Random>,
    /// The room for bodies and responses that wait.
    pub buffers: BufferRoom,
    /// The buffer into which requests are received; a connection stores only unconsumed input.
    pub scratch: Vec<u8>,
    /// TLS, if there are listeners that speak it.
    pub tls: Option<Tls>,
    /// The buffer into which records are received.
    pub raw: Vec<u8>,
    /// The buffer in which records are sealed.
    pub sealed: Vec<u8>,
    /// Time of cryptography in this stage of the turn.
    pub crypto_ns: u64,
    /// Time of sending long parts in this stage of the turn, without cryptography.
    pub sending_us: u64,
    /// The buffer for messages of the handshake process.
    pub handshake_buffer: Vec<u8>,
    /// Connections whose write quantum was used up; they run again after the events of the next
    /// iteration.
    pub run_queue: Vec<Token>,
    /// HTTP/2 connections, and their streams that have taken a step or have ended.
    pub sessions_due: Vec<(Token, Token)>,
    /// The number of HTTP/2 requests per address.
    pub http2_shares: Shares,
    /// The HTTP/2 clients that are served last.
    pub suspects: Suspects,
    /// What happens to connections of which a handler has taken a step on its own.
    pub settled: Vec<(Token, Next)>,
    /// Descriptors that accepting holds back for lookups.
    pub reserve: Reserve,
    /// A lookup has met a shortage of descriptors: accepting must pause.
    pub descriptors_short: bool,
    /// Descriptors have run out, so cached files should be closed.
    pub evict_files: bool,
    /// Descriptors have run out, so idle connections should close.
    pub evict_idle: bool,
    /// Clients wait because there is no room for their connections.
    pub clients_wait: bool,
    /// When the worker ends, if it is draining.
    pub draining_until_ms: Option<u64>,
    /// How the process is confined before it serves; `None` is not at all.
    pub sandbox: Option<headway_sandbox::Demand>,
    /// The master keeps the directories of this worker.
    pub sends_directories: bool,
    /// How long idle connections may then still wait for a request.
    pub drain_idle_ms: u64,
}

/// What a worker opens for its context before it serves.
pub(super) struct Opened {
    pub events: Events,
    pub hosts: VirtualHosts,
    pub routes: Routes,
    pub pool: Pool,
    pub sender: Sender,
    pub log: Option<Log>,
    pub tls: Option<Tls>,
    pub reserve: Reserve,
}

/// The precision of connection deadlines. A coarse tick keeps scans of the table rare.
const DEADLINE_TICK: Duration = Duration::from_millis(256);

/// The kernel's clock for files lags by up to a tick, which is 10 ms at the most (`CONFIG_HZ`).
const FILE_CLOCK_TICK_MS: i64 = 10;

/// How long `stall-every` blocks the loop.
const STALL: Duration = Duration::from_millis(1);

impl LoopContext {
    /// The context of a worker that has opened these.
    pub fn new(config: Box<Config>, control: Control, opened: Opened) -> LoopContext {
        let clock = Clock::monotonic();
        let unix_ms = unix_ms();
        // A record is opened as a whole.
        let text_bytes = match opened.tls {
            Some(_) => RECORD_BYTES_MAX,
            None => 0,
        };
        LoopContext {
            control,
            events: opened.events,
            tracer: Tracer::disabled(),
            counters: Counters {
                request_durations: RequestDurations::new(&config.hosts),
                ..Counters::default()
            },
            now_ms: clock.now_ms(),
            now_us: clock.now_us(),
            clock,
            date: Date::new(unix_ms.div_euclid(1000)),
            unix_ms,
            limits: HeadLimits {
                head_bytes_max: config.max_header_bytes,
                target_bytes_max: config.max_target_bytes,
                ..HeadLimits::default()
            },
            connections: ConnectionTable::default(),
            deadlines: Deadlines::new(DEADLINE_TICK),
            requests: Requests::default(),
            hosts: Rc::new(opened.hosts),
            routes: Rc::new(opened.routes),
            response_settings: ResponseSettings::new(&config),
            residency: Residency::detect(),
            pool: opened.pool,
            sender: opened.sender,
            log: opened.log,
            message_limit: MessageLimit::default(),
            spans: config.otlp.is_some().then(Spans::new),
            trace_random: config.trace_context.then(random),
            buffers: BufferRoom::new(&config),
            // Room for a buffered partial header and as much again, so that receiving always makes
            // progress.
            scratch: vec![0; 2 * config.max_header_bytes + text_bytes],
            raw: vec![0; if opened.tls.is_some() { RAW_BYTES } else { 0 }],
            sealed: Vec::new(),
            crypto_ns: 0,
            sending_us: 0,
            handshake_buffer: Vec::new(),
            tls: opened.tls,
            run_queue: Vec::new(),
            sessions_due: Vec::new(),
            http2_shares: Shares::new(config.max_connections),
            suspects: Suspects::default(),
            settled: Vec::new(),
            reserve: opened.reserve,
            descriptors_short: false,
            evict_files: false,
            evict_idle: false,
            clients_wait: false,
            draining_until_ms: None,
            sandbox: None,
            sends_directories: false,
            drain_idle_ms: 0,
            config,
        }
    }

    /// Reads the clocks, once per iteration. Returns the time in microseconds.
    pub fn tick(&mut self) -> u64 {
        let now_us = self.clock.now_us();
        (self.now_ms, self.now_us) = (now_us / 1000, now_us);
        self.unix_ms = unix_ms();
        let second = self.unix_ms.div_euclid(1000);
        if second != self.date.second {
            self.date = Date::new(second);
        }
        now_us
    }

    /// Registers a connection for `interest`, unless it is already registered so.
    pub fn watch(&mut self, connection: &mut Connection, interest: Interest) {
        if connection.interest == Some(interest) {
            return;
        }
        if connection.stream.is_some() {
            connection.interest = Some(interest);
            return;
        }
        let socket = connection.socket.as_fd();
        let registered = self
            .tracer
            .call(Call::EventControl, || match connection.interest {
                None => self.events.add(socket, connection.token, interest),
                Some(_) => self.events.modify(socket, connection.token, interest),
            });
        match registered {
            Ok(()) => connection.interest = Some(interest),
            // Out of memory or watches: this connection's deadline will end it.
            Err(error) => self.notice(
                ErrorLevel::Error,
                format!("cannot watch a connection: {error}"),
            ),
        }
    }

    /// Puts the connection into the run queue, behind the others.
    pub fn queue_turn(&mut self, connection: &mut Connection) {
        if !connection.is_queued {
            connection.is_queued = true;
            match connection.is_suspect() {
                true => self.suspects.waiting.push_back(connection.token),
                false => self.run_queue.push(connection.token),
            }
        }
    }

    /// Puts a connection back after a step. What it has received already is handled as if it arrived
    /// now, since no event comes for it.
    pub fn put_back(&mut self, slot: usize, mut connection: Box<Connection>) {
        let reads = matches!(connection.interest, Some(Interest::READ | Interest::BOTH));
        if reads && connection.has_unread() {
            self.queue_turn(&mut connection);
        }
        if let Some(of) = &connection.stream {
            self.sessions_due.push((of.parent, connection.token));
        }
        self.connections.put_back(slot, connection, self.now_ms);
    }

    /// Watches for a disconnect while a helper works, so that the slot of a client that gives up
    /// becomes free. A client that only closes its sending side may still want the response.
    pub fn watch_for_disconnect(&mut self, connection: &mut Connection) {
        if connection.interest.is_none() {
            self.watch(connection, Interest::READ);
        }
    }

    /// Sets the deadline of a connection to `timeout_ms` from now.
    pub fn set_timeout(&mut self, connection: &Connection, timeout_ms: u64) {
        self.deadlines
            .set(connection.slot(), self.now_ms + timeout_ms);
    }

    /// Whether the file of an entry was last checked after the second of its modification time. Before,
    /// it may have been written again with the same time.
    pub fn is_settled(&self, entry: &Entry, file: &KnownFile) -> bool {
        let age_ms = self.now_ms.saturating_sub(entry.seen_ms.get());
        let seen_ms = self.unix_ms.saturating_sub_unsigned(age_ms) - FILE_CLOCK_TICK_MS;
        file.meta().modified.0 < seen_ms.div_euclid(1000)
    }

    /// Whether this second is over for the clock of the files: nothing is modified in it any more.
    pub fn is_over(&self, second: i64) -> bool {
        second < (self.unix_ms - FILE_CLOCK_TICK_MS).div_euclid(1000)
    }

    /// Sends a snapshot to the master.
    pub fn send_snapshot(&self, id: u64, snapshot: Box<Snapshot>) {
        // If the channel is full, the master's request times out and it asks again.
        let _ = self.tracer.call(Call::ControlSend, || {
            self.control
                .try_send(&FromWorker::Snapshot { id, snapshot }, &[])
        });
    }

    /// Tells the master that the loop makes progress.
    pub fn send_pong(&self) {
        // If the channel is full, the master reads it first and has a sign of progress.
        let _ = self.tracer.call(Call::ControlSend, || {
            self.control.try_send(&FromWorker::Pong, &[])
        });
    }

    /// What a lookup in the file cache needs.
    pub fn lookup_context(&mut self) -> LookupContext<'_> {
        LookupContext {
            now_ms: self.now_ms,
            tracer: &self.tracer,
            counters: &mut self.counters,
        }
    }

    /// The limits of a request header on this connection.
    pub fn limits_of(&self, connection: &Connection) -> HeadLimits {
        HeadLimits {
            is_secure: connection.is_secure,
            is_http2: connection.stream.is_some(),
            ..self.limits
        }
    }

    /// The virtual hosts, shared so that one can be borrowed while the context is used.
    pub fn hosts(&self) -> Rc<VirtualHosts> {
        self.hosts.clone()
    }

    /// Whether a path belongs to a handler other than files.
    pub fn is_for_handler(&self, request: &Request, path: &[u8]) -> bool {
        let site = self.hosts.get(request.virtual_host);
        let route = self.routes.find(site, path);
        route.is_some_and(|route| !matches!(route.location.handler, HandlerConfig::Files))
    }

    /// The request with this header, which stands at the start of `received`. Its first byte came to
    /// this listener at `started_us`.
    pub fn make_request(
        &mut self,
        head: &Head<'_>,
        received: &[u8],
        (listener, started_us): (u32, u64),
    ) -> Box<Request> {
        self.counters.requests_received += 1;
        let host = self.hosts.find_for(listener, head.host, head.target).root;
        let mut request = self.requests.make(head, received, host);
        request.started_us = started_us;
        request
    }

    /// The trace of a request on this connection, if there is one.
    pub fn trace_of(
        &mut self,
        connection: &Connection,
        head: &Head<'_>,
        received: &[u8],
    ) -> Option<TraceContext> {
        let random = self.trace_random.as_mut()?;
        let request = headway_gateway::Request::new(head, received);
        let is_trusted = connection.has_trusted_sender();
        let random = [(); 3].map(|()| random.next_u64());
        let otlp = self.config.otlp.as_ref();
        let sampled_56 = otlp.map_or(ALL_56, |otlp| otlp.sampling.threshold_56());
        Some(TraceContext::new(&request, is_trusted, random, sampled_56))
    }

    /// When the first byte of the request came whose header is handled now.
    pub fn first_byte_us(&self, connection: &Connection) -> u64 {
        match connection.header_partial {
            true => connection.header_since_us,
            false => self.now_us,
        }
    }

    /// The response of a request begins. What could not be parsed has been in no stage before.
    pub fn enter_send(&self, connection: &mut Connection, request: &Request) {
        let now_us = self.clock.now_us();
        if !request.is_parsed() {
            connection.stages.begin(now_us);
        }
        connection.stages.enter(RequestStage::Send, now_us);
    }

    /// Accounts for a response that was just finished or aborted: its duration and its log line.
    pub fn end_request(&mut self, connection: &Connection, request: &Request) {
        let now_us = self.clock.now_us();
        let duration_us = now_us.saturating_sub(request.started_us);
        let of_stream = connection.stream.as_ref().and_then(|of| of.stream.status());
        let status = of_stream.unwrap_or(connection.outgoing.status);
        let mut stages = connection.stages;
        stages.end(now_us);
        // As in the number of requests by status, one without a byte of a response does not count.
        if connection.outgoing.sent_bytes > 0 {
            let (host, handler) = (request.virtual_host.0, request.handler);
            let durations = &mut self.counters.request_durations;
            durations.record(host, handler, status, duration_us);
            self.counters.request_stages.record(&stages);
            self.write_span((connection, &stages), request, (status, duration_us));
        }
        self.report_end(connection, request, (status, duration_us));
        self.write_log(connection, request, (status, duration_us), &stages);
    }

    /// Blocks the loop at one of many requests if `stall-every` asks for it, as a slow call does
    /// that is too rare for a profiler (dissertation, 2.2).
    pub fn stall_if_due(&self) {
        let received = self.counters.requests_received;
        if let Some(every) = self.config.research.stall_every
            && received.is_multiple_of(every.get().into())
        {
            self.tracer.call(Call::Stall, || std::thread::sleep(STALL));
        }
    }

    /// Whether the connection may stay open after the response.
    pub fn keeps_alive(&self, connection: &Connection, request: &Request) -> bool {
        let most = self.config.max_requests_per_connection;
        request.head.keeps_alive()
            && self.draining_until_ms.is_none()
            && !self.clients_wait
            && !connection.must_end()
            && (most == 0 || connection.requests + 1 < most)
    }

    /// What a response to `head` depends on besides the file.
    pub fn response_context<'w>(
        &'w self,
        head: &Head<'w>,
        host: RootId,
        connection: &Connection,
    ) -> ResponseContext<'w> {
        let settings = &self.response_settings;
        ResponseContext {
            origin: connection.origin.clone(),
            timing: (self.config.server_timing)
                .then(|| connection.stages.server_timing(self.clock.now_us())),
            ..ResponseContext::new(settings, &self.date, head, host, connection.keep_alive)
        }
    }
}

/// Numbers of a seed that no other worker has. IDs have to be unique, not secret.
fn random() -> Random {
    Random::new(RandomState::new().hash_one(std::process::id()))
}

fn unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}
