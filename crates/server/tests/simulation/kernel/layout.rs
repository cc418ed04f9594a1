//! Structures of the caller's memory that the kernel of the simulation reads and changes.

use crate::trap::{Arguments, raw};

/// What openat2(2) is asked.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpenHow {
    pub flags: u64,
    pub mode: u64,
    pub resolve: u64,
}

/// What cachestat(2) is asked.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CachestatRange {
    pub offset: u64,
    pub length: u64,
}

/// Reads a structure that a call points to.
pub fn read<T: Copy>(pointer: u64) -> T {
    // SAFETY: the caller of the system call has put one there.
    unsafe { (pointer as *const T).read_unaligned() }
}

/// Writes a structure where a call wants it.
pub fn write<T>(pointer: u64, value: T) {
    // SAFETY: the caller of the system call has room for one there.
    unsafe { (pointer as *mut T).write_unaligned(value) }
}

/// Fills a buffer of the caller.
pub fn fill(pointer: u64, bytes: &[u8]) {
    // SAFETY: the caller of the system call has room for that number there.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer as *mut u8, bytes.len()) }
}

/// Makes the call of a simulated process, perhaps with other arguments.
pub fn make(number: i64, arguments: Arguments) -> i64 {
    // SAFETY: the call that the program has made; only lengths and timeouts are reduced.
    unsafe { raw(number, arguments) }
}

/// The buffers of a message, of which together no more than `bytes` remain.
pub fn shortened(buffers: u64, count: u64, bytes: u64) -> Vec<libc::iovec> {
    let mut left = bytes as usize;
    let mut short = Vec::new();
    for index in 0..count {
        let mut buffer: libc::iovec = read(buffers + index * size_of::<libc::iovec>() as u64);
        buffer.iov_len = buffer.iov_len.min(left);
        left -= buffer.iov_len;
        if buffer.iov_len > 0 {
            short.push(buffer);
        }
    }
    short
}

/// How many bytes the buffers of a message have.
pub fn total_bytes(buffers: u64, count: u64) -> u64 {
    (0..count)
        .map(|index| {
            read::<libc::iovec>(buffers + index * size_of::<libc::iovec>() as u64).iov_len as u64
        })
        .sum()
}
