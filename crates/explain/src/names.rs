//! Names of files and kernel functions, each stored once.

use std::collections::HashMap;
use std::path::Path;

use headway_debox_bpf::OffCpu;

/// How many names are kept. Files beyond are not named.
const NAMES_MAX: usize = 65_536;

/// The names that were seen.
#[derive(Debug, Default)]
pub struct FileNames {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
    /// Full paths of descriptors, by process, descriptor and last part of the path.
    descriptors: HashMap<(u32, u32, String), u32>,
}

impl FileNames {
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
        let name = off.name.as_ref()?;
        let Some(descriptor) = off.descriptor else {
            return self.number(name);
        };
        let key = (off.thread.pid, descriptor, name.clone());
        if let Some(number) = self.descriptors.get(&key) {
            return Some(*number);
        }
        let path = path_of(off.thread.pid, descriptor, name);
        let number = self.number(path.as_deref().unwrap_or(name))?;
        if self.descriptors.len() < NAMES_MAX {
            self.descriptors.insert(key, number);
        }
        Some(number)
    }
}

/// The path of a descriptor, if it is still the file with this name.
fn path_of(pid: u32, descriptor: u32, name: &str) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    let path = path.to_str()?;
    let whole = path.strip_suffix(" (deleted)").unwrap_or(path);
    (Path::new(whole).file_name()? == name).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::{FileNames, path_of};

    #[test]
    fn descriptor_is_named_by_its_path_while_it_is_the_same_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("page.html");
        let file = std::fs::File::create(&path).expect("a file");
        let (pid, descriptor) = (std::process::id(), file.as_raw_fd() as u32);
        assert_eq!(
            path_of(pid, descriptor, "page.html").as_deref(),
            path.to_str()
        );
        assert_eq!(path_of(pid, descriptor, "other.html"), None);
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
