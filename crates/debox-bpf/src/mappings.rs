//! User addresses to files: which program or library a call was made from.
//!
//! /proc/PID/maps is read when a process appears and after each exec, since a process that has
//! ended has none. Right after an exec only the program and its loader are there, and libraries may
//! be loaded at any time, so it is read again: after a millisecond, then ever more rarely.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::layout::Process;

/// A location in a mapped file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CodeLocation {
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
    /// By process id: the programs whose mappings are read again.
    watched: HashMap<u32, WatchedProcess>,
}

#[derive(Clone, Debug)]
struct WatchedProcess {
    process: Process,
    due: Instant,
    wait: Duration,
}

const READ_DELAY_MIN: Duration = Duration::from_millis(1);
const READ_DELAY_MAX: Duration = Duration::from_secs(1);

impl Mappings {
    /// The file and offset of an address of a process after its `execs`th exec. `None` if that was
    /// not seen, or if the process ended before its mappings were read.
    pub fn location(&self, pid: u32, execs: u32, address: u64) -> Option<CodeLocation> {
        let mappings = self.processes.get(&Process { pid, execs })?;
        let found = mappings
            .iter()
            .find(|at| (at.start..at.end).contains(&address))?;
        Some(CodeLocation {
            file: found.file.to_string(),
            offset: address - found.start + found.offset,
        })
    }

    /// Reads the mappings of a process that has begun or become another program.
    pub(crate) fn read(&mut self, process: Process, parent: Option<u32>) {
        let watch = WatchedProcess {
            process,
            due: Instant::now() + READ_DELAY_MIN,
            wait: READ_DELAY_MIN,
        };
        self.watched.insert(process.pid, watch);
        // A child is its parent's copy, and by now it may have become another program.
        let copied = parent.map(|parent| self.newest_mappings(parent));
        let mappings = copied
            .filter(|mappings| !mappings.is_empty())
            .unwrap_or_else(|| read_mappings(process.pid));
        if !mappings.is_empty() {
            self.processes.insert(process, mappings);
        }
    }

    /// Reads the mappings of processes whose time has come. Call it after the news of processes
    /// have been processed.
    pub(crate) fn refresh(&mut self) {
        let now = Instant::now();
        let processes = &mut self.processes;
        self.watched.retain(|pid, watch| {
            if now < watch.due {
                return true;
            }
            let seen = read_mappings(*pid);
            let lives = !seen.is_empty();
            add(processes.entry(watch.process).or_default(), seen);
            watch.wait = (watch.wait * 2).min(READ_DELAY_MAX);
            watch.due = now + watch.wait;
            lives
        });
    }

    fn newest_mappings(&self, pid: u32) -> Vec<Mapping> {
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

/// Reads the mappings of a process; none if it has ended.
fn read_mappings(pid: u32) -> Vec<Mapping> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
}

/// Adds what is new. What is known stays even if it is gone by now: calls were made from there.
fn add(known: &mut Vec<Mapping>, seen: Vec<Mapping>) {
    for mapping in seen {
        let apart = |other: &Mapping| mapping.end <= other.start || other.end <= mapping.start;
        if known.iter().all(apart) {
            known.push(mapping);
        }
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
        let location = mappings
            .location(7, 0, 0x55d0c0001010)
            .expect("program text");
        assert_eq!(
            (location.file.as_str(), location.offset),
            ("/usr/bin/a name", 0x1010)
        );
        assert_eq!(
            mappings.location(7, 0, 0x55d0c0000010),
            None,
            "not executable"
        );
        assert_eq!(
            mappings.location(7, 1, 0x55d0c0001010),
            None,
            "another program by now"
        );
    }

    #[test]
    fn libraries_are_found_when_they_were_loaded_after_the_first_read() {
        let (program, library) = TEXT.split_at(TEXT.find("7ffe").expect("a library"));
        let mut known = parse(program);
        super::add(&mut known, parse(TEXT));
        assert_eq!(known.len(), 2, "{known:?}");
        super::add(&mut known, parse(library));
        assert_eq!(known.len(), 2, "{known:?}");
    }

    #[test]
    fn child_has_its_parents_mappings_when_it_begins() {
        let mut mappings = Mappings::default();
        mappings
            .processes
            .insert(Process { pid: 7, execs: 2 }, parse(TEXT));
        let gone = Process {
            pid: u32::MAX,
            execs: 0,
        };
        mappings.read(gone, Some(7));
        assert!(mappings.location(u32::MAX, 0, 0x55d0c0001010).is_some());
    }
}
