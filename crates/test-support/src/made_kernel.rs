//! A debug file that passes for the running kernel's, which would be gigabytes and belong to one
//! kernel: a small C program with DWARF, whose few functions lie where those of the kernel do,
//! though the file begins elsewhere.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the file begins; the running kernel is elsewhere, by an offset that has to be found.
const BASE: u64 = 0x0100_0000;

/// The function a timer's sleep is in, as long as it has to be: one line of a made source. Before
/// it those by which a debug file is seen to be the running kernel's.
const SOURCE: &str = r#"
#define IN(place) __attribute__((section(place)))
IN(".text") void first(void) {}
IN(".one") void vfs_read(void) {}
IN(".two") void schedule(void) {}
IN(".three") void do_exit(void) {}
IN(".sleep") void do_nanosleep(void) {
    __asm__ volatile(".rept 4096\n nop\n .endr");
}
"#;

/// Where a timer sleeps, as the file has it: the line of `SOURCE` that fills `do_nanosleep`.
pub const SLEEP_LINE: &str = "kernel/time/made.c:8";

/// Sections and functions in them that have to be where the kernel has them.
const PLACES: [(&str, &str); 4] = [
    ("one", "vfs_read"),
    ("two", "schedule"),
    ("three", "do_exit"),
    ("sleep", "do_nanosleep"),
];

/// Compiles exactly this source, to the given addresses.
const OPTIONS: &[&str] = &[
    "-g",
    "-O0",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables",
    "-Wl,-e,0",
    "-Wl,--build-id=none",
];

/// Makes `folder/vmlinux`, whose functions are `moved` bytes from where those of the running kernel
/// are. It needs the addresses of /proc/kallsyms and a C compiler.
pub fn vmlinux(folder: &Path, moved: u64) -> PathBuf {
    let source = folder.join("kernel/time/made.c");
    std::fs::create_dir_all(folder.join("kernel/time")).expect("a directory");
    std::fs::write(&source, SOURCE).expect("room");
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("it is there");
    let start = address(&symbols, "_stext");
    let section_option = |(section, name): (&str, &str)| {
        let address = BASE + (address(&symbols, name) - start) + moved;
        format!("-Wl,--section-start=.{section}={address:#x}")
    };
    let file = folder.join("vmlinux");
    let output = Command::new("cc")
        .args(OPTIONS)
        .arg(format!("-Wl,-Ttext={BASE:#x}"))
        .args(PLACES.map(section_option))
        .arg("-o")
        .args([&file, &source])
        .output();
    let output = output.expect("cc runs; scripts/setup installs it");
    assert!(output.status.success(), "{output:?}");
    file
}

/// Where the running kernel has a function.
fn address(symbols: &str, name: &str) -> u64 {
    let is_named = |line: &&str| line.split([' ', '\t']).nth(2) == Some(name);
    let line = symbols.lines().find(is_named);
    let digits = line.expect("every kernel has it").split(' ').next();
    u64::from_str_radix(digits.expect("an address"), 16).expect("hexadecimal")
}
