//! Control groups of both versions: where one for the lab can be made, and what is in it.
//!
//! Version 1 has a hierarchy for each controller, version 2 one for all; a machine may have both,
//! with each controller in one of them. A lab's group is a child of the hierarchy's root, beside
//! the groups of the system, because version 2 gives controllers to children only of a group that
//! holds no process itself.
//!
//! Not undone: on version 2 the controller is enabled for the root's children if it was not.
//! Another program may have begun to use it meanwhile.
//!
//! Source: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::LabError;

/// Which interface a hierarchy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// A place where groups with a controller can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Version of the interface.
    pub version: Version,
    /// Root directory of the hierarchy.
    pub root: PathBuf,
}

/// A group that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// The interface of its hierarchy.
    pub version: Version,
    /// Directory of the group.
    pub path: PathBuf,
}

/// Every mounted hierarchy: version, root, and for version 1 its options, among which are its
/// controllers.
fn hierarchies(mountinfo: &str) -> Vec<(Hierarchy, String)> {
    mountinfo.lines().filter_map(hierarchy).collect()
}

/// One line of /proc/self/mountinfo, proc(5): the kind stands behind the lone hyphen.
fn hierarchy(line: &str) -> Option<(Hierarchy, String)> {
    let (before, after) = line.split_once(" - ")?;
    let root = PathBuf::from(before.split(' ').nth(4)?);
    let mut after = after.split(' ');
    let version = match after.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options = after.nth(1).unwrap_or_default().to_owned();
    Some((Hierarchy { version, root }, options))
}

fn mountinfo() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// The hierarchy that has a controller, or none.
pub fn find(controller: &str) -> Option<Hierarchy> {
    find_in(&mountinfo(), controller)
}

fn find_in(mountinfo: &str, controller: &str) -> Option<Hierarchy> {
    let has = |(hierarchy, options): &(Hierarchy, String)| match hierarchy.version {
        Version::V1 => options.split(',').any(|option| option == controller),
        Version::V2 => {
            let file = hierarchy.root.join("cgroup.controllers");
            let controllers = fs::read_to_string(file).unwrap_or_default();
            controllers
                .split_whitespace()
                .any(|name| name == controller)
        }
    };
    hierarchies(mountinfo)
        .into_iter()
        .find(has)
        .map(|(hierarchy, _)| hierarchy)
}

/// Groups directly below any hierarchy's root whose names begin so.
pub fn existing(prefix: &str) -> Vec<ControlGroup> {
    let mut found = Vec::new();
    for (hierarchy, _) in hierarchies(&mountinfo()) {
        let Ok(entries) = fs::read_dir(&hierarchy.root) else {
            continue;
        };
        let groups = entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(groups.map(|entry| ControlGroup {
            version: hierarchy.version,
            path: entry.path(),
        }));
    }
    found
}

impl Hierarchy {
    /// Creates a group with a controller, or opens it.
    ///
    /// # Errors
    /// EACCES and EROFS without the privilege; EBUSY on version 2 in a container whose own group
    /// holds processes.
    pub fn make(&self, name: &str, controller: &str) -> Result<ControlGroup, LabError> {
        if self.version == Version::V2 {
            let file = self.root.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&file).unwrap_or_default();
            if !enabled.split_whitespace().any(|name| name == controller) {
                write(&file, &format!("+{controller}"))?;
            }
        }
        let path = self.root.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(LabError::file("making the control group", &path)(error));
            }
            _ => {}
        }
        Ok(ControlGroup {
            version: self.version,
            path,
        })
    }
}

impl ControlGroup {
    /// A file of the group.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a control file.
    pub fn set(&self, name: &str, value: &str) -> Result<(), LabError> {
        write(&self.file(name), value)
    }

    /// A control file with one number in it; "max" is `None`.
    pub fn number(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.file(name)).ok()?;
        text.trim().parse().ok()
    }

    /// A number out of a control file with a name and a number on each line.
    pub fn field(&self, file: &str, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.file(file)).ok()?;
        text.lines().find_map(|line| {
            let (field, value) = line.split_once(' ')?;
            (field == name).then(|| value.trim().parse().ok())?
        })
    }

    /// Moves the calling process into the group.
    pub fn join(&self) -> Result<(), LabError> {
        // 0 is the writing process itself, which needs no number valid in this PID namespace.
        self.set("cgroup.procs", "0")
    }

    /// The processes in it.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.file("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes the group, which must be empty; fine if it is gone.
    pub fn remove(&self) -> Result<(), LabError> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::file(
                "removing the control group",
                &self.path,
            )(error)),
            _ => Ok(()),
        }
    }
}

/// Control files take the whole value in one write.
fn write(path: &Path, value: &str) -> Result<(), LabError> {
    // Not fs::write: it would create a file that the kernel's version does not have, in tests that
    // stand on a plain directory.
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(LabError::file(format!("writing {value} to"), path))
}

/// Groups of either version for tests on a machine that has one of them: files in a plain
/// directory. Unlike the kernel's they keep the end of a longer text that was there before.
#[cfg(test)]
pub(crate) fn fixture(
    version: Version,
    files: &[(&str, &str)],
) -> (tempfile::TempDir, ControlGroup) {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        fs::write(directory.path().join(name), text).expect("written");
    }
    let path = directory.path().to_owned();
    (directory, ControlGroup { version, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
";

    #[test]
    fn controller_is_found_in_its_own_hierarchy_when_the_version_is_1() {
        let found = find_in(BOTH, "memory").expect("mounted");
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.root, Path::new("/sys/fs/cgroup/memory"));
        let found = find_in(BOTH, "cpu").expect("mounted");
        assert_eq!(found.root, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(find_in(BOTH, "io"), None);
    }

    #[test]
    fn controller_is_where_it_is_when_a_machine_has_both_versions() {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("cgroup.controllers"), "hugetlb cpu\n").expect("written");
        let memory = BOTH.lines().next_back().expect("its last line");
        let unified = root.path().display();
        // As systemd's hybrid layout has it: memory in version 1, and what is left in version 2.
        let hybrid = format!("{memory}\n41 31 0:38 / {unified} rw,relatime - cgroup2 cgroup2 rw\n");
        let version = |controller| find_in(&hybrid, controller).map(|found| found.version);
        assert_eq!(version("memory"), Some(Version::V1));
        assert_eq!(version("cpu"), Some(Version::V2));
        assert_eq!(version("io"), None);
    }

    #[test]
    fn error_names_the_reason_when_a_container_cannot_enable_a_controller() {
        let root = tempfile::tempdir().expect("a directory");
        // No `cgroup.subtree_control` that could be written, as where the hierarchy is read-only.
        let hierarchy = Hierarchy {
            version: Version::V2,
            root: root.path().to_owned(),
        };
        let error = hierarchy
            .make("headway-lab-x", "memory")
            .expect_err("refused");
        let message = error.to_string();
        assert!(message.starts_with("writing +memory to "), "{message}");
        assert!(!root.path().join("headway-lab-x").exists());
    }

    #[test]
    fn group_lists_the_processes_that_joined() {
        for version in [Version::V1, Version::V2] {
            let (_directory, group) = fixture(version, &[("cgroup.procs", "12\n345\n")]);
            assert_eq!(group.processes(), [12, 345]);
            group.join().expect("written");
            let text = fs::read_to_string(group.file("cgroup.procs")).expect("there");
            assert!(text.starts_with('0'), "{text}");
        }
    }

    #[test]
    fn controller_is_enabled_for_the_group_when_the_version_is_2() {
        let root = tempfile::tempdir().expect("a directory");
        let put =
            |name: &str, text: &str| fs::write(root.path().join(name), text).expect("written");
        put("cgroup.controllers", "cpuset cpu memory\n");
        put("cgroup.subtree_control", "");
        let line = format!(
            "26 25 0:23 / {} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            root.path().display()
        );
        assert_eq!(find_in(&line, "io"), None);
        let found = find_in(&line, "memory").expect("a controller of the root");
        let group = found.make("headway-lab-x", "memory").expect("made");
        assert_eq!(group.path, root.path().join("headway-lab-x"));
        let control = fs::read_to_string(root.path().join("cgroup.subtree_control"));
        assert_eq!(control.expect("there"), "+memory");
        group.remove().expect("removed");
        group.remove().expect("nothing to do");
    }
}
