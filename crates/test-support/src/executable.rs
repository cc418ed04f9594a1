//! Programs that a test makes and then runs.
//!
//! Another process writes them: what is open for writing anywhere cannot be executed (`ETXTBSY`),
//! and whatever is open here is open too in the children of other tests' threads, until they
//! execute programs of their own.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The copy has the original's bytes, not its rights: everybody may execute it.
pub fn copy(original: &Path, target: &Path) {
    let mut install = Command::new("install");
    let copied = install.arg("-m755").args([original, target]).status();
    assert!(copied.expect("install runs").success());
}

/// Writes a program with these rights.
pub fn write(target: &Path, text: &str, mode: u32) {
    let mut install = Command::new("install");
    install.arg(format!("-m{mode:o}")).arg("/dev/stdin");
    let mut child = install
        .arg(target)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    assert!(child.wait().expect("it ends").success());
}
