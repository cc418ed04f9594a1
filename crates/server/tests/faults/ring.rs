//! Tests of io_uring in place of helper processes.

use std::fs;

use super::tools::{contents, root, skip};
use crate::support::{Served, config};

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn files_are_served_when_helpers_are_io_uring() {
    let root = root();
    fs::write(root.path().join("a"), "hello").unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    fs::write(root.path().join("d/index.html"), "index").unwrap();
    fs::create_dir(root.path().join("l")).unwrap();
    let large = contents(1, 3_000_000);
    fs::write(root.path().join("large"), &large).unwrap();
    if let Err(error) = headway_os::uring_files::FileRing::new(4, 1) {
        return skip(
            "files_are_served_when_helpers_are_io_uring",
            &error.to_string(),
        );
    }
    for events in ["epoll", "select", "io_uring"] {
        // Every new path is looked up by io_uring.
        let text = format!(
            "helpers = 'io_uring'\nopening = 'pass-descriptor'\nlisting = true\nrevalidate = '0s'\nevents = '{events}'"
        );
        let mut served = Served::start(config(root.path(), &text));
        for _ in 0..3 {
            assert_eq!(served.get("/a").body, b"hello", "{events}");
            assert_eq!(served.get("/d/").body, b"index", "{events}");
            assert_eq!(served.get("/none").status, 404, "{events}");
            assert_eq!(served.get("/d").status, 301, "{events}");
            assert!(served.get("/large").body == large, "{events}");
        }
        // A helper process does this job.
        assert_eq!(served.get("/l/").status, 200, "{events}");
        let counters = served.snapshot().counters;
        assert!(
            counters.helper_jobs_io_uring >= 5,
            "{events}: {}",
            counters.helper_jobs_io_uring
        );
        assert!(
            counters.helper_jobs_done > counters.helper_jobs_io_uring,
            "{events}: the listing"
        );
        assert_eq!(counters.helper_deaths, 0, "{events}");
    }
}
