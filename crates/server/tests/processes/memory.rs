//! Memory of a worker: an idle one takes little, and a user whose processes may lock little memory, as most
//! users' may, loses nothing.

use headway_test_support::client::counter;
use headway_test_support::server::Server;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use crate::clients::{get, program, skip};

const FILES: usize = 8;
const FILE_BYTES: usize = 12 << 20;
const LOCKED_BYTES_MAX: u64 = 64 << 20;

/// Needs: RLIMIT_MEMLOCK above a debug build's worker, or CAP_SYS_RESOURCE
#[test]
fn worker_grows_beyond_the_memory_it_may_lock_when_it_has_no_privilege() {
    // This thread's children only. Another user than root has no such capability to begin with.
    let _ = remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK);
    // More than the worker needs at its start and less than it will hold. A higher limit than there
    // is takes CAP_SYS_RESOURCE.
    let there = getrlimit(Resource::Memlock);
    let limit = |maximum| Rlimit {
        current: Some(LOCKED_BYTES_MAX),
        maximum,
    };
    let _ = setrlimit(Resource::Memlock, limit(there.maximum))
        .or_else(|_| setrlimit(Resource::Memlock, limit(Some(LOCKED_BYTES_MAX))));
    let root = tempfile::tempdir().unwrap();
    for number in 0..FILES {
        std::fs::write(root.path().join(number.to_string()), vec![b'x'; FILE_BYTES]).unwrap();
    }
    let arguments = [
        "--workers",
        "1",
        "--small-file-max",
        "16MiB",
        "--response-cache-max",
        "256MiB",
        "--content-store-max",
        "0",
    ];
    let server = Server::start(program(), root.path(), &arguments);
    let workers = server.children("serve-worker");
    if locked_kilobytes(workers[0]) == 0 {
        return skip(
            "worker_grows_beyond_the_memory_it_may_lock_when_it_has_no_privilege",
            "this build's worker is larger than RLIMIT_MEMLOCK",
        );
    }
    for number in 0..FILES {
        let (status, body) = get(&server.address, &format!("/{number}"));
        assert_eq!((status, body.len()), (200, FILE_BYTES));
    }
    assert_eq!(server.children("serve-worker"), workers, "none has died");
}

#[test]
fn idle_worker_takes_little_memory_and_a_thread_gets_more_before_the_loop_needs_it() {
    const SMALL_FILES: usize = 320;
    const SMALL_BYTES: usize = 100 << 10;
    let root = tempfile::tempdir().unwrap();
    for number in 0..SMALL_FILES {
        std::fs::write(
            root.path().join(number.to_string()),
            vec![b'x'; SMALL_BYTES],
        )
        .unwrap();
    }
    let arguments = [
        "--workers",
        "1",
        "--response-cache-max",
        "48MiB",
        "--content-store-max",
        "0",
    ];
    let server = Server::start(program(), root.path(), &arguments);
    let worker = server.children("serve-worker")[0];
    let before = memory_bytes(worker);
    assert!(before < 16 << 20, "{before} bytes in an idle worker");
    let faults = loop_faults(worker);
    for number in 0..SMALL_FILES {
        let path = format!("/{number}");
        let (status, body) = get(&server.address, &path);
        assert_eq!((status, body.len()), (200, SMALL_BYTES));
    }
    let cached_bytes = counter(&server, "response_cache_bytes") as usize;
    assert!(cached_bytes > 24 << 20, "{cached_bytes}");
    let growth = memory_bytes(worker) - before;
    assert!(
        growth > cached_bytes / 2,
        "{growth} bytes for {cached_bytes}"
    );
    let faults = loop_faults(worker) - faults;
    let pages = growth / 4096;
    assert!(
        faults < pages / 4,
        "the loop touched {faults} of {pages} fresh pages itself"
    );
}

/// Private memory of a process.
fn memory_bytes(pid: i32) -> usize {
    1024 * status_kilobytes(pid, "RssAnon:") as usize
}

/// Page faults of a worker's loop, which is the main thread (proc_pid_stat(5)).
fn loop_faults(pid: i32) -> usize {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').nth(7).unwrap().parse().unwrap()
}

fn locked_kilobytes(pid: i32) -> u64 {
    status_kilobytes(pid, "VmLck:")
}

fn status_kilobytes(pid: i32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.parse().ok()).unwrap()
}
