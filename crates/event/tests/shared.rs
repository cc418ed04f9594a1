//! One listener in the sets of several processes: it behaves as in a single set, and one sleeping
//! process is woken per connection, in turn. Threads act as the processes, each with its own
//! descriptor.

use crate::{for_each, support};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_event::{Events, Interest, Token};
use support::{ready_now, wait_ready};

for_each! {
    select = super::support::select() => { listener_is_ready_until_it_is_empty_when_it_is_shared }
    poll = super::support::poll() => { listener_is_ready_until_it_is_empty_when_it_is_shared }
    epoll = super::support::epoll() => {
        listener_is_ready_until_it_is_empty_when_it_is_shared
        requeueing_changes_nothing_when_one_process_has_the_listener
    }
    epoll_edge = super::support::epoll_edge() => {
        listener_is_ready_until_it_is_empty_when_it_is_shared
        requeueing_changes_nothing_when_one_process_has_the_listener
    }
    io_uring = super::support::io_uring() => {
        listener_is_ready_until_it_is_empty_when_it_is_shared
        requeueing_changes_nothing_when_one_process_has_the_listener
    }
}

const LISTENER: Token = Token(7);
const STOP: Token = Token(8);
const TIMEOUT: Duration = Duration::from_secs(20);

fn listener() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn listener_is_ready_until_it_is_empty_when_it_is_shared(mut events: Events) {
    let listener = listener();
    let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let next_token = |events: &mut Events| wait_ready(events).first().map(|ready| ready.token);
    events
        .add_shared(listener.as_fd(), LISTENER, Interest::READ)
        .unwrap();
    assert_eq!(ready_now(&mut events), []);
    let _clients = [connect(), connect()];
    for _ in 0..2 {
        assert_eq!(next_token(&mut events), Some(LISTENER));
        listener.accept().unwrap();
    }
    assert_eq!(ready_now(&mut events), []);
    for token in [Token(9), LISTENER] {
        events
            .modify(listener.as_fd(), token, Interest::NONE)
            .unwrap();
        let _client = connect();
        assert_eq!(ready_now(&mut events), [], "of no interest");
        events
            .modify(listener.as_fd(), token, Interest::READ)
            .unwrap();
        assert_eq!(next_token(&mut events), Some(token), "it came meanwhile");
        listener.accept().unwrap();
    }
    assert!(
        events
            .add_shared(listener.as_fd(), STOP, Interest::READ)
            .is_err()
    );
    events
        .modify(listener.as_fd(), LISTENER, Interest::NONE)
        .unwrap();
    events.remove(listener.as_fd()).unwrap();
    events
        .add_shared(listener.as_fd(), LISTENER, Interest::NONE)
        .unwrap();
    events.remove(listener.as_fd()).unwrap();
    let _client = connect();
    assert_eq!(ready_now(&mut events), []);
}

/// Of two sets with the same listener the second reports each connection, whatever was reported to
/// the first before.
#[test]
fn connection_is_reported_to_the_waiting_process_when_another_has_no_interest() {
    for make in [support::epoll, support::epoll_edge, support::io_uring] {
        let listener = listener();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut first, mut second) = (make(), make());
        for events in [&mut first, &mut second] {
            events
                .add_shared(listener.as_fd(), LISTENER, Interest::READ)
                .unwrap();
            assert_eq!(ready_now(events), []);
        }
        let mut clients = vec![connect()];
        listener.accept().unwrap();
        first.requeue_shared(listener.as_fd()).unwrap();
        ready_now(&mut first);
        first
            .modify(listener.as_fd(), LISTENER, Interest::NONE)
            .unwrap();
        for _ in 0..3 {
            clients.push(connect());
            assert_eq!(wait_ready(&mut second).len(), 1, "{second:?}");
            listener.accept().unwrap();
            second.requeue_shared(listener.as_fd()).unwrap();
            ready_now(&mut second);
            assert_eq!(ready_now(&mut first), []);
        }
    }
}

fn requeueing_changes_nothing_when_one_process_has_the_listener(mut events: Events) {
    let listener = listener();
    events
        .add_shared(listener.as_fd(), LISTENER, Interest::READ)
        .unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for _ in 0..3 {
        assert_eq!(wait_ready(&mut events).len(), 1, "not taken yet");
        events.requeue_shared(listener.as_fd()).unwrap();
    }
    events
        .modify(listener.as_fd(), LISTENER, Interest::NONE)
        .unwrap();
    events.requeue_shared(listener.as_fd()).unwrap();
    assert_eq!(
        ready_now(&mut events),
        [],
        "requeueing does not restore the interest"
    );
    events.remove(listener.as_fd()).unwrap();
    assert!(events.requeue_shared(listener.as_fd()).is_err());
}

/// A thread that accepts.
struct Acceptor {
    thread: Option<JoinHandle<()>>,
    tid: i32,
    /// Whether the thread is in its wait, or about to be.
    waits: Arc<AtomicBool>,
    stop: UnixStream,
}

impl Acceptor {
    fn start(
        make: fn() -> Events,
        number: usize,
        listener: &TcpListener,
        taken: Sender<usize>,
        empty_wakeups: Arc<AtomicU64>,
    ) -> Acceptor {
        let listener = listener.try_clone().unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let waits = Arc::new(AtomicBool::new(false));
        let (send_tid, receive_tid) = channel();
        let waiting = waits.clone();
        let thread = std::thread::spawn(move || {
            send_tid
                .send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            // Made here: a set belongs to one thread.
            let mut events = make();
            let near = listener.as_fd();
            events.add_shared(near, LISTENER, Interest::READ).unwrap();
            events.add(stopped.as_fd(), STOP, Interest::READ).unwrap();
            let mut ready = Vec::new();
            loop {
                waiting.store(true, Ordering::SeqCst);
                events.wait(&mut ready, None).unwrap();
                waiting.store(false, Ordering::SeqCst);
                for one in &ready {
                    if one.token == STOP {
                        return;
                    }
                    match listener.accept() {
                        Ok(_) => taken.send(number).unwrap(),
                        Err(_) => drop(empty_wakeups.fetch_add(1, Ordering::SeqCst)),
                    }
                    events.requeue_shared(near).unwrap();
                }
            }
        });
        Acceptor {
            thread: Some(thread),
            tid: receive_tid.recv().unwrap(),
            waits,
            stop,
        }
    }

    /// Whether the thread sleeps in its wait.
    fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.tid));
        let stat = stat.unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('S'));
        self.waits.load(Ordering::SeqCst) && state == Some(true)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"x");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// Numbers of the threads that accepted eight connections, one after the other, and the count of
/// wakeups without a connection. All threads sleep before each connection.
fn acceptors_of_eight(make: fn() -> Events) -> (Vec<usize>, u64) {
    let listener = listener();
    let empty_wakeups = Arc::new(AtomicU64::new(0));
    let (sender, taken): (_, Receiver<usize>) = channel();
    let acceptors: Vec<Acceptor> = (0..2)
        .map(|number| {
            Acceptor::start(
                make,
                number,
                &listener,
                sender.clone(),
                empty_wakeups.clone(),
            )
        })
        .collect();
    let all_sleep = || {
        let begun = Instant::now();
        // Twice: the first may have woken up while the second was checked.
        while !(acceptors.iter().all(Acceptor::sleeps) && acceptors.iter().all(Acceptor::sleeps)) {
            assert!(begun.elapsed() < TIMEOUT, "a thread does not sleep");
            std::thread::yield_now();
        }
    };
    let mut order = Vec::new();
    for _ in 0..8 {
        all_sleep();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        order.push(taken.recv_timeout(TIMEOUT).expect("a thread accepts it"));
    }
    all_sleep();
    (order, empty_wakeups.load(Ordering::SeqCst))
}

fn alternates(order: &[usize]) -> bool {
    order.windows(2).all(|pair| pair[0] != pair[1])
}

#[test]
fn one_process_is_woken_per_connection_in_turn_when_epoll_shares_a_listener() {
    let (order, empty_wakeups) = acceptors_of_eight(support::epoll);
    assert!(alternates(&order), "{order:?}");
    assert_eq!(empty_wakeups, 0);
}

#[test]
fn one_process_is_woken_per_connection_in_turn_when_epoll_edge_shares_a_listener() {
    let (order, empty_wakeups) = acceptors_of_eight(support::epoll_edge);
    assert!(alternates(&order), "{order:?}");
    assert_eq!(empty_wakeups, 0);
}

#[test]
fn one_process_is_woken_per_connection_in_turn_when_io_uring_shares_a_listener() {
    let (order, empty_wakeups) = acceptors_of_eight(support::io_uring);
    assert!(alternates(&order), "{order:?}");
    assert_eq!(empty_wakeups, 0);
}

#[test]
fn every_connection_is_accepted_when_all_processes_are_woken() {
    let (order, _) = acceptors_of_eight(support::poll);
    assert_eq!(order.len(), 8);
}
