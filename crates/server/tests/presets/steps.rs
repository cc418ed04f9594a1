//! Tests by which system calls a file is found and sent: each preset makes exactly those it is
//! known for.

use std::collections::BTreeMap;
use std::fs;

use headway_server::metrics::Snapshot;

use super::tools::{contents, make_cold, root};
use crate::support::{Served, TIMEOUT, config};

/// Small enough for the socket to accept at once, so that counts are exact.
const SIZE: usize = 40_000;

/// The calls that differ between presets. Only Headway probes, reads and copies.
const CALLS: [&str; 9] = [
    "openat2",
    "openat2 (may wait)",
    "mmap",
    "mincore",
    "cachestat",
    "preadv2",
    "writev",
    "sendfile",
    "sendto",
];

type Counts = BTreeMap<&'static str, u64>;

fn calls(snapshot: &Snapshot) -> Counts {
    let of = |call: &str| snapshot.trace.calls.get(call).copied().unwrap_or(0);
    CALLS.iter().map(|&call| (call, of(call))).collect()
}

/// What one request causes: the worker's calls and its helpers' jobs.
fn request(served: &mut Served, path: &str) -> (Counts, [u64; 2]) {
    let before = served.snapshot();
    assert_eq!(served.get(path).body, contents(0, SIZE));
    let after = served.wait_for("the end of the connection", |now| {
        now.counters.connections_closed > before.counters.connections_closed
    });
    let (mut grown, then) = (calls(&after), calls(&before));
    grown.retain(|call, count| {
        *count -= then[call];
        *count > 0
    });
    let jobs = |of: &Snapshot| [of.counters.helper_jobs_lookup, of.counters.helper_jobs_read];
    let (now, then) = (jobs(&after), jobs(&before));
    (grown, [now[0] - then[0], now[1] - then[1]])
}

/// The calls for a file that is new to the server and not resident, then for the same file again.
fn cold_and_warm(preset: &str) -> [(Counts, [u64; 2]); 2] {
    let root = root();
    fs::create_dir(root.path().join("d")).unwrap();
    let path = root.path().join("d/file");
    fs::write(&path, contents(0, SIZE)).unwrap();
    // Not the first request: a helper is already running.
    fs::write(root.path().join("other"), contents(0, SIZE)).unwrap();
    let mut served = Served::start(config(
        root.path(),
        &format!("research.preset = '{preset}'\nprecompressed = false\ncontent-store-max = 0"),
    ));
    request(&mut served, "/other");
    make_cold(&path);
    let cold = request(&mut served, "/d/file");
    [cold, request(&mut served, "/d/file")]
}

fn counts(expected: &[(&'static str, u64)]) -> Counts {
    expected.iter().copied().collect()
}

#[test]
fn flash_reopens_touched_paths_and_sends_from_a_mapping() {
    let [cold, warm] = cold_and_warm("flash");
    let once = [
        ("openat2 (may wait)", 1),
        ("mmap", 1),
        ("mincore", 2),
        ("writev", 1),
    ];
    assert_eq!(cold, (counts(&once), [1, 1]));
    assert_eq!(warm, (counts(&[("mincore", 1), ("writev", 1)]), [0, 0]));
}

#[test]
fn flash_sendfile_asks_its_mapping_and_sends_from_the_descriptor() {
    let [cold, warm] = cold_and_warm("flash-sendfile");
    let once = [
        ("openat2 (may wait)", 1),
        ("mmap", 1),
        ("mincore", 2),
        ("sendto", 1),
        ("sendfile", 1),
    ];
    assert_eq!(cold, (counts(&once), [1, 1]));
    let again = [("mincore", 1), ("sendto", 1), ("sendfile", 1)];
    assert_eq!(warm.1, [0, 0]);
    assert_eq!(warm.0["sendfile"], again[2].1);
    assert_eq!(warm.0.get("mmap"), None);
}

/// Names of files under `root` that this process has open.
fn open_below(root: &std::path::Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = open.filter_map(|file| fs::read_link(file.path()).ok());
    targets
        .filter(|target| target.starts_with(root) && target.is_file())
        .count()
}

/// Asks for more files than the mappings have room for, in turn, and for all of them again. The worker is a
/// thread of this process.
fn turns(preset: &str, open: usize) -> (u64, u64) {
    let root = root();
    for number in 0..FILES {
        fs::write(root.path().join(number.to_string()), contents(0, SIZE)).unwrap();
    }
    let more = "precompressed = false\nresearch.mapped-max = '2MiB'";
    let text = format!("research.preset = '{preset}'\n{more}");
    let mut served = Served::start(config(root.path(), &text));
    for number in (0..FILES)
        .flat_map(|number| [number, number])
        .chain(0..FILES)
    {
        request(&mut served, &format!("/{number}"));
    }
    // Helpers close what they have touched, and what was given to them to be closed.
    let begun = std::time::Instant::now();
    while open_below(root.path()) != open {
        assert!(
            begun.elapsed() < TIMEOUT,
            "{preset}: {} are open",
            open_below(root.path())
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let counters = served.snapshot().counters;
    (
        counters.mapping_cache_reopened,
        counters.file_cache_repeated_lookups,
    )
}

/// 52 of them have room in 2 MiB.
const FILES: usize = 60;

#[test]
fn flash_closes_what_it_maps_and_opens_it_again_when_the_mapping_is_gone() {
    // Each name is looked up once. In the last turn the mapping of each is gone.
    assert_eq!(turns("flash", 0), (60, 60));
    let (reopened, _) = turns("fd-pass", FILES);
    assert_eq!(reopened, 0, "descriptors are kept");
}

#[test]
fn flash_finds_a_replaced_file_when_it_opens_its_name_again() {
    let root = root();
    let path = root.path().join("file");
    fs::write(&path, contents(0, SIZE)).unwrap();
    let text = "research.preset = 'flash'\nprecompressed = false\nresearch.mapped-max = '2MiB'";
    let mut served = Served::start(config(root.path(), text));
    fs::write(root.path().join("other"), contents(1, 3 << 20)).unwrap();
    assert!(served.get("/file").body == contents(0, SIZE));
    fs::rename(&path, root.path().join("gone")).unwrap();
    fs::write(&path, contents(2, SIZE + 7)).unwrap();
    // It takes the place of the mapping.
    assert!(served.get("/other").body == contents(1, 3 << 20));
    assert!(served.get("/file").body == contents(2, SIZE + 7));
    assert_eq!(served.snapshot().counters.mapping_cache_reopened, 1);
}

#[test]
fn no_mmap_makes_no_residency_probe_when_a_chunk_was_sent_before() {
    let [cold, warm] = cold_and_warm("no-mmap");
    let sent = counts(&[("sendto", 1), ("sendfile", 1)]);
    assert_eq!(
        cold,
        (sent.clone(), [1, 1]),
        "what is new is believed to be cold"
    );
    assert_eq!(warm, (sent, [0, 0]));
}

#[test]
fn new_flash_probes_each_chunk_before_sending() {
    let [cold, warm] = cold_and_warm("new-flash");
    let sent = [("cachestat", 1), ("sendto", 1), ("sendfile", 1)];
    assert_eq!(cold.1, [1, 1]);
    assert_eq!(cold.0["cachestat"], 2, "cold, then read in");
    assert_eq!((cold.0["sendfile"], cold.0.get("openat2")), (1, None));
    assert_eq!(warm, (counts(&sent), [0, 0]));
}

#[test]
fn headway_probes_first_and_caches_small_files() {
    let [cold, warm] = cold_and_warm("headway");
    assert_eq!(cold.0["openat2"], 1);
    assert_eq!(cold.1[0], 0, "the name was in the kernel's cache");
    assert_eq!(warm, (counts(&[("sendto", 1)]), [0, 0]));
}

#[test]
fn helper_reads_ahead_in_large_pieces_when_a_large_file_is_not_resident() {
    let root = root();
    let path = root.path().join("file");
    let sizes = [900_000, 1 << 20, 2_500_000];
    let jobs = sizes.map(|size| {
        fs::write(&path, contents(0, size)).unwrap();
        let mut served = Served::start(config(root.path(), "precompressed = false"));
        make_cold(&path);
        assert!(served.get("/file").body == contents(0, size));
        let counters = served.snapshot().counters;
        counters.helper_jobs_read + counters.helper_jobs_prefetch
    });
    assert_eq!(jobs[..2], [1, 1]);
    assert!((2..=5).contains(&jobs[2]), "{jobs:?}");
}

#[test]
fn no_mmap_assumes_residency_when_a_chunk_was_sent_before() {
    let root = root();
    let path = root.path().join("file");
    fs::write(&path, contents(0, SIZE)).unwrap();
    let mut served = Served::start(config(
        root.path(),
        "research.preset = 'no-mmap'\nprecompressed = false",
    ));
    request(&mut served, "/file");
    make_cold(&path);
    let (calls, jobs) = request(&mut served, "/file");
    assert_eq!(jobs, [0, 0], "no helper: the loop reads it in by itself");
    assert_eq!(calls, counts(&[("sendto", 1), ("sendfile", 1)]));
    let counters = served.snapshot().counters;
    assert_eq!(
        (counters.recent_cache_misses, counters.recent_cache_hits),
        (1, 4)
    );
}

#[test]
fn helper_revalidates_paths_when_they_are_due() {
    for (preset, reopened) in [("flash", 2), ("fd-pass", 0), ("new-flash", 0)] {
        let root = root();
        fs::write(root.path().join("file"), contents(0, SIZE)).unwrap();
        let text = format!("research.preset = '{preset}'\nrevalidate = '0ms'");
        let mut served = Served::start(config(root.path(), &text));
        for _ in 0..2 {
            assert_eq!(served.get("/file").status, 200);
        }
        assert_eq!(served.get("/none").status, 404, "{preset}");
        let counters = served.snapshot().counters;
        assert_eq!(counters.helper_jobs_lookup, 3, "{preset}");
        assert_eq!(
            counters.file_cache_repeated_lookups,
            reopened + u64::from(reopened > 0),
            "{preset}"
        );
        assert_eq!(
            counters.lookup_probes_resolved + counters.lookup_probes_would_block,
            0,
            "{preset}"
        );
    }
}
