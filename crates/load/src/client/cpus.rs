//! How many CPUs the client's loops may have, if its user does not say.
//!
//! A loop polls before an arrival is due, so it needs a CPU. On a CPU that the server uses too, it
//! would take the server's time. Of a server on this machine the used CPUs are those that its
//! listening processes may run on, as `/proc` shows them. One more CPU is left to the thread that
//! writes results.
//!
//! What it cannot see: processes of other users, servers in other network namespaces, and what a
//! proxy passes requests on to. Sources: proc(5), proc_pid_net(5).

use std::collections::BTreeSet;
use std::fs::{self, read_to_string};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use super::environment::as_list;
use super::watch::allowed_cpus;
use crate::engine::{Address, Target};

/// Listening, as `/proc/net/tcp` and the flags of `/proc/net/unix` have it.
const TCP_LISTEN: &str = "0A";
const UNIX_LISTEN: u32 = 0x10000;

/// A number of CPUs for loops, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpareCpus {
    pub number: usize,
    pub why: String,
}

/// The CPUs that the servers do not use.
pub(crate) fn spare(targets: &[Target]) -> SpareCpus {
    // Less than the affinity in a control group with a quota.
    let quota = available_parallelism().map_or(1, NonZeroUsize::get);
    let here = targets.iter().filter(|target| is_here(&target.address));
    let mut used = BTreeSet::new();
    let mut is_local = false;
    for target in here {
        let cpus = server_cpus(&target.address);
        if cpus.is_empty() {
            return choose(&allowed_cpus(), quota, Some(&BTreeSet::new()));
        }
        used.extend(cpus);
        is_local = true;
    }
    choose(&allowed_cpus(), quota, is_local.then_some(&used))
}

/// `used` are the CPUs of servers on this machine; empty: unknown; `None`: there are none.
fn choose(allowed: &[usize], quota: usize, used: Option<&BTreeSet<usize>>) -> SpareCpus {
    let free: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|cpu| !used.is_some_and(|used| used.contains(cpu)))
        .collect();
    let (number, why) = match used {
        Some(used) if used.is_empty() => (1, "the server's process is not visible".to_owned()),
        Some(_) if free.is_empty() => (1, "the server may use all CPUs".to_owned()),
        Some(used) => {
            let used: Vec<usize> = used.iter().copied().collect();
            let why = format!("the server may use CPU {}", as_list(&used));
            (free.len().min(quota), why)
        }
        None => (free.len().min(quota), "the server is elsewhere".to_owned()),
    };
    SpareCpus {
        // One is for the thread that writes results.
        number: number.saturating_sub(1).max(1),
        why,
    }
}

/// Whether a server is on this machine: only then can a socket have its address.
fn is_here(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Inet(address) => UdpSocket::bind((address.ip(), 0)).is_ok(),
    }
}

/// The CPUs that the processes which listen at an address may run on; none if they are not visible.
fn server_cpus(address: &Address) -> BTreeSet<usize> {
    let inodes = match address {
        Address::Inet(address) => tcp_listeners(*address),
        Address::Unix(path) => {
            let table = read_to_string("/proc/net/unix").unwrap_or_default();
            let path = path.to_string_lossy();
            let inodes = table.lines().filter_map(|line| unix_listener(line, &path));
            inodes.collect()
        }
    };
    let mut cpus = BTreeSet::new();
    if inodes.is_empty() {
        return cpus;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.map(|entry| entry.path()) {
        let descriptors = fs::read_dir(process.join("fd"));
        let mut links = descriptors.into_iter().flatten().flatten();
        let listens = links.any(|link| {
            let name = fs::read_link(link.path()).unwrap_or_default();
            socket_inode(&name.to_string_lossy()).is_some_and(|inode| inodes.contains(&inode))
        });
        let threads = fs::read_dir(process.join("task"));
        for thread in threads.into_iter().flatten().flatten().filter(|_| listens) {
            let status = read_to_string(thread.path().join("status")).unwrap_or_default();
            cpus.extend(cpus_of_status(&status));
        }
    }
    cpus
}

/// Listeners at a port, whatever their address: a server at another one is a server as well.
fn tcp_listeners(address: SocketAddr) -> BTreeSet<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(read_to_string);
    let tables = tables.iter().flatten();
    let lines = tables.flat_map(|table| table.lines());
    lines
        .filter_map(|line| tcp_listener(line, address.port()))
        .collect()
}

/// The inode of a line of `/proc/net/tcp`, if it listens at the port.
fn tcp_listener(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (_, local) = fields.nth(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.nth(1)? == TCP_LISTEN;
    is_it.then(|| fields.nth(5)?.parse().ok()).flatten()
}

/// The inode of a line of `/proc/net/unix`, if it listens at the path.
fn unix_listener(line: &str, path: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    (flags & UNIX_LISTEN != 0 && line.ends_with(&format!(" {path}"))).then_some(inode)
}

/// `socket:[4711]` is what a descriptor of a socket links to.
fn socket_inode(link: &str) -> Option<u64> {
    let number = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// The list after `Cpus_allowed_list:`, as in `0-3,6`.
fn cpus_of_status(status: &str) -> Vec<usize> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap_or_default().trim().split(',');
    let cpus = ranges.filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    cpus.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn chosen(allowed: &[usize], quota: usize, used: Option<&[usize]>) -> (usize, String) {
        let used = used.map(|used| used.iter().copied().collect());
        let SpareCpus { number, why } = choose(allowed, quota, used.as_ref());
        (number, why)
    }

    #[test]
    fn spare_cpus_are_those_that_the_server_does_not_use_but_one() {
        let eight = Vec::from_iter(0..8);
        let cases: [(usize, Option<&[usize]>, usize, &str); 7] = [
            (8, None, 7, "the server is elsewhere"),
            (3, None, 2, "the server is elsewhere"),
            (1, None, 1, "the server is elsewhere"),
            (8, Some(&[0, 1]), 5, "the server may use CPU 0-1"),
            (4, Some(&[0, 1]), 3, "the server may use CPU 0-1"),
            (8, Some(&eight), 1, "the server may use all CPUs"),
            (8, Some(&[]), 1, "the server's process is not visible"),
        ];
        for (quota, used, number, why) in cases {
            let expected = (number, why.to_owned());
            assert_eq!(chosen(&eight, quota, used), expected, "{quota}, {used:?}");
        }
        // The client may use one that the server may not, or only those of the server.
        assert_eq!(chosen(&[1], 1, Some(&[0])).0, 1);
        let shared = "the server may use all CPUs".to_owned();
        assert_eq!(chosen(&[1], 1, Some(&[0, 1])), (1, shared));
    }

    #[test]
    fn cpus_of_a_server_are_those_of_the_process_that_listens() {
        let own: BTreeSet<usize> = allowed_cpus().into_iter().collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = Address::Inet(listener.local_addr().expect("an address"));
        assert!(is_here(&address));
        assert!(server_cpus(&address).is_superset(&own));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let address = Address::Unix(path);
        assert!(is_here(&address) && server_cpus(&address).is_superset(&own));
        drop(listener);
        assert!(server_cpus(&address).is_empty());
        // From the block for documentation (RFC 5737), which no interface has.
        let elsewhere = "192.0.2.1:80".parse().expect("an address");
        assert!(!is_here(&Address::Inet(elsewhere)));
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let tcp = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0";
        assert_eq!(tcp_listener(tcp, 8080), Some(4711));
        assert_eq!(tcp_listener(tcp, 8081), None);
        assert_eq!(tcp_listener(&tcp.replace(" 0A ", " 01 "), 8080), None);
        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 4712 /run/a b";
        assert_eq!(unix_listener(unix, "/run/a b"), Some(4712));
        assert_eq!(unix_listener(unix, "/run/a"), None);
        assert_eq!(
            unix_listener(&unix.replace("00010000", "00000000"), "/run/a b"),
            None
        );
        assert_eq!(socket_inode("socket:[12]"), Some(12));
        assert_eq!(socket_inode("/dev/null"), None);
        let status = "Name:\ta\nCpus_allowed_list:\t0-2,5\nMems_allowed:\t1\n";
        assert_eq!(cpus_of_status(status), [0, 1, 2, 5]);
    }
}
