//! Listeners across generations and workers.

use super::*;

const EXCLUSIVE: ListenerOptions = ListenerOptions {
    workers: 1,
    backlog: 16,
    defer: false,
    shared: false,
    unix_rights: UnixRights {
        mode: 0o600,
        owner: None,
    },
};

fn any() -> Endpoint {
    "127.0.0.1:0".parse().unwrap()
}

fn tcp(listeners: &Listeners) -> SocketAddr {
    listeners.addresses()[0].tcp().unwrap()
}

#[test]
fn workers_share_the_port_chosen_by_the_kernel_for_port_zero() {
    for shared in [false, true] {
        let options = ListenerOptions {
            workers: 3,
            shared,
            ..EXCLUSIVE
        };
        let listeners = Listeners::bind(&[any()], &options, None).unwrap();
        let port = tcp(&listeners).port();
        assert_ne!(port, 0);
        for number in 0..3 {
            let of_worker = listeners.of_worker((number, 3), 0..1);
            assert_eq!(of_worker.len(), 1);
            let local = local_address(of_worker[0].1, tcp(&listeners));
            assert_eq!(local.unwrap().port(), port);
        }
    }
}

#[test]
fn no_socket_is_lost_when_the_number_of_workers_changes() {
    let of = |workers| ListenerOptions {
        workers,
        ..EXCLUSIVE
    };
    let mut listeners = Listeners::bind(&[any()], &of(3), None).unwrap();
    let address = listeners.addresses();
    for (workers, expected) in [(2, vec![2, 1]), (1, vec![3]), (4, vec![1, 1, 1, 1])] {
        listeners = Listeners::bind(&[any()], &of(workers), Some(&listeners)).unwrap();
        assert_eq!(listeners.addresses(), address, "the port stays");
        let sockets = |number| listeners.of_worker((number, workers), 0..1).len();
        assert_eq!((0..workers).map(sockets).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn every_worker_sees_a_pending_connection_when_the_socket_is_shared() {
    for (shared, finding) in [(true, 3), (false, 1)] {
        let options = ListenerOptions {
            workers: 3,
            shared,
            ..EXCLUSIVE
        };
        let listeners = Listeners::bind(&[any()], &options, None).unwrap();
        let _client = std::net::TcpStream::connect(tcp(&listeners)).unwrap();
        let workers = (0..3).filter(|number| {
            let socket = listeners.of_worker((*number, 3), 0..1)[0];
            let mut entry = [headway_os::select::PollEntry::new(socket.1)];
            entry[0].set_interest(true, false);
            headway_os::select::poll(&mut entry, Some(0)).unwrap() == 1
        });
        assert_eq!(workers.count(), finding, "{shared}");
    }
}

#[test]
fn connections_are_deferred_until_their_request_unless_disabled() {
    for (defer, accepted_silent) in [(true, false), (false, true)] {
        let options = ListenerOptions { defer, ..EXCLUSIVE };
        let listeners = Listeners::bind(&[any()], &options, None).unwrap();
        let mut client = std::net::TcpStream::connect(tcp(&listeners)).unwrap();
        let accept = || rustix::net::accept(listeners.of_worker((0, 1), 0..1)[0].1);
        assert_eq!(accept().is_ok(), accepted_silent, "{defer}");
        if defer {
            io::Write::write_all(&mut client, b"GET").unwrap();
            // On the loopback interface the data has arrived when the call returns.
            accept().unwrap();
        }
    }
}

#[test]
fn accepted_connections_have_nodelay() {
    let listeners = Listeners::bind(&[any()], &EXCLUSIVE, None).unwrap();
    let _client = std::net::TcpStream::connect(tcp(&listeners)).unwrap();
    let accepted = rustix::net::accept(listeners.of_worker((0, 1), 0..1)[0].1).unwrap();
    assert!(sockopt::tcp_nodelay(&accepted).unwrap());
}

#[test]
fn binding_fails_when_the_port_is_in_use_even_by_the_same_user() {
    // A separate address, so that no other test gets the port between the two binds.
    let own = "127.83.71.5:0".parse().unwrap();
    let first = Listeners::bind(&[own], &EXCLUSIVE, None).unwrap();
    let error = Listeners::bind(&first.addresses(), &EXCLUSIVE, None)
        .unwrap_err()
        .to_string();
    let expected = format!(
        "listen: bind({}): EADDRINUSE: another process",
        first.addresses()[0]
    );
    assert!(error.starts_with(&expected), "{error}");
    let address = first.addresses();
    drop(first);
    let two = ListenerOptions {
        workers: 2,
        ..EXCLUSIVE
    };
    Listeners::bind(&address, &two, None).unwrap();
}

#[test]
fn dead_unix_socket_is_replaced_and_a_live_one_or_another_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| Endpoint::Unix(directory.path().join(name));
    let bind = |name: &str| Listeners::bind(&[at(name)], &EXCLUSIVE, None);
    // An earlier server leaves the file when it is killed.
    drop(std::os::unix::net::UnixListener::bind(directory.path().join("dead")).unwrap());
    let _live = std::os::unix::net::UnixListener::bind(directory.path().join("live")).unwrap();
    let _dgram = std::os::unix::net::UnixDatagram::bind(directory.path().join("dgram")).unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("none", directory.path().join("link")).unwrap();
    let first = bind("dead").unwrap();
    std::os::unix::net::UnixStream::connect(directory.path().join("dead")).unwrap();
    for (name, part) in [
        ("dead", "EADDRINUSE: another process"),
        ("live", "EADDRINUSE: another process"),
        ("dgram", "EADDRINUSE: another process"),
        ("file", "EEXIST: there is a file"),
        ("link", "EEXIST: there is a file"),
        ("none/x", "ENOENT: the directory"),
    ] {
        let error = bind(name).unwrap_err().to_string();
        let begin = format!("listen: bind({}): ", at(name));
        assert!(error.starts_with(&begin) && error.contains(part), "{error}");
    }
    drop(first);
    let names = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 4, "the own file is removed, others stay");
}

#[test]
fn unix_socket_is_one_for_all_workers_and_stays_in_a_reload() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let at = [Endpoint::Unix(path.clone())];
    let two = ListenerOptions {
        workers: 2,
        ..EXCLUSIVE
    };
    let first = Listeners::bind(&at, &two, None).unwrap();
    let of_worker = |number| first.of_worker((number, 2), 0..1);
    assert_eq!((of_worker(0).len(), of_worker(1).len()), (1, 1));
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let open = ListenerOptions {
        unix_rights: UnixRights {
            mode: 0o666,
            owner: None,
        },
        ..two.clone()
    };
    let again = Listeners::bind(&at, &open, Some(&first)).unwrap();
    drop(first);
    let now = std::fs::metadata(&path).unwrap();
    assert_eq!(now.ino(), found.ino());
    assert_eq!(now.permissions().mode() & 0o777, 0o666);
    // A socket which cannot be reached any more is replaced, and what took its place stays.
    std::fs::remove_file(&path).unwrap();
    let other = Listeners::bind(&at, &two, Some(&again)).unwrap();
    drop(again);
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop(other);
    assert!(!path.exists());
}

#[test]
fn binding_fails_when_no_interface_has_the_address() {
    let error = Listeners::bind(&["192.0.2.1:0".parse().unwrap()], &EXCLUSIVE, None).unwrap_err();
    assert!(error.to_string().contains("EADDRNOTAVAIL"), "{error}");
}
