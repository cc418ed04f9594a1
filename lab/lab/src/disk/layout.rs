//! Where the parts of a disk lie: everything in one folder, so that the folder alone is enough
//! to undo everything.
//!
//! ```text
//! STATE/disk/spec.json   what was asked for; written before anything is made
//!            log         standard error of the disk process
//!            fuse/       the FUSE file system, with the one file `image`
//!            socket      orders
//!            files/      the file system under test
//!            lower/      with an overlay: the disk's own file system
//!            upper/      with an overlay: a tmpfs, if its upper layer is one
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{DiskError, DiskSpec};

/// The name of the FUSE file system's only file.
pub(crate) const IMAGE: &str = "image";

/// The names inside a disk's folder.
#[derive(Clone, Debug)]
pub(crate) struct DiskLayout {
    pub(crate) folder: PathBuf,
    pub(crate) spec: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) fuse: PathBuf,
    pub(crate) image: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) files: PathBuf,
    pub(crate) lower: PathBuf,
    pub(crate) upper: PathBuf,
}

impl DiskLayout {
    /// Of the disk of a lab.
    pub(crate) fn under(state_dir: &Path) -> io::Result<DiskLayout> {
        // The kernel knows mounts and loop devices by their absolute names.
        let state_dir = match state_dir.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::path::absolute(state_dir)?
            }
            found => found?,
        };
        Ok(DiskLayout::of(&state_dir.join("disk")))
    }

    /// Of the disk in this folder.
    pub(crate) fn of(folder: &Path) -> DiskLayout {
        let fuse = folder.join("fuse");
        DiskLayout {
            folder: folder.to_owned(),
            spec: folder.join("spec.json"),
            log: folder.join("log"),
            image: fuse.join(IMAGE),
            fuse,
            socket: folder.join("socket"),
            files: folder.join("files"),
            lower: folder.join("lower"),
            upper: folder.join("upper"),
        }
    }

    /// Where something of the disk may be mounted, what lies over others first.
    pub(crate) fn mount_points(&self) -> [&Path; 3] {
        [&self.files, &self.upper, &self.lower]
    }

    /// Creates the folders and writes the specification.
    pub(crate) fn make(&self, spec: &DiskSpec) -> io::Result<()> {
        for folder in [&self.folder, &self.fuse, &self.files] {
            fs::create_dir_all(folder)?;
        }
        if spec.overlay.is_some() {
            fs::create_dir(&self.lower)?;
            fs::create_dir(&self.upper)?;
        }
        fs::write(&self.spec, serde_json::to_vec_pretty(spec)?)
    }

    pub(crate) fn read_spec(&self) -> Result<DiskSpec, DiskError> {
        let read = fs::read(&self.spec);
        read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .map_err(|cause| {
                DiskError::io("reading the specification of the disk", &self.spec, cause)
            })
    }

    /// Removes what [`DiskLayout::make`] made, and nothing else: a folder that something is mounted
    /// on, or that holds what is not ours, stays.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for file in [&self.socket, &self.log, &self.spec] {
            ignore_not_found(fs::remove_file(file))?;
        }
        let folders = [&self.fuse, &self.files, &self.lower, &self.upper];
        for folder in folders.into_iter().chain([&self.folder]) {
            ignore_not_found(fs::remove_dir(folder))?;
        }
        Ok(())
    }
}

fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
