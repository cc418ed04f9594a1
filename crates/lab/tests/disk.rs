//! Real disks: FUSE process, loop device, file system. They skip without root or FUSE.
//!
//! The disk process is this test program, started with the name of one test and the disk's folder.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use headway_lab::disk::{
    Disk, DiskError, DiskSpec, Fault, FaultPlan, Mechanics, Model, Order, Parallel, process_main,
};
use load::random::Random;

const FILE_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 4096;
/// Set for the disk process, so that the test of its name is one only there.
const ROLE: &str = "HEADWAY_LAB_TEST_ROLE";

#[test]
fn disk_process() {
    if std::env::var_os(ROLE).is_some() {
        let folder = std::env::args_os().next_back().expect("a folder");
        process_main(Path::new(&folder)).expect("a prepared folder");
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
        self.disk().cool().expect("nothing is open");
        path
    }

    fn stop(mut self) {
        let disk = self.disk.take().expect("not stopped yet");
        disk.stop().expect("nobody holds it");
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
        .args(["disk_process", "--exact", "--nocapture"])
        .env(ROLE, "disk");
    program
}

fn skip(test: &str, reason: &str) {
    println!("SKIP: {reason}");
    if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
        let log = File::options().append(true).create(true).open(path);
        writeln!(log.expect("a log"), "{test}: {reason}").expect("room");
    }
}

fn spec(model: Model) -> DiskSpec {
    DiskSpec::new(model, 64 << 20)
}

fn slow_parallel() -> Model {
    Model::Custom(Mechanics::Parallel(Parallel {
        latency_us: 20_000.0,
        variation: 0.0,
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

/// Reads pages at random, uncached; returns the mean time as measured and as the model accounts for it.
fn measured_and_modelled_us(disk: &Disk, path: &Path, reads: u64) -> (f64, f64) {
    let file = uncached(path);
    let mut page = Page::new();
    let mut random = Random::new(3);
    // Finds the file's extents, so that only its data is read afterwards.
    page.read(&file, 0).expect("a disk that works");
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

/// The middle of several attempts, so that a busy moment of the machine decides nothing.
fn assert_delays_are_the_models(test: &str, model: Model, reads: u64) {
    let Some(fixture) = Fixture::start(test, &spec(model)) else {
        return;
    };
    let path = fixture.cold_file();
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| {
            let (measured_us, modelled_us) = measured_and_modelled_us(fixture.disk(), &path, reads);
            println!("measured {measured_us:.0} us, modelled {modelled_us:.0} us");
            measured_us / modelled_us
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    assert!((0.9..1.1).contains(&ratios[2]), "{ratios:?}");
    fixture.stop();
}

#[test]
fn delay_is_the_models_when_a_spindle_is_read_at_random() {
    let test = "delay_is_the_models_when_a_spindle_is_read_at_random";
    assert_delays_are_the_models(test, Model::Ide5400, 40);
}

#[test]
fn delay_is_the_models_when_a_network_volume_is_read_at_random() {
    let test = "delay_is_the_models_when_a_network_volume_is_read_at_random";
    assert_delays_are_the_models(test, Model::Network, 200);
}
