//! Tests that responses arrive complete, within the write quantum and from one version of the file.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use headway_config::SendVariant;
use headway_files::{CHUNK_BYTES, Outcome, Pool, PoolLimits, Roots, helper_main};
use headway_request::{Charge, Piece, StoredBody};

use super::*;

mod offload;

/// All ways to send files, those of the papers included.
const METHODS: &[(SendMethod, Option<SendVariant>)] = &[
    (SendMethod::Copy, None),
    (SendMethod::Sendfile, None),
    (SendMethod::Auto, None),
    (SendMethod::Copy, Some(SendVariant::SendfileResident)),
    (SendMethod::Copy, Some(SendVariant::SendfileRecent)),
    (SendMethod::Copy, Some(SendVariant::Mmap)),
];

const COPY: (SendMethod, Option<SendVariant>) = (SendMethod::Copy, None);

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
    /// Reads what has arrived so far, without waiting.
    fn arrived(&mut self, bytes: &mut Vec<u8>) {
        if let Err(error) = self.client.read_to_end(bytes) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    }

    /// Reads the rest of the stream after the server has closed its side.
    fn rest(&mut self, bytes: &mut Vec<u8>) {
        self.server.shutdown(std::net::Shutdown::Write).unwrap();
        self.client.set_nonblocking(false).unwrap();
        self.client.read_to_end(bytes).unwrap();
    }
}

/// Opens a file as the server does, and reads it once so that it is resident.
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

struct Tick {
    progress: SendProgress,
    counters: Counters,
    prefetched: usize,
}

/// The sending state of a worker for one client.
struct Sender {
    method: SendMethod,
    variant: Option<SendVariant>,
    other: Option<Box<dyn SendFiles>>,
    chunks: ChunkPool,
    write_size_hint: u32,
    was_passed: bool,
    tracer: Tracer,
    now_ms: u64,
    copies_until_ms: u64,
    /// TLS for which the kernel seals.
    client: Option<Client>,
}

impl Sender {
    fn new((method, variant): (SendMethod, Option<SendVariant>)) -> Self {
        // A small limit, so that chunks are evicted and loaded again.
        let other = variant.map(|variant| research::of(variant, 3 * CHUNK_BYTES, false));
        Self {
            method,
            variant,
            other,
            chunks: ChunkPool::new(0),
            write_size_hint: 0,
            was_passed: false,
            tracer: Tracer::disabled(),
            now_ms: 1,
            copies_until_ms: 0,
            client: None,
        }
    }

    fn tick(&mut self, outgoing: &mut Outgoing, ends: &Ends, quantum_bytes: u64) -> Tick {
        let mut counters = Counters::default();
        let (mut prefetch, mut sealed, mut sealing_ns) = (Vec::new(), Vec::new(), 0);
        let mut context = SendContext {
            tls: self.client.as_mut().map(|client| Sealer {
                client,
                buffer: &mut sealed,
                now_ms: 1,
                sealing_ns: &mut sealing_ns,
            }),
            stream: None,
            tracer: &self.tracer,
            residency: &Residency::detect(),
            method: self.method,
            now_ms: self.now_ms,
            copies_until_ms: &mut self.copies_until_ms,
            was_passed: self.was_passed,
            without_more: false,
            chunks: &mut self.chunks,
            write_size_hint: &mut self.write_size_hint,
            quantum_bytes,
            counters: &mut counters,
            prefetch: &mut prefetch,
            known_resident: None,
        };
        let other = self.other.as_deref_mut();
        let progress = send(outgoing, ends.server.as_fd(), &mut context, other);
        Tick {
            progress,
            counters,
            prefetched: prefetch.len(),
        }
    }

    /// Runs iterations until the response has been sent, and returns what arrived.
    fn send_all(
        &mut self,
        outgoing: &mut Outgoing,
        ends: &mut Ends,
        quantum_bytes: u64,
    ) -> Vec<u8> {
        let mut arrived = Vec::new();
        for _ in 0..10_000 {
            let tick = self.tick(outgoing, ends, quantum_bytes);
            assert_eq!(tick.prefetched, 0, "everything is resident");
            ends.arrived(&mut arrived);
            match tick.progress {
                SendProgress::Finished => {
                    ends.rest(&mut arrived);
                    return arrived;
                }
                SendProgress::SocketFull | SendProgress::QuantumSpent => {}
                SendProgress::NotResident(file, offset) if self.records_recent_use() => {
                    self.record_recent_use(&file, offset)
                }
                _ => panic!("a resident response does not fail"),
            }
        }
        panic!("not finished after 10000 iterations");
    }
}

impl Sender {
    /// Whether a chunk that was not used recently counts as not resident.
    fn records_recent_use(&self) -> bool {
        self.variant == Some(SendVariant::SendfileRecent)
    }

    /// Records that a helper has read the chunk in.
    fn record_recent_use(&mut self, file: &Rc<OpenFile>, offset: u64) {
        if let Some(other) = &mut self.other {
            other.chunk_was_read(file, offset);
        }
    }

    /// Marks the whole file as recently sent.
    fn warm(&mut self, outgoing: &Outgoing) {
        let file = outgoing.file().expect("a file").clone();
        for number in 0..file.meta().size.div_ceil(CHUNK_BYTES) {
            self.record_recent_use(&file, number * CHUNK_BYTES);
        }
    }
}

fn response(pieces: Vec<Piece>) -> Outgoing {
    let mut outgoing = Outgoing::new(200, b"head".to_vec());
    outgoing.pieces.extend(pieces);
    outgoing
}

#[test]
fn response_is_complete_when_the_socket_fills_many_times() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("big");
    let content = numbered(9_000_001);
    fs::write(&path, &content).unwrap();
    let memory = numbered(3_000_000);
    for &method in METHODS {
        let mut ends = ends();
        let mut outgoing = response(vec![
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
        assert!(arrived == expected, "{method:?}: {lengths:?} bytes");
        assert_eq!(outgoing.sent_bytes, expected.len() as u64);
    }
}

/// A file in memory as a helper makes it for the content store.
fn stored(content: &[u8]) -> Rc<StoredBody> {
    let (worker, helper) = headway_os::fd_passing::pair().unwrap();
    let thread = std::thread::spawn(|| helper_main(helper, &|_| Vec::new()));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, content).unwrap();
    let mut pool = Pool::new(PoolLimits::default(), Rc::new(Roots::open(&[]).unwrap()));
    let slot = pool.attach(worker, std::process::id());
    pool.submit_copy_ahead(&open(&path)).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        pool.flush(0);
        pool.on_ready(slot, 0, &mut done);
    }
    drop(pool);
    thread.join().unwrap().unwrap();
    let Some(Outcome::Copied {
        content: Ok(file), ..
    }) = done.pop().map(|done| done.outcome)
    else {
        panic!("the helper has copied it");
    };
    let charge = Charge::new(&Rc::default(), file.meta().size);
    Rc::new(StoredBody::new(file, charge, false))
}

#[test]
fn stored_bodies_arrive_complete_and_in_order_beside_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let (content, large) = (numbered(300_000), numbered(9_000_001));
    fs::write(&path, &content).unwrap();
    let body = stored(&large);
    for was_passed in [false, true] {
        for &method in METHODS {
            let (mut ends, mut sender) = (ends(), Sender::new(method));
            sender.was_passed = was_passed;
            let mut outgoing = response(vec![
                Piece::Stored(body.clone(), 5..9_000_001),
                Piece::bytes(b"between".to_vec()),
                Piece::Stored(body.clone(), 7..7),
                Piece::Stored(body.clone(), 0..70_000),
                Piece::File(open(&path), 0..300_000),
                Piece::bytes(b"end".to_vec()),
                Piece::Stored(body.clone(), 9_000_000..9_000_001),
            ]);
            let arrived = sender.send_all(&mut outgoing, &mut ends, 512 << 10);
            let last = &large[9_000_000..];
            let expected = [
                b"head",
                &large[5..],
                b"between",
                &large[..70_000],
                &content,
                b"end",
                last,
            ];
            assert!(arrived == expected.concat(), "{method:?} {was_passed}");
        }
    }
}

#[test]
fn stored_body_is_not_read_by_the_worker_unless_another_process_had_the_socket() {
    let body = stored(&numbered(60_000));
    for (was_passed, read) in [(false, 0), (true, 1)] {
        let (ends, mut sender) = (ends(), Sender::new(COPY));
        sender.was_passed = was_passed;
        let mut outgoing = response(vec![Piece::Stored(body.clone(), 0..60_000)]);
        let tick = sender.tick(&mut outgoing, &ends, 1 << 20);
        assert!(matches!(tick.progress, SendProgress::Finished));
        assert_eq!(tick.counters.sent_bytes, 60_004);
        assert_eq!(sender.chunks.filled(), read, "{was_passed}");
    }
}

/// Sends a head of 4 bytes and a body of 50,000.
fn stops_at_the_quantum(sender: &mut Sender, outgoing: &mut Outgoing, ends: &Ends) {
    let first = sender.tick(outgoing, ends, 10_000);
    assert!(matches!(first.progress, SendProgress::QuantumSpent));
    assert_eq!(first.counters.sent_bytes, 10_004, "the head is free");
    let second = sender.tick(outgoing, ends, 1_000_000);
    assert!(matches!(second.progress, SendProgress::Finished));
    assert_eq!(outgoing.sent_bytes, 50_004);
}

#[test]
fn stored_body_stops_at_the_write_quantum_when_the_socket_has_room() {
    let (ends, mut sender) = (ends(), Sender::new(COPY));
    let body = stored(&numbered(50_000));
    let mut outgoing = response(vec![Piece::Stored(body, 0..50_000)]);
    stops_at_the_quantum(&mut sender, &mut outgoing, &ends);
}

#[test]
fn sending_stops_at_the_write_quantum_when_the_socket_has_room() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, numbered(50_000)).unwrap();
    for &method in METHODS {
        let (ends, mut sender) = (ends(), Sender::new(method));
        let mut outgoing = response(vec![Piece::File(open(&path), 0..50_000)]);
        sender.warm(&outgoing);
        stops_at_the_quantum(&mut sender, &mut outgoing, &ends);
    }
}

#[test]
fn nothing_is_sent_when_the_file_changed_before_the_header() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for &method in METHODS {
        fs::write(&path, numbered(1000)).unwrap();
        let (mut ends, mut sender) = (ends(), Sender::new(method));
        // In the second response a part's header precedes the file, as in multipart/byteranges.
        for between in [vec![], vec![Piece::bytes(b"part".to_vec())]] {
            let mut outgoing = response(between);
            outgoing.push(Piece::File(open(&path), 0..900));
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            let size = file.metadata().unwrap().len();
            file.set_len(size - 10).unwrap();
            let tick = sender.tick(&mut outgoing, &ends, 1_000_000);
            assert!(matches!(tick.progress, SendProgress::Changed));
            assert_eq!(outgoing.sent_bytes, 0, "an error can still be sent");
        }
        let mut arrived = Vec::new();
        ends.arrived(&mut arrived);
        assert_eq!(arrived, b"");
    }
}

#[test]
fn response_stops_between_chunks_when_the_file_is_rewritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let size = 2 * CHUNK_BYTES;
    for &method in METHODS {
        fs::write(&path, numbered(size as usize)).unwrap();
        let (ends, mut sender) = (ends(), Sender::new(method));
        let mut outgoing = response(vec![Piece::File(open(&path), 0..size)]);
        sender.warm(&outgoing);
        assert!(matches!(
            sender.tick(&mut outgoing, &ends, CHUNK_BYTES).progress,
            SendProgress::QuantumSpent
        ));
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"more").unwrap();
        let tick = sender.tick(&mut outgoing, &ends, 1_000_000);
        match tick.progress {
            SendProgress::Changed => assert_ne!(method, COPY),
            // What was sent may be the same in the version that is longer.
            SendProgress::Unchecked(_, left) => {
                assert_eq!((method, left), (COPY, CHUNK_BYTES..size));
            }
            _ => panic!("{method:?}: the change is not seen"),
        }
        assert_eq!(tick.counters.sent_bytes, 0, "no byte of another version");
    }
}

/// Only what left by copy is known, so a comparison would miss a change of the rest.
#[test]
fn change_ends_a_response_of_which_a_part_left_by_sendfile_before_copies() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let size = 3 * CHUNK_BYTES;
    fs::write(&path, numbered(size as usize)).unwrap();
    let (mut ends, mut sender) = (ends(), Sender::new((SendMethod::Auto, None)));
    let mut outgoing = response(vec![Piece::File(open(&path), 0..size)]);
    for copies_until_ms in [0, u64::MAX] {
        sender.copies_until_ms = copies_until_ms;
        let tick = sender.tick(&mut outgoing, &ends, CHUNK_BYTES);
        assert!(matches!(tick.progress, SendProgress::QuantumSpent));
        ends.arrived(&mut Vec::new());
    }
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"more").unwrap();
    let tick = sender.tick(&mut outgoing, &ends, 1_000_000);
    assert!(matches!(tick.progress, SendProgress::Changed));
    assert_eq!(tick.counters.sent_bytes, 0);
}

#[test]
fn body_is_one_version_when_the_file_is_rewritten_while_the_socket_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let (old, new) = (numbered(5_000_000), vec![b'#'; 5_000_000]);
    fs::write(&path, &old).unwrap();
    let (mut ends, mut sender) = (ends(), Sender::new(COPY));
    let mut outgoing = Outgoing::new(200, Vec::new());
    outgoing.push(Piece::File(open(&path), 0..5_000_000));
    while !matches!(
        sender.tick(&mut outgoing, &ends, 1 << 20).progress,
        SendProgress::SocketFull
    ) {}
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&new).unwrap();
    let mut arrived = Vec::new();
    loop {
        ends.arrived(&mut arrived);
        match sender.tick(&mut outgoing, &ends, 1 << 20).progress {
            SendProgress::SocketFull | SendProgress::QuantumSpent => {}
            SendProgress::Unchecked(..) => break,
            _ => panic!("the change is seen before the response is through"),
        }
    }
    ends.rest(&mut arrived);
    assert_eq!(arrived.len() as u64, outgoing.sent_bytes);
    assert!(arrived.len() < old.len() && old.starts_with(&arrived));
}

#[test]
fn disconnected_client_is_distinguished_from_a_slow_one() {
    let ends = ends();
    drop(ends.client);
    let ends = Ends {
        client: ends.server.try_clone().unwrap(),
        server: ends.server,
    };
    let mut outgoing = Outgoing::new(200, numbered(100_000));
    let mut sender = Sender::new(COPY);
    // The first send may still succeed; the client's reset shows at the second one at the latest.
    for _ in 0..100 {
        let progress = sender.tick(&mut outgoing, &ends, 1000).progress;
        if matches!(progress, SendProgress::Disconnected) {
            return;
        }
        outgoing = Outgoing::new(200, numbered(100_000));
        std::thread::yield_now();
    }
    panic!("the disconnect was not noticed");
}

#[test]
fn chunk_ends_at_its_boundary_or_with_the_piece() {
    assert_eq!(chunk::end(0, 10), 10);
    assert_eq!(chunk::end(0, 10 * CHUNK_BYTES), CHUNK_BYTES);
    assert_eq!(chunk::end(CHUNK_BYTES - 1, 10 * CHUNK_BYTES), CHUNK_BYTES);
    assert_eq!(chunk::end(CHUNK_BYTES, 10 * CHUNK_BYTES), 2 * CHUNK_BYTES);
}

#[test]
fn send_errors_are_classified_as_full_retry_disk_error_or_disconnect() {
    assert!(matches!(
        classify_send_error(Errno::AGAIN),
        Some(SendProgress::SocketFull)
    ));
    assert!(classify_send_error(Errno::INTR).is_none());
    assert!(matches!(
        classify_send_error(Errno::IO),
        Some(SendProgress::Unreadable(Failure::Io))
    ));
    for gone in [
        Errno::PIPE,
        Errno::CONNRESET,
        Errno::TIMEDOUT,
        Errno::NOTCONN,
    ] {
        assert!(matches!(
            classify_send_error(gone),
            Some(SendProgress::Disconnected)
        ));
    }
}

/// The socket waits for room: a sleep as that for a disk, which can be had at will.
#[test]
fn auto_copies_for_ten_seconds_after_a_sendfile_that_slept() {
    const NAME: &str = "auto_copies_for_ten_seconds_after_a_sendfile_that_slept";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let contents = numbered(16 << 20);
    fs::write(&path, &contents).unwrap();
    let file = open(&path);
    let ends = ends();
    let mut sender = Sender::new((SendMethod::Auto, None));
    sender.tracer = Tracer::enable();
    if !sender.tracer.sees_sleeps() {
        return headway_test_support::skip(NAME, "sleeps are not seen");
    }
    let mut outgoing = Outgoing::new(200, Vec::new());
    outgoing.push(Piece::File(file, 0..contents.len() as u64));
    let whole = contents.len() as u64;
    let first = sender.tick(&mut outgoing, &ends, CHUNK_BYTES);
    assert_eq!(
        (first.counters.sendfile_slept, sender.copies_until_ms),
        (0, 0)
    );
    // The client reads only after the server waits.
    ends.server.set_nonblocking(false).unwrap();
    ends.client.set_nonblocking(false).unwrap();
    let mut client = ends.client.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut arrived = vec![0; whole as usize];
        client.read_exact(&mut arrived).map(|()| arrived)
    });
    while sender.copies_until_ms == 0 {
        assert!(!outgoing.pieces.is_empty(), "no call slept");
        sender.tick(&mut outgoing, &ends, CHUNK_BYTES);
    }
    assert_eq!(sender.copies_until_ms, 10_001);
    let sendfiles = |sender: &Sender| sender.tracer.report().calls.get("sendfile").copied();
    let before = sendfiles(&sender);
    ends.server.set_nonblocking(true).unwrap();
    let mut buffered = 0;
    while !outgoing.pieces.is_empty() {
        let tick = sender.tick(&mut outgoing, &ends, CHUNK_BYTES);
        buffered += tick.counters.chunks_resident + tick.counters.chunks_buffered;
        assert!(outgoing.sent_prefix.is_none(), "nothing to compare");
    }
    assert!(buffered > 0 && sendfiles(&sender) == before, "{before:?}");
    assert!(reader.join().unwrap().unwrap() == contents);
    sender.now_ms = 10_001;
    outgoing.push(Piece::File(open(&path), 0..CHUNK_BYTES));
    let _ = sender.tick(&mut outgoing, &ends, CHUNK_BYTES);
    assert!(sendfiles(&sender) > before);
}
