//! io_uring that does the work itself: accepted connections and received bytes come as answers, and
//! one call a turn hands over what is to be sent and waits.
//!
//! A connection costs one request to receive for as long as it lives (multishot, Linux 6.0), into
//! buffers that stand in a ring shared with the kernel (5.19); a response costs one request to
//! send, which answers only if it fails (5.17).
//!
//! Sources: io_uring_prep_multishot_accept(3), io_uring_prep_recv_multishot(3),
//! io_uring_register_buf_ring(3), `io_uring/kbuf.c`.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use crate::ring;

/// What an answer is about; the descriptor stands in the lower half.
const ACCEPT: u64 = 1 << 32;
const RECEIVE: u64 = 2 << 32;
const SEND: u64 = 3 << 32;
const CLOSE: u64 = 4 << 32;

const GROUP: u16 = 1;
const BUFFERS: u16 = 4096;
const BUFFER_BYTES: usize = 64;
static RESPONSE: [u8; 1] = *b"x";

/// Serves until it fails. `listening` is called when clients may come.
pub fn serve(listener: &TcpListener, listening: impl FnOnce()) -> io::Result<Infallible> {
    let mut ring = ring::new()?;
    let mut buffers = Buffers::register(&ring)?;
    let accept = ring::accept(listener).user_data(ACCEPT);
    let mut wanted = vec![accept.clone()];
    listening();
    loop {
        ring::hand_over(&mut ring, &mut wanted)?;
        ring::wait(&mut ring)?;
        for answer in ring.completion() {
            let fd = answer.user_data() as u32 as RawFd;
            match answer.user_data() & !u64::from(u32::MAX) {
                ACCEPT => {
                    accepted(answer.result(), &mut wanted)?;
                    if !cqueue::more(answer.flags()) {
                        wanted.push(accept.clone());
                    }
                }
                RECEIVE => received(fd, &answer, &mut buffers, &mut wanted),
                // A client that is gone, which its receiving tells as well.
                _ => {}
            }
        }
        buffers.publish();
    }
}

fn accepted(result: i32, wanted: &mut Vec<squeue::Entry>) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    wanted.push(receive(result));
    Ok(())
}

fn receive(fd: RawFd) -> squeue::Entry {
    let entry = opcode::RecvMulti::new(Fd(fd), GROUP).build();
    entry.user_data(RECEIVE | fd as u64)
}

fn received(
    fd: RawFd,
    answer: &cqueue::Entry,
    buffers: &mut Buffers,
    wanted: &mut Vec<squeue::Entry>,
) {
    if let Some(buffer) = cqueue::buffer_select(answer.flags()) {
        buffers.give_back(buffer);
    }
    let out_of_buffers = answer.result() == -Errno::NOBUFS.raw_os_error();
    if answer.result() > 0 {
        let entry = opcode::Send::new(Fd(fd), RESPONSE.as_ptr(), RESPONSE.len() as u32)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS);
        wanted.push(entry.user_data(SEND | fd as u64));
    }
    if cqueue::more(answer.flags()) {
        return;
    }
    match answer.result() > 0 || out_of_buffers {
        true => wanted.push(receive(fd)),
        false => {
            let entry = opcode::Close::new(Fd(fd))
                .build()
                .flags(squeue::Flags::SKIP_SUCCESS);
            wanted.push(entry.user_data(CLOSE | fd as u64));
        }
    }
}

/// Buffers that the kernel may receive into, in a ring that it takes them from.
struct Buffers {
    /// As many entries as there are buffers. It is never freed: the process ends with its ring.
    entries: NonNull<BufRingEntry>,
    storage: NonNull<u8>,
    /// Buffers ever given; the kernel sees it when it is published.
    tail: u16,
}

impl Buffers {
    fn register(ring: &IoUring) -> io::Result<Buffers> {
        let mut buffers = Buffers {
            entries: zeroed(usize::from(BUFFERS) * size_of::<BufRingEntry>()).cast(),
            storage: zeroed(usize::from(BUFFERS) * BUFFER_BYTES),
            tail: 0,
        };
        let address = buffers.entries.as_ptr() as u64;
        // SAFETY: the entries are as many as said, on a page's boundary, and live as long as the
        // process.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)?;
        }
        for number in 0..BUFFERS {
            buffers.give_back(number);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// Returns a buffer that is no longer read.
    fn give_back(&mut self, number: u16) {
        let at = usize::from(self.tail % BUFFERS);
        // SAFETY: `at` is below the number of entries that were allocated.
        let place = unsafe { self.entries.add(at) };
        // SAFETY: the kernel does not read an entry before the tail that includes it is published,
        // and no other code has it.
        let entry = unsafe { &mut *place.as_ptr() };
        // SAFETY: `number` is below the number of buffers that were allocated.
        let buffer = unsafe { self.storage.add(usize::from(number) * BUFFER_BYTES) };
        entry.set_addr(buffer.as_ptr() as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        // SAFETY: the entries begin with the first one, which has been allocated and is
        // initialised.
        let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr()) };
        // SAFETY: the tail is aligned, lives as long as the entries, and is written by this thread
        // alone; the kernel only reads it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Memory on a page's boundary that is never given back.
fn zeroed(bytes: usize) -> NonNull<u8> {
    const PAGE: usize = 4096;
    let layout = Layout::from_size_align(bytes, PAGE).expect("a size far below the largest");
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}
