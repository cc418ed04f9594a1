//! Compiles the kernel's part by clang, if there is one.
//!
//! A machine without clang still builds everything: the object is then empty, and the file beside it says why,
//! for the user who asks for the feature.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "bpf/attach.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = folder.join("attach.bpf.o");
    let why = match compile(&object) {
        Ok(()) => String::new(),
        Err(why) => {
            println!("cargo::warning=attaching to processes is left out: {why}");
            std::fs::write(&object, []).expect("the output folder is writable");
            why
        }
    };
    std::fs::write(folder.join("why"), why).expect("the output folder is writable");
}

fn compile(object: &Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let machine = match target.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("it does not know the registers of {other}")),
    };
    // The third instruction set has the atomic operations that return a value (Linux 5.12).
    let output = Command::new(&clang)
        .args([
            "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
        ])
        .arg(format!("-D__TARGET_ARCH_{machine}"))
        .args(["-c", SOURCE, "-o"])
        .arg(object)
        .output()
        .map_err(|error| format!("{clang} could not be run ({error})"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().next().unwrap_or("no message");
    Err(format!("{clang} could not compile {SOURCE}: {first}"))
}
