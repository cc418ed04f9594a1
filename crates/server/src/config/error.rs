//! What is wrong with a configuration, where it was written, and what to do about it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::settings::COMMAND_LINE;

/// One thing that is wrong with the configuration.
///
/// Prints as `headway.toml:12: workers: …` or `--workers: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    place: Place,
    problem: String,
    environment: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Flag(String),
    Line {
        file: PathBuf,
        line: usize,
        key: String,
    },
    File(PathBuf),
}

impl ConfigError {
    /// Whether the words are right but this machine lacks something they name (a directory, a
    /// descriptor limit); otherwise the words themselves are wrong.
    pub fn is_environment(&self) -> bool {
        self.environment
    }

    /// A file that can not be read.
    pub fn unreadable(file: &Path, error: &std::io::Error) -> ConfigError {
        let place = Place::File(file.into());
        ConfigError {
            place,
            problem: format!("open: {error}"),
            environment: true,
        }
    }

    pub(super) fn toml(file: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
        let problem = simplify(error.message());
        let place = match error.span() {
            None => Place::File(file.into()),
            Some(span) => {
                let source = text
                    .lines()
                    .nth(line_of(text, span.start) - 1)
                    .unwrap_or("");
                Place::Line {
                    file: file.into(),
                    line: line_of(text, span.start),
                    key: format!("`{}`", source.trim()),
                }
            }
        };
        ConfigError {
            place,
            problem,
            environment: false,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Nowhere => {}
            Place::Flag(flag) => write!(out, "{flag}: ")?,
            Place::File(file) => write!(out, "{}: ", file.display())?,
            Place::Line { file, line, key } => write!(out, "{}:{line}: {key}: ", file.display())?,
        }
        out.write_str(&self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// The file the settings came from, to turn a place into a line.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    /// The file's name.
    pub path: &'t Path,
    /// Its text.
    pub text: &'t str,
}

/// Collects errors and warnings, so that one run tells everything that is wrong.
#[derive(Debug)]
pub(super) struct Findings<'t> {
    source: Option<Source<'t>>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<ConfigError>,
}

impl<'t> Findings<'t> {
    pub(super) fn new(source: Option<Source<'t>>) -> Self {
        Findings {
            source,
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The words are wrong.
    pub(super) fn wrong(&mut self, key: &str, span: Option<Range<usize>>, problem: String) {
        let place = self.place(key, span);
        self.errors.push(ConfigError {
            place,
            problem,
            environment: false,
        });
    }

    /// The words name something that this machine does not have.
    pub(super) fn lacking(&mut self, key: &str, span: Option<Range<usize>>, problem: String) {
        let place = self.place(key, span);
        self.errors.push(ConfigError {
            place,
            problem,
            environment: true,
        });
    }

    /// It works, but perhaps not as meant.
    pub(super) fn warn(&mut self, key: &str, span: Option<Range<usize>>, problem: String) {
        let place = self.place(key, span);
        self.warnings.push(ConfigError {
            place,
            problem,
            environment: false,
        });
    }

    fn place(&self, key: &str, span: Option<Range<usize>>) -> Place {
        match (span, self.source) {
            (Some(span), _) if span == COMMAND_LINE => Place::Flag(flag(key)),
            (Some(span), Some(source)) => Place::Line {
                file: source.path.into(),
                line: line_of(source.text, span.start),
                key: key.into(),
            },
            _ if key.is_empty() => Place::Nowhere,
            _ => Place::Flag(key.into()),
        }
    }
}

/// The document root is an argument, not a flag.
fn flag(key: &str) -> String {
    match key {
        "root" => "DIR".into(),
        key => format!("--{}", key.replace('.', "-")),
    }
}

fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(byte)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

/// serde names every key it knows; for a misspelt one the nearest is enough.
fn simplify(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.into();
    };
    let Some((unknown, expected)) = rest.split_once('`') else {
        return message.into();
    };
    let known = expected
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|key| !key.contains('_'));
    match known.map(|key| (distance(unknown, key), key)).min() {
        Some((distance, key)) if distance <= 1 + unknown.len() / 4 => {
            format!("unknown key `{unknown}`; did you mean `{key}`?")
        }
        _ => format!("unknown key `{unknown}`"),
    }
}

/// The edit distance of two short words.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let same = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = same.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
