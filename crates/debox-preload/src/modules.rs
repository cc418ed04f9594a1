//! The mapped code of the process, from /proc/self/maps: what return addresses mean in files.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, open};

use headway_debox::collect::write::Writer;

/// The stack may be a signal handler's own of a few pages, so lines longer than this are left out.
const LINE_BYTES_MAX: usize = 1024;

/// Where this library's own code is: in pieces that touch, since the stubs' jumps have a page of
/// their own.
static OWN: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));

/// Whether an address is in this library; before the first scan all are.
pub fn is_own(address: u64) -> bool {
    (OWN.0.load(Ordering::Relaxed)..OWN.1.load(Ordering::Relaxed)).contains(&address)
}

/// Adds every piece of mapped code to the file that is not in it yet.
///
/// The scan reads in small steps into the stack and allocates nothing, since it may run in a signal
/// handler.
pub fn scan(writer: &Writer<'_>) {
    if headway_debox::is_confined() {
        return;
    }
    let Ok(maps) = open(
        "/proc/self/maps",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) else {
        return;
    };
    let mut buffer = [0_u8; 2 * LINE_BYTES_MAX];
    let mut filled = 0;
    let mut run = (0, 0);
    loop {
        let read = match rustix::io::read(&maps, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        };
        filled += read;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|&b| b == b'\n') {
            add(writer, &buffer[start..start + length], &mut run);
            start += length + 1;
        }
        if start == 0 && filled == buffer.len() {
            // The rest of the line will look like a line of its own that has the wrong form.
            start = filled;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
}

/// A line is `start-end rwxp offset device inode path` (proc(5)). `run` is the code without a gap
/// up to here.
fn add(writer: &Writer<'_>, line: &[u8], run: &mut (u64, u64)) {
    let mut fields = line
        .split(|&byte| byte == b' ')
        .filter(|field| !field.is_empty());
    let (Some(range), Some(rights), Some(offset)) = (fields.next(), fields.next(), fields.next())
    else {
        return;
    };
    if rights.get(2) != Some(&b'x') {
        return;
    }
    let mut ends = range.split(|&byte| byte == b'-').map(hexadecimal);
    let (Some(start), Some(end)) = (ends.next(), ends.next()) else {
        return;
    };
    *run = (if start == run.1 { run.0 } else { start }, end);
    let here = (is_own as fn(u64) -> bool) as usize as u64;
    if (run.0..run.1).contains(&here) {
        OWN.0.store(run.0, Ordering::Relaxed);
        OWN.1.store(run.1, Ordering::Relaxed);
    }
    if writer.knows(start) {
        return;
    }
    let path = match line.iter().position(|&byte| byte == b'/' || byte == b'[') {
        Some(at) => &line[at..],
        None => b"[anon]",
    };
    writer.module(start, end, hexadecimal(offset), path);
}

fn hexadecimal(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |sum, &digit| {
        sum << 4 | u64::from(char::from(digit).to_digit(16).unwrap_or(0))
    })
}
