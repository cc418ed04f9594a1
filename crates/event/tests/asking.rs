//! Clients on other CPUs send requests while the loop begins, is in, and leaves its wait: every
//! request is answered.

use crate::{for_each, support};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use headway_event::{Events, Interest, Token};
use support::pair;

for_each! {
    select = super::support::select() => { every_request_is_answered_when_it_arrives_around_a_wait }
    poll = super::support::poll() => { every_request_is_answered_when_it_arrives_around_a_wait }
    epoll = super::support::epoll() => { every_request_is_answered_when_it_arrives_around_a_wait }
    epoll_edge = super::support::epoll_edge() => { every_request_is_answered_when_it_arrives_around_a_wait }
    io_uring = super::support::io_uring() => { every_request_is_answered_when_it_arrives_around_a_wait }
}

/// Timeout for an answer that must come but is not timed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A request may arrive from another CPU at the moment in which a wait ends.
fn every_request_is_answered_when_it_arrives_around_a_wait(events: Events) {
    const REQUESTS: usize = 20_000;
    let (near, far): (Vec<_>, Vec<_>) = (0..3).map(|_| pair()).unzip();
    std::thread::scope(|scope| {
        for mut far in far {
            // A client without an answer fails, which closes its socket and ends the loop.
            scope.spawn(move || {
                far.set_nonblocking(false).unwrap();
                far.set_read_timeout(Some(TIMEOUT)).unwrap();
                for sent in 0..REQUESTS {
                    far.write_all(b"x").unwrap();
                    let answered = far.read_exact(&mut [0]);
                    assert!(answered.is_ok(), "after {sent} answers: {answered:?}");
                }
            });
        }
        answer(events, near);
    });
}

/// Sends back what arrives, until all clients have closed.
fn answer(mut events: Events, mut near: Vec<UnixStream>) {
    for (slot, near) in near.iter().enumerate() {
        let token = Token(slot as u64);
        events.add(near.as_fd(), token, Interest::READ).unwrap();
    }
    let (mut open, mut ready) = (near.len(), Vec::new());
    while open > 0 {
        events.wait(&mut ready, None).unwrap();
        for event in &ready {
            let near = &mut near[event.token.0 as usize];
            match near.read(&mut [0; 64]) {
                Ok(0) => {
                    events.remove(near.as_fd()).unwrap();
                    open -= 1;
                }
                Ok(count) => {
                    // A client that gave up has closed its socket.
                    let _ = near.write_all(&[b'x'; 64][..count]);
                    events.drained(near.as_fd());
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}
