//! Names of files and kernel functions, each stored once.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};

use headway_debox::Label;
use headway_debox_bpf::{OffCpu, SleepFile, Waker};

/// How many names are kept. Files beyond are not named.
const NAMES_MAX: usize = 65_536;

/// The names that were seen.
#[derive(Debug, Default)]
pub struct FileNames {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
    /// Where file systems are mounted, by their devices.
    mounts: HashMap<(u32, u32), Option<Mount>>,
    /// Paths are hashed with it, if they are.
    key: Option<RandomState>,
}

/// Parts of a path that tell nothing about a site.
const PUBLIC: &[&str] = &[
    "",
    "*",
    "…",
    "dev",
    "etc",
    "home",
    "index.html",
    "lib",
    "log",
    "opt",
    "proc",
    "run",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "www",
];

/// The longest ending of a name that is not hashed.
const ENDING_MAX: usize = 5;

/// Locks, whose holder wakes a thread that waits. A buffer is not among them: the end of its transfer wakes, in an
/// interrupt of any task.
const HELD: &[Label] = &[
    Label::FileLock,
    Label::Futex,
    Label::InodeLock,
    Label::DentryLookup,
    Label::FileOffset,
    Label::MmapLock,
    Label::SocketLock,
    Label::Ipc,
];

/// Between the functions of a stack.
const FUNCTIONS_BETWEEN: &str = " < ";

/// The task that woke a thread from a sleep for a lock.
fn holder_of(off: &OffCpu) -> Option<&Waker> {
    let waker = off.waker.as_ref().filter(|_| HELD.contains(&off.label));
    waker.filter(|waker| waker.thread.pid != 0)
}

impl FileNames {
    /// Names whose paths are hashed, with a key that is forgotten.
    pub fn anonymous() -> FileNames {
        FileNames {
            key: Some(RandomState::new()),
            ..FileNames::default()
        }
    }

    /// A path as it may be shown: itself, or each part of it as a hash with the ending of the part.
    pub fn shown(&self, path: &str) -> String {
        let Some(key) = &self.key else {
            return path.to_owned();
        };
        let part = |part: &str| {
            if PUBLIC.contains(&part) {
                return part.to_owned();
            }
            let ending = part.rsplit_once('.').map(|(_, ending)| ending);
            let ending = ending.filter(|ending| {
                ending.len() <= ENDING_MAX
                    && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
            });
            let hash = key.hash_one(part) as u32;
            ending.map_or_else(
                || format!("{hash:08x}"),
                |ending| format!("{hash:08x}.{ending}"),
            )
        };
        path.split('/').map(part).collect::<Vec<String>>().join("/")
    }

    /// The number of a request's method and path.
    pub(crate) fn request(&mut self, line: &str) -> Option<u32> {
        let shown = match line.split_once(' ') {
            Some((method, path)) => format!("{method} {}", self.shown(path)),
            None => self.shown(line),
        };
        self.number(&shown)
    }

    /// The holder of the lock for which a thread slept, if it slept for one: the task that woke it.
    pub(crate) fn holder(&mut self, off: &OffCpu) -> Option<u32> {
        let waker = holder_of(off)?;
        self.number(&format!("{} (process {})", waker.name, waker.thread.pid))
    }

    /// The kernel functions in which the holder woke it, the innermost first.
    pub(crate) fn woken_in(&mut self, off: &OffCpu) -> Option<u32> {
        let waker = holder_of(off).filter(|waker| !waker.functions.is_empty())?;
        self.number(&waker.functions.join(FUNCTIONS_BETWEEN))
    }

    /// What [`FileNames::woken_in`] has numbered.
    pub(crate) fn functions(&self, number: u32) -> Vec<String> {
        let functions = self.name(number).split(FUNCTIONS_BETWEEN);
        functions.map(str::to_owned).collect()
    }

    /// The name with this number.
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }

    /// The number of a kernel function.
    pub(crate) fn symbol(&mut self, name: &str) -> u32 {
        self.number(name).unwrap_or(u32::MAX)
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        if self.names.len() >= NAMES_MAX {
            return None;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// The file at which a thread slept.
    pub(crate) fn of(&mut self, off: &OffCpu) -> Option<u32> {
        self.file(off.thread.pid, off.file.as_ref()?)
    }

    /// The name of a file that a process uses, as it may be shown.
    pub(crate) fn shown_file(&mut self, pid: u32, file: &SleepFile) -> Option<String> {
        let number = self.file(pid, file)?;
        Some(self.name(number).to_owned())
    }

    fn file(&mut self, pid: u32, file: &SleepFile) -> Option<u32> {
        match file {
            SleepFile::Path(path) => self.path(path),
            SleepFile::Open { device, path } => {
                let mount = (self.mounts.entry(*device)).or_insert_with(|| Mount::of(pid, *device));
                let whole = mount.as_ref().and_then(|mount| mount.path_of(path));
                self.path(&whole.unwrap_or_else(|| format!("…/{}", path.trim_start_matches('/'))))
            }
        }
    }

    fn path(&mut self, path: &str) -> Option<u32> {
        self.number(&self.shown(path))
    }
}

/// Where a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// What of the file system is mounted there.
    root: String,
    point: String,
}

impl Mount {
    /// As a process sees it, the first if there are several.
    fn of(pid: u32, device: (u32, u32)) -> Option<Mount> {
        let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
        Mount::find(&text, device)
    }

    /// proc_pid_mountinfo(5): number, parent, device, root, mount point.
    fn find(text: &str, (major, minor): (u32, u32)) -> Option<Mount> {
        let wanted = format!("{major}:{minor}");
        text.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(2);
            let device = fields.next()?;
            let (root, point) = (fields.next()?, fields.next()?);
            (device == wanted).then(|| Mount {
                root: unescaped(root),
                point: unescaped(point),
            })
        })
    }

    /// The path of a file of this file system; `None` if it is not below what is mounted.
    fn path_of(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(self.root.trim_end_matches('/'))?;
        let rest = rest.strip_prefix('/')?;
        Some(format!("{}/{rest}", self.point.trim_end_matches('/')))
    }
}

/// Spaces and the like are octal numbers.
fn unescaped(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::{FileNames, Mount};

    #[test]
    fn path_is_completed_by_the_mount_point() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    23 22 0:40 / /srv/my\\040files rw - fuse x rw\n\
                    24 22 8:2 /data /mnt rw - ext4 /dev/sda2 rw\n";
        let path = |device, path| Mount::find(text, device)?.path_of(path);
        assert_eq!(path((8, 1), "/etc/a").as_deref(), Some("/etc/a"));
        assert_eq!(path((0, 40), "/a").as_deref(), Some("/srv/my files/a"));
        assert_eq!(path((8, 2), "/data/a").as_deref(), Some("/mnt/a"));
        assert_eq!(path((8, 2), "/other/a"), None);
        assert_eq!(path((8, 1), "img/a"), None);
        assert_eq!(path((9, 9), "/a"), None);
    }

    #[test]
    fn paths_are_hashed_part_by_part_when_they_are_to_be_anonymous() {
        let names = FileNames::anonymous();
        let shown = names.shown("/srv/customer/report.html");
        let parts: Vec<&str> = shown.split('/').collect();
        assert_eq!((parts[0], parts[1], parts[2].len()), ("", "srv", 8));
        assert!(
            parts[3].ends_with(".html") && parts[3].len() == 13,
            "{shown}"
        );
        assert_eq!(
            names.shown("/var/log/customer.log").rsplit('.').next(),
            Some("log")
        );
        assert_eq!(names.shown("/srv/customer/report.html"), shown);
        assert_ne!(
            FileNames::anonymous().shown("/srv/customer/report.html"),
            shown
        );
        assert_eq!(FileNames::default().shown("/a/b"), "/a/b");
    }

    #[test]
    fn name_is_stored_once() {
        let mut names = FileNames::default();
        let first = names.symbol("a");
        assert_ne!(first, names.symbol("b"));
        assert_eq!(first, names.symbol("a"));
        assert_eq!(names.name(first), "a");
    }
}
