//! File work that may wait, done by the kernel's own workers: opening beneath a directory, reading,
//! closing.
//!
//! Every request is marked as one that waits (`IOSQE_ASYNC`), so the thread that hands it over
//! never does it itself: the kernel keeps threads for that (`io-wq`), up to a
//! limit. What they do is confined exactly as by [`crate::open`]: the same flags, the same
//! `RESOLVE_BENEATH`. Refused: writing, and anything whose result the caller could use before it is
//! there.
//!
//! The kernel reads names and writes contents in memory that belongs to this ring. A request that
//! is under way when the ring is dropped may still do so, hence that memory is then leaked
//! instead of being freed.
//!
//! A caller keeps the descriptors of a request open until its completion: the kernel takes a
//! descriptor by its number when a worker comes to it.
//!
//! The kernel's workers share the caller's table of descriptors, and a shared table waits for all
//! CPUs whenever it has to grow (milliseconds): [`FileRing::grow_table`] has it grow before
//! they are there.
//!
//! Sources: io_uring_setup(2), io_uring_enter(2), io_uring_register(2); Linux 5.11, and 5.15 for
//! the bound on workers.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use io_uring::types::{Fd, OpenHow};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::open;
use crate::open::Links;

/// The most bytes of one read.
pub const READ_BYTES_MAX: usize = 256 * 1024;

/// A ring for file work.
pub struct FileRing {
    ring: IoUring,
    /// Operations under way, by their numbers in the ring.
    operations: Vec<Option<Box<Request>>>,
    free: Vec<usize>,
    /// Buffers of reads that are over.
    buffers: Vec<Vec<u8>>,
    depth: usize,
}

/// A request and the memory that the kernel uses for it.
struct Request {
    key: u64,
    kind: RequestKind,
    path: CString,
    how: OpenHow,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Open,
    Read,
    Close,
}

/// The completion of a request.
#[derive(Debug)]
pub enum WorkAnswer {
    /// Completion of [`FileRing::stat_path`] or [`FileRing::open_to_read`].
    Opened {
        /// The key of the request.
        key: u64,
        /// The descriptor, close-on-exec.
        descriptor: Result<OwnedFd, Errno>,
    },
    /// Completion of [`FileRing::read`].
    Read {
        /// The key of the request.
        key: u64,
        /// How many bytes; 0 at the end of the file.
        bytes: Result<usize, Errno>,
    },
}

impl FileRing {
    /// A ring for `depth` requests at once, done by at most `workers` threads of the kernel.
    ///
    /// # Errors
    /// Those of io_uring_setup(2), see [`PollRing::new`](crate::ring::PollRing::new).
    /// `Unsupported`: this kernel's io_uring cannot open, read or close files.
    pub fn new(depth: u32, workers: u32) -> io::Result<FileRing> {
        let ring = IoUring::builder().setup_clamp().build(depth)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::OpenAt2::CODE,
            opcode::Read::CODE,
            opcode::Close::CODE,
        ];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the io_uring of this kernel does no file work",
            ));
        }
        // Without a bound (before 5.15) it is four threads a CPU.
        let _ = ring
            .submitter()
            .register_iowq_max_workers(&mut [workers, 0]);
        let depth = ring.params().sq_entries() as usize;
        Ok(FileRing {
            ring,
            operations: Vec::new(),
            free: Vec::new(),
            buffers: Vec::new(),
            depth,
        })
    }

    /// Has the process's table of descriptors hold `descriptors`, to be called before the first
    /// request. It never shrinks, and without workers it grows without waiting.
    ///
    /// # Errors
    /// `EINVAL`: more than the limit on descriptors; `ENOMEM`.
    pub fn grow_table(&self, descriptors: u32) -> io::Result<()> {
        let last = descriptors.saturating_sub(1).min(RawFd::MAX as u32);
        drop(fcntl_dupfd_cloexec(self, last as RawFd)?);
        Ok(())
    }

    /// How many requests there is room for now.
    pub fn room(&self) -> usize {
        self.depth - self.under_way()
    }

    /// How many requests have not been answered.
    pub fn under_way(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// Finds out what a name beneath `root` is, without opening it for reading: as
    /// [`open::stat_path`], whose status is then to be asked of the answer by [`open::status`].
    ///
    /// # Errors
    /// `INVAL` for a path with a NUL; `BUSY` without room.
    pub fn stat_path(
        &mut self,
        key: u64,
        root: BorrowedFd<'_>,
        path: &[u8],
        links: Links,
    ) -> Result<(), Errno> {
        self.open(key, root, path, links, open::STAT_FLAGS.bits())
    }

    /// Opens a name beneath `root` for reading: as [`open::open_to_read`], whose rest
    /// [`open::opened_to_read`] does with the answer.
    ///
    /// # Errors
    /// As [`FileRing::stat_path`].
    pub fn open_to_read(
        &mut self,
        key: u64,
        root: BorrowedFd<'_>,
        path: &[u8],
        links: Links,
        no_access_time: bool,
    ) -> Result<(), Errno> {
        let flags = open::read_flags(no_access_time).bits();
        self.open(key, root, path, links, flags)
    }

    fn open(
        &mut self,
        key: u64,
        root: BorrowedFd<'_>,
        path: &[u8],
        links: Links,
        flags: u32,
    ) -> Result<(), Errno> {
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        let resolve = open::resolve(open::NameLookup::MayBlock, links).bits();
        let operation = Request {
            key,
            kind: RequestKind::Open,
            path,
            how: OpenHow::new().flags(flags.into()).resolve(resolve),
            buffer: Vec::new(),
        };
        self.start(operation, |operation| {
            opcode::OpenAt2::new(
                Fd(root.as_raw_fd()),
                operation.path.as_ptr(),
                &raw const operation.how,
            )
            .build()
        })
    }

    /// Reads at most `length` bytes (and no more than [`READ_BYTES_MAX`]) from `offset`, for
    /// nothing but that they are in memory then.
    ///
    /// # Errors
    /// `BUSY` without room.
    pub fn read(
        &mut self,
        key: u64,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> Result<(), Errno> {
        let length = length.min(READ_BYTES_MAX);
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.resize(buffer.len().max(length), 0);
        let operation = Request {
            key,
            kind: RequestKind::Read,
            path: CString::default(),
            how: OpenHow::new(),
            buffer,
        };
        self.start(operation, |operation| {
            let buffer = operation.buffer.as_mut_ptr();
            opcode::Read::new(Fd(file.as_raw_fd()), buffer, length as u32)
                .offset(offset)
                .build()
        })
    }

    /// Closes a file, which may wait for the disk. Its completion is not reported.
    ///
    /// # Errors
    /// Without room, or when the kernel is not to be reached: the file comes back.
    pub fn close(&mut self, file: OwnedFd) -> Result<(), OwnedFd> {
        if self.room() == 0 {
            return Err(file);
        }
        let number: RawFd = file.as_raw_fd();
        let operation = Request {
            key: 0,
            kind: RequestKind::Close,
            path: CString::default(),
            how: OpenHow::new(),
            buffer: Vec::new(),
        };
        match self.start(operation, |_| opcode::Close::new(Fd(number)).build()) {
            Ok(()) => {
                // It is the kernel's now.
                let _ = file.into_raw_fd();
                Ok(())
            }
            Err(_) => Err(file),
        }
    }

    /// Puts a request in its place and into the queue.
    fn start(
        &mut self,
        operation: Request,
        entry: impl FnOnce(&mut Request) -> squeue::Entry,
    ) -> Result<(), Errno> {
        if self.room() == 0 {
            return Err(Errno::BUSY);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        let operation = self.operations[number].insert(Box::new(operation));
        let entry = entry(operation)
            .flags(squeue::Flags::ASYNC)
            .user_data(number as u64);
        // SAFETY: every pointer in the entry leads into the boxed operation, or to what that owns;
        // it is neither moved nor changed nor freed before its answer has come (`answer`), and
        // never when the ring goes before that (`drop`).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // As long as there is room for another request there is one in the queue, which is as
            // long.
            self.operations[number] = None;
            self.free.push(number);
            return Err(Errno::BUSY);
        }
        Ok(())
    }

    /// Hands over what was asked for. It never waits: what does not go now goes the next time.
    ///
    /// # Errors
    /// Those of io_uring_enter(2) that the next time does not cure.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The next answer, if there is one. The ring's own descriptor is readable when there may be.
    pub fn answer(&mut self) -> Option<WorkAnswer> {
        loop {
            let entry = self.ring.completion().next()?;
            let number = entry.user_data() as usize;
            let Some(operation) = self.operations.get_mut(number).and_then(Option::take) else {
                continue;
            };
            self.free.push(number);
            let Request {
                key, kind, buffer, ..
            } = *operation;
            match kind {
                RequestKind::Close => {}
                RequestKind::Open => {
                    let descriptor = outcome(entry.result()).map(|number| {
                        // SAFETY: the kernel has just opened it for this request, and told no other
                        // thread else.
                        unsafe { OwnedFd::from_raw_fd(number) }
                    });
                    return Some(WorkAnswer::Opened { key, descriptor });
                }
                RequestKind::Read => {
                    self.buffers.push(buffer);
                    let bytes = outcome(entry.result()).map(|bytes| bytes as usize);
                    return Some(WorkAnswer::Read { key, bytes });
                }
            }
        }
    }
}

fn outcome(result: i32) -> Result<i32, Errno> {
    match result {
        0.. => Ok(result),
        // Only 1 to 4095 are error numbers.
        -4095..0 => Err(Errno::from_raw_os_error(-result)),
        _ => Err(Errno::IO),
    }
}

impl AsFd for FileRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns this descriptor as long as it lives, and the borrow is as long as
        // that of the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for FileRing {
    fn drop(&mut self) {
        if self.under_way() > 0 {
            // The kernel may yet read and write in there.
            std::mem::forget(std::mem::take(&mut self.operations));
        }
    }
}

impl std::fmt::Debug for FileRing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let under_way = self.under_way();
        out.debug_struct("FileRing")
            .field("under_way", &under_way)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_test_support::skip;
    use rustix::event::{PollFd, PollFlags, poll};

    fn ring(depth: u32) -> Option<FileRing> {
        match FileRing::new(depth, 2) {
            Ok(ring) => Some(ring),
            Err(error) => {
                skip("io_uring", &error.to_string());
                None
            }
        }
    }

    fn root() -> OwnedFd {
        std::fs::File::open(env!("CARGO_MANIFEST_DIR"))
            .unwrap()
            .into()
    }

    fn wait(ring: &mut FileRing) -> WorkAnswer {
        ring.submit().unwrap();
        loop {
            if let Some(answer) = ring.answer() {
                return answer;
            }
            poll(&mut [PollFd::new(&*ring, PollFlags::IN)], None).unwrap();
        }
    }

    fn opened(answer: WorkAnswer) -> Result<OwnedFd, Errno> {
        match answer {
            WorkAnswer::Opened { key: 7, descriptor } => descriptor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn file_is_opened_read_and_closed_when_the_kernel_does_it() {
        let Some(mut ring) = ring(8) else { return };
        let root = root();
        ring.stat_path(7, root.as_fd(), b"Cargo.toml", Links::Beneath)
            .unwrap();
        let seen = open::status(opened(wait(&mut ring)).unwrap()).unwrap();
        ring.open_to_read(7, root.as_fd(), b"Cargo.toml", Links::Beneath, false)
            .unwrap();
        let (file, status) = open::opened_to_read(opened(wait(&mut ring)).unwrap()).unwrap();
        assert_eq!((seen.inode, seen.size), (status.inode, status.size));
        ring.read(7, file.as_fd(), 0, READ_BYTES_MAX).unwrap();
        let WorkAnswer::Read { key: 7, bytes } = wait(&mut ring) else {
            panic!("no read");
        };
        assert_eq!(bytes, Ok(status.size as usize));
        let number = file.as_raw_fd();
        ring.close(file).unwrap();
        ring.submit().unwrap();
        while ring.under_way() > 0 {
            assert!(ring.answer().is_none(), "a close is not reported");
        }
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
        assert!(!link.is_ok_and(|link| link.ends_with("os/Cargo.toml")));
    }

    #[test]
    fn names_outside_the_root_are_rejected_when_opened_by_io_uring() {
        let Some(mut ring) = ring(8) else { return };
        let root = root();
        for (path, errno) in [
            (&b"../Cargo.toml"[..], Errno::XDEV),
            (b"/etc/passwd", Errno::XDEV),
            (b"none", Errno::NOENT),
            (b"Cargo.toml/x", Errno::NOTDIR),
        ] {
            ring.stat_path(7, root.as_fd(), path, Links::Beneath)
                .unwrap();
            assert_eq!(opened(wait(&mut ring)).unwrap_err(), errno, "{path:?}");
        }
        assert_eq!(
            ring.stat_path(7, root.as_fd(), b"a\0b", Links::Beneath),
            Err(Errno::INVAL)
        );
        assert_eq!(ring.under_way(), 0);
    }

    #[test]
    fn request_is_rejected_when_the_ring_is_full() {
        let Some(mut ring) = ring(4) else { return };
        let root = root();
        let room = ring.room();
        for _ in 0..room {
            ring.stat_path(7, root.as_fd(), b"Cargo.toml", Links::Beneath)
                .unwrap();
        }
        assert_eq!(
            ring.stat_path(7, root.as_fd(), b"src", Links::Beneath),
            Err(Errno::BUSY)
        );
        let back = ring.close(root.try_clone().unwrap());
        assert!(back.is_err(), "it comes back");
        for _ in 0..room {
            opened(wait(&mut ring)).unwrap();
        }
        assert_eq!(ring.room(), room);
    }

    #[test]
    fn memory_stays_valid_when_the_ring_is_dropped_before_its_completions() {
        let root = root();
        for _ in 0..50 {
            let Some(mut ring) = ring(32) else { return };
            for _ in 0..32 {
                ring.stat_path(7, root.as_fd(), b"src/work.rs", Links::Beneath)
                    .unwrap();
            }
            ring.submit().unwrap();
        }
    }
}
