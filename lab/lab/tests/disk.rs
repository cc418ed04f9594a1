//! Real disks: FUSE process, loop device, file system. They skip without root or FUSE.
//!
//! The disk process is this test program, started with the name of one test and the disk's folder.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use headway_base::random::{Draw, Random};
use headway_lab::disk::{
    Disk, DiskError, DiskSpec, Fault, FaultPlan, Filesystem, Mechanics, Model, Order, Parallel,
    process_main,
};
use headway_test_support::skip;

mod remote;

const FILE_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 4096;
/// Set for the disk process, so that the test of its name is one only there.
const ROLE: &str = "HEADWAY_LAB_TEST_ROLE";

#[test]
fn disk_process() {
    if std::env::var_os(ROLE).is_some() {
        let folder = std::env::args_os().next_back().expect("a folder");
        if let Err(error) = process_main(Path::new(&folder)) {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

/// A disk in a folder of its own, taken away even when a test fails.
struct Fixture {
    folder: tempfile::TempDir,
    disk: Option<Disk>,
}

impl Fixture {
    /// `None`, said and noted, where the machine cannot have one.
    fn start(test: &str, spec: &DiskSpec) -> Option<Fixture> {
        let folder = tempfile::tempdir().expect("a place for files");
        match Disk::start_by(spec, folder.path(), program()) {
            Ok(disk) => Some(Fixture {
                folder,
                disk: Some(disk),
            }),
            Err(error @ DiskError::Missing { .. }) => {
                skip(test, &error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("not stopped yet")
    }

    /// A file of pages whose first byte is the page's number, on the cold disk.
    fn cold_file(&self) -> PathBuf {
        let path = self.disk().mount_point().join("file");
        let mut file = File::create(&path).expect("room");
        for page in 0..FILE_BYTES / PAGE_BYTES {
            file.write_all(&[page as u8; PAGE_BYTES as usize])
                .expect("room");
        }
        drop(file);
        self.disk().drop_caches().expect("nothing is open");
        path
    }

    fn stop(mut self) {
        let disk = self.disk.take().expect("not stopped yet");
        disk.stop().expect("no process holds it");
        self.assert_nothing_is_left();
    }

    fn assert_nothing_is_left(&self) {
        let name = self.folder.path().as_os_str().to_str().expect("plain");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a table");
        assert!(!mounts.contains(name), "{mounts}");
        let loops = fs::read_dir("/sys/block").expect("devices").flatten();
        for device in loops {
            let backing = fs::read_to_string(device.path().join("loop/backing_file"));
            assert!(!backing.is_ok_and(|backing| backing.contains(name)));
        }
        for process in fs::read_dir("/proc").expect("processes").flatten() {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&line).contains(name));
        }
        let files = fs::read_dir(self.folder.path()).expect("our folder");
        assert_eq!(files.count(), 0);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Err(error) = Disk::undo(self.folder.path()) {
            eprintln!("{error}");
        }
    }
}

fn program() -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program
        .args([
            "disk::disk_process",
            "--exact",
            "--nocapture",
            "disk-process",
        ])
        .env(ROLE, "disk");
    program
}

fn spec(model: Model) -> DiskSpec {
    DiskSpec::new(model, 64 << 20)
}

fn xfs() -> DiskSpec {
    DiskSpec {
        filesystem: Filesystem::Xfs,
        ..DiskSpec::new(Model::Nvme, 320 << 20)
    }
}

fn slow_parallel() -> Model {
    Model::Custom(Mechanics::Parallel(Parallel {
        latency_us: 10_000.0,
        variation: 0.3,
        parallelism: 64,
        bytes_per_second: 1_000_000_000,
        overhead_us: 0.0,
    }))
}

/// Opened so that the page cache is not asked.
fn uncached(path: &Path) -> File {
    File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(path)
        .expect("direct I/O")
}

/// A page whose address the kernel takes for direct I/O.
struct Page {
    bytes: Vec<u8>,
    start: usize,
}

impl Page {
    fn new() -> Page {
        let bytes = vec![0u8; 2 * PAGE_BYTES as usize];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES as usize);
        Page { bytes, start }
    }

    fn read(&mut self, file: &File, page: u64) -> std::io::Result<u8> {
        let range = self.start..self.start + PAGE_BYTES as usize;
        let slot = &mut self.bytes[range];
        file.read_exact_at(slot, page * PAGE_BYTES)?;
        Ok(slot[0])
    }
}

/// Reads pages at random, uncached; returns the mean time as measured and as the model accounts for
/// it.
fn measured_and_modelled_us(disk: &Disk, path: &Path, reads: u64) -> (f64, f64) {
    let file = uncached(path);
    let mut page = Page::new();
    let mut random = Random::new(3);
    // Finds the file's extents, so that only its data is read afterwards.
    page.read(&file, 0).expect("a disk that works");
    // The reader shall not wait for a CPU either. Without the privilege it may need more
    // attempts.
    let _ = headway_os::process::real_time();
    disk.order(Order::Model).expect("a disk that answers");
    let start = Instant::now();
    for _ in 0..reads {
        let wanted = random.below(FILE_BYTES / PAGE_BYTES);
        let found = page.read(&file, wanted).expect("a disk that works");
        assert_eq!(found, wanted as u8);
    }
    let measured_us = start.elapsed().as_secs_f64() * 1e6 / reads as f64;
    let statistics = disk.statistics().expect("a disk that answers");
    assert_eq!(statistics.reads, reads, "{statistics:?}");
    disk.order(Order::Fast).expect("a disk that answers");
    (measured_us, statistics.modelled_us())
}

/// Attempts until one is not blurred by what else the machine does: that makes reads longer, never
/// shorter, so the disk is as wrong as the best attempt says.
fn assert_delays_are_the_models(test: &str, model: Model, reads: u64) {
    let Some(fixture) = Fixture::start(test, &spec(model)) else {
        return;
    };
    let path = fixture.cold_file();
    let mut ratios = Vec::new();
    let agreed = (0..60).any(|_| {
        let (measured_us, modelled_us) = measured_and_modelled_us(fixture.disk(), &path, reads);
        println!("measured {measured_us:.0} us, modelled {modelled_us:.0} us");
        ratios.push(measured_us / modelled_us);
        assert!(measured_us > 0.9 * modelled_us, "{ratios:?}");
        measured_us < 1.1 * modelled_us
    });
    assert!(agreed, "{ratios:?}");
    fixture.stop();
}

#[test]
fn disk_model_is_an_error_when_its_numbers_are_impossible() {
    let folder = tempfile::tempdir().expect("a place for files");
    for impossible in [
        DiskSpec::new(Model::Nvme, 4096),
        spec(Model::Custom(Mechanics::Parallel(Parallel {
            latency_us: -1.0,
            variation: 0.0,
            parallelism: 1,
            bytes_per_second: 1,
            overhead_us: 0.0,
        }))),
    ] {
        let error = Disk::start_by(&impossible, folder.path(), program()).expect_err("impossible");
        assert!(matches!(error, DiskError::Spec(_)), "{error}");
    }
}

// Each needs: root; FUSE and loop devices, some also xfs in the kernel: makes a disk
#[test]
fn spindle_delays_are_those_of_the_model() {
    let test = "spindle_delays_are_those_of_the_model";
    assert_delays_are_the_models(test, Model::Ide5400, 40);
}

#[test]
fn parallel_disk_delays_are_those_of_the_model() {
    let test = "parallel_disk_delays_are_those_of_the_model";
    assert_delays_are_the_models(test, slow_parallel(), 20);
}

#[test]
fn network_volume_delays_are_those_of_the_model() {
    let test = "network_volume_delays_are_those_of_the_model";
    assert_delays_are_the_models(test, Model::Network, 60);
}

#[test]
fn queue_depth_is_the_number_of_readers_on_a_parallel_disk() {
    let test = "queue_depth_is_the_number_of_readers_on_a_parallel_disk";
    let Some(fixture) = Fixture::start(test, &spec(slow_parallel())) else {
        return;
    };
    let path = fixture.cold_file();
    Page::new()
        .read(&uncached(&path), 0)
        .expect("a disk that works");
    fixture.disk().order(Order::Model).expect("it answers");
    std::thread::scope(|scope| {
        for reader in 0..24 {
            let path = &path;
            scope.spawn(move || {
                let file = uncached(path);
                for turn in 0..4 {
                    let found = Page::new().read(&file, reader * 100 + turn);
                    found.expect("a disk that works");
                }
            });
        }
    });
    let statistics = fixture.disk().statistics().expect("it answers");
    assert_eq!(statistics.reads, 24 * 4);
    assert!((20..=24).contains(&statistics.depth_max), "{statistics:?}");
    // All at once: none waits for another.
    assert!(statistics.modelled_us() < 15_000.0, "{statistics:?}");
    fixture.stop();
}

#[test]
fn pages_are_read_again_after_caches_are_dropped() {
    let test = "pages_are_read_again_after_caches_are_dropped";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let path = fixture.cold_file();
    let disk = fixture.disk();
    let reads = || {
        disk.order(Order::Model).expect("it answers");
        assert_eq!(fs::read(&path).expect("there").len() as u64, FILE_BYTES);
        disk.statistics().expect("it answers").read_bytes
    };
    // The file, and some blocks of the file system's own.
    assert!((FILE_BYTES + PAGE_BYTES..FILE_BYTES * 11 / 10).contains(&reads()));
    assert_eq!(reads(), 0);
    disk.drop_caches().expect("nothing is open");
    assert!(reads() > FILE_BYTES);
    let refused = File::create(disk.mount_point().join("new")).expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    disk.make_writable().expect("nothing is open");
    File::create(disk.mount_point().join("new")).expect("room");
    fixture.stop();
}

#[test]
fn pages_are_read_again_after_caches_are_dropped_on_xfs() {
    let test = "pages_are_read_again_after_caches_are_dropped_on_xfs";
    let Some(fixture) = Fixture::start(test, &xfs()) else {
        return;
    };
    let path = fixture.cold_file();
    let disk = fixture.disk();
    let status = rustix::fs::statfs(disk.mount_point()).expect("mounted");
    // XFS_SUPER_MAGIC, statfs(2).
    assert_eq!(status.f_type as u32, 0x5846_5342);
    // Of one seed, and so with one name, which xfs would refuse by itself.
    let twin = Fixture::start(test, &xfs()).expect("the first one worked");
    let reads = || {
        disk.order(Order::Model).expect("it answers");
        assert_eq!(fs::read(&path).expect("there").len() as u64, FILE_BYTES);
        disk.statistics().expect("it answers").read_bytes
    };
    assert!((FILE_BYTES + PAGE_BYTES..FILE_BYTES * 11 / 10).contains(&reads()));
    assert_eq!(reads(), 0);
    disk.drop_caches().expect("nothing is open");
    assert!(reads() > FILE_BYTES);
    File::create(disk.mount_point().join("new")).expect_err("read-only");
    disk.make_writable().expect("nothing is open");
    File::create(disk.mount_point().join("new")).expect("room");
    twin.stop();
    fixture.stop();
}

#[test]
fn removal_is_complete_when_the_disk_process_below_xfs_was_killed() {
    let test = "removal_is_complete_when_the_disk_process_below_xfs_was_killed";
    let Some(fixture) = Fixture::start(test, &xfs()) else {
        return;
    };
    // Written and not yet on the disk: the log cannot be closed in order.
    fs::write(fixture.disk().mount_point().join("new"), [1; 100_000]).expect("room");
    let pid = fixture.disk().pid().expect("it runs");
    signal(pid, rustix::process::Signal::KILL);
    fixture.stop();
}

#[test]
fn dropping_caches_fails_and_changes_nothing_when_a_file_is_open() {
    let test = "dropping_caches_fails_and_changes_nothing_when_a_file_is_open";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let path = fixture.cold_file();
    let file = File::open(&path).expect("there");
    let error = fixture.disk().drop_caches().expect_err("it is in use");
    let own = std::process::id().to_string();
    assert!(
        matches!(&error, DiskError::Busy { holders, .. } if holders.contains(&own)),
        "{error}"
    );
    drop(file);
    fixture.disk().drop_caches().expect("nothing is open");
    assert_eq!(fs::read(&path).expect("there").len() as u64, FILE_BYTES);
    fixture.stop();
}

#[test]
fn error_names_the_holder_when_the_disk_is_mounted_in_another_namespace() {
    let test = "error_names_the_holder_when_the_disk_is_mounted_in_another_namespace";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let path = fixture.cold_file();
    // A copy of this disk only: one of another test's could not be cooled either.
    let script = r#"while read -r device place _; do
            case $device in /dev/loop*|headway-lab)
                case $place in "$0"/*) ;; *) umount --lazy "$place" ;; esac ;;
            esac
        done </proc/self/mounts
        echo there
        read line"#;
    let mut copy = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(fixture.folder.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("util-linux");
    let mut there = [0; 6];
    let entered = copy.stdout.as_mut().expect("a pipe").read_exact(&mut there);
    let cooled = fixture.disk().drop_caches();
    drop(copy.stdin.take());
    copy.wait().expect("our child");
    entered.expect("a name space");
    let error = cooled.expect_err("its caches live on");
    let holder = copy.id().to_string();
    assert!(
        matches!(&error, DiskError::Shared { holders, .. } if holders.contains(&holder)),
        "{error}"
    );
    // As it was, and without the copy it can be cooled.
    assert_eq!(fs::read(&path).expect("there").len() as u64, FILE_BYTES);
    fixture.disk().drop_caches().expect("no process holds it");
    fixture.stop();
}

#[test]
fn reads_of_a_range_end_with_eio_when_it_fails() {
    let test = "reads_of_a_range_end_with_eio_when_it_fails";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let path = fixture.cold_file();
    let disk = fixture.disk();
    let range = Order::Fail {
        offset_bytes: 1000 * PAGE_BYTES,
        length_bytes: 2 * PAGE_BYTES,
    };
    disk.order(range).expect("it answers");
    let beyond = Order::Fail {
        offset_bytes: spec(Model::Nvme).size_bytes,
        length_bytes: PAGE_BYTES,
    };
    let refused = disk.order(beyond).expect_err("there is nothing");
    assert!(refused.to_string().contains("ends at"), "{refused}");
    let device = uncached(disk.device().expect("not remote"));
    let read = |page| Page::new().read(&device, page).err();
    let fates = [999, 1000, 1001, 1002].map(|page| read(page).and_then(|it| it.raw_os_error()));
    let eio = rustix::io::Errno::IO.raw_os_error();
    assert_eq!(fates, [None, Some(eio), Some(eio), None]);
    assert_eq!(disk.statistics().expect("it answers").failed, 2);
    drop(device);
    // Through the file system: known by name, so that only its data has to be read.
    let file = File::open(&path).expect("there");
    let whole = Order::Fail {
        offset_bytes: 0,
        length_bytes: u64::MAX,
    };
    disk.order(whole).expect("it answers");
    let error = file.read_at(&mut [0; 10], 8 << 20).expect_err("no disk");
    assert_eq!(error.raw_os_error(), Some(eio));
    // A fault does not end it.
    assert!(disk.is_fast().expect("it answers"));
    disk.order(Order::Model).expect("it answers");
    assert!(!disk.is_fast().expect("it answers"));
    disk.order(Order::Fast).expect("it answers");
    assert!(disk.is_fast().expect("it answers"));
    assert_eq!(file.read_at(&mut [0; 10], 8 << 20).expect("a disk"), 10);
    drop(file);
    fixture.stop();
}

#[test]
fn reads_wait_and_all_complete_when_the_disk_stalls() {
    let test = "reads_wait_and_all_complete_when_the_disk_stalls";
    const STALL: Duration = Duration::from_millis(700);
    let faults = FaultPlan(vec![Fault::Stall {
        at_ms: 0,
        for_ms: STALL.as_millis() as u64,
    }]);
    let with_stall = DiskSpec {
        faults,
        ..spec(Model::Nvme)
    };
    let Some(fixture) = Fixture::start(test, &with_stall) else {
        return;
    };
    let path = fixture.cold_file();
    Page::new()
        .read(&uncached(&path), 0)
        .expect("a disk that works");
    let begin = Instant::now();
    fixture.disk().order(Order::Model).expect("it answers");
    std::thread::scope(|scope| {
        for reader in 0..16u64 {
            let path = &path;
            scope.spawn(move || {
                let found = Page::new().read(&uncached(path), reader * 50);
                assert_eq!(found.expect("late, not lost"), (reader * 50) as u8);
                assert!(begin.elapsed() >= STALL);
            });
        }
    });
    let statistics = fixture.disk().statistics().expect("it answers");
    assert_eq!((statistics.reads, statistics.failed), (16, 0));
    fixture.stop();
}

#[test]
fn disk_order_is_an_error_when_out_of_range() {
    let test = "disk_order_is_an_error_when_out_of_range";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let order = Order::Slow {
        factor: -1.0,
        for_ms: 1,
    };
    let error = fixture.disk().order(order).expect_err("a strange factor");
    assert!(matches!(error, DiskError::Spec(_)), "{error}");
    fixture.stop();
}

#[test]
fn another_process_can_stop_the_disk_by_its_folder() {
    let test = "another_process_can_stop_the_disk_by_its_folder";
    let Some(mut fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let second = Disk::start_by(&spec(Model::Nvme), fixture.folder.path(), program());
    assert!(matches!(second, Err(DiskError::Exists { .. })));
    let found = Disk::open(fixture.folder.path()).expect("it is there");
    assert_eq!(found.device(), fixture.disk().device());
    found.confine(&[0]).expect("every machine has it");
    found
        .order(Order::Stall { for_ms: 60_000 })
        .expect("it answers");
    found.stop().expect("no process holds it");
    fixture.assert_nothing_is_left();
    fixture.disk = None;
}

#[test]
fn removal_is_complete_when_the_disk_process_was_killed() {
    let test = "removal_is_complete_when_the_disk_process_was_killed";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let path = fixture.cold_file();
    let pid = fixture.disk().pid().expect("it runs");
    signal(pid, rustix::process::Signal::KILL);
    // Cold, so it has to ask the disk, and the kernel knows that there is none.
    fs::read(&path).expect_err("no disk");
    let error = fixture
        .disk()
        .order(Order::Fast)
        .expect_err("the disk has ended");
    assert!(matches!(error, DiskError::Process { .. }), "{error}");
    fixture.stop();
}

#[test]
fn removal_is_complete_when_the_disk_process_does_not_answer() {
    let test = "removal_is_complete_when_the_disk_process_does_not_answer";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    // Written and not yet on the disk: an unmount would wait for it.
    fs::write(fixture.disk().mount_point().join("new"), [1; 100_000]).expect("room");
    let pid = fixture.disk().pid().expect("it runs");
    signal(pid, rustix::process::Signal::STOP);
    fixture.stop();
}

#[test]
fn error_explains_and_nothing_is_left_when_the_disk_process_fails() {
    let test = "error_explains_and_nothing_is_left_when_the_disk_process_fails";
    let Some(fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    fixture.stop();
    let folder = tempfile::tempdir().expect("a place for files");
    let no_room = DiskSpec {
        backing: Some(folder.path().join("no/such/folder")),
        ..spec(Model::Nvme)
    };
    let error = Disk::start_by(&no_room, folder.path(), program());
    let message = error.expect_err("no backing").to_string();
    assert!(message.contains("No such file"), "{message}");
    assert!(message.contains("no/such/folder"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).expect("ours").count(), 0);
}

#[test]
fn error_names_the_holder_and_removal_succeeds_after_it_ends() {
    let test = "error_names_the_holder_and_removal_succeeds_after_it_ends";
    let Some(mut fixture) = Fixture::start(test, &spec(Model::Nvme)) else {
        return;
    };
    let held = File::open(fixture.cold_file()).expect("there");
    let disk = fixture.disk.take().expect("not stopped yet");
    let message = disk.stop().expect_err("a file is open").to_string();
    let own = std::process::id().to_string();
    let names_holder = message.contains("in use") && message.contains(&own);
    assert!(names_holder, "{message}");
    drop(held);
    Disk::undo(fixture.folder.path()).expect("no process holds it");
    fixture.assert_nothing_is_left();
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("our process");
}
