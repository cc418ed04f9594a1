//! One suite for every mechanism: the behaviour that `Events` promises, whatever the kernel call
//! below.
//!
//! The simulated mechanism runs it too, reordered and with spurious wakeups, which no promise
//! excludes. Left out for it are the bound of 1024 events and what only tables indexed by
//! descriptor can get wrong.

use crate::{for_each, support};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use headway_event::{EVENTS_PER_WAIT_MAX, Events, Interest, Plan, Ready, Token};
use support::{can_open, fill, pair, ready_now, wait_ready};

fn sim() -> Events {
    Events::simulated(Plan::new(7).reordered().spurious_wakeups(30))
}

/// What every mechanism is held to, and what only this one is.
macro_rules! held_to_all {
    ($mechanism:ident = $events:expr; $($more:ident)*) => {
        for_each! {
            $mechanism = $events => {
                readable_when_data_has_arrived
                writable_when_there_is_room
                both_when_both_are_of_interest
                one_direction_when_only_one_is_of_interest
                nothing_when_interest_is_none
                changed_directions_when_interest_is_modified
                new_token_when_token_is_modified
                nothing_when_removed
                new_file_is_independent_when_its_number_is_reused
                delivered_again_when_not_drained
                silent_when_drained
                readable_when_peer_half_closes
                readable_or_hangup_when_peer_closes
                readable_or_hangup_when_peer_resets
                readable_when_writer_of_a_pipe_is_gone
                writable_when_reader_of_a_pipe_is_gone
                hangup_at_most_when_interest_is_none
                nothing_when_timeout_passes
                nothing_when_fine_timeout_passes
                readable_in_a_fine_wait_when_data_has_arrived
                returns_at_once_when_timeout_is_zero
                already_exists_when_added_twice
                not_found_when_unknown
                added_again_when_removed_before
                input_after_the_last_read_is_reported_when_the_caller_reports_drained
                end_is_reported_when_it_came_with_bytes_that_were_all_read
                peer_sees_the_end_when_a_descriptor_is_removed_and_closed
                $($more)*
            }
        }
    };
}

/// What the kernel's mechanisms are held to on top.
macro_rules! of_the_kernel {
    ($mechanism:ident = $events:expr; $($more:ident)*) => {
        held_to_all! {
            $mechanism = $events;
            others_stay_when_one_is_removed
            nothing_when_timeout_passes_with_no_descriptor
            high_numbers_work_when_past_1024
            every_descriptor_is_reported_when_more_are_ready_than_the_limit
            every_descriptor_is_reported_when_they_change_beyond_the_limit
            error_leaves_nothing_when_add_fails
            $($more)*
        }
    };
}

of_the_kernel! { select = super::support::select(); }
of_the_kernel! { poll = super::support::poll(); hangup_repeats_when_interest_is_none }
of_the_kernel! { epoll = super::support::epoll(); hangup_repeats_when_interest_is_none }
of_the_kernel! { epoll_edge = super::support::epoll_edge(); hangup_repeats_when_interest_is_none }
of_the_kernel! { io_uring = super::support::io_uring(); hangup_repeats_when_interest_is_none }
held_to_all! { sim = super::sim(); }

/// More than all tests of this file hold open at once, however many run side by side.
const DUPLICATES_MAX: u64 = 15_000;

const ONE: Token = Token(1);
const TWO: Token = Token(2);

fn event(token: Token, readable: bool, writable: bool) -> Ready {
    Ready {
        token,
        readable,
        writable,
        hangup: false,
    }
}

fn readable_when_data_has_arrived(mut events: Events) {
    let (near, mut far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    assert_eq!(ready_now(&mut events), []);
    far.write_all(b"x").unwrap();
    assert_eq!(wait_ready(&mut events), [event(ONE, true, false)]);
}

fn writable_when_there_is_room(mut events: Events) {
    let (mut near, mut far) = pair();
    fill(&mut near);
    events.add(near.as_fd(), ONE, Interest::WRITE).unwrap();
    assert_eq!(ready_now(&mut events), []);
    while far.read(&mut [0; 65536]).is_ok_and(|length| length > 0) {}
    assert_eq!(wait_ready(&mut events), [event(ONE, false, true)]);
}

fn both_when_both_are_of_interest(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::BOTH).unwrap();
    assert_eq!(wait_ready(&mut events), [event(ONE, true, true)]);
}

fn one_direction_when_only_one_is_of_interest(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    events.add(far.as_fd(), TWO, Interest::WRITE).unwrap();
    let mut ready = wait_ready(&mut events);
    ready.sort_by_key(|ready| ready.token.0);
    assert_eq!(ready, [event(ONE, true, false), event(TWO, false, true)]);
}

fn nothing_when_interest_is_none(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::NONE).unwrap();
    for _ in 0..10 {
        assert_eq!(ready_now(&mut events), []);
    }
}

fn changed_directions_when_interest_is_modified(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    for (interest, readable, writable) in [
        (Interest::WRITE, false, true),
        (Interest::BOTH, true, true),
        (Interest::READ, true, false),
    ] {
        events.modify(near.as_fd(), ONE, interest).unwrap();
        assert_eq!(wait_ready(&mut events), [event(ONE, readable, writable)]);
    }
    events.modify(near.as_fd(), ONE, Interest::NONE).unwrap();
    assert_eq!(ready_now(&mut events), []);
    events.modify(near.as_fd(), ONE, Interest::READ).unwrap();
    assert_eq!(wait_ready(&mut events), [event(ONE, true, false)]);
}

fn new_token_when_token_is_modified(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    events.modify(near.as_fd(), TWO, Interest::READ).unwrap();
    assert_eq!(wait_ready(&mut events), [event(TWO, true, false)]);
}

fn nothing_when_removed(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::BOTH).unwrap();
    events.remove(near.as_fd()).unwrap();
    for _ in 0..10 {
        assert_eq!(ready_now(&mut events), []);
    }
}

fn others_stay_when_one_is_removed(mut events: Events) {
    let pairs: Vec<_> = (0..5).map(|_| pair()).collect();
    for (slot, (near, far)) in pairs.iter().enumerate() {
        (&mut &*far).write_all(b"x").unwrap();
        events
            .add(near.as_fd(), Token(slot as u64), Interest::READ)
            .unwrap();
    }
    // The first, a middle one and the last: each is a different move in a dense table.
    for (removed, left) in [(0, vec![1, 2, 3, 4]), (2, vec![1, 3, 4]), (4, vec![1, 3])] {
        events.remove(pairs[removed].0.as_fd()).unwrap();
        let mut tokens: Vec<u64> = wait_ready(&mut events)
            .iter()
            .map(|ready| ready.token.0)
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, left);
    }
    events
        .modify(pairs[3].0.as_fd(), Token(33), Interest::NONE)
        .unwrap();
    assert_eq!(wait_ready(&mut events), [event(Token(1), true, false)]);
}

fn new_file_is_independent_when_its_number_is_reused(mut events: Events) {
    let (near, _near_peer) = pair();
    let (mut other_peer, other) = pair();
    events.add(near.as_fd(), ONE, Interest::BOTH).unwrap();
    let number = near.as_raw_fd();
    events.remove(near.as_fd()).unwrap();
    // A reuse of one number on purpose: other tests open descriptors at the same time, so closing
    // the first and taking the lowest free one would be a race.
    let mut reused = OwnedFd::from(near);
    rustix::io::dup2(&other, &mut reused).unwrap();
    assert_eq!(reused.as_raw_fd(), number);
    events.add(reused.as_fd(), TWO, Interest::READ).unwrap();
    assert_eq!(ready_now(&mut events), []);
    other_peer.write_all(b"x").unwrap();
    assert_eq!(wait_ready(&mut events), [event(TWO, true, false)]);
}

fn delivered_again_when_not_drained(mut events: Events) {
    let (mut near, mut far) = pair();
    far.write_all(b"xyz").unwrap();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    for _ in 0..3 {
        assert_eq!(wait_ready(&mut events), [event(ONE, true, false)]);
        near.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(ready_now(&mut events), []);
}

fn silent_when_drained(mut events: Events) {
    let (mut near, mut far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    far.write_all(b"x").unwrap();
    assert_eq!(wait_ready(&mut events).len(), 1);
    near.read_exact(&mut [0]).unwrap();
    assert_eq!(ready_now(&mut events), []);
}

fn input_after_the_last_read_is_reported_when_the_caller_reports_drained(mut events: Events) {
    let (mut near, mut far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    for _ in 0..3 {
        far.write_all(b"x").unwrap();
        assert_eq!(wait_ready(&mut events).len(), 1);
        near.read_exact(&mut [0]).unwrap();
        far.write_all(b"y").unwrap();
        events.drained(near.as_fd());
        assert_eq!(wait_ready(&mut events).len(), 1);
        near.read_exact(&mut [0]).unwrap();
        events.drained(near.as_fd());
        assert_eq!(ready_now(&mut events), []);
    }
}

fn end_is_reported_when_it_came_with_bytes_that_were_all_read(mut events: Events) {
    let (mut near, mut far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    far.write_all(b"x").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait_ready(&mut events).len(), 1);
    let mut buffer = [0; 16];
    assert_eq!(near.read(&mut buffer).unwrap(), 1);
    // The read was shorter than asked for, and yet it was not all.
    events.drained(near.as_fd());
    assert_eq!(wait_ready(&mut events).len(), 1);
    assert_eq!(near.read(&mut buffer).unwrap(), 0);
}

fn peer_sees_the_end_when_a_descriptor_is_removed_and_closed(mut events: Events) {
    for something_came in [false, true] {
        let (mut near, mut far) = pair();
        events.add(near.as_fd(), ONE, Interest::READ).unwrap();
        assert_eq!(ready_now(&mut events), []);
        if something_came {
            far.write_all(b"x").unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        events.forget(near.as_fd());
        drop(near);
        // A mechanism may hold it until it is asked the next time.
        assert_eq!(ready_now(&mut events), []);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "{something_came}");
    }
}

fn readable_when_peer_half_closes(mut events: Events) {
    let (mut near, far) = connected();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait_ready(&mut events), [event(ONE, true, false)]);
    assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(
        wait_ready(&mut events),
        [event(ONE, true, false)],
        "the end stays readable"
    );
}

fn readable_or_hangup_when_peer_closes(mut events: Events) {
    let (mut near, far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    drop(far);
    let ready = wait_ready(&mut events);
    assert!(ready.len() == 1 && ready[0].readable, "{ready:?}");
    assert_eq!(ready[0].hangup, events.mechanism() != "select");
    assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
}

fn readable_or_hangup_when_peer_resets(mut events: Events) {
    let (mut near, mut far) = connected();
    near.write_all(b"unread").unwrap();
    // A socket closed with data unread answers with a reset instead of an orderly end; the data is
    // certain to have arrived once it can be peeked at.
    far.peek(&mut [0]).unwrap();
    far.write_all(b"").unwrap();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    drop(far);
    let ready = wait_ready(&mut events);
    assert!(ready.len() == 1 && ready[0].readable, "{ready:?}");
    assert_eq!(ready[0].hangup, events.mechanism() != "select");
    assert_eq!(
        near.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
}

fn readable_when_writer_of_a_pipe_is_gone(mut events: Events) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    events.add(reader.as_fd(), ONE, Interest::READ).unwrap();
    assert_eq!(ready_now(&mut events), []);
    drop(writer);
    let ready = wait_ready(&mut events);
    assert!(
        ready.len() == 1 && ready[0].readable && !ready[0].writable,
        "{ready:?}"
    );
}

fn writable_when_reader_of_a_pipe_is_gone(mut events: Events) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    events.add(writer.as_fd(), ONE, Interest::WRITE).unwrap();
    let ready = wait_ready(&mut events);
    assert!(
        ready.len() == 1 && ready[0].writable && !ready[0].readable,
        "{ready:?}"
    );
}

fn hangup_at_most_when_interest_is_none(mut events: Events) {
    let (near, far) = pair();
    events.add(near.as_fd(), ONE, Interest::NONE).unwrap();
    drop(far);
    for ready in ready_now(&mut events) {
        assert_eq!(
            ready,
            Ready {
                token: ONE,
                readable: false,
                writable: false,
                hangup: true
            }
        );
    }
}

fn hangup_repeats_when_interest_is_none(mut events: Events) {
    let (near, far) = pair();
    events.add(near.as_fd(), ONE, Interest::NONE).unwrap();
    assert_eq!(ready_now(&mut events), []);
    drop(far);
    let hangup = Ready {
        token: ONE,
        readable: false,
        writable: false,
        hangup: true,
    };
    assert_eq!(wait_ready(&mut events), [hangup]);
    assert_eq!(wait_ready(&mut events), [hangup]);
    events.remove(near.as_fd()).unwrap();
    assert_eq!(ready_now(&mut events), []);
}

fn nothing_when_timeout_passes(mut events: Events) {
    let (near, _far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    let mut ready = vec![event(TWO, true, true)];
    events
        .wait(&mut ready, Some(Duration::from_micros(1)))
        .unwrap();
    assert_eq!(ready, []);
}

fn nothing_when_fine_timeout_passes(mut events: Events) {
    let (near, _far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    for timeout in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(1_500),
    ] {
        let mut ready = vec![event(TWO, true, true)];
        events.wait_precise(&mut ready, timeout).unwrap();
        assert_eq!(ready, []);
    }
}

fn readable_in_a_fine_wait_when_data_has_arrived(mut events: Events) {
    let (near, mut far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    far.write_all(b"x").unwrap();
    let mut ready = Vec::new();
    // The kernel must not refuse the longest timeout; spurious wakeups are allowed.
    assert!((0..100).any(|_| {
        events.wait_precise(&mut ready, Duration::MAX).unwrap();
        ready == [event(ONE, true, false)]
    }));
}

fn nothing_when_timeout_passes_with_no_descriptor(mut events: Events) {
    let mut ready = vec![event(TWO, true, true)];
    events
        .wait(&mut ready, Some(Duration::from_millis(1)))
        .unwrap();
    assert_eq!(ready, []);
}

fn returns_at_once_when_timeout_is_zero(mut events: Events) {
    // A wait without end would hang here, and that is the failure.
    assert_eq!(ready_now(&mut events), []);
    let (near, mut far) = pair();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    assert_eq!(ready_now(&mut events), []);
    far.write_all(b"x").unwrap();
    assert!((0..100).any(|_| ready_now(&mut events) == [event(ONE, true, false)]));
}

fn already_exists_when_added_twice(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    let error = events.add(near.as_fd(), TWO, Interest::BOTH).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(
        wait_ready(&mut events),
        [event(ONE, true, false)],
        "the first registration stands"
    );
}

fn not_found_when_unknown(mut events: Events) {
    let (near, far) = pair();
    let modify = |events: &mut Events| events.modify(near.as_fd(), ONE, Interest::READ);
    assert_eq!(modify(&mut events).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        events.remove(near.as_fd()).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    events.add(near.as_fd(), ONE, Interest::READ).unwrap();
    assert_eq!(
        events.remove(far.as_fd()).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    events.remove(near.as_fd()).unwrap();
    assert_eq!(modify(&mut events).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        events.remove(near.as_fd()).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

fn added_again_when_removed_before(mut events: Events) {
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    for token in [ONE, TWO] {
        events.add(near.as_fd(), token, Interest::READ).unwrap();
        assert_eq!(wait_ready(&mut events), [event(token, true, false)]);
        events.remove(near.as_fd()).unwrap();
    }
}

fn high_numbers_work_when_past_1024(mut events: Events) {
    if !can_open(4000, "high_numbers_work_when_past_1024") {
        return;
    }
    let (near, mut far) = pair();
    let high = rustix::io::fcntl_dupfd_cloexec(&near, 1500).unwrap();
    let higher = rustix::io::fcntl_dupfd_cloexec(&far, 3000).unwrap();
    events.add(high.as_fd(), ONE, Interest::READ).unwrap();
    events.add(higher.as_fd(), TWO, Interest::READ).unwrap();
    assert_eq!(ready_now(&mut events), []);
    far.write_all(b"x").unwrap();
    assert_eq!(wait_ready(&mut events), [event(ONE, true, false)]);
    events.remove(higher.as_fd()).unwrap();
    drop(higher);
    assert_eq!(wait_ready(&mut events), [event(ONE, true, false)]);
    events.modify(high.as_fd(), ONE, Interest::BOTH).unwrap();
    assert_eq!(wait_ready(&mut events), [event(ONE, true, true)]);
}

fn every_descriptor_is_reported_when_more_are_ready_than_the_limit(mut events: Events) {
    let count = 2 * EVENTS_PER_WAIT_MAX + 300;
    if !can_open(
        DUPLICATES_MAX,
        "every_descriptor_is_reported_when_more_are_ready_than_the_limit",
    ) {
        return;
    }
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    let descriptors = duplicates(&near, count);
    for (slot, fd) in descriptors.iter().enumerate() {
        events
            .add(fd.as_fd(), Token(slot as u64), Interest::READ)
            .unwrap();
    }
    // Nothing is drained, so all stay ready: three waits have room for every one of them.
    for _round in 0..3 {
        let mut served = HashSet::new();
        for _ in 0..3 {
            let ready = ready_now(&mut events);
            assert!(ready.len() <= EVENTS_PER_WAIT_MAX);
            let once: HashSet<Token> = ready.iter().map(|ready| ready.token).collect();
            assert_eq!(
                once.len(),
                ready.len(),
                "no descriptor is reported twice in a wait"
            );
            served.extend(once);
        }
        assert_eq!(served.len(), count);
    }
}

fn every_descriptor_is_reported_when_they_change_beyond_the_limit(mut events: Events) {
    let count = EVENTS_PER_WAIT_MAX + 200;
    if !can_open(
        DUPLICATES_MAX,
        "every_descriptor_is_reported_when_they_change_beyond_the_limit",
    ) {
        return;
    }
    let (near, mut far) = pair();
    far.write_all(b"x").unwrap();
    let descriptors = duplicates(&near, count);
    for (slot, fd) in descriptors.iter().enumerate() {
        events
            .add(fd.as_fd(), Token(slot as u64), Interest::READ)
            .unwrap();
    }
    assert_eq!(ready_now(&mut events).len(), EVENTS_PER_WAIT_MAX);
    // The bound cut that scan; now the table shrinks to below the place where the next one would
    // start.
    for fd in &descriptors[100..] {
        events.remove(fd.as_fd()).unwrap();
    }
    let served: HashSet<u64> = ready_now(&mut events)
        .iter()
        .map(|ready| ready.token.0)
        .collect();
    assert_eq!(served, (0..100).collect());
}

fn error_leaves_nothing_when_add_fails(mut events: Events) {
    // A regular file is always ready to select and poll, and is refused by epoll.
    let file = std::fs::File::open("Cargo.toml").unwrap();
    match events.add(file.as_fd(), ONE, Interest::READ) {
        Ok(()) => assert_eq!(ready_now(&mut events), [event(ONE, true, false)]),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert_eq!(
                events.remove(file.as_fd()).unwrap_err().kind(),
                ErrorKind::NotFound
            );
        }
    }
}

/// A TCP connection: only there are a half-close and a reset what a client does.
fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    (near, far)
}

fn duplicates(fd: impl AsFd, count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| rustix::io::fcntl_dupfd_cloexec(&fd, 0).unwrap())
        .collect()
}
