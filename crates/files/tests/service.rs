//! The open-file service, over its socket: what it answers, and that nobody who misbehaves harms others.

mod common;

use common::{directory, is_root, put, skip};
use headway_files::service::wire::{
    Answered, REPLY_BYTES, REQUEST_BYTES_MAX, Reply, Request, decode_reply, encode_request,
};
use headway_files::service::{ListenError, Remote, Service, ServiceConfig, ServiceError};
use headway_files::{NamesBounds, PoolLimits, helper_main};
use os::rights::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice, pread};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A tree, and a service for it in a thread.
struct Running {
    tree: TempDir,
    socket: PathBuf,
    remote: Option<Remote>,
    service: Option<JoinHandle<()>>,
    /// Helpers that the service wants and a test has not given it.
    wanted: Option<Receiver<usize>>,
}

fn config(tree: &Path) -> ServiceConfig {
    ServiceConfig {
        socket: tree.join("socket"),
        roots: vec![tree.join("root")],
        users: vec![rustix::process::geteuid().as_raw()],
        groups: vec![],
        clients_max: 100,
        patience: Duration::from_secs(10),
        read_in_max: 1 << 20,
        revalidate: Duration::ZERO,
        names: NamesBounds {
            entries_max: 1000,
            descriptors_max: 500,
        },
        helpers: PoolLimits::default(),
    }
}

impl Running {
    fn new() -> Running {
        let mut running = Running::without_helpers(|_| {});
        running.give_helpers();
        running
    }

    fn without_helpers(change: impl FnOnce(&mut ServiceConfig)) -> Running {
        let tree = directory();
        fs::create_dir(tree.path().join("root")).unwrap();
        let mut config = config(tree.path());
        change(&mut config);
        let socket = config.socket.clone();
        let (wants, wanted) = channel();
        let (tell, told) = channel();
        let service = std::thread::spawn(move || {
            let want = Box::new(move |count| wants.send(count).unwrap_or(()));
            let (service, remote) = Service::new(config, want).unwrap();
            tell.send(remote).unwrap();
            service.run().unwrap();
        });
        Running {
            tree,
            socket,
            remote: Some(told.recv().unwrap()),
            service: Some(service),
            wanted: Some(wanted),
        }
    }

    /// From now on the service gets the helpers that it wants, in threads.
    fn give_helpers(&mut self) {
        let (wanted, remote) = (self.wanted.take().unwrap(), self.remote().clone());
        std::thread::spawn(move || {
            for _ in wanted.iter().flat_map(|count| 0..count) {
                let (ours, theirs) = pair().unwrap();
                std::thread::spawn(move || helper_main(theirs, &|_| Vec::new()));
                remote.helper(ours, 1);
            }
        });
    }

    fn remote(&self) -> &Remote {
        self.remote.as_ref().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.tree.path().join("root").join(name)
    }

    fn put(&self, name: &str, contents: &[u8]) -> PathBuf {
        put(&self.tree.path().join("root"), name, contents);
        self.path(name)
    }

    fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    fn stop(&mut self) {
        self.remote().stop();
        self.service.take().unwrap().join().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.service.is_some() {
            self.remote().stop();
            // The spawner holds one, too, until the service has gone.
            self.remote = None;
            let _ = self.service.take().unwrap().join();
        }
    }
}

struct Client {
    socket: OwnedFd,
    number: u64,
}

impl Client {
    fn new(path: &Path) -> Client {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Client { socket, number: 0 }
    }

    fn send(&self, bytes: &[u8]) {
        send_with_descriptors(&self.socket, &[IoSlice::new(bytes)], &[], Wait::Block).unwrap();
    }

    fn ask(&mut self, path: impl AsRef<Path>) {
        self.number += 1;
        self.send(&request(self.number, path.as_ref()));
    }

    /// Asks for more than it may have under way, and takes none of the answers.
    fn ask_without_end(&mut self, path: &Path) {
        for _ in 0..40 {
            self.number += 1;
            let bytes = request(self.number, path);
            let part = [IoSlice::new(&bytes)];
            let sent = send_with_descriptors(&self.socket, &part, &[], Wait::Never);
            if sent.unwrap().is_none() {
                return;
            }
        }
    }

    /// `None` at the end of the connection.
    fn hear(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut watched, Some(&patience)), Ok(1), "no answer");
        let mut bytes = [0; REPLY_BYTES + 1];
        match receive_with_descriptors(&self.socket, &mut bytes, 1, Wait::Block) {
            Ok(Some(received)) if !received.is_end() => {
                let reply = decode_reply(&bytes[..received.length]).unwrap();
                Some((reply, received.descriptors))
            }
            // A reset is an end with something unread.
            _ => None,
        }
    }

    fn answer(&mut self, path: impl AsRef<Path>) -> (Answered, Vec<OwnedFd>) {
        self.ask(path);
        let (reply, files) = self.hear().expect("an answer");
        assert_eq!(reply.number, self.number);
        (reply.answered, files)
    }

    fn is_closed(&self) -> bool {
        self.hear().is_none()
    }
}

fn request(number: u64, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let request = Request {
        number,
        descriptor: true,
        read_in: 1 << 20,
        path: path.as_os_str().as_bytes(),
    };
    encode_request(&request, &mut bytes);
    bytes
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn file_is_passed_open_and_read_in_when_it_is_asked_for() {
    let running = Running::new();
    let path = running.put("a/b.html", b"contents");
    let (answered, files) = running.client().answer(&path);
    let Answered::File {
        meta,
        descriptor: true,
        in_memory: true,
    } = answered
    else {
        panic!("{answered:?}");
    };
    assert_eq!(meta.inode, fs::metadata(&path).unwrap().ino());
    assert_eq!(meta.device, fs::metadata(&path).unwrap().dev());
    let mut buffer = [0; 9];
    assert_eq!(pread(&files[0], &mut buffer, 0).unwrap(), 8);
    assert_eq!(&buffer[..8], b"contents");
}

#[test]
fn answer_says_what_a_name_is_when_it_is_no_file() {
    let running = Running::new();
    let file = running.put("file", b"x");
    fs::create_dir(running.path("directory")).unwrap();
    symlink("/etc/passwd", running.path("out")).unwrap();
    let mut client = running.client();
    let mut answered = |path: &Path| client.answer(path).0;
    let failed = |errno: Errno| Answered::Failed {
        errno: errno.raw_os_error() as u32,
    };
    assert_eq!(answered(&running.path("directory")), Answered::Directory);
    assert_eq!(answered(&running.path("directory/")), Answered::Directory);
    assert_eq!(answered(&running.path("")), Answered::Directory);
    assert_eq!(answered(&running.path("none")), failed(Errno::NOENT));
    assert_eq!(answered(&file.join("below")), failed(Errno::NOENT));
    let long = "n".repeat(300);
    assert_eq!(answered(&running.path(&long)), failed(Errno::NAMETOOLONG));
    // Out of the root, by a symbolic link and by name.
    assert_eq!(answered(&running.path("out")), failed(Errno::ACCESS));
    let up = running.path("../socket");
    assert_eq!(answered(&up), failed(Errno::ACCESS));
    assert_eq!(answered(Path::new("/etc/passwd")), Answered::Elsewhere);
}

#[test]
fn fifo_is_never_opened_when_it_lies_in_a_root() {
    let running = Running::new();
    let fifo = running.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let answered = running.client().answer(&fifo).0;
    assert!(matches!(answered, Answered::Failed { .. }), "{answered:?}");
}

#[test]
fn every_name_is_found_when_it_has_any_bytes() {
    use std::ffi::OsStr;
    let running = Running::new();
    let mut client = running.client();
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        let path = running.path("").join(OsStr::from_bytes(&[b'n', byte]));
        fs::write(&path, [byte]).unwrap();
        let (_, files) = client.answer(&path);
        let mut buffer = [0; 2];
        assert_eq!(pread(&files[0], &mut buffer, 0).unwrap(), 1);
        assert_eq!(buffer[0], byte);
    }
}

#[test]
fn new_file_is_answered_when_it_has_replaced_one_that_was_remembered() {
    let running = Running::new();
    let path = running.put("f", b"old");
    let mut client = running.client();
    let inode = |answered| match answered {
        Answered::File { meta, .. } => meta.inode,
        other => panic!("{other:?}"),
    };
    let old = inode(client.answer(&path).0);
    let new = running.put("new", b"new");
    fs::rename(new, &path).unwrap();
    let now = inode(client.answer(&path).0);
    assert_ne!(now, old);
    assert_eq!(now, fs::metadata(&path).unwrap().ino());
    fs::remove_file(&path).unwrap();
    assert!(matches!(client.answer(&path).0, Answered::Failed { .. }));
}

#[test]
fn every_request_has_its_answer_when_many_are_sent_at_once() {
    let running = Running::new();
    let paths: Vec<_> = (0..10)
        .map(|n| running.put(&format!("f{n}"), b"x"))
        .collect();
    let mut client = running.client();
    for path in paths.iter().cycle().take(200) {
        client.ask(path);
        if client.number > 50 {
            client.hear().expect("an answer");
        }
    }
    for _ in 0..50 {
        client.hear().expect("an answer");
    }
}

#[test]
fn only_the_sender_is_closed_when_it_sends_something_else() {
    let running = Running::new();
    let path = running.put("f", b"x");
    let mut other = running.client();
    let mut wrong_magic = request(1, &path);
    wrong_magic[0] = b'X';
    let mut wrong_kind = request(1, &path);
    wrong_kind[6] = 9;
    let mut too_long = request(1, &path);
    too_long.resize(REQUEST_BYTES_MAX + 1, b'x');
    let mut far_too_long = request(1, &path);
    far_too_long.resize(100_000, b'x');
    let relative = request(1, Path::new("f"));
    for garbage in [
        &b"x"[..],
        b"HWOF",
        &wrong_magic,
        &wrong_kind,
        &too_long,
        &far_too_long,
        &relative,
    ] {
        let client = running.client();
        client.send(garbage);
        assert!(client.is_closed(), "{garbage:?}");
        assert!(matches!(other.answer(&path).0, Answered::File { .. }));
    }
    let statistics = running.remote().statistics().unwrap();
    assert_eq!((statistics.malformed, statistics.clients), (7, 1));
}

#[test]
fn descriptors_are_not_taken_when_a_client_sends_some() {
    let running = Running::new();
    let path = running.put("f", b"x");
    let mut other = running.client();
    other.answer(&path);
    for _ in 0..50 {
        let client = running.client();
        let file = fs::File::open("/dev/null").unwrap();
        let files = vec![file.as_fd(); 20];
        let bytes = request(1, &path);
        send_with_descriptors(&client.socket, &[IoSlice::new(&bytes)], &files, Wait::Block)
            .unwrap();
        assert!(client.is_closed());
    }
    other.answer(&path);
    assert_eq!(running.remote().statistics().unwrap().malformed, 50);
}

#[test]
fn version_is_told_when_a_client_speaks_another() {
    let running = Running::new();
    let client = running.client();
    let mut bytes = request(5, &running.path("f"));
    bytes[4] = 2;
    client.send(&bytes);
    let (reply, _) = client.hear().expect("an answer");
    assert_eq!((reply.number, reply.answered), (5, Answered::Version));
    assert!(client.is_closed());
}

#[test]
fn others_are_served_when_clients_take_no_answers_or_die() {
    let running = Running::new();
    let path = running.put("f", b"x");
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut client = running.client();
        client.ask_without_end(&path);
        slow.push(client);
    }
    let mut quick = running.client();
    for _ in 0..100 {
        let dead = running.client();
        dead.send(&request(1, &path));
        drop(dead);
        assert!(matches!(quick.answer(&path).0, Answered::File { .. }));
    }
    // A slow one gets what it asked for once it takes it.
    for number in 1..=16 {
        assert_eq!(slow[0].hear().expect("an answer").0.number, number);
    }
}

#[test]
fn client_is_closed_and_nobody_else_waits_when_it_takes_no_answer_for_too_long() {
    let mut running =
        Running::without_helpers(|config| config.patience = Duration::from_millis(200));
    running.give_helpers();
    let path = running.put("f", b"x");
    let mut slow: Vec<Client> = (0..3).map(|_| running.client()).collect();
    for client in &mut slow {
        client.ask_without_end(&path);
    }
    let mut quick = running.client();
    let begun = Instant::now();
    while running.remote().statistics().unwrap().stalled < 3 {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "nobody is closed"
        );
        assert!(matches!(quick.answer(&path).0, Answered::File { .. }));
    }
    assert_eq!(running.remote().statistics().unwrap().clients, 1);
    assert!(matches!(quick.answer(&path).0, Answered::File { .. }));
}

#[test]
fn equal_questions_are_one_job_when_clients_ask_at_once() {
    let mut running = Running::without_helpers(|_| {});
    // The kernel never answers this one from its cache, so a helper has to.
    let path = running.put("file", b"x").join("below");
    let mut clients: Vec<_> = (0..10).map(|_| running.client()).collect();
    for client in &mut clients {
        client.ask(&path);
    }
    while running.remote().statistics().unwrap().requests < 10 {
        std::thread::yield_now();
    }
    running.give_helpers();
    for client in &clients {
        let reply = client.hear().expect("an answer").0;
        assert!(matches!(reply.answered, Answered::Failed { .. }));
    }
    let statistics = running.remote().statistics().unwrap();
    assert_eq!(statistics.pool.coalesced, 9);
    assert_eq!(statistics.pool.service_us.count, 1);
}

#[test]
fn question_is_forgotten_when_its_client_goes() {
    let running = Running::without_helpers(|_| {});
    let path = running.put("file", b"x").join("below");
    let statistics = || running.remote().statistics().unwrap();
    for number in 1..=30 {
        let mut client = running.client();
        client.ask(&path);
        while statistics().requests < number {
            std::thread::yield_now();
        }
        assert_eq!(statistics().pool.queue, 1);
        drop(client);
        while statistics().clients > 0 {
            std::thread::yield_now();
        }
        assert_eq!(statistics().pool.queue, 0);
    }
}

#[test]
fn busy_is_answered_when_the_queue_is_full() {
    let running = Running::without_helpers(|config| config.helpers.queue_max = 1);
    let file = running.put("file", b"x");
    let mut client = running.client();
    client.ask(file.join("a"));
    assert_eq!(client.answer(file.join("b")).0, Answered::Busy);
    // What needs no helper is answered all the same.
    assert!(matches!(client.answer(&file).0, Answered::File { .. }));
}

#[test]
fn question_is_asked_again_when_a_helper_dies() {
    let mut running = Running::without_helpers(|_| {});
    let path = running.put("file", b"x").join("below");
    let mut client = running.client();
    client.ask(&path);
    for _ in 0..3 {
        let (ours, theirs) = pair().unwrap();
        running.remote().helper(ours, 1);
        drop(theirs);
    }
    while running.remote().statistics().unwrap().pool.deaths < 3 {
        std::thread::yield_now();
    }
    running.give_helpers();
    let reply = client.hear().expect("an answer").0;
    assert!(matches!(reply.answered, Answered::Failed { .. }));
}

#[test]
fn client_is_turned_away_when_its_user_is_not_allowed() {
    let running = Running::without_helpers(|config| config.users.clear());
    assert!(running.client().is_closed());
    let own = rustix::process::getegid().as_raw();
    let by_group = Running::without_helpers(|config| {
        config.users.clear();
        config.groups = vec![own];
    });
    let path = by_group.put("f", b"x");
    assert!(matches!(
        by_group.client().answer(&path).0,
        Answered::File { .. }
    ));
    let statistics = running.remote().statistics().unwrap();
    assert_eq!((statistics.refused_user, statistics.accepted), (1, 0));
}

#[test]
fn client_is_turned_away_when_there_is_no_room() {
    let running = Running::without_helpers(|config| config.clients_max = 2);
    let path = running.put("f", b"x");
    let mut first = running.client();
    first.answer(&path);
    let mut second = running.client();
    second.answer(&path);
    assert!(running.client().is_closed());
    drop(second);
    while running.remote().statistics().unwrap().clients > 1 {
        std::thread::yield_now();
    }
    let mut third = running.client();
    assert!(matches!(third.answer(&path).0, Answered::File { .. }));
}

#[test]
fn nothing_is_opened_when_the_service_may_not_read_it() {
    if is_root() {
        return skip(
            "nothing_is_opened_when_the_service_may_not_read_it",
            "root may read every file",
        );
    }
    let running = Running::new();
    let path = running.put("f", b"x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let answered = running.client().answer(&path).0;
    let errno = Errno::ACCESS.raw_os_error() as u32;
    assert_eq!(answered, Answered::Failed { errno });
}

#[test]
fn no_descriptor_is_left_when_thousands_were_passed() {
    let running = Running::new();
    let paths: Vec<_> = (0..20)
        .map(|n| running.put(&format!("f{n}"), b"x"))
        .collect();
    let mut client = running.client();
    for path in &paths {
        client.answer(path);
    }
    // Other tests of this process open files meanwhile, but not thousands that stay.
    let before = open_descriptors();
    for path in paths.iter().cycle().take(5000) {
        let (answered, files) = client.answer(path);
        assert!(matches!(answered, Answered::File { .. }) && files.len() == 1);
    }
    let after = open_descriptors();
    assert!(after < before + 2000, "{before} before, {after} after");
}

#[test]
fn socket_changes_hands_when_a_service_follows_another() {
    let mut running = Running::new();
    let path = running.put("f", b"x");
    let other = |tree: &Path| match Service::new(config(tree), Box::new(|_| {})) {
        Err(ServiceError::Listen(error)) => error,
        _ => panic!("it listens"),
    };
    // While one listens nobody else does.
    assert!(matches!(other(running.tree.path()), ListenError::InUse(_)));
    assert!(matches!(
        running.client().answer(&path).0,
        Answered::File { .. }
    ));
    running.stop();
    assert!(!running.socket.exists(), "it removes its socket");
    // A file of another kind is not overwritten.
    fs::write(&running.socket, "precious").unwrap();
    assert!(matches!(
        other(running.tree.path()),
        ListenError::NoSocket(_)
    ));
    assert_eq!(fs::read(&running.socket).unwrap(), b"precious");
    fs::remove_file(&running.socket).unwrap();
    // What a killed one has left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&running.socket).unwrap());
    let (service, remote) = Service::new(config(running.tree.path()), Box::new(|_| {})).unwrap();
    remote.stop();
    service.run().unwrap();
    assert!(!running.socket.exists());
}

#[test]
fn service_ends_when_nobody_holds_it_any_more() {
    let tree = directory();
    fs::create_dir(tree.path().join("root")).unwrap();
    let (service, remote) = Service::new(config(tree.path()), Box::new(|_| {})).unwrap();
    let copy = remote.clone();
    drop(remote);
    std::thread::spawn(move || drop(copy));
    service.run().unwrap();
}
