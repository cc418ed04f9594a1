//! What the server itself waits for: the sockets of this machine to which it is connected, and whether
//! connections wait there to be accepted.
//!
//! It looks at the sockets several times per second, and not at each event. A server whose upstream has
//! no free process is in that state at nearly every look. Upstreams on other machines have no figures.
//!
//! Sources: proc_pid_net(5): the receive queue of a listener is its accept queue; `diag` has those of
//! Unix sockets.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::server::{program_of, socket_inodes};

mod diag;

/// How much of a CPU may be spent on looking: one part in this many.
const SHARE: u32 = 20;
const PERIOD_MIN: Duration = Duration::from_millis(100);
const PERIOD_MAX: Duration = Duration::from_secs(1);

/// Upstreams beyond are left out.
const UPSTREAMS_MAX: usize = 64;

/// A socket to which the server is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Upstream {
    /// `127.0.0.1:9000`, or `unix:` and a path.
    pub address: String,
    /// The program that listens there; `None` if that is not on this machine, or not to be seen.
    pub program: Option<String>,
    /// How often the server was seen to be connected to it.
    pub looks: u64,
    /// The most connections of the server to it at a time.
    pub connections_max: u64,
    /// How often connections waited to be accepted.
    pub waiting_looks: u64,
    /// The most connections that waited at a time.
    pub waiting_max: u64,
}

impl Upstream {
    /// Whether connections waited to be accepted at most of the looks.
    pub fn is_exhausted(&self) -> bool {
        self.waiting_looks > 0 && self.waiting_looks * 2 >= self.looks
    }
}

/// Looks at the upstreams of a server.
#[derive(Debug)]
pub struct Upstreams {
    found: BTreeMap<String, Upstream>,
    /// Not before this time.
    next: Instant,
}

/// What one look finds: address, connections, those which wait, the listener's inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    connections: u64,
    waiting: u64,
    listener: Option<u64>,
}

impl Default for Upstreams {
    fn default() -> Upstreams {
        Upstreams {
            found: BTreeMap::new(),
            next: Instant::now(),
        }
    }
}

impl Upstreams {
    /// Whether the last look was long enough ago.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Looks. `ports` are those of the server, whose connections are its clients'.
    pub fn look(&mut self, pids: &[u32], ports: &[u16]) {
        let begun = cpu_time();
        let Some(first) = pids.first() else {
            return;
        };
        let own: HashSet<u64> = pids.iter().flat_map(|pid| socket_inodes(*pid)).collect();
        let mut seen = tcp(*first, &own, ports);
        seen.extend(diag::unix_sockets().map_or_else(|_| BTreeMap::new(), |all| unix(&all, &own)));
        let spent = cpu_time().saturating_sub(begun);
        self.next = Instant::now() + (spent * SHARE).clamp(PERIOD_MIN, PERIOD_MAX);
        for (address, seen) in seen {
            self.add(address, &seen);
        }
    }

    fn add(&mut self, address: String, seen: &Seen) {
        if self.found.len() >= UPSTREAMS_MAX && !self.found.contains_key(&address) {
            return;
        }
        let new = || Upstream {
            address: address.clone(),
            program: seen.listener.and_then(listening_program),
            ..Upstream::default()
        };
        let upstream = self.found.entry(address.clone()).or_insert_with(new);
        upstream.looks += 1;
        upstream.connections_max = upstream.connections_max.max(seen.connections);
        upstream.waiting_looks += u64::from(seen.waiting > 0);
        upstream.waiting_max = upstream.waiting_max.max(seen.waiting);
    }

    /// What was found; those for which most connections waited come first.
    pub fn found(&self) -> Vec<Upstream> {
        let mut found: Vec<Upstream> = self.found.values().cloned().collect();
        found.sort_by_key(|one| std::cmp::Reverse((one.waiting_max, one.connections_max)));
        found
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec as u32)
}

/// The program that has a listening socket.
fn listening_program(inode: u64) -> Option<String> {
    let pids = (fs::read_dir("/proc").ok()?.flatten())
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids = pids.filter(|pid| socket_inodes(*pid).contains(&inode));
    program_of(pids.next()?)
}

/// A line of /proc/net/tcp.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TcpLine {
    local: (String, u16),
    remote: (String, u16),
    state: u8,
    queued: u64,
    inode: u64,
}

const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const LISTEN: u8 = 10;

/// By address. Both tables, since a listener of IPv6 may serve IPv4.
fn tcp(pid: u32, own: &HashSet<u64>, ports: &[u16]) -> BTreeMap<String, Seen> {
    let mut lines = Vec::new();
    for name in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        lines.extend(table.lines().filter_map(tcp_line));
    }
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    for line in &lines {
        let connected = matches!(line.state, ESTABLISHED | SYN_SENT);
        if connected && own.contains(&line.inode) && !ports.contains(&line.local.1) {
            let (address, port) = &line.remote;
            (seen.entry(format!("{address}:{port}")).or_default()).connections += 1;
        }
    }
    for line in lines.iter().filter(|line| line.state == LISTEN) {
        let any = matches!(line.local.0.as_str(), "0.0.0.0" | "[::]");
        let here = local_addresses(&lines, line.local.1);
        for (address, seen) in &mut seen {
            let Some((host, port)) = address.rsplit_once(':') else {
                continue;
            };
            let is_it = line.local.0 == host || any && here.contains(host);
            if is_it && port.parse() == Ok(line.local.1) {
                seen.waiting += line.queued;
                seen.listener = Some(line.inode);
            }
        }
    }
    seen
}

/// Addresses of this machine at which connections to a port are, from the side of the listener.
fn local_addresses(lines: &[TcpLine], port: u16) -> BTreeSet<&str> {
    let here = lines.iter().filter(|line| line.local.1 == port);
    here.map(|line| line.local.0.as_str())
        .chain(["127.0.0.1", "[::1]"])
        .collect()
}

/// `None` for a connection in another state: there may be many that have ended.
fn tcp_line(line: &str) -> Option<TcpLine> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (fields.next()?, fields.next()?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    if !matches!(state, ESTABLISHED | SYN_SENT | LISTEN) {
        return None;
    }
    let queues = fields.next()?;
    Some(TcpLine {
        local: address(local)?,
        remote: address(remote)?,
        state,
        queued: u64::from_str_radix(queues.split_once(':')?.1, 16).ok()?,
        inode: fields.nth(4)?.parse().ok()?,
    })
}

/// Words of 32 bits in the order of the machine, then the port.
fn address(text: &str) -> Option<(String, u16)> {
    let (words, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let bytes = (0..words.len() / 8)
        .map(|word| u32::from_str_radix(words.get(word * 8..word * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> = (bytes.collect::<Option<Vec<u32>>>()?.into_iter())
        .flat_map(u32::to_ne_bytes)
        .collect();
    let address = match bytes.len() {
        4 => std::net::Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string(),
        16 => {
            let address = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
            match address.to_ipv4_mapped() {
                Some(address) => address.to_string(),
                None => format!("[{address}]"),
            }
        }
        _ => return None,
    };
    Some((address, port))
}

/// By path. A connection that waits has no peer yet that a process has; its listener lists it.
fn unix(all: &[diag::UnixSocket], own: &HashSet<u64>) -> BTreeMap<String, Seen> {
    let by_inode: HashMap<u64, &diag::UnixSocket> =
        all.iter().map(|one| (one.inode, one)).collect();
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    for socket in all.iter().filter(|one| own.contains(&one.inode)) {
        // One with a name was accepted, so its peer is a client.
        let peer = socket.peer.and_then(|peer| by_inode.get(&peer));
        let name = peer.and_then(|peer| peer.name.as_ref());
        if let (None, Some(name)) = (&socket.name, name) {
            (seen.entry(format!("unix:{name}")).or_default()).connections += 1;
        }
    }
    for listener in all.iter().filter(|one| one.is_listener) {
        let Some(name) = &listener.name else { continue };
        let pending = listener.pending.iter();
        let ours = pending.filter(|inode| own.contains(*inode)).count() as u64;
        let address = format!("unix:{name}");
        if ours == 0 && !seen.contains_key(&address) {
            continue;
        }
        let seen = seen.entry(address).or_default();
        seen.connections += ours;
        seen.waiting += listener.pending.len() as u64;
        seen.listener = Some(listener.inode);
    }
    seen
}

#[cfg(test)]
mod tests;
