//! A disk whose delays are a model's.
//!
//! A request of the file system goes through the kernel's block layer to a loop device in
//! direct-I/O mode, from there to a FUSE process ([`process_main`]), which keeps it for as long as
//! the model (`model`) and the faults (`faults`) say, and answers from memory. Nothing above the
//! block layer is simulated: page, inode and dentry caches, read-ahead and the file system are the
//! kernel's.
//!
//! With the file system [`Filesystem::Remote`] there is no block device: the FUSE process is the
//! server of the files themselves (`remote`), and the same model says how long its answers take.
//!
//! [`Disk`] makes all that and takes it away again. Everything lies in one folder (`layout`) and is
//! found by that folder's name in the kernel's own lists (`kernel`), so that [`Disk::undo`] needs
//! no record of how far an interrupted start came.
//!
//! The way through FUSE and the loop device takes time of its own, some tens of microseconds. It is
//! measured when the disk is made, and answers leave so much earlier. A delay shorter than the way
//! cannot be had.
//!
//! Sources: Ruemmler and Wilkes, "An introduction to disk drive modeling" (1994); loop(4), fuse(4).

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

mod control;
mod engine;
mod faults;
mod kernel;
mod backing;
mod model;
mod layers;
mod layout;
mod process;
mod image;
mod remote;
mod statistics;
mod spec;
mod undo;

pub use process::process_main;
pub use spec::{
    DiskSpec, Fault, FaultPlan, Filesystem, Mechanics, Model, Order, Parallel, Queue, Spindle,
    Upper,
};
pub use statistics::DiskStatistics;

use control::{Answer, DiskCommand};
use layers::Purpose;
use layout::DiskLayout;

/// The longest a disk process that works takes for an answer: it may have to write a mebibyte
/// first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a file on the disk may still be closing.
const BUSY_RETRY_TIMEOUT: Duration = Duration::from_millis(300);

/// The arguments of the hidden sub-command that is the disk process; the folder follows.
pub const SUB_COMMAND: &str = "disk-process";

/// What went wrong with a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// No such disk can be made: the words are wrong, not the machine.
    #[error("{0}")]
    Spec(String),
    /// The machine, or the user, lacks something.
    #[error("the lab's disk needs {what}; {remedy}")]
    Missing {
        /// The missing part.
        what: String,
        /// How to obtain the missing part.
        remedy: &'static str,
    },
    /// A system program failed.
    #[error("{line}: {why}")]
    Program {
        /// The command line.
        line: String,
        /// The message of the program.
        why: String,
    },
    /// The disk process ended, or never answered.
    #[error("the disk process of {}: {why}", folder.display())]
    Process {
        /// The disk's folder.
        folder: PathBuf,
        /// The end of its log, if it has one.
        why: String,
    },
    /// The folder holds a disk already.
    #[error("{} holds a disk already; take it down first", folder.display())]
    Exists {
        /// The disk's folder.
        folder: PathBuf,
    },
    /// The disk cannot be unmounted while files on it are open. Nothing was changed.
    #[error("unmounting {}: it is busy, by {holders}; end that first", path.display())]
    Busy {
        /// Where the disk is mounted.
        path: PathBuf,
        /// The processes that have files open on it.
        holders: String,
    },
    /// The disk is mounted in another mount namespace, too, so its caches outlive an unmount here.
    /// Nothing was changed.
    #[error("{} cannot be made cold: it is mounted in another name space, too, by {holders}; end that first", path.display())]
    Shared {
        /// Where the disk is mounted here.
        path: PathBuf,
        /// The processes with the other mount.
        holders: String,
    },
    /// Something could not be taken away.
    #[error("{} is not taken away: {}", folder.display(), what.join("; "))]
    Left {
        /// The disk's folder.
        folder: PathBuf,
        /// What is left, and which processes hold it.
        what: Vec<String>,
    },
    /// A system call failed.
    #[error("{what}, {}: {cause}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the call was made on.
        path: PathBuf,
        /// Why the call failed.
        cause: io::Error,
    },
}

impl DiskError {
    pub(crate) fn io(what: &'static str, path: &Path, cause: io::Error) -> DiskError {
        DiskError::Io {
            what,
            path: path.to_owned(),
            cause,
        }
    }
}

/// A disk that is there: device, file system and disk process.
///
/// It outlives the value, and the process that made it: a lab is made by one command and taken down
/// by another. Only [`Disk::stop`] and [`Disk::undo`] take it away.
///
/// ```no_run
/// use headway_lab::disk::{Disk, DiskSpec, Model, Order};
///
/// let state = std::path::Path::new("/run/headway-lab/example");
/// let disk = Disk::start(&DiskSpec::new(Model::Ide5400, 1 << 30), state)?;
/// std::fs::write(disk.mount_point().join("page.html"), "hello")?;
/// disk.drop_caches()?;
/// disk.order(Order::Model)?;
/// std::fs::read(disk.mount_point().join("page.html"))?; // takes some 10 ms
/// println!("{:.1} us a request", disk.statistics()?.service_us());
/// disk.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Disk {
    layout: DiskLayout,
    spec: DiskSpec,
    /// `None`: the files are remote.
    device: Option<PathBuf>,
    /// The disk process, where it is a child of this process, which has to
    /// reap it.
    child: Mutex<Option<Child>>,
}

impl Disk {
    /// Creates a disk in the folder `disk` of `state_dir`, with an empty file system and without
    /// delays.
    ///
    /// The disk process is this program with the hidden sub-command `disk-process`, in a
    /// process group of its own, so that a Ctrl-C for the lab does not take the disk away under it.
    ///
    /// # Errors
    /// [`DiskError::Missing`] names what the machine or the user lacks. Whatever was made is taken
    /// away again.
    pub fn start(spec: &DiskSpec, state_dir: &Path) -> Result<Disk, DiskError> {
        let program = std::env::current_exe().map_err(|cause| {
            DiskError::io("finding this program", Path::new("/proc/self"), cause)
        })?;
        let mut command = Command::new(program);
        command.arg(SUB_COMMAND);
        Disk::start_by(spec, state_dir, command)
    }

    /// As [`Disk::start`], with another program as the disk process: it is given the folder as its
    /// last argument and has to call [`process_main`] with it.
    ///
    /// # Errors
    /// As [`Disk::start`].
    pub fn start_by(
        spec: &DiskSpec,
        state_dir: &Path,
        program: Command,
    ) -> Result<Disk, DiskError> {
        let mut spec = spec.clone();
        spec.size_bytes = spec.size_bytes.next_multiple_of(1 << 20);
        spec.check().map_err(DiskError::Spec)?;
        need(spec.filesystem)?;
        let layout = DiskLayout::under(state_dir)
            .map_err(|cause| DiskError::io("finding the folder of the lab", state_dir, cause))?;
        if layout.spec.exists() {
            return Err(DiskError::Exists {
                folder: layout.folder,
            });
        }
        let mut child = None;
        let made = make(&spec, &layout, program, &mut child);
        match made {
            Ok(device) => Ok(Disk {
                layout,
                spec,
                device,
                child: Mutex::new(child),
            }),
            Err(error) => {
                // The first error is the one that explains; what is left besides is found by `undo`
                // later.
                let _ = undo::undo(&layout, child.as_mut());
                Err(error)
            }
        }
    }

    /// Finds the disk that another process made in the folder `disk` of `state_dir`.
    ///
    /// # Errors
    /// When there is none, or only parts of one: [`Disk::undo`] takes those away.
    pub fn open(state_dir: &Path) -> Result<Disk, DiskError> {
        let layout = DiskLayout::under(state_dir)
            .map_err(|cause| DiskError::io("finding the folder of the lab", state_dir, cause))?;
        let spec = layout.read_spec()?;
        let device = kernel::loops_on(&layout.image).into_iter().next();
        if device.is_none() && !spec.filesystem.is_remote() {
            return Err(DiskError::Process {
                folder: layout.folder.clone(),
                why: "no loop device is on its image; take it down and start another".to_owned(),
            });
        }
        Ok(Disk {
            layout,
            spec,
            device,
            child: Mutex::new(None),
        })
    }

    /// Where the file system is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.layout.files
    }

    /// The block device below it; none for remote files.
    pub fn device(&self) -> Option<&Path> {
        self.device.as_deref()
    }

    /// The specification of the disk.
    pub fn spec(&self) -> &DiskSpec {
        &self.spec
    }

    /// The disk process, or `None` when it has gone.
    pub fn pid(&self) -> Option<u32> {
        let found = kernel::processes_of(&self.layout.folder);
        found.first().map(|pid| pid.as_raw_nonzero().get() as u32)
    }

    /// Keeps every thread of the disk process on these CPUs, away from those of the server
    /// under test.
    ///
    /// # Errors
    /// When it has gone or a CPU does not exist.
    pub fn confine(&self, cpus: &[usize]) -> Result<(), DiskError> {
        let failed =
            |cause| DiskError::io("confining the disk process", &self.layout.folder, cause);
        let pid = self.pid().ok_or_else(|| self.gone())?;
        kernel::confine(pid, cpus).map_err(failed)
    }

    /// Sends an order to the disk; it has taken effect when the call returns.
    ///
    /// # Errors
    /// When the disk process has gone, or the order makes no sense.
    pub fn order(&self, order: Order) -> Result<(), DiskError> {
        self.send(&DiskCommand::Order(order)).map(drop)
    }

    /// What the disk did since the last `Fast` or `Model`.
    ///
    /// # Errors
    /// When the disk process has gone.
    pub fn statistics(&self) -> Result<DiskStatistics, DiskError> {
        match self.send(&DiskCommand::Statistics)? {
            Answer::Statistics(statistics) => Ok(statistics),
            other => Err(self.broken(format!("a strange answer: {other:?}"))),
        }
    }

    /// Whether delays are off: after [`Order::Fast`], or before any command.
    ///
    /// # Errors
    /// When the disk process has gone.
    pub fn is_fast(&self) -> Result<bool, DiskError> {
        match self.send(&DiskCommand::Fast)? {
            Answer::Fast(fast) => Ok(fast),
            other => Err(self.broken(format!("a strange answer: {other:?}"))),
        }
    }

    /// Drops all caches of the disk: unmounts and mounts again, read-only unless it is writable; for
    /// remote files, makes the kernel forget them. No page, inode or dentry of it is cached then. The
    /// disk does this without delays, whatever its settings, and does not count it.
    ///
    /// # Errors
    /// [`DiskError::Busy`] when a file on it is still open: stop the server first.
    /// [`DiskError::Shared`] when another mount name space has a copy of the mount. The file system
    /// is then as it was.
    pub fn drop_caches(&self) -> Result<(), DiskError> {
        self.mount_again(Purpose::Serving)
    }

    /// As [`Disk::drop_caches`], but files can be written again.
    ///
    /// # Errors
    /// As [`Disk::drop_caches`].
    pub fn make_writable(&self) -> Result<(), DiskError> {
        self.mount_again(Purpose::Filling)
    }

    /// With an overlay, gives the files on the disk to another user than a server's, as those of a
    /// container's image often are.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn give_away(&self) -> Result<(), DiskError> {
        match self.spec.overlay {
            Some(_) => layers::give_away(&self.layout),
            None => Ok(()),
        }
    }

    /// Removes the disk with everything on it.
    ///
    /// # Errors
    /// [`DiskError::Left`] when something still holds on to it, with what that is.
    pub fn stop(self) -> Result<(), DiskError> {
        let mut child = self
            .child
            .into_inner()
            .unwrap_or_else(|held| held.into_inner());
        undo::undo(&self.layout, child.as_mut())
    }

    /// Removes whatever there is of a disk in the folder `disk` of `state_dir`: all of it, what
    /// a crash left, or nothing.
    ///
    /// # Errors
    /// As [`Disk::stop`].
    pub fn undo(state_dir: &Path) -> Result<(), DiskError> {
        let layout = DiskLayout::under(state_dir)
            .map_err(|cause| DiskError::io("finding the folder of the lab", state_dir, cause))?;
        undo::undo(&layout, None)
    }

    fn mount_again(&self, purpose: Purpose) -> Result<(), DiskError> {
        self.send(&DiskCommand::Maintenance(true))?;
        let mounted = match &self.device {
            Some(device) => self.mount_device_again(device, purpose),
            None => self.forget_remote(purpose == Purpose::Serving && !self.spec.writable),
        };
        let back = self.send(&DiskCommand::Maintenance(false));
        mounted.and(back.map(drop))
    }

    fn mount_device_again(&self, device: &Path, purpose: Purpose) -> Result<(), DiskError> {
        let path = &self.layout.files;
        let mount = |purpose| layers::mount_all(device, &self.layout, &self.spec, purpose);
        self.unmount()?;
        if kernel::wait_until(COMMAND_TIMEOUT, || kernel::is_free(device)) {
            return mount(purpose);
        }
        // It is one file system with the copy, and the kernel mounts it only as that is.
        mount(Purpose::Serving).or_else(|_| mount(Purpose::Filling))?;
        Err(DiskError::Shared {
            path: path.clone(),
            holders: kernel::holders(path),
        })
    }

    /// The files stay mounted, so that a server may have its document root there.
    fn forget_remote(&self, read_only: bool) -> Result<(), DiskError> {
        let path = &self.layout.files;
        let busy = || DiskError::Busy {
            path: path.clone(),
            holders: kernel::holders(path),
        };
        // A deleted file counts as busy until the kernel has let go of it.
        let mut result = kernel::set_read_only(path, read_only);
        kernel::wait_until(BUSY_RETRY_TIMEOUT, || {
            if result.is_err() {
                result = kernel::set_read_only(path, read_only);
            }
            result.is_ok()
        });
        result.map_err(|cause| match cause.kind() {
            io::ErrorKind::ResourceBusy => busy(),
            _ => DiskError::io("mounting the files again", path, cause),
        })?;
        match self.send(&DiskCommand::DropCaches)? {
            Answer::Done => Ok(()),
            _ => Err(busy()),
        }
    }

    fn unmount(&self) -> Result<(), DiskError> {
        let paths = self.layout.mount_points();
        paths
            .into_iter()
            .try_for_each(|path| self.unmount_all(path))
    }

    fn unmount_all(&self, path: &Path) -> Result<(), DiskError> {
        while kernel::mounts_on(path) > 0 {
            // Readers of /proc hold a file for an instant.
            let mut result = kernel::unmount_once(path);
            kernel::wait_until(BUSY_RETRY_TIMEOUT, || {
                if result.is_err() {
                    result = kernel::unmount_once(path);
                }
                result.is_ok()
            });
            if let Err(cause) = result {
                return Err(match cause.kind() {
                    io::ErrorKind::ResourceBusy => DiskError::Busy {
                        path: path.to_owned(),
                        holders: kernel::holders(path),
                    },
                    _ => DiskError::io("unmounting the disk", path, cause),
                });
            }
        }
        Ok(())
    }

    fn send(&self, command: &DiskCommand) -> Result<Answer, DiskError> {
        match control::send(&self.layout.socket, command, COMMAND_TIMEOUT) {
            Ok(Answer::Refused(reason)) => Err(DiskError::Spec(reason)),
            Ok(answer) => Ok(answer),
            Err(_) if self.pid().is_none() => Err(self.gone()),
            Err(error) => Err(self.broken(error.to_string())),
        }
    }

    fn gone(&self) -> DiskError {
        self.broken(format!("it has ended; {}", last_log_line(&self.layout)))
    }

    fn broken(&self, why: String) -> DiskError {
        DiskError::Process {
            folder: self.layout.folder.clone(),
            why,
        }
    }
}

/// What must be there before anything is made. The programs say themselves when they are missing.
fn need(filesystem: Filesystem) -> Result<(), DiskError> {
    let missing = |what: &str, remedy| {
        Err(DiskError::Missing {
            what: what.to_owned(),
            remedy,
        })
    };
    if !rustix::process::geteuid().is_root() {
        return missing("root, to mount file systems", "run it as root");
    }
    if !Path::new("/dev/fuse").exists() {
        return missing("/dev/fuse", "load the kernel module fuse");
    }
    if !filesystem.is_remote() && !Path::new("/dev/loop-control").exists() {
        return missing("/dev/loop-control", "load the kernel module loop");
    }
    Ok(())
}

/// Creates the parts in order; the caller removes them when a step fails.
fn make(
    spec: &DiskSpec,
    layout: &DiskLayout,
    program: Command,
    child: &mut Option<Child>,
) -> Result<Option<PathBuf>, DiskError> {
    layout
        .make(spec)
        .map_err(|cause| DiskError::io("making the folder of the disk", &layout.folder, cause))?;
    spawn(layout, program, child)?;
    if spec.filesystem.is_remote() {
        // The process has mounted it.
        return Ok(None);
    }
    let device = kernel::attach(&layout.image)?;
    kernel::make_filesystem(spec, &device)?;
    let send = |command| {
        control::send(&layout.socket, &command, COMMAND_TIMEOUT)
            .map_err(|cause| DiskError::io("asking the disk process", &layout.socket, cause))
    };
    send(DiskCommand::Probe(true))?;
    let read_overhead_ns = kernel::read_overhead_ns(&device, engine::PROBE_NS)
        .map_err(|cause| DiskError::io("timing reads of the device", &device, cause))?;
    send(DiskCommand::Probe(false))?;
    send(DiskCommand::ReadOverhead(read_overhead_ns))?;
    layers::mount_all(&device, layout, spec, Purpose::Filling)?;
    Ok(Some(device))
}

/// Starts the disk process and waits until it answers.
fn spawn(
    layout: &DiskLayout,
    mut program: Command,
    child: &mut Option<Child>,
) -> Result<(), DiskError> {
    let log = fs::File::create(&layout.log)
        .map_err(|cause| DiskError::io("making the log of the disk", &layout.log, cause))?;
    let started = program
        .arg(&layout.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn();
    let started = child.insert(started.map_err(|cause| {
        DiskError::io(
            "starting the disk process",
            Path::new(program.get_program()),
            cause,
        )
    })?);
    let mut ended = false;
    let answers = kernel::wait_until(COMMAND_TIMEOUT, || {
        ended = !matches!(started.try_wait(), Ok(None));
        ended || control::send(&layout.socket, &DiskCommand::Statistics, COMMAND_TIMEOUT).is_ok()
    });
    if answers && !ended {
        return Ok(());
    }
    Err(DiskError::Process {
        folder: layout.folder.clone(),
        why: last_log_line(layout),
    })
}

/// The end of the disk process's log.
fn last_log_line(layout: &DiskLayout) -> String {
    let log = fs::read_to_string(&layout.log).unwrap_or_default();
    match log.lines().last() {
        Some(line) => format!("its last words: {line}"),
        None => "it said nothing".to_owned(),
    }
}
