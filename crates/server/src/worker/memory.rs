//! Locks a worker's memory, and has it ready before the loop needs it.
//!
//! Memory can block a process as a disk can. A page fault on evicted program text reads it from the
//! disk, and one on fresh heap may have to reclaim pages first, which the kernel throttles by
//! sleeping. So the worker locks its memory, and a thread touches each part of the heap before the
//! worker uses it. An idle worker has little; one that caches files takes memory in steps.
//!
//! The thread gets a block which malloc has never handed out, touches its pages and gives it back.
//! The loop frees it then, and only then malloc can use it. The loop waits for nothing: if the
//! thread is late, the loop takes fresh memory as any program does.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::Thread;

use headway_metrics::calls::{Call, Tracer};
use headway_os::mapping::lockable_bytes;
use headway_os::privileges::close_own_descriptors;
use rustix::mm::{MlockAllFlags, mlockall};

/// Memory for everything except the response cache and the chunks of larger files.
const BASE_BYTES: usize = headway_config::WORKER_BASE_BYTES as usize;

/// The heap is touched in blocks of this size, below the size from which malloc uses mmap.
const BLOCK_BYTES: usize = 1 << 20;

/// So much touched memory should be free, for what a few iterations allocate.
const AHEAD_BYTES: usize = 2 << 20;

/// A piece that malloc is asked for to find out how far the heap is used: as large as most responses
/// in the cache, so that small holes do not count as free memory.
const PROBE_BYTES: usize = 128 << 10;

/// A probe takes about a tenth of a microsecond, so not every event is worth one.
const EVENTS_PER_PROBE: usize = 16;

/// The least distance of pages.
const PAGE_BYTES: usize = 4096;

const STACK_BYTES: usize = 64 << 10;

/// The heap that the worker has and does not use yet.
#[derive(Default)]
pub(super) struct HeapReserve {
    /// What has not been touched, the highest address first.
    blocks: Vec<Vec<u8>>,
    /// Where the touched memory ends.
    end: usize,
    /// Blocks which the thread has now.
    requested: usize,
    thread: Option<ToucherThread>,
    /// Events since the last probe.
    events: usize,
}

/// The thread which touches blocks.
struct ToucherThread {
    thread: Thread,
    blocks: SyncSender<Vec<u8>>,
    touched: Receiver<Vec<u8>>,
}

/// Locks the memory of the process, and reserves that for `content_bytes` of file content and
/// everything else. The configuration check has made sure that this memory exists. The error is a
/// message for the operator; the worker can serve without the lock.
///
/// If the worker maps files (`maps_files`), only current memory is locked: locking future mappings
/// would pin the page cache of every file it sends, beyond `RLIMIT_MEMLOCK`.
pub(super) fn reserve_and_lock(
    content_bytes: u64,
    maps_files: bool,
) -> (HeapReserve, Result<(), String>) {
    let bytes = content_bytes as usize + BASE_BYTES;
    let (reserve, locked) = if may_lock_all() && maps_files {
        let mut reserve = HeapReserve::new(bytes);
        reserve.touch_all();
        (reserve, mlockall(MlockAllFlags::CURRENT))
    } else {
        // Lock what exists before the heap grows: the program's text and libraries.
        let mut locked = mlockall(MlockAllFlags::CURRENT);
        if may_lock_all() {
            let later = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
            locked = locked.and_then(|()| mlockall(later));
        }
        (HeapReserve::new(bytes), locked)
    };
    let message = |error| {
        format!(
            "mlockall: {error}; continuing, but under memory pressure page faults in the worker may \
             block on disk (grant CAP_IPC_LOCK or raise RLIMIT_MEMLOCK)"
        )
    };
    (reserve, locked.map_err(message))
}

/// Whether future memory may be locked as well. With a limit, `MCL_FUTURE` makes every allocation
/// beyond it fail (mlockall(2)), and the worker would abort.
fn may_lock_all() -> bool {
    lockable_bytes().is_none()
}

impl HeapReserve {
    /// Makes malloc own `bytes` of memory (malloc(3), mallopt(3)), and touches the first part.
    fn new(bytes: usize) -> HeapReserve {
        // Freeing a mapped block raises malloc's mmap threshold, so blocks and tables that grow later
        // are on the heap.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(BASE_BYTES)));
        let block = |_| std::hint::black_box(Vec::with_capacity(BLOCK_BYTES));
        let mut blocks: Vec<Vec<u8>> = (0..bytes.div_ceil(BLOCK_BYTES)).map(block).collect();
        // The last piece is never freed: malloc returns memory from the top of the heap only, and this
        // is the top.
        std::mem::forget(std::hint::black_box(Vec::<u8>::with_capacity(PROBE_BYTES)));
        // The heap grows upwards, and malloc uses the lower part of a free piece first.
        blocks.sort_by_key(|block| std::cmp::Reverse(block.as_ptr().addr()));
        let mut reserve = HeapReserve {
            blocks,
            ..HeapReserve::default()
        };
        while reserve.room() < AHEAD_BYTES
            && let Some(mut block) = reserve.blocks.pop()
        {
            touch(&mut block);
            reserve.release(block);
        }
        reserve
    }

    /// Starts the thread. It gets the capabilities of this one, so they have to be dropped before.
    /// Without a thread all memory is touched now.
    pub(super) fn start_thread(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        // Only the main thread has the heap to itself. In the simulation, the worker is not the main
        // thread and one thread runs at a time.
        if std::thread::current().name() == Some("main") {
            self.thread = ToucherThread::start(self.blocks.len());
        }
        if self.thread.is_none() {
            self.touch_all();
        }
    }

    fn touch_all(&mut self) {
        while let Some(mut block) = self.blocks.pop() {
            touch(&mut block);
            self.release(block);
        }
    }

    /// Takes what the thread has touched, and gives it more if that is needed. Runs once per
    /// iteration, which has handled this number of events.
    pub(super) fn maintain(&mut self, tracer: &Tracer, events: usize) {
        while let Some(Ok(block)) = self.thread.as_ref().map(|thread| thread.touched.try_recv()) {
            self.requested -= 1;
            self.release(block);
        }
        if self.blocks.is_empty() && self.requested == 0 {
            // The thread ends as well.
            self.thread = None;
        }
        self.events += events;
        if self.blocks.is_empty() || self.events < EVENTS_PER_PROBE {
            return;
        }
        self.events = 0;
        let room = self.room();
        if room < AHEAD_BYTES {
            self.request(AHEAD_BYTES - room, tracer);
        }
    }

    /// Gives the thread blocks of at least this size together.
    fn request(&mut self, bytes: usize, tracer: &Tracer) {
        let Some(thread) = &self.thread else { return };
        // Those with the lowest addresses: their neighbours are in use.
        let kept = self
            .blocks
            .len()
            .saturating_sub(bytes.div_ceil(BLOCK_BYTES));
        for block in self.blocks.drain(kept..).rev() {
            // Has room for all blocks, and fails only if the thread has ended by a panic.
            if thread.blocks.try_send(block).is_ok() {
                self.requested += 1;
            }
        }
        // Waking a thread never sleeps.
        tracer.call(Call::MemoryWake, || thread.thread.unpark());
    }

    /// The touched memory that is free, or that the thread touches now.
    fn room(&self) -> usize {
        let probe = std::hint::black_box(Vec::<u8>::with_capacity(PROBE_BYTES));
        let free = self.end.saturating_sub(probe.as_ptr().addr());
        free + self.requested * BLOCK_BYTES
    }

    /// Gives a touched block to malloc.
    fn release(&mut self, block: Vec<u8>) {
        self.end = self.end.max(block.as_ptr().addr() + block.capacity());
    }
}

impl ToucherThread {
    /// `None` if the system allows no thread.
    fn start(blocks_max: usize) -> Option<ToucherThread> {
        // No message ever waits for room.
        let (blocks, wanted) = sync_channel::<Vec<u8>>(blocks_max);
        let (done, touched) = sync_channel::<Vec<u8>>(blocks_max);
        let touch_blocks = move || {
            // While two threads share descriptors, each call on one costs more. If this is refused, it
            // costs more.
            let _ = close_own_descriptors();
            loop {
                match wanted.try_recv() {
                    Ok(mut block) => {
                        touch(&mut block);
                        if done.send(block).is_err() {
                            return;
                        }
                    }
                    Err(TryRecvError::Empty) => std::thread::park(),
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("headway-memory".into())
            .stack_size(STACK_BYTES)
            .spawn(touch_blocks)
            .ok()?;
        Some(ToucherThread {
            thread: thread.thread().clone(),
            blocks,
            touched,
        })
    }
}

impl Drop for ToucherThread {
    fn drop(&mut self) {
        // So that it finds the channel closed, drop the sender before it wakes up.
        let (closed, _) = sync_channel(0);
        drop(std::mem::replace(&mut self.blocks, closed));
        self.thread.unpark();
    }
}

/// Writes to each page of a block.
fn touch(block: &mut Vec<u8>) {
    let pages = block.spare_capacity_mut().chunks_mut(PAGE_BYTES);
    pages.for_each(|page| _ = page[0].write(1));
    std::hint::black_box(block);
}
