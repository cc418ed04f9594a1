//! The manifest of a file set, and through it everything there is to know about a set without
//! reading its files.
//!
//! `.headway-fileset.toml` in the set's directory has the profile and its few parameters; names,
//! sizes, weights and contents follow from them. A set from a log lists its files in
//! `.headway-fileset.list` beside it. A checksum over the parameters (and one over the list)
//! detects edits, because the files would no longer match. `complete` is written last: a set
//! without it was interrupted. Both names begin with a dot, so a server that hides dotfiles does
//! not serve them.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use super::content::Content;
use super::shape::{FileIndex, Profile, Shape};
use super::site::{SiteFiles, decoded};
use crate::checksum;

/// The manifest's name inside the set.
pub const MANIFEST_NAME: &str = ".headway-fileset.toml";

/// The list of a set that was made from a log.
pub(crate) const LIST_NAME: &str = ".headway-fileset.list";

/// The name under which manifest and list are written before they are renamed, so that a reader
/// sees the old one or the new one.
pub(super) const UNFINISHED_NAME: &str = ".headway-fileset.new";

const FORMAT_NAME: &str = "headway-fileset";
const FORMAT_VERSION: u32 = 1;

/// Why there is no manifest to be had.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The directory has none.
    #[error(
        "{0} holds no file set (it has no {MANIFEST_NAME}); make one: headway fileset create {0} --size 1.5GB"
    )]
    Absent(PathBuf),
    /// The manifest cannot be read.
    #[error("reading {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said. Not called `source`, since it is in the words already.
        error: io::Error,
    },
    /// The manifest is no TOML, or a key is missing.
    #[error("{path} is not a manifest of a file set: {why}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The mistake.
        why: String,
    },
    /// A later Headway made it.
    #[error(
        "{path} was written by a newer Headway (format {version}, this one reads {FORMAT_VERSION}); use that one, or make the set again"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format of the manifest.
        version: u32,
    },
    /// The numbers do not belong together.
    #[error(
        "{path} has been edited: its numbers and its checksum do not agree; put the file back, or make the set again in another directory"
    )]
    Edited {
        /// The file.
        path: PathBuf,
    },
}

/// A file set: what it consists of, and where it is.
#[derive(Clone, Debug)]
pub struct Manifest {
    root: PathBuf,
    shape: Shape,
    seed: u64,
    complete: bool,
    /// All paths one after the other, and where each ends: one allocation for a million names.
    paths: String,
    ends: Vec<usize>,
}

/// One file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// The number of the file.
    pub index: FileIndex,
    /// As a client asks for it: percent-encoded, from the root.
    pub path: &'a str,
    /// The length of the file.
    pub size_bytes: u64,
    /// SPECweb's class, 0 to 3, or [`headway_latency::Row::NO_CLASS`].
    pub class: u8,
}

#[derive(Deserialize)]
struct Versioned {
    format: Format,
}

#[derive(Serialize, Deserialize)]
struct Format {
    name: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct ManifestDocument {
    format: Format,
    fileset: Numbers,
}

#[derive(Serialize, Deserialize)]
struct Numbers {
    profile: String,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    directories: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    list_checksum: Option<String>,
    files: u32,
    bytes: u64,
    checksum: String,
    complete: bool,
}

impl Manifest {
    /// The manifest of a set that need not exist on disk; `root` is its directory.
    pub fn new(root: impl Into<PathBuf>, shape: Shape, seed: u64) -> Manifest {
        let (mut paths, mut ends) = (String::new(), Vec::with_capacity(shape.files() as usize));
        for file in 0..shape.files() {
            shape.write_path(file, &mut paths);
            ends.push(paths.len());
        }
        Manifest {
            root: root.into(),
            shape,
            seed,
            complete: false,
            paths,
            ends,
        }
    }

    /// Reads the manifest of the set in a directory. The files themselves are not looked at.
    pub fn load(directory: &Path) -> Result<Manifest, ManifestError> {
        let (shape, seed, complete) = read(directory)?;
        Ok(Manifest {
            complete,
            ..Manifest::new(directory, shape, seed)
        })
    }

    /// The first directories of a SPECweb set as a set of its own: the files are the same, the
    /// popularity is that of the smaller set. All of it when it has no more; `None` for a set of
    /// another kind.
    pub fn part(&self, directories: u32) -> Option<Manifest> {
        let fewer = u64::from(directories).min(self.shape.directories());
        let shape = self.shape.with_directories(fewer as u32)?.checked().ok()?;
        let part = Manifest::new(self.root.clone(), shape, self.seed);
        Some(Manifest {
            complete: self.complete,
            ..part
        })
    }

    /// The directory of the set.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What decides names, sizes and weights.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The kind of the set.
    pub fn profile(&self) -> Profile {
        self.shape.profile()
    }

    /// The seed of the contents.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether all files were written.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// Number of files.
    pub fn len(&self) -> u32 {
        self.shape.files()
    }

    /// Never: a set has a file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of all lengths.
    pub fn bytes(&self) -> u64 {
        self.shape.bytes()
    }

    /// The checksum of the numbers: two sets with the same one are the same, byte by byte. 16
    /// hexadecimal digits.
    pub fn parameters_checksum(&self) -> String {
        parameters_checksum(&self.shape, self.seed)
    }

    /// Every file, in the order of the numbers.
    pub fn files(&self) -> impl Iterator<Item = File<'_>> {
        (0..self.len()).map(|index| File {
            index,
            path: self.path(index),
            size_bytes: self.size(index),
            class: self.class(index),
        })
    }

    /// The path a client asks for. Panics when there is no such file, like the next ones.
    pub fn path(&self, file: FileIndex) -> &str {
        let file = file as usize;
        let start = file
            .checked_sub(1)
            .map_or(0, |previous| self.ends[previous]);
        &self.paths[start..self.ends[file]]
    }

    /// The length in bytes.
    pub fn size(&self, file: FileIndex) -> u64 {
        self.shape.size(file)
    }

    /// SPECweb's class, 0 to 3, or [`super::NO_CLASS`].
    pub(crate) fn class(&self, file: FileIndex) -> u8 {
        self.shape.class(file)
    }

    /// The content of a file.
    pub fn content(&self, file: FileIndex) -> Content<'_> {
        let content = Content::new(self.seed, file, self.path(file), self.size(file));
        match self.shape.has_placeholders(file) {
            true => content.with_placeholders(),
            false => content,
        }
    }

    /// The [`crate::checksum`] of the file's content, computed without reading it, at some
    /// gigabytes per second.
    pub fn checksum(&self, file: FileIndex) -> u64 {
        self.content(file).checksum()
    }

    /// The checksums of all files, computed by several threads.
    pub fn checksums(&self, threads: NonZeroUsize) -> Vec<u64> {
        let next = AtomicU32::new(0);
        let mut checksums = vec![0; self.len() as usize];
        let found = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.get())
                .map(|_| scope.spawn(|| self.some_checksums(&next)))
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().expect("a checksum does not panic"))
                .collect::<Vec<_>>()
        });
        for (file, checksum) in found {
            checksums[file as usize] = checksum;
        }
        checksums
    }

    fn some_checksums(&self, next: &AtomicU32) -> Vec<(FileIndex, u64)> {
        let mut found = Vec::new();
        loop {
            // Each thread overshoots the last file by at most one, so it cannot wrap.
            let file = next.fetch_add(1, Ordering::Relaxed);
            if file >= self.len() {
                return found;
            }
            found.push((file, self.checksum(file)));
        }
    }

    /// Where the file is on disk.
    pub fn disk_path(&self, file: FileIndex) -> PathBuf {
        disk_path(&self.root, self.path(file))
    }
}

/// The name on disk of a percent-encoded path.
pub(super) fn disk_path(root: &Path, path: &str) -> PathBuf {
    root.join(std::ffi::OsString::from_vec(decoded(path)))
}

/// Writes the manifest, and the list where there is one.
pub(super) fn write(root: &Path, shape: &Shape, seed: u64, complete: bool) -> io::Result<()> {
    let mut numbers = Numbers {
        profile: shape.profile().to_string(),
        seed,
        directories: None,
        count: None,
        file_bytes: None,
        list_checksum: None,
        files: shape.files(),
        bytes: shape.bytes(),
        checksum: parameters_checksum(shape, seed),
        complete,
    };
    match shape {
        Shape::SpecWeb99 { directories }
        | Shape::SpecWeb99Dynamic { directories }
        | Shape::SpecWeb96 { directories } => {
            numbers.directories = Some(*directories);
        }
        Shape::Uniform { count, file_bytes } => {
            (numbers.count, numbers.file_bytes) = (Some(*count), Some(*file_bytes));
        }
        Shape::ManyFiles { count } => numbers.count = Some(*count),
        Shape::Site(site) => {
            let list = site.to_list();
            numbers.list_checksum = Some(hexadecimal(checksum::of(list.as_bytes())));
            // The list first: a manifest never stands without it.
            replace(root, LIST_NAME, &list)?;
        }
    }
    let document = ManifestDocument {
        format: Format {
            name: FORMAT_NAME.to_owned(),
            version: FORMAT_VERSION,
        },
        fileset: numbers,
    };
    let text = toml::to_string(&document).map_err(io::Error::other)?;
    let head = "# Made by `headway fileset create`; `headway fileset verify` compares the files with it.\n";
    replace(root, MANIFEST_NAME, &format!("{head}{text}"))
}

/// Replaces a file as a whole, and on disk before the name points at it.
fn replace(root: &Path, name: &str, text: &str) -> io::Result<()> {
    let unfinished = root.join(UNFINISHED_NAME);
    let mut file = headway_os::replace::create_new(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(unfinished, root.join(name))
}

/// The shape, the seed and whether it is complete.
pub(super) fn read(root: &Path) -> Result<(Shape, u64, bool), ManifestError> {
    let path = root.join(MANIFEST_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        // The kernel's error says whether the directory is missing or only has no set in it.
        Err(error) if error.kind() == ErrorKind::NotFound && root.is_dir() => {
            return Err(ManifestError::Absent(root.to_owned()));
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(ManifestError::Unreadable {
                path: root.to_owned(),
                error,
            });
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let why = "it is not text".to_owned();
            return Err(ManifestError::Malformed { path, why });
        }
        Err(error) => return Err(ManifestError::Unreadable { path, error }),
    };
    let malformed = |why: String| ManifestError::Malformed {
        path: path.clone(),
        why,
    };
    // The version alone first: the rest of a newer manifest may look different.
    let versioned: Versioned = toml::from_str(&text).map_err(|error| malformed(brief(&error)))?;
    if versioned.format.name != FORMAT_NAME {
        return Err(malformed(format!(
            "its format is {}",
            versioned.format.name
        )));
    }
    if versioned.format.version > FORMAT_VERSION {
        return Err(ManifestError::Newer {
            version: versioned.format.version,
            path,
        });
    }
    let document: ManifestDocument =
        toml::from_str(&text).map_err(|error| malformed(brief(&error)))?;
    let numbers = document.fileset;
    let shape = shape_of(&numbers, root)?;
    let agrees = numbers.checksum == parameters_checksum(&shape, numbers.seed)
        && numbers.files == shape.files()
        && numbers.bytes == shape.bytes();
    if !agrees {
        return Err(ManifestError::Edited { path });
    }
    Ok((shape, numbers.seed, numbers.complete))
}

/// The shape that the numbers describe.
fn shape_of(numbers: &Numbers, root: &Path) -> Result<Shape, ManifestError> {
    let path = root.join(MANIFEST_NAME);
    let malformed = |why: String| ManifestError::Malformed {
        path: path.clone(),
        why,
    };
    let needed = |number: Option<u32>, name: &str| {
        number.ok_or_else(|| malformed(format!("it has no `{name}`")))
    };
    let profile: Profile = numbers.profile.parse().map_err(&malformed)?;
    let shape = match profile {
        Profile::SpecWeb99 => Shape::SpecWeb99 {
            directories: needed(numbers.directories, "directories")?,
        },
        Profile::SpecWeb99Dynamic => Shape::SpecWeb99Dynamic {
            directories: needed(numbers.directories, "directories")?,
        },
        Profile::SpecWeb96 => Shape::SpecWeb96 {
            directories: needed(numbers.directories, "directories")?,
        },
        Profile::Uniform => Shape::Uniform {
            count: needed(numbers.count, "count")?,
            file_bytes: numbers
                .file_bytes
                .ok_or_else(|| malformed("it has no `file_bytes`".to_owned()))?,
        },
        Profile::ManyFiles => Shape::ManyFiles {
            count: needed(numbers.count, "count")?,
        },
        Profile::FromLog => Shape::Site(read_list(root, numbers.list_checksum.as_deref())?),
    };
    shape
        .checked()
        .map_err(|error| malformed(error.to_string()))
}

fn read_list(root: &Path, expected: Option<&str>) -> Result<SiteFiles, ManifestError> {
    let path = root.join(LIST_NAME);
    let list = match fs::read(&path) {
        Ok(list) => list,
        Err(error) => return Err(ManifestError::Unreadable { path, error }),
    };
    if expected != Some(hexadecimal(checksum::of(&list)).as_str()) {
        return Err(ManifestError::Edited { path });
    }
    let malformed = |why: String| ManifestError::Malformed {
        path: path.clone(),
        why,
    };
    let list = std::str::from_utf8(&list).map_err(|error| malformed(error.to_string()))?;
    SiteFiles::from_list(list).map_err(|error| malformed(error.to_string()))
}

/// Over everything that decides the files, in one spelling.
fn parameters_checksum(shape: &Shape, seed: u64) -> String {
    let numbers = match shape {
        Shape::SpecWeb99 { directories }
        | Shape::SpecWeb99Dynamic { directories }
        | Shape::SpecWeb96 { directories } => {
            format!("directories {directories}")
        }
        Shape::Uniform { count, file_bytes } => format!("count {count} file_bytes {file_bytes}"),
        Shape::ManyFiles { count } => format!("count {count}"),
        Shape::Site(site) => hexadecimal(checksum::of(site.to_list().as_bytes())),
    };
    let profile = shape.profile();
    let text = format!("{FORMAT_NAME} {FORMAT_VERSION} {profile} seed {seed} {numbers}");
    hexadecimal(checksum::of(text.as_bytes()))
}

fn hexadecimal(number: u64) -> String {
    format!("{number:016x}")
}

/// The first line of TOML's words and where: the rest draws the place with carets.
fn brief(error: &toml::de::Error) -> String {
    error.message().to_owned()
}
