//! A remote file system as a client of it sees one, such as NFS or a cloud's file service: every
//! lookup, getattr, open and read of what is not cached is a round trip to the server.
//!
//! The kernel caches as an NFS client does. Names and attributes are believed for
//! [`ATTRIBUTE_TIMEOUT`], absent names too. Each open asks the server, and keeps the cached bytes
//! if the file is as it was (close-to-open consistency). Bytes stay in the page cache. Requests of
//! one directory go in parallel. A close asks nothing.
//!
//! A round trip takes what the model of the disk says: latency, spread, bandwidth, and how many go
//! at once. To a fault every request is one for byte 0.
//!
//! Sources: nfs(5), "DATA AND METADATA COHERENCE"; Linux `fs/fuse/dir.c` and `file.c`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use super::control::Answer;
use super::process::{Delays, Transfer, set_limits};

mod tree;

use tree::{Change, GENERATION, New, Ownership, ROOT, Tree};

/// How long the kernel believes a name or attributes: the least that an NFS client believes those
/// of a file (`acregmin`).
const ATTRIBUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the kernel may take to forget.
const FORGET_TIMEOUT: Duration = Duration::from_secs(4);

/// Bytes of a request and its answer without file contents, as NFS has them.
const MESSAGE_BYTES: u64 = 200;

/// The file system.
pub(crate) struct Remote {
    delays: Arc<Delays>,
    tree: Arc<Mutex<Tree>>,
    /// What open directories list; a handle is an index.
    listings: Arc<Mutex<Vec<Option<Listing>>>>,
}

type Listing = Vec<(std::ffi::OsString, u64, FileType)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("no thread panics while it holds the files")
}

impl Remote {
    /// Without files, with room for that many bytes.
    pub(crate) fn new(delays: Arc<Delays>, size_bytes: u64) -> Remote {
        Remote {
            delays,
            tree: Arc::new(Mutex::new(Tree::new(size_bytes, SystemTime::now()))),
            listings: Arc::default(),
        }
    }

    pub(crate) fn tree(&self) -> Arc<Mutex<Tree>> {
        Arc::clone(&self.tree)
    }

    /// Asks the server, which does its part when it answers.
    fn ask(
        &self,
        transfer: Transfer,
        answer: impl FnOnce(Result<MutexGuard<'_, Tree>, Errno>) + Send + 'static,
    ) {
        let tree = Arc::clone(&self.tree);
        self.delays.arrive(transfer, move |failed| match failed {
            true => answer(Err(Errno::EIO)),
            false => answer(Ok(lock(&tree))),
        });
    }

    /// Asks for something without file contents, and replies with what came of it.
    fn ask_for<T>(
        &self,
        act: impl FnOnce(&mut Tree) -> Result<T, Errno> + Send + 'static,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        self.ask(small(), move |tree| {
            reply(tree.and_then(|mut tree| act(&mut tree)))
        });
    }
}

fn entry(reply: ReplyEntry) -> impl FnOnce(Result<FileAttr, Errno>) {
    move |found| match found {
        Ok(attributes) => reply.entry(&ATTRIBUTE_TIMEOUT, &attributes, GENERATION),
        Err(error) => reply.error(error),
    }
}

fn attributes(reply: ReplyAttr) -> impl FnOnce(Result<FileAttr, Errno>) {
    move |found| match found {
        Ok(attributes) => reply.attr(&ATTRIBUTE_TIMEOUT, &attributes),
        Err(error) => reply.error(error),
    }
}

fn nothing(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) {
    move |done| match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// A request without file contents.
fn small() -> Transfer {
    Transfer::read(0, MESSAGE_BYTES)
}

fn ownership(request: &Request, mode: u32, mask: u32) -> Ownership {
    Ownership {
        user: request.uid(),
        group: request.gid(),
        permissions: (mode & !mask & 0o7777) as u16,
    }
}

/// Attributes of what is not there: the kernel takes the number 0 for an absent name, and believes
/// that as long as a name.
fn absent() -> FileAttr {
    let epoch = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

impl Filesystem for Remote {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        set_limits(config);
        // Without it lookups in one directory would wait for one another.
        config
            .add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS)
            .map_err(|_| std::io::Error::other("this kernel's FUSE has no parallel lookups"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.ask_for(
            move |tree| match tree.look_up(parent.0, &name) {
                Err(error) if error.code() == Errno::ENOENT.code() => Ok(absent()),
                found => found,
            },
            entry(reply),
        );
    }

    fn forget(&self, _: &Request, node: INodeNo, answers: u64) {
        lock(&self.tree).forget(node.0, answers);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.ask_for(move |tree| tree.attributes(node.0), attributes(reply));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = SystemTime::now();
        let change = Change {
            permissions: mode.map(|mode| (mode & 0o7777) as u16),
            user,
            group,
            size,
            modified: modified.map(|time| match time {
                TimeOrNow::SpecificTime(time) => time,
                TimeOrNow::Now => now,
            }),
        };
        self.ask_for(
            move |tree| tree.change(node.0, change, now),
            attributes(reply),
        );
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        self.ask(small(), move |tree| {
            match tree.and_then(|tree| tree.link_target(node.0).map(OsStr::to_owned)) {
                Ok(target) => reply.data(target.as_bytes()),
                Err(error) => reply.error(error),
            }
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        reply: ReplyEntry,
    ) {
        let (name, ownership) = (name.to_owned(), ownership(request, mode, mask));
        self.ask_for(
            move |tree| {
                tree.make(
                    parent.0,
                    &name,
                    New::Directory,
                    ownership,
                    SystemTime::now(),
                )
            },
            entry(reply),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target) = (name.to_owned(), target.as_os_str().to_owned());
        let ownership = ownership(request, 0o777, 0);
        self.ask_for(
            move |tree| {
                let new = New::Link(&target);
                tree.make(parent.0, &name, new, ownership, SystemTime::now())
            },
            entry(reply),
        );
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.ask_for(
            move |tree| tree.remove(parent.0, &name, false, SystemTime::now()),
            nothing(reply),
        );
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.ask_for(
            move |tree| tree.remove(parent.0, &name, true, SystemTime::now()),
            nothing(reply),
        );
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.ask_for(
            move |tree| {
                let (from, to) = ((parent.0, &*name), (new_parent.0, &*new_name));
                tree.rename(from, to, replace, SystemTime::now())
            },
            nothing(reply),
        );
    }

    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.ask(small(), move |tree| {
            match tree.and_then(|mut tree| tree.open(node.0)) {
                Ok(fresh) => reply.opened(FileHandle(0), keep_cache(fresh)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let (name, ownership) = (name.to_owned(), ownership(request, mode, mask));
        self.ask(small(), move |tree| {
            let made = tree.and_then(|mut tree| {
                let now = SystemTime::now();
                tree.make(parent.0, &name, New::File, ownership, now)
            });
            match made {
                Ok(attributes) => reply.created(
                    &ATTRIBUTE_TIMEOUT,
                    &attributes,
                    GENERATION,
                    FileHandle(0),
                    FopenFlags::empty(),
                ),
                Err(error) => reply.error(error),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size);
        self.ask(
            Transfer::read(0, MESSAGE_BYTES + length),
            move |tree| match tree
                .and_then(|tree| tree.read(node.0, offset, length).map(<[u8]>::to_vec))
            {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error),
            },
        );
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = data.to_vec();
        let transfer = Transfer::write(0, MESSAGE_BYTES + bytes.len() as u64);
        self.ask(transfer, move |tree| {
            let now = SystemTime::now();
            let written = tree.and_then(|mut tree| tree.write(node.0, offset, &bytes, now));
            match written {
                Ok(()) => reply.written(bytes.len() as u32),
                Err(error) => reply.error(error),
            }
        });
    }

    /// What is written is on the server already. After this answer the kernel no longer asks at a
    /// close.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.ask_for(
            move |tree| tree.attributes(node.0).map(drop),
            nothing(reply),
        );
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let listings = Arc::clone(&self.listings);
        self.ask(small(), move |tree| {
            match tree.and_then(|tree| tree.entries(node.0)) {
                Ok(entries) => {
                    let handle = keep(&mut lock(&listings), entries);
                    reply.opened(FileHandle(handle), FopenFlags::empty());
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listings = Arc::clone(&self.listings);
        self.delays.arrive(small(), move |failed| {
            let listings = lock(&listings);
            let listing = listings.get(handle.0 as usize).and_then(Option::as_ref);
            let Some(listing) = listing.filter(|_| !failed) else {
                return reply.error(Errno::EIO);
            };
            let rest = listing.iter().enumerate().skip(offset as usize);
            for (index, (name, node, kind)) in rest {
                if reply.add(INodeNo(*node), index as u64 + 1, *kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        if let Some(listing) = lock(&self.listings).get_mut(handle.0 as usize) {
            *listing = None;
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        const BLOCK_BYTES: u64 = 4096;
        self.ask(small(), move |tree| match tree {
            Ok(tree) => {
                let (used, capacity) = tree.used_and_capacity_bytes();
                let (blocks, free) = (capacity / BLOCK_BYTES, (capacity - used) / BLOCK_BYTES);
                let block = BLOCK_BYTES as u32;
                reply.statfs(blocks, free, free, tree.count(), 1 << 32, block, 255, block);
            }
            Err(error) => reply.error(error),
        });
    }
}

fn keep_cache(fresh: bool) -> FopenFlags {
    match fresh {
        true => FopenFlags::FOPEN_KEEP_CACHE,
        false => FopenFlags::empty(),
    }
}

/// Puts a listing into the first free place and returns where that is.
fn keep(listings: &mut Vec<Option<Listing>>, listing: Listing) -> u64 {
    let free = listings.iter().position(Option::is_none);
    let index = free.unwrap_or_else(|| {
        listings.push(None);
        listings.len() - 1
    });
    listings[index] = Some(listing);
    index as u64
}

/// What the lab can tell a remote file system.
pub(crate) struct RemoteControl {
    tree: Arc<Mutex<Tree>>,
    kernel: Notifier,
}

impl RemoteControl {
    pub(crate) fn new(tree: Arc<Mutex<Tree>>, kernel: Notifier) -> RemoteControl {
        RemoteControl { tree, kernel }
    }

    /// Makes the kernel forget every name, attribute and byte. Files in use stay known, which is an
    /// error.
    pub(crate) fn drop_caches(&self) -> Answer {
        let entries = lock(&self.tree).entries(ROOT);
        let names = entries.unwrap_or_default().into_iter();
        for (name, _, _) in names {
            if let Err(error) = self.kernel.inval_entry(INodeNo(ROOT), &name) {
                return Answer::Refused(format!("the kernel cannot forget a name: {error}"));
            }
        }
        if let Err(error) = self.kernel.inval_inode(INodeNo(ROOT), 0, 0) {
            return Answer::Refused(format!(
                "the kernel cannot forget the top directory: {error}"
            ));
        }
        let end = Instant::now() + FORGET_TIMEOUT;
        while lock(&self.tree).known() > 0 {
            if Instant::now() > end {
                return Answer::Busy;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Answer::Done
    }

    /// The server comes back with other numbers for its files: those that are open are stale.
    pub(crate) fn restart(&self) -> Answer {
        lock(&self.tree).restart();
        Answer::Done
    }
}
