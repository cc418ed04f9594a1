//! One listener in the sets of several processes: it behaves as in a single one, and of those who
//! sleep one is woken for a client, in turn. Threads stand for the processes, each with a
//! descriptor of its own.

mod support;

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
use support::{now, soon};

for_each! {
    select = super::support::select() => { listener_is_ready_until_it_is_empty_when_it_is_shared }
    poll = super::support::poll() => { listener_is_ready_until_it_is_empty_when_it_is_shared }
    epoll = super::support::epoll() => {
        listener_is_ready_until_it_is_empty_when_it_is_shared
        passing_on_changes_nothing_when_there_is_nobody_else
    }
    epoll_edge = super::support::epoll_edge() => {
        listener_is_ready_until_it_is_empty_when_it_is_shared
        passing_on_changes_nothing_when_there_is_nobody_else
    }
    io_uring = super::support::io_uring() => {
        listener_is_ready_until_it_is_empty_when_it_is_shared
        passing_on_changes_nothing_when_there_is_nobody_else
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
    let told = |events: &mut Events| soon(events).first().map(|ready| ready.token);
    events
        .add_shared(listener.as_fd(), LISTENER, Interest::READ)
        .unwrap();
    assert_eq!(now(&mut events), []);
    let _clients = [connect(), connect()];
    for _ in 0..2 {
        assert_eq!(told(&mut events), Some(LISTENER));
        listener.accept().unwrap();
    }
    assert_eq!(now(&mut events), []);
    for token in [Token(9), LISTENER] {
        events
            .modify(listener.as_fd(), token, Interest::NONE)
            .unwrap();
        let _client = connect();
        assert_eq!(now(&mut events), [], "not asked for");
        events
            .modify(listener.as_fd(), token, Interest::READ)
            .unwrap();
        assert_eq!(told(&mut events), Some(token), "it came meanwhile");
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
    assert_eq!(now(&mut events), []);
}

/// Of two pollers that share it, the second gets each client, whatever events the first got before.
#[test]
fn connection_goes_to_the_poller_that_asks_when_another_was_woken_for_a_closed_one() {
    for make in [support::epoll, support::epoll_edge, support::io_uring] {
        let listener = listener();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut first, mut second) = (make(), make());
        for events in [&mut first, &mut second] {
            events
                .add_shared(listener.as_fd(), LISTENER, Interest::READ)
                .unwrap();
            assert_eq!(now(events), []);
        }
        let mut clients = vec![connect()];
        listener.accept().unwrap();
        first.requeue_shared(listener.as_fd()).unwrap();
        now(&mut first);
        first
            .modify(listener.as_fd(), LISTENER, Interest::NONE)
            .unwrap();
        for _ in 0..3 {
            clients.push(connect());
            assert_eq!(soon(&mut second).len(), 1, "{second:?}");
            listener.accept().unwrap();
            second.requeue_shared(listener.as_fd()).unwrap();
            now(&mut second);
            assert_eq!(now(&mut first), []);
        }
    }
}

fn passing_on_changes_nothing_when_there_is_nobody_else(mut events: Events) {
    let listener = listener();
    events
        .add_shared(listener.as_fd(), LISTENER, Interest::READ)
        .unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for _ in 0..3 {
        assert_eq!(soon(&mut events).len(), 1, "not taken yet");
        events.requeue_shared(listener.as_fd()).unwrap();
    }
    events
        .modify(listener.as_fd(), LISTENER, Interest::NONE)
        .unwrap();
    events.requeue_shared(listener.as_fd()).unwrap();
    assert_eq!(now(&mut events), [], "nor does it come back by this");
    events.remove(listener.as_fd()).unwrap();
    assert!(events.requeue_shared(listener.as_fd()).is_err());
}

/// A thread that accepts.
struct Taker {
    thread: Option<JoinHandle<()>>,
    tid: i32,
    /// It is about to wait, or waits.
    waits: Arc<AtomicBool>,
    stop: UnixStream,
}

impl Taker {
    fn start(
        make: fn() -> Events,
        number: usize,
        listener: &TcpListener,
        taken: Sender<usize>,
        vain: Arc<AtomicU64>,
    ) -> Taker {
        let listener = listener.try_clone().unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let waits = Arc::new(AtomicBool::new(false));
        let (tell, told) = channel();
        let waiting = waits.clone();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get())
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
                        Err(_) => drop(vain.fetch_add(1, Ordering::SeqCst)),
                    }
                    events.requeue_shared(near).unwrap();
                }
            }
        });
        Taker {
            thread: Some(thread),
            tid: told.recv().unwrap(),
            waits,
            stop,
        }
    }

    /// Whether it sleeps in its wait.
    fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.tid));
        let stat = stat.unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('S'));
        self.waits.load(Ordering::SeqCst) && state == Some(true)
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"x");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// Returns which poller accepted each of eight clients, one after the other, and the number of
/// spurious wakeups. Before each client all pollers sleep.
fn takers_of_eight(make: fn() -> Events) -> (Vec<usize>, u64) {
    let listener = listener();
    let vain = Arc::new(AtomicU64::new(0));
    let (sender, taken): (_, Receiver<usize>) = channel();
    let takers: Vec<Taker> = (0..2)
        .map(|number| Taker::start(make, number, &listener, sender.clone(), vain.clone()))
        .collect();
    let all_sleep = || {
        let begun = Instant::now();
        // Twice: what was seen of the first may be over when the second is looked at.
        while !(takers.iter().all(Taker::sleeps) && takers.iter().all(Taker::sleeps)) {
            assert!(begun.elapsed() < TIMEOUT, "somebody does not sleep");
            std::thread::yield_now();
        }
    };
    let mut order = Vec::new();
    for _ in 0..8 {
        all_sleep();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        order.push(taken.recv_timeout(TIMEOUT).expect("somebody takes it"));
    }
    all_sleep();
    (order, vain.load(Ordering::SeqCst))
}

fn alternates(order: &[usize]) -> bool {
    order.windows(2).all(|pair| pair[0] != pair[1])
}

#[test]
fn one_is_woken_for_a_client_and_in_turn_when_epoll_is_shared() {
    let (order, vain) = takers_of_eight(support::epoll);
    assert!(alternates(&order), "{order:?}");
    assert_eq!(vain, 0);
}

#[test]
fn one_is_woken_for_a_client_and_in_turn_when_edges_are_shared() {
    let (order, vain) = takers_of_eight(support::epoll_edge);
    assert!(alternates(&order), "{order:?}");
    assert_eq!(vain, 0);
}

#[test]
fn one_is_woken_for_a_client_and_in_turn_when_polls_of_io_uring_are_shared() {
    let (order, vain) = takers_of_eight(support::io_uring);
    assert!(alternates(&order), "{order:?}");
    assert_eq!(vain, 0);
}

#[test]
fn every_client_is_taken_when_all_are_woken() {
    let (order, _) = takers_of_eight(support::poll);
    assert_eq!(order.len(), 8);
}
