//! The document root of one case, in a temporary directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};

use super::case::{Item, Made};

/// The default modification time of everything in a tree: Wed, 04 Feb 2026 05:06:07 GMT.
const MODIFIED: i64 = 1_770_181_567;

/// A tree on disk, removed when this value is dropped.
pub struct Tree {
    base: tempfile::TempDir,
    names: Vec<String>,
}

impl Tree {
    pub fn make(items: &BTreeMap<String, Item>) -> io::Result<Tree> {
        let tree = Tree {
            base: tempfile::tempdir()?,
            names: items.keys().cloned().collect(),
        };
        fs::create_dir(tree.root())?;
        for (name, item) in items {
            let path = tree.root().join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            make(tree.base(), &path, name, item)?;
        }
        tree.settle(items)?;
        Ok(tree)
    }

    /// Sets the times of all names and their directories, and the modes. Last, because creating a
    /// file modifies its directory.
    fn settle(&self, items: &BTreeMap<String, Item>) -> io::Result<()> {
        let root = self.root();
        let names = items.keys().flat_map(|name| Path::new(name).ancestors());
        for name in names.filter(|name| !name.as_os_str().is_empty()) {
            let item = name.to_str().and_then(|name| items.get(name));
            let modified = match item {
                Some(Item::Made(made)) => made.modified,
                _ => None,
            };
            date(&root.join(name), modified.unwrap_or(MODIFIED))?;
        }
        // Permissions of a directory are removed only after everything in it exists and has its
        // time.
        for (name, item) in items.iter().rev() {
            if let Item::Made(Made {
                mode: Some(mode), ..
            }) = item
            {
                fs::set_permissions(root.join(name), fs::Permissions::from_mode(*mode))?;
            }
        }
        Ok(())
    }

    /// The directory around the document root.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    pub fn root(&self) -> PathBuf {
        self.base.path().join("root")
    }

    /// The regular files: name, content and expected entity tag.
    pub fn files(&self) -> impl Iterator<Item = (String, Vec<u8>, String)> {
        self.names.iter().filter_map(|name| {
            let path = self.root().join(name);
            let metadata = fs::symlink_metadata(&path)
                .ok()
                .filter(|metadata| metadata.is_file())?;
            let modified_ns = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
            let tag = format!(
                "\"{:x}-{modified_ns:x}-{:x}\"",
                metadata.ino(),
                metadata.size()
            );
            Some((name.clone(), fs::read(path).unwrap_or_default(), tag))
        })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A directory without permissions cannot be removed.
        for name in self.names.iter().filter(|name| name.ends_with('/')) {
            let _ = fs::set_permissions(self.root().join(name), fs::Permissions::from_mode(0o700));
        }
    }
}

fn make(base: &Path, path: &Path, name: &str, item: &Item) -> io::Result<()> {
    let made = match item {
        Item::Content(_) if name.ends_with('/') => return fs::create_dir_all(path),
        Item::Content(content) => return fs::write(path, content),
        Item::Made(made) => made,
    };
    match (&made.link, &made.special) {
        (Some(target), _) => {
            let base = base.display().to_string();
            symlink(target.replace("{base}", &base), path)
        }
        (None, Some(kind)) => special(path, kind),
        (None, None) if name.ends_with('/') => fs::create_dir_all(path),
        (None, None) => fs::write(path, content(made)),
    }
}

/// Numbered lines of eight bytes, so that every offset is visible in a part.
fn content(made: &Made) -> Vec<u8> {
    let Some(size) = made.size else {
        return made.content.clone().into_bytes();
    };
    let mut bytes: Vec<u8> = (0..size.div_ceil(8))
        .flat_map(|line| format!("{line:07}\n").into_bytes())
        .collect();
    bytes.truncate(size);
    bytes
}

fn special(path: &Path, kind: &str) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o644);
    match kind {
        "fifo" => mknodat(CWD, path, FileType::Fifo, mode, 0)?,
        // A device like /dev/null. Without the privilege, character device 0:0 may still be
        // created, which overlay file systems use for deleted names; it is a device all the same.
        "device" => mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(1, 3))
            .or_else(|_| mknodat(CWD, path, FileType::CharacterDevice, mode, 0))?,
        "socket" => drop(UnixListener::bind(path)?),
        other => {
            return Err(io::Error::other(format!(
                "no special file is called {other}"
            )));
        }
    }
    Ok(())
}

fn date(path: &Path, modified: i64) -> io::Result<()> {
    let time = Timespec {
        tv_sec: modified,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
