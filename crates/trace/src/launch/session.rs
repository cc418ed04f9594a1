//! The directory into which traced programs write, and the records already taken from it.
//!
//! The directory is in memory if possible: a page fault on a mapped file of a disk would wait for
//! that disk, and the trace would show itself. Records of ended processes are taken out while
//! others run, so a build of ten thousand processes does not need space for all of them at once.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use headway_debox::Symbols;
use headway_debox::collect::{Collection, Ended, Process, SYMBOLS_FILE};
use tempfile::TempDir;

/// A trace being made.
#[derive(Debug)]
pub struct Session {
    directory: TempDir,
    ended: Vec<Process>,
}

impl Session {
    /// Makes a new directory that only this user can list.
    ///
    /// # Errors
    ///
    /// No directory for temporary files can be written.
    pub fn new() -> io::Result<Session> {
        let memory = Path::new("/dev/shm");
        let builder = || tempfile::Builder::new().prefix("headway-trace-").to_owned();
        let directory = builder()
            .tempdir_in(memory)
            .or_else(|_| builder().tempdir())?;
        if rustix::process::geteuid().is_root() {
            // Daemons drop root's privileges and fork: their children must be able to create files
            // too, but not to see those of others.
            let mode = std::fs::Permissions::from_mode(0o1733);
            std::fs::set_permissions(directory.path(), mode)?;
        }
        Ok(Session {
            directory,
            ended: Vec::new(),
        })
    }

    /// Stores the kernel's symbols for programs that need labels at once; each would read ten
    /// megabytes of text.
    ///
    /// # Errors
    ///
    /// The directory has no room.
    pub fn write_symbols(&self, symbols: &Symbols) -> io::Result<()> {
        std::fs::write(self.path().join(SYMBOLS_FILE), symbols.image())
    }

    /// The directory in which programs write.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Takes the records of ended processes out of the directory. Unreadable ones stay for
    /// [`Session::collection`] to report.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed.
    pub fn collect_ended(&mut self) -> io::Result<()> {
        for listed in std::fs::read_dir(self.path())? {
            let path = listed?.path();
            let Some((pid, start_ticks)) = identity(&path) else {
                continue;
            };
            if alive(pid, start_ticks) {
                continue;
            }
            if let Ok(process) = Process::open(&path) {
                std::fs::remove_file(&path)?;
                self.ended.push(process);
            }
        }
        Ok(())
    }

    /// Everything so far, including processes that are still running, and the number of those.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed.
    pub fn collection(&self) -> io::Result<(Collection, usize)> {
        let mut collection = Collection::open(self.path())?;
        let running = collection
            .processes
            .iter()
            .filter(|process| {
                process.ended != Some(Ended::Exec) && alive(process.pid, process.start_ticks)
            })
            .count();
        collection.processes.extend(self.ended.iter().cloned());
        collection
            .processes
            .sort_by_key(|process| (process.started_ns, process.pid, process.image));
        Ok((collection, running))
    }
}

/// The process a file belongs to, from its name `PID-STARTTIME-IMAGE.debox`.
fn identity(path: &Path) -> Option<(u32, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".debox")?;
    let mut parts = name.split('-');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the process still runs that started then: a number is used again, a number and a time
/// are not. A zombie has ended.
fn alive(pid: u32, start_ticks: u64) -> bool {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let Ok(text) = std::fs::read_to_string(path) else {
        return false;
    };
    // The name in parentheses may hold anything, so fields are counted from its end: state is field
    // 3 of proc(5).
    let Some((_, rest)) = text.rsplit_once(')') else {
        return false;
    };
    let mut fields = rest.split_ascii_whitespace();
    let ended = matches!(fields.next(), Some("Z" | "X"));
    let started = fields.nth(18).and_then(|field| field.parse().ok());
    !ended && started == Some(start_ticks)
}

#[cfg(test)]
mod tests {
    use super::{alive, identity};
    use std::path::Path;

    #[test]
    fn process_is_distinguished_from_a_later_one_with_its_id() {
        let own = std::process::id();
        let text = std::fs::read_to_string("/proc/self/stat").expect("own status");
        let fields = text.rsplit_once(')').expect("a name").1;
        let ticks = fields.split_ascii_whitespace().nth(19).expect("field 22");
        let ticks: u64 = ticks.parse().expect("a number");
        assert!(alive(own, ticks));
        assert!(!alive(own, ticks + 1));
        assert_eq!(identity(Path::new("/x/12-34-0.debox")), Some((12, 34)));
        assert_eq!(identity(Path::new("/x/notes.txt")), None);
    }
}
