//! Directories out of storage: those that have a mark, so that all of their files are there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::requests::{Call, PIECE_BYTES};
use crate::{Storage, StorageError};

/// Files by directory, with their keys and lengths.
type Directories = BTreeMap<String, Vec<(String, String, u64)>>;

impl Storage {
    /// Brings the directories at the location whose names begin so, and that have a file called `mark`, into a directory
    /// that exists. Returns them in the order of their names, and the names of those without a mark, which are not
    /// whole.
    ///
    /// # Errors
    /// A file cannot be read whole, or not written.
    pub fn download(
        &self,
        begin: &str,
        mark: &str,
        to: &Path,
    ) -> Result<(Vec<PathBuf>, Vec<String>), StorageError> {
        let (mut whole, mut partial) = (Vec::new(), Vec::new());
        for (name, files) in self.directories()? {
            if !name.starts_with(begin) {
                continue;
            }
            if !files.iter().any(|(file, ..)| file == mark) {
                partial.push(name);
                continue;
            }
            let directory = to.join(&name);
            fs::create_dir(&directory).map_err(|source| StorageError::File {
                path: directory.clone(),
                source,
            })?;
            for (file, key, bytes) in files {
                self.download_file(&key, bytes, &directory.join(file))?;
            }
            whole.push(directory);
        }
        Ok((whole, partial))
    }

    /// What is one level below the location. Names that would lead elsewhere are left out.
    fn directories(&self) -> Result<Directories, StorageError> {
        let prefix = self.location.key("");
        let mut directories = Directories::new();
        for (key, bytes) in self.requests.list_all(&prefix)? {
            let rest = key.strip_prefix(&*prefix).unwrap_or_default();
            let Some((directory, file)) = rest.split_once('/') else {
                continue;
            };
            let is_plain =
                |name: &str| !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
            if is_plain(directory) && is_plain(file) {
                let entry = (file.to_owned(), key.clone(), bytes);
                directories
                    .entry(directory.to_owned())
                    .or_default()
                    .push(entry);
            }
        }
        Ok(directories)
    }

    fn download_file(&self, key: &str, bytes: u64, path: &Path) -> Result<(), StorageError> {
        let failed = |source| StorageError::File {
            path: path.to_owned(),
            source,
        };
        let mut file = File::create_new(path).map_err(failed)?;
        let mut from = 0;
        while from < bytes {
            let end = bytes.min(from + PIECE_BYTES);
            let range = format!("bytes={from}-{}", end - 1);
            let call = Call {
                method: "GET",
                key,
                headers: &[("range", &*range)],
                ..Call::default()
            };
            let response = self.requests.send(call, &Bytes::new())?;
            let piece = response.body();
            if piece.len() as u64 != end - from {
                return Err(StorageError::Unexpected {
                    what: format!("{}: {key}", self.location),
                    why: format!("{} bytes came for {range}", piece.len()),
                });
            }
            file.write_all(piece).map_err(failed)?;
            from = end;
        }
        Ok(())
    }
}
