//! Files of a filesystem that answers late: lookups, opens, stats, reads, and names that another
//! task looks up or creates.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use headway_debox::{Debox, Label};
use rustix::fs::{Advice, CWD, Mode, fadvise, mkdirat, stat};

use crate::fuse::{Answer, LateFilesystem, Operation};
use crate::truth::{Attempt, Block, InvalidAttempt, alone, prove_in_turn};
use headway_test_support::skip;

fn late_or_skip(test: &str) -> Option<LateFilesystem> {
    LateFilesystem::mount(Vec::new())
        .map_err(|error| skip(test, &error))
        .ok()
}

/// The answers this thread has had, and the block each of them was: since the answer before, or
/// since `since_ns`, until it was given.
fn own_blocks(late: &LateFilesystem, since_ns: u64) -> (Vec<Operation>, Vec<Block>) {
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut since_ns = since_ns;
    late.answers()
        .iter()
        .filter(|answer| answer.thread == own)
        .map(|answer: &Answer| {
            let since_ns = std::mem::replace(&mut since_ns, answer.answered_ns.0);
            let block = Block {
                begin_ns: (since_ns, answer.received_ns),
                end_ns: answer.answered_ns,
            };
            (answer.operation, block)
        })
        .unzip()
}

fn start_ns(debox: &Debox) -> u64 {
    debox.last().expect("a record").start_ns
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn every_late_answer_is_a_sleep_when_a_file_is_opened() {
    let test = "every_late_answer_is_a_sleep_when_a_file_is_opened";
    let turn = alone();
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let path = late.path().join("d1/f1");
    prove_in_turn(&turn, test, |debox| {
        late.schedule(&[(Operation::Lookup, &[5, 9]), (Operation::Open, &[14])]);
        let file = debox.call(libc::SYS_openat as u32, || File::open(&path));
        let (operations, blocks) = own_blocks(&late, start_ns(debox));
        late.schedule(&[]);
        drop(file.expect("every name is there"));
        let expected = [Operation::Lookup, Operation::Lookup, Operation::Open];
        assert_eq!(operations, expected);
        Ok(Attempt {
            sleeps: vec![(Label::Fuse, 3)],
            blocks,
        })
    });
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn every_late_answer_is_a_sleep_when_a_file_is_statted() {
    let test = "every_late_answer_is_a_sleep_when_a_file_is_statted";
    let turn = alone();
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let path = late.path().join("f1");
    prove_in_turn(&turn, test, |debox| {
        late.schedule(&[(Operation::Lookup, &[6]), (Operation::Status, &[11])]);
        let status = debox.call(libc::SYS_newfstatat as u32, || stat(&path));
        status.expect("every name is there");
        let (operations, blocks) = own_blocks(&late, start_ns(debox));
        assert_eq!(operations, [Operation::Lookup, Operation::Status]);
        Ok(Attempt {
            sleeps: vec![(Label::Fuse, 2)],
            blocks,
        })
    });
}

/// Reads a page of a file none of which is in memory.
fn read_cold(late: &LateFilesystem, debox: &Debox, advice: Advice) -> (Vec<Operation>, Vec<Block>) {
    // A file that is opened again has no pages: this filesystem does not let the kernel keep them.
    late.schedule(&[]);
    let file = File::open(late.path().join("f1")).expect("every name is there");
    fadvise(&file, 0, None, advice).expect("advice is free");
    late.schedule(&[(Operation::Read, &[12])]);
    let mut bytes = [0; 4096];
    debox
        .call(libc::SYS_pread64 as u32, || {
            file.read_exact_at(&mut bytes, 8 * 4096)
        })
        .expect("the file is long enough");
    assert_eq!(bytes[0], 7);
    let answers = own_blocks(late, start_ns(debox));
    late.schedule(&[]);
    answers
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn page_is_named_when_a_read_is_cold() {
    let test = "page_is_named_when_a_read_is_cold";
    let turn = alone();
    let Some(late) = late_or_skip(test) else {
        return;
    };
    prove_in_turn(&turn, test, |debox| {
        let (operations, blocks) = read_cold(&late, debox, Advice::Normal);
        assert_eq!(operations, [Operation::Read]);
        Ok(Attempt {
            sleeps: vec![(Label::PageIo, 1)],
            blocks,
        })
    });
}

/// Waits until a request of another thread is with the server.
fn wait_until_begun(late: &LateFilesystem, operation: Operation) {
    while late.begun(operation) == 0 {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Whether a call that began at this time found the other one's request still with the server,
/// whatever it had to do first.
fn in_time(start_ns: u64, others: &Answer) -> Result<(), InvalidAttempt> {
    const MARGIN_NS: u64 = 15_000_000;
    if start_ns + MARGIN_NS < others.answered_ns.0 {
        return Ok(());
    }
    Err(InvalidAttempt(
        "the other one was answered too soon".to_owned(),
    ))
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn inode_lock_is_named_when_another_makes_a_directory_in_the_same_one() {
    let test = "inode_lock_is_named_when_another_makes_a_directory_in_the_same_one";
    let turn = alone();
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let directory = late.path().join("d1");
    let make = |name: &str| mkdirat(CWD, directory.join(name), Mode::RWXU);
    prove_in_turn(&turn, test, |debox| {
        late.schedule(&[(Operation::Lookup, &[3]), (Operation::Mkdir, &[40, 10])]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| make("x1"));
            // The directory's lock is held while the request is with the server.
            wait_until_begun(&late, Operation::Mkdir);
            let made = debox.call(libc::SYS_mkdirat as u32, || make("x2"));
            made.expect("made");
            other.join().expect("no panic").expect("made");
        });
        let (operations, mut blocks) = own_blocks(&late, start_ns(debox));
        // The directory's name, which the kernel may ask for again; the wait for its lock; the new
        // name; the making.
        let (making, lookups) = operations.split_last().expect("there are answers");
        assert_eq!(*making, Operation::Mkdir);
        assert!(lookups.len() >= 2 && lookups.iter().all(|o| *o == Operation::Lookup));
        let answers = late.answers();
        let others = answers.iter().find(|a| a.operation == Operation::Mkdir);
        let held = others.expect("the other one's came first");
        in_time(start_ns(debox), held)?;
        let after = blocks
            .iter()
            .position(|block| block.end_ns.0 > held.answered_ns.0)
            .expect("the making comes after");
        blocks[after].begin_ns.0 = held.answered_ns.0;
        blocks.push(Block {
            begin_ns: blocks[after - 1].end_ns,
            end_ns: held.answered_ns,
        });
        let request_count = operations.len() as u32;
        Ok(Attempt {
            sleeps: vec![(Label::InodeLock, 1), (Label::Fuse, request_count)],
            blocks,
        })
    });
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn dentry_lookup_is_named_when_another_looks_up_the_same_name() {
    let test = "dentry_lookup_is_named_when_another_looks_up_the_same_name";
    let turn = alone();
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let mut number = 0;
    prove_in_turn(&turn, test, |debox| {
        // A new name each time: for a known entry the kernel revalidates instead of looking it up.
        number += 1;
        let path = late.path().join(format!("f{number}"));
        late.schedule(&[(Operation::Lookup, &[40, 4]), (Operation::Status, &[4])]);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| stat(&path));
            wait_until_begun(&late, Operation::Lookup);
            let status = debox.call(libc::SYS_newfstatat as u32, || stat(&path));
            status.expect("every name is there");
            other.join().expect("no panic").expect("the same name");
        });
        let start_ns = start_ns(debox);
        let theirs = late.answers()[0];
        in_time(start_ns, &theirs)?;
        let (operations, mut blocks) = own_blocks(&late, start_ns);
        assert_eq!(operations, [Operation::Lookup, Operation::Status]);
        blocks[0].begin_ns.0 = theirs.answered_ns.0;
        blocks.push(Block {
            begin_ns: (start_ns, start_ns + 500_000),
            end_ns: theirs.answered_ns,
        });
        Ok(Attempt {
            sleeps: vec![(Label::DentryLookup, 1), (Label::Fuse, 2)],
            blocks,
        })
    });
}
