//! What a configuration of Table 4.3 is on this machine: the server's CPUs, the client's, and
//! what has to change.
//!
//! The dissertation's CPUs had one core with two threads each, so its "processor" is a core
//! here; two of them are taken from two packages where there are two, which is the nearest to its
//! machine. A client runs on this machine too, on what is left.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Change;
use super::topology::{SmtControl, Topology};

/// A configuration of Table 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Configuration {
    /// One CPU, a kernel for one.
    #[serde(rename = "1T-UP")]
    OneUniprocessor,
    /// One CPU, a kernel for several, no SMT.
    #[serde(rename = "1T-SMP")]
    One,
    /// One CPU, SMT.
    #[serde(rename = "2T")]
    OneWithSmt,
    /// Two CPUs, no SMT.
    #[serde(rename = "2P")]
    Two,
    /// Two CPUs, SMT.
    #[serde(rename = "4T")]
    TwoWithSmt,
}

use Configuration::{One, OneUniprocessor, OneWithSmt, Two, TwoWithSmt};

impl Configuration {
    /// All five, in the order of the table.
    pub const ALL: [Configuration; 5] = [OneUniprocessor, One, OneWithSmt, Two, TwoWithSmt];

    /// The notation of the dissertation.
    pub fn name(self) -> &'static str {
        match self {
            OneUniprocessor => "1T-UP",
            One => "1T-SMP",
            OneWithSmt => "2T",
            Two => "2P",
            TwoWithSmt => "4T",
        }
    }

    /// Number of cores.
    pub fn cores(self) -> usize {
        match self {
            OneUniprocessor | One | OneWithSmt => 1,
            Two | TwoWithSmt => 2,
        }
    }

    /// Threads of a core.
    pub fn threads(self) -> usize {
        match self {
            OneUniprocessor | One | Two => 1,
            OneWithSmt | TwoWithSmt => 2,
        }
    }

    /// Hardware contexts, which is how many workers a server gets.
    pub fn contexts(self) -> usize {
        self.cores() * self.threads()
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// No configuration has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no configuration; they are 1T-UP, 1T-SMP, 2T, 2P and 4T")]
pub struct UnknownConfiguration(String);

impl FromStr for Configuration {
    type Err = UnknownConfiguration;

    fn from_str(text: &str) -> Result<Configuration, UnknownConfiguration> {
        let same = |one: &Configuration| one.name().eq_ignore_ascii_case(text);
        let found = Configuration::ALL.into_iter().find(same);
        found.ok_or_else(|| UnknownConfiguration(text.into()))
    }
}

/// A configuration as it can be here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The server's hardware threads.
    pub server: Vec<usize>,
    /// The server's hardware threads, core by core.
    pub cores: Vec<Vec<usize>>,
    /// The client's hardware threads.
    pub client: Vec<usize>,
    /// What has to change before, in this order.
    pub changes: Vec<Change>,
    /// What a reader of its figures should know.
    pub remarks: Vec<String>,
}

/// Whether a configuration can be had here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The configuration is possible.
    Possible(Layout),
    /// The configuration is possible after SMT is switched on. Only then does the kernel say which
    /// threads share a core.
    NeedsSmt,
    /// The configuration is not possible, and why.
    Impossible(String),
}

/// The choice of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The server's cores are chosen among those of these CPUs; empty for all.
    pub server: Vec<usize>,
    /// The client's CPUs; empty for what the server's cores leave.
    pub client: Vec<usize>,
}

impl Configuration {
    /// What this configuration is on a machine.
    pub fn on(self, topology: &Topology, choice: &Choice) -> Setting {
        if let Some(unknown) = choice
            .server
            .iter()
            .chain(&choice.client)
            .find(|number| !is_online(topology, **number))
        {
            return Setting::Impossible(format!(
                "this machine has no CPU {unknown} that is online; it has {}",
                listed(&topology.online())
            ));
        }
        if let Some(reason) = self.kernel_forbids(topology) {
            return Setting::Impossible(reason);
        }
        let cores: Vec<(i64, Vec<usize>)> = topology
            .cores()
            .into_iter()
            .filter(|(_, cpus)| {
                choice.server.is_empty() || cpus.iter().any(|cpu| choice.server.contains(cpu))
            })
            .collect();
        if self.threads() > 1 {
            match topology.smt {
                SmtControl::Off => return Setting::NeedsSmt,
                SmtControl::On | SmtControl::NotImplemented
                    if cores.iter().any(|(_, cpus)| cpus.len() > 1) => {}
                other => return Setting::Impossible(no_smt(other)),
            }
        }
        let fitting: Vec<(i64, Vec<usize>)> = cores
            .into_iter()
            .filter(|(_, cpus)| cpus.len() >= self.threads())
            .collect();
        let Some(chosen) = spread(&fitting, self.cores()) else {
            return Setting::Impossible(format!(
                "it takes {} cores{}, and there are {}",
                self.cores(),
                if self.threads() > 1 {
                    " with two threads each"
                } else {
                    ""
                },
                fitting.len()
            ));
        };
        self.layout(topology, choice, &chosen)
    }

    fn kernel_forbids(self, topology: &Topology) -> Option<String> {
        match (self, topology.is_uniprocessor) {
            (OneUniprocessor, false) => Some(
                "a kernel that runs several CPUs cannot stop being one; boot this machine once with nosmp \
                 (GRUB_CMDLINE_LINUX=\"nosmp\" in /etc/default/grub, update-grub, reboot), run \
                 `headway-lab counters run --config 1T-UP` into the same directory, and take the word out again"
                    .into(),
            ),
            (OneUniprocessor, true) | (_, false) => None,
            (_, true) => Some("this kernel was built or booted for one CPU".into()),
        }
    }

    fn layout(self, topology: &Topology, choice: &Choice, chosen: &[(i64, Vec<usize>)]) -> Setting {
        let cores: Vec<Vec<usize>> = chosen
            .iter()
            .map(|(_, cpus)| cpus[..self.threads()].to_vec())
            .collect();
        let idle: Vec<usize> = chosen
            .iter()
            .flat_map(|(_, cpus)| &cpus[self.threads()..])
            .copied()
            .collect();
        let mut changes = Vec::new();
        for number in &idle {
            if choice.client.contains(number) {
                return Setting::Impossible(format!(
                    "CPU {number} is a thread of the server's core and has to go offline, so the client cannot have it"
                ));
            }
            if !topology.cpu(*number).is_some_and(|cpu| cpu.can_leave) {
                return Setting::Impossible(format!(
                    "CPU {number}, the other thread of a core, cannot be taken offline by this kernel"
                ));
            }
            changes.push(Change {
                file: online_file(topology, *number),
                value: "0".into(),
            });
        }
        let server: Vec<usize> = cores.iter().flatten().copied().collect();
        let mut remarks = Vec::new();
        if self.cores() > 1 && chosen.iter().all(|(package, _)| *package == chosen[0].0) {
            remarks.push(
                "the two cores are of one package and share its last cache and its way to memory"
                    .into(),
            );
        }
        let client = self.client(topology, choice, &server, &idle, &mut remarks);
        Setting::Possible(Layout {
            server,
            cores,
            client,
            changes,
            remarks,
        })
    }

    fn client(
        self,
        topology: &Topology,
        choice: &Choice,
        server: &[usize],
        idle: &[usize],
        remarks: &mut Vec<String>,
    ) -> Vec<usize> {
        let mut online = topology.online();
        online.retain(|number| !idle.contains(number));
        let left: Vec<usize> = online
            .iter()
            .copied()
            .filter(|number| !server.contains(number))
            .collect();
        let client = match (choice.client.is_empty(), left.is_empty()) {
            (false, _) => choice.client.clone(),
            (true, false) => left,
            (true, true) => online,
        };
        if client.iter().any(|number| server.contains(number)) {
            remarks.push(
                "the client runs on the server's CPUs: throughput and counts are of both, and cannot be compared with \
                 configurations in which it has its own"
                    .into(),
            );
        }
        client
    }
}

/// `count` cores, spread over as many packages as there are.
fn spread(cores: &[(i64, Vec<usize>)], count: usize) -> Option<Vec<(i64, Vec<usize>)>> {
    let mut chosen: Vec<(i64, Vec<usize>)> = Vec::new();
    for elsewhere in [true, false] {
        for core in cores {
            let is_elsewhere = chosen.iter().all(|(package, _)| *package != core.0);
            if chosen.len() < count && (is_elsewhere || !elsewhere) && !chosen.contains(core) {
                chosen.push(core.clone());
            }
        }
    }
    (chosen.len() == count).then_some(chosen)
}

fn no_smt(control: SmtControl) -> String {
    match control {
        SmtControl::ForceOff => "SMT was switched off at boot for good (nosmt=force); boot without that word".into(),
        SmtControl::NotSupported => {
            "no core here has a second thread: the CPU has none, the firmware has switched it off, or the hypervisor does \
             not show it"
                .into()
        }
        _ => "no core among those allowed has a second thread that is online".into(),
    }
}

fn is_online(topology: &Topology, number: usize) -> bool {
    topology.cpu(number).is_some_and(|cpu| cpu.online)
}

fn online_file(topology: &Topology, number: usize) -> PathBuf {
    topology.root.join(format!("cpu{number}/online"))
}

/// Numbers with commas.
pub(crate) fn listed(numbers: &[usize]) -> String {
    let listed: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    listed.join(",")
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::machine;
    use super::*;

    fn possible(setting: Setting) -> Layout {
        match setting {
            Setting::Possible(layout) => layout,
            other => panic!("{other:?}"),
        }
    }

    fn why(setting: Setting) -> String {
        match setting {
            Setting::Impossible(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn configurations_are_the_tables_when_the_machine_has_two_packages_with_smt() {
        let (root, topology) = machine(2, 2, 2, "on");
        let on = |configuration: Configuration| {
            possible(configuration.on(&topology, &Choice::default()))
        };
        let one = on(One);
        assert_eq!(
            (one.server.as_slice(), one.client.as_slice()),
            (&[0][..], &[1, 2, 3, 5, 6, 7][..])
        );
        assert_eq!(one.changes.len(), 1);
        assert_eq!(one.changes[0].file, root.path().join("cpu4/online"));
        let two_threads = on(OneWithSmt);
        assert_eq!(
            (two_threads.server, two_threads.changes),
            (vec![0, 4], vec![])
        );
        let two = on(Two);
        assert_eq!(two.server, [0, 2], "of two packages");
        assert!(two.remarks.is_empty(), "{:?}", two.remarks);
        assert_eq!(two.changes.len(), 2);
        assert_eq!(on(TwoWithSmt).cores, [vec![0, 4], vec![2, 6]]);
        assert!(why(OneUniprocessor.on(&topology, &Choice::default())).contains("nosmp"));
    }

    #[test]
    fn impossible_configurations_have_a_reason_without_smt() {
        let (_root, topology) = machine(1, 2, 1, "notsupported");
        let on = |configuration: Configuration| configuration.on(&topology, &Choice::default());
        let one = possible(on(One));
        assert_eq!(
            (one.server, one.client, one.changes),
            (vec![0], vec![1], vec![])
        );
        assert!(why(on(OneWithSmt)).contains("no core here has a second thread"));
        let two = possible(on(Two));
        assert_eq!(two.client, [0, 1]);
        assert_eq!(
            two.remarks.len(),
            2,
            "one package, and a client without CPUs: {:?}",
            two.remarks
        );
        let (_root, single) = machine(1, 1, 1, "notsupported");
        assert!(
            why(Two.on(&single, &Choice::default())).contains("it takes 2 cores, and there are 1")
        );
    }

    #[test]
    fn smt_must_be_switched_on_when_the_kernel_has_it_off() {
        let (root, _) = machine(1, 2, 2, "off");
        for sibling in [2, 3] {
            std::fs::write(root.path().join(format!("cpu{sibling}/online")), "0\n")
                .expect("written");
        }
        let topology = Topology::read(root.path(), "Linux #1 SMP", "");
        assert_eq!(
            OneWithSmt.on(&topology, &Choice::default()),
            Setting::NeedsSmt
        );
        let one = possible(One.on(&topology, &Choice::default()));
        assert!(
            one.changes.is_empty(),
            "the other thread is offline already"
        );
        let (_root, forced) = machine(1, 2, 2, "forceoff");
        assert!(why(OneWithSmt.on(&forced, &Choice::default())).contains("nosmt=force"));
    }

    #[test]
    fn cpu_choice_of_the_user_is_kept_or_an_error() {
        let (_root, topology) = machine(1, 4, 2, "on");
        let choice = |server: &[usize], client: &[usize]| Choice {
            server: server.to_vec(),
            client: client.to_vec(),
        };
        let layout = possible(Two.on(&topology, &choice(&[2, 3], &[0])));
        assert_eq!((layout.server, layout.client), (vec![2, 3], vec![0]));
        assert!(why(One.on(&topology, &choice(&[99], &[]))).contains("no CPU 99"));
        assert!(why(One.on(&topology, &choice(&[1], &[5]))).contains("has to go offline"));
        assert!("3P".parse::<Configuration>().is_err());
        assert_eq!("1t-smp".parse(), Ok(One));
    }

    #[test]
    fn uniprocessor_kernel_has_one_configuration() {
        let (root, _) = machine(1, 1, 1, "notsupported");
        let topology = Topology::read(root.path(), "Linux #1 SMP", "nosmp");
        let layout = possible(OneUniprocessor.on(&topology, &Choice::default()));
        assert_eq!(layout.server, layout.client);
        assert!(why(One.on(&topology, &Choice::default())).contains("for one CPU"));
    }
}
