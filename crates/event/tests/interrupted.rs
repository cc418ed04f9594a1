//! A signal ends a wait without events, so that a loop checks its flags before it sleeps again.
//!
//! A suite of its own, because the signals of this one would wake the waits of any other in the
//! same process.

mod support;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headway_event::{Events, Interest, Token};
use rustix::process::Signal;

for_each! {
    select = super::support::select() => { empty_when_a_signal_interrupts_the_wait }
    poll = super::support::poll() => { empty_when_a_signal_interrupts_the_wait }
    epoll = super::support::epoll() => { empty_when_a_signal_interrupts_the_wait }
    epoll_edge = super::support::epoll_edge() => { empty_when_a_signal_interrupts_the_wait }
    io_uring = super::support::io_uring() => { empty_when_a_signal_interrupts_the_wait }
    sim = super::undisturbed() => { empty_when_a_signal_interrupts_the_wait }
}

fn undisturbed() -> Events {
    Events::simulated(headway_event::Plan::new(1))
}

fn empty_when_a_signal_interrupts_the_wait(mut events: Events) {
    let arrived = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, arrived.clone()).unwrap();
    let (near, mut far) = support::pair();
    events.add(near.as_fd(), Token(1), Interest::READ).unwrap();

    // kill(2) with a thread's number prefers that thread (`complete_signal`). Several signals are
    // sent, since the first may come before the wait begins. A wait that slept on through all of
    // them would end with the byte that follows, and so deliver an event.
    let waiting = rustix::thread::gettid();
    let killer = thread::spawn(move || {
        for _ in 0..30 {
            thread::sleep(Duration::from_millis(10));
            rustix::process::kill_process(waiting, Signal::USR1).unwrap();
        }
        far.write_all(b"x").unwrap();
        far
    });
    let mut ready = Vec::new();
    events.wait(&mut ready, None).unwrap();
    assert_eq!(ready, []);
    assert!(arrived.load(Ordering::Relaxed));
    let _far = killer.join().unwrap();
    assert_eq!(support::wait_ready(&mut events).len(), 1);
}
