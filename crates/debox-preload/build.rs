//! Links the unwinder into `libdebox_preload.so` instead of loading libgcc_s.so with it.
//!
//! Every traced process would pay for the loading, 0.1 ms, which a build of a thousand processes
//! feels. The standard library asks the linker for `-lgcc_s`; a text of that name, found first,
//! sends it to the archive that comes with every gcc. Its symbols are hidden, so a program's own
//! unwinder is not replaced. Without the archive libgcc_s.so is loaded as before; so it is where
//! panics unwind, as in tests: frames then have code for being unwound, which has to come from the
//! unwinder that is at work, and that is the program's when a thread is cancelled.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let Some(folder) = std::env::var_os("OUT_DIR").map(PathBuf::from) else {
        return;
    };
    // Only in the release profile panics abort; the compiler's own setting is not visible to build
    // scripts.
    if std::env::var_os("PROFILE").is_none_or(|profile| profile != "release") {
        return;
    }
    if !gcc_has("libgcc_eh.a") {
        println!(
            "cargo:warning=no libgcc_eh.a here: libdebox_preload.so will load libgcc_s.so, 0.1 ms a process"
        );
        return;
    }
    let script = folder.join("libgcc_s.so");
    if std::fs::write(&script, "INPUT(-lgcc_eh -lgcc)\n").is_ok() {
        println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
    }
}

/// Whether the compiler that links finds a library. One that it does not know it prints as it was
/// asked for.
fn gcc_has(name: &str) -> bool {
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let answer = Command::new(linker)
        .arg(format!("-print-file-name={name}"))
        .output();
    answer
        .is_ok_and(|answer| Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_absolute())
}
