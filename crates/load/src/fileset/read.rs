//! Reads files as requests for them would: afterwards the page cache holds what a server's would.
//!
//! Reads whole files, one after another, in the order of a seed's stream. In a control group with a
//! memory limit this leaves the page cache as that many requests would, so every server measured in
//! the group starts from the same state, however fast it is.
//!
//! What it refuses: to compare what it reads; [`super::verify()`] does.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::create::Progress;
use super::manifest::Manifest;
use super::popularity::{FilePopularity, Requests};

const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 64 << 10;

/// A file of the set that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {}: {cause}; `headway fileset verify` says what else is missing", path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Why the call failed.
    #[source]
    pub cause: io::Error,
}

/// Reads as many files as there are requests, in the order of the seed, and returns their bytes.
/// Calls `progress` about ten times per second; its bytes are estimated from the mean length.
///
/// # Errors
/// The first file that cannot be opened or read.
pub fn read(
    manifest: &Manifest,
    requests: u64,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64, ReadError> {
    let mut stream = Requests::new(&FilePopularity::new(manifest), seed);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes_done = 0;
    let mut shown = Instant::now();
    for request in 0..requests {
        let path = manifest.disk_path(stream.next());
        bytes_done += whole(&path, &mut buffer).map_err(|cause| ReadError { path, cause })?;
        if shown.elapsed() >= PROGRESS_INTERVAL {
            shown = Instant::now();
            let share = requests as f64 / (request + 1) as f64;
            progress(Progress {
                bytes_done,
                bytes_total: (bytes_done as f64 * share) as u64,
                ..Progress::default()
            });
        }
    }
    Ok(bytes_done)
}

fn whole(path: &PathBuf, buffer: &mut [u8]) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut bytes = 0;
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
