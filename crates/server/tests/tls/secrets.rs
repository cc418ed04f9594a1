//! The private key is in no process that works for clients but those that do handshakes, and the secrets of a
//! connection leave the worker with it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use headway_test_support::{is_root, skip};
use rustls::KeyLog;
use rustls::version::TLS13;

use super::tools::*;

/// Memory that is read at a time. The parts overlap, so that nothing is missed between them.
const PART: usize = 1 << 20;

/// Needs: root, to read the memory of other processes
#[test]
fn private_key_is_in_the_memory_of_handshake_processes_only() {
    if !is_root() {
        let test = "private_key_is_in_the_memory_of_handshake_processes_only";
        return skip(test, "root, to read the memory of other processes");
    }
    let secured = Secured::start("");
    let forms = forms(&secured.certified);
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
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert_eq!(holds(pid), Vec::<&str>::new(), "{command:?}");
    }
    is_well_over_tls(&secured);
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

/// What the key looks like in files and in memory.
fn forms(certified: &Certified) -> Vec<(&'static str, Vec<u8>)> {
    // RFC 5915: version 1, and an octet string of 32 bytes.
    let mark = [2, 1, 1, 4, 32];
    let at = memchr::memmem::find(&certified.key, &mark).unwrap() + mark.len();
    let scalar = certified.key[at..at + 32].to_vec();
    let reversed = scalar.iter().rev().copied().collect();
    let pem = certified.key_pem.lines().nth(1).unwrap();
    vec![
        ("the scalar", scalar),
        ("the scalar as words", reversed),
        ("the file", pem.into()),
    ]
}

/// All private memory that can be read.
fn private_memory(pid: i32) -> Vec<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut parts = Vec::new();
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
