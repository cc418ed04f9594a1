//! The server's network seen from outside: which process listens on its address, and one request to
//! it.
//!
//! A server in a network namespace of the lab cannot be reached from ours, and where we could reach
//! its address another server might answer. So listeners are read from `/proc/PID/net/tcp`, which
//! is that process's network, and a request is sent by a thread that has entered the namespace;
//! network namespaces belong to threads.
//!
//! Refused: anything of HTTP beyond one short request and its answer. Sources: setns(2), proc(5)
//! (`net/tcp`).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::tree::{self, Process};

/// An answer to a request.
#[derive(Debug)]
pub struct Response {
    /// 200, 404 and so on.
    pub status: u16,
    /// What follows the head, as it came.
    pub body: Vec<u8>,
}

/// Inodes of the sockets that listen on an address, or on all addresses, by the text of `net/tcp`
/// and `net/tcp6`. The kernel writes that in pieces: a socket that others close meanwhile may hide
/// one this time, so a caller that waits for a listener has to repeat.
pub(super) fn listening(tables: &str, address: SocketAddr) -> BTreeSet<u64> {
    tables
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (host, port) = fields.get(1)?.split_once(':')?;
            // 0A is TCP_LISTEN.
            let here = *fields.get(3)? == "0A"
                && u16::from_str_radix(port, 16).ok()? == address.port()
                && covers(host, address);
            here.then(|| fields.get(9)?.parse().ok())?
        })
        .collect()
}

/// Whether a listener's host, as the table writes it, takes connections to the address.
fn covers(host: &str, address: SocketAddr) -> bool {
    // Each group of eight digits is a number in the machine's own order.
    let group = |index: usize| {
        let digits = host.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let (any, SocketAddr::V4(v4)) = (host.bytes().all(|digit| digit == b'0'), address) else {
        return false;
    };
    // An IPv6 listener on :: takes IPv4 connections as well, and one on a mapped address those to
    // it.
    let last = group(host.len() / 8 - 1).map(Ipv4Addr::from);
    any || last == Some(*v4.ip())
}

/// The tables of a process's network; empty when it has ended.
pub(super) fn tables(pid: i32) -> String {
    let table =
        |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    table("tcp") + &table("tcp6")
}

/// Which of these socket inodes some of the processes have open; `None` when none of them lets us
/// look.
pub(super) fn owned(
    inodes: &BTreeSet<u64>,
    processes: impl Iterator<Item = i32>,
) -> Option<BTreeSet<u64>> {
    let mut looked = false;
    let mut found = BTreeSet::new();
    for pid in processes {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        looked = true;
        found.extend(entries.flatten().filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok().filter(|inode| inodes.contains(inode))
        }));
        // The first process of a server usually holds all of its listeners; hundreds of others need
        // not be asked.
        if found.len() == inodes.len() {
            break;
        }
    }
    looked.then_some(found)
}

/// The processes that hold a socket, for a message.
pub(super) fn holder(inodes: &BTreeSet<u64>) -> String {
    let all = tree::numbers("/proc").into_iter();
    let holder = all
        .into_iter()
        .find(|pid| owned(inodes, std::iter::once(*pid)).is_some_and(|found| !found.is_empty()));
    match holder {
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim())
        }
        None => "a process that cannot be seen from here".into(),
    }
}

/// Requests a path in the network of a process, and reads the whole response.
pub(super) fn get(
    process: Process,
    address: SocketAddr,
    path: &str,
    timeout: Duration,
) -> io::Result<Response> {
    let theirs = format!("/proc/{}/ns/net", process.pid);
    if fs::read_link(&theirs)? == fs::read_link("/proc/thread-self/ns/net")? {
        return exchange(address, path, timeout);
    }
    let namespace = fs::File::open(&theirs)?;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network)?;
            exchange(address, path, timeout)
        });
        asking.join().expect("a thread that does not panic")
    })
}

fn exchange(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| {
        let start: String = String::from_utf8_lossy(&bytes).chars().take(80).collect();
        io::Error::other(format!("it answered {start:?}, which is no HTTP"))
    })
}

fn parse(bytes: &[u8]) -> Option<Response> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.get(2..5)?;
    Some(Response {
        status: status.parse().ok()?,
        body: bytes[end + 4..].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    /// Returns the listening sockets, by a table in which nothing was hidden.
    fn listeners(pid: i32, address: SocketAddr) -> BTreeSet<u64> {
        let mut looks = (0..100).map(|_| listening(&tables(pid), address));
        looks.find(|inodes| !inodes.is_empty()).unwrap_or_default()
    }

    #[test]
    fn listener_is_found_with_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let own = std::process::id() as i32;
        let inodes = listeners(own, address);
        assert_eq!(inodes.len(), 1);
        assert_eq!(owned(&inodes, std::iter::once(own)), Some(inodes.clone()));
        assert!(
            holder(&inodes).contains(&own.to_string()),
            "{}",
            holder(&inodes)
        );
        // The init process has other sockets.
        assert!(
            owned(&inodes, std::iter::once(1))
                .unwrap_or_default()
                .is_empty()
        );
        let mut other = address;
        other.set_ip([127, 0, 0, 2].into());
        assert!(listening(&tables(own), other).is_empty());
        drop(listener);
        // A child that another test starts has it until its exec.
        let ends = Instant::now() + Duration::from_secs(10);
        while !listening(&tables(own), address).is_empty() {
            assert!(Instant::now() < ends, "it still listens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn listener_counts_when_it_takes_every_address() {
        let everywhere = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = everywhere.local_addr().expect("its address").port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(listeners(std::process::id() as i32, address).len(), 1);
    }

    #[test]
    fn ipv6_listener_counts_when_it_takes_ipv4_too() {
        let line = "0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 \
                    0A 00000000:00000000 00:00000000 00000000 0 0 4711 1";
        let address = "127.0.0.1:8080".parse().expect("an address");
        assert_eq!(listening(line, address), BTreeSet::from([4711]));
        // Established connections of the same port are no listeners.
        assert!(listening(&line.replace("0A", "01"), address).is_empty());
    }

    #[test]
    fn http_response_is_parsed() {
        let response = parse(b"HTTP/1.1 404 Not Found\r\nServer: x\r\n\r\nno").expect("an answer");
        assert_eq!(
            (response.status, response.body.as_slice()),
            (404, b"no".as_slice())
        );
        for bad in [
            b"SSH-2.0\r\n\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1\r\n\r\n",
        ] {
            assert!(parse(bad).is_none());
        }
    }
}
