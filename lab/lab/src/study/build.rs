//! Which build of headway and headway-lab measures, so that figures of two builds do not get into
//! one table unnoticed.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::OnceLock;

use headway_load::checksum::Checksum;

/// Version and checksum of the programs: `0.1.0+9c0f3b6e21d4a875`. The version alone where a
/// program cannot be read.
pub(super) fn id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let version = env!("CARGO_PKG_VERSION");
        match checksum_of(&[crate::headway(), crate::headway_lab()]) {
            Ok(checksum) => format!("{version}+{checksum:016x}"),
            Err(_) => version.to_owned(),
        }
    })
}

/// Of all of these files, one after the other.
fn checksum_of(programs: &[PathBuf]) -> io::Result<u64> {
    let mut piece = vec![0; 1 << 20];
    let mut checksum = Checksum::new();
    for program in programs {
        let mut file = File::open(program)?;
        loop {
            match file.read(&mut piece)? {
                0 => break,
                length => checksum.update(&piece[..length]),
            }
        }
    }
    Ok(checksum.value())
}
