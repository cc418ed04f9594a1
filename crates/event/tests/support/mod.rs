//! What the suites share: the mechanisms under test, short ways to wait, and skips that are seen.

#![allow(dead_code)] // Each suite is a crate of its own and uses a part of this.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use headway_event::{Events, Mechanism, Ready, Token};
use headway_test_support::skip;

/// Declares one module a mechanism, with one `#[test]` a behaviour, so that a failure names both.
/// Each behaviour is a function of this file that takes an empty `Events`.
#[macro_export]
macro_rules! for_each {
    ($($mechanism:ident = $events:expr => { $($behaviour:ident)* })*) => {
        $(mod $mechanism {
            $(#[test]
            fn $behaviour() {
                super::$behaviour($events);
            })*
        })*
    };
}

pub fn select() -> Events {
    Events::new(Mechanism::Select).unwrap()
}

pub fn poll() -> Events {
    Events::new(Mechanism::Poll).unwrap()
}

pub fn epoll() -> Events {
    Events::new(Mechanism::Epoll).unwrap()
}

pub fn epoll_edge() -> Events {
    Events::new(Mechanism::EpollEdge).unwrap()
}

/// Where io_uring is missing or forbidden its tests hold epoll to the same instead, and say so.
///
/// Needs: io_uring, which a kernel or a container may forbid
pub fn io_uring() -> Events {
    Events::new(Mechanism::IoUring).unwrap_or_else(|error| {
        skip("io_uring", &error.to_string());
        epoll()
    })
}

/// Two connected stream sockets, neither of which can block a test.
pub fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// Writes until the socket refuses: afterwards it is not writable.
pub fn fill(socket: &mut UnixStream) {
    while socket.write(&[b'x'; 4096]).is_ok() {}
}

/// What is ready now.
pub fn ready_now(events: &mut Events) -> Vec<Ready> {
    let mut ready = vec![Ready {
        token: Token(99),
        readable: true,
        writable: true,
        hangup: true,
    }];
    events.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    ready
}

/// Waits until something is ready. Wakeups without events are allowed, so several waits may be
/// needed.
pub fn wait_ready(events: &mut Events) -> Vec<Ready> {
    let mut ready = Vec::new();
    for _ in 0..100 {
        events
            .wait(&mut ready, Some(Duration::from_secs(10)))
            .unwrap();
        if !ready.is_empty() {
            break;
        }
    }
    ready
}

/// Raises the soft limit on open files to the hard one. False, with a line that says so, when that
/// leaves fewer than `needed`.
pub fn can_open(needed: u64, test: &str) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .unwrap();
    let enough = limit.maximum.is_none_or(|maximum| maximum >= needed);
    if !enough {
        skip(
            test,
            &format!(
                "needs {needed} open files, the hard limit is {:?}",
                limit.maximum
            ),
        );
    }
    enough
}
