//! Locks that another thread holds: of files, and of the program's own memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use headway_debox::Label;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::thread::futex;

use crate::truth::{Attempt, block_until_released, prove};

#[test]
fn file_lock_is_named_when_flock_waits_for_another_descriptor() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let test = "file_lock_is_named_when_flock_waits_for_another_descriptor";
    prove(test, |debox| {
        let open = || File::open(file.path()).expect("it exists");
        let (holder, waiter) = (open(), open());
        flock(&holder, FlockOperation::LockExclusive).expect("free");
        let (locked, block) = block_until_released(
            debox,
            libc::SYS_flock,
            || flock(&waiter, FlockOperation::LockExclusive),
            || flock(&holder, FlockOperation::Unlock).expect("held"),
        );
        locked.expect("released");
        Attempt {
            sleeps: vec![(Label::FileLock, 1)],
            blocks: vec![block],
        }
    });
}

/// A lock of the open file description's, so that a thread of the same process can hold it against
/// us.
fn own_lock(file: &File, kind: libc::c_int) {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the pointer is to a structure of this frame.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn file_lock_is_named_when_fcntl_waits_for_another_owner() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let test = "file_lock_is_named_when_fcntl_waits_for_another_owner";
    prove(test, |debox| {
        let holder = file.reopen().expect("it exists");
        let waiter = file.reopen().expect("it exists");
        own_lock(&holder, libc::F_WRLCK);
        let (locked, block) = block_until_released(
            debox,
            libc::SYS_fcntl,
            || fcntl_lock(&waiter, FlockOperation::LockExclusive),
            || own_lock(&holder, libc::F_UNLCK),
        );
        locked.expect("released");
        Attempt {
            sleeps: vec![(Label::FileLock, 1)],
            blocks: vec![block],
        }
    });
}

#[test]
fn futex_is_named_when_a_thread_waits_for_another() {
    prove("futex_is_named_when_a_thread_waits_for_another", |debox| {
        let word = AtomicU32::new(0);
        let (woken, block) = block_until_released(
            debox,
            libc::SYS_futex,
            || futex::wait(&word, futex::Flags::PRIVATE, 0, None),
            || {
                word.store(1, Ordering::Release);
                let woken = futex::wake(&word, futex::Flags::PRIVATE, 1).expect("a futex");
                assert_eq!(woken, 1);
            },
        );
        woken.expect("woken");
        Attempt {
            sleeps: vec![(Label::Futex, 1)],
            blocks: vec![block],
        }
    });
}
