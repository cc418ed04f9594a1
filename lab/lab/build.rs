//! Puts the studies of `studies/` into the library: their names and texts, as a table.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder =
        Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("../../studies");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<_> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    let mut table =
        "/// Name and text of each file of `studies/`.\nstatic STUDIES: &[(&str, &str)] = &[\n"
            .to_owned();
    for file in files {
        println!("cargo::rerun-if-changed={}", file.display());
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let path = fs::canonicalize(&file)?;
        let _ = writeln!(table, "    ({name:?}, include_str!({path:?})),");
    }
    table += "];\n";
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&out).join("studies.rs"), table)
}
