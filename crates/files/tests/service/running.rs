//! A service in a thread, and a client of it.

use crate::common::{directory, put};
use headway_files::PinLimits;
use headway_files::service::wire::{
    Answered, ClientReply, ClientRequest, REPLY_BYTES, decode_reply, encode_request,
};
use headway_files::service::{Remote, Service, ServiceConfig};
use headway_files::{FileCacheLimits, PoolLimits, helper_main};
use headway_os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::IoSlice;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// A tree, and a service for it in a thread.
pub struct RunningService {
    pub tree: TempDir,
    pub socket: PathBuf,
    remote: Option<Remote>,
    pub service: Option<JoinHandle<()>>,
    /// Helpers that the service wants and a test has not given it.
    pub wanted: Option<Receiver<usize>>,
}

pub fn config(tree: &Path) -> ServiceConfig {
    ServiceConfig {
        socket: tree.join("socket"),
        roots: vec![tree.join("root")],
        users: vec![rustix::process::geteuid().as_raw()],
        groups: vec![],
        connections_max: 100,
        send_timeout: Duration::from_secs(10),
        prefetch_max: 1 << 20,
        pin: PinLimits {
            bytes_max: 0,
            available: || None,
        },
        revalidate: Duration::ZERO,
        file_cache: FileCacheLimits {
            entries_max: 1000,
            descriptors_max: 500,
        },
        helpers: PoolLimits::default(),
    }
}

impl RunningService {
    pub fn new() -> RunningService {
        let mut running = RunningService::without_helpers(|_| {});
        running.give_helpers();
        running
    }

    pub fn without_helpers(change: impl FnOnce(&mut ServiceConfig)) -> RunningService {
        let tree = directory();
        fs::create_dir(tree.path().join("root")).unwrap();
        let mut config = config(tree.path());
        change(&mut config);
        let socket = config.socket.clone();
        let (wants, wanted) = channel();
        let (sender, receiver) = channel();
        let service = std::thread::spawn(move || {
            let want = Box::new(move |count| wants.send(count).unwrap_or(()));
            let (service, remote) = Service::new(config, want).unwrap();
            sender.send(remote).unwrap();
            service.run().unwrap();
        });
        RunningService {
            tree,
            socket,
            remote: Some(receiver.recv().unwrap()),
            service: Some(service),
            wanted: Some(wanted),
        }
    }

    /// From now on the service gets the helpers that it wants, in threads.
    pub fn give_helpers(&mut self) {
        let (wanted, remote) = (self.wanted.take().unwrap(), self.remote().clone());
        std::thread::spawn(move || {
            for _ in wanted.iter().flat_map(|count| 0..count) {
                let (ours, theirs) = pair().unwrap();
                std::thread::spawn(move || helper_main(theirs, &|_| Vec::new()));
                remote.helper(ours, 1);
            }
        });
    }

    pub fn remote(&self) -> &Remote {
        self.remote.as_ref().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.tree.path().join("root").join(name)
    }

    pub fn put(&self, name: &str, contents: &[u8]) -> PathBuf {
        put(&self.tree.path().join("root"), name, contents);
        self.path(name)
    }

    /// What a request for the path adds to the answers about files, directories and failures.
    pub fn result(&self, client: &mut TestClient, path: impl AsRef<Path>) -> [u64; 3] {
        let results = || {
            let now = self.remote().statistics().unwrap();
            [now.files, now.directories, now.failed]
        };
        let before = results();
        assert_eq!(client.answer(path), Answered::Done);
        let after = results();
        std::array::from_fn(|at| after[at] - before[at])
    }

    pub fn client(&self) -> TestClient {
        TestClient::new(&self.socket)
    }

    pub fn stop(&mut self) {
        self.remote().stop();
        self.service.take().unwrap().join().unwrap();
    }
}

impl Drop for RunningService {
    fn drop(&mut self) {
        if self.service.is_some() {
            self.remote().stop();
            // The spawner holds one, too, until the service has gone.
            self.remote = None;
            let _ = self.service.take().unwrap().join();
        }
    }
}

pub struct TestClient {
    pub socket: OwnedFd,
    pub number: u64,
}

impl TestClient {
    pub fn new(path: &Path) -> TestClient {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        TestClient { socket, number: 0 }
    }

    pub fn send(&self, bytes: &[u8]) {
        send_with_descriptors(&self.socket, &[IoSlice::new(bytes)], &[], Wait::Block).unwrap();
    }

    pub fn request(&mut self, path: impl AsRef<Path>) {
        self.number += 1;
        self.send(&request(self.number, path.as_ref()));
    }

    /// Asks for more than it may have under way, and takes none of the answers.
    pub fn request_without_end(&mut self, path: &Path) {
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

    /// The bytes of an answer.
    pub fn receive_bytes(&self) -> Vec<u8> {
        let mut bytes = [0; 200];
        let received = receive_with_descriptors(&self.socket, &mut bytes, 1, Wait::Block);
        let received = received.unwrap().expect("an answer");
        assert!(received.descriptors.is_empty(), "a descriptor came");
        bytes[..received.length].to_vec()
    }

    /// `None` at the end of the connection.
    pub fn receive(&self) -> Option<ClientReply> {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        let send_timeout = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut watched, Some(&send_timeout)), Ok(1), "no answer");
        let mut bytes = [0; REPLY_BYTES + 1];
        match receive_with_descriptors(&self.socket, &mut bytes, 1, Wait::Block) {
            Ok(Some(received)) if !received.is_end() => {
                assert!(received.descriptors.is_empty(), "a descriptor came");
                Some(decode_reply(&bytes[..received.length]).unwrap())
            }
            // A reset is an end with something unread.
            _ => None,
        }
    }

    pub fn answer(&mut self, path: impl AsRef<Path>) -> Answered {
        self.request(path);
        let reply = self.receive().expect("an answer");
        assert_eq!(reply.number, self.number);
        reply.answered
    }

    pub fn is_closed(&self) -> bool {
        self.receive().is_none()
    }
}

pub fn request(number: u64, path: &Path) -> Vec<u8> {
    encoded(&ClientRequest {
        number,
        read_in: 1 << 20,
        path: path.as_os_str().as_bytes(),
    })
}

pub fn encoded(request: &ClientRequest<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_request(request, &mut bytes);
    bytes
}

/// Results of [`RunningService::result`].
pub const FILE: [u64; 3] = [1, 0, 0];
pub const DIRECTORY: [u64; 3] = [0, 1, 0];
pub const FAILED: [u64; 3] = [0, 0, 1];
