//! Takes a disk away, in whatever state it is: whole, half made, stalled, or with a disk process
//! that was killed or has stopped.
//!
//! The order is the reverse of making. A file system whose disk does not answer would never be
//! unmounted, so a disk process that does not answer is killed first: the kernel then ends its
//! requests with errors, and everything above comes loose. Each step has a bound; what is left
//! after it is named.

use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::control::{self, DiskCommand};
use super::kernel;
use super::layout::DiskLayout;
use super::spec::Order;
use super::{COMMAND_TIMEOUT, DiskError};

/// A disk process that works answers in microseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The kernel lets go of a device or a process some time after the call.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(3);

/// Removes what there is of a disk. A second call does nothing.
pub(crate) fn undo(layout: &DiskLayout, child: Option<&mut Child>) -> Result<(), DiskError> {
    let order = DiskCommand::Order(Order::Fast);
    if control::send(&layout.socket, &order, ANSWER_TIMEOUT).is_err() {
        kill(layout);
    }
    // Processes with open files are found by the file names as long as the mount is there.
    let mut holders = String::new();
    while_it_answers(layout, || {
        for path in layout.mount_points() {
            holders += &unmount(path);
        }
    });
    for device in kernel::loops_on(&layout.image) {
        // A device that goes away with its last user answers the second call with an error; the
        // list decides.
        let _ = kernel::detach(&device);
    }
    // A process with an open file could not read it without the disk process, and without the FUSE
    // mount the device would not be found again by its image: both stay until the device has gone.
    if kernel::wait_until(UNMOUNT_TIMEOUT, || {
        kernel::loops_on(&layout.image).is_empty()
    }) {
        unmount(&layout.fuse);
        end(layout, child);
    }
    let mut left = remaining(layout, &holders);
    if left.is_empty() {
        match layout.remove() {
            Ok(()) => return Ok(()),
            Err(error) => left.push(format!("its folder: {error}")),
        }
    }
    Err(DiskError::Left {
        folder: layout.folder.clone(),
        what: left,
    })
}

/// Does something that writes to the disk, and kills the disk process if it stops answering
/// meanwhile: what waits for it then ends with errors.
fn while_it_answers(layout: &DiskLayout, act: impl FnOnce()) {
    let (done, watch) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while watch.recv_timeout(ANSWER_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                if control::send(&layout.socket, &DiskCommand::Statistics, ANSWER_TIMEOUT).is_err()
                {
                    kill(layout);
                    return;
                }
            }
        });
        act();
        // Its end is what the watch waits for.
        drop(done);
    });
}

/// Everything that is mounted there. One that is busy leaves the tree at once and goes with its
/// last user; returns which process that was.
fn unmount(path: &Path) -> String {
    let mut holders = String::new();
    for _ in 0..kernel::mounts_on(path) {
        // A moment for files that are just being closed.
        let free = kernel::wait_until(Duration::from_millis(500), || {
            kernel::unmount_once(path).is_ok()
        });
        if !free {
            holders = kernel::holders(path);
            let _ = kernel::unmount_lazily(path);
        }
    }
    holders
}

/// The disk process ends when its file system goes; one that does not is killed.
fn end(layout: &DiskLayout, child: Option<&mut Child>) {
    let gone = || kernel::processes_of(&layout.folder).is_empty();
    if !kernel::wait_until(ANSWER_TIMEOUT, gone) {
        kill(layout);
        kernel::wait_until(COMMAND_TIMEOUT, gone);
    }
    if let Some(child) = child
        && gone()
    {
        // It has ended, so this takes its status and does not wait.
        let _ = child.wait();
    }
}

fn kill(layout: &DiskLayout) {
    for pid in kernel::processes_of(&layout.folder) {
        kernel::kill(pid, &layout.folder);
    }
}

/// What is still there, as text.
fn remaining(layout: &DiskLayout, holders: &str) -> Vec<String> {
    let mut left = Vec::new();
    for device in kernel::loops_on(&layout.image) {
        let elsewhere;
        let holders = if holders.is_empty() {
            // Not busy here, so it is mounted in another name space.
            elsewhere = kernel::holders(&layout.files);
            &elsewhere
        } else {
            holders
        };
        left.push(format!(
            "{} is in use by {holders}; end that and try again",
            device.display()
        ));
    }
    for path in layout.mount_points().into_iter().chain([&*layout.fuse]) {
        if kernel::mounts_on(path) > 0 {
            left.push(format!("{} is still mounted", path.display()));
        }
    }
    for pid in kernel::processes_of(&layout.folder) {
        left.push(format!("the disk process {} runs", pid.as_raw_nonzero()));
    }
    left
}
