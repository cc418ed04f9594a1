//! The kernel's side of a disk: loop devices, mounts and processes, looked up where the kernel
//! lists them.
//!
//! Nothing here touches a file of the FUSE file system: with a disk process that has stopped, that
//! would wait for ever. mount(2) and umount(2) are called directly; losetup(8) and mkfs(8) are
//! programs, since the calls behind them are many.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::DiskError;
use super::spec::{DiskSpec, Filesystem};

/// What the kernel reads ahead on a disk by default. A loop device takes its limit from the file
/// below it, and would read megabytes for a page.
const READ_AHEAD_KB: &str = "128";

/// Where system programs lie, if `PATH` is that of a user.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// Runs a system program to its end and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&OsStr]) -> Result<String, DiskError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut search = path;
    search.push(":");
    search.push(SYSTEM_PATH);
    let failed = |why: String| DiskError::Program {
        line: line(program, arguments),
        why,
    };
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", search)
        .stdin(Stdio::null())
        // Ctrl-C at a terminal is for the lab, which then undoes what this makes.
        .process_group(0)
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DiskError::Missing {
                what: format!("the program {program}"),
                remedy: "install it",
            },
            _ => failed(error.to_string()),
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(format!("{}: {message}", output.status)))
}

fn line(program: &str, arguments: &[&OsStr]) -> String {
    let mut line = program.to_owned();
    for argument in arguments {
        line += " ";
        line += &argument.to_string_lossy();
    }
    line
}

/// Puts a loop device on the image and returns its path.
pub(crate) fn attach(image: &Path) -> Result<PathBuf, DiskError> {
    let arguments = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
    let device = run("losetup", &[&arguments[..], &[image.as_os_str()]].concat())?;
    let device = PathBuf::from(device);
    let queue = block(&device).join("queue/read_ahead_kb");
    fs::write(&queue, READ_AHEAD_KB)
        .map_err(|cause| DiskError::io("setting the read-ahead of the device", &queue, cause))?;
    // Without it the image would be cached a second time, where no limit of the server's counts it.
    let direct = fs::read_to_string(block(&device).join("loop/dio")).unwrap_or_default();
    if direct.trim() == "1" {
        return Ok(device);
    }
    Err(DiskError::Missing {
        what: "direct I/O of a loop device on a FUSE file".to_owned(),
        remedy: "take Linux 4.10 or later",
    })
}

/// The device's folder in sysfs.
fn block(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name)
}

/// Loop devices on this image.
pub(crate) fn loops_on(image: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter(|device| {
            let backing = fs::read(device.path().join("loop/backing_file")).unwrap_or_default();
            // Once the file system below it is unmounted, the kernel says so after the name.
            let backing = backing.trim_ascii_end();
            let backing = backing.strip_suffix(b" (deleted)").unwrap_or(backing);
            backing == image.as_os_str().as_bytes()
        })
        .map(|device| Path::new("/dev").join(device.file_name()))
        .collect()
}

/// Detaches a loop device; one that is in use is detached after its last user.
pub(crate) fn detach(device: &Path) -> Result<(), DiskError> {
    run("losetup", &[OsStr::new("--detach"), device.as_os_str()]).map(drop)
}

/// Creates the file system. The same seed gives the same one, hashes of directories included.
pub(crate) fn make_filesystem(spec: &DiskSpec, device: &Path) -> Result<(), DiskError> {
    let uuid = format!(
        "{:08x}-0000-4000-8000-{:012x}",
        spec.seed >> 32,
        spec.seed & 0xffff_ffff
    );
    let program = format!("mkfs.{}", spec.filesystem.name());
    let features = format!("nodiscard,lazy_itable_init=1,hash_seed={uuid}");
    let arguments: &[&str] = match spec.filesystem {
        // An inode for 8 KiB: a third of the files of a SPECweb99 set are smaller than that.
        Filesystem::Ext4 => &[
            "-q", "-F", "-b", "4096", "-i", "8192", "-m", "0", "-U", &uuid, "-E", &features,
        ],
        Filesystem::Xfs => &["-q", "-f", "-K", "-m", &format!("uuid={uuid}")],
        Filesystem::Remote => return Ok(()),
    };
    let mut options: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    options.push(device.as_os_str());
    run(&program, &options).map(drop)
}

/// What an uncached read of a page of the device costs besides the disk's delay. The first quartile
/// of some reads, and never more than the bound: on a busy machine the others tell how busy it is,
/// and an answer must not leave early for that.
pub(crate) fn read_overhead_ns(device: &Path, delay_ns: u64) -> io::Result<u64> {
    const LATENCY_SAMPLES: usize = 60;
    const OVERHEAD_MAX_NS: u64 = 250_000;
    const PAGE_BYTES: usize = 4096;
    let flags = OFlags::DIRECT.bits() as i32;
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(device)?;
    // Direct I/O takes aligned memory only.
    let mut memory = vec![0u8; 2 * PAGE_BYTES];
    let start = memory.as_ptr().align_offset(PAGE_BYTES);
    let page = &mut memory[start..start + PAGE_BYTES];
    let mut times = Vec::with_capacity(LATENCY_SAMPLES);
    for turn in 0..LATENCY_SAMPLES {
        let begin = Instant::now();
        file.read_exact_at(page, (turn * PAGE_BYTES) as u64)?;
        times.push(begin.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times[LATENCY_SAMPLES / 4]
        .saturating_sub(delay_ns)
        .min(OVERHEAD_MAX_NS))
}

/// Forbids or allows writing to a file system that is mounted.
pub(crate) fn set_read_only(path: &Path, read_only: bool) -> io::Result<()> {
    let mut flags = MountFlags::NOATIME | MountFlags::NODEV | MountFlags::NOSUID;
    flags.set(MountFlags::RDONLY, read_only);
    Ok(mount_remount(path, flags, c"")?)
}

/// Whether something is mounted on this path, and how often.
pub(crate) fn mounts_on(path: &Path) -> usize {
    mounts_in(Path::new("/proc/self/mountinfo"), path)
}

fn mounts_in(table: &Path, path: &Path) -> usize {
    let table = fs::read(table).unwrap_or_default();
    let lines = table.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4))
        .filter(|mount_point| unescaped(mount_point) == path.as_os_str())
        .count()
}

/// A path as /proc/self/mountinfo writes it: blanks are `\040` and the like.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Unmounts a path. Busy is an error.
pub(crate) fn unmount_once(path: &Path) -> io::Result<()> {
    Ok(unmount(path, UnmountFlags::NOFOLLOW)?)
}

/// Unmounts a path lazily: from the tree now, and completely after its last user.
pub(crate) fn unmount_lazily(path: &Path) -> io::Result<()> {
    Ok(unmount(
        path,
        UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    )?)
}

/// Whether no file system is on the device any more. Unmounted here it can still be mounted in
/// another mount name space, copied from this one, and its caches live on. The kernel refuses to
/// open such a device exclusively.
pub(crate) fn is_free(device: &Path) -> bool {
    let flags = OFlags::EXCL.bits() as i32;
    let open = File::options().read(true).custom_flags(flags).open(device);
    open.is_ok()
}

/// Processes that keep what is below a path: with a file open there, or else with a mount of it in
/// a name space of their own. Not both: where mounts are shared, as with a container's first
/// process, that one goes with ours. At most some, as text.
pub(crate) fn holders(path: &Path) -> String {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let elsewhere = |process: &Path| {
        fs::read_link(process.join("ns/mnt")).ok() != own
            && mounts_in(&process.join("mountinfo"), path) > 0
    };
    let mut names = named(|process| has_open(process, path));
    if names.is_empty() {
        names = named(elsewhere);
    }
    if names.is_empty() {
        return "no process that can be found".to_owned();
    }
    format!("process {}", names.join(", "))
}

/// Numbers and names of the first processes for which it is so.
fn named(so: impl Fn(&Path) -> bool) -> Vec<String> {
    const NAMED_MAX: usize = 5;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| so(&entry.path()))
        .filter_map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            Some(format!("{} ({})", entry.file_name().display(), name.trim()))
        })
        .take(NAMED_MAX)
        .collect()
}

fn has_open(process: &Path, path: &Path) -> bool {
    let files = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let links = files.map(|file| file.path());
    let links = links.chain([process.join("cwd"), process.join("root")]);
    let mut targets = links.filter_map(|link| fs::read_link(link).ok());
    targets.any(|target| target.starts_with(path))
}

/// Processes that were started as a disk of this folder. A process that has ended has no arguments.
pub(crate) fn processes_of(folder: &Path) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id: i32 = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let arguments: Vec<&[u8]> =
                line.strip_suffix(b"\0")?.split(|&byte| byte == 0).collect();
            let (last, before) = arguments.split_last()?;
            let named = before.contains(&b"disk-process".as_slice());
            let ours = *last == folder.as_os_str().as_bytes() && named;
            ours.then(|| Pid::from_raw(id)).flatten()
        })
        .collect()
}

/// Kills a process of the disk, if it is still that.
pub(crate) fn kill(pid: Pid, folder: &Path) {
    // The descriptor pins the number, so that what is checked is what is killed.
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if processes_of(folder).contains(&pid) {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

/// Keeps every thread of a process on these CPUs.
pub(crate) fn confine(pid: u32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu);
    }
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        sched_setaffinity(thread.and_then(Pid::from_raw), &set)?;
    }
    Ok(())
}

/// Tries until it is so, for at most that long. Says whether it was.
pub(crate) fn wait_until(most: Duration, mut so: impl FnMut() -> bool) -> bool {
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let tries = most.as_millis() / POLL_INTERVAL.as_millis();
    for _ in 0..tries {
        if so() {
            return true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    so()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_that_of_the_folder_when_it_holds_blanks() {
        assert_eq!(unescaped(br"/a\040b\134c"), OsStr::new("/a b\\c"));
        assert_eq!(unescaped(br"/a\9"), OsStr::new("/a\\9"));
    }

    #[test]
    fn processes_are_those_that_were_started_as_disk_of_the_folder() {
        let folder = tempfile::tempdir().expect("a place for files");
        let shell = |word: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "read line", word]).arg(folder.path());
            command.stdin(Stdio::piped()).spawn().expect("a shell")
        };
        let (mut child, mut stranger) = (shell("disk-process"), shell("watch"));
        let own = Pid::from_child(&child);
        let seen = wait_until(Duration::from_secs(5), || {
            processes_of(folder.path()) == [own]
        });
        assert!(seen);
        kill(own, folder.path());
        child.wait().expect("our child");
        assert!(processes_of(folder.path()).is_empty());
        kill(Pid::from_child(&stranger), folder.path());
        drop(stranger.stdin.take());
        let end = stranger.wait().expect("a line that ends");
        assert!(end.code().is_some(), "it was killed, and is none of ours");
    }
}
