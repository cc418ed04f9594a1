//! What every part of a lab does at this moment.

use std::path::PathBuf;

use serde::Serialize;

use crate::cpu::QuotaStatus;
use crate::disk::Disk;
use crate::disk::DiskStatistics;
use crate::error::LabError;
use crate::lab::{LabSpec, groups_of};
use crate::memory::MemoryStatus;
use crate::network::LinkStatus;
use crate::state::LabState;
use crate::{cpu, memory, network, processes};

/// A lab's status. Parts that it does not have are `None`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The specification that the lab was made from.
    pub spec: LabSpec,
    /// The disk's counts.
    pub disk: Option<DiskStatus>,
    /// The memory group's; also without a limit, where groups can be made.
    pub memory: Option<MemoryStatus>,
    /// The quota's.
    pub quota: Option<QuotaStatus>,
    /// The link's.
    pub link: Option<LinkStatus>,
    /// The processes on the server's side.
    pub processes: Vec<ProcessStatus>,
}

/// A disk's part of the status: its totals, and the figures that follow from them.
#[derive(Clone, Debug, Serialize)]
pub struct DiskStatus {
    /// Where its files are.
    pub mount_point: PathBuf,
    /// The disk has no delays now.
    pub fast: bool,
    /// Totals since it was last told to be fast or to follow its model.
    pub totals: DiskStatistics,
    /// Share of the time in which it had something to do, 0 to 1.
    pub busy_share: f64,
    /// Requests there on average, waiting ones included.
    pub depth_mean: f64,
    /// Mean time it worked on a request.
    pub service_us: f64,
    /// Mean time from a request's arrival to its answer.
    pub response_us: f64,
}

/// A process of the server's side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessStatus {
    /// The process ID.
    pub pid: u32,
    /// The command line.
    pub command: String,
}

/// Reads the status of every part.
///
/// # Errors
/// The disk's process does not answer, or tc(8) fails: part of the lab is gone.
pub(crate) fn of(name: &str, state: &LabState, disk: Option<&Disk>) -> Result<Status, LabError> {
    let groups = groups_of(name);
    let names = network::names(name);
    let link = match (&state.spec.link, state.addresses) {
        (Some(link), Some(ends)) => Some(network::status(&names, link, ends)?),
        _ => None,
    };
    let mut inside = network::processes(&names);
    inside.extend(
        groups
            .iter()
            .flat_map(crate::groups::ControlGroup::processes),
    );
    inside.sort_unstable();
    inside.dedup();
    let process = |pid| ProcessStatus {
        pid,
        command: processes::command_line(pid),
    };
    Ok(Status {
        spec: state.spec.clone(),
        disk: disk.map(of_disk).transpose()?,
        memory: groups.iter().find_map(memory::status),
        quota: groups.iter().find_map(cpu::status),
        link,
        processes: inside.into_iter().map(process).collect(),
    })
}

fn of_disk(disk: &Disk) -> Result<DiskStatus, LabError> {
    let totals = disk.statistics()?;
    Ok(DiskStatus {
        mount_point: disk.mount_point().to_owned(),
        fast: disk.is_fast()?,
        busy_share: totals.busy_share(),
        depth_mean: totals.depth_mean(),
        service_us: totals.service_us(),
        response_us: totals.response_us(),
        totals,
    })
}
