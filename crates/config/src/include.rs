//! The files that a configuration file includes: found by their names, read, and made into one.
//!
//! Each is read as if it were alone, and then added. A file is read once, so no file can include
//! itself. What is no regular file is not read: a FIFO would make a reload wait for ever.

use std::ffi::OsStr;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::error::{ConfigError, ConfigFile, Findings, PlacedFile};
use super::keys::Table;
use super::settings::Settings;
use crate::extensions::KnownExtensions;

const FILES_MAX: usize = 1_000;
/// Of an included file that includes another one, and so on.
const DEPTH_MAX: usize = 8;
/// Of all included files together.
const BYTES_MAX: u64 = 64 << 20;

/// The settings of a file and of those that it includes.
pub(super) struct ReadFiles {
    pub(super) settings: Settings,
    /// All files with their texts, in the order of reading.
    pub(super) files: Vec<SourceFile>,
    pub(super) errors: Vec<ConfigError>,
}

/// A file that was read.
pub(super) struct SourceFile {
    path: PathBuf,
    text: String,
    /// Device and inode, by which it is found again.
    identity: Option<(u64, u64)>,
}

/// Reads what can be read, and lists everything that is wrong.
pub(super) fn read(source: ConfigFile<'_>, extensions: KnownExtensions) -> ReadFiles {
    let metadata = std::fs::metadata(source.path);
    let mut reader = Reader {
        extensions,
        files: Vec::new(),
        errors: Vec::new(),
        bytes_left: BYTES_MAX,
    };
    let first = SourceFile {
        path: source.path.into(),
        text: source.text.into(),
        identity: metadata.ok().map(|found| (found.dev(), found.ino())),
    };
    let settings = reader.add(first, 0);
    ReadFiles {
        settings,
        files: reader.files,
        errors: reader.errors,
    }
}

/// The files with the positions at which their texts begin.
pub(super) fn placed(files: &[SourceFile]) -> Vec<PlacedFile<'_>> {
    let (mut all, mut start) = (Vec::new(), 0);
    for (order, file) in files.iter().enumerate() {
        let placed = PlacedFile {
            file: ConfigFile {
                path: &file.path,
                text: &file.text,
            },
            order,
            start,
        };
        start = placed.end();
        all.push(placed);
    }
    all
}

struct Reader {
    extensions: KnownExtensions,
    files: Vec<SourceFile>,
    errors: Vec<ConfigError>,
    bytes_left: u64,
}

impl Reader {
    /// Reads the settings of a file, then those of the files that it includes.
    fn add(&mut self, file: SourceFile, depth: usize) -> Settings {
        let order = self.files.len();
        self.files.push(file);
        let (mut settings, errors) =
            Settings::read_toml(placed(&self.files)[order], self.extensions);
        self.errors.extend(errors);
        let Some(include) = settings.include.take() else {
            return settings;
        };
        let span = include.span();
        let directory = self.files[order].path.parent().map(PathBuf::from);
        for pattern in include.into_inner().0 {
            let pattern = directory
                .as_ref()
                .map(|from| from.join(&pattern))
                .unwrap_or(pattern);
            let found = find(&pattern).unwrap_or_else(|problem| {
                self.report(span.clone(), problem, true);
                settings.note_fault();
                Vec::new()
            });
            for path in found {
                match self.open(&path, depth + 1) {
                    Ok(file) => {
                        let other = self.add(file, depth + 1);
                        self.merge(&mut settings, other);
                    }
                    Err(problem) => {
                        self.report(span.clone(), problem, true);
                        settings.note_fault();
                    }
                }
            }
        }
        settings
    }

    fn merge(&mut self, settings: &mut Settings, other: Settings) {
        let mut all = Vec::new();
        settings.merge(other, &mut all);
        for twice in all {
            let first = Findings::new(placed(&self.files), None).shown(twice.first);
            self.report_key(
                &twice.key,
                twice.second,
                format!("it is set at {first} already"),
                false,
            );
        }
    }

    fn report(&mut self, span: Range<usize>, problem: String, is_environment: bool) {
        self.report_key("include", span, problem, is_environment);
    }

    fn report_key(&mut self, key: &str, span: Range<usize>, problem: String, is_environment: bool) {
        let mut to = Findings::new(placed(&self.files), None);
        match is_environment {
            true => to.environment_error(key, Some(span), problem),
            false => to.usage_error(key, Some(span), problem),
        }
        self.errors.extend(to.errors);
    }

    /// Reads the text of an included file. The error is a message.
    fn open(&mut self, path: &Path, depth: usize) -> Result<SourceFile, String> {
        let shown = path.display();
        if depth > DEPTH_MAX {
            return Err(format!(
                "{shown}: at most {DEPTH_MAX} files can include one another"
            ));
        }
        if self.files.len() > FILES_MAX {
            return Err(format!(
                "{shown}: at most {FILES_MAX} files can be included"
            ));
        }
        // A FIFO without a writer is opened at once, and then is no regular file.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = opened
            .map(std::fs::File::from)
            .map_err(|error| format!("{shown}: {error}"))?;
        let metadata = file
            .metadata()
            .map_err(|error| format!("{shown}: {error}"))?;
        if !metadata.is_file() {
            return Err(format!("{shown} is not a regular file"));
        }
        let identity = Some((metadata.dev(), metadata.ino()));
        if let Some(before) = self.files.iter().find(|before| before.identity == identity) {
            let before = before.path.display();
            return Err(format!("{shown} is read already, as {before}"));
        }
        let mut text = String::new();
        let read = file.take(self.bytes_left + 1).read_to_string(&mut text);
        match read {
            Err(error) => return Err(format!("{shown}: {error}")),
            Ok(bytes) if bytes as u64 > self.bytes_left => {
                return Err(format!(
                    "{shown}: included files have at most 64 MiB in all"
                ));
            }
            Ok(bytes) => self.bytes_left -= bytes as u64,
        }
        Ok(SourceFile {
            path: path.into(),
            text,
            identity,
        })
    }
}

/// The files that a pattern names, in the order of their names. The error is a message.
fn find(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let has_wildcards = |part: &OsStr| part.as_bytes().iter().any(|byte| b"*?".contains(byte));
    let (Some(name), directory) = (pattern.file_name(), pattern.parent()) else {
        return Err(format!("{} is not a file", pattern.display()));
    };
    let directory = directory.unwrap_or(Path::new(""));
    if has_wildcards(directory.as_os_str()) {
        let shown = pattern.display();
        return Err(format!(
            "{shown}: only the file name can have * and ?, not a directory"
        ));
    }
    if !has_wildcards(name) {
        return Ok(vec![pattern.into()]);
    }
    let listed = match directory.as_os_str().is_empty() {
        true => Path::new("."),
        false => directory,
    };
    let failed = |error: std::io::Error| format!("the directory {}: {error}", listed.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(listed).map_err(failed)? {
        let found = entry.map_err(failed)?.file_name();
        let is_hidden = found.as_bytes().starts_with(b".") && !name.as_bytes().starts_with(b".");
        if !is_hidden && matches(name.as_bytes(), found.as_bytes()) {
            names.push(found);
        }
    }
    names.sort();
    Ok(names.iter().map(|name| directory.join(name)).collect())
}

/// Whether a name has the form of a pattern: `*` is any text, `?` one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Where the last * stands, and how much of the name it has.
    let mut star = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((place, has)) = star else {
                    return false;
                };
                star = Some((place, has + 1));
                (at, seen) = (place + 1, has + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn names_match_patterns_with_stars_and_question_marks() {
        for (pattern, name, is_match) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".toml", true),
            ("*.toml", "a.toml~", false),
            ("*", "", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ab ab", true),
            ("*a*b", "aba", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("*?", "", false),
            ("**?", "a", true),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, is_match, "{pattern} {name}");
        }
        // Without a step back for each star, this would take for ever.
        let many = "*a".repeat(50);
        assert!(!matches(many.as_bytes(), &[b'a'; 49]));
    }
}
