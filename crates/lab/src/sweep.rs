//! Removing a lab, whatever is there of it.
//!
//! Every step is tried, in the reverse order of making, and is content when its thing is not there: a lab
//! may have been killed between any two steps of making it, or of an earlier removal. Only names of this lab are touched.
//! The directory goes last, and only when nothing else is left, so that what is left can be found again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::disk_part::Disk;
use crate::error::LabError;
use crate::lab::{disk_directory, groups_of};
use crate::state::Home;
use crate::{PREFIX, groups, network, processes, tool};

/// Labs of which there is anything: a directory, a control group, a name space, a device.
pub(crate) fn found() -> Vec<String> {
    let mut names: BTreeSet<String> = crate::state::recorded().into_iter().collect();
    names.extend(groups::existing(PREFIX).into_iter().filter_map(|group| {
        let name = group.path.file_name()?.to_str()?;
        Some(name.strip_prefix(PREFIX)?.to_owned())
    }));
    names.extend(network::labs_with_links());
    names.retain(|name| crate::state::check_name(name).is_ok());
    names.into_iter().collect()
}

/// Removes everything of a lab; returns what is still there and why.
pub(crate) fn everything(home: &Home) -> Vec<String> {
    let mut left = Vec::new();
    let mut attempt = |done: Result<(), LabError>| {
        if let Err(error) = done {
            left.push(error.to_string());
        }
    };
    let names = network::names(&home.name);
    attempt(end_processes(home, &names));
    attempt(remove_disk(&disk_directory(home)));
    attempt(network::remove_link(&names));
    attempt(network::remove_space(&names));
    for group in groups_of(&home.name) {
        attempt(group.remove());
    }
    if left.is_empty() && home.path.is_dir() {
        let done = fs::remove_dir_all(&home.path).map_err(LabError::file("removing", &home.path));
        left.extend(done.err().map(|error| error.to_string()));
        // The last lab takes the base with it; not empty is what it usually is.
        let _ = fs::remove_dir(crate::state::base());
    }
    left
}

fn end_processes(home: &Home, names: &network::Names) -> Result<(), LabError> {
    let inside = || {
        let mut all = network::processes(names);
        all.extend(
            groups_of(&home.name)
                .iter()
                .flat_map(groups::Group::processes),
        );
        all
    };
    match processes::end(inside) {
        left if left.is_empty() => Ok(()),
        left => {
            let words: Vec<String> = left
                .into_iter()
                .map(|process| format!("{process} ({})", processes::command_line(process)))
                .collect();
            let why = format!("processes that do not end: {}", words.join(", "));
            Err(LabError::Value(why))
        }
    }
}

/// A disk that answers is stopped as it wants to be; of any other one the pieces are removed.
fn remove_disk(directory: &Path) -> Result<(), LabError> {
    if !directory.is_dir() {
        return Ok(());
    }
    if let Ok(disk) = Disk::open(directory) {
        // If it fails, what is below finds the rest.
        let _ = disk.stop();
    }
    end_disk_process(directory)?;
    for mount in mounts_of(directory) {
        rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::empty())
            .map_err(|error| LabError::file("unmounting", &mount)(error.into()))?;
    }
    for device in loops_of(directory) {
        tool::run("losetup", &["-d", &device])?;
    }
    // Again: the FUSE mount under a loop device can only go after it.
    for mount in mounts_of(directory) {
        rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::empty())
            .map_err(|error| LabError::file("unmounting", &mount)(error.into()))?;
    }
    Ok(())
}

/// The disk's own process, by its command line: it names the directory.
fn end_disk_process(directory: &Path) -> Result<(), LabError> {
    let ours = || {
        let mut all = processes::all();
        all.retain(|&process| {
            let line = processes::command_line(process);
            line.contains(" disk-process ")
                && line
                    .split(' ')
                    .any(|word| Path::new(word).starts_with(directory))
        });
        all
    };
    match processes::end(ours) {
        left if left.is_empty() => Ok(()),
        left => Err(LabError::Value(format!("disk process {left:?}"))),
    }
}

/// Mounts in the directory, and file systems mounted elsewhere from its loop devices; the latest first.
fn mounts_of(directory: &Path) -> Vec<PathBuf> {
    let devices = loops_of(directory);
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let point = PathBuf::from(before.split(' ').nth(4)?);
            let source = after.split(' ').nth(1)?;
            let ours = point.starts_with(directory) || devices.iter().any(|one| one == source);
            ours.then_some(point)
        })
        .collect();
    mounts.reverse();
    mounts
}

/// Loop devices whose file is in the directory.
fn loops_of(directory: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter(|entry| {
            let file = fs::read_to_string(entry.path().join("loop/backing_file"));
            // Where the file's own file system is gone, the kernel adds " (deleted)" or shows the path inside of it.
            file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(directory))
        })
        .map(|entry| format!("/dev/{}", entry.file_name().to_string_lossy()))
        .collect()
}
