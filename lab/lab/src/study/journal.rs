//! What a run has started and not ended yet: `running.json` in its directory, read by the run after
//! a kill.
//!
//! An interrupted run ends its server and removes its lab. A killed one (SIGKILL, want of memory)
//! cannot, and what it leaves would go on and disturb whatever is measured next: a server, a client
//! that still writes into the directory of its measurement, a lab with its disk process, a scratch
//! directory that may hold a whole file set. So each is noted here, a name before its thing is made
//! and a process as soon as it has a number. The next run in the directory, which has its lock and
//! so knows that the other one is no more, clears all of it first.
//!
//! A process is noted with its start and the boot of the machine: nothing is ended that the killed
//! run had not started. Not covered are the microseconds between the start of a process and its
//! note, when there is no lab whose removal finds it.
//!
//! Source: proc(5), /proc/sys/kernel/random/boot_id.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use headway_os::replace::replace_file;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::servers::Process;
use crate::servers::tree::{self, Stat};

const FILE: &str = "running.json";

/// What the name of a run's scratch directory begins with. Nothing else is removed as one.
pub(super) const SCRATCH: &str = "headway-study-";

/// After SIGTERM, and after SIGKILL while a disk may still stall.
const TERM_TIMEOUT: Duration = Duration::from_secs(2);

/// After SIGKILL, once the lab with its disk is gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(15);

/// The journal of the run that is at work.
#[derive(Debug)]
pub(super) struct Journal {
    file: PathBuf,
    begun: Mutex<Begun>,
}

/// The content of `running.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Begun {
    /// Numbers and starts of processes mean nothing after another boot.
    boot: String,
    lab: Option<String>,
    scratch: Option<PathBuf>,
    processes: Vec<Process>,
}

impl Journal {
    /// Of a directory that is locked. What a killed run left is cleared first; the words say what
    /// that was.
    ///
    /// # Errors
    /// What cannot be cleared, as text; the journal keeps it for another try.
    pub fn open(directory: &Path) -> Result<(Journal, Option<String>), String> {
        let file = directory.join(FILE);
        let text = fs::read_to_string(&file).unwrap_or_default();
        // A damaged one cannot be: it is replaced at once. One that cannot be read names nothing
        // that could be cleared.
        let left: Begun = serde_json::from_str(&text).unwrap_or_default();
        let cleared = clear(&left)?;
        let begun = Begun {
            boot: boot(),
            ..Begun::default()
        };
        let journal = Journal {
            file,
            begun: Mutex::new(begun),
        };
        journal.settle();
        let cleared_text = (!cleared.is_empty()).then(|| cleared.join(", "));
        Ok((journal, cleared_text))
    }

    /// Before a scratch directory is filled.
    pub fn scratch(&self, path: &Path) -> io::Result<()> {
        self.note(|begun| begun.scratch = Some(path.to_owned()))
    }

    /// Before a lab is made.
    pub fn lab(&self, name: &str) -> io::Result<()> {
        self.note(|begun| begun.lab = Some(name.to_owned()))
    }

    /// A process that leads a group of its own, just started.
    pub fn process(&self, process: Process) {
        let note = |begun: &mut Begun| {
            begun.processes.retain(|known| tree::is_alive(*known));
            begun.processes.push(process);
        };
        // A note that cannot be written costs the clearing after a kill, and no measurement.
        let _ = self.note(note);
    }

    /// At the end of a run: forgets everything if nothing of it is there any more.
    pub fn settle(&self) {
        let begun = self.lock();
        let lab = begun.lab.as_ref();
        let there = lab.is_some_and(|name| crate::sweep::found().contains(name))
            || begun.scratch.as_ref().is_some_and(|path| path.exists())
            || begun
                .processes
                .iter()
                .any(|known| !group_of(*known).is_empty());
        if !there {
            // Most often there is none; one that stays names what is gone.
            let _ = fs::remove_file(&self.file);
        }
    }

    fn note(&self, change: impl FnOnce(&mut Begun)) -> io::Result<()> {
        let mut begun = self.lock();
        change(&mut begun);
        // Whenever the run is killed, the old text is there or the new one.
        let text = serde_json::to_string(&*begun)?;
        replace_file(&self.file, (text + "\n").as_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Begun> {
        self.begun
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The present process, after which labs are named: two runs never have one name, not even when a
/// process ID is used again.
pub(super) fn own_process() -> Process {
    let pid = std::process::id() as i32;
    let started = Stat::of(pid).map_or(0, |stat| stat.started);
    Process { pid, started }
}

fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Ends and removes what there still is; says what.
fn clear(left: &Begun) -> Result<Vec<String>, String> {
    let mut cleared = Vec::new();
    if left.boot == boot() {
        let processes: BTreeSet<Process> =
            left.processes.iter().copied().flat_map(group_of).collect();
        end(&processes);
        if let Some(name) = &left.lab {
            match crate::down(name) {
                Ok(()) => cleared.push(format!("lab {name}")),
                Err(LabError::Unknown { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        if !tree::wait_for_end(&processes, KILL_TIMEOUT) {
            let there = processes.iter().filter(|process| tree::is_alive(**process));
            let numbers: Vec<String> = there.map(|process| process.pid.to_string()).collect();
            return Err(format!("processes {} do not end", numbers.join(", ")));
        }
        match processes.len() {
            0 => {}
            1 => cleared.push("1 process".to_owned()),
            count => cleared.push(format!("{count} processes")),
        }
    }
    let is_ours = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(SCRATCH)
    };
    if let Some(path) = left.scratch.as_ref().filter(is_ours) {
        match fs::remove_dir_all(path) {
            Ok(()) => cleared.push(path.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(cleared)
}

/// A noted process and all of its group. Where another process has the number now the group had
/// ended before: the kernel gives no number away that is still a group's.
fn group_of(leader: Process) -> Vec<Process> {
    match Stat::of(leader.pid) {
        Some(stat) if stat.started != leader.started => Vec::new(),
        _ => tree::tree(leader),
    }
}

/// SIGTERM, and SIGKILL for what does not follow. A process that waits for a stalled disk ends
/// with SIGKILL, so the wait is short.
fn end(processes: &BTreeSet<Process>) {
    tree::signal(processes, Signal::TERM);
    if !tree::wait_for_end(processes, TERM_TIMEOUT) {
        tree::signal(processes, Signal::KILL);
        tree::wait_for_end(processes, TERM_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Process) {
        let mut command = Command::new("sleep");
        let child = command.arg("600").process_group(0).spawn();
        let child = child.expect("sleep is everywhere");
        let pid = child.id() as i32;
        let started = Stat::of(pid).expect("it runs").started;
        (child, Process { pid, started })
    }

    fn leave(directory: &Path, begun: &Begun) {
        let text = serde_json::to_string(begun).expect("JSON");
        fs::write(directory.join(FILE), text).expect("room");
    }

    #[test]
    fn leftover_processes_and_files_of_a_killed_run_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let scratch = directory.path().join("headway-study-x");
        fs::create_dir_all(scratch.join("www")).expect("room");
        let (mut child, process) = sleeper();
        let (journal, cleared) = Journal::open(directory.path()).expect("nothing is left");
        assert_eq!(cleared, None);
        journal.scratch(&scratch).expect("room");
        journal.process(process);
        drop(journal);

        let (_, cleared) = Journal::open(directory.path()).expect("cleared");
        let expected = format!("1 process, {}", scratch.display());
        assert_eq!(cleared, Some(expected));
        assert!(!tree::is_alive(process) && !scratch.exists());
        child.wait().expect("our child");
        assert!(!directory.path().join(FILE).exists());
        let (_, cleared) = Journal::open(directory.path()).expect("nothing is left");
        assert_eq!(cleared, None);
    }

    #[test]
    fn foreign_processes_and_names_are_left_untouched() {
        let directory = tempfile::tempdir().expect("a directory");
        let foreign = directory.path().join("letters");
        fs::create_dir(&foreign).expect("room");
        let (mut child, process) = sleeper();
        let begun = Begun {
            boot: boot(),
            lab: Some("study-1-1".to_owned()),
            scratch: Some(foreign.clone()),
            processes: vec![Process {
                started: process.started + 1,
                ..process
            }],
        };
        leave(directory.path(), &begun);
        let (_, cleared) = Journal::open(directory.path()).expect("nothing of ours");
        assert_eq!(cleared, None);
        let earlier = Begun {
            boot: "another boot".to_owned(),
            processes: vec![process],
            ..begun
        };
        leave(directory.path(), &earlier);
        let (_, cleared) = Journal::open(directory.path()).expect("nothing of ours");
        assert_eq!(cleared, None);
        assert!(tree::is_alive(process) && foreign.exists());
        child.kill().expect("our child");
        child.wait().expect("our child");
    }

    #[test]
    fn journal_lists_what_an_unfinished_run_has_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let (journal, _) = Journal::open(directory.path()).expect("nothing is left");
        journal.lab("study-7-8").expect("room");
        journal.scratch(directory.path()).expect("room");
        journal.process(own_process());
        // A process ID which is not in use any more is left out at the next note.
        journal.process(Process {
            started: own_process().started + 1,
            ..own_process()
        });
        journal.process(own_process());
        let read = || fs::read_to_string(directory.path().join(FILE));
        let begun: Begun = serde_json::from_str(&read().expect("there")).expect("JSON");
        assert_eq!(begun.lab.as_deref(), Some("study-7-8"));
        assert_eq!(begun.processes, [own_process(), own_process()]);
        journal.settle();
        assert!(read().is_ok(), "a process of it runs");
    }
}
