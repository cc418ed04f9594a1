//! Compiles the kernel's part by clang, if there is one.
//!
//! A machine without clang still builds everything: the object is then empty, and the file beside
//! it says why, for the user who needs the feature.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Sources and objects.
const PARTS: [(&str, &str); 4] = [
    ("bpf/attach.bpf.c", "attach.bpf.o"),
    ("bpf/requests.bpf.c", "requests.bpf.o"),
    ("bpf/runnable.bpf.c", "runnable.bpf.o"),
    ("bpf/waiters.bpf.c", "waiters.bpf.o"),
];

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiled =
        (PARTS.iter()).try_for_each(|(source, object)| compile(source, &folder.join(object)));
    let why = match compiled {
        Ok(()) => String::new(),
        Err(why) => {
            println!("cargo::warning=attaching to processes is left out: {why}");
            for (_, object) in PARTS {
                std::fs::write(folder.join(object), []).expect("the output folder is writable");
            }
            why
        }
    };
    std::fs::write(folder.join("why"), why).expect("the output folder is writable");
}

fn compile(source: &str, object: &Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let machine = match target.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("it does not know the registers of {other}")),
    };
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    // The third instruction set has the atomic operations that return a value (Linux 5.12).
    let output = Command::new(&clang)
        .args([
            "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
        ])
        .arg(format!("-D__TARGET_ARCH_{machine}"))
        // Lines of the source are in the object. The directory of the build must not be.
        .arg(format!("-ffile-prefix-map={here}=crates/debox-bpf"))
        .args(["-c", source, "-o"])
        .arg(object)
        .output()
        .map_err(|error| format!("{clang} could not be run ({error})"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().next().unwrap_or("no message");
    Err(format!("{clang} could not compile {source}: {first}"))
}
