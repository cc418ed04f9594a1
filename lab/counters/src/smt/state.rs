//! Changing CPUs and changing them back: whatever is changed is written down first.
//!
//! The record is a file in a directory that a reboot empties, as a reboot undoes the changes
//! themselves. A run that ends in order restores. After a crash a guard restores: a process that
//! only waits for the end of its standard input. If that was killed too, the next start restores. A
//! lock in the directory keeps two from changing at once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// Where the record is kept.
pub const DIRECTORY: &str = "/run/headway-counters";

/// One change: a file and what is to be written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// A control file of the kernel's.
    pub file: PathBuf,
    /// The new value.
    pub value: String,
}

/// One line of the record, undone in reverse order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Undo {
    /// Write this back.
    File { path: PathBuf, value: String },
    /// End what is in the control group, and remove it.
    Group { path: PathBuf },
}

/// The content of the state's file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StateRecord {
    undo: Vec<Undo>,
    /// Folders of the one that is at work, which removes them itself unless it is killed.
    folders: Vec<PathBuf>,
}

/// Why the state could not be changed or restored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another command is changing CPUs.
    #[error("another headway-lab counters is changing this machine's CPUs ({}); wait for its end", directory.display())]
    Busy {
        /// The directory whose lock it holds.
        directory: PathBuf,
    },
    /// A file of ours or the kernel's.
    #[error("cannot {what} {}: {error}", path.display())]
    File {
        /// A verb: what was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why the call failed.
        error: io::Error,
    },
    /// Some of it could not be undone; the record is kept.
    #[error("not everything could be restored, `headway-lab counters restore` tries again: {0}")]
    Remains(String),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_path_buf();
    move |error| StateError::File { what, path, error }
}

/// The right to change CPUs, and the record of what was changed. Dropped, it restores.
#[derive(Debug)]
pub struct CpuState {
    directory: PathBuf,
    lock: File,
    noted: StateRecord,
    guard: Option<(Child, ChildStdin)>,
}

/// Time for killed processes to end, and for folders that are still written to.
const END_TIMEOUT: Duration = Duration::from_secs(5);

impl CpuState {
    /// Takes the lock and restores what a crash has left. The second value is whether there was
    /// something.
    ///
    /// # Errors
    /// [`StateError::Busy`]; a directory that cannot be made (only root can); what cannot be
    /// restored.
    pub fn open(directory: &Path) -> Result<(CpuState, bool), StateError> {
        let mut state = CpuState::locked(directory, FlockOperation::NonBlockingLockExclusive)?;
        state.noted = read(&state.record())?;
        let left = !state.noted.undo.is_empty() || !state.noted.folders.is_empty();
        state.clear()?;
        Ok((state, left))
    }

    /// Starts a guard by a command that calls [`guard`] and does nothing else.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn watched_by(&mut self, mut command: Command) -> Result<(), StateError> {
        use std::os::unix::process::CommandExt;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C at a terminal is for its parent.
            .process_group(0)
            .spawn()
            .map_err(failed("start the guard", Path::new(command.get_program())))?;
        self.guard = child.stdin.take().map(|stdin| (child, stdin));
        Ok(())
    }

    /// Changes a file of the kernel's, which is written down first. Nothing is done if it has the
    /// value already.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn change(&mut self, change: &Change) -> Result<(), StateError> {
        let before = fs::read_to_string(&change.file).map_err(failed("read", &change.file))?;
        let before = before.trim();
        if before == change.value {
            return Ok(());
        }
        self.noted.undo.push(Undo::File {
            path: change.file.clone(),
            value: before.into(),
        });
        self.write_record()?;
        write(&change.file, &change.value)
    }

    /// Notes a control group that is about to be made: it goes when the state is restored, with
    /// whatever is in it.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn will_make_group(&mut self, path: &Path) -> Result<(), StateError> {
        self.noted.undo.push(Undo::Group { path: path.into() });
        self.write_record()
    }

    /// Notes a folder, which stays when the state is restored and goes with this, also after a
    /// crash.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn has_made_folder(&mut self, path: &Path) -> Result<(), StateError> {
        self.noted.folders.push(path.into());
        self.write_record()
    }

    /// Undoes all changes, the last one first.
    ///
    /// # Errors
    /// [`StateError::Remains`]: the rest is restored, and the record keeps what is not.
    pub fn restore(&mut self) -> Result<(), StateError> {
        let mut remains = Vec::new();
        let mut reasons = Vec::new();
        for undo in self.noted.undo.drain(..).rev() {
            if let Err(error) = undo.undo() {
                reasons.push(error.to_string());
                remains.insert(0, undo);
            }
        }
        self.noted.undo = remains;
        self.write_record()?;
        match reasons.is_empty() {
            true => Ok(()),
            false => Err(StateError::Remains(reasons.join("; "))),
        }
    }

    /// Restores everything, and removes the folders.
    fn clear(&mut self) -> Result<(), StateError> {
        let restored = self.restore();
        let mut kept = Ok(());
        for folder in std::mem::take(&mut self.noted.folders) {
            if let Err(error) = remove(&folder, || fs::remove_dir_all(&folder)) {
                self.noted.folders.push(folder);
                kept = Err(StateError::Remains(error.to_string()));
            }
        }
        self.write_record()?;
        restored.and(kept)
    }

    fn locked(directory: &Path, operation: FlockOperation) -> Result<CpuState, StateError> {
        fs::create_dir_all(directory).map_err(failed("make", directory))?;
        let path = directory.join("lock");
        let lock = File::create(&path).map_err(failed("make", &path))?;
        flock(&lock, operation).map_err(|_| StateError::Busy {
            directory: directory.into(),
        })?;
        Ok(CpuState {
            directory: directory.into(),
            lock,
            noted: StateRecord::default(),
            guard: None,
        })
    }

    fn record(&self) -> PathBuf {
        self.directory.join("changed.json")
    }

    /// The record is replaced as a whole and is on its way to the disk before the change is made.
    /// There is none of nothing.
    fn write_record(&self) -> Result<(), StateError> {
        let (path, new) = (self.record(), self.directory.join("changed.new"));
        if self.noted.undo.is_empty() && self.noted.folders.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(failed("remove", &path)(error))
                }
                _ => Ok(()),
            };
        }
        let text = serde_json::to_vec(&self.noted).map_err(io::Error::other);
        let written = text.and_then(|text| {
            let mut file = File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        written.map_err(failed("write", &path))
    }
}

impl Drop for CpuState {
    fn drop(&mut self) {
        // To learn of errors, call `restore` before. What remains is in the record, for the guard.
        let _ = self.clear();
        // The guard takes the lock when its input ends.
        let _ = flock(&self.lock, FlockOperation::Unlock);
        if let Some((mut child, stdin)) = self.guard.take() {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// What a guard does: waits for the end of its standard input, and restores what is recorded then.
///
/// # Errors
/// As [`CpuState::restore`].
pub fn guard(mut input: impl Read, directory: &Path) -> Result<(), StateError> {
    // Nothing is ever written to it; an error is an end as well.
    let _ = io::copy(&mut input, &mut io::sink());
    let mut state = CpuState::locked(directory, FlockOperation::LockExclusive)?;
    state.noted = read(&state.record())?;
    state.clear()
}

fn read(record: &Path) -> Result<StateRecord, StateError> {
    match fs::read(record) {
        Ok(text) => serde_json::from_slice(&text)
            .map_err(io::Error::other)
            .map_err(failed("understand the record", record)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StateRecord::default()),
        Err(error) => Err(failed("read", record)(error)),
    }
}

fn write(file: &Path, value: &str) -> Result<(), StateError> {
    // Not fs::write, which would make a file where the kernel has none.
    let opened = fs::OpenOptions::new().write(true).truncate(true).open(file);
    opened
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(failed("write to", file))
}

impl Undo {
    fn undo(&self) -> Result<(), StateError> {
        match self {
            Undo::File { path, value } => write(path, value),
            Undo::Group { path } => end_group(path),
        }
    }
}

/// Ends what is in a control group of ours and removes it; fine if it is gone.
fn end_group(path: &Path) -> Result<(), StateError> {
    remove(path, || {
        let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in text
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
        {
            // One that has just ended is what is wanted.
            let _ = kill_process(pid, Signal::KILL);
        }
        fs::remove_dir(path)
    })
}

/// Tries `removal` until it succeeds, the path is not there, or timeout ends: processes need a
/// moment to be gone.
fn remove(path: &Path, mut removal: impl FnMut() -> io::Result<()>) -> Result<(), StateError> {
    let begun = Instant::now();
    loop {
        match removal() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if begun.elapsed() > END_TIMEOUT => {
                return Err(failed("remove", path)(error));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bed {
        root: tempfile::TempDir,
    }

    impl Bed {
        fn new() -> Bed {
            let root = tempfile::tempdir().expect("a directory");
            for (name, text) in [("a", "1\n"), ("b", "on\n")] {
                fs::write(root.path().join(name), text).expect("written");
            }
            Bed { root }
        }

        fn state(&self) -> PathBuf {
            self.root.path().join("state")
        }

        fn change(&self, name: &str, value: &str) -> Change {
            Change {
                file: self.root.path().join(name),
                value: value.into(),
            }
        }

        fn text(&self, name: &str) -> String {
            let text = fs::read_to_string(self.root.path().join(name)).expect("there");
            text.trim().to_owned()
        }
    }

    #[test]
    fn cpu_files_are_restored_when_the_state_is_dropped() {
        let bed = Bed::new();
        let (mut state, left) = CpuState::open(&bed.state()).expect("opened");
        assert!(!left);
        for (name, value) in [("a", "0"), ("b", "off"), ("a", "2")] {
            state.change(&bed.change(name, value)).expect("changed");
        }
        assert_eq!((bed.text("a"), bed.text("b")), ("2".into(), "off".into()));
        drop(state);
        assert_eq!((bed.text("a"), bed.text("b")), ("1".into(), "on".into()));
        assert!(!bed.state().join("changed.json").exists());
    }

    #[test]
    fn next_start_restores_after_a_crash() {
        let bed = Bed::new();
        let (mut state, _) = CpuState::open(&bed.state()).expect("opened");
        state.change(&bed.change("a", "0")).expect("changed");
        // A crash: neither restored nor dropped, and the lock is gone with the process.
        flock(&state.lock, FlockOperation::Unlock).expect("unlocked");
        std::mem::forget(state);
        let (_state, left) = CpuState::open(&bed.state()).expect("opened");
        assert!(left);
        assert_eq!(bed.text("a"), "1");
    }

    #[test]
    fn guard_process_restores_when_its_input_ends() {
        let bed = Bed::new();
        let (mut state, _) = CpuState::open(&bed.state()).expect("opened");
        state.change(&bed.change("a", "0")).expect("changed");
        flock(&state.lock, FlockOperation::Unlock).expect("unlocked");
        std::mem::forget(state);
        guard(io::empty(), &bed.state()).expect("restored");
        assert_eq!(bed.text("a"), "1");
        guard(io::empty(), &bed.state()).expect("nothing to do");
    }

    #[test]
    fn folder_stays_when_cpus_are_restored_and_is_removed_after_a_crash() {
        let bed = Bed::new();
        let folder = bed.root.path().join("set");
        fs::create_dir_all(folder.join("inner")).expect("made");
        let (mut state, _) = CpuState::open(&bed.state()).expect("opened");
        state.has_made_folder(&folder).expect("noted");
        state.change(&bed.change("a", "0")).expect("changed");
        state.restore().expect("restored");
        assert!(folder.exists());
        flock(&state.lock, FlockOperation::Unlock).expect("unlocked");
        std::mem::forget(state);
        guard(io::empty(), &bed.state()).expect("cleared");
        assert!(!folder.exists());
        assert!(!bed.state().join("changed.json").exists());
    }

    #[test]
    fn second_state_is_an_error_while_the_first_is_active() {
        let bed = Bed::new();
        let (_state, _) = CpuState::open(&bed.state()).expect("opened");
        let second = CpuState::open(&bed.state()).expect_err("locked");
        assert!(matches!(second, StateError::Busy { .. }), "{second}");
    }

    #[test]
    fn other_files_are_restored_when_one_has_disappeared() {
        let bed = Bed::new();
        let (mut state, _) = CpuState::open(&bed.state()).expect("opened");
        state.change(&bed.change("a", "0")).expect("changed");
        state.change(&bed.change("b", "off")).expect("changed");
        fs::remove_file(bed.root.path().join("b")).expect("removed");
        let error = state.restore().expect_err("b is gone");
        assert!(
            error.to_string().contains("headway-lab counters restore"),
            "{error}"
        );
        assert_eq!(bed.text("a"), "1");
        assert!(bed.state().join("changed.json").exists());
        let missing = state
            .change(&bed.change("c", "1"))
            .expect_err("no such file");
        assert!(matches!(missing, StateError::File { what: "read", .. }));
    }
}
