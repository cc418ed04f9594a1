//! User addresses to files: which program or library a call was made from.
//!
//! /proc/PID/maps is read when a process appears and after each exec, since a process that has ended has none.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use crate::layout::Process;

/// A place in a mapped file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// Path of the file, or a name in brackets such as `[vdso]`; empty for memory without a name.
    pub file: String,
    /// Bytes from the beginning of the file.
    pub offset: u64,
}

#[derive(Clone, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: Arc<str>,
}

/// What the traced processes have mapped as program text.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    processes: HashMap<Process, Vec<Mapping>>,
}

impl Mappings {
    /// The file and offset behind an address of a process after its `execs`th exec; `None` if it was not seen, or
    /// the process was gone before it could be looked at.
    pub fn place(&self, pid: u32, execs: u32, address: u64) -> Option<Place> {
        let mappings = self.processes.get(&Process { pid, execs })?;
        let found = mappings
            .iter()
            .find(|at| (at.start..at.end).contains(&address))?;
        Some(Place {
            file: found.file.to_string(),
            offset: address - found.start + found.offset,
        })
    }

    /// Looks at a process that lives. A child is its parent's copy until it maps something else.
    pub(crate) fn read(&mut self, process: Process, parent: Option<u32>) {
        let text =
            std::fs::read_to_string(format!("/proc/{}/maps", process.pid)).unwrap_or_default();
        let mut mappings = parse(&text);
        if mappings.is_empty()
            && let Some(parent) = parent
        {
            mappings = self.newest(parent);
        }
        if !mappings.is_empty() {
            self.processes.insert(process, mappings);
        }
    }

    fn newest(&self, pid: u32) -> Vec<Mapping> {
        let processes = self
            .processes
            .iter()
            .filter(|(process, _)| process.pid == pid);
        let newest = processes.max_by_key(|(process, _)| process.execs);
        newest
            .map(|(_, mappings)| mappings.clone())
            .unwrap_or_default()
    }
}

/// Lines are `start-end rwxp offset device inode path`.
fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut parts = line.splitn(6, ' ');
    let (start, end) = parts.next()?.split_once('-')?;
    let executable = parts.next()?.contains('x');
    let offset = parts.next()?;
    let file = parts.nth(2).unwrap_or_default().trim();
    executable.then_some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: file.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Mappings, parse};
    use crate::layout::Process;

    const TEXT: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 12 /usr/bin/a name
55d0c0001000-55d0c0003000 r-xp 00001000 fe:00 12                 /usr/bin/a name
7ffe00000000-7ffe00002000 r-xp 00000000 00:00 0                  [vdso]
";

    #[test]
    fn offset_is_from_the_beginning_of_the_file_when_an_address_is_program_text() {
        let mut mappings = Mappings::default();
        let process = Process { pid: 7, execs: 0 };
        mappings.processes.insert(process, parse(TEXT));
        let place = mappings.place(7, 0, 0x55d0c0001010).expect("program text");
        assert_eq!(
            (place.file.as_str(), place.offset),
            ("/usr/bin/a name", 0x1010)
        );
        assert_eq!(mappings.place(7, 0, 0x55d0c0000010), None, "not executable");
        assert_eq!(
            mappings.place(7, 1, 0x55d0c0001010),
            None,
            "another program by now"
        );
    }

    #[test]
    fn parent_lends_its_mappings_when_a_child_is_gone_already() {
        let mut mappings = Mappings::default();
        mappings
            .processes
            .insert(Process { pid: 7, execs: 2 }, parse(TEXT));
        let gone = Process {
            pid: u32::MAX,
            execs: 0,
        };
        mappings.read(gone, Some(7));
        assert!(mappings.place(u32::MAX, 0, 0x55d0c0001010).is_some());
    }
}
