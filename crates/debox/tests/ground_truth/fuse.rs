//! A filesystem that answers late, by a schedule, and keeps the times of every answer.
//!
//! Every name exists: names that begin with `d` are directories, with `f` files of [`FILE_BYTES`],
//! and `disk` is the image it was given. Nothing is cached by name, so each component of a path is
//! a request each time. Everything is in memory, so delays come from the schedule only.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, WriteFlags,
};
use headway_os::ticks::monotonic_ns;

pub const FILE_BYTES: u64 = 64 * 4096;

/// The requests that can be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Lookup,
    Status,
    Open,
    Read,
    Write,
    Fsync,
    Mkdir,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub operation: Operation,
    /// The thread that made the request, or what the kernel reports for readahead.
    pub thread: u32,
    pub received_ns: u64,
    /// Just before the answer went to the kernel, and just after.
    pub answered_ns: (u64, u64),
}

/// What the server and the test share.
#[derive(Default)]
struct State {
    /// Taken in turn, over and over; an operation without an entry is answered at once.
    delays: HashMap<Operation, Vec<Duration>>,
    turns: HashMap<Operation, usize>,
    answers: Vec<Answer>,
    names: HashMap<u64, FileType>,
    disk: Vec<u8>,
}

/// A mounted filesystem, unmounted when dropped.
pub struct LateFilesystem {
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
    folder: tempfile::TempDir,
}

impl LateFilesystem {
    /// Mounts it with `disk` as the content of the file of that name.
    pub fn mount(disk: Vec<u8>) -> Result<LateFilesystem, String> {
        LateFilesystem::mount_for(disk, SessionACL::Owner)
    }

    /// Mounts it without a disk, also for servers which run as another user.
    #[allow(dead_code, reason = "not every test has such a server")]
    pub fn mount_for_all() -> Result<LateFilesystem, String> {
        LateFilesystem::mount_for(Vec::new(), SessionACL::All)
    }

    fn mount_for(disk: Vec<u8>, users: SessionACL) -> Result<LateFilesystem, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let state = Arc::new(Mutex::new(State {
            disk,
            ..State::default()
        }));
        let mut options = Config::default();
        options.mount_options = vec![MountOption::FSName("headway-bed".to_owned())];
        // A request that is late must not hold up others.
        options.n_threads = Some(4);
        options.acl = users;
        let server = Server(Arc::clone(&state));
        let session = fuser::spawn_mount(server, folder.path(), &options)
            .map_err(|error| format!("mounting a FUSE filesystem: {error}"))?;
        Ok(LateFilesystem {
            state,
            session: Some(session),
            folder,
        })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// From now on these delays, in turn; and forgets the answers given so far.
    pub fn schedule(&self, delays: &[(Operation, &[u64])]) {
        let mut state = self.state.lock().expect("no panic under the lock");
        state.delays = delays
            .iter()
            .map(|(operation, delays_ms)| {
                let delays = delays_ms.iter().copied().map(Duration::from_millis);
                (*operation, delays.collect())
            })
            .collect();
        state.turns.clear();
        state.answers.clear();
    }

    /// How many requests of a kind have come since the last schedule, answered or not.
    pub fn begun(&self, operation: Operation) -> usize {
        let state = self.state.lock().expect("no panic under the lock");
        state.turns.get(&operation).copied().unwrap_or(0)
    }

    /// The answers since the last schedule.
    pub fn answers(&self) -> Vec<Answer> {
        let state = self.state.lock().expect("no panic under the lock");
        state.answers.clone()
    }
}

impl Drop for LateFilesystem {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            eprintln!("unmounting {}: {error}", self.folder.path().display());
        }
    }
}

struct Server(Arc<Mutex<State>>);

impl Server {
    /// Waits as the schedule says, then answers.
    fn late(&self, operation: Operation, request: &Request, answer: impl FnOnce()) {
        let received_ns = monotonic_ns();
        let delay = {
            let mut state = self.0.lock().expect("no panic under the lock");
            let turn = state.turns.entry(operation).or_default();
            let now = *turn;
            *turn += 1;
            match state.delays.get(&operation) {
                Some(delays) => delays[now % delays.len()],
                None => Duration::ZERO,
            }
        };
        std::thread::sleep(delay);
        // The lock is held during the answer, so that a task that was answered finds the answer
        // recorded.
        let mut state = self.0.lock().expect("no panic under the lock");
        let before_ns = monotonic_ns();
        answer();
        state.answers.push(Answer {
            operation,
            thread: request.pid(),
            received_ns,
            answered_ns: (before_ns, monotonic_ns()),
        });
    }

    fn kind(&self, node: u64) -> FileType {
        let state = self.0.lock().expect("no panic under the lock");
        state
            .names
            .get(&node)
            .copied()
            .unwrap_or(FileType::Directory)
    }

    fn attributes(&self, node: u64) -> FileAttr {
        let kind = self.kind(node);
        let size = match (kind, node) {
            (FileType::Directory, _) => 0,
            (_, DISK) => self.0.lock().expect("no panic under the lock").disk.len() as u64,
            _ => FILE_BYTES,
        };
        FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }

    fn entry(&self, request: &Request, node: u64, kind: FileType, reply: ReplyEntry) {
        self.0
            .lock()
            .expect("no panic under the lock")
            .names
            .insert(node, kind);
        let attributes = self.attributes(node);
        self.late(Operation::Lookup, request, || {
            reply.entry(&Duration::ZERO, &attributes, Generation(0));
        });
    }
}

const DISK: u64 = 2;

/// The inode number of a name in a folder, which is always the same.
fn node_of(parent: u64, name: &OsStr) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (parent, name).hash(&mut hasher);
    hasher.finish() >> 8 | 1 << 40
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without it lookups in one directory wait for one another, on a lock of the filesystem's.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = node_of(parent.0, name);
        match name.as_encoded_bytes() {
            b"disk" => self.entry(request, DISK, FileType::RegularFile, reply),
            [b'd', ..] => self.entry(request, node, FileType::Directory, reply),
            [b'f', ..] => self.entry(request, node, FileType::RegularFile, reply),
            _ => self.late(Operation::Lookup, request, || reply.error(Errno::ENOENT)),
        }
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes = self.attributes(node.0);
        self.late(Operation::Status, request, || {
            reply.attr(&Duration::ZERO, &attributes)
        });
    }

    fn open(&self, request: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.late(Operation::Open, request, || {
            reply.opened(FileHandle(0), FopenFlags::empty());
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let node = node_of(parent.0, name);
        let attributes = FileAttr {
            kind: FileType::Directory,
            ..self.attributes(node)
        };
        self.late(Operation::Mkdir, request, || {
            reply.entry(&Duration::ZERO, &attributes, Generation(0));
        });
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = if node.0 == DISK {
            let state = self.0.lock().expect("no panic under the lock");
            let end = (offset as usize + size as usize).min(state.disk.len());
            state.disk[(offset as usize).min(end)..end].to_vec()
        } else {
            vec![7; u64::from(size).min(FILE_BYTES.saturating_sub(offset)) as usize]
        };
        self.late(Operation::Read, request, || reply.data(&bytes));
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if node.0 == DISK {
            let mut state = self.0.lock().expect("no panic under the lock");
            let from = offset as usize;
            let to = from + data.len();
            if to > state.disk.len() {
                return reply.error(Errno::ENOSPC);
            }
            state.disk[from..to].copy_from_slice(data);
        }
        self.late(Operation::Write, request, || {
            reply.written(data.len() as u32)
        });
    }

    fn fsync(&self, request: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.late(Operation::Fsync, request, || reply.ok());
    }
}
