//! File systems of their own for a test, which can be emptied from memory, filled up or broken
//! without harm to anybody else. They need root; a machine without it says why not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

/// Runs a command; an error is what it said.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        Ok(said)
    } else {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().next().unwrap_or("it failed").to_owned();
        Err(format!("{program} {}: {why}", arguments.join(" ")))
    }
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    directory: TempDir,
    is_there: bool,
}

impl Mount {
    /// An overlay of the directories `lower` and `upper` in `layers`, where there is a `work`, too.
    pub fn overlay(layers: &Path) -> Result<Mount, String> {
        let layer = |name| layers.join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            layer("lower"),
            layer("upper"),
            layer("work")
        );
        Mount::new(&["-t", "overlay", "-o", &options, "overlay"])
    }

    /// A file system in memory of this size.
    pub fn memory(size: &str) -> Result<Mount, String> {
        let options = format!("size={size}");
        Mount::new(&["-t", "tmpfs", "-o", &options, "none"])
    }

    /// A file system in memory where each use of a symbolic link is written, so that no link is followed without
    /// a wait.
    pub fn with_strict_access_times() -> Result<Mount, String> {
        Mount::new(&["-t", "tmpfs", "-o", "strictatime,size=1m", "none"])
    }

    fn new(arguments: &[&str]) -> Result<Mount, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mount_point = directory.path().to_str().ok_or("a path that is no text")?;
        run("mount", &[arguments, &[mount_point]].concat())?;
        Ok(Mount {
            directory,
            is_there: true,
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Unmounts it, unless it stays in use.
    fn end(&mut self) -> Result<(), String> {
        // A child that another test has just forked has our descriptors until it runs its program.
        for _ in 0..50 {
            if !self.is_there {
                return Ok(());
            }
            match run("umount", &[self.path().to_str().unwrap_or("")]) {
                Err(why) if why.contains("busy") => std::thread::sleep(Duration::from_millis(100)),
                result => {
                    result?;
                    self.is_there = false;
                }
            }
        }
        match self.is_there {
            true => Err(format!("{}: it is in use", self.path().display())),
            false => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.is_there {
            return;
        }
        // Lazily: a process that is about to end may still have a file open.
        if let Err(why) = run("umount", &["--lazy", self.path().to_str().unwrap_or("")]) {
            eprintln!("{why}");
        }
    }
}

/// An ext4 file system in an image file, on a loop device that the kernel lets go with the mount.
#[derive(Debug)]
pub struct Disk {
    mount: Option<Mount>,
    image: PathBuf,
    _directory: TempDir,
}

impl Disk {
    /// A disk of this size with what `fill` writes, and its image in `folder`, which should not be
    /// in memory.
    pub fn new(folder: &Path, size_bytes: u64, fill: impl FnOnce(&Path)) -> Result<Disk, String> {
        let directory = tempfile::tempdir_in(folder).map_err(|error| error.to_string())?;
        let image = directory.path().join("image");
        fs::File::create(&image)
            .and_then(|file| file.set_len(size_bytes))
            .map_err(|error| error.to_string())?;
        run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap_or("")])?;
        let mut disk = Disk {
            mount: None,
            image,
            _directory: directory,
        };
        disk.mount("loop")?;
        fill(disk.path());
        Ok(disk)
    }

    /// Mounts it again, read-only, so that none of its pages and names are in memory.
    pub fn make_cold(&mut self) -> Result<(), String> {
        // Not lazily: a file system in use would stay in memory.
        if let Some(mount) = &mut self.mount {
            mount.end()?;
        }
        self.mount("loop,ro")
    }

    fn mount(&mut self, options: &str) -> Result<(), String> {
        let image = self.image.to_str().unwrap_or("");
        self.mount = Some(Mount::new(&["-t", "ext4", "-o", options, image])?);
        Ok(())
    }

    /// Every read that has to go to the disk fails from now on.
    pub fn break_it(&self) {
        let image = fs::File::options().write(true).open(&self.image).unwrap();
        image.set_len(0).unwrap();
    }

    /// All its bytes, for [`Disk::mend`].
    pub fn image(&self) -> Vec<u8> {
        fs::read(&self.image).unwrap()
    }

    /// Makes a broken disk whole again. It must be mounted read-only.
    pub fn mend(&self, image: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&self.image).unwrap();
        // From its beginning: reads fail until their part is there, and never find a hole.
        file.write_all_at(image, 0).unwrap();
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.mount.as_ref().expect("mounted").path()
    }
}
