//! The file system below a disk: a FUSE file system with one file, `image`, whose reads and writes
//! take as long as the engine says.
//!
//! Sources: fuse(4); Linux `fs/fuse/file.c`, where asynchronous direct I/O of the loop device
//! counts as background requests, so their limit is the depth of the queue.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};
use rustix::fs::FallocateFlags;

use super::backing::BackingStore;
use super::layout::IMAGE;
use super::process::{Delays, Transfer, set_limits};

/// The inode of the one file; 1 is the root.
const IMAGE_NODE: u64 = 2;

/// The kernel may keep what it knows of the one file.
const CACHE_VALIDITY: Duration = Duration::from_secs(1 << 30);

/// The file system: a root directory and the image.
pub(crate) struct Image {
    pub(crate) delays: Arc<Delays>,
    pub(crate) backing: Arc<BackingStore>,
}

impl Image {
    fn attributes(&self, node: u64) -> FileAttr {
        let (kind, size) = if node == IMAGE_NODE {
            (FileType::RegularFile, self.backing.size_bytes())
        } else {
            (FileType::Directory, 0)
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
            perm: if kind == FileType::Directory {
                0o500
            } else {
                0o600
            },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Image {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        set_limits(config);
        // Without it the loop device would wait for each request before it sends the next.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| std::io::Error::other("this kernel's FUSE has no asynchronous direct I/O"))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == IMAGE {
            reply.entry(&CACHE_VALIDITY, &self.attributes(IMAGE_NODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&CACHE_VALIDITY, &self.attributes(node.0));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No other process has the file open, so writes need not wait for one another.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let backing = Arc::clone(&self.backing);
        let transfer = Transfer::read(offset, u64::from(size));
        self.delays.arrive(transfer, move |failed| {
            match backing.read(offset, u64::from(size)) {
                Ok(bytes) if !failed => reply.data(&bytes),
                _ => reply.error(Errno::EIO),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let transfer = Transfer::write(offset, data.len() as u64);
        // What fails leaves the backing as it was.
        let refused = self.delays.fails(transfer) || self.backing.write(offset, data).is_err();
        let written_bytes = data.len() as u32;
        self.delays
            .arrive(transfer, move |failed| match refused || failed {
                true => reply.error(Errno::EIO),
                false => reply.written(written_bytes),
            });
    }

    /// A write is on the backing when it is answered, and the kernel sends a flush after the
    /// answers.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Discards and zeroes, which is all that a loop device asks for.
    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let zeroes = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if !FallocateFlags::from_bits_retain(mode as u32).intersects(zeroes) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match self.backing.discard(offset, length) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EOPNOTSUPP),
        }
    }
}
