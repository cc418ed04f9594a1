//! Page faults: minor ones to the page, mappings whose pages have to be read, and memory that has
//! to be reclaimed first.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;

use headway_debox::{Debox, Label, Limits};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::fuse::{LateFilesystem, Operation};
use crate::truth::{Attempt, Block, InvalidAttempt, alone, debox_or_skip, prove_in_turn};
use headway_test_support::skip;

/// A mapping, unmapped when dropped.
struct MappedFile {
    address: *mut libc::c_void,
    bytes: usize,
}

impl MappedFile {
    fn anonymous(bytes: usize) -> MappedFile {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let address = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
        };
        let map = MappedFile {
            address: address.expect("memory"),
            bytes,
        };
        // One fault a page, not one for many.
        map.advise(Advice::LinuxNoHugepage);
        map
    }

    fn of(file: &File, bytes: usize) -> MappedFile {
        // SAFETY: as above, read-only.
        let address = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        MappedFile {
            address: address.expect("a mapping"),
            bytes,
        }
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: the mapping is ours; this advice does not change what is in it.
        let advised = unsafe { rustix::mm::madvise(self.address, self.bytes, advice) };
        // A kernel without huge pages refuses advice about them.
        let _ = advised;
    }

    /// The address and the length, for system calls: what is mapped may not be there yet.
    fn write_to(&self, file: &OwnedFd, bytes: usize) -> isize {
        assert!(bytes <= self.bytes);
        // SAFETY: the kernel reads within the mapping.
        unsafe { libc::write(file.as_raw_fd(), self.address, bytes) }
    }

    fn read_from(&self, file: &File, bytes: usize) -> isize {
        assert!(bytes <= self.bytes);
        // SAFETY: the kernel writes within the mapping, which nothing refers to.
        unsafe { libc::pread(file.as_raw_fd(), self.address, bytes, 0) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, to which nothing refers any more.
        let _ = unsafe { rustix::mm::munmap(self.address, self.bytes) };
    }
}

#[test]
fn every_minor_fault_is_counted_when_a_call_fills_fresh_memory() {
    let _alone = alone();
    let test = "every_minor_fault_is_counted_when_a_call_fills_fresh_memory";
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let page = rustix::param::page_size();
    for pages in [0, 1, 64] {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&vec![7; 64 * page]).expect("room");
        let map = MappedFile::anonymous(64 * page);
        let bytes = debox.call(libc::SYS_pread64 as u32, || {
            map.read_from(&file, pages * page)
        });
        assert_eq!(bytes, (pages * page) as isize);
        let record = debox.last().expect("a record");
        let faults = (record.faults_minor, record.faults_major);
        assert_eq!(faults, (Some(pages as u32), Some(0)), "{record:#?}");
    }
}

/// Copies the first pages of a mapped file, none of which is in memory, as the paper's example
/// does.
fn copy_cold_pages(
    late: &LateFilesystem,
    debox: &Debox,
    pages: usize,
    advice: Advice,
) -> Vec<Block> {
    late.schedule(&[]);
    let file = File::open(late.path().join("f1")).expect("every name is there");
    let page = rustix::param::page_size();
    let map = MappedFile::of(&file, pages * page);
    map.advise(advice);
    let copy = memfd_create("copy", MemfdFlags::CLOEXEC).expect("memory");
    late.schedule(&[(Operation::Read, &[9])]);
    let bytes = debox.call(libc::SYS_write as u32, || map.write_to(&copy, pages * page));
    assert_eq!(bytes, (pages * page) as isize);
    let mut since_ns = debox.last().expect("a record").start_ns;
    let block = |answer: &crate::fuse::Answer| Block {
        begin_ns: (
            std::mem::replace(&mut since_ns, answer.answered_ns.0),
            answer.received_ns,
        ),
        end_ns: answer.answered_ns,
    };
    let blocks = late.answers().iter().map(block).collect();
    late.schedule(&[]);
    blocks
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn every_page_is_a_major_fault_and_a_sleep_when_a_cold_mapping_is_copied_at_random() {
    let test = "every_page_is_a_major_fault_and_a_sleep_when_a_cold_mapping_is_copied_at_random";
    let turn = alone();
    let late = match LateFilesystem::mount(Vec::new()) {
        Ok(late) => late,
        Err(error) => return skip(test, &error),
    };
    prove_in_turn(&turn, test, |debox| {
        let blocks = copy_cold_pages(&late, debox, 4, Advice::Random);
        assert_eq!(blocks.len(), 4);
        let record = debox.last().expect("a record");
        assert_eq!(record.faults_major, Some(4), "{record:#?}");
        Ok(Attempt {
            sleeps: vec![(Label::Fuse, 4)],
            blocks,
        })
    });
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn page_is_named_when_a_cold_mapping_is_read_ahead() {
    let test = "page_is_named_when_a_cold_mapping_is_read_ahead";
    let turn = alone();
    let late = match LateFilesystem::mount(Vec::new()) {
        Ok(late) => late,
        Err(error) => return skip(test, &error),
    };
    prove_in_turn(&turn, test, |debox| {
        let blocks = copy_cold_pages(&late, debox, 4, Advice::Normal);
        assert_eq!(blocks.len(), 1);
        let record = debox.last().expect("a record");
        assert!(record.faults_major >= Some(1), "{record:#?}");
        // The pages of one answer are delivered one after the other. A task woken by the first may
        // be faster and wait for the next: also correct, and not longer in total.
        let count: u32 = record.sleeps().iter().map(|sleep| sleep.count).sum();
        if count > 1 {
            return Err(InvalidAttempt(format!(
                "{count} waits for the pages of one answer"
            )));
        }
        Ok(Attempt {
            sleeps: vec![(Label::PageIo, 1)],
            blocks,
        })
    });
}

/// A control group of memory, removed when dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a group whose members may use this much memory.
    fn with_limit(bytes: u64) -> Result<ControlGroup, String> {
        let controllers = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let mut why = "no memory controller".to_owned();
        for (root, limit) in controllers {
            let group =
                ControlGroup(Path::new(root).join(format!("headway-bed-{}", std::process::id())));
            let made = std::fs::create_dir(&group.0)
                .and_then(|()| std::fs::write(group.0.join(limit), bytes.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("a memory control group: {error}"),
            }
        }
        Err(why)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Members have ended, but the kernel may take a moment to notice.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.0) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}

/// Runs in the control group, started by the test below: writes a file several times the limit, and
/// prints the labels of all sleeps.
#[test]
fn labels_are_printed_in_the_child_when_memory_is_short() {
    let Some(group) = std::env::var_os("HEADWAY_GROUND_TRUTH_GROUP") else {
        return;
    };
    std::fs::write(Path::new(&group).join("cgroup.procs"), "0").expect("the group is ours");
    let debox = Debox::enable(Limits::default());
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary file");
    let bytes = vec![1; 256 * 1024];
    for _ in 0..400 {
        debox
            .call(libc::SYS_write as u32, || file.write_all(&bytes))
            .expect("room");
        let record = debox.last().expect("a record");
        for sleep in record.sleeps() {
            println!("slept on {}", sleep.label);
            if sleep.label == Label::Other {
                println!("{}", crate::truth::describe(&record));
            }
        }
    }
}

/// Needs: root: makes a control group with a memory limit
#[test]
fn memory_is_named_when_a_call_has_to_reclaim_it() {
    let test = "memory_is_named_when_a_call_has_to_reclaim_it";
    let _alone = alone();
    if debox_or_skip(test).is_none() {
        return;
    }
    let group = match ControlGroup::with_limit(24 << 20) {
        Ok(group) => group,
        Err(why) => return skip(test, &why),
    };
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture"])
        .arg("memory::labels_are_printed_in_the_child_when_memory_is_short")
        .env("HEADWAY_GROUND_TRUTH_GROUP", &group.0)
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:#?}");
    assert!(!text.contains("slept on other"), "{text}");
    if !text.contains("slept on") {
        return skip(test, "this disk writes faster than memory runs out");
    }
    assert!(text.contains("slept on memory-reclaim"), "{text}");
}
