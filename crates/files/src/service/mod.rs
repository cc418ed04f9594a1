//! The open-file service: opens files for the processes of a server that would wait for the disk
//! themselves.
//!
//! What it does: accepts clients on a Unix socket, answers from a name cache that they share, has
//! helpers do what may wait, joins equal requests of different clients, and brings the beginning of
//! a file into memory before it answers; small files it keeps there. Its loop never waits but for
//! events. What it refuses: users it was not told of, paths outside its roots (the kernel confines
//! every walk), and to be believed: its answer makes what follows quick, and the client still opens
//! the file itself, with its own rights (`clients/headway_open.c`).
//!
//! Bounds: clients, requests of one client, jobs, names, descriptors, bytes read in. At each the
//! client is told (`busy`, or its connection ends) and opens the file itself.
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

use crate::keep::{KeepLimits, Keeper};
use crate::names::NamesBounds;
use crate::pool::{Done, HelperSlot, PoolLimits, SlotState};
use crate::root::RootError;
use clients::{Clients, Outgoing, State};
use finder::{Begun, Finder};
use headway_event::{Clock, Events, Interest, Mechanism, Ready, Token};
use headway_os::rights::{ReceiveError, Wait, receive_with_descriptors};
use listen::Listener;
use remote::{Order, Orders};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use wire::{Answered, Asked, REQUEST_BYTES_MAX, Reply, decode_request};

const LISTENER: u8 = 1;
const CLIENT: u8 = 2;
const HELPER: u8 = 3;
const ORDERS: u8 = 4;

/// Clients accepted, and requests taken from one client, before others have their turn.
const ACCEPTS_PER_TURN: usize = 64;
const REQUESTS_PER_TURN: usize = 8;
/// Accepting rests so long when there are no descriptors, and so does asking for helpers when one
/// could not start.
const PAUSE_MS: u64 = 100;

/// What to serve, to whom, within which bounds.
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
    /// Clients at most; one more is closed at once.
    pub clients_max: usize,
    /// A client that has not taken an answer for so long is closed.
    pub patience: Duration,
    /// Bytes of a file that a client may have read in.
    pub read_in_max: u64,
    /// How much of small files stays in memory once somebody had to wait for them, as far as they
    /// may be locked there ([`keepable_bytes`](crate::keepable_bytes)).
    pub keep: KeepLimits,
    /// An answer is compared with the directory again when it is older.
    pub revalidate: Duration,
    /// How much to remember.
    pub names: NamesBounds,
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

/// The service: made, then run until it is told to stop.
pub struct Service {
    config: ServiceConfig,
    listener: Listener,
    /// Accepting rests until then.
    paused_until_ms: Option<u64>,
    /// Given up when descriptors run out, to accept and turn away whoever waits.
    spare: Option<OwnedFd>,
    events: Events,
    clock: Clock,
    now_ms: u64,
    clients: Clients,
    finder: Finder,
    orders: Orders,
    want_helpers: Box<dyn FnMut(usize)>,
    /// Attached, and asked for.
    helpers: usize,
    helpers_coming: usize,
    helpers_rest_until_ms: u64,
    helper_died_ms: Option<u64>,
    done: Vec<Done>,
    statistics: ServiceStatistics,
    message: Vec<u8>,
    stopping: bool,
}

impl Service {
    /// Open the roots and listen. `want_helpers` is called on the loop with a number of helpers to
    /// start, and must not wait; whoever starts them hands over their sockets by
    /// [`Remote::helper`].
    ///
    /// # Errors
    /// [`ServiceError`]; nothing is left behind.
    pub fn new(
        config: ServiceConfig,
        want_helpers: Box<dyn FnMut(usize)>,
    ) -> Result<(Service, Remote), ServiceError> {
        let finder = Finder::new(
            &config.roots,
            config.names,
            config.helpers,
            config.revalidate.as_millis() as u64,
            config.read_in_max,
        )?;
        let (orders, remote) = remote::channel()?;
        let mut events = Events::new(Mechanism::Epoll)?;
        let listener = Listener::bind(&config.socket)?;
        let token = Token::new(LISTENER, 0, 0);
        events.add(listener.socket.as_fd(), token, Interest::READ)?;
        events.add(orders.as_fd(), Token::new(ORDERS, 0, 0), Interest::READ)?;
        let service = Service {
            clients: Clients::new(config.patience),
            config,
            listener,
            paused_until_ms: None,
            spare: spare(),
            events,
            clock: Clock::monotonic(),
            now_ms: 0,
            finder,
            orders,
            want_helpers,
            helpers: 0,
            helpers_coming: 0,
            helpers_rest_until_ms: 0,
            helper_died_ms: None,
            done: Vec::new(),
            statistics: ServiceStatistics::default(),
            // One more byte, so that a longer message is noticed.
            message: vec![0; REQUEST_BYTES_MAX + 1],
            stopping: false,
        };
        Ok((service, remote))
    }

    /// Serve until [`Remote::stop`], or until every [`Remote`] has gone.
    ///
    /// # Errors
    /// When waiting for events fails, which nothing cures; when no thread can be started.
    pub fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        // Here and not before: what may be locked depends on who the process has become.
        self.finder.keeper = Keeper::start(self.config.keep)?;
        self.tend_helpers();
        while !self.stopping {
            self.events.wait(&mut ready, self.patience())?;
            self.now_ms = self.clock.now_ms();
            for event in &ready {
                self.dispatch(event);
            }
            self.deliver();
            for token in self.clients.stalled(self.now_ms) {
                self.statistics.stalled += 1;
                self.close(token);
            }
            self.finder.pool.flush(self.now_ms);
            self.tend_helpers();
            self.resume_accepting();
        }
        Ok(())
    }

    fn patience(&self) -> Option<Duration> {
        let rest = (self.helpers_rest_until_ms > self.now_ms).then_some(self.helpers_rest_until_ms);
        let next = [
            self.finder.pool.next_ms(self.now_ms),
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
            HELPER => self.hear_helper(HelperSlot(event.token.slot())),
            _ => self.obey(),
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match accept_with(&self.listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.turn_away(),
            }
        }
    }

    /// Take a client in if it is one of those allowed. One that is not is closed: it finds the end
    /// of the connection and opens its files itself.
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
        } else if self.clients.len() >= self.config.clients_max {
            self.statistics.refused_full += 1;
        } else if self
            .clients
            .insert(socket, CLIENT, &mut self.events)
            .is_ok()
        {
            self.statistics.accepted += 1;
        }
    }

    /// There is no descriptor for a client. The spare one is used to accept and close one at a
    /// time, so that nobody waits in the queue for an answer that does not come; names give some
    /// up.
    fn turn_away(&mut self) {
        self.finder.shed();
        drop(self.spare.take());
        for _ in 0..ACCEPTS_PER_TURN {
            if accept_with(&self.listener.socket, SocketFlags::CLOEXEC).is_err() {
                break;
            }
            self.statistics.refused_full += 1;
        }
        self.spare = spare();
        if self.spare.is_none() {
            self.paused_until_ms = Some(self.now_ms + PAUSE_MS);
            self.listen_for(Interest::NONE);
        }
    }

    fn resume_accepting(&mut self) {
        if self.paused_until_ms.is_some_and(|at| at <= self.now_ms) {
            self.paused_until_ms = None;
            self.spare = self.spare.take().or_else(spare);
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
        // Gone both ways: nobody would take an answer.
        if event.hangup {
            return self.close(token);
        }
        if event.writable && self.clients.flush(token, self.now_ms, &mut self.events) == State::Gone
        {
            return self.close(token);
        }
        if event.readable {
            for _ in 0..REQUESTS_PER_TURN {
                match self.receive(token) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(Close) => return self.close(token),
                }
            }
        }
        if self.clients.heed(token, &mut self.events) == State::Gone {
            self.close(token);
        }
    }

    /// Take one request; `Ok(false)` when there is none, or no room for one.
    fn receive(&mut self, token: Token) -> Result<bool, Close> {
        let Some(client) = self.clients.get(token) else {
            return Ok(false);
        };
        if !client.has_room() {
            return Ok(false);
        }
        // Clients have no descriptors to give: a message with one is refused, and what came is
        // closed. (By the kernel, before it is sent, from Linux 6.16 on; the last close of a file
        // or a socket may wait.)
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
        let done = self.ask(token, &message[..length]);
        self.message = message;
        done.map(|()| true)
    }

    fn ask(&mut self, token: Token, message: &[u8]) -> Result<(), Close> {
        match decode_request(message) {
            Ok(Asked::Request(request)) => {
                self.statistics.requests += 1;
                match self.finder.begin(token, &request, self.now_ms) {
                    Begun::Answered(outgoing) => self.answer(token, outgoing),
                    Begun::Asked(id) => {
                        if let Some(client) = self.clients.get(token) {
                            client.asks.push(id);
                        }
                        Ok(())
                    }
                }
            }
            Ok(Asked::OtherVersion { number }) => {
                self.statistics.other_version += 1;
                let answered = Answered::Version;
                let reply = Reply { number, answered };
                let _ = self.answer(token, Outgoing { reply, file: None });
                Err(Close)
            }
            Err(_) => {
                self.statistics.malformed += 1;
                Err(Close)
            }
        }
    }

    fn answer(&mut self, token: Token, outgoing: Outgoing) -> Result<(), Close> {
        self.count(&outgoing.reply.answered);
        match self
            .clients
            .answer(token, outgoing, self.now_ms, &mut self.events)
        {
            State::Alive => Ok(()),
            State::Gone => Err(Close),
        }
    }

    fn count(&mut self, answered: &Answered) {
        let statistics = &mut self.statistics;
        *match answered {
            Answered::File { .. } => &mut statistics.files,
            Answered::Directory => &mut statistics.directories,
            Answered::Failed { .. } => &mut statistics.failed,
            Answered::Elsewhere => &mut statistics.elsewhere,
            Answered::Busy => &mut statistics.busy,
            Answered::Version => return,
        } += 1;
    }

    fn close(&mut self, token: Token) {
        if let Some(client) = self.clients.remove(token, &mut self.events) {
            for id in &client.asks {
                self.finder.leave(*id);
            }
        }
    }

    fn hear_helper(&mut self, slot: HelperSlot) {
        if self.finder.pool.pid(slot).is_none() {
            return;
        }
        if self.finder.pool.on_ready(slot, self.now_ms, &mut self.done) == SlotState::Dead {
            self.let_go(slot);
            self.note_death();
        }
    }

    /// Tell the clients what helpers have found.
    fn deliver(&mut self) {
        let mut out = Vec::new();
        for done in std::mem::take(&mut self.done) {
            self.finder.resume(done, self.now_ms, &mut out);
        }
        for (token, id, outgoing) in out {
            if let Some(client) = self.clients.get(token) {
                client.asks.retain(|asked| *asked != id);
            }
            if self.answer(token, outgoing).is_err() {
                self.close(token);
            }
        }
    }

    /// One that dies is replaced at once. Where they die one after the other the next ones would,
    /// too.
    fn note_death(&mut self) {
        let soon = self
            .helper_died_ms
            .is_some_and(|before_ms| self.now_ms < before_ms + 2 * PAUSE_MS);
        if soon {
            self.helpers_rest_until_ms = self.now_ms + PAUSE_MS;
        }
        self.helper_died_ms = Some(self.now_ms);
    }

    fn let_go(&mut self, slot: HelperSlot) {
        let _ = self.events.remove(self.finder.pool.socket(slot));
        self.finder.pool.detach(slot);
        self.helpers -= 1;
    }

    fn tend_helpers(&mut self) {
        while let Some(slot) = self.finder.pool.surplus(self.now_ms) {
            self.let_go(slot);
        }
        let wanted = self.finder.pool.wanted(self.now_ms);
        let missing = wanted.saturating_sub(self.helpers + self.helpers_coming);
        if missing > 0 && self.helpers_rest_until_ms <= self.now_ms {
            self.helpers_coming += missing;
            (self.want_helpers)(missing);
        }
    }

    fn obey(&mut self) {
        while let Some(order) = self.orders.next().filter(|_| !self.stopping) {
            match order {
                Order::Stop => self.stopping = true,
                Order::Statistics(asker) => {
                    // Whoever asked may have gone.
                    let _ = asker.send(self.snapshot());
                }
                Order::NoHelper => {
                    self.helpers_coming = self.helpers_coming.saturating_sub(1);
                    self.helpers_rest_until_ms = self.now_ms + PAUSE_MS;
                }
                Order::Helper { socket, pid } => {
                    self.helpers_coming = self.helpers_coming.saturating_sub(1);
                    let slot = self.finder.pool.attach(socket, pid);
                    self.helpers += 1;
                    let token = Token::new(HELPER, slot.0, 0);
                    let socket = self.finder.pool.socket(slot);
                    if self.events.add(socket, token, Interest::READ).is_err() {
                        self.finder.pool.detach(slot);
                        self.helpers -= 1;
                        self.helpers_rest_until_ms = self.now_ms + PAUSE_MS;
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
            without_descriptor: self.clients.without_descriptor,
            clients: self.clients.len() as u64,
            names: self.finder.names.len() as u64,
            descriptors: self.finder.names.descriptors() as u64,
            pool: self.finder.pool.statistics().clone(),
            kept: self
                .finder
                .keeper
                .as_ref()
                .map(Keeper::statistics)
                .unwrap_or_default(),
            ..self.statistics.clone()
        }
    }
}

/// This client is to be closed.
struct Close;

fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}
