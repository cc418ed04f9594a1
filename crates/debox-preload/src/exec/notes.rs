//! Notes in the file of the process about programs that will not be traced.

use std::ffi::{CStr, c_int};
use std::io::Write;

use headway_debox_hook::thread::{in_vfork_child, untraced, with_tracer};

use super::text;
use crate::thread::Thread;
use crate::{image, process};

/// Makes sure that the process has its file: this may be the first call of a forked child.
fn ensure_file() {
    if !in_vfork_child() {
        with_tracer(|_: &Thread| ());
    }
}

/// Notes a program that will not be traced.
///
/// # Safety
///
/// `path` is a text or null.
pub unsafe fn note_program(path: usize) {
    ensure_file();
    if headway_debox::is_confined() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(path) = (unsafe { text(path) }) else {
        return;
    };
    let Some(writer) = process::current() else {
        return;
    };
    if let Some(kind) = untraced(|| image::untraceable(path)) {
        writer.add_note(kind, process::now_ns(), path.to_bytes());
    }
}

/// Like [`note_program`], for a path from a directory, or an open program if the path is empty.
///
/// # Safety
///
/// As for [`note_program`].
pub unsafe fn note_program_at(directory: c_int, path: usize) {
    // SAFETY: the caller's promise.
    let name = unsafe { text(path) };
    let Some(name) =
        name.filter(|name| directory != libc::AT_FDCWD && !name.to_bytes().starts_with(b"/"))
    else {
        // SAFETY: the caller's promise.
        return unsafe { note_program(path) };
    };
    let mut full = [0_u8; 1024];
    let mut rest = &mut full[..];
    let slash = if name.is_empty() { "" } else { "/" };
    let written = write!(rest, "/proc/self/fd/{directory}{slash}")
        .and_then(|()| rest.write_all(name.to_bytes_with_nul()));
    if written.is_ok() {
        // SAFETY: a text in this frame.
        unsafe { note_program(full.as_ptr() as usize) };
    }
}

/// Like [`note_program`], for a name that is searched in `PATH`.
///
/// # Safety
///
/// As for [`note_program`].
pub unsafe fn note_searched(file: usize) {
    if headway_debox::is_confined() {
        return ensure_file();
    }
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { text(file) }) else {
        return;
    };
    if name.to_bytes().contains(&b'/') {
        // SAFETY: the caller's promise.
        return unsafe { note_program(file) };
    }
    // SAFETY: the name is a text.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a text or null.
    let Some(path) = (unsafe { text(path as usize) }) else {
        return;
    };
    let mut candidate = [0_u8; 1024];
    for directory in path.to_bytes().split(|&byte| byte == b':') {
        let parts = [directory, b"/", name.to_bytes_with_nul()];
        let mut used = 0;
        for part in parts {
            let Some(room) = candidate.get_mut(used..used + part.len()) else {
                return;
            };
            room.copy_from_slice(part);
            used += part.len();
        }
        let Ok(full) = CStr::from_bytes_with_nul(&candidate[..used]) else {
            return;
        };
        if rustix::fs::access(full, rustix::fs::Access::EXEC_OK).is_ok() {
            // SAFETY: a text.
            return unsafe { note_program(full.as_ptr() as usize) };
        }
    }
}
