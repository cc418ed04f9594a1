//! Errors and warnings of a configuration, with the line or option they are about.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headway_base::format::printable;

use super::document_root::Patience;
use super::settings::COMMAND_LINE;
use crate::extensions::ResearchTable;

/// The setting whose values are shown nowhere.
pub(super) const SECRETS: &str = "otlp-headers";

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
        /// Its place among the files of the configuration.
        order: usize,
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

    /// A check that has not ended.
    pub fn late(after: Duration) -> ConfigError {
        ConfigError::of_machine(format!(
            "the configuration cannot be checked within {} s: a file system or a name server does not answer",
            after.as_secs()
        ))
    }

    /// What is about this machine and no line.
    pub(super) fn of_machine(problem: String) -> ConfigError {
        ConfigError {
            location: ErrorLocation::Nowhere,
            problem,
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

    /// The file and the line that it is about; line 0 where it is about none.
    pub(super) fn line(&self) -> (usize, usize) {
        match &self.location {
            ErrorLocation::Line { order, line, .. } => (*order, *line),
            ErrorLocation::Nowhere | ErrorLocation::Flag(_) | ErrorLocation::File(_) => (0, 0),
        }
    }

    /// Whether one of the others is about the same line, and this is not about the whole.
    pub(super) fn repeats(&self, lines: &[(usize, usize)]) -> bool {
        self.line().1 > 0 && lines.contains(&self.line())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = match &self.location {
            ErrorLocation::Nowhere => String::new(),
            ErrorLocation::Flag(flag) => format!("{flag}: "),
            ErrorLocation::File(file) => format!("{}: ", file.display()),
            ErrorLocation::Line {
                file, line, key, ..
            } => match key.as_str() {
                "" => format!("{}:{line}: ", file.display()),
                key => format!("{}:{line}: {key}: ", file.display()),
            },
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

/// A file among all that were read. Positions in it follow those of the files before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedFile<'t> {
    pub(crate) file: ConfigFile<'t>,
    /// Its place in the order of reading.
    pub(crate) order: usize,
    /// The position of its first byte.
    pub(crate) start: usize,
}

impl<'t> PlacedFile<'t> {
    /// A file without others.
    pub(crate) fn only(file: ConfigFile<'t>) -> Self {
        PlacedFile {
            file,
            order: 0,
            start: 0,
        }
    }

    /// The position behind it, from which the next file may begin.
    pub(crate) fn end(&self) -> usize {
        self.start + self.file.text.len() + 1
    }
}

/// Collects errors and warnings, so that one run reports all of them.
pub(crate) struct Findings<'t> {
    /// In their order.
    sources: Vec<PlacedFile<'t>>,
    /// Added to the positions of the values that are read.
    start: usize,
    /// Reads and checks `[research]`, where the program contains it.
    pub(crate) research: Option<&'static ResearchTable>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<ConfigError>,
    /// Document roots whose file system does not answer.
    pub(super) silent_roots: Vec<PathBuf>,
    /// How long file systems may take.
    pub(super) patience: Patience,
}

impl<'t> Findings<'t> {
    /// For settings that were read from these files.
    pub(super) fn new(
        sources: Vec<PlacedFile<'t>>,
        research: Option<&'static ResearchTable>,
    ) -> Self {
        Findings {
            sources,
            start: 0,
            research,
            errors: Vec::new(),
            warnings: Vec::new(),
            silent_roots: Vec::new(),
            patience: Patience::new(None),
        }
    }

    /// For the reading of this file, in which positions begin at 0.
    pub(super) fn of_reading(
        source: PlacedFile<'t>,
        research: Option<&'static ResearchTable>,
    ) -> Self {
        let alone = PlacedFile { start: 0, ..source };
        Findings {
            start: source.start,
            ..Findings::new(vec![alone], research)
        }
    }

    /// The position of a value among all files, from that in the file which is being read.
    pub(crate) fn placed(&self, span: Range<usize>) -> Range<usize> {
        span.start + self.start..span.end + self.start
    }

    /// The file and line of a position, for a message.
    pub(super) fn shown(&self, span: Range<usize>) -> String {
        match self.location("", Some(span)) {
            ErrorLocation::Line { file, line, .. } => format!("{}:{line}", file.display()),
            _ => "the command line".into(),
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
            Some(span) => format!("`{}`", self.line_without_secrets(span.start)),
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
        let broken: Vec<_> = self.errors.iter().map(ConfigError::line).collect();
        let others = later.into_iter().filter(|error| !error.repeats(&broken));
        self.errors.extend(others);
    }

    /// The text at a location of the file, for a message: the first line, in backquotes.
    pub(super) fn excerpt(&self, span: Range<usize>) -> String {
        let source = self.source(span.start);
        let text = source.and_then(|source| {
            let inner = span.start - source.start..span.end.checked_sub(source.start)?;
            source.file.text.get(inner)
        });
        let text = text.unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        match line.char_indices().nth(EXCERPT_CHARS) {
            Some((end, _)) => format!("`{}…`", &line[..end]),
            None => format!("`{line}`"),
        }
    }

    /// The text of a line. In a file with secrets, any line may have one.
    fn line_without_secrets(&self, byte: usize) -> &'t str {
        let line = self.line_text(byte);
        let has_secrets = self
            .source(byte)
            .is_some_and(|source| source.file.text.contains(SECRETS));
        match line.split_once('=').filter(|_| has_secrets) {
            Some((key, _)) => key.trim_end(),
            None => line,
        }
    }

    fn line_text(&self, byte: usize) -> &'t str {
        let Some(PlacedFile { file, start, .. }) = self.source(byte) else {
            return "";
        };
        let line = line_of(file.text, byte - start);
        file.text.lines().nth(line - 1).unwrap_or_default().trim()
    }

    /// The file of a position.
    fn source(&self, byte: usize) -> Option<PlacedFile<'t>> {
        let mut before = self.sources.iter().rev();
        before.find(|source| source.start <= byte).copied()
    }

    fn location(&self, key: &str, span: Option<Range<usize>>) -> ErrorLocation {
        let source = span.as_ref().and_then(|span| self.source(span.start));
        match (span, source) {
            (Some(span), _) if span == COMMAND_LINE => ErrorLocation::Flag(flag(key)),
            (Some(span), Some(source)) => ErrorLocation::Line {
                file: source.file.path.into(),
                order: source.order,
                line: line_of(source.file.text, span.start - source.start),
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
