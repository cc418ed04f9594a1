//! A directory into storage.
//!
//! A file of more than [`PART_BYTES`] goes in parts. Which of them the storage has is noted in a file of the directory,
//! so that a later call continues. What the note says is compared with what the storage has, and the parts with the
//! file. A call that was answered and whose answer was lost is therefore no harm.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::requests::{Call, StoredPart, header, patiently};
use crate::sign::sha256;
use crate::{Storage, StorageError, xml};

/// The smallest part, and the largest file that goes in one request. S3 demands at least 5 MiB.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// S3 takes no more parts.
const PARTS_MAX: u64 = 10_000;
/// The file with what is known about uploads that are not complete. It is not uploaded.
const NOTE: &str = "upload.json";

/// An upload that was begun.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Note {
    /// The URL of the object.
    object: String,
    upload: String,
    bytes: u64,
    part_bytes: u64,
    parts: Vec<NotedPart>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NotedPart {
    number: u64,
    etag: String,
    /// Of the part's bytes.
    sha256: String,
}

/// What an upload has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// Files in all.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that the storage had from an earlier call.
    pub resumed_bytes: u64,
}

impl Storage {
    /// Sends the files of a directory to `name` below the location, and the one called `mark` last. If the storage
    /// has the same mark there, nothing is sent.
    ///
    /// # Errors
    /// The storage has another mark there. Or a file cannot be read or sent; a later call continues.
    pub fn upload(
        &self,
        directory: &Path,
        name: &str,
        mark: &str,
    ) -> Result<Uploaded, StorageError> {
        let marked = fs::read(directory.join(mark)).map_err(|source| StorageError::File {
            path: directory.join(mark),
            source,
        })?;
        let key = |file: &str| self.location.key(&format!("{name}/{file}"));
        let mut done = Uploaded::default();
        match self.object(&key(mark))? {
            Some(there) if there == marked => return Ok(done),
            Some(_) => {
                return Err(StorageError::Unexpected {
                    what: format!("{}/{name}", self.location),
                    why: format!("there is another {mark}; choose another place"),
                });
            }
            None => {}
        }
        let mut files = files(directory)?;
        files.retain(|file| file != mark && !file.starts_with(NOTE));
        files.push(mark.to_owned());
        for file in files {
            done.files += 1;
            let sent = self.upload_file(directory, &file, &key(&file))?;
            done.bytes += sent.bytes;
            done.resumed_bytes += sent.resumed_bytes;
        }
        Ok(done)
    }

    fn object(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        let call = Call {
            method: "GET",
            key,
            ..Call::default()
        };
        match self.requests.send(call, &Bytes::new()) {
            Ok(response) => Ok(Some(response.body().to_vec())),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn upload_file(
        &self,
        directory: &Path,
        name: &str,
        key: &str,
    ) -> Result<Uploaded, StorageError> {
        let path = directory.join(name);
        let failed = |source| StorageError::File {
            path: path.clone(),
            source,
        };
        let mut file = File::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let resumed_bytes = if bytes <= PART_BYTES {
            let content = part(&mut file, 0, bytes).map_err(failed)?;
            let call = Call {
                method: "PUT",
                key,
                ..Call::default()
            };
            self.requests.send(call, &content)?;
            0
        } else {
            let note = directory.join(NOTE);
            let mut upload = self.begin(&note, key, bytes)?;
            let resumed_bytes = self.send_parts(&mut upload, &mut file, &path)?;
            self.complete(&upload, key)?;
            let _ = fs::remove_file(note);
            resumed_bytes
        };
        let stored = self.requests.length(key)?;
        if stored != Some(bytes) {
            let stored = stored.map_or("nothing".to_owned(), |stored| format!("{stored} bytes"));
            return Err(StorageError::Unexpected {
                what: format!("{}: {key}", self.location),
                why: format!("the storage has {stored}, and the file has {bytes}"),
            });
        }
        Ok(Uploaded {
            files: 1,
            bytes,
            resumed_bytes,
        })
    }

    /// Continues the upload that the note names, or begins one.
    fn begin(&self, path: &Path, key: &str, bytes: u64) -> Result<Begun, StorageError> {
        let object = format!("{} {key}", self.location);
        let noted = fs::read(path).ok();
        let noted = noted.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        let fits = |note: &Note| (&note.object, note.bytes) == (&object, bytes);
        if let Some(note) = noted.filter(fits) {
            match self.requests.parts(key, &note.upload) {
                Ok(stored) => {
                    return Ok(Begun {
                        note,
                        path: path.to_owned(),
                        key: key.to_owned(),
                        stored,
                    });
                }
                // It was ended meanwhile, perhaps by a rule of the bucket.
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        let call = Call {
            method: "POST",
            key,
            query: &[("uploads", "")],
            headers: &[("content-type", "application/octet-stream")],
        };
        let response = self.requests.send(call, &Bytes::new())?;
        let text = String::from_utf8_lossy(response.body());
        let upload = xml::text(&text, "UploadId").ok_or_else(|| StorageError::Unexpected {
            what: object.clone(),
            why: "the answer has no UploadId".to_owned(),
        })?;
        let begun = Begun {
            note: Note {
                object,
                upload,
                bytes,
                part_bytes: part_bytes(bytes),
                parts: Vec::new(),
            },
            path: path.to_owned(),
            key: key.to_owned(),
            stored: Vec::new(),
        };
        begun.write()?;
        Ok(begun)
    }

    /// Returns how many bytes the storage had.
    fn send_parts(
        &self,
        begun: &mut Begun,
        file: &mut File,
        path: &Path,
    ) -> Result<u64, StorageError> {
        let failed = |source| StorageError::File {
            path: path.to_owned(),
            source,
        };
        let (bytes, part_bytes) = (begun.note.bytes, begun.note.part_bytes);
        let mut resumed_bytes = 0;
        let noted = std::mem::take(&mut begun.note.parts);
        for number in 1..=bytes.div_ceil(part_bytes) {
            let from = (number - 1) * part_bytes;
            let length = part_bytes.min(bytes - from);
            let content = part(file, from, length).map_err(failed)?;
            let sum = sha256(&content);
            if let Some(known) = begun.known(&noted, number, length, &sum) {
                begun.note.parts.push(known);
                resumed_bytes += length;
                continue;
            }
            let number_text = number.to_string();
            let query = [
                ("partNumber", &*number_text),
                ("uploadId", &*begun.note.upload),
            ];
            let call = Call {
                method: "PUT",
                key: &begun.key,
                query: &query,
                ..Call::default()
            };
            let response = self.requests.send(call, &content)?;
            let etag = header(&response, "etag").ok_or_else(|| StorageError::Unexpected {
                what: format!("part {number} of {}", begun.note.object),
                why: "the answer has no ETag".to_owned(),
            })?;
            begun.note.parts.push(NotedPart {
                number,
                etag,
                sha256: sum,
            });
            begun.write()?;
        }
        Ok(resumed_bytes)
    }

    /// Makes one object of the parts. The answer may be an error with status 200.
    fn complete(&self, begun: &Begun, key: &str) -> Result<(), StorageError> {
        let mut body = "<CompleteMultipartUpload>".to_owned();
        for part in &begun.note.parts {
            let etag = part.etag.replace('&', "&amp;").replace('<', "&lt;");
            body += &format!(
                "<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>",
                part.number
            );
        }
        body += "</CompleteMultipartUpload>";
        let body = Bytes::from(body);
        let query = [("uploadId", &*begun.note.upload)];
        let call = Call {
            method: "POST",
            key,
            query: &query,
            ..Call::default()
        };
        let mut is_again = false;
        patiently(|| {
            let sent = self.requests.send_once(call, &body);
            let response = match sent {
                // The answer of an earlier try was lost. The length is compared afterwards.
                Err(error)
                    if error.is_absent()
                        && is_again
                        && self.requests.length(key)? == Some(begun.note.bytes) =>
                {
                    return Ok(());
                }
                other => {
                    is_again = true;
                    other?
                }
            };
            let text = String::from_utf8_lossy(response.body());
            // Some servers call it a response, and not a result.
            if text.contains("<CompleteMultipartUpload") && !text.contains("<Error>") {
                return Ok(());
            }
            let part = |name| xml::text(&text, name).unwrap_or_default();
            Err(StorageError::Unexpected {
                what: format!("completing {}", begun.note.object),
                why: format!("{}: {}", part("Code"), part("Message")),
            })
        })
    }
}

/// An upload in parts, and where it is noted.
struct Begun {
    note: Note,
    path: PathBuf,
    key: String,
    /// What the storage had at the start.
    stored: Vec<StoredPart>,
}

impl Begun {
    /// The note about a part that the storage has, if it is of these bytes.
    fn known(&self, noted: &[NotedPart], number: u64, bytes: u64, sum: &str) -> Option<NotedPart> {
        let noted = noted.iter().find(|part| part.number == number)?;
        let stored = self.stored.iter().find(|part| part.number == number)?;
        let is_same = noted.sha256 == sum && stored.bytes == bytes && stored.etag == noted.etag;
        is_same.then(|| noted.clone())
    }

    /// Under another name first, so that it is whole at any moment.
    fn write(&self) -> Result<(), StorageError> {
        let new = self.path.with_extension("json.new");
        let text = serde_json::to_vec(&self.note).unwrap_or_default();
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.path));
        written.map_err(|source| StorageError::File {
            path: self.path.clone(),
            source,
        })
    }
}

/// Parts of equal length, of whole MiB.
fn part_bytes(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    bytes
        .div_ceil(PARTS_MAX)
        .div_ceil(MIB)
        .saturating_mul(MIB)
        .max(PART_BYTES)
}

/// Bytes of a file. Fewer are an error.
fn part(file: &mut File, from: u64, bytes: u64) -> std::io::Result<Bytes> {
    file.seek(SeekFrom::Start(from))?;
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    file.read_exact(&mut content)
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                std::io::Error::new(error.kind(), "it became shorter meanwhile")
            }
            _ => error,
        })?;
    Ok(content.into())
}

/// The names of the files in a directory, in order.
fn files(directory: &Path) -> Result<Vec<String>, StorageError> {
    let failed = |source| StorageError::File {
        path: directory.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_many_as_the_storage_takes() {
        const MIB: u64 = 1 << 20;
        assert_eq!(part_bytes(PART_BYTES + 1), PART_BYTES);
        assert_eq!(part_bytes(PARTS_MAX * PART_BYTES), PART_BYTES);
        let larger = PARTS_MAX * PART_BYTES + 1;
        assert_eq!(part_bytes(larger), PART_BYTES + MIB);
        assert!(larger.div_ceil(part_bytes(larger)) <= PARTS_MAX);
    }

    #[test]
    fn part_is_an_error_when_the_file_is_shorter() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "12345").unwrap();
        let mut file = File::open(&path).unwrap();
        assert_eq!(&*part(&mut file, 2, 3).unwrap(), b"345");
        let error = part(&mut file, 2, 4).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
    }
}
