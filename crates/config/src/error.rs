//! Errors and warnings of a configuration, with the line or option they are about.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use headway_base::format::printable;

use super::settings::COMMAND_LINE;
use crate::extensions::ResearchTable;

/// A message shows no more of a value.
const EXCERPT_CHARS: usize = 40;

/// An error or warning of the configuration.
///
/// Prints as `headway.toml:12: workers: …` or `--workers: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    location: ErrorLocation,
    problem: String,
    environment: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ErrorLocation {
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
    /// Whether the setting is valid but this machine lacks what it names (a directory, a descriptor
    /// limit). Otherwise it is a usage error.
    pub fn is_environment(&self) -> bool {
        self.environment
    }

    /// A configuration file that cannot be read.
    pub fn unreadable(file: &Path, error: &std::io::Error) -> ConfigError {
        let location = ErrorLocation::File(file.into());
        ConfigError {
            location,
            problem: format!("cannot read the file: {error}"),
            environment: true,
        }
    }

    /// A wrong value of an option.
    pub(super) fn option(key: &str, problem: String) -> ConfigError {
        ConfigError {
            location: ErrorLocation::Flag(flag(key)),
            problem,
            environment: false,
        }
    }

    /// The line of the file that it is about; 0 where it is about none.
    pub(super) fn line(&self) -> usize {
        match &self.location {
            ErrorLocation::Line { line, .. } => *line,
            ErrorLocation::Nowhere | ErrorLocation::Flag(_) | ErrorLocation::File(_) => 0,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = match &self.location {
            ErrorLocation::Nowhere => String::new(),
            ErrorLocation::Flag(flag) => format!("{flag}: "),
            ErrorLocation::File(file) => format!("{}: ", file.display()),
            ErrorLocation::Line { file, line, key } if key.is_empty() => {
                format!("{}:{line}: ", file.display())
            }
            ErrorLocation::Line { file, line, key } => {
                format!("{}:{line}: {key}: ", file.display())
            }
        };
        // Names and values may contain line ends, but an error is one line.
        out.write_str(&printable(&location))?;
        out.write_str(&printable(&self.problem))
    }
}

impl std::error::Error for ConfigError {}

/// The file of the settings, which turns a position into a line.
#[derive(Clone, Copy, Debug)]
pub struct ConfigFile<'t> {
    /// The file's name.
    pub path: &'t Path,
    /// The file's text.
    pub text: &'t str,
}

/// Collects errors and warnings, so that one run reports all of them.
pub(crate) struct Findings<'t> {
    source: Option<ConfigFile<'t>>,
    /// Reads and checks `[research]`, where the program contains it.
    pub(crate) research: Option<&'static ResearchTable>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<ConfigError>,
}

impl<'t> Findings<'t> {
    pub(super) fn new(
        source: Option<ConfigFile<'t>>,
        research: Option<&'static ResearchTable>,
    ) -> Self {
        Findings {
            source,
            research,
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds a usage error.
    pub(crate) fn usage_error(&mut self, key: &str, span: Option<Range<usize>>, problem: String) {
        let location = self.location(key, span);
        self.errors.push(ConfigError {
            location,
            problem,
            environment: false,
        });
    }

    /// Adds an error about something that this machine does not have.
    pub(crate) fn environment_error(
        &mut self,
        key: &str,
        span: Option<Range<usize>>,
        problem: String,
    ) {
        let location = self.location(key, span);
        self.errors.push(ConfigError {
            location,
            problem,
            environment: true,
        });
    }

    /// Adds a warning: the setting works, but perhaps not as meant.
    pub(crate) fn warning(&mut self, key: &str, span: Option<Range<usize>>, problem: String) {
        let location = self.location(key, span);
        self.warnings.push(ConfigError {
            location,
            problem,
            environment: false,
        });
    }

    /// The text is not TOML.
    pub(super) fn syntax(&mut self, span: Option<Range<usize>>, problem: &str) {
        let key = match &span {
            Some(span) => format!("`{}`", self.line_text(span.start)),
            None => String::new(),
        };
        let span = span.or(Some(0..0));
        self.usage_error(
            &key,
            span,
            format!("not valid TOML: {}", problem.replace('\n', ", ")),
        );
    }

    /// Drops errors that repeat the line of one of the first `first`.
    pub(super) fn drop_later_on_same_line(&mut self, first: usize) {
        let later = self.errors.split_off(first.min(self.errors.len()));
        let broken: Vec<usize> = self.errors.iter().map(ConfigError::line).collect();
        let others = later
            .into_iter()
            .filter(|error| !broken.contains(&error.line()));
        self.errors.extend(others);
    }

    /// The text at a location of the file, for a message: the first line, in backquotes.
    pub(super) fn excerpt(&self, span: Range<usize>) -> String {
        let text = self
            .source
            .and_then(|source| source.text.get(span))
            .unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        match line.char_indices().nth(EXCERPT_CHARS) {
            Some((end, _)) => format!("`{}…`", &line[..end]),
            None => format!("`{line}`"),
        }
    }

    fn line_text(&self, byte: usize) -> &'t str {
        let Some(source) = self.source else {
            return "";
        };
        let line = line_of(source.text, byte);
        source.text.lines().nth(line - 1).unwrap_or_default().trim()
    }

    fn location(&self, key: &str, span: Option<Range<usize>>) -> ErrorLocation {
        match (span, self.source) {
            (Some(span), _) if span == COMMAND_LINE => ErrorLocation::Flag(flag(key)),
            (Some(span), Some(source)) => ErrorLocation::Line {
                file: source.path.into(),
                line: line_of(source.text, span.start),
                key: key.into(),
            },
            _ if key.is_empty() => ErrorLocation::Nowhere,
            _ => ErrorLocation::Flag(key.into()),
        }
    }
}

/// The document root is an argument, not an option.
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
