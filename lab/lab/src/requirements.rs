//! What this machine and this user can make of a lab, found out before anything is made.
//!
//! Only what can be seen without making something is looked at; a kernel that lacks a kind of
//! device says so when it is asked to make one, and the lab is undone.

use std::path::Path;

use crate::disk::{DiskSpec, Filesystem, Model};
use crate::error::Missing;
use crate::lab::LabSpec;
use crate::network::LinkSpec;
use crate::{cpu, groups, tool};

/// Every part that was asked for and cannot be made.
pub fn missing(spec: &LabSpec) -> Vec<Missing> {
    let mut all = Vec::new();
    let mut add = |part: &'static str, reasons: Vec<String>| {
        if !reasons.is_empty() {
            let reason = reasons.join(", ");
            all.push(Missing { part, reason });
        }
    };
    if let Some(disk) = &spec.disk {
        add("disk", for_disk(disk));
    }
    if spec.memory_bytes.is_some() {
        add("memory limit", for_group("memory"));
    }
    if spec.cpu_share.is_some() {
        add("CPU quota", for_group("cpu"));
    }
    if spec.link.is_some() {
        add("link", for_link());
    }
    add("CPUs", for_cpus(spec));
    all
}

/// Every part a lab can have, with what is missing for it; empty means that it works.
pub fn survey() -> Vec<(&'static str, Option<String>)> {
    let (server_cpus, client_cpus) = cpu::usual_split();
    let spec = LabSpec {
        disk: Some(DiskSpec::new(Model::Ide5400, 1 << 30)),
        memory_bytes: Some(512 << 20),
        cpu_share: Some(0.5),
        server_cpus,
        client_cpus,
        link: Some(LinkSpec::new(1_000_000_000)),
        ..LabSpec::new("lab")
    };
    let missing = missing(&spec);
    ["disk", "memory limit", "CPU quota", "link", "CPUs"]
        .into_iter()
        .map(|part| {
            let found = missing.iter().find(|one| one.part == part);
            (part, found.map(|one| one.reason.clone()))
        })
        .collect()
}

fn root() -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    (!root).then(|| "needs root".to_owned())
}

fn programs(needed: &[(&str, &str)]) -> impl Iterator<Item = String> {
    let absent = needed
        .iter()
        .filter(|(program, _)| tool::find(program).is_none());
    absent
        .map(|(program, package)| format!("needs the program {program} (package {package})"))
        .collect::<Vec<_>>()
        .into_iter()
}

fn devices(needed: &[(&str, &str)]) -> impl Iterator<Item = String> {
    let absent = needed.iter().filter(|(path, _)| !Path::new(path).exists());
    absent
        .map(|(path, what)| format!("needs {path}: {what}"))
        .collect::<Vec<_>>()
        .into_iter()
}

fn for_disk(disk: &DiskSpec) -> Vec<String> {
    let mut programs_needed = vec![("losetup", "mount")];
    let mut devices_needed = vec![
        ("/dev/fuse", "load the kernel's module fuse"),
        ("/dev/loop-control", "load the kernel's module loop"),
    ];
    match disk.filesystem {
        Filesystem::Ext4 => programs_needed.push(("mkfs.ext4", "e2fsprogs")),
        Filesystem::Xfs => programs_needed.push(("mkfs.xfs", "xfsprogs")),
        Filesystem::Remote => {
            programs_needed.clear();
            devices_needed.truncate(1);
        }
    }
    root()
        .into_iter()
        .chain(devices(&devices_needed))
        .chain(programs(&programs_needed))
        .collect()
}

fn for_group(controller: &str) -> Vec<String> {
    let controller = match groups::find(controller) {
        Some(_) => None,
        None => Some(format!(
            "needs the {controller} controller in a mounted control group hierarchy (version 1 or 2)"
        )),
    };
    root().into_iter().chain(controller).collect()
}

fn for_link() -> Vec<String> {
    let needed = [
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("unshare", "util-linux"),
    ];
    let spaces = match Path::new("/proc/self/ns/net").exists() {
        true => None,
        false => Some("needs network name spaces in the kernel".to_owned()),
    };
    root()
        .into_iter()
        .chain(spaces)
        .chain(programs(&needed))
        .collect()
}

fn for_cpus(spec: &LabSpec) -> Vec<String> {
    let allowed = cpu::allowed();
    let wanted = spec.server_cpus.iter().chain(&spec.client_cpus);
    let mut absent: Vec<usize> = wanted
        .copied()
        .filter(|cpu| !allowed.contains(cpu))
        .collect();
    absent.sort_unstable();
    absent.dedup();
    match absent.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "{absent:?} are not among those this process may run on, {allowed:?}"
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_missing_when_the_machine_does_not_have_it() {
        let spec = LabSpec {
            server_cpus: vec![0, 100_000],
            ..LabSpec::new("lab")
        };
        let missing = missing(&spec);
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].part, "CPUs");
        assert!(missing[0].reason.starts_with("[100000]"), "{missing:?}");
    }

    #[test]
    fn requirements_are_met_for_an_empty_lab() {
        assert!(missing(&LabSpec::new("lab")).is_empty());
    }

    #[test]
    fn survey_lists_every_part_of_a_lab() {
        assert_eq!(survey().len(), 5);
    }
}
