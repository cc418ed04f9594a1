//! Reading, writing, answers, memfds and unnamed files.

use crate::file::Meta;
use headway_os::fd_passing::{Wait, send_with_descriptors};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open, openat,
    unlinkat,
};
use rustix::io::{Errno, IoSlice, pread, pwrite, write};
use std::io;
use std::time::Duration;

/// How long a helper waits when the kernel has no memory for its answer.
const SEND_PAUSE: Duration = Duration::from_millis(10);

/// Sends an answer. The job is done, so it is not lost when the kernel has no memory for a message.
pub(super) fn send(
    socket: &OwnedFd,
    parts: &[IoSlice<'_>],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    loop {
        match send_with_descriptors(socket, parts, files, Wait::Block) {
            Err(Errno::NOMEM | Errno::NOBUFS) => std::thread::sleep(SEND_PAUSE),
            sent => return sent.map(drop).map_err(Into::into),
        }
    }
}

pub(super) fn read_at(
    file: &OwnedFd,
    buffer: &mut [u8],
    at: u64,
    end: u64,
) -> Result<usize, Errno> {
    let wanted = usize::try_from(end - at)
        .unwrap_or(usize::MAX)
        .min(buffer.len());
    loop {
        match pread(file, &mut buffer[..wanted], at) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

pub(super) fn memory(bytes: &[u8]) -> Result<(OwnedFd, Meta), Errno> {
    let made = memfd()?;
    write_all(&made, bytes)?;
    seal(made)
}

/// Whether the system lets a process make and seal memory for the content store.
///
/// # Errors
/// As memfd_create(2); `ENOSYS` or `EPERM` from a filter of system calls.
///
/// # Example
/// ```
/// assert!(headway_files::probe_memfd().is_ok());
/// ```
pub fn probe_memfd() -> io::Result<()> {
    Ok(memory(&[]).map(drop)?)
}

pub(super) fn memfd() -> Result<OwnedFd, Errno> {
    memfd_create(c"headway", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Seals a memfd: its contents cannot change any more, so the worker may send them without checks.
pub(super) fn seal(made: OwnedFd) -> Result<(OwnedFd, Meta), Errno> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&made, all)?;
    let meta = headway_os::open::status(&made)?.into();
    Ok((made, meta))
}

pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(file, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // A memfd is on no disk: memory is short.
            Err(Errno::NOSPC) => return Err(Errno::NOMEM),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub(crate) fn write_all_at(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, at) {
            // A file that accepts nothing and reports no error would loop forever.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                bytes = &bytes[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Creates a file without a name, which disappears with its last descriptor. Some file systems do
/// not support that (open(2), `O_TMPFILE`); there it has a name for a moment.
pub(super) fn nameless(directory: &[u8]) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match open(directory, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        other => return other,
    }
    let directory = open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let name = format!(".headway-{}", std::process::id());
    // The name may be left over from an earlier process with the same process id.
    let _ = unlinkat(&directory, name.as_str(), AtFlags::empty());
    let file = openat(
        &directory,
        name.as_str(),
        flags | OFlags::CREATE | OFlags::EXCL,
        mode,
    )?;
    unlinkat(&directory, name.as_str(), AtFlags::empty())?;
    Ok(file)
}
