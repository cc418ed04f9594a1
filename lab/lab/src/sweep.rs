//! Removing a lab, whatever is there of it.
//!
//! Every step is tried, in the reverse order of making, and is content when its thing is not there:
//! a lab may have been killed between any two steps of making it, or of an earlier removal. Only
//! names of this lab are touched. The directory goes last, and only when nothing else is left, so
//! that what is left can be found again.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use crate::disk::{Disk, Order};
use crate::error::LabError;
use crate::lab::groups_of;
use crate::state::LabDirectory;
use crate::{PREFIX, groups, network, processes};

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
pub(crate) fn everything(directory: &LabDirectory) -> Vec<String> {
    let mut left = Vec::new();
    let mut attempt = |done: Result<(), LabError>| {
        if let Err(error) = done {
            left.push(error.to_string());
        }
    };
    let names = network::names(&directory.name);
    wait_for_tools(directory, &names);
    // Not even SIGKILL ends a process that waits for a stalled disk's inode. Without a disk that
    // answers there is no stall to lift.
    if let Ok(disk) = Disk::open(&directory.path) {
        let _ = disk.order(Order::Fast);
    }
    attempt(end_processes(directory, &names));
    if directory.path.is_dir() {
        attempt(Disk::undo(&directory.path).map_err(LabError::from));
    }
    attempt(network::remove_link(&names));
    attempt(network::remove_space(&names));
    for group in groups_of(&directory.name) {
        attempt(group.remove());
    }
    if left.is_empty() && directory.path.is_dir() {
        let done = fs::remove_dir_all(&directory.path)
            .map_err(LabError::file("removing", &directory.path));
        left.extend(done.err().map(|error| error.to_string()));
        // The last lab takes the base with it; not empty is what it usually is.
        let _ = fs::remove_dir(crate::state::base());
    }
    left
}

/// Waits for tools that still work on the lab. They are not killed, since a name in a command line
/// does not prove to which lab a program belongs.
fn wait_for_tools(directory: &LabDirectory, names: &network::Names) {
    let prefix = format!("{}/", directory.path.display());
    let substrings = [&prefix, &names.client_device, &names.space];
    let substrings = substrings.map(String::as_str);
    processes::wait_until(Duration::from_secs(5), || {
        processes::tools_on(&substrings).is_empty()
    });
}

fn end_processes(directory: &LabDirectory, names: &network::Names) -> Result<(), LabError> {
    let inside = || {
        let mut all = network::processes(names);
        all.extend(
            groups_of(&directory.name)
                .iter()
                .flat_map(groups::ControlGroup::processes),
        );
        all
    };
    match processes::end(inside) {
        left if left.is_empty() => Ok(()),
        left => {
            let remaining = processes::with_command_lines(&left);
            Err(LabError::Value(format!(
                "processes that do not end: {remaining}"
            )))
        }
    }
}
