//! What this machine has for counting: its core, its counting units, its limits, and how each
//! meaning is counted here.
//!
//! Everything is read below one root, so that tests can imitate other machines.

mod limits;
mod resolve;
mod units;

use std::path::Path;

use serde::Serialize;

pub use limits::{Limits, Watchdog};
pub use resolve::{Absent, Resolved};
pub use units::{BadCode, CountingUnit};

use crate::events::{Core, Identity, table};

/// A machine as far as counting goes.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Identity of the CPU.
    pub identity: Identity,
    /// The core's name in the table and the core's row, if the table knows it.
    pub core: Option<(String, Core)>,
    /// The counting units that the kernel offers, by name.
    pub units: Vec<CountingUnit>,
    /// What is allowed, and what is taken.
    pub limits: Limits,
}

/// A machine in a few words, for reports.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// The CPU's model name.
    pub cpu: String,
    /// The core's title, if the table knows it.
    pub core: Option<String>,
    /// Under a hypervisor.
    pub is_virtual: bool,
    /// The kernel offers the core's counters.
    pub has_core_counters: bool,
    /// Programmable counters of a hardware thread, less the watchdog's; `None` where it is unknown.
    pub counters: Option<usize>,
    /// The watchdog has one of them.
    pub watchdog: Watchdog,
    /// The sysctl `kernel.perf_event_paranoid`.
    pub paranoid: Option<i32>,
}

impl Machine {
    /// Describes this machine.
    pub fn current() -> Machine {
        Machine::at(Path::new("/"))
    }

    /// The machine whose `/proc` and `/sys` stand below a root.
    pub fn at(root: &Path) -> Machine {
        let cpuinfo = std::fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let identity = Identity::parse(&cpuinfo);
        let core = table().core_of(&identity);
        Machine {
            core: core.map(|(name, core)| (name.to_owned(), core.clone())),
            identity,
            units: units::all(&root.join("sys/bus/event_source/devices")),
            limits: Limits::at(root),
        }
    }

    /// The unit that counts what a core's threads do.
    pub fn core_unit(&self) -> Option<&CountingUnit> {
        let is_core = |unit: &&CountingUnit| {
            matches!(unit.name.as_str(), "cpu" | "cpu_core") || unit.name.starts_with("armv")
        };
        self.units.iter().find(is_core)
    }

    /// Programmable counters of a hardware thread that are free; `None` where the table does not
    /// know the core.
    pub fn counters(&self) -> Option<usize> {
        let (_, core) = self.core.as_ref()?;
        let taken = usize::from(self.limits.watchdog == Watchdog::Counts);
        // The watchdog counts cycles, which is no programmable counter where cycles have their own.
        let taken = match core.fixed.contains(&crate::events::Meaning::Cycles) {
            true => 0,
            false => taken,
        };
        Some(core.counters.saturating_sub(taken))
    }

    /// The machine in a few words.
    pub fn description(&self) -> Description {
        Description {
            cpu: self.identity.name.clone(),
            core: self.core.as_ref().map(|(_, core)| core.title.clone()),
            is_virtual: self.identity.is_virtual,
            has_core_counters: self.core_unit().is_some(),
            counters: self.counters(),
            watchdog: self.limits.watchdog,
            paranoid: self.limits.paranoid,
        }
    }

    /// What a user should know before believing a count: one sentence each.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if self.core_unit().is_none() {
            let whom = match self.identity.is_virtual {
                true => "this machine is a guest whose hypervisor passes no CPU counters on",
                false => "the kernel offers no CPU counters here",
            };
            notices.push(format!(
                "{whom}: cycles, instructions, misses and stalls cannot be counted; the kernel's own counts can, and with \
                 valgrind the instructions of user code"
            ));
        } else if self.core.is_none() {
            notices.push(format!(
                "the table has no rows for this CPU ({}): only events that the kernel names itself are counted",
                self.identity.name
            ));
        }
        if self.core_unit().is_some() && self.limits.watchdog == Watchdog::Counts {
            notices.push(
                "the kernel's watchdog for hard lock-ups holds a counter for cycles on every CPU; without it \
                 (sysctl kernel.nmi_watchdog=0) there is one more"
                    .into(),
            );
        }
        notices
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A machine of files: `(path below the root, text)`.
    pub(crate) fn machine_of(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
        let machine = Machine::at(root.path());
        (root, machine)
    }

    pub(crate) const ZEN5: &str = "vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2\nmodel name : AMD EPYC 9755\nflags : fpu\n";
    const DEVICES: &str = "sys/bus/event_source/devices";

    pub(crate) fn zen5(watchdog: &str) -> (tempfile::TempDir, Machine) {
        let at = |path: &str| format!("{DEVICES}/{path}");
        let names = [
            at("cpu/type"),
            at("cpu/format/event"),
            at("cpu/format/umask"),
            at("cpu/format/cmask"),
            at("cpu/format/edge"),
            at("amd_l3/type"),
            at("amd_l3/cpumask"),
            at("amd_l3/format/event"),
            at("amd_l3/format/umask"),
            at("amd_umc_0/type"),
            at("amd_umc_0/cpumask"),
            at("amd_umc_0/format/event"),
            at("amd_umc_0/format/rdwrmask"),
            at("amd_umc_1/type"),
            at("amd_umc_1/cpumask"),
            at("amd_umc_1/format/event"),
            at("amd_umc_1/format/rdwrmask"),
        ];
        let texts = [
            "4\n",
            "config:0-7,32-35\n",
            "config:8-15\n",
            "config:24-31\n",
            "config:18\n",
            "13\n",
            "0,8\n",
            "config:0-7\n",
            "config:8-15\n",
            "20\n",
            "0\n",
            "config:0-7\n",
            "config:8-9\n",
            "21\n",
            "0\n",
            "config:0-7\n",
            "config:8-9\n",
        ];
        let mut files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(texts).collect();
        files.push(("proc/cpuinfo", ZEN5));
        files.push(("proc/sys/kernel/nmi_watchdog", watchdog));
        files.push(("proc/sys/kernel/perf_event_paranoid", "2\n"));
        machine_of(&files)
    }

    #[test]
    fn watchdog_uses_a_programmable_counter() {
        let (_root, machine) = zen5("0\n");
        assert_eq!(machine.counters(), Some(6));
        assert!(machine.notices().is_empty(), "{:?}", machine.notices());
        let (_root, machine) = zen5("1\n");
        assert_eq!(machine.counters(), Some(5));
        assert!(machine.notices()[0].contains("nmi_watchdog=0"));
    }

    #[test]
    fn missing_counters_of_a_virtual_machine_are_listed() {
        let cpuinfo = "vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2\nmodel name : AMD EPYC\nflags : hypervisor\n";
        let (_root, machine) = machine_of(&[
            ("proc/cpuinfo", cpuinfo),
            ("sys/bus/event_source/devices/software/type", "1\n"),
        ]);
        assert!(!machine.description().has_core_counters);
        let notices = machine.notices();
        assert!(
            notices[0].contains("hypervisor passes no CPU counters"),
            "{notices:?}"
        );
    }
}
