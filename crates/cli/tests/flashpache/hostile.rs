//! The C library against a service that answers anything: real answers, changed at random. Whatever
//! comes, files are opened as open(2) would have opened them, no descriptor stays, and the
//! sanitizers have nothing to say.

use super::client::{ClientOutput, ServedFiles};
use super::support::{Backend, clients};
use headway_base::random::{Draw, SplitMix64};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, send, sendmsg, socket_with,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: &str = "2500";
/// The longest message is this much longer than an answer.
const EXCESS_MAX: usize = 20_000;
/// A client has room for one.
const DESCRIPTORS_MAX: usize = 8;

fn random_bytes(random: &mut SplitMix64, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.index(256) as u8).collect()
}

fn packets() -> OwnedFd {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    socket_with(AddressFamily::UNIX, kind, flags, None).unwrap()
}

/// What the service really says of a file, a directory, a name that is not there, and one that is
/// none of its.
fn real_answers(served: &ServedFiles) -> Vec<Vec<u8>> {
    let path = served.root().with_file_name("real");
    let _backend = Backend::start(&served.root(), &path);
    let socket = packets();
    connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let paths = [
        &served.files[0],
        &served.root(),
        &served.root().join("none"),
        Path::new("/etc/passwd"),
    ];
    let answers = paths.map(|path: &Path| {
        let mut request = b"HWOF\x01\x00\x01\x00".to_vec();
        request.extend([0; 16]);
        request.extend(path.as_os_str().as_bytes());
        send(&socket, &request, SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; 100];
        let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
        answer[..length].to_vec()
    });
    let kinds: Vec<u8> = answers.iter().map(|answer| answer[6]).collect();
    assert_eq!(kinds, [1, 1, 1, 2]);
    answers.into()
}

/// A service that says what comes to its mind.
struct Hostile {
    real: Vec<Vec<u8>>,
    files: Vec<OwnedFd>,
    random: SplitMix64,
}

impl Hostile {
    /// Ends with the test's process.
    fn listen(mut self, path: &Path) {
        let listener = packets();
        bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&listener, 10).unwrap();
        std::thread::spawn(move || {
            while let Ok(client) = accept_with(&listener, SocketFlags::CLOEXEC) {
                self.serve(&client);
            }
        });
    }

    fn serve(&mut self, client: &OwnedFd) {
        let mut request = [0; 5000];
        while let Ok((16.., _)) = recv(client, &mut request[..], RecvFlags::empty()) {
            let number = &request[8..16];
            match self.random.index(64) {
                // Until the client has had enough.
                0 => continue,
                1..=3 => return,
                4..=7 => {
                    for _ in 0..self.random.index(20) {
                        let stale = random_bytes(&mut self.random, 8);
                        self.say(client, &stale, false);
                    }
                    self.say(client, number, false);
                }
                8..=15 => self.say(client, number, false),
                _ => self.say(client, number, true),
            }
        }
    }

    fn say(&mut self, client: &OwnedFd, number: &[u8], changed: bool) {
        let mut bytes = self.real[self.random.index(self.real.len())].clone();
        bytes[8..16].copy_from_slice(number);
        if changed {
            self.change(&mut bytes);
        }
        let most = [1, 1, 2, DESCRIPTORS_MAX][self.random.index(4)];
        let count = self.random.index(most + 1);
        let files: Vec<_> = self.files[..count]
            .iter()
            .map(|file| file.as_fd())
            .collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        // The client may have hung up.
        let _ = sendmsg(
            client,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let random = &mut self.random;
        match random.index(7) {
            0 => bytes.truncate(random.index(bytes.len())),
            1 => {
                let excess = 1 + random.index(EXCESS_MAX);
                bytes.extend(random_bytes(random, excess));
            }
            2 => {
                let length = random.index(200);
                *bytes = random_bytes(random, length);
            }
            3 => drop(bytes.remove(random.index(bytes.len()))),
            4 => bytes.insert(random.index(bytes.len()), random.index(256) as u8),
            // Of the right length: another version, kind or flags.
            5 => {
                let at = [4, 6, 6, 6, 7][random.index(5)];
                bytes[at] = random.index(256) as u8;
            }
            _ => {
                for _ in 0..=random.index(8) {
                    let bit = random.index(bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }
}

/// The test program with the library inside, watched by sanitizers where the compiler has them.
fn watched_program() -> PathBuf {
    let out = clients().unwrap().join("exercise-watched");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flashpache");
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
    let compile = |sanitizers: &[&str]| {
        Command::new("cc")
            .args(["-g", "-O1", "-Wall", "-Werror", "-pthread"])
            .args(sanitizers)
            .arg("-o")
            .arg(&out)
            .arg(tests.join("exercise.c"))
            .arg(library.join("headway_open.c"))
            .arg(library.join("headway_request.c"))
            .arg("-I")
            .arg(&library)
            .output()
            .unwrap()
    };
    let watched = compile(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    if !watched.status.success() {
        println!(
            "without sanitizers: {}",
            String::from_utf8_lossy(&watched.stderr)
        );
        let plain = compile(&[]);
        assert!(
            plain.status.success(),
            "{}",
            String::from_utf8_lossy(&plain.stderr)
        );
    }
    out
}

#[test]
fn files_are_opened_without_the_service_when_its_answers_are_truncated_oversized_or_garbage() {
    let served = ServedFiles::new(2);
    let open = |path: &PathBuf| {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    let hostile = Hostile {
        real: real_answers(&served),
        files: (0..DESCRIPTORS_MAX)
            .map(|at| open(&served.files[at % 2]))
            .collect(),
        random: SplitMix64(0x0068_6561_6477_6179),
    };
    hostile.listen(&served.socket());
    // A file whose pages are requested, and names that the kernel never answers from memory.
    let paths = [
        served.files[0].clone(),
        served.files[1].join("below"),
        served.root().join("file-0/none"),
    ];
    let output = Command::new(watched_program())
        .arg(served.socket())
        .args(["5", "rounds", ROUNDS])
        .args(&paths)
        .output()
        .unwrap();
    let counters = ClientOutput::of(output);
    assert!(counters.lines.is_empty(), "{:?}", counters.lines);
    // All of it has been met, and answers that mean something among it.
    for (counter, least) in [
        ("answered", 1000),
        ("unreachable", 300),
        ("timeouts", 20),
        ("rejected", 30),
        ("retries", 600),
        ("elsewhere", 100),
    ] {
        assert!(
            counters.count(counter) >= least,
            "{counter}: {}",
            counters.counted()
        );
    }
}
