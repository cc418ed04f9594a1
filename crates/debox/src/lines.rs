//! Source lines of kernel addresses, from the kernel's debug file: the paper's `blockingFile` and
//! `blockingLine`.
//!
//! Distributions keep the debug file (a `vmlinux` with DWARF, about a gigabyte) in a separate
//! package. Reading it takes seconds and memory, so it belongs into a command that shows results;
//! the feature `lines` keeps it out of everything else. It knows the functions of the kernel
//! itself, not those of modules.
//!
//! Sources: Documentation/admin-guide/bug-hunting.rst of the kernel; the paths are those of Debian,
//! Fedora and a kernel built by hand.

use std::io;
use std::path::{Path, PathBuf};

use addr2line::Loader;

use crate::Symbols;

/// A line of the kernel's sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The file, relative to the top of the source tree where that is known.
    pub file: String,
    /// Counted from 1; 0 where the compiler made up the instruction.
    pub line: u32,
}

/// The debug file of the running kernel.
///
/// ```
/// use headway_debox::{KernelLines, Symbols};
///
/// let symbols = Symbols::load()?;
/// match KernelLines::find(&symbols) {
///     Ok(lines) => {
///         let schedule = symbols.address("schedule").expect("every kernel schedules");
///         let line = lines.line(schedule).expect("the file has the line of each function");
///         println!("schedule is at {}:{}", line.file, line.line);
///     }
///     // The debug file is not installed, or the kernel hides its addresses.
///     Err(error) => println!("no source lines: {error}"),
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct KernelLines {
    loader: Loader,
    /// The difference between the addresses of the running kernel and those of the file.
    slide: u64,
}

/// Functions every kernel has, to see that file and kernel belong together.
const LANDMARKS: &[&str] = &["vfs_read", "schedule", "do_exit"];

impl KernelLines {
    /// Searches the paths where distributions put the file; `HEADWAY_VMLINUX` names another one.
    ///
    /// # Errors
    ///
    /// `NotFound`: the file does not exist; the text lists the paths. Others as
    /// [`KernelLines::open`].
    pub fn find(symbols: &Symbols) -> io::Result<KernelLines> {
        let candidates = debug_files();
        match candidates.iter().find(|path| path.exists()) {
            Some(path) => KernelLines::open(path, symbols),
            None => {
                let text = format!(
                    "no debug file of this kernel (the package linux-image-…-dbg or kernel-debuginfo) \
                     in any of {candidates:?}"
                );
                Err(io::Error::new(io::ErrorKind::NotFound, text))
            }
        }
    }

    /// Reads a debug file. Slow: seconds for a whole kernel.
    ///
    /// # Errors
    ///
    /// `InvalidData`: it is none, or belongs to another kernel, or the running kernel hides its
    /// addresses.
    pub fn open(path: &Path, symbols: &Symbols) -> io::Result<KernelLines> {
        let invalid = |why: String| {
            let text = format!("{}: {why}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let loader = Loader::new(path).map_err(|error| invalid(error.to_string()))?;
        let text = loader
            .get_section_range(b".text")
            .ok_or_else(|| invalid("it has no text".to_owned()))?;
        let start = symbols
            .text_start()
            .ok_or_else(|| invalid("kernel.kptr_restrict hides where the kernel is".to_owned()))?;
        let lines = KernelLines {
            loader,
            slide: start.wrapping_sub(text.begin),
        };
        if !lines.fits(symbols) {
            return Err(invalid("it belongs to another kernel".to_owned()));
        }
        Ok(lines)
    }

    /// The line of an address. The address must be inside the call instruction, not the return
    /// address after it.
    pub fn line(&self, address: u64) -> Option<Line> {
        let location = self.loader.find_location(address.wrapping_sub(self.slide));
        let location = location.ok()??;
        Some(Line {
            file: below_source_tree(location.file?).to_owned(),
            line: location.line.unwrap_or(0),
        })
    }

    /// Whether the landmark functions of the running kernel are where the file says.
    fn fits(&self, symbols: &Symbols) -> bool {
        let mut found = LANDMARKS
            .iter()
            .filter_map(|name| Some((*name, symbols.address(name)?)))
            .peekable();
        found.peek().is_some()
            && found.all(|(name, address)| {
                self.loader.find_symbol(address.wrapping_sub(self.slide)) == Some(name)
            })
    }
}

impl std::fmt::Debug for KernelLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelLines")
            .field("slide", &self.slide)
            .finish_non_exhaustive()
    }
}

fn debug_files() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("HEADWAY_VMLINUX") {
        return vec![PathBuf::from(path)];
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    vec![
        format!("/usr/lib/debug/boot/vmlinux-{release}").into(),
        format!("/usr/lib/debug/lib/modules/{release}/vmlinux").into(),
        format!("/lib/modules/{release}/build/vmlinux").into(),
        format!("/boot/vmlinux-{release}").into(),
    ]
}

/// Compilers name the files by where they were built.
fn below_source_tree(file: &str) -> &str {
    const TOPS: &[&str] = &[
        "/fs/",
        "/mm/",
        "/net/",
        "/kernel/",
        "/drivers/",
        "/block/",
        "/ipc/",
        "/lib/",
        "/io_uring/",
        "/arch/",
        "/include/",
        "/security/",
        "/crypto/",
        "/init/",
        "/sound/",
        "/virt/",
    ];
    let top = TOPS.iter().filter_map(|top| file.find(top)).min();
    top.map_or(file, |at| &file[at + 1..])
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{KernelLines, below_source_tree};
    use crate::Symbols;
    use headway_test_support::skip;

    const SOURCE: &str = "int schedule(int a)\n{\n    return a * 3;\n}\n\nint vfs_read(int a)\n{\n    return schedule(a) + 1;\n}\n";

    /// Compiles a small program that replaces a kernel; false if there is no compiler.
    fn compile(folder: &Path) -> bool {
        std::fs::create_dir_all(folder.join("fs")).expect("a temporary folder");
        std::fs::write(folder.join("fs/read.c"), SOURCE).expect("room");
        let options = [
            "-g",
            "-O0",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-fcf-protection=none",
        ];
        let status = Command::new("cc")
            .args(options)
            .args(["-Wl,-e,vfs_read", "-Wl,--build-id=none", "-o"])
            .arg(folder.join("vmlinux"))
            .arg(folder.join("fs/read.c"))
            .status();
        status.is_ok_and(|status| status.success())
    }

    /// Where the compiler put a function.
    fn address(folder: &Path, name: &str) -> u64 {
        let output = Command::new("nm").arg(folder.join("vmlinux")).output();
        let text = String::from_utf8(output.expect("binutils").stdout).expect("names");
        let line = text
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        let digits = line
            .expect("compiled in")
            .split(' ')
            .next()
            .expect("an address");
        u64::from_str_radix(digits, 16).expect("hexadecimal")
    }

    #[test]
    fn line_is_found_when_the_kernel_runs_at_another_address_than_in_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if !compile(folder.path()) {
            let test = "line_is_found_when_the_kernel_runs_at_another_address_than_in_the_file";
            return skip(test, "no C compiler");
        }
        let address_of = |name| address(folder.path(), name);
        let (schedule, vfs_read) = (address_of("schedule"), address_of("vfs_read"));
        let slide = 0xffff_ffff_2000_0000;
        let running = |at: u64| at.wrapping_add(slide);
        let kallsyms = |vfs_read: u64| {
            let text = format!(
                "{:016x} T _stext\n{:016x} T schedule\n{vfs_read:016x} T vfs_read\n",
                running(schedule),
                running(schedule),
            );
            Symbols::parse(&text)
        };
        let vmlinux = folder.path().join("vmlinux");
        let lines = KernelLines::open(&vmlinux, &kallsyms(running(vfs_read))).expect("it fits");
        let line = lines.line(running(vfs_read) + 12).expect("a line of it");
        assert_eq!((line.file.as_str(), line.line), ("fs/read.c", 8));
        assert_eq!(lines.line(0), None);

        let error = KernelLines::open(&vmlinux, &kallsyms(running(vfs_read) + 64));
        let text = error.expect_err("another kernel").to_string();
        assert!(text.contains("another kernel"), "{text}");
    }

    #[test]
    fn file_is_named_from_the_top_of_the_sources_when_the_compiler_names_all_of_it() {
        let file = "/build/linux-6.1.90/debian/build/../../fs/ext4/namei.c";
        assert_eq!(below_source_tree(file), "fs/ext4/namei.c");
        assert_eq!(below_source_tree("./odd.c"), "./odd.c");
    }
}
