//! Tests of disk space: a file that has been deleted or replaced is closed without a request.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::tools::*;
use crate::support::{Served, TIMEOUT, config};

/// Whether a file of this name is open in this process, where no name leads to it any more.
fn is_held(path: &Path) -> bool {
    let deleted = format!("{} (deleted)", path.display());
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter_map(|one| fs::read_link(one.path()).ok())
        .any(|target| target.to_str() == Some(&deleted))
}

#[test]
fn deleted_files_are_closed_by_a_helper_without_a_request() {
    let root = root();
    let names = ["large", "replaced", "small"];
    for (name, size) in names.iter().zip([3_000_000, 300_000, 1_000]) {
        fs::write(root.path().join(name), contents(0, size)).unwrap();
    }
    let mut kinds = vec!["helpers = 2"];
    match headway_os::uring_files::FileRing::new(4, 1) {
        Ok(_) => kinds.push("helpers = 'io_uring'"),
        Err(error) => skip("io_uring", &error.to_string()),
    }
    for helpers in kinds {
        let mut served = Served::start(config(root.path(), helpers));
        for name in names {
            assert_eq!(served.get(&format!("/{name}")).status, 200);
        }
        // A moved file is held under its new name until that is deleted.
        for name in names {
            let moved = root.path().join(format!("old-{name}"));
            fs::rename(root.path().join(name), &moved).unwrap();
            fs::copy(&moved, root.path().join(name)).unwrap();
            fs::remove_file(&moved).unwrap();
        }
        let begun = Instant::now();
        for name in names {
            while is_held(&root.path().join(format!("old-{name}"))) {
                assert!(begun.elapsed() < TIMEOUT, "{helpers}: {name} is held");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let counters = served.snapshot().counters;
        assert_eq!(counters.file_cache_descriptors, 0, "{helpers}");
        assert!(counters.deferred_closes > 0, "{helpers}");
    }
}
