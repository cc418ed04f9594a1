//! Opens the files of a run directory, which may belong to another user.
//!
//! A FIFO in a file's place would hold up the reader for ever, and a device would fill its memory,
//! so whatever is no regular file is refused before it is opened, and a description is read up to a
//! bound.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// A description or the server's counters take some kilobytes.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Opens a regular file for reading.
pub(super) fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() {
        return File::open(path);
    }
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        "this is no regular file",
    ))
}

/// Reads a text of a run whole.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = open(path)?
        .take(TEXT_BYTES_MAX + 1)
        .read_to_end(&mut text)?;
    if read as u64 > TEXT_BYTES_MAX {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "this is longer than any description of a run",
        ));
    }
    Ok(text)
}
