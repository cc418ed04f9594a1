//! Whether a program can be traced by a preloaded library, from its file.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ReadCache, elf};

/// Why a program cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untraceable {
    /// The file grants privileges, so the loader ignores preloaded libraries (ld.so(8),
    /// secure-execution mode).
    Privileged(PathBuf),
    /// The program makes its system calls without libc.
    Go(PathBuf),
    /// The program has no loader.
    Static(PathBuf),
    /// The library is for another architecture.
    Architecture(PathBuf),
}

impl fmt::Display for Untraceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, why) = match self {
            Untraceable::Privileged(path) => (
                path,
                "gets rights from its file (set-user-ID, set-group-ID or capabilities), so the loader ignores preloaded libraries",
            ),
            Untraceable::Go(path) => (
                path,
                "is a Go program, which makes system calls without libc",
            ),
            Untraceable::Static(path) => {
                (path, "is statically linked, so no library can be preloaded")
            }
            Untraceable::Architecture(path) => {
                (path, "is for another architecture than the preload library")
            }
        };
        write!(
            f,
            "{} {why}; it is not traced in band. Trace it from outside: --attach, or -p PID once it runs",
            path.display()
        )
    }
}

/// Finds a command as execvp(3) does and returns why it cannot be traced; `None` if it can, and if
/// that is unknown.
pub fn why_untraceable(command: &OsStr) -> Option<Untraceable> {
    let mut path = found(command)?;
    // A script's interpreter may be a script: the kernel follows four times.
    for _ in 0..5 {
        match interpreter(&path) {
            Some(interpreter) => path = interpreter,
            None => return check_file(&path),
        }
    }
    None
}

fn found(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command));
    }
    let path = std::env::var_os("PATH")?;
    let executable = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0)
    };
    std::env::split_paths(&path)
        .map(|folder| folder.join(command))
        .find(executable)
}

fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path)
        .ok()?
        .take(256)
        .read_to_end(&mut start)
        .ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let name = line
        .trim_ascii()
        .split(|byte| byte.is_ascii_whitespace())
        .next()?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn check_file(path: &Path) -> Option<Untraceable> {
    if gains_rights(path) {
        return Some(Untraceable::Privileged(path.to_owned()));
    }
    let cache = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&cache).ok()?;
    if file.architecture() != object::Architecture::X86_64 && cfg!(target_arch = "x86_64")
        || file.architecture() != object::Architecture::Aarch64 && cfg!(target_arch = "aarch64")
    {
        return Some(Untraceable::Architecture(path.to_owned()));
    }
    if file.section_by_name(".go.buildinfo").is_some() {
        return Some(Untraceable::Go(path.to_owned()));
    }
    let loaded = match &file {
        object::File::Elf64(file) => {
            let endian = file.endian();
            let headers = file.elf_header().program_headers(endian, &cache).ok()?;
            headers
                .iter()
                .any(|header| header.p_type(endian) == elf::PT_INTERP)
        }
        _ => return None,
    };
    (!loaded).then(|| Untraceable::Static(path.to_owned()))
}

/// Whether execve(2) would change identity or capabilities. It does not for a user that has them
/// already.
fn gains_rights(path: &Path) -> bool {
    let Ok(data) = path.metadata() else {
        return false;
    };
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let mut value = [0_u8; 64];
    let capabilities = rustix::fs::getxattr(path, "security.capability", &mut value).is_ok();
    data.mode() & 0o4000 != 0 && data.uid() != user
        || data.mode() & 0o2000 != 0 && data.gid() != group
        || capabilities && user != 0
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{Untraceable, why_untraceable};

    #[test]
    fn shell_is_traceable_when_it_is_found_in_the_path() {
        assert_eq!(why_untraceable(OsStr::new("sh")), None);
        assert_eq!(why_untraceable(OsStr::new("/bin/sh")), None);
        assert_eq!(why_untraceable(OsStr::new("no-such-command-here")), None);
    }

    #[test]
    fn untraceable_reason_names_the_file_and_the_remedy() {
        let text = Untraceable::Static("/bin/busybox".into()).to_string();
        assert!(text.contains("/bin/busybox is statically linked"), "{text}");
        assert!(text.contains("--attach"), "{text}");
    }
}
