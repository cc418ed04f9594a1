//! What a worker says to its handshake process, and what it makes of the answers. The test acts as the
//! process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use headway_os::codec::decode;
use headway_os::fd_passing::{Wait, receive_with_descriptors, send_with_descriptors};
use headway_tls::wire::{Answer, MESSAGE_BYTES_MAX, Order, encode};
use headway_tls::{Cipher, Direction, Established, Reason};
use rustix::io::IoSlice;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::tools::*;
use crate::support::{Served, TIMEOUT, config};

/// A record with one byte of a handshake.
const RECORD: &[u8] = &[22, 3, 1, 0, 1, 1];

struct Played {
    served: Served,
    process: OwnedFd,
    _directory: tempfile::TempDir,
}

/// A worker whose handshake process is the test.
fn play(settings: &str) -> Played {
    let directory = tempfile::tempdir().unwrap();
    Certified::new().write(directory.path());
    let settings = tls_settings(directory.path(), settings);
    let mut served = Served::start(config(directory.path(), &settings));
    let process = served.take_handshakes();
    set_socket_timeout(&process, Timeout::Recv, Some(TIMEOUT)).unwrap();
    Played {
        process,
        served,
        _directory: directory,
    }
}

impl Played {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.served.tls_address.unwrap()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The token of a client whose records come next.
    fn is_fed(&self, expected: &[u8]) -> u64 {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let received = receive_with_descriptors(&self.process, &mut buffer, 0, Wait::Block);
        let length = received.unwrap().unwrap().length;
        match decode(&buffer[..length]).unwrap() {
            Order::Feed { token, records } => {
                assert_eq!(records, expected);
                token
            }
            other => panic!("{other:?}"),
        }
    }

    fn forgets(&self, expected: u64) {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let received = receive_with_descriptors(&self.process, &mut buffer, 0, Wait::Block);
        let length = received.unwrap().unwrap().length;
        let order: Order<'_> = decode(&buffer[..length]).unwrap();
        assert_eq!(order, Order::Forget { token: expected });
    }

    fn answer(&self, answer: &Answer<'_>) {
        let mut message = Vec::new();
        encode(answer, &mut message);
        let parts = [IoSlice::new(&message)];
        send_with_descriptors(&self.process, &parts, &[], Wait::Block).unwrap();
    }

    /// A client whose handshake has begun and waits for it.
    fn begin(&self) -> (TcpStream, u64) {
        let mut stream = self.connect();
        stream.write_all(RECORD).unwrap();
        let token = self.is_fed(RECORD);
        let output = b"x";
        self.answer(&Answer::More {
            token,
            server_name: None,
            output,
        });
        stream.read_exact(&mut [0]).unwrap();
        (stream, token)
    }
}

#[test]
fn process_forgets_clients_that_end_their_handshake_in_any_way() {
    let mut played = play("tls-handshake-timeout = \"300ms\"");
    // It closes.
    let (stream, token) = played.begin();
    drop(stream);
    played.forgets(token);
    // It sends what is no record.
    let (mut stream, token) = played.begin();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    played.forgets(token);
    assert_eq!(rest(&mut stream).0, b"");
    drop(stream);
    // It stalls.
    let (mut stream, token) = played.begin();
    played.forgets(token);
    assert_eq!(rest(&mut stream).0, b"");
    let end = played
        .served
        .wait_for("the ends", |now| now.counters.connections_open == 0);
    assert_eq!(end.counters.tls_failed_client_closed, 1);
    assert_eq!(end.counters.tls_failed_bad_message, 1);
    assert_eq!(end.counters.tls_failed_timeout, 1);
    assert_eq!(end.counters.tls_handshakes_failed, 3);
    assert_eq!(end.counters.timeouts_handshake, 1);
}

#[test]
fn answers_for_clients_that_have_gone_make_room_for_others() {
    let mut played = play("");
    let mut gone = Vec::new();
    for _ in 0..64 {
        let mut stream = played.connect();
        stream.write_all(RECORD).unwrap();
        gone.push((played.is_fed(RECORD), stream));
    }
    // No more clients have room.
    let mut waits = played.connect();
    waits.write_all(&[RECORD, RECORD].concat()).unwrap();
    played.served.wait_for("the last client", |now| {
        now.counters.connections_accepted == 65
    });
    let mut tokens = Vec::new();
    for (token, stream) in gone {
        // A reset is noticed at once.
        rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
        drop(stream);
        played.forgets(token);
        tokens.push(token);
    }
    for token in tokens {
        let output = b"late";
        played.answer(&Answer::More {
            token,
            server_name: None,
            output,
        });
    }
    let token = played.is_fed(&[RECORD, RECORD].concat());
    // An alert reaches the client, and what it goes on to send does not get into its way.
    let (failure, output) = (Reason::ClientAlert.into(), &b"alert"[..]);
    waits.write_all(&[0; 50_000]).unwrap();
    played.answer(&Answer::Failed {
        token,
        failure,
        server_name: None,
        output,
    });
    let mut said = [0; 5];
    waits.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"alert");
    let end = played.served.snapshot();
    assert_eq!(end.counters.tls_failed_client_alert, 1);
    assert_eq!(end.counters.tls_failed_client_closed, 64);
}

#[test]
fn client_that_sends_more_is_read_when_the_process_has_answered() {
    let played = play("");
    let mut stream = played.connect();
    stream.write_all(RECORD).unwrap();
    let token = played.is_fed(RECORD);
    let more = RECORD.repeat(1_000);
    stream.write_all(&more).unwrap();
    // The loop has seen both writes when it has another client's answer.
    let _other = played.begin();
    let output = b"x";
    played.answer(&Answer::More {
        token,
        server_name: None,
        output,
    });
    assert_eq!(played.is_fed(&more), token);
}

#[test]
fn malformed_answer_replaces_the_process() {
    let mut played = play("");
    let (mut stream, _) = played.begin();
    let parts = [IoSlice::new(b"no answer")];
    send_with_descriptors(&played.process, &parts, &[], Wait::Block).unwrap();
    assert_eq!(rest(&mut stream).0, b"");
    played.process = played.served.take_handshakes();
    let (_stream, _) = played.begin();
    let end = played.served.snapshot();
    assert_eq!(end.counters.tls_failed_process_gone, 1);
}

/// A connection whose keys are known.
fn established() -> Established {
    let direction = Direction {
        key: vec![7; 16],
        iv: [9; 12],
        sequence: 0,
        secret: Vec::new(),
    };
    Established::with_keys(false, Cipher::Aes128Gcm, direction.clone(), direction)
}

#[test]
fn last_records_of_a_handshake_that_the_socket_does_not_take_are_sent_later() {
    let mut played = play("header-timeout = \"5m\"\ntls-handshake-timeout = \"5m\"");
    let mut stream = played.connect();
    let (part, mut sent) = (vec![b'x'; 100_000], 0);
    let mut token = 0;
    // More than the buffers of both sides hold.
    for _ in 0..120 {
        stream.write_all(RECORD).unwrap();
        token = played.is_fed(RECORD);
        played.answer(&Answer::More {
            token,
            server_name: None,
            output: &part,
        });
        sent += part.len();
    }
    stream.write_all(RECORD).unwrap();
    played.is_fed(RECORD);
    played.answer(&Answer::Done {
        token,
        established: established(),
        output: b"last",
    });
    played
        .served
        .wait_for("the handshake", |now| now.counters.tls_handshakes_full == 1);
    let mut received = vec![0; sent + 4];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received[sent..], b"last");
    // The connection is open, and its client is asked for a record.
    stream.write_all(b"no record").unwrap();
    let end = played
        .served
        .wait_for("the end", |now| now.counters.tls_connections_failed == 1);
    assert_eq!(end.counters.tls_handshakes_failed, 0);
}

#[test]
fn records_that_the_socket_of_the_process_never_takes_fail_their_client_alone() {
    let mut played = play("");
    let (ours, theirs) = headway_os::fd_passing::pair().unwrap();
    // The kernel doubles it.
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 10_000).unwrap();
    played.process = played.served.take_handshakes_by((ours, theirs));
    set_socket_timeout(&played.process, Timeout::Recv, Some(TIMEOUT)).unwrap();
    let mut large = vec![22, 3, 1, 0x40, 0];
    large.resize(5 + 0x4000, 1);
    let mut stream = played.connect();
    stream.write_all(&[&large[..], &large].concat()).unwrap();
    let end = played
        .served
        .wait_for("the failure", |now| now.counters.tls_failed_other > 0);
    assert_eq!(end.counters.tls_handshakes_failed, 1);
    drop(stream);
    let (_others, _) = played.begin();
}
