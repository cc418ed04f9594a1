//! A disk that is late: an ext4 file system on a loop device over an image whose server answers by
//! a schedule. The kernel's own page, inode and journal code is what waits.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use headway_debox::{Debox, Label, Limits};

use crate::fuse::{LateFilesystem, Operation};
use crate::truth::{alone, debox_or_skip, describe};
use headway_test_support::skip;

const IMAGE_BYTES: u64 = 24 << 20;

/// A mounted file system on the late image. Fields are dropped in this order: first the device is
/// given up, then the image.
struct Disk {
    mount: tempfile::TempDir,
    device: String,
    late: LateFilesystem,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}", stderr.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// An image with `folder/file` of 1 MiB in it.
fn image() -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let image = folder.path().join("image");
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("folder")).map_err(|error| error.to_string())?;
    std::fs::write(tree.join("folder/file"), vec![7; 1 << 20]).map_err(|e| e.to_string())?;
    File::create(&image)
        .and_then(|file| file.set_len(IMAGE_BYTES))
        .map_err(|error| error.to_string())?;
    let text = |path: &Path| path.display().to_string();
    run(
        "mkfs.ext4",
        &["-q", "-F", "-d", &text(&tree), &text(&image)],
    )?;
    std::fs::read(&image).map_err(|error| error.to_string())
}

impl Disk {
    fn mount() -> Result<Disk, String> {
        let late = LateFilesystem::mount(image()?)?;
        let mount = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = late.path().join("disk").display().to_string();
        let device = run("losetup", &["--find", "--show", "--direct-io=on", &path])?;
        let disk = Disk {
            mount,
            device,
            late,
        };
        disk.mount_device()?;
        Ok(disk)
    }

    fn mount_device(&self) -> Result<(), String> {
        let mount_point = self.mount.path().display().to_string();
        run("mount", &["-t", "ext4", &self.device, &mount_point]).map(drop)
    }

    /// A file system that was mounted again has nothing in memory.
    fn make_cold(&self) {
        self.late.schedule(&[]);
        let mount_point = self.mount.path().display().to_string();
        run("umount", &[&mount_point]).expect("nothing is open");
        // The block device's own pages go with its last user; those of the image with this.
        run("blockdev", &["--flushbufs", &self.device]).expect("our device");
        self.mount_device().expect("mounted before");
    }

    /// Nanoseconds during which a request was with the server, since `start_ns`; overlaps count
    /// once.
    fn late_ns(&self, start_ns: u64, end_ns: u64) -> u64 {
        let mut spans: Vec<(u64, u64)> = self
            .late
            .answers()
            .iter()
            .map(|answer| {
                (
                    answer.received_ns.max(start_ns),
                    answer.answered_ns.1.min(end_ns),
                )
            })
            .filter(|(from, to)| from < to)
            .collect();
        spans.sort_unstable();
        let mut reached = start_ns;
        let mut sum = 0;
        for (from, to) in spans {
            sum += to.saturating_sub(from.max(reached));
            reached = reached.max(to);
        }
        sum
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.late.schedule(&[]);
        let mount_point = self.mount.path().display().to_string();
        let _ = run("umount", &[&mount_point]);
        if let Err(error) = run("losetup", &["-d", &self.device]) {
            eprintln!("{}: {error}", self.device);
        }
        // The kernel lets go of the image a moment after the answer.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Checks that the last call slept only on these labels, and as long as the disk was late, within 5
/// %. `Err` if the machine was too busy for a verdict.
fn check(disk: &Disk, debox: &Debox, labels: &[Label], first: Label) -> Result<(), String> {
    let record = debox.last().expect("a record");
    for sleep in record.sleeps() {
        assert!(labels.contains(&sleep.label), "{}", describe(&record));
    }
    let found = record.sleeps().iter().any(|sleep| sleep.label == first);
    assert!(found, "no {first}: {}", describe(&record));
    assert_eq!((record.lost, record.sleeps_dropped), (0, 0));
    let late_ns = disk.late_ns(record.start_ns, record.start_ns + record.wall_ns);
    let waited_ns = record.wakeup_ns.expect("asked for");
    let slept_ns = record.blocked_ns().saturating_sub(waited_ns);
    if late_ns.abs_diff(slept_ns) > (late_ns / 20).max(50_000) {
        return Err(format!("{late_ns} ns late, {slept_ns} ns asleep"));
    }
    Ok(())
}

/// Makes attempts until one is not blurred by what else the machine does.
fn prove(test: &str, mut attempt: impl FnMut(&Disk, &Debox) -> Result<(), String>) {
    let _alone = alone();
    if debox_or_skip(test).is_none() {
        return;
    }
    let disk = match Disk::mount() {
        Ok(disk) => disk,
        Err(why) => return skip(test, &why),
    };
    let debox = Debox::enable(Limits {
        sleeps_max: 16,
        ..Limits::default()
    });
    let mut errors = Vec::new();
    for _ in 0..20 {
        match attempt(&disk, &debox) {
            Ok(()) => return,
            Err(error) => errors.push(error),
        }
    }
    panic!("no attempt agreed with the disk's clock: {errors:#?}");
}

/// Needs: root: mounts a loop device over a FUSE file
#[test]
fn buffer_is_named_when_an_open_has_to_read_the_directory() {
    let test = "buffer_is_named_when_an_open_has_to_read_the_directory";
    prove(test, |disk, debox| {
        disk.make_cold();
        let path = disk.mount.path().join("folder/file");
        disk.late.schedule(&[(Operation::Read, &[15])]);
        let file = debox.call(libc::SYS_openat as u32, || File::open(&path));
        file.expect("it is there");
        check(disk, debox, &[Label::BufferIo], Label::BufferIo)
    });
}

/// Needs: root: mounts a loop device over a FUSE file
#[test]
fn page_is_named_when_a_read_waits_for_the_disk() {
    let test = "page_is_named_when_a_read_waits_for_the_disk";
    prove(test, |disk, debox| {
        disk.make_cold();
        let file = File::open(disk.mount.path().join("folder/file")).expect("it is there");
        let mut bytes = [0; 4096];
        disk.late.schedule(&[(Operation::Read, &[30])]);
        debox
            .call(libc::SYS_pread64 as u32, || {
                file.read_exact_at(&mut bytes, 512 << 10)
            })
            .expect("long enough");
        assert_eq!(bytes[0], 7);
        check(
            disk,
            debox,
            &[Label::PageIo, Label::BufferIo],
            Label::PageIo,
        )
    });
}

/// Needs: root: mounts a loop device over a FUSE file
#[test]
fn journal_is_named_when_a_file_is_synced() {
    let test = "journal_is_named_when_a_file_is_synced";
    prove(test, |disk, debox| {
        disk.late.schedule(&[]);
        let mut file = File::create(disk.mount.path().join("new")).expect("room");
        file.write_all(&[1; 8192]).expect("room");
        disk.late
            .schedule(&[(Operation::Write, &[15]), (Operation::Fsync, &[5])]);
        debox
            .call(libc::SYS_fsync as u32, || file.sync_all())
            .expect("the disk works");
        let labels = [
            Label::Journal,
            Label::PageWriteback,
            Label::BufferIo,
            Label::BufferLock,
        ];
        let seen = check(disk, debox, &labels, Label::Journal);
        disk.late.schedule(&[]);
        seen
    });
}
