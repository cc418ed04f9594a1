//! Which build of headway measures, so that figures of two builds do not get into one table
//! unnoticed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;

use headway_load::checksum::Checksum;

/// Version and checksum of the program: `0.1.0+9c0f3b6e21d4a875`. The version alone where the
/// program cannot be read.
pub(super) fn id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let version = env!("CARGO_PKG_VERSION");
        match checksum_of(&crate::headway()) {
            Ok(checksum) => format!("{version}+{checksum:016x}"),
            Err(_) => version.to_owned(),
        }
    })
}

fn checksum_of(program: &Path) -> io::Result<u64> {
    let mut file = File::open(program)?;
    let mut piece = vec![0; 1 << 20];
    let mut checksum = Checksum::new();
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(checksum.value()),
            length => checksum.update(&piece[..length]),
        }
    }
}
