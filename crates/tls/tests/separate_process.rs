//! Handshakes by messages, as a worker and its handshake process exchange them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use headway_os::codec::{Version, decode};
use headway_os::fd_passing::{
    Wait, pair as socket_pair, receive_with_descriptors, send_with_descriptors,
};
use headway_tls::process::{handshake_main, sealed, start};
use headway_tls::wire::{Answer, MESSAGE_BYTES_MAX, Order, encode};
use headway_tls::{Established, Reason, Settings, TicketSecret};
use rustix::io::IoSlice;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvFlags, recv};
use rustls::ClientConnection;

use crate::client_certificates::{client_with, self_certified};
use crate::support::*;

/// A worker's end, and the process as a thread.
pub struct Worker {
    pub socket: OwnedFd,
    process: JoinHandle<io::Result<()>>,
    buffer: Vec<u8>,
}

pub fn worker() -> Worker {
    worker_with(None)
}

/// With this send buffer of the process, which the kernel doubles.
fn worker_with(buffer: Option<usize>) -> Worker {
    let (socket, theirs) = socket_pair().unwrap();
    if let Some(bytes) = buffer {
        set_socket_send_buffer_size(&theirs, bytes).unwrap();
    }
    Worker {
        socket,
        process: std::thread::spawn(|| handshake_main(theirs)),
        buffer: vec![0; MESSAGE_BYTES_MAX],
    }
}

fn started(settings: &Settings, tickets: &Option<TicketSecret>) -> Worker {
    started_with(settings, tickets, None)
}

fn started_with(
    settings: &Settings,
    tickets: &Option<TicketSecret>,
    buffer: Option<usize>,
) -> Worker {
    let worker = worker_with(buffer);
    let descriptors = [sealed(settings).unwrap(), sealed(tickets).unwrap()];
    start(&worker.socket, &descriptors).unwrap();
    worker
}

impl Worker {
    fn send_bytes(&self, message: &[u8]) {
        send_with_descriptors(&self.socket, &[IoSlice::new(message)], &[], Wait::Block).unwrap();
    }

    fn send(&self, order: &Order<'_>) {
        let mut message = Vec::new();
        encode(order, &mut message);
        self.send_bytes(&message);
    }

    fn receive(&mut self) -> Answer<'_> {
        let received = receive_with_descriptors(&self.socket, &mut self.buffer, 0, Wait::Block);
        let received = received.unwrap().unwrap();
        decode(&self.buffer[..received.length]).unwrap()
    }

    pub fn feed(&mut self, token: u64, records: &[u8]) -> Answer<'_> {
        self.send(&Order::Feed { token, records });
        self.receive()
    }

    /// The process's end, after the worker's.
    pub fn ended(self) -> io::Result<()> {
        drop(self.socket);
        self.process.join().unwrap()
    }

    /// The client's first records are answered.
    pub fn begin(&mut self, token: u64, client: &mut ClientConnection) {
        match self.feed(token, &client_output(client)) {
            Answer::More {
                token: of, output, ..
            } => {
                assert_eq!(of, token);
                client_input(client, output).unwrap();
            }
            _ => panic!("another answer"),
        }
    }

    pub fn finish(&mut self, token: u64, client: &mut ClientConnection) -> Established {
        match self.feed(token, &client_output(client)) {
            Answer::Done {
                token: of,
                established,
                output,
            } => {
                assert_eq!(of, token);
                client_input(client, output).unwrap();
                established
            }
            _ => panic!("another answer"),
        }
    }
}

#[test]
fn handshakes_of_several_clients_are_done_by_messages() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut worker = started(&settings(std::slice::from_ref(&identity)), &None);
    for version in [V12, V13] {
        let config = Arc::new(config(version, std::slice::from_ref(&identity)));
        let mut clients = [7, 8, u64::MAX].map(|token| (token, connect(&config, "a.example")));
        for (token, client) in &mut clients {
            worker.begin(*token, client);
        }
        for (token, mut client) in clients.into_iter().rev() {
            let established = worker.finish(token, &mut client);
            assert_data_passes(&mut pair(client, established));
        }
    }
    worker.ended().unwrap();
}

/// Tickets have the client's certificates in them, so an answer may become longer than any message.
#[test]
fn client_with_a_very_long_certificate_fails_alone_if_the_socket_does_not_take_the_answer() {
    let server = identity(&["a.example"], Kind::P256);
    for (length, buffer, is_let_in) in [
        (30_000, None, true),
        (50_000, Some(40_000), false),
        (1, Some(40_000), true),
    ] {
        let own = self_certified(length);
        let mut settings = settings(std::slice::from_ref(&server));
        settings.client_authorities = own.certificate.clone();
        let mut worker = started_with(&settings, &secret(), buffer);
        let mut client = connect(&client_with(V13, &server, Some(&own)), "a.example");
        worker.begin(1, &mut client);
        if is_let_in {
            let established = worker.finish(1, &mut client);
            assert_data_passes(&mut pair(client, established));
        } else {
            let Answer::Failed { failure, .. } = worker.feed(1, &client_output(&mut client)) else {
                panic!("it is let in");
            };
            assert_eq!(failure.reason, Reason::Other);
            assert!(failure.detail.contains("wmem_default"), "{failure}");
        }
        // Others go on.
        let mut next = connect(
            &client_with(V13, &server, Some(&self_certified(1))),
            "a.example",
        );
        worker.begin(2, &mut next);
        worker.ended().unwrap();
    }
}

#[test]
fn processes_with_one_secret_resume_each_others_sessions() {
    let identity = identity(&["a.example"], Kind::P256);
    let (settings, secret) = (settings(std::slice::from_ref(&identity)), secret());
    let config = Arc::new(config(V13, std::slice::from_ref(&identity)));
    for is_resumed in [false, true] {
        let mut worker = started(&settings, &secret);
        let mut client = connect(&config, "a.example");
        worker.begin(1, &mut client);
        assert_eq!(worker.finish(1, &mut client).is_resumed, is_resumed);
        worker.ended().unwrap();
    }
}

#[test]
fn client_that_has_gone_is_forgotten_and_its_token_is_free() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut worker = started(&settings(std::slice::from_ref(&identity)), &None);
    let config = Arc::new(config(V13, std::slice::from_ref(&identity)));
    let mut gone = connect(&config, "a.example");
    worker.begin(5, &mut gone);
    worker.send(&Order::Forget { token: 5 });
    // One that it does not know is no mistake.
    worker.send(&Order::Forget { token: 6 });
    let mut next = connect(&config, "a.example");
    worker.begin(5, &mut next);
    let established = worker.finish(5, &mut next);
    assert_data_passes(&mut pair(next, established));
    // The old client's records are no hello.
    match worker.feed(5, &client_output(&mut gone)) {
        Answer::Failed {
            token,
            failure,
            output,
            ..
        } => {
            assert_eq!((token, failure.reason), (5, Reason::BadMessage));
            assert!(!output.is_empty());
        }
        _ => panic!("another answer"),
    }
    worker.ended().unwrap();
}

#[test]
fn failed_handshake_has_an_alert_and_others_go_on() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut worker = started(&settings(std::slice::from_ref(&identity)), &None);
    match worker.feed(1, &[23, 3, 3, 0, 1, 7]) {
        Answer::Failed {
            token: 1, output, ..
        } => assert_eq!(output.first(), Some(&21)),
        _ => panic!("another answer"),
    }
    let config = Arc::new(config(V13, std::slice::from_ref(&identity)));
    let mut client = connect(&config, "a.example");
    worker.begin(1, &mut client);
    worker.finish(1, &mut client);
    worker.ended().unwrap();
}

#[test]
fn malformed_messages_end_the_process_with_an_error() {
    let identity = identity(&["a.example"], Kind::P256);
    for message in [&[9][..], &[2, 1, 2], &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0]] {
        let worker = started(&settings(std::slice::from_ref(&identity)), &None);
        worker.send_bytes(message);
        let error = worker.ended().unwrap_err();
        assert!(error.to_string().contains("malformed"), "{error}");
    }
    let worker = started(&settings(std::slice::from_ref(&identity)), &None);
    worker.send(&Order::Start { version: Version });
    assert!(worker.ended().is_err());
}

#[test]
fn first_message_has_to_be_the_start_with_its_descriptors() {
    for order in [
        Order::Start { version: Version },
        Order::Forget { token: 1 },
    ] {
        let worker = worker();
        worker.send(&order);
        assert!(worker.ended().is_err(), "{order:?}");
    }
}

#[test]
fn settings_that_cannot_be_used_end_the_process_with_an_error() {
    let mut bad = settings(&[identity(&["a.example"], Kind::P256)]);
    bad.identities[0].key.clear();
    let worker = started(&bad, &None);
    let error = worker.ended().unwrap_err();
    assert!(error.to_string().starts_with("key: "), "{error}");
}

#[test]
fn process_ends_when_the_workers_end_is_closed() {
    worker().ended().unwrap();
    let identity = identity(&["a.example"], Kind::P256);
    let settings = settings(std::slice::from_ref(&identity));
    started(&settings, &None).ended().unwrap();
    // Even if there is an answer that nothing receives.
    let config = Arc::new(config(V13, std::slice::from_ref(&identity)));
    let worker = started(&settings, &None);
    let records = client_output(&mut connect(&config, "a.example"));
    for token in 0..3 {
        let records = &records;
        worker.send(&Order::Feed { token, records });
    }
    recv(&worker.socket, &mut [0; 1], RecvFlags::PEEK).unwrap();
    worker.ended().unwrap();
}

#[test]
fn long_messages_fail_while_there_are_many_handshakes() {
    let identity = identity(&["a.example"], Kind::P256);
    let mut worker = started(&settings(std::slice::from_ref(&identity)), &None);
    // The beginning of a hello of this many bytes.
    let part = |bytes: usize| {
        let length = (bytes as u16).to_be_bytes();
        let mut record = vec![22, 3, 1, length[0], length[1], 1, 0, 0xf0, 0];
        record.resize(5 + bytes, 0);
        record
    };
    let mut feed = |token, records: &[u8]| match worker.feed(token, records) {
        Answer::More { .. } => None,
        Answer::Failed { failure, .. } => Some(failure),
        Answer::Done { .. } => panic!("it is done"),
    };
    for token in 0..1_024 {
        assert_eq!(feed(token, &part(9_000)), None);
    }
    let failure = feed(0, &part(9_000)[..]);
    assert_eq!(failure, None, "it is one of those that may be long");
    assert_eq!(feed(2_000, &part(9_000)), None);
    let failure = feed(2_000, &part(9_000)).unwrap();
    assert_eq!(failure.reason, Reason::Other);
    let config = Arc::new(config(V13, std::slice::from_ref(&identity)));
    let mut client = connect(&config, "a.example");
    worker.begin(3_000, &mut client);
    worker.finish(3_000, &mut client);
    worker.ended().unwrap();
}
