//! CPUs, cores and packages as sysfs shows them.
//!
//! Source: Documentation/ABI/stable/sysfs-devices-system-cpu (`topology/*`, `online`) and
//! Documentation/ABI/testing/sysfs-devices-system-cpu (`smt/control`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A hardware thread, which the kernel calls a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The kernel's number.
    pub number: usize,
    /// The CPU is online.
    pub online: bool,
    /// The CPU can be taken offline and brought back.
    pub can_leave: bool,
    /// The package and the core in it; `None` while it is offline, when the kernel does not say.
    pub package_and_core: Option<(i64, i64)>,
}

/// Content of `smt/control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmtControl {
    /// Threads of a core are used.
    On,
    /// Threads of a core are off, and can be switched on.
    Off,
    /// Threads of a core are off until the machine is booted without `nosmt=force`.
    ForceOff,
    /// The CPU has one thread a core, or the firmware says so.
    NotSupported,
    /// The kernel cannot switch it.
    NotImplemented,
}

/// The CPUs of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// All that are there, by number.
    pub cpus: Vec<Cpu>,
    /// Whether threads of a core are used.
    pub smt: SmtControl,
    /// The kernel was built or booted for one CPU.
    pub is_uniprocessor: bool,
    /// The directory that all of this came from.
    #[serde(skip)]
    pub root: PathBuf,
}

/// Where the kernel shows its CPUs.
pub const CPUS: &str = "/sys/devices/system/cpu";

impl Topology {
    /// Reads the topology of this machine.
    pub fn current() -> Topology {
        let version = fs::read_to_string("/proc/version").unwrap_or_default();
        let command = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        Topology::read(Path::new(CPUS), &version, &command)
    }

    /// Reads the topology from a directory like [`CPUS`], for a kernel with these words in
    /// /proc/version and /proc/cmdline.
    pub fn read(root: &Path, version: &str, command: &str) -> Topology {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let mut cpus: Vec<Cpu> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                cpu(&entry.path(), name.strip_prefix("cpu")?.parse().ok()?)
            })
            .collect();
        cpus.sort_by_key(|cpu| cpu.number);
        let control = fs::read_to_string(root.join("smt/control")).unwrap_or_default();
        let has_parameter =
            |parameter: &str| command.split_whitespace().any(|word| word == parameter);
        Topology {
            cpus,
            smt: match control.trim() {
                "on" => SmtControl::On,
                "off" => SmtControl::Off,
                "forceoff" => SmtControl::ForceOff,
                "notsupported" => SmtControl::NotSupported,
                // Newer kernels can say how many threads of a core are used.
                number if number.parse::<u32>().is_ok() => SmtControl::On,
                _ => SmtControl::NotImplemented,
            },
            is_uniprocessor: !version.contains(" SMP")
                || has_parameter("nosmp")
                || has_parameter("maxcpus=0"),
            root: root.to_path_buf(),
        }
    }

    /// Cores with their online threads, in the order of their first thread; each with its package.
    pub fn cores(&self) -> Vec<(i64, Vec<usize>)> {
        let mut cores: BTreeMap<(i64, i64), Vec<usize>> = BTreeMap::new();
        for cpu in self.cpus.iter().filter(|cpu| cpu.online) {
            // A kernel that says nothing of places (some guests) has a core for each thread.
            let package_and_core = cpu.package_and_core.unwrap_or((0, -1 - cpu.number as i64));
            cores.entry(package_and_core).or_default().push(cpu.number);
        }
        let mut cores: Vec<(i64, Vec<usize>)> = cores
            .into_iter()
            .map(|((package, _), cpus)| (package, cpus))
            .collect();
        cores.sort_by_key(|(_, cpus)| cpus[0]);
        cores
    }

    /// The CPUs that take part.
    pub fn online(&self) -> Vec<usize> {
        let online = self.cpus.iter().filter(|cpu| cpu.online);
        online.map(|cpu| cpu.number).collect()
    }

    /// A CPU by its number.
    pub fn cpu(&self, number: usize) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.number == number)
    }
}

fn cpu(folder: &Path, number: usize) -> Option<Cpu> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let id = |name: &str| {
        text(&format!("topology/{name}"))?
            .trim()
            .parse::<i64>()
            .ok()
    };
    // CPUs that cannot leave have no such file, and are online.
    let online = text("online");
    Some(Cpu {
        number,
        can_leave: online.is_some(),
        online: online.is_none_or(|text| text.trim() == "1"),
        package_and_core: id("physical_package_id").zip(id("core_id")),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine of that number of packages, cores per package and threads per core, in the usual
    /// numbering: all first threads first.
    pub(crate) fn machine(
        packages: usize,
        cores: usize,
        threads: usize,
        smt: &str,
    ) -> (tempfile::TempDir, Topology) {
        let root = tempfile::tempdir().expect("a directory");
        let put = |path: String, text: String| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text + "\n").expect("written");
        };
        for thread in 0..threads {
            for package in 0..packages {
                for core in 0..cores {
                    let number = thread * packages * cores + package * cores + core;
                    put(
                        format!("cpu{number}/topology/physical_package_id"),
                        package.to_string(),
                    );
                    put(format!("cpu{number}/topology/core_id"), core.to_string());
                    if number > 0 {
                        put(format!("cpu{number}/online"), "1".into());
                    }
                }
            }
        }
        put("smt/control".into(), smt.into());
        put("cpufreq/boost".into(), "1".into());
        let topology = Topology::read(
            root.path(),
            "Linux version 6.18 #1 SMP PREEMPT_DYNAMIC",
            "quiet",
        );
        (root, topology)
    }

    #[test]
    fn smt_siblings_are_grouped_by_core() {
        let (_root, topology) = machine(2, 2, 2, "on");
        assert_eq!(
            topology.cores(),
            [
                (0, vec![0, 4]),
                (0, vec![1, 5]),
                (1, vec![2, 6]),
                (1, vec![3, 7])
            ]
        );
        assert!(
            !topology.cpu(0).expect("there").can_leave && topology.cpu(1).expect("there").can_leave
        );
        assert_eq!(topology.smt, SmtControl::On);
        assert!(!topology.is_uniprocessor);
    }

    #[test]
    fn cpu_is_left_out_when_it_is_offline() {
        let (root, _) = machine(1, 2, 2, "off");
        fs::write(root.path().join("cpu2/online"), "0\n").expect("written");
        fs::write(root.path().join("cpu3/online"), "0\n").expect("written");
        let topology = Topology::read(root.path(), "Linux #1 SMP", "");
        assert_eq!(topology.online(), [0, 1]);
        assert_eq!(topology.cores(), [(0, vec![0]), (0, vec![1])]);
        assert_eq!(topology.smt, SmtControl::Off);
    }

    #[test]
    fn kernel_is_for_one_cpu_when_it_was_built_or_booted_so() {
        let (root, _) = machine(1, 1, 1, "notsupported");
        let is = |version, command| Topology::read(root.path(), version, command).is_uniprocessor;
        assert!(is("Linux version 6.18 #1 PREEMPT", ""));
        assert!(is("Linux version 6.18 #1 SMP", "ro nosmp"));
        assert!(!is("Linux version 6.18 #1 SMP", "ro"));
        let nowhere = Topology::read(Path::new("/nowhere"), "", "");
        assert!(nowhere.cpus.is_empty() && nowhere.smt == SmtControl::NotImplemented);
    }
}
