//! `--kernel-lines`: the debug file of the kernel is gigabytes and belongs to one kernel, so a made one stands for it: a
//! small C program with DWARF, whose few functions lie where those of the running kernel do.

use std::path::{Path, PathBuf};
use std::process::Command;

use debox::Symbols;

use crate::support::{Ran, missing, sees_stacks, trace, traced};

/// Where the made file begins; the running kernel is elsewhere, by an offset that has to be found.
const BASE: u64 = 0x0100_0000;

/// The function a timer's sleep is in, as long as it has to be: one line of a made source. Before it those by which a
/// debug file is seen to be the running kernel's.
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

/// The line of `SOURCE` that fills the function.
const LINE: u32 = 8;

/// A debug file for the running kernel, whose functions are `moved` bytes from where they should be.
fn vmlinux(folder: &Path, symbols: &Symbols, moved: u64) -> PathBuf {
    let sources = folder.join("kernel/time");
    std::fs::create_dir_all(&sources).expect("a directory");
    std::fs::write(sources.join("made.c"), SOURCE).expect("room");
    let start = symbols.text_start().expect("seen");
    let place = |section: &str, name: &str| {
        let address = symbols.address(name).expect("every kernel has it");
        let address = BASE + (address - start) + moved;
        format!("-Wl,--section-start=.{section}={address:#x}")
    };
    let file = folder.join("vmlinux");
    let output = Command::new("cc")
        .args([
            "-g",
            "-O0",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-fcf-protection=none",
        ])
        .args([
            "-fno-asynchronous-unwind-tables",
            "-Wl,-e,0",
            "-Wl,--build-id=none",
        ])
        .arg(format!("-Wl,-Ttext={BASE:#x}"))
        .args([place("one", "vfs_read"), place("two", "schedule")])
        .args([place("three", "do_exit"), place("sleep", "do_nanosleep")])
        .arg("-o")
        .arg(&file)
        .arg(sources.join("made.c"))
        .output();
    let output = output.expect("cc runs; scripts/setup installs it");
    assert!(output.status.success(), "{output:?}");
    file
}

/// The summary of a command that sleeps, with this debug file.
fn summary(vmlinux: &Path, options: &[&str]) -> Ran {
    let mut arguments = vec!["--kernel-lines", "--width", "200", "-o", "-"];
    arguments.extend(options);
    arguments.extend(["--", "sleep", "0.01"]);
    let mut command = trace(&arguments);
    command.env("HEADWAY_VMLINUX", vmlinux);
    Ran::of(&command.output().expect("headway runs"))
}

#[test]
fn sleep_has_its_line_when_the_kernels_debug_file_is_at_hand() {
    let test = "sleep_has_its_line_when_the_kernels_debug_file_is_at_hand";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let symbols = Symbols::load().expect("seen");
    let file = vmlinux(folder.path(), &symbols, 0);
    let words = format!("do_nanosleep (kernel/time/made.c:{LINE})");
    let ran = summary(&file, &[]);
    assert!(ran.out.contains(&words), "{}", ran.out);
    assert!(!ran.out.contains("no file and line"), "{}", ran.out);
    let ran = summary(&file, &["--json"]);
    let expected = format!("\"file\":\"kernel/time/made.c\",\"line\":{LINE}");
    assert!(ran.out.contains(&expected), "{}", ran.out);
}

#[test]
fn sleep_has_its_line_when_it_is_observed_from_outside() {
    let test = "sleep_has_its_line_when_it_is_observed_from_outside";
    if !sees_stacks(test) || !crate::attach::observes(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let symbols = Symbols::load().expect("seen");
    let ran = summary(&vmlinux(folder.path(), &symbols, 0), &["--attach"]);
    let words = format!("do_nanosleep (kernel/time/made.c:{LINE})");
    assert!(ran.out.contains(&words), "{}", ran.out);
}

#[test]
fn summary_says_why_there_are_no_lines_when_the_debug_file_is_anothers_or_absent() {
    let test = "summary_says_why_there_are_no_lines_when_the_debug_file_is_anothers_or_absent";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let symbols = Symbols::load().expect("seen");
    let others = vmlinux(folder.path(), &symbols, 4096);
    for (file, why) in [
        (others.as_path(), "it belongs to another kernel"),
        (Path::new("/there/is/none"), "no debug file of this kernel"),
    ] {
        let ran = summary(file, &["--json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.error);
        assert!(
            ran.out.contains("Kernel functions have no file and line"),
            "{}",
            ran.out
        );
        assert!(ran.out.contains(why), "{}", ran.out);
        assert!(!ran.out.contains("made.c"), "{}", ran.out);
    }
    // Who did not ask is not told.
    let (trace, _) = traced(&[], &["sleep", "0.01"]);
    assert!(!missing(&trace).contains("no file and line"));
}
