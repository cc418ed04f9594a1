//! The private key is in no process that works for clients but those that do handshakes, and the secrets of a
//! connection leave the worker with it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use headway_test_support::{is_root, skip};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256};
use rustix::process::Signal;
use rustls::KeyLog;
use rustls::version::TLS13;

use super::tools::*;
use crate::site::*;

/// Memory that is read at a time. The parts overlap, so that nothing is missed between them.
const PART: usize = 1 << 20;

/// Needs: root, to read the memory of other processes
#[test]
fn private_key_is_in_the_memory_of_handshake_processes_only() {
    if !is_root() {
        let test = "private_key_is_in_the_memory_of_handshake_processes_only";
        return skip(test, "root, to read the memory of other processes");
    }
    for (certified, forms) in [ecdsa(), rsa()] {
        let secured = Secured::start_as(certified, Site::new(), 1, "");
        search(&secured, &forms);
        is_well_over_tls(&secured);
        // Later workers have masters which have read the files more than once.
        for reload in [Signal::HUP, Signal::USR2] {
            let before = secured.server.children("serve-");
            secured.server.signal(reload);
            secured.server.wait_for("other processes", |server| {
                let of = |kind| server.children(kind);
                let others = [of("serve-worker"), of("serve-handshakes")];
                let is_new = |pids: &Vec<i32>| pids.len() == 1 && !before.contains(&pids[0]);
                others.iter().all(is_new)
            });
            search(&secured, &forms);
        }
    }
}

/// Has the key used, and searches the processes for it.
fn search(secured: &Secured, forms: &[Form]) {
    for version in VERSIONS {
        for _ in 0..20 {
            ask(&mut secured.connect(version), "/file.txt");
        }
    }
    let holds = |pid: i32| {
        let memory = private_memory(pid);
        let found = forms.iter().filter(|(_, form)| {
            let found = |part: &Vec<u8>| memchr::memmem::find(part, form).is_some();
            memory.iter().any(found)
        });
        found.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let process = secured.process("serve-handshakes");
    assert_ne!(
        holds(process),
        Vec::<&str>::new(),
        "the search finds nothing"
    );
    // The master reads the file, so traces of it may be in its memory.
    let mut others = secured.server.children("serve-");
    others.retain(|pid| *pid != process);
    assert!(!others.is_empty());
    for pid in others {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        assert_eq!(holds(pid), Vec::<&str>::new(), "{command:?}");
    }
}

/// Remembers the traffic secrets of connections.
#[derive(Debug, Default)]
struct Remembering(Mutex<Vec<Vec<u8>>>);

impl KeyLog for Remembering {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label.ends_with("TRAFFIC_SECRET_0") {
            // A part that was left behind is one too many.
            self.0.lock().unwrap().push(secret[..16].to_vec());
        }
    }
}

/// Needs: root, to read the memory of other processes
#[test]
fn secrets_of_a_connection_leave_the_worker_with_it() {
    if !is_root() {
        let test = "secrets_of_a_connection_leave_the_worker_with_it";
        return skip(test, "root, to read the memory of other processes");
    }
    let secured = Secured::start("");
    let secrets = Arc::new(Remembering::default());
    let mut config = secured.certified.clients(&TLS13);
    config.key_log = secrets.clone();
    let config = Arc::new(config);
    let mut streams: Vec<_> = (0..20)
        .map(|_| secured.connect_as(config.clone()))
        .collect();
    for stream in &mut streams {
        ask(stream, "/file.txt");
    }
    let (worker, process) = (
        secured.process("serve-worker"),
        secured.process("serve-handshakes"),
    );
    let left = |pid: i32| {
        let (memory, secrets) = (private_memory(pid), secrets.0.lock().unwrap());
        let is_in = |secret: &&Vec<u8>| {
            let found = |part: &Vec<u8>| memchr::memmem::find(part, secret).is_some();
            memory.iter().any(found)
        };
        secrets.iter().filter(is_in).count()
    };
    assert_eq!(left(worker), 40, "the search misses some");
    drop(streams);
    secured
        .server
        .wait_for("the ends", |_| secured.counter("connections_open") == 0);
    assert_eq!(left(worker), 0);
    // Those of the last two handshakes, which may overlap, may be left on its stack.
    assert!(left(process) <= 4, "{}", left(process));
    is_well_over_tls(&secured);
}

/// What a part of a key looks like in files or in memory, and its name.
type Form = (&'static str, Vec<u8>);

/// A P-256 key.
fn ecdsa() -> (Certified, Vec<Form>) {
    let certified = Certified::new();
    // RFC 5915: version 1, and an octet string of 32 bytes.
    let mark = [2, 1, 1, 4, 32];
    let at = memchr::memmem::find(&certified.key, &mark).unwrap() + mark.len();
    let scalar = certified.key[at..at + 32].to_vec();
    let reversed = scalar.iter().rev().copied().collect();
    let pem = certified.key_pem.lines().nth(1).unwrap();
    let forms = vec![
        ("the scalar", scalar),
        ("the scalar as words", reversed),
        ("the file", pem.into()),
    ];
    (certified, forms)
}

/// An RSA key. Of each number 64 bytes are enough, wherever a part was left behind.
fn rsa() -> (Certified, Vec<Form>) {
    let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    let params = CertificateParams::new([NAME.to_owned()]).unwrap();
    let certified = Certified::of(&params.self_signed(&key).unwrap(), &key);
    let numbers = rsa_numbers(&certified.key);
    let middle = |number: &[u8]| number[32..96].to_vec();
    let reversed = |number: &[u8]| middle(number).into_iter().rev().collect();
    let [_, modulus, _, d, p, q] = &numbers[..] else {
        panic!("{} numbers", numbers.len());
    };
    assert_eq!([modulus.len(), p.len(), q.len()], [256, 128, 128]);
    // With 48 bytes per line, d is in this one.
    let pem = certified.key_pem.lines().nth(9).unwrap();
    let forms = vec![
        ("d", middle(d)),
        ("d as words", reversed(d)),
        ("p", middle(p)),
        ("p as words", reversed(p)),
        ("q", middle(q)),
        ("q as words", reversed(q)),
        ("the file", pem.into()),
    ];
    (certified, forms)
}

/// The first six numbers of an RSA key (RFC 8017, A.1.2): version, modulus, public and private exponent, primes.
fn rsa_numbers(key: &[u8]) -> Vec<Vec<u8>> {
    // The version, before a number that is longer than 127 bytes.
    let mark = [2, 1, 0, 2, 0x82];
    let mut rest = &key[memchr::memmem::find(key, &mark).unwrap()..];
    let mut numbers = Vec::new();
    for _ in 0..6 {
        let (size, header) = match rest[1] {
            0x81 => (usize::from(rest[2]), 3),
            0x82 => (usize::from(u16::from_be_bytes([rest[2], rest[3]])), 4),
            size => (usize::from(size), 2),
        };
        assert_eq!(rest[0], 2, "no number");
        let (number, after) = rest[header..].split_at(size);
        // A zero keeps a number from being negative.
        numbers.push(number.strip_prefix(&[0]).unwrap_or(number).to_vec());
        rest = after;
    }
    numbers
}

/// All private memory that can be read.
fn private_memory(pid: i32) -> Vec<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    let memory = File::open(format!("/proc/{pid}/mem"));
    let mut parts = Vec::new();
    // Processes that a reload has replaced may end meanwhile.
    let (Ok(maps), Ok(memory)) = (maps, memory) else {
        return parts;
    };
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with('r') || !rights.ends_with('p') {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        for at in (number(from)..number(to)).step_by(PART) {
            let length = (number(to) - at).min(PART as u64 + 4_096) as usize;
            let mut part = vec![0; length];
            // Some pages of the kernel cannot be read.
            if let Ok(count) = memory.read_at(&mut part, at) {
                part.truncate(count);
                parts.push(part);
            }
        }
    }
    parts
}

#[test]
fn handshake_process_never_preempts_its_worker() {
    let secured = Secured::start("");
    // So it has begun.
    is_well_over_tls(&secured);
    assert_eq!(scheduling_policy(secured.process("serve-worker")), "0");
    // SCHED_BATCH, sched(7).
    assert_eq!(scheduling_policy(secured.process("serve-handshakes")), "3");
}

/// Field 41 of `/proc/PID/stat`, proc_pid_stat(5).
fn scheduling_policy(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(38).unwrap().to_owned()
}
