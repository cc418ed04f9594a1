//! Counting units as the kernel shows them: their number, the layout of their codes, the CPUs
//! they are asked on.
//!
//! Sources: Documentation/ABI/testing/sysfs-bus-event_source-devices-format and -events; `cpumask`
//! as perf-stat(1) uses it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// One unit under /sys/bus/event_source/devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountingUnit {
    /// The name of the unit: `cpu`, `amd_umc_0`.
    pub name: String,
    /// The kernel's number of it, the type of its events.
    pub kind: u32,
    /// Where each term of a code goes.
    format: BTreeMap<String, BitField>,
    /// The CPUs on which it is asked; `None` for units that every CPU has.
    pub cpus: Option<Vec<usize>>,
}

/// Bits of one of the three words, in the order in which a value fills them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BitField {
    word: usize,
    bits: Vec<u32>,
}

/// A code that does not fit a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCode {
    /// The unit has no such term.
    #[error("the unit {unit} has no term {term:?}")]
    Term {
        /// The unit.
        unit: String,
        /// The term.
        term: String,
    },
    /// The value is no number, or has more bits than the term.
    #[error("{value:?} does not fit the term {term:?}")]
    Value {
        /// The term.
        term: String,
        /// The value that was given.
        value: String,
    },
}

/// All units below a directory, by name.
pub(super) fn all(devices: &Path) -> Vec<CountingUnit> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let mut units: Vec<CountingUnit> = entries.filter_map(|entry| unit(&entry.path())).collect();
    units.sort_by(|a, b| a.name.cmp(&b.name));
    units
}

fn unit(folder: &Path) -> Option<CountingUnit> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let formats = fs::read_dir(folder.join("format"))
        .into_iter()
        .flatten()
        .flatten();
    let format = formats.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name, bit_field(&fs::read_to_string(entry.path()).ok()?)?))
    });
    Some(CountingUnit {
        name: folder.file_name()?.to_str()?.to_owned(),
        kind: text("type")?.trim().parse().ok()?,
        format: format.collect(),
        cpus: text("cpumask").and_then(|list| list_of(&list)),
    })
}

/// Parses the position of a term, such as `config:0-7,32-35`.
fn bit_field(text: &str) -> Option<BitField> {
    let (word, ranges) = text.trim().split_once(':')?;
    let word = match word {
        "config" => 0,
        "config1" => 1,
        "config2" => 2,
        _ => return None,
    };
    let bits = list_of(ranges)?.into_iter().map(|bit| bit as u32);
    Some(BitField {
        word,
        bits: bits.collect(),
    })
}

/// A list such as the kernel writes: `0-3,8`. Empty lists are empty.
pub(crate) fn list_of(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No machine has more CPUs; a range out of a broken file must not fill the memory.
        if last >= 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

impl CountingUnit {
    /// The three words of a code: `event=0xc4,umask=0x20`.
    ///
    /// # Errors
    /// [`BadCode`]: a term that the unit does not have, or a value too large for it.
    pub fn encode(&self, code: &str) -> Result<[u64; 3], BadCode> {
        let mut words = [0; 3];
        for term in code.split(',').filter(|term| !term.is_empty()) {
            let (name, value) = term.split_once('=').unwrap_or((term, "1"));
            let bits = self.format.get(name).ok_or_else(|| BadCode::Term {
                unit: self.name.clone(),
                term: name.into(),
            })?;
            let number = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            let number = number.ok().filter(|number| bits.holds(*number));
            let number = number.ok_or_else(|| BadCode::Value {
                term: name.into(),
                value: value.into(),
            })?;
            words[bits.word] |= bits.put(number);
        }
        Ok(words)
    }
}

impl BitField {
    fn holds(&self, value: u64) -> bool {
        self.bits.len() >= 64 || value < 1 << self.bits.len()
    }

    fn put(&self, value: u64) -> u64 {
        let bits = self.bits.iter().enumerate();
        bits.fold(0, |word, (from, to)| word | ((value >> from) & 1) << to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::zen5;
    use super::*;

    #[test]
    fn event_code_fills_the_bit_fields_of_the_kernel() {
        let (_root, machine) = zen5("0");
        let unit = machine.core_unit().expect("there");
        // 0x1a0: the low byte in bits 0 to 7, the 1 in bit 32.
        assert_eq!(
            unit.encode("event=0x1a0,umask=0x1e"),
            Ok([0x1_0000_1ea0, 0, 0])
        );
        assert_eq!(
            unit.encode("event=0xc3,cmask=1,edge"),
            Ok([0x0104_00c3, 0, 0])
        );
        let bad = unit.encode("event=0x1000").expect_err("too large");
        assert!(matches!(bad, BadCode::Value { .. }), "{bad}");
        let bad = unit.encode("offcore=1").expect_err("no such term");
        assert_eq!(bad.to_string(), "the unit cpu has no term \"offcore\"");
    }

    #[test]
    fn lists_are_read_when_the_kernel_writes_ranges() {
        assert_eq!(list_of("0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(list_of("\n"), Some(vec![]));
        assert_eq!(list_of("0-99999999"), None);
        assert_eq!(list_of("x"), None);
    }
}
