//! The disk process: a FUSE filesystem with one file, `image`, whose reads and writes take as long
//! as the engine says.
//!
//! Threads of the FUSE library put requests into the engine; a timer thread answers them when they
//! are due; one thread takes orders. A reply is kept until then, so a slow request holds up no
//! other and the queue is as deep as the kernel makes it. The process ends when its file system is
//! unmounted. It makes nothing that would outlive it: when it is killed, the kernel ends every
//! request with an error.
//!
//! Sources: fuse(4); Linux `fs/fuse/file.c`, where asynchronous direct I/O of the loop device
//! counts as background requests, so their limit is the depth of the queue.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};

use rustix::fs::FallocateFlags;

use super::backing::BackingStore;
use super::control::{self, Answer, DiskCommand};
use super::engine::{Done, Engine};
use super::layout::{DiskLayout, IMAGE};
use super::{DiskError, DiskSpec};

/// The inode of the one file; 1 is the root.
const IMAGE_NODE: u64 = 2;

/// The kernel sends no more requests at once. A loop device has 128.
const REQUESTS_MAX: u16 = 256;

/// Of one write, and by the FUSE library's arithmetic of one read.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The kernel may keep what it knows of the one file.
const CACHE_VALIDITY: Duration = Duration::from_secs(1 << 30);

/// Runs a disk until it is unmounted. `folder` is what [`super::Disk::start`] prepared; the hidden
/// sub-command `headway-lab disk-process FOLDER` calls this.
///
/// # Errors
/// When the folder was not prepared, or memory, FUSE or the socket cannot be had.
pub fn process_main(folder: &Path) -> Result<(), DiskError> {
    let layout = DiskLayout::of(folder);
    let spec = layout.read_spec()?;
    let backing = BackingStore::new(spec.backing.as_deref(), spec.size_bytes);
    let backing = backing.map_err(|cause| match &spec.backing {
        Some(file) => DiskError::io("making the file behind the disk", file, cause),
        None => DiskError::io("making the memory of the disk", folder, cause),
    })?;
    let shared = Arc::new(Shared::new(spec, backing));
    let mut options = Config::default();
    options.mount_options = vec![MountOption::FSName("headway-lab".to_owned())];
    let session = Session::new(Image(Arc::clone(&shared)), &layout.fuse, &options)
        .map_err(|cause| DiskError::io("mounting the FUSE file system", &layout.fuse, cause))?;
    let listener = UnixListener::bind(&layout.socket)
        .map_err(|cause| DiskError::io("listening on the socket", &layout.socket, cause))?;
    // It works little, but a disk does not wait for a processor. Without the privilege delays are
    // less exact.
    if let Err(error) = headway_os::process::real_time() {
        eprintln!(
            "sched_setscheduler(SCHED_FIFO): {error}; delays are longer while the CPUs are busy"
        );
    }
    let timer = Arc::clone(&shared);
    std::thread::spawn(move || timer.run_timer());
    std::thread::spawn(move || shared.serve_commands(&listener));
    session
        .run()
        .map_err(|cause| DiskError::io("serving the FUSE file system", &layout.fuse, cause))
}

/// What the threads share.
struct Shared {
    backing: BackingStore,
    begin: Instant,
    state: Mutex<DiskState>,
    /// Wakes the timer when something is due earlier than its current deadline.
    earlier: Condvar,
}

struct DiskState {
    engine: Engine,
    waiting: HashMap<u64, Pending>,
    /// When the timer wakes by itself.
    timer_ns: u64,
}

/// A request whose reply is kept.
enum Pending {
    Read {
        reply: ReplyData,
        offset_bytes: u64,
        length_bytes: u64,
    },
    Write {
        reply: ReplyWrite,
        written_bytes: u32,
        failed: bool,
    },
}

impl Shared {
    fn new(spec: DiskSpec, backing: BackingStore) -> Shared {
        let state = DiskState {
            engine: Engine::new(spec, 0),
            waiting: HashMap::new(),
            timer_ns: u64::MAX,
        };
        Shared {
            backing,
            begin: Instant::now(),
            state: Mutex::new(state),
            earlier: Condvar::new(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state
            .lock()
            .expect("no thread panics while it holds the disk")
    }

    /// Queues a request and answers what is due; that may be the same request.
    fn arrive(&self, offset_bytes: u64, length_bytes: u64, mut pending: Pending, bytes: &[u8]) {
        let mut state = self.lock();
        let now_ns = self.now_ns();
        if let Pending::Write { failed, .. } = &mut pending {
            // What fails leaves the backing as it was.
            *failed = state.engine.fails(now_ns, offset_bytes, length_bytes)
                || self.backing.write(offset_bytes, bytes).is_err();
        }
        let write = matches!(pending, Pending::Write { .. });
        let id = state
            .engine
            .arrive(now_ns, offset_bytes, length_bytes, write);
        state.waiting.insert(id, pending);
        let (state, wake_ns) = self.answer(state);
        // Most requests change nothing for the timer, and waking it costs more than answering them.
        if wake_ns.is_some_and(|wake_ns| wake_ns < state.timer_ns) {
            self.earlier.notify_one();
        }
    }

    /// Answers what is due and gives the lock back meanwhile. Returns when the next one is due.
    fn answer<'a>(
        &'a self,
        mut state: MutexGuard<'a, DiskState>,
    ) -> (MutexGuard<'a, DiskState>, Option<u64>) {
        loop {
            let done = state.engine.due(self.now_ns());
            if done.is_empty() {
                let wake_ns = state.engine.wake_ns();
                return (state, wake_ns);
            }
            let ready: Vec<(Done, Pending)> = done
                .into_iter()
                .filter_map(|done| Some((done, state.waiting.remove(&done.id)?)))
                .collect();
            drop(state);
            ready
                .into_iter()
                .for_each(|(done, pending)| self.reply(done, pending));
            state = self.lock();
        }
    }

    fn reply(&self, done: Done, pending: Pending) {
        match pending {
            Pending::Read {
                reply,
                offset_bytes,
                length_bytes,
            } => match self.backing.read(offset_bytes, length_bytes) {
                Ok(bytes) if !done.failed => reply.data(&bytes),
                _ => reply.error(Errno::EIO),
            },
            Pending::Write {
                reply,
                written_bytes,
                failed,
            } if !failed && !done.failed => reply.written(written_bytes),
            Pending::Write { reply, .. } => reply.error(Errno::EIO),
        }
    }

    /// The timer: sleeps until the next request is due.
    fn run_timer(&self) {
        // By default the kernel lets a sleep last 50 us longer, to wake fewer times.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            eprintln!("prctl(PR_SET_TIMERSLACK): {error}; delays are up to 50 us longer");
        }
        let mut state = self.lock();
        loop {
            let (mut held, wake_ns) = self.answer(state);
            held.timer_ns = wake_ns.unwrap_or(u64::MAX);
            state = match wake_ns.map(|wake_ns| wake_ns.saturating_sub(self.now_ns())) {
                Some(0) => held,
                Some(wait_ns) => {
                    let wait = Duration::from_nanos(wait_ns);
                    let woken = self.earlier.wait_timeout(held, wait);
                    woken.expect("no thread panics while it holds the disk").0
                }
                None => self
                    .earlier
                    .wait(held)
                    .expect("no thread panics while it holds the disk"),
            };
        }
    }

    /// The control socket: one command per connection, one after the other.
    fn serve_commands(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            let served =
                stream.and_then(|stream| control::serve(&stream, |command| self.execute(command)));
            if let Err(error) = served {
                eprintln!("control socket: {error}");
            }
        }
    }

    fn execute(&self, command: DiskCommand) -> Answer {
        let mut state = self.lock();
        let now_ns = self.now_ns();
        match command {
            DiskCommand::Statistics => return Answer::Statistics(state.engine.statistics(now_ns)),
            DiskCommand::Fast => return Answer::Fast(state.engine.is_fast()),
            DiskCommand::Probe(probe) => state.engine.set_probe(now_ns, probe),
            DiskCommand::ReadOverhead(read_overhead_ns) => {
                state.engine.set_read_overhead(read_overhead_ns)
            }
            DiskCommand::Maintenance(paused) => state.engine.set_maintenance(now_ns, paused),
            DiskCommand::Order(order) => match order.check_on(self.backing.size_bytes()) {
                Ok(()) => state.engine.order(now_ns, &order),
                Err(reason) => return Answer::Refused(reason),
            },
        }
        drop(state);
        self.earlier.notify_one();
        Answer::Done
    }
}

/// The file system: a root directory and the image.
struct Image(Arc<Shared>);

impl Image {
    fn attributes(&self, node: u64) -> FileAttr {
        let (kind, size) = if node == IMAGE_NODE {
            (FileType::RegularFile, self.0.backing.size_bytes())
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
        // A kernel that allows less names its limit, which is then taken.
        if let Err(most) = config.set_max_write(REQUEST_BYTES_MAX) {
            let _ = config.set_max_write(most);
        }
        if let Err(most) = config.set_max_background(REQUESTS_MAX) {
            let _ = config.set_max_background(most);
        }
        let _ = config.set_congestion_threshold(REQUESTS_MAX);
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
        let pending = Pending::Read {
            reply,
            offset_bytes: offset,
            length_bytes: u64::from(size),
        };
        self.0.arrive(offset, u64::from(size), pending, &[]);
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
        let pending = Pending::Write {
            reply,
            written_bytes: data.len() as u32,
            failed: false,
        };
        self.0.arrive(offset, data.len() as u64, pending, data);
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
        match self.0.backing.discard(offset, length) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EOPNOTSUPP),
        }
    }
}
