//! Which core a CPU has, by what /proc/cpuinfo says.
//!
//! Sources: proc(5); for Arm, `CPU implementer` and `CPU part` are fields of MIDR_EL1.

use serde::{Deserialize, Serialize};

use super::Meaning;

/// A row of the table of cores.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// What people call it.
    pub title: String,
    /// `vendor_id`, or the `CPU implementer` of Arm.
    pub vendor: String,
    /// `cpu family` of an x86 CPU.
    #[serde(default)]
    pub family: Option<u32>,
    /// First and last `model` of an x86 CPU, in ranges.
    #[serde(default)]
    pub models: Vec<[u32; 2]>,
    /// `CPU part`s of an Arm CPU.
    #[serde(default)]
    pub parts: Vec<u32>,
    /// Programmable counters of a hardware thread.
    pub counters: usize,
    /// Meanings that have a counter of their own.
    pub fixed: Vec<Meaning>,
    /// Slots of a cycle, where no event counts slots.
    #[serde(default)]
    pub width: Option<u32>,
    /// Where its events are described.
    pub source: String,
}

/// Identity of a CPU, from /proc/cpuinfo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// `vendor_id`, or `CPU implementer`.
    pub vendor: String,
    /// `cpu family`.
    pub family: Option<u32>,
    /// `model`, or `CPU part`.
    pub model: Option<u32>,
    /// `model name`, empty where there is none.
    pub name: String,
    /// Whether a hypervisor says that it is there.
    pub is_virtual: bool,
}

impl Identity {
    /// Parses the first CPU in the text of /proc/cpuinfo.
    pub fn parse(cpuinfo: &str) -> Identity {
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let number = |name: &str| {
            let text = field(name)?;
            match text.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            }
        };
        let flags = field("flags").unwrap_or_default();
        Identity {
            vendor: field("vendor_id")
                .or_else(|| field("CPU implementer"))
                .unwrap_or_default(),
            family: number("cpu family"),
            model: number("model").or_else(|| number("CPU part")),
            name: field("model name").unwrap_or_default(),
            is_virtual: flags.split(' ').any(|flag| flag == "hypervisor"),
        }
    }

    /// Reads the identity of this machine's CPU.
    pub fn current() -> Identity {
        // Without the file there is no identity, which is a CPU that the table does not know.
        Identity::parse(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }
}

impl Core {
    /// Whether a CPU has this core.
    pub fn is(&self, identity: &Identity) -> bool {
        let Some(model) = identity.model else {
            return false;
        };
        let model_fits = |[first, last]: &[u32; 2]| (*first..=*last).contains(&model);
        self.vendor == identity.vendor
            && match self.family {
                Some(_) => self.family == identity.family && self.models.iter().any(model_fits),
                None => self.parts.contains(&model),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    fn core_of(cpuinfo: &str) -> Option<String> {
        let found = table().core_of(&Identity::parse(cpuinfo));
        found.map(|(name, _)| name.to_owned())
    }

    #[test]
    fn core_is_identified_from_cpuinfo() {
        let x86 = |vendor, family, model| {
            format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
            )
        };
        for (vendor, family, model, core) in [
            ("GenuineIntel", 6, 106, Some("ice-lake")),
            ("GenuineIntel", 6, 143, Some("golden-cove")),
            ("GenuineIntel", 6, 207, Some("golden-cove")),
            ("GenuineIntel", 15, 2, None), // the dissertation's Xeon
            ("AuthenticAMD", 25, 1, Some("zen3")),
            ("AuthenticAMD", 25, 17, Some("zen4")),
            ("AuthenticAMD", 26, 2, Some("zen5")),
            ("AuthenticAMD", 26, 0x50, None), // Zen 6
            ("GenuineIntel", 26, 2, None),
        ] {
            let found = core_of(&x86(vendor, family, model));
            assert_eq!(found.as_deref(), core, "{vendor} {family} {model}");
        }
        let arm =
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n";
        assert_eq!(core_of(arm).as_deref(), Some("neoverse-n1"));
        assert_eq!(core_of(""), None);
    }

    #[test]
    fn guest_is_detected_by_the_hypervisor_flag() {
        let guest =
            "vendor_id : AuthenticAMD\nmodel name : AMD EPYC\nflags : fpu hypervisor lahf_lm\n";
        let identity = Identity::parse(guest);
        assert!(identity.is_virtual);
        assert_eq!(identity.name, "AMD EPYC");
        assert!(!Identity::parse("flags : fpu no-hypervisor\n").is_virtual);
    }
}
