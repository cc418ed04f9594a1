//! What the process is, from /proc, and what a program to be started is, from its file.

use std::os::fd::OwnedFd;

use headway_debox::collect::NoteKind;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};
use rustix::path::Arg;
use rustix::time::{ClockId, clock_gettime};

/// The process itself.
pub struct CurrentProcess {
    pub pid: u32,
    pub start_ticks: u64,
}

impl CurrentProcess {
    pub fn read() -> CurrentProcess {
        let mut text = [0; 1024];
        CurrentProcess {
            pid: rustix::process::getpid().as_raw_pid() as u32,
            start_ticks: start_ticks(read("/proc/self/stat", &mut text)).unwrap_or(0),
        }
    }
}

/// Field 22 of /proc/PID/stat. The second one is a name in parentheses that may hold anything.
fn start_ticks(text: &[u8]) -> Option<u64> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = text[after_name..]
        .split(|&byte| byte == b' ')
        .filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(19)?).ok()?.parse().ok()
}

/// The beginning of a file, as much as fits; nothing if it cannot be read.
pub fn read<'b>(path: &str, buffer: &'b mut [u8]) -> &'b [u8] {
    read_at(path, buffer)
}

/// As [`read`], for paths of any kind. What is there may be a FIFO without a writer, for which the
/// program must not wait.
pub fn read_at(path: impl Arg, buffer: &mut [u8]) -> &[u8] {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match open(path, flags, Mode::empty()) {
        Ok(file) => read_open(&file, buffer),
        Err(_) => &[],
    }
}

/// A file in the trace directory, where other users may write too: a regular file, not behind a
/// symbolic link, of this user or of root.
pub fn open_trusted(path: &[u8]) -> Option<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = open(path, flags, Mode::empty()).ok()?;
    let status = fstat(&file).ok()?;
    let own = rustix::process::geteuid().as_raw();
    let trusted = status.st_uid == 0 || status.st_uid == own;
    let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    (trusted && regular).then_some((file, status))
}

/// The beginning of an open file, as much as fits.
pub fn read_open<'b>(file: &OwnedFd, buffer: &'b mut [u8]) -> &'b [u8] {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    &buffer[..filled]
}

/// The target of a link in /proc; empty if it cannot be read.
pub fn link(path: &str) -> Vec<u8> {
    rustix::fs::readlink(path, Vec::new()).map_or(Vec::new(), |target| target.into_bytes())
}

/// The working directory; empty if it cannot be read.
pub fn directory() -> Vec<u8> {
    rustix::process::getcwd(Vec::new()).map_or(Vec::new(), |path| path.into_bytes())
}

/// `CLOCK_REALTIME` in nanoseconds.
pub fn unix_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Why a program will not be traced although the library is in its environment; `None` if it will
/// be.
///
/// # Sources
///
/// ld.so(8), "Secure-execution mode"; elf(5).
pub fn untraceable(path: impl Arg + Copy) -> Option<NoteKind> {
    let mut start = [0; 1024];
    let bytes = read_at(path, &mut start);
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let words = line.split(|byte| b" \t\n".contains(byte));
        let interpreter = words.into_iter().find(|word| !word.is_empty())?;
        let mut again = [0; 1024];
        return of_elf(interpreter, read_at(interpreter, &mut again));
    }
    of_elf(path, bytes)
}

fn of_elf(path: impl Arg + Copy, bytes: &[u8]) -> Option<NoteKind> {
    if gives_rights(path) {
        return Some(NoteKind::Privileged);
    }
    const X86_64: u64 = 62;
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    if bytes.get(4) != Some(&2) || number(bytes, 18, 2) != X86_64 {
        return Some(NoteKind::Architecture);
    }
    (!has_interpreter(bytes)).then_some(NoteKind::Static)
}

/// Whether the file grants the caller rights that it does not have. File systems mounted with
/// `nosuid`, which grant none, are not considered.
fn gives_rights(path: impl Arg + Copy) -> bool {
    let Ok(status) = rustix::fs::stat(path) else {
        return false;
    };
    let user = rustix::process::geteuid();
    let set_user = status.st_mode & 0o4000 != 0 && status.st_uid != user.as_raw();
    let set_group =
        status.st_mode & 0o2010 == 0o2010 && status.st_gid != rustix::process::getegid().as_raw();
    let mut value = [0_u8; 64];
    let capabilities =
        !user.is_root() && rustix::fs::getxattr(path, "security.capability", &mut value).is_ok();
    set_user || set_group || capabilities
}

/// Whether a program header of type `PT_INTERP` is in the first bytes, where linkers put them.
fn has_interpreter(bytes: &[u8]) -> bool {
    const PT_INTERP: u64 = 3;
    let (start, size, count) = (
        number(bytes, 32, 8),
        number(bytes, 54, 2),
        number(bytes, 56, 2),
    );
    (0..count).any(|index| {
        let at = start.saturating_add(index * size) as usize;
        number(bytes, at, 4) == PT_INTERP
    })
}

/// A little-endian number; zero beyond the end.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let field = at.checked_add(length).and_then(|end| bytes.get(at..end));
    field
        .unwrap_or(&[])
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}
