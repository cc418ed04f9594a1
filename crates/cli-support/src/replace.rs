//! Files that a command writes whole or not at all, and replaces only if it wrote them.

use anyhow::{Context, bail};
use headway_os::replace::create_new;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

/// An error if the file exists and does not contain the mark of a report near its beginning.
pub fn replaceable(path: &Path, mark: &str) -> anyhow::Result<()> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    if metadata.is_dir() {
        bail!("{}: is a directory; name a file with -o", path.display());
    }
    let mut start = Vec::new();
    let file =
        fs::File::open(path).with_context(|| format!("{}: is it a report?", path.display()))?;
    file.take(4096)
        .read_to_end(&mut start)
        .with_context(|| format!("{}: is it a report?", path.display()))?;
    if !start.is_empty() && !String::from_utf8_lossy(&start).contains(mark) {
        bail!(
            "{}: exists and is not a report; name another file, or remove it",
            path.display()
        );
    }
    Ok(())
}

/// Writes a temporary file first, so that no reader gets half a page.
pub fn write(path: &Path, page: &str) -> anyhow::Result<()> {
    let name = path
        .file_name()
        .with_context(|| format!("{}: names no file", path.display()))?;
    let mut partial = name.to_owned();
    partial.push(format!(".{}.part", std::process::id()));
    let partial = path.with_file_name(partial);
    let created = create_new(&partial);
    let done = created
        .and_then(|mut file| file.write_all(page.as_bytes()))
        .and_then(|()| fs::rename(&partial, path));
    done.inspect_err(|_| drop(fs::remove_file(&partial)))
        .with_context(|| format!("write {}", path.display()))
}
