//! Random lives of a few sockets: after every step all mechanisms must say the same.

use crate::support;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use headway_event::{Events, Interest, Plan, Ready, Token};
use proptest::prelude::*;

const SOCKETS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, Interest),
    Modify(usize, Interest),
    Remove(usize),
    /// The peer sends a byte.
    Send(usize),
    /// We read everything there is.
    Drain(usize),
    /// We write until there is no room.
    Fill(usize),
    /// The peer reads everything there is.
    Accept(usize),
    HalfClose(usize),
    Close(usize),
}

fn interest() -> impl Strategy<Value = Interest> {
    prop::sample::select(vec![
        Interest::NONE,
        Interest::READ,
        Interest::WRITE,
        Interest::BOTH,
    ])
}

fn step() -> impl Strategy<Value = Step> {
    let socket = || 0..SOCKETS;
    prop_oneof![
        4 => (socket(), interest()).prop_map(|(socket, interest)| Step::Add(socket, interest)),
        4 => (socket(), interest()).prop_map(|(socket, interest)| Step::Modify(socket, interest)),
        2 => socket().prop_map(Step::Remove),
        4 => socket().prop_map(Step::Send),
        3 => socket().prop_map(Step::Drain),
        1 => socket().prop_map(Step::Fill),
        1 => socket().prop_map(Step::Accept),
        1 => socket().prop_map(Step::HalfClose),
        1 => socket().prop_map(Step::Close),
    ]
}

/// One of our ends, its peer while that is open, and what a reader must find.
struct Socket {
    near: UnixStream,
    far: Option<UnixStream>,
    interest: Option<Interest>,
    readable: bool,
    ended: bool,
}

impl Socket {
    fn new() -> Socket {
        let (near, far) = support::pair();
        Socket {
            near,
            far: Some(far),
            interest: None,
            readable: false,
            ended: false,
        }
    }

    fn live(&mut self, step: Step) {
        match step {
            Step::Send(_) if !self.ended => {
                let far = self.far.as_mut().unwrap();
                self.readable |= far.write(b"x").is_ok();
            }
            Step::Drain(_) => {
                while self
                    .near
                    .read(&mut [0; 65536])
                    .is_ok_and(|length| length > 0)
                {}
                self.readable = self.ended;
            }
            Step::Fill(_) => support::fill(&mut self.near),
            Step::Accept(_) => {
                if let Some(far) = &mut self.far {
                    while far.read(&mut [0; 65536]).is_ok_and(|length| length > 0) {}
                }
            }
            Step::HalfClose(_) if !self.ended => {
                self.far
                    .as_ref()
                    .unwrap()
                    .shutdown(Shutdown::Write)
                    .unwrap();
                (self.readable, self.ended) = (true, true);
            }
            Step::Close(_) => {
                self.far = None;
                (self.readable, self.ended) = (true, true);
            }
            _ => {}
        }
    }
}

/// Does the step to each mechanism, and holds their answers against each other and against what is
/// registered.
fn register(socket: &mut Socket, events: &mut [Events], step: Step) {
    let known = socket.interest.is_some();
    for events in events {
        let near = socket.near.as_fd();
        let (result, allowed) = match step {
            Step::Add(slot, interest) => (events.add(near, Token(slot as u64), interest), !known),
            Step::Modify(slot, interest) => {
                (events.modify(near, Token(slot as u64), interest), known)
            }
            Step::Remove(_) => (events.remove(near), known),
            _ => return,
        };
        assert_eq!(
            result.is_ok(),
            allowed,
            "{}: {step:?}: {result:?}",
            events.mechanism()
        );
    }
    socket.interest = match step {
        Step::Add(_, interest) if !known => Some(interest),
        Step::Modify(_, interest) if known => Some(interest),
        Step::Remove(_) => None,
        _ => socket.interest,
    };
}

fn answer(events: &mut Events) -> Vec<Ready> {
    let mut ready = support::ready_now(events);
    ready.sort_by_key(|ready| ready.token.0);
    ready
}

/// What select can say of the same state: everything but hang-ups.
fn without_hangups(ready: &[Ready]) -> Vec<Ready> {
    let directions = ready
        .iter()
        .filter(|ready| ready.readable || ready.writable);
    directions
        .map(|ready| Ready {
            hangup: false,
            ..*ready
        })
        .collect()
}

proptest! {
    #[test]
    fn all_mechanisms_agree_when_steps_are_random(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut sockets: Vec<Socket> = (0..SOCKETS).map(|_| Socket::new()).collect();
        let sim = Events::simulated(Plan::new(1).reordered());
        let mut mechanisms = [
            support::select(),
            support::poll(),
            support::epoll(),
            support::epoll_edge(),
            support::io_uring(),
            sim,
        ];
        for step in steps {
            let (Step::Add(slot, _) | Step::Modify(slot, _) | Step::Remove(slot) | Step::Send(slot)
            | Step::Drain(slot) | Step::Fill(slot) | Step::Accept(slot) | Step::HalfClose(slot)
            | Step::Close(slot)) = step;
            sockets[slot].live(step);
            register(&mut sockets[slot], &mut mechanisms, step);

            let [select, poll, epoll, edge, uring, sim] = mechanisms.each_mut().map(answer);
            prop_assert_eq!(&poll, &epoll, "poll and epoll after {:?}", step);
            prop_assert_eq!(&poll, &edge, "poll and epoll-edge after {:?}", step);
            prop_assert_eq!(&poll, &uring, "poll and io_uring after {:?}", step);
            prop_assert_eq!(&poll, &sim, "poll and sim after {:?}", step);
            prop_assert_eq!(&select, &without_hangups(&poll), "select and poll after {:?}", step);
            for (slot, socket) in sockets.iter().enumerate() {
                let is_reported = poll.iter().any(|ready| ready.token.0 == slot as u64 && ready.readable);
                let is_of_interest = socket.interest.is_some_and(Interest::reads);
                prop_assert_eq!(is_reported, is_of_interest && socket.readable, "socket {} after {:?}", slot, step);
            }
        }
    }
}
