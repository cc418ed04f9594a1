//! Others ask while the loop is about to wait, waits, and comes back, on other CPUs: none
//! is left without an answer.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use headway_event::{Events, Interest, Token};
use support::pair;

for_each! {
    select = super::support::select() => { answered_when_others_ask_at_any_moment }
    poll = super::support::poll() => { answered_when_others_ask_at_any_moment }
    epoll = super::support::epoll() => { answered_when_others_ask_at_any_moment }
    epoll_edge = super::support::epoll_edge() => { answered_when_others_ask_at_any_moment }
    io_uring = super::support::io_uring() => { answered_when_others_ask_at_any_moment }
}

/// WaitTime for an answer that must come but is not timed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The moment in which a wait ends is one in which another thread may ask, on another CPU.
fn answered_when_others_ask_at_any_moment(events: Events) {
    const ASKED: usize = 20_000;
    let (near, far): (Vec<_>, Vec<_>) = (0..3).map(|_| pair()).unzip();
    std::thread::scope(|scope| {
        for mut far in far {
            // A thread without an answer ends, and that is reported.
            scope.spawn(move || {
                far.set_nonblocking(false).unwrap();
                far.set_read_timeout(Some(TIMEOUT)).unwrap();
                for asked in 0..ASKED {
                    far.write_all(b"x").unwrap();
                    let answered = far.read_exact(&mut [0]);
                    assert!(answered.is_ok(), "after {asked} answers: {answered:?}");
                }
            });
        }
        answer(events, near);
    });
}

/// Sends back what comes, until all have gone.
fn answer(mut events: Events, mut near: Vec<UnixStream>) {
    for (slot, near) in near.iter().enumerate() {
        let token = Token(slot as u64);
        events.add(near.as_fd(), token, Interest::READ).unwrap();
    }
    let (mut here, mut ready) = (near.len(), Vec::new());
    while here > 0 {
        events.wait(&mut ready, None).unwrap();
        for event in &ready {
            let near = &mut near[event.token.0 as usize];
            match near.read(&mut [0; 64]) {
                Ok(0) => {
                    events.remove(near.as_fd()).unwrap();
                    here -= 1;
                }
                Ok(count) => {
                    // A thread that gave up is gone.
                    let _ = near.write_all(&[b'x'; 64][..count]);
                    events.drained(near.as_fd());
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}
