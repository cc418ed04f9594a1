//! Replies leave whole, in bounds and unmixed, whatever the socket takes.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use headway_files::WINDOW_BYTES;

use super::*;
use crate::request::Piece;

const METHODS: &[SendMethod] = SendMethod::ALL;

struct Ends {
    server: TcpStream,
    client: TcpStream,
}

fn ends() -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_nonblocking(true).unwrap();
    client.set_nonblocking(true).unwrap();
    Ends { server, client }
}

impl Ends {
    /// What has arrived by now, without waiting for more.
    fn arrived(&mut self, bytes: &mut Vec<u8>) {
        if let Err(error) = self.client.read_to_end(bytes) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    }

    /// What still arrives when the server has no more to say.
    fn rest(&mut self, bytes: &mut Vec<u8>) {
        self.server.shutdown(std::net::Shutdown::Write).unwrap();
        self.client.set_nonblocking(false).unwrap();
        self.client.read_to_end(bytes).unwrap();
    }
}

/// Opened as the server does, and read once, so that it is resident.
fn open(path: &Path) -> Rc<OpenFile> {
    fs::read(path).unwrap();
    let file = fs::File::open(path).unwrap();
    let status = rustix::fs::fstat(&file).unwrap();
    let meta = headway_files::Meta {
        size: status.st_size as u64,
        modified: (status.st_mtime as i64, status.st_mtime_nsec as u32),
        changed: (status.st_ctime as i64, status.st_ctime_nsec as u32),
        device: status.st_dev,
        inode: status.st_ino,
    };
    Rc::new(OpenFile::new(file.into(), meta))
}

fn numbered(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}

struct Turn {
    progress: Progress,
    counters: Counters,
    prefetched: usize,
}

/// A worker's part of sending, for one client.
struct Sender {
    method: SendMethod,
    windows: Windows,
    maps: Chunks<Mapping>,
    recent: Chunks<()>,
    uptake_bytes: u32,
}

impl Sender {
    fn new(method: SendMethod) -> Self {
        Self {
            method,
            windows: Windows::new(0),
            // So few that windows leave and come again.
            maps: Chunks::new(3 * WINDOW_BYTES),
            recent: Chunks::new(3 * WINDOW_BYTES),
            uptake_bytes: 0,
        }
    }

    fn turn(&mut self, outgoing: &mut Outgoing, ends: &Ends, budget_bytes: u64) -> Turn {
        let mut counters = Counters::default();
        let mut prefetch = Vec::new();
        let mut means = Means {
            tracer: &Tracer::disabled(),
            residency: &Residency::detect(),
            method: self.method,
            windows: &mut self.windows,
            maps: &mut self.maps,
            recent: &mut self.recent,
            uptake_bytes: &mut self.uptake_bytes,
            budget_bytes,
            counters: &mut counters,
            prefetch: &mut prefetch,
            proven: None,
        };
        let progress = send(outgoing, ends.server.as_fd(), &mut means);
        Turn {
            progress,
            counters,
            prefetched: prefetch.len(),
        }
    }

    /// Turns until the reply has left; what arrived.
    fn send_all(&mut self, outgoing: &mut Outgoing, ends: &mut Ends, budget_bytes: u64) -> Vec<u8> {
        let mut arrived = Vec::new();
        for _ in 0..10_000 {
            let turn = self.turn(outgoing, ends, budget_bytes);
            assert_eq!(turn.prefetched, 0, "everything is resident");
            ends.arrived(&mut arrived);
            match turn.progress {
                Progress::Finished => {
                    ends.rest(&mut arrived);
                    return arrived;
                }
                Progress::SocketFull | Progress::TurnSpent => {}
                Progress::Cold(file, offset) if self.learns() => self.learn(&file, offset),
                _ => panic!("a resident reply does not fail"),
            }
        }
        panic!("no end after 10000 turns");
    }
}

impl Sender {
    /// What was not used lately counts as cold, whether it is resident or not.
    fn learns(&self) -> bool {
        self.method == SendMethod::SendfileRecent
    }

    /// A helper has read it in.
    fn learn(&mut self, file: &Rc<OpenFile>, offset: u64) {
        self.recent.insert(file, offset, ());
        while self.recent.surplus().is_some() {}
    }

    /// As if the file had been sent before.
    fn warm(&mut self, outgoing: &Outgoing) {
        let file = outgoing.file().expect("a file").clone();
        for number in 0..file.meta().size.div_ceil(WINDOW_BYTES) {
            self.learn(&file, number * WINDOW_BYTES);
        }
    }
}

fn reply(pieces: Vec<Piece>) -> Outgoing {
    let mut outgoing = Outgoing::new(200, b"head".to_vec());
    outgoing.pieces.extend(pieces);
    outgoing
}

#[test]
fn reply_arrives_whole_when_the_socket_fills_many_times() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("big");
    let content = numbered(9_000_001);
    fs::write(&path, &content).unwrap();
    let memory = numbered(3_000_000);
    for &method in METHODS {
        let mut ends = ends();
        let mut outgoing = reply(vec![
            Piece::bytes(memory.clone()),
            Piece::File(open(&path), 5..9_000_001),
            Piece::bytes(b"between".to_vec()),
            Piece::File(open(&path), 7..7),
            Piece::File(open(&path), 0..1),
            Piece::bytes(b"end".to_vec()),
        ]);
        let arrived = Sender::new(method).send_all(&mut outgoing, &mut ends, 512 << 10);
        let expected = [
            b"head",
            &*memory,
            &content[5..],
            b"between",
            &content[..1],
            b"end",
        ]
        .concat();
        let lengths = (arrived.len(), expected.len());
        assert!(arrived == expected, "{method}: {lengths:?} bytes");
        assert_eq!(outgoing.sent_bytes, expected.len() as u64);
    }
}

#[test]
fn turn_ends_at_its_budget_when_the_socket_would_take_more() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, numbered(50_000)).unwrap();
    for &method in METHODS {
        let (ends, mut sender) = (ends(), Sender::new(method));
        let mut outgoing = reply(vec![Piece::File(open(&path), 0..50_000)]);
        sender.warm(&outgoing);
        let first = sender.turn(&mut outgoing, &ends, 10_000);
        assert!(matches!(first.progress, Progress::TurnSpent));
        assert_eq!(first.counters.bytes_sent, 10_004, "the head is free");
        let second = sender.turn(&mut outgoing, &ends, 1_000_000);
        assert!(matches!(second.progress, Progress::Finished));
        assert_eq!(outgoing.sent_bytes, 50_004);
    }
}

#[test]
fn nothing_leaves_when_the_file_has_changed_before_the_head() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for &method in METHODS {
        fs::write(&path, numbered(1000)).unwrap();
        let (mut ends, mut sender) = (ends(), Sender::new(method));
        // The second reply's file stands behind a part's head, as in multipart/byteranges.
        for between in [vec![], vec![Piece::bytes(b"part".to_vec())]] {
            let mut outgoing = reply(between);
            outgoing.push(Piece::File(open(&path), 0..900));
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            let size = file.metadata().unwrap().len();
            file.set_len(size - 10).unwrap();
            let turn = sender.turn(&mut outgoing, &ends, 1_000_000);
            assert!(matches!(turn.progress, Progress::Changed));
            assert_eq!(outgoing.sent_bytes, 0, "an error can still be told");
        }
        let mut arrived = Vec::new();
        ends.arrived(&mut arrived);
        assert_eq!(arrived, b"");
    }
}

#[test]
fn reply_breaks_off_between_windows_when_the_file_is_rewritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let size = 2 * WINDOW_BYTES;
    for &method in METHODS {
        fs::write(&path, numbered(size as usize)).unwrap();
        let (ends, mut sender) = (ends(), Sender::new(method));
        let mut outgoing = reply(vec![Piece::File(open(&path), 0..size)]);
        sender.warm(&outgoing);
        assert!(matches!(
            sender.turn(&mut outgoing, &ends, WINDOW_BYTES).progress,
            Progress::TurnSpent
        ));
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"more").unwrap();
        let turn = sender.turn(&mut outgoing, &ends, 1_000_000);
        assert!(matches!(turn.progress, Progress::Changed), "{method}");
        assert_eq!(turn.counters.bytes_sent, 0, "no byte of another version");
    }
}

#[test]
fn body_is_one_version_when_the_file_is_rewritten_while_the_socket_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let (old, new) = (numbered(5_000_000), vec![b'#'; 5_000_000]);
    fs::write(&path, &old).unwrap();
    let (mut ends, mut sender) = (ends(), Sender::new(SendMethod::Copy));
    let mut outgoing = Outgoing::new(200, Vec::new());
    outgoing.push(Piece::File(open(&path), 0..5_000_000));
    while !matches!(
        sender.turn(&mut outgoing, &ends, 1 << 20).progress,
        Progress::SocketFull
    ) {}
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&new).unwrap();
    let mut arrived = Vec::new();
    loop {
        ends.arrived(&mut arrived);
        match sender.turn(&mut outgoing, &ends, 1 << 20).progress {
            Progress::SocketFull | Progress::TurnSpent => {}
            Progress::Changed => break,
            _ => panic!("the change is seen before the reply is through"),
        }
    }
    ends.rest(&mut arrived);
    assert_eq!(arrived.len() as u64, outgoing.sent_bytes);
    assert!(arrived.len() < old.len() && old.starts_with(&arrived));
}

#[test]
fn client_that_is_gone_is_told_apart_from_one_that_is_slow() {
    let ends = ends();
    drop(ends.client);
    let ends = Ends {
        client: ends.server.try_clone().unwrap(),
        server: ends.server,
    };
    let mut outgoing = Outgoing::new(200, numbered(100_000));
    let mut sender = Sender::new(SendMethod::Copy);
    // The first send meets the client's reset at the latest; the second knows of it.
    for _ in 0..100 {
        let progress = sender.turn(&mut outgoing, &ends, 1000).progress;
        if matches!(progress, Progress::Gone) {
            return;
        }
        outgoing = Outgoing::new(200, numbered(100_000));
        std::thread::yield_now();
    }
    panic!("sending to nobody goes on");
}

#[test]
fn window_ends_at_its_boundary_or_with_the_piece() {
    assert_eq!(window::end(0, 10), 10);
    assert_eq!(window::end(0, 10 * WINDOW_BYTES), WINDOW_BYTES);
    assert_eq!(
        window::end(WINDOW_BYTES - 1, 10 * WINDOW_BYTES),
        WINDOW_BYTES
    );
    assert_eq!(
        window::end(WINDOW_BYTES, 10 * WINDOW_BYTES),
        2 * WINDOW_BYTES
    );
}

#[test]
fn would_block_and_interruption_are_no_errors_and_only_eio_is_the_disks() {
    assert!(matches!(refused(Errno::AGAIN), Some(Progress::SocketFull)));
    assert!(refused(Errno::INTR).is_none());
    assert!(matches!(refused(Errno::IO), Some(Progress::Unreadable)));
    for gone in [
        Errno::PIPE,
        Errno::CONNRESET,
        Errno::TIMEDOUT,
        Errno::NOTCONN,
    ] {
        assert!(matches!(refused(gone), Some(Progress::Gone)));
    }
}
