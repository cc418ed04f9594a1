//! The disk of the files: cold, it must not stop the loop; broken, it must be told to the client.

use std::ffi::c_void;
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use headway_test_support::disks::Disk;
use headway_test_support::server::Server;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use serde_json::Value;

use crate::clients::*;

const FILES: usize = 400;

fn size_of(number: usize) -> usize {
    [500, 5_000, 60_000, 150_000, 600_000][number % 5]
}

fn name_of(number: usize) -> String {
    format!("d{}/f{number}", number % 20)
}

fn fill(root: &Path) {
    for number in 0..FILES {
        let path = root.join(name_of(number));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents(number, size_of(number))).unwrap();
    }
}

/// Eight clients fetch all files, each once.
fn fetch_all(server: &Server) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = TcpStream::connect(&server.address).unwrap();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= FILES {
                        return;
                    }
                    send_get(&mut client, &format!("/{}", name_of(number)));
                    let (status, body) = read_response(&mut client);
                    assert!(
                        status == 200 && body == contents(number, size_of(number)),
                        "{number}"
                    );
                }
            });
        }
    });
}

/// What the tracer saw is a proof only if it saw everything.
fn sees_everything(trace: &Value) -> bool {
    trace["level"]["sees"] == "stacks"
}

/// Needs: root: mounts a disk image; tracing with stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn loop_never_blocks_when_hundreds_of_files_are_cold() {
    const NAME: &str = "loop_never_blocks_when_hundreds_of_files_are_cold";
    let mut disk = match Disk::new(env!("CARGO_TARGET_TMPDIR").as_ref(), 256 << 20, fill) {
        Ok(disk) => disk,
        Err(why) => return skip(NAME, &why),
    };
    for (events, preset, helpers) in [
        ("select", "headway", "1-16"),
        ("poll", "headway", "1-16"),
        ("epoll", "headway", "1-16"),
        ("epoll-edge", "headway", "1-16"),
        ("epoll", "new-flash", "1-16"),
        ("epoll", "headway", "io_uring"),
    ] {
        if helpers == "io_uring" && !has_io_uring(NAME) {
            continue;
        }
        disk.make_cold().unwrap();
        let arguments = ["--events", events, "--preset", preset, "--helpers", helpers];
        let server = Server::start(program(), disk.path(), &arguments);
        let trace = server.status()["total"]["trace"].clone();
        if !sees_everything(&trace) {
            return skip(NAME, &format!("the tracer sees {}", trace["level"]));
        }
        fetch_all(&server);
        let status = server.status();
        let cold = counter(&status, "lookup_probes_would_block") + counter(&status, "chunks_cold");
        assert!(
            cold as usize > FILES / 2,
            "{events} {preset}: the disk was warm: {cold}"
        );
        assert_eq!(counter(&status, "requests_received") as usize, FILES);
        // Three of five files are small: what they hold came with their names.
        let contents = counter(&status, "helper_contents_returned") as usize;
        assert_eq!(
            contents > FILES / 3,
            preset == "headway" && helpers != "io_uring",
            "{events} {preset} {helpers}: {contents}"
        );
        let trace = &status["total"]["trace"];
        let none = Value::Array(Vec::new());
        assert_eq!(trace["sleeps"], none, "{events} {preset} {helpers}");
        let by_the_kernel = counter(&status, "helper_jobs_io_uring") as usize;
        assert_eq!(
            by_the_kernel > FILES / 2,
            helpers == "io_uring",
            "{helpers}"
        );
        assert_eq!(trace["lost_records"], 0, "{events}");
        assert!(
            trace["waits"]["count"].as_u64() > Some(0),
            "{events}: the tracer looked"
        );
    }
}

/// The step from `no-mmap` to `new-flash`: what was sent before is not in memory any more.
///
/// Needs: root: mounts a disk image; tracing with stacks
#[test]
fn loop_waits_for_evicted_files_with_sendfile_recent_but_not_with_a_residency_check() {
    const NAME: &str =
        "loop_waits_for_evicted_files_with_sendfile_recent_but_not_with_a_residency_check";
    let mut disk = match Disk::new(env!("CARGO_TARGET_TMPDIR").as_ref(), 256 << 20, fill) {
        Ok(disk) => disk,
        Err(why) => return skip(NAME, &why),
    };
    for (preset, waits) in [("no-mmap", true), ("new-flash", false)] {
        disk.make_cold().unwrap();
        let arguments = ["--workers", "1", "--preset", preset, "--helpers", "4"];
        let server = Server::start(program(), disk.path(), &arguments);
        let status = server.status();
        if !sees_everything(&status["total"]["trace"]) {
            let level = &status["total"]["trace"]["level"];
            return skip(NAME, &format!("the tracer sees {level}"));
        }
        fetch_all(&server);
        for number in 0..FILES {
            make_cold(&disk.path().join(name_of(number)));
        }
        fetch_all(&server);
        let status = server.status();
        let sleeps = status["total"]["trace"]["sleeps"].as_array().unwrap();
        let calls: Vec<_> = sleeps
            .iter()
            .map(|site| site["call"].as_str().unwrap())
            .collect();
        assert_eq!(calls.contains(&"sendfile"), waits, "{preset}: {sleeps:?}");
        assert!(
            calls.iter().all(|call| *call == "sendfile"),
            "{preset}: {calls:?}"
        );
        assert_eq!(counter(&status, "helpers"), 4, "{preset}");
    }
}

/// Needs: root: mounts a disk image and breaks it
#[test]
fn disk_errors_are_reported_and_other_clients_served() {
    const NAME: &str = "disk_errors_are_reported_and_other_clients_served";
    for events in ["select", "poll", "epoll", "epoll-edge"] {
        let mut disk = match Disk::new(
            env!("CARGO_TARGET_TMPDIR").as_ref(),
            64 << 20,
            fill_to_break,
        ) {
            Ok(disk) => disk,
            Err(why) => return skip(NAME, &why),
        };
        disk.make_cold().unwrap();
        let arguments = ["--workers", "1", "--events", events, "--precompressed=off"];
        let server = Server::start(program(), disk.path(), &arguments);
        assert_eq!(get(&server.address, "/warm"), (200, b"hello".into()));
        for name in ["small", "large"] {
            // The kernel knows the name from here on, and nothing of the contents.
            fs::metadata(disk.path().join(name)).unwrap();
        }
        let _kept = Kept::beginning_of(&disk.path().join("begun"));
        disk.break_it();
        for (count, path) in (1..).zip(["/small", "/large", "/unseen/name"]) {
            assert_eq!(get(&server.address, path).0, 500, "{events} {path}");
            let errors = counter(&server.status(), "io_errors");
            assert_eq!(errors, count, "{events} {path} is counted");
        }
        let mut begun = TcpStream::connect(&server.address).unwrap();
        send_get(&mut begun, "/begun");
        assert_eq!(read_head(&mut begun), (200, BEGUN_BYTES), "{events}");
        let body = read_to_close(&mut begun);
        let whole = contents(7, BEGUN_BYTES);
        assert!(body.len() < whole.len(), "{events}: the body is short");
        assert!(
            whole.starts_with(&body),
            "{events}: and true as far as it goes"
        );
        let status = server.status();
        assert_eq!(counter(&status, "io_errors"), 4, "{events}");
        assert_eq!(counter(&status, "responses_aborted"), 1, "{events}");
        let requests = &status["total"]["counters"]["http_requests"];
        assert_eq!(requests["500"]["GET"], 3, "{events}: each is counted once");
        assert_eq!(
            get(&server.address, "/warm"),
            (200, b"hello".into()),
            "{events}"
        );
    }
}

const BEGUN_BYTES: usize = 4 << 20;

fn fill_to_break(root: &Path) {
    fs::write(root.join("warm"), "hello").unwrap();
    fs::write(root.join("small"), contents(1, 3_000)).unwrap();
    fs::write(root.join("large"), contents(2, 500_000)).unwrap();
    fs::write(root.join("begun"), contents(7, BEGUN_BYTES)).unwrap();
    fs::create_dir(root.join("unseen")).unwrap();
    fs::write(root.join("unseen/name"), "x").unwrap();
}

/// The first window of a file, in memory and staying there: else the kernel might take it back
/// before it is cold for.
struct Kept(*mut c_void);

impl Kept {
    const BYTES: usize = 256 << 10;

    /// Reads it, and nothing after it.
    fn beginning_of(path: &Path) -> Kept {
        let mut file = fs::File::open(path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        file.read_exact(&mut vec![0; Kept::BYTES]).unwrap();
        // SAFETY: a new mapping, which no code reads or writes.
        let mapped = unsafe {
            let none = std::ptr::null_mut();
            mmap(
                none,
                Kept::BYTES,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let kept = Kept(mapped.unwrap());
        // SAFETY: the pages are those of the mapping.
        unsafe { mlock(kept.0, Kept::BYTES) }.unwrap();
        kept
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no other code has its address.
        let _ = unsafe { munmap(self.0, Kept::BYTES) };
    }
}

/// A read that may not wait begins to read a missing page in, and beginning waits when the disk's
/// queue is full: so the loop reads nothing that it has not found to be there.
#[test]
fn loop_reads_each_small_file_once_after_its_pages_were_evicted() {
    const NAME: &str = "loop_reads_each_small_file_once_after_its_pages_were_evicted";
    const BYTES: usize = 60_000;
    let root = root();
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        fs::write(root.path().join(name), contents(number, BYTES)).unwrap();
    }
    // Contents for a part of them: each is read again from its file when it is cold for again.
    let options = [
        "--workers",
        "1",
        "--response-cache-max",
        "1MiB",
        "--content-store-max",
        "0",
    ];
    let server = Server::start(program(), root.path(), &options);
    let ask_all = || {
        for (number, name) in names.iter().enumerate() {
            let response = get(&server.address, &format!("/{name}"));
            assert!(response == (200, contents(number, BYTES)), "{name}");
        }
        server.status()
    };
    let before = ask_all();
    if !sees_everything(&before["total"]["trace"]) {
        return skip(NAME, "the tracer sees less than stacks");
    }
    names
        .iter()
        .for_each(|name| make_cold(&root.path().join(name)));
    let after = ask_all();
    let grown = |name| counter(&after, name) - counter(&before, name);
    let reads = |status: &Value| {
        // A call that was never made is not listed.
        status["total"]["trace"]["calls"]["preadv2"]
            .as_u64()
            .unwrap_or(0)
    };
    assert!(
        grown("helper_contents_returned") > 0,
        "the files were in memory all the time"
    );
    // What a helper has read the loop does not read again.
    assert_eq!(
        reads(&after) - reads(&before),
        grown("response_cache_insertions") - grown("helper_contents_returned")
    );
}
