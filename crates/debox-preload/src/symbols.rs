//! The kernel's symbols, as the first process of the directory has read them. Otherwise every
//! process that needs labels at once would read ten megabytes of text, which takes tens of
//! milliseconds; a build would pay that a thousand times.
//!
//! The file is mapped and searched when a label is needed. It may come from `headway trace`, from
//! an earlier process, or from this one. A file of another user, except root, is not used: that
//! user could truncate it.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;

use headway_debox::collect::SYMBOLS_FILE;
use headway_debox::{Symbols, adopt_kernel_symbols, kernel_symbols};
use rustix::fs::{Mode, OFlags, open, rename, unlink};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;

use crate::image::open_trusted;

/// Loads the kernel's symbols, from the directory if another process has stored them there.
pub fn load_kernel_symbols(directory: &[u8]) {
    let path = path(directory, SYMBOLS_FILE);
    match adopted(&path) {
        Some(symbols) => adopt_kernel_symbols(symbols),
        None => {
            if let Some(symbols) = kernel_symbols() {
                write(directory, &path, symbols.image());
            }
        }
    }
}

fn path(directory: &[u8], name: &str) -> Vec<u8> {
    let mut path = directory.to_vec();
    path.push(b'/');
    path.extend(name.as_bytes());
    path
}

/// The symbols in a file, if it exists, belongs to this boot, and comes from a trusted user.
fn adopted(path: &[u8]) -> Option<Symbols> {
    let (file, status) = open_trusted(path)?;
    Symbols::from_image(Cow::Borrowed(map(
        &file,
        usize::try_from(status.st_size).ok()?,
    )?))
}

/// Maps a file that is never unmapped: the symbols are needed as long as the process lives.
fn map(file: &OwnedFd, bytes: usize) -> Option<&'static [u8]> {
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let address = unsafe {
        rustix::mm::mmap(
            null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            file,
            0,
        )
    }
    .ok()?;
    // SAFETY: mapped with that length and never unmapped. The file is written before it gets its
    // name and never after.
    Some(unsafe { std::slice::from_raw_parts(address.cast(), bytes) })
}

/// Leaves a file for the processes to come, whole or not at all.
fn write(directory: &[u8], path: &[u8], image: &[u8]) {
    // Beyond the limit the kernel would send the program a signal.
    let limit = rustix::process::getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| image.len() as u64 > limit) {
        return;
    }
    let number = rustix::process::getpid().as_raw_pid();
    let fresh = self::path(directory, &format!("{SYMBOLS_FILE}.{number}"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let Ok(file) = open(fresh.as_slice(), flags, mode) else {
        return;
    };
    let mut rest = image;
    while !rest.is_empty() {
        match rustix::io::write(&file, rest) {
            Ok(written) if written > 0 => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    let named = rest.is_empty() && rename(fresh.as_slice(), path).is_ok();
    if !named {
        let _ = unlink(fresh.as_slice());
    }
}
