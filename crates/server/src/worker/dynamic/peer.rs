//! Back ends: which one is asked, over which connection, and what becomes of both.
//!
//! A location's back ends are a group: `gateway` chooses among them, remembers which failed, and
//! keeps the connections that wait for their next request. Connecting does not wait: what is to be
//! sent waits until the socket takes it, and a connection that does not come about is told by the
//! first call on it, or by its time (`connect-timeout`), and then the next back end is asked. One
//! that waits is watched, and closed when its back end closes it; only requests that may be sent
//! twice get one, because it can still close in the moment when it is used; the others, too, where
//! `keepalive-unsafe-methods` says so.
//!
//! The path of a Unix socket is looked up by `connect`, which waits for the disk if that path is on
//! one and not in memory; such sockets are below `/run`, which is memory. The trace has the call
//! under its own name.

use std::os::fd::OwnedFd;

use headway_debox::Call;
use headway_event::{Interest, Token};
use headway_gateway::upstream::{
    Address, Idle, IdleLimits, Lease, Outcome, Policy, Stage as Progressed, Unavailable, Upstream,
    is_idempotent, may_retry,
};
use headway_http::{Parsed, Status};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::line::Serves;
use super::{Dynamic, Step};
use crate::config::{Handler, Upstreams};
use crate::connection::{Connection, Exchange, Line, Peer, Stage};
use crate::respond::dynamic::{Asked, Place, Places, talk};
use crate::tally::BackEnd;
use crate::worker::Worker;

/// A connection that waits for its next request.
struct Waiting {
    line: Line,
    /// The turn in which it began to wait.
    since: u64,
}

/// The back ends of a location.
pub(super) struct Group {
    addresses: Vec<Address>,
    upstream: Upstream,
    idle: Idle<Waiting>,
}

impl Group {
    /// Those of each location, by its number.
    pub(super) fn all(places: &Places) -> Vec<Option<Group>> {
        let kinds = (0..places.len()).map(|number| &places.get(number).location);
        kinds
            .map(|location| match &location.handler {
                Handler::Upstreams(peers) => Some(Group::new(peers, location.concurrency)),
                _ => None,
            })
            .collect()
    }

    fn new(peers: &Upstreams, concurrency: u32) -> Group {
        let addresses = peers.addresses.iter();
        // The configuration has read them once before.
        let addresses: Vec<Address> = addresses.flat_map(|text| Address::parse(text)).collect();
        let policy = Policy {
            requests_max: concurrency,
            attempts_max: peers.attempts,
            ..Policy::default()
        };
        let limits = IdleLimits {
            connections_max: peers.keepalive as usize,
            ..IdleLimits::default()
        };
        Group {
            // Workers are other processes: each begins with another one.
            upstream: Upstream::new(addresses.len(), policy, std::process::id() as usize),
            idle: Idle::new(addresses.len(), limits),
            addresses,
        }
    }
}

impl Dynamic {
    fn group(&mut self, place: usize) -> Option<&mut Group> {
        self.groups.get_mut(place)?.as_mut()
    }

    /// When a connection will have waited too long.
    pub(super) fn idle_next_ms(&self) -> Option<u64> {
        let groups = self.groups.iter().flatten();
        groups.filter_map(|group| group.idle.deadline_ms()).min()
    }

    /// What is known of each back end, those of one location after the other. The same one of
    /// several hosts' locations is told once.
    pub(in crate::worker) fn back_ends(&self, places: &Places, now_ms: u64) -> Vec<BackEnd> {
        let mut all = Vec::new();
        for (place, group) in self.groups.iter().enumerate() {
            let Some(group) = group else { continue };
            let location = places.get(place).location.path.to_string();
            let views = group.upstream.views(now_ms).enumerate();
            for ((number, view), address) in views.zip(&group.addresses) {
                let one = BackEnd {
                    location: location.clone(),
                    address: address.to_string(),
                    requests: u64::from(view.requests),
                    idle: group.idle.count(number) as u64,
                    failures: u64::from(view.failures),
                    ejections: u64::from(view.ejections),
                    left_alone: u64::from(view.ejected_ms.is_some()),
                    left_alone_ms: view.ejected_ms.unwrap_or(0),
                };
                BackEnd::merge(&mut all, &one);
            }
        }
        all
    }

    /// Connections that wait for their next request.
    pub(super) fn idle_connections(&self) -> u64 {
        let groups = self.groups.iter().flatten();
        groups.map(|group| group.idle.len() as u64).sum()
    }
}

impl Worker {
    /// Has a back end answer an exchange whose turn has come.
    pub(super) fn start_peer(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        exchange.stage = Stage::Running;
        exchange.holds_place = true;
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.running[exchange.program.place] += 1;
        }
        if let Step::Gone = self.invite(connection, exchange) {
            return Step::Gone;
        }
        self.renew(connection, exchange);
        self.ask_peer(connection, exchange, Status::BAD_GATEWAY)
    }

    /// Asks the next back end, until one can be asked. `status` is the answer if there is none
    /// left.
    fn ask_peer(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        status: Status,
    ) -> Step {
        let place = self.places.get(exchange.program.place).clone();
        let Handler::Upstreams(peers) = &place.location.handler else {
            return Step::Fail(Status::INTERNAL_SERVER_ERROR);
        };
        let now_ms = self.now_ms;
        loop {
            let group = self
                .dynamic
                .as_mut()
                .and_then(|all| all.group(place.number));
            let Some(group) = group else {
                return Step::Fail(Status::INTERNAL_SERVER_ERROR);
            };
            let lease = match group.upstream.choose(now_ms, &mut exchange.tried) {
                Ok(lease) => lease,
                Err(Unavailable::Busy) => return Step::Fail(Status::SERVICE_UNAVAILABLE),
                Err(Unavailable::Exhausted) => return Step::Fail(status),
            };
            match self.call_peer(connection, exchange, &place, peers, &lease) {
                Ok(Called { talk, line, kept }) => {
                    self.counters.backend_retries += u64::from(exchange.tried.count() > 1);
                    exchange.peer = Some(Box::new(Peer {
                        talk,
                        line,
                        lease,
                        kept,
                        begun: false,
                        mute: false,
                        body_ended: false,
                        body_bytes: 0,
                    }));
                    self.renew(connection, exchange);
                    return self.feed_peer(connection, exchange);
                }
                Err(NotCalled::Unreachable(errno)) => {
                    self.note_peer_failure(exchange, &lease, &format!("connecting: {errno}"));
                    self.end_lease(place.number, lease, Outcome::Failed);
                }
                Err(NotCalled::Answer(status)) => {
                    self.end_lease(place.number, lease, Outcome::Unknown);
                    return Step::Fail(status);
                }
            }
        }
    }

    /// A connection to the back end, and what will be said over it.
    fn call_peer(
        &mut self,
        connection: &Connection,
        exchange: &Exchange,
        place: &Place,
        peers: &Upstreams,
        lease: &Lease,
    ) -> Result<Called, NotCalled> {
        let broken = NotCalled::Answer(Status::INTERNAL_SERVER_ERROR);
        let Parsed::Complete(head) = headway_http::parse(&exchange.head, &self.limits) else {
            return Err(broken);
        };
        let group = self
            .dynamic
            .as_ref()
            .and_then(|all| all.groups[place.number].as_ref());
        let Some(address) = group.and_then(|group| group.addresses.get(lease.back_end())) else {
            return Err(broken);
        };
        let address = address.clone();
        let Some(parties) = self.parties(connection) else {
            return Err(broken);
        };
        let hosts = self.hosts();
        let asked = Asked {
            place,
            site: hosts.get(connection.virtual_host),
            program: &exchange.program,
            parties,
            body_bytes: super::start::body_bytes(&head, exchange.upload.bytes),
        };
        let request = headway_gateway::Request::new(&head, &exchange.head);
        let talk = talk(
            &self.places,
            peers,
            &asked,
            &request,
            &address,
            peers.keepalive > 0,
        )
        .map_err(NotCalled::Answer)?;
        // A body that has left and is not kept cannot be sent again.
        let upload = &exchange.upload;
        let is_kept = upload.spilled.is_some() || (upload.bytes == 0 && upload.body.is_none());
        let may_repeat = is_idempotent(head.method) && is_kept;
        let kept = match (may_repeat || peers.keepalive_unsafe_methods) && !exchange.wants_new {
            true => self.take_idle(place.number, lease.back_end(), connection.token),
            false => None,
        };
        if let Some(line) = kept {
            self.counters.backend_reused += 1;
            let kept = true;
            return Ok(Called { talk, line, kept });
        }
        self.counters.backend_connects += 1;
        let socket = self
            .tracer
            .call(Call::BackendConnect, || connect(&address))
            .map_err(NotCalled::Unreachable)?;
        let Some(dynamic) = &mut self.dynamic else {
            return Err(broken);
        };
        Ok(Called {
            talk,
            line: Worker::open_line(dynamic, socket, connection.token),
            kept: false,
        })
    }

    /// A waiting connection that its back end has not closed, as far as one knows.
    fn take_idle(&mut self, place: usize, back_end: usize, client: Token) -> Option<Line> {
        loop {
            let dynamic = self.dynamic.as_mut()?;
            let (turn, all_told) = (dynamic.turn, dynamic.all_told);
            let Waiting { line, since } = dynamic.group(place)?.idle.take(back_end)?;
            // Whatever it had to say would have been told by the wait before this turn, if it
            // waited then.
            if (all_told && since < turn) || self.is_silent(&line) {
                let dynamic = self.dynamic.as_mut()?;
                dynamic.lines.assign(line.name, Serves::Client(client));
                return Some(line);
            }
            self.close_line(line);
        }
    }

    /// Neither closed, nor with something to say that nobody has asked for.
    fn is_silent(&self, line: &Line) -> bool {
        let peeked = self.tracer.call(Call::BackendRead, || {
            rustix::net::recv(&line.socket, &mut [0; 1], RecvFlags::PEEK)
        });
        matches!(peeked, Err(Errno::AGAIN))
    }

    pub(super) fn end_lease(&mut self, place: usize, lease: Lease, outcome: Outcome) {
        let now_ms = self.now_ms;
        if let Some(group) = self.dynamic.as_mut().and_then(|all| all.group(place)) {
            group.upstream.end(lease, now_ms, outcome);
        }
    }

    fn note_peer_failure(&mut self, exchange: &Exchange, lease: &Lease, why: &str) {
        self.counters.backend_failures += 1;
        let place = exchange.program.place;
        let group = self
            .dynamic
            .as_ref()
            .and_then(|all| all.groups[place].as_ref());
        let address = group.and_then(|group| group.addresses.get(lease.back_end()));
        if let Some(address) = address {
            self.notice(format!("back end {address}: {why}"));
        }
    }

    /// The exchange has nothing more to do with its back end.
    pub(super) fn leave_peer(&mut self, exchange: &mut Exchange, outcome: Outcome, reusable: bool) {
        let Some(peer) = exchange.peer.take() else {
            return;
        };
        let Peer { line, lease, .. } = *peer;
        let (place, back_end) = (exchange.program.place, lease.back_end());
        self.end_lease(place, lease, outcome);
        self.put_idle(place, back_end, line, reusable);
    }

    /// Keeps a connection for the next request, if it is of use for one.
    pub(super) fn put_idle(
        &mut self,
        place: usize,
        back_end: usize,
        mut line: Line,
        reusable: bool,
    ) {
        let now_ms = self.now_ms;
        if reusable {
            self.watch_line(&mut line, Some(Interest::READ));
        }
        // One that is not watched, for want of memory, would end unheard.
        let reusable = reusable && line.interest == Some(Interest::READ);
        let closing = match &mut self.dynamic {
            Some(dynamic) if reusable => {
                let next = Serves::Next { place, back_end };
                dynamic.lines.assign(line.name, next);
                let since = dynamic.turn;
                let waiting = Waiting { line, since };
                match dynamic.group(place) {
                    Some(group) => group.idle.put(back_end, waiting, now_ms),
                    None => Some(waiting),
                }
                .map(|waiting| waiting.line)
            }
            _ => Some(line),
        };
        if let Some(line) = closing {
            self.close_line(line);
        }
    }

    /// An event on a connection that waits: its back end has closed it, or says what nobody has
    /// asked for; or the event is older than the end of the request before.
    pub(super) fn hear_idle(&mut self, place: usize, back_end: usize, name: Token) {
        let group = self.dynamic.as_mut().and_then(|all| all.group(place));
        let is_it = |waiting: &Waiting| waiting.line.name == name;
        if let Some(heard) = group.and_then(|group| group.idle.remove(back_end, is_it)) {
            let silent = self.is_silent(&heard.line);
            self.put_idle(place, back_end, heard.line, silent);
        }
    }

    /// Its location may ask for another request. Who is next is seen to at the end of the turn.
    pub(super) fn give_place_back(&mut self, exchange: &mut Exchange) {
        let place = exchange.program.place;
        if std::mem::take(&mut exchange.holds_place)
            && let Some(dynamic) = &mut self.dynamic
        {
            dynamic.running[place] -= 1;
            dynamic.freed.push(place);
        }
    }

    /// The back end failed in this way: another one is asked, if that cannot do anything twice.
    pub(super) fn peer_failed(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
        progressed: Progressed,
        (status, why): (Status, &str),
    ) -> Step {
        let Some(peer) = &exchange.peer else {
            return Step::Fail(status);
        };
        let upload = &exchange.upload;
        // What a helper is reading now would be taken for the beginning.
        let is_on_disk = upload.spilled.is_some() && !upload.restoring;
        let body_is_kept = is_on_disk || (peer.body_bytes == 0 && !upload.unwanted);
        let may_repeat = match headway_http::parse(&exchange.head, &self.limits) {
            Parsed::Complete(head) => may_retry(head.method, progressed, body_is_kept),
            _ => false,
        };
        let ended_idle = peer.kept && progressed != Progressed::Answered;
        if !(ended_idle && may_repeat) {
            self.note_peer_failure(exchange, &peer.lease, why);
        }
        let outcome = match ended_idle {
            // Nobody's fault: its back end closed it just when it was used.
            true => {
                exchange.tried.forget(peer.lease.back_end());
                exchange.wants_new = true;
                Outcome::Unknown
            }
            false => Outcome::Failed,
        };
        self.leave_peer(exchange, outcome, false);
        if !may_repeat {
            return Step::Fail(status);
        }
        if exchange.upload.spilled.is_some() {
            exchange.upload.rewind();
        }
        self.ask_peer(connection, exchange, status)
    }

    /// Once a turn: connections that have waited too long, and requests whose turn has come.
    pub(super) fn maintain_peers(&mut self) {
        let now_ms = self.now_ms;
        let Some(dynamic) = &mut self.dynamic else {
            return;
        };
        let groups = dynamic.groups.iter_mut().flatten();
        let expired: Vec<Line> = groups
            .flat_map(|group| std::iter::from_fn(|| group.idle.expired(now_ms)))
            .map(|waiting| waiting.line)
            .collect();
        for line in expired {
            self.close_line(line);
        }
        while let Some(place) = self.dynamic.as_mut().and_then(|all| all.freed.pop()) {
            self.start_next(place);
        }
    }
}

/// A connection to a back end.
struct Called {
    talk: Box<dyn headway_gateway::Exchange>,
    line: Line,
    /// It had waited.
    kept: bool,
}

/// Why there is no connection to a back end.
enum NotCalled {
    /// It does not take one.
    Unreachable(Errno),
    /// The server answers the request itself.
    Answer(Status),
}

/// Begins to connect. Whether that succeeds is told by the first call on the socket; a Unix socket
/// whose queue is full fails at once, since nothing would tell when it has room.
fn connect(address: &Address) -> Result<OwnedFd, Errno> {
    let family = match address {
        Address::Unix(_) => AddressFamily::UNIX,
        Address::Tcp(address) if address.is_ipv4() => AddressFamily::INET,
        Address::Tcp(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let connected = match address {
        Address::Unix(path) => rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?),
        Address::Tcp(address) => {
            // A request leaves in as few calls as there can be; none is worth waiting for another.
            rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
            rustix::net::connect(&socket, address)
        }
    };
    match connected {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}
