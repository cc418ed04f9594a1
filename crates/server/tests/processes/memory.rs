//! A user whose processes may lock little memory, as most users' may.

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

fn locked_kilobytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.parse().ok()).unwrap()
}
