//! Where studies are: those that come with Headway, or a file of one's own.

use std::path::{Path, PathBuf};

use super::StudyError;
use super::resolve::{Study, Texts};
use super::scaled::Scale;

include!(concat!(env!("OUT_DIR"), "/studies.rs"));

/// Shared entries, for a study of one's own without a `common.toml` beside it.
fn common() -> &'static str {
    let found = STUDIES.iter().find(|(name, _)| *name == "common.toml");
    found.map_or("", |(_, text)| text)
}

/// A study's text, not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The name of its file.
    pub file: String,
    /// The text of the file.
    pub text: String,
    /// The text of its `common.toml`.
    pub common: String,
}

impl Loaded {
    /// Reads it at a scale.
    ///
    /// # Errors
    /// See [`StudyError`].
    pub fn at(&self, scale: Scale) -> Result<Study, StudyError> {
        let texts = Texts {
            name: &self.file,
            text: &self.text,
            common: &self.common,
        };
        Study::read(texts, scale)
    }
}

/// Why there is no such study.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No name, number or path.
    #[error(
        "there is no study {0:?}; `headway-lab study list` names them, and a path to a TOML file will do"
    )]
    Unknown(String),
    /// The directory has no study in it.
    #[error("{}: no study in it, which would be a file that ends in .toml", .0.display())]
    Empty(PathBuf),
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why the file cannot be read.
        source: std::io::Error,
    },
    /// The file says something wrong.
    #[error(transparent)]
    Study(#[from] StudyError),
}

/// The studies that come with Headway, by number.
pub fn embedded() -> Vec<Loaded> {
    let studies = STUDIES.iter().filter(|(name, _)| *name != "common.toml");
    let loaded = |(name, text): &(&str, &str)| Loaded {
        file: (*name).to_owned(),
        text: (*text).to_owned(),
        common: common().to_owned(),
    };
    studies.map(loaded).collect()
}

/// A study by name, number or path; `all` stands for every embedded one.
///
/// # Errors
/// See [`LoadError`].
pub fn load(word: &str) -> Result<Vec<Loaded>, LoadError> {
    if word == "all" {
        return Ok(embedded());
    }
    if Path::new(word)
        .extension()
        .is_some_and(|extension| extension == "toml")
        || word.contains('/')
    {
        return from_path(Path::new(word));
    }
    for found in embedded() {
        let study = found.at(Scale::Quick)?;
        if study.name == word || word.parse() == Ok(study.number) {
            return Ok(vec![found]);
        }
    }
    Err(LoadError::Unknown(word.to_owned()))
}

/// A file, or all TOML files of a directory, with the `common.toml` beside them if there is one.
fn from_path(path: &Path) -> Result<Vec<Loaded>, LoadError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Io { path, source }
    };
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(io(path))?.flatten();
        files = entries.map(|entry| entry.path()).collect();
        files.retain(|file| {
            file.extension()
                .is_some_and(|extension| extension == "toml")
        });
        files.retain(|file| file.file_name().is_some_and(|name| name != "common.toml"));
        files.sort();
    }
    let mut loaded = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(io(&file))?;
        let beside = file.with_file_name("common.toml");
        let common = match beside.exists() {
            true => std::fs::read_to_string(&beside).map_err(io(&beside))?,
            false => common().to_owned(),
        };
        loaded.push(Loaded {
            file: file.display().to_string(),
            text,
            common,
        });
    }
    match loaded.is_empty() {
        true => Err(LoadError::Empty(path.to_owned())),
        false => Ok(loaded),
    }
}
