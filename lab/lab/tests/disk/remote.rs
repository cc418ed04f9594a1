//! A remote file system: what it asks its server, and when.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use headway_lab::disk::{Disk, DiskError, DiskSpec, Filesystem, Mechanics, Model, Order, Parallel};

use super::{Fixture, program};

const LATENCY: Duration = Duration::from_millis(40);

/// Far above the noise of a busy machine, and without spread.
fn remote(parallelism: u32) -> DiskSpec {
    let model = Model::Custom(Mechanics::Parallel(Parallel {
        latency_us: LATENCY.as_secs_f64() * 1e6,
        variation: 0.0,
        parallelism,
        bytes_per_second: 10_000_000_000,
        overhead_us: 0.0,
    }));
    DiskSpec {
        filesystem: Filesystem::Remote,
        ..DiskSpec::new(model, 64 << 20)
    }
}

/// A cold file `a/b/file` of 300,000 bytes behind the delays of the model.
fn with_cold_file(test: &str, parallelism: u32) -> Option<Fixture> {
    let fixture = Fixture::start(test, &remote(parallelism))?;
    let top = fixture.disk().mount_point();
    fs::create_dir_all(top.join("a/b")).expect("room");
    fs::write(top.join("a/b/file"), [7; 300_000]).expect("room");
    fixture.disk().drop_caches().expect("nothing is open");
    fixture.disk().order(Order::Model).expect("it answers");
    Some(fixture)
}

/// Round trips that an action makes.
fn round_trips(disk: &Disk, act: impl FnOnce()) -> u64 {
    let before = disk.statistics().expect("it answers");
    act();
    let after = disk.statistics().expect("it answers").since(&before);
    after.reads + after.writes
}

#[test]
fn remote_files_have_no_backing_file() {
    let folder = tempfile::tempdir().expect("a place for files");
    let spec = DiskSpec {
        backing: Some(folder.path().join("backing")),
        ..remote(1)
    };
    let error = Disk::start_by(&spec, folder.path(), program()).expect_err("no such disk");
    assert!(matches!(error, DiskError::Spec(_)), "{error}");
}

// Each needs: root; FUSE: mounts a file system
#[test]
fn names_attributes_opens_and_bytes_are_round_trips_until_they_are_cached() {
    let test = "names_attributes_opens_and_bytes_are_round_trips_until_they_are_cached";
    let Some(fixture) = with_cold_file(test, 64) else {
        return;
    };
    let disk = fixture.disk();
    let path = disk.mount_point().join("a/b/file");
    let begin = Instant::now();
    let stat = round_trips(disk, || assert_eq!(size_of(&path), 300_000));
    assert_eq!(stat, 4, "attributes of the top, and a lookup for each name");
    assert!(begin.elapsed() >= LATENCY * 4);
    assert_eq!(round_trips(disk, || assert_eq!(size_of(&path), 300_000)), 0);
    let mut file = None;
    let open = round_trips(disk, || file = File::open(&path).ok());
    assert_eq!(open, 1, "close-to-open: each open asks");
    let mut file = file.expect("there");
    let mut bytes = Vec::new();
    let read = round_trips(disk, || {
        file.read_to_end(&mut bytes).expect("it answers");
    });
    assert!((3..=6).contains(&read), "{read} reads of at most 128 KiB");
    assert_eq!(bytes, [7; 300_000]);
    drop(file);
    let again = round_trips(disk, || drop(fs::read(&path).expect("there")));
    assert_eq!(again, 1, "the bytes are cached, the open asks");
    std::thread::sleep(Duration::from_millis(3100));
    let expired = round_trips(disk, || assert_eq!(size_of(&path), 300_000));
    assert_eq!(expired, 4, "names and attributes are believed for 3 s");
    fixture.stop();
}

#[test]
fn absent_name_is_believed_as_long_as_a_name() {
    let test = "absent_name_is_believed_as_long_as_a_name";
    let Some(fixture) = with_cold_file(test, 64) else {
        return;
    };
    let disk = fixture.disk();
    let absent = disk.mount_point().join("absent");
    let look = || {
        let error = fs::metadata(&absent).expect_err("it is not there");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    };
    assert_eq!(round_trips(disk, look), 2, "the top directory and the name");
    assert_eq!(round_trips(disk, look), 0);
    fixture.stop();
}

#[test]
fn requests_beyond_the_parallelism_wait() {
    let test = "requests_beyond_the_parallelism_wait";
    let Some(fixture) = with_cold_file(test, 2) else {
        return;
    };
    let disk = fixture.disk();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for name in 0..8 {
            let path = disk.mount_point().join(format!("absent-{name}"));
            scope.spawn(move || fs::metadata(path).expect_err("it is not there"));
        }
    });
    assert!(begin.elapsed() >= LATENCY * 4);
    let statistics = disk.statistics().expect("it answers");
    assert!(
        statistics.depth_max > 2,
        "all were asked at once: {statistics:?}"
    );
    fixture.stop();
}

#[test]
fn other_bytes_are_read_when_another_version_is_published() {
    let test = "other_bytes_are_read_when_another_version_is_published";
    let Some(fixture) = with_cold_file(test, 64) else {
        return;
    };
    let disk = fixture.disk();
    let path = disk.mount_point().join("a/b/file");
    disk.make_writable().expect("nothing is open");
    let old = File::open(&path).expect("there");
    let number = old.metadata().expect("it answers").ino();
    fs::write(path.with_extension("new"), [9; 10]).expect("room");
    fs::rename(path.with_extension("new"), &path).expect("both are there");
    assert_eq!(fs::read(&path).expect("there"), [9; 10]);
    assert_ne!(fs::metadata(&path).expect("there").ino(), number);
    let mut bytes = Vec::new();
    (&old).read_to_end(&mut bytes).expect("it is still open");
    assert_eq!(bytes, [7; 300_000], "the old version");
    let refused = disk.drop_caches().expect_err("a file is open");
    assert!(matches!(refused, DiskError::Busy { .. }), "{refused}");
    drop(old);
    disk.drop_caches().expect("nothing is open");
    let refused = File::create(&path).expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    fixture.stop();
}

#[test]
fn open_files_are_stale_and_names_lead_to_new_ones_after_a_restart() {
    let test = "open_files_are_stale_and_names_lead_to_new_ones_after_a_restart";
    let Some(fixture) = with_cold_file(test, 64) else {
        return;
    };
    let disk = fixture.disk();
    let path = disk.mount_point().join("a/b/file");
    let mut old = File::open(&path).expect("there");
    disk.order(Order::Restart).expect("it answers");
    let error = old.read(&mut [0; 10]).expect_err("stale");
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle);
    assert_eq!(fs::read(&path).expect("there"), [7; 300_000]);
    drop(old);
    fixture.stop();
}

#[test]
fn requests_fail_with_eio_until_the_fault_ends() {
    let test = "requests_fail_with_eio_until_the_fault_ends";
    let Some(fixture) = with_cold_file(test, 64) else {
        return;
    };
    let disk = fixture.disk();
    let path = disk.mount_point().join("a/b/file");
    let all = Order::Fail {
        offset_bytes: 0,
        length_bytes: 1,
    };
    disk.order(all).expect("it answers");
    let error = fs::metadata(&path).expect_err("no server");
    let eio = rustix::io::Errno::IO.raw_os_error();
    assert_eq!(error.raw_os_error(), Some(eio));
    disk.order(Order::Fast).expect("it answers");
    assert_eq!(size_of(&path), 300_000);
    fixture.stop();
}

#[test]
fn removal_is_complete_when_the_server_of_remote_files_stalls() {
    let test = "removal_is_complete_when_the_server_of_remote_files_stalls";
    let Some(fixture) = with_cold_file(test, 64) else {
        return;
    };
    let stall = Order::Stall { for_ms: 60_000 };
    fixture.disk().order(stall).expect("it answers");
    fixture.stop();
}

fn size_of(path: &Path) -> u64 {
    fs::metadata(path).expect("there").len()
}
