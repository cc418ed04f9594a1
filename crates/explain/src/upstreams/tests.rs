use std::collections::HashSet;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use super::diag::UnixSocket;
use super::{Seen, Upstream, Upstreams, tcp_line, unix};

const LINE: &str = "   1: 0100007F:2328 00000000:0000 0A 00000000:00000007 00:00000000 00000000     0        0 4711 1 0 100 0";

#[test]
fn listener_has_its_queue_in_the_table_of_the_kernel() {
    let line = tcp_line(LINE).expect("a line");
    assert_eq!(line.local, ("127.0.0.1".to_owned(), 9000));
    assert_eq!((line.state, line.queued, line.inode), (10, 7, 4711));
    let mapped = LINE.replace("0100007F", "0000000000000000FFFF00000100007F");
    assert_eq!(tcp_line(&mapped).expect("a line").local, line.local);
    let own = LINE.replace("0100007F", "00000000000000000000000001000000");
    let (address, _) = tcp_line(&own).expect("a line").local;
    assert_eq!(address, "[::1]");
    assert_eq!(tcp_line("sl local_address"), None);
}

#[test]
fn upstream_without_a_free_process_is_exhausted() {
    let mut upstream = Upstream {
        looks: 10,
        waiting_looks: 4,
        ..Upstream::default()
    };
    assert!(!upstream.is_exhausted());
    upstream.waiting_looks = 5;
    assert!(upstream.is_exhausted());
    assert!(!Upstream::default().is_exhausted());
}

#[test]
fn connection_that_was_accepted_from_a_client_is_no_upstream() {
    let socket = |inode, peer, name: Option<&str>| UnixSocket {
        inode,
        peer: Some(peer),
        name: name.map(str::to_owned),
        ..UnixSocket::default()
    };
    // Ours with a client, ours with an upstream, and the other ends of both.
    let all = [
        socket(1, 2, Some("/own")),
        socket(2, 1, None),
        socket(3, 4, None),
        socket(4, 3, Some("/up")),
    ];
    let seen = unix(&all, &HashSet::from([1, 3]));
    let expected = Seen {
        connections: 1,
        ..Seen::default()
    };
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        [("unix:/up".to_owned(), expected)]
    );
}

#[test]
fn own_connections_are_found_with_those_that_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let _unix = UnixListener::bind(&path).expect("a listener");
    let _clients = [(); 2].map(|()| UnixStream::connect(&path).expect("it listens"));
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = tcp.local_addr().expect("an address");
    let _client = TcpStream::connect(address).expect("it listens");
    let mut upstreams = Upstreams::default();
    upstreams.look(&[std::process::id()], &[]);
    let found = upstreams.found();
    let find = |address: &str| found.iter().find(|one| one.address == address).expect("it");
    let unix = find(&format!("unix:{}", path.display()));
    assert_eq!((unix.connections_max, unix.waiting_max), (2, 2));
    assert!(unix.program.is_some() && unix.is_exhausted());
    let tcp = find(&address.to_string());
    assert_eq!((tcp.connections_max, tcp.waiting_max), (1, 1));
}
