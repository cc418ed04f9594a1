//! The open-file service: opens files for the processes of a server that would otherwise wait for
//! the disk.
//!
//! What it does: accepts clients on a Unix socket, answers from a file cache that they share, has
//! helpers do what may block, joins equal requests of different clients, and reads the beginning of
//! a file into memory before it answers. It pins small files there. Its loop never blocks except
//! for events. What it refuses: users that are not allowed, and paths outside its roots (the kernel
//! confines every walk). Its answer makes the client's next open fast and says nothing about the
//! file: the client opens it itself, with its own rights (`clients/headway_open.c`), so nobody
//! gains a right through the service, whatever user it runs as.
//!
//! There are limits of clients, requests per client, jobs, cache entries, descriptors and bytes to
//! read. At each limit the client gets `busy`, or its connection is closed, and it opens the file
//! itself.
//!
//! Sources: Flashpache's backend (2006 paper, section 5.1; dissertation 3.5.1), unix(7).

mod clients;
mod finder;
mod listen;
mod remote;
mod statistics;
pub mod wire;

pub use listen::ListenError;
pub use remote::Remote;
pub use statistics::ServiceStatistics;

use crate::file_cache::FileCacheLimits;
use crate::pinner::{PinLimits, Pinner};
use crate::pool::{Done, HelperSlot, PoolLimits, SlotState};
use crate::root::RootError;
use clients::{ClientState, Clients};
use finder::{Finder, Progress};
use headway_event::{Clock, Events, Interest, Mechanism, Ready, Token};
use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors};
use listen::Listener;
use remote::{Command, Commands};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use wire::{Answered, ClientReply, ParsedRequest, REQUEST_BYTES_MAX, decode_request};

const LISTENER: u8 = 1;
const CLIENT: u8 = 2;
const HELPER: u8 = 3;
const COMMANDS: u8 = 4;

/// Limits per loop iteration of accepted clients, and of requests from one client.
const ACCEPT_BATCH: usize = 64;
const REQUEST_BATCH: usize = 8;
/// Pause of accepting when there are no descriptors, and of requesting helpers when one could not
/// be started.
const PAUSE_MS: u64 = 100;

/// The configuration of the service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Where clients connect.
    pub socket: PathBuf,
    /// Absolute directories; only what lies below one of them is opened.
    pub roots: Vec<PathBuf>,
    /// Users who may connect.
    pub users: Vec<u32>,
    /// Groups whose members may connect.
    pub groups: Vec<u32>,
    /// Limit of clients; another one is disconnected at once.
    pub connections_max: usize,
    /// A client that does not receive an answer for this long is disconnected.
    pub send_timeout: Duration,
    /// Bytes of a file that a client may have read in.
    pub prefetch_max: u64,
    /// How much of small files is pinned after a client had to wait for them, as far as
    /// RLIMIT_MEMLOCK allows ([`pinnable_bytes`](crate::pinnable_bytes)).
    pub pin: PinLimits,
    /// An answer is compared with the directory again when it is older.
    pub revalidate: Duration,
    /// Limits of the file cache.
    pub file_cache: FileCacheLimits,
    /// The helpers.
    pub helpers: PoolLimits,
}

/// The service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A root cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A call of the loop's own failed.
    #[error("the service's loop: {0}")]
    Loop(#[from] io::Error),
}

/// The service: created, then run until it is stopped.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
/// use headway_files::service::{Service, ServiceConfig};
/// use headway_files::{FileCacheLimits, PinLimits, PoolLimits};
///
/// let config = ServiceConfig {
///     socket: "/run/open-files.sock".into(),
///     roots: vec!["/srv/www".into()],
///     users: vec![33],
///     groups: vec![],
///     connections_max: 1000,
///     send_timeout: Duration::from_secs(10),
///     prefetch_max: 1 << 20,
///     pin: PinLimits { bytes_max: 64 << 20, available: || None },
///     revalidate: Duration::from_secs(1),
///     file_cache: FileCacheLimits { entries_max: 10_000, descriptors_max: 1000 },
///     helpers: PoolLimits::default(),
/// };
/// // The caller starts helpers when the service wants more, and attaches them by `remote`.
/// let (service, remote) = Service::new(config, Box::new(|count| println!("{count} helpers, please")))?;
/// std::thread::spawn(move || {
///     std::thread::sleep(Duration::from_secs(60));
///     remote.stop();
/// });
/// service.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Service {
    config: ServiceConfig,
    listener: Listener,
    /// Accepting rests until then.
    paused_until_ms: Option<u64>,
    /// A spare descriptor. It is closed when descriptors run out, to accept and disconnect waiting
    /// clients.
    reserve_fd: Option<OwnedFd>,
    events: Events,
    clock: Clock,
    now_ms: u64,
    clients: Clients,
    finder: Finder,
    commands: Commands,
    want_helpers: Box<dyn FnMut(usize)>,
    /// The number of attached helpers; then of requested ones.
    helpers: usize,
    helpers_requested: usize,
    helpers_paused_until_ms: u64,
    helper_died_ms: Option<u64>,
    done: Vec<Done>,
    statistics: ServiceStatistics,
    message: Vec<u8>,
    stopping: bool,
}

impl Service {
    /// Opens the roots and listens. `want_helpers` is called on the loop with a number of helpers
    /// to start, and must not block. Their sockets are passed to [`Remote::helper`].
    ///
    /// # Errors
    /// [`ServiceError`]; nothing is left behind.
    pub fn new(
        config: ServiceConfig,
        want_helpers: Box<dyn FnMut(usize)>,
    ) -> Result<(Service, Remote), ServiceError> {
        let finder = finder(&config)?;
        let (commands, remote) = remote::channel()?;
        let mut events = Events::new(Mechanism::Epoll)?;
        let listener = Listener::bind(&config.socket)?;
        let token = Token::new(LISTENER, 0, 0);
        events.add(listener.socket.as_fd(), token, Interest::READ)?;
        events.add(commands.as_fd(), Token::new(COMMANDS, 0, 0), Interest::READ)?;
        let service = Service {
            clients: Clients::new(CLIENT, config.send_timeout),
            config,
            listener,
            paused_until_ms: None,
            reserve_fd: open_reserve_fd(),
            events,
            clock: Clock::monotonic(),
            now_ms: 0,
            finder,
            commands,
            want_helpers,
            helpers: 0,
            helpers_requested: 0,
            helpers_paused_until_ms: 0,
            helper_died_ms: None,
            done: Vec::new(),
            statistics: ServiceStatistics::default(),
            // One more byte, so that a longer message is noticed.
            message: vec![0; REQUEST_BYTES_MAX + 1],
            stopping: false,
        };
        Ok((service, remote))
    }

    /// Opens the roots again, with the rights that this process has now.
    ///
    /// # Errors
    /// A root that cannot be opened.
    pub fn reopen_roots(&mut self) -> Result<(), RootError> {
        self.finder = finder(&self.config)?;
        Ok(())
    }

    /// Serve until [`Remote::stop`], or until every [`Remote`] has gone.
    ///
    /// # Errors
    /// When waiting for events fails, which nothing cures; when no thread can be started.
    pub fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        // Not earlier: how much may be locked depends on the user that the process has become.
        self.finder.pinner = Pinner::start(self.config.pin)?;
        self.update_helpers();
        while !self.stopping {
            self.events.wait(&mut ready, self.send_timeout())?;
            self.now_ms = self.clock.now_ms();
            for event in &ready {
                self.dispatch(event);
            }
            self.deliver();
            for token in self.clients.stalled(self.now_ms) {
                self.statistics.stalled += 1;
                self.close(token);
            }
            self.finder.maintain(self.now_ms);
            self.finder.pool.flush(self.now_ms);
            self.update_helpers();
            self.resume_accepting();
        }
        Ok(())
    }

    fn send_timeout(&self) -> Option<Duration> {
        let rest =
            (self.helpers_paused_until_ms > self.now_ms).then_some(self.helpers_paused_until_ms);
        let next = [
            self.finder.pool.next_ms(self.now_ms),
            self.finder.deleted_search_ms,
            self.clients.next_ms(),
            self.paused_until_ms,
            rest,
        ];
        let next = next.into_iter().flatten().min()?;
        Some(Duration::from_millis(next.saturating_sub(self.now_ms)))
    }

    fn dispatch(&mut self, event: &Ready) {
        match event.token.kind() {
            LISTENER => self.accept(),
            CLIENT => self.serve(event),
            HELPER => self.on_helper_ready(HelperSlot(event.token.slot())),
            _ => self.execute_commands(),
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            match accept_with(&self.listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.reject_waiting(),
            }
        }
    }

    /// Registers a client of an allowed user. Another one is disconnected: it sees the end of the
    /// connection and opens its files itself.
    fn admit(&mut self, socket: OwnedFd) {
        let allowed = headway_os::peer::peer(socket.as_fd()).is_ok_and(|peer| {
            self.config.users.contains(&peer.user)
                || peer
                    .groups
                    .iter()
                    .any(|group| self.config.groups.contains(group))
        });
        if !allowed {
            self.statistics.refused_user += 1;
        } else if self.clients.len() >= self.config.connections_max {
            self.statistics.refused_full += 1;
        } else if self.clients.insert(socket, &mut self.events).is_ok() {
            self.statistics.accepted += 1;
        }
    }

    /// Rejects waiting clients for want of a descriptor. The spare one is used to accept and
    /// disconnect one at a time, so that no client waits for an answer that does not come. The file
    /// cache closes some files.
    fn reject_waiting(&mut self) {
        self.finder.evict_descriptors();
        drop(self.reserve_fd.take());
        for _ in 0..ACCEPT_BATCH {
            if accept_with(&self.listener.socket, SocketFlags::CLOEXEC).is_err() {
                break;
            }
            self.statistics.refused_full += 1;
        }
        self.reserve_fd = open_reserve_fd();
        if self.reserve_fd.is_none() {
            self.paused_until_ms = Some(self.now_ms + PAUSE_MS);
            self.listen_for(Interest::NONE);
        }
    }

    fn resume_accepting(&mut self) {
        if self.paused_until_ms.is_some_and(|at| at <= self.now_ms) {
            self.paused_until_ms = None;
            self.reserve_fd = self.reserve_fd.take().or_else(open_reserve_fd);
            self.listen_for(Interest::READ);
        }
    }

    fn listen_for(&mut self, interest: Interest) {
        let token = Token::new(LISTENER, 0, 0);
        // It is registered, so this cannot fail for any reason that waiting would not show again.
        let _ = self
            .events
            .modify(self.listener.socket.as_fd(), token, interest);
    }

    fn serve(&mut self, event: &Ready) {
        let token = event.token;
        if self.clients.get(token).is_none() {
            return;
        }
        // Closed in both directions: an answer cannot be delivered.
        if event.hangup {
            return self.close(token);
        }
        if event.writable
            && self.clients.flush(token, self.now_ms, &mut self.events) == ClientState::Gone
        {
            return self.close(token);
        }
        if event.readable {
            for _ in 0..REQUEST_BATCH {
                match self.receive(token) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(Close) => return self.close(token),
                }
            }
        }
        if self.clients.heed(token, &mut self.events) == ClientState::Gone {
            self.close(token);
        }
    }

    /// Receives a request; `Ok(false)` if there is none, or no room for one.
    fn receive(&mut self, token: Token) -> Result<bool, Close> {
        let Some(client) = self.clients.get(token) else {
            return Ok(false);
        };
        if !client.has_room() {
            return Ok(false);
        }
        // Clients send no descriptors: a message with one is rejected, and the descriptor is
        // closed. (From Linux 6.16 on the kernel does that before it is sent; the last close of a
        // file or a socket may block.)
        let received = receive_with_descriptors(&client.socket, &mut self.message, 0, Wait::Never);
        let length = match received {
            Ok(None) => return Ok(false),
            Ok(Some(received)) if received.is_end() => return Err(Close),
            Ok(Some(received)) => received.length,
            Err(ReceiveError::Os(_)) => return Err(Close),
            Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. }) => {
                self.statistics.malformed += 1;
                return Err(Close);
            }
        };
        let message = std::mem::take(&mut self.message);
        let done = self.handle_request(token, &message[..length]);
        self.message = message;
        done.map(|()| true)
    }

    fn handle_request(&mut self, token: Token, message: &[u8]) -> Result<(), Close> {
        match decode_request(message) {
            Ok(ParsedRequest::Request(request)) => {
                self.statistics.requests += 1;
                match self.finder.begin(token, &request, self.now_ms) {
                    Progress::Answered(reply) => self.answer(token, reply),
                    Progress::Pending(id) => {
                        if let Some(client) = self.clients.get(token) {
                            client.requests.push(id);
                        }
                        Ok(())
                    }
                }
            }
            Ok(ParsedRequest::OtherVersion { number }) => {
                self.statistics.other_version += 1;
                let answered = Answered::Version;
                let reply = ClientReply { number, answered };
                let _ = self.answer(token, reply);
                Err(Close)
            }
            Err(_) => {
                self.statistics.malformed += 1;
                Err(Close)
            }
        }
    }

    fn answer(&mut self, token: Token, reply: ClientReply) -> Result<(), Close> {
        match reply.answered {
            Answered::Elsewhere => self.statistics.elsewhere += 1,
            Answered::Busy => self.statistics.busy += 1,
            // The finder counts what was done.
            Answered::Done | Answered::Version => {}
        }
        match self
            .clients
            .answer(token, reply, self.now_ms, &mut self.events)
        {
            ClientState::Alive => Ok(()),
            ClientState::Gone => Err(Close),
        }
    }

    fn close(&mut self, token: Token) {
        if let Some(client) = self.clients.remove(token, &mut self.events) {
            for id in &client.requests {
                self.finder.leave(*id);
            }
        }
    }

    fn on_helper_ready(&mut self, slot: HelperSlot) {
        if self.finder.pool.pid(slot).is_none() {
            return;
        }
        if self.finder.pool.on_ready(slot, self.now_ms, &mut self.done) == SlotState::Dead {
            self.detach_helper(slot);
            self.note_death();
        }
    }

    /// Tell the clients what helpers have found.
    fn deliver(&mut self) {
        let mut out = Vec::new();
        for done in std::mem::take(&mut self.done) {
            self.finder.resume(done, self.now_ms, &mut out);
        }
        for (token, id, reply) in out {
            if let Some(client) = self.clients.get(token) {
                client.requests.retain(|request| *request != id);
            }
            if self.answer(token, reply).is_err() {
                self.close(token);
            }
        }
    }

    /// A helper that dies is replaced at once. Where helpers die one after the other the next ones
    /// would, too.
    fn note_death(&mut self) {
        let soon = self
            .helper_died_ms
            .is_some_and(|before_ms| self.now_ms < before_ms + 2 * PAUSE_MS);
        if soon {
            self.helpers_paused_until_ms = self.now_ms + PAUSE_MS;
        }
        self.helper_died_ms = Some(self.now_ms);
    }

    fn detach_helper(&mut self, slot: HelperSlot) {
        let _ = self.events.remove(self.finder.pool.socket(slot));
        self.finder.pool.detach(slot);
        self.helpers -= 1;
    }

    fn update_helpers(&mut self) {
        while let Some(slot) = self.finder.pool.surplus(self.now_ms) {
            self.detach_helper(slot);
        }
        let wanted = self.finder.pool.wanted(self.now_ms);
        let missing = wanted.saturating_sub(self.helpers + self.helpers_requested);
        if missing > 0 && self.helpers_paused_until_ms <= self.now_ms {
            self.helpers_requested += missing;
            (self.want_helpers)(missing);
        }
    }

    fn execute_commands(&mut self) {
        while let Some(order) = self.commands.next().filter(|_| !self.stopping) {
            match order {
                Command::Stop => self.stopping = true,
                Command::Statistics(asker) => {
                    // The asker may have ended.
                    let _ = asker.send(self.snapshot());
                }
                Command::NoHelper => {
                    self.helpers_requested = self.helpers_requested.saturating_sub(1);
                    self.helpers_paused_until_ms = self.now_ms + PAUSE_MS;
                }
                Command::Helper { socket, pid } => {
                    self.helpers_requested = self.helpers_requested.saturating_sub(1);
                    let slot = self.finder.pool.attach(socket, pid);
                    self.helpers += 1;
                    let token = Token::new(HELPER, slot.0, 0);
                    let socket = self.finder.pool.socket(slot);
                    if self.events.add(socket, token, Interest::READ).is_err() {
                        self.finder.pool.detach(slot);
                        self.helpers -= 1;
                        self.helpers_paused_until_ms = self.now_ms + PAUSE_MS;
                    }
                }
            }
        }
    }

    fn snapshot(&self) -> ServiceStatistics {
        ServiceStatistics {
            hits: self.finder.sources.hits,
            probed: self.finder.sources.probed,
            helped: self.finder.sources.helped,
            read_in: self.finder.sources.read_in,
            files: self.finder.results.files,
            directories: self.finder.results.directories,
            failed: self.finder.results.failed,
            clients: self.clients.len() as u64,
            cache_entries: self.finder.file_cache.len() as u64,
            cache_descriptors: self.finder.file_cache.descriptors() as u64,
            pool: self.finder.pool.statistics().clone(),
            pinned: self
                .finder
                .pinner
                .as_ref()
                .map(Pinner::statistics)
                .unwrap_or_default(),
            ..self.statistics.clone()
        }
    }
}

/// The client must be disconnected.
struct Close;

fn finder(config: &ServiceConfig) -> Result<Finder, RootError> {
    Finder::new(
        &config.roots,
        config.file_cache,
        config.helpers,
        config.revalidate.as_millis() as u64,
        config.prefetch_max,
    )
}

fn open_reserve_fd() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}
