//! The access logs: that of the top level, and those of hosts.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use toml::Spanned;

use super::error::Findings;
use super::keys::Setting;
use super::ranges::span;
use super::settings::{STANDARD_OUTPUT, Settings};
use super::{Host, LogFormat, log_daemon};

/// A worker has a queue for each.
const FILES_MAX: usize = 64;

/// A file of the access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFile {
    /// The file, appended to and created when missing, or a daemon ([`LogDaemon`](crate::LogDaemon)).
    pub path: PathBuf,
    /// The format of its lines.
    pub format: LogFormat,
}

/// The access log, with at least one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// The first file.
    pub path: PathBuf,
    /// The format of its lines.
    pub format: LogFormat,
    /// Whether the first file is that of a host, since the top level has none.
    #[serde(default)]
    pub is_of_host: bool,
    /// The other files, which are those of hosts.
    #[serde(default)]
    pub more: Vec<LogFile>,
}

impl LogConfig {
    /// All files, by number.
    pub fn files(&self) -> Vec<LogFile> {
        let first = LogFile {
            path: self.path.clone(),
            format: self.format.clone(),
        };
        std::iter::once(first)
            .chain(self.more.iter().cloned())
            .collect()
    }

    /// The number of the file for the requests of a host. `None` logs none.
    pub fn number_of(&self, host: &Host) -> Option<u8> {
        let place = match &host.log {
            None => (!self.is_of_host).then_some(0),
            Some(own) => self.files().iter().position(|file| file == own),
        };
        place.map(|place| place as u8)
    }
}

/// Returns the access log.
pub(super) fn logs(from: &Settings, hosts: &[Host], to: &mut Findings<'_>) -> Option<LogConfig> {
    let top = log("", (&from.log, &from.log_format), None, to);
    let is_of_host = top.is_none();
    let mut files: Vec<LogFile> = top.into_iter().collect();
    for own in hosts.iter().filter_map(|host| host.log.as_ref()) {
        if !files.contains(own) {
            files.push(own.clone());
        }
    }
    if files.len() > FILES_MAX {
        let problem = format!("{} logs; at most {FILES_MAX} are possible", files.len());
        to.usage_error("host.log", None, problem);
    }
    let mut files = files.into_iter();
    let LogFile { path, format } = files.next()?;
    Some(LogConfig {
        path,
        format,
        is_of_host,
        more: files.collect(),
    })
}

/// The log of the top level or of a host (whose keys have this prefix). A host may have only another format than
/// the top level.
pub(super) fn log(
    prefix: &str,
    (file, format): (&Setting<PathBuf>, &Setting<LogFormat>),
    top: Option<&Settings>,
    to: &mut Findings<'_>,
) -> Option<LogFile> {
    let key = |name: &str| format!("{prefix}{name}");
    let of_top = top
        .and_then(|top| top.log.as_ref())
        .filter(|_| format.is_some());
    let Some(item) = file.as_ref().or(of_top) else {
        if format.is_some() {
            let problem = "there is a format but no file; set log as well";
            to.usage_error(&key("log-format"), span(format), problem.into());
        }
        return None;
    };
    let format = format
        .as_ref()
        .or(top.and_then(|top| top.log_format.as_ref()));
    Some(LogFile {
        path: path(&key("log"), item, file.is_some(), to),
        format: format.map_or_else(LogFormat::default, |item| item.get_ref().clone()),
    })
}

/// An absolute path, because child processes may have another working directory.
fn path(key: &str, item: &Spanned<PathBuf>, is_new: bool, to: &mut Findings<'_>) -> PathBuf {
    let (path, position) = (item.get_ref(), Some(item.span()));
    if let Some(daemon) = log_daemon::with_socket(path) {
        return daemon;
    }
    let path = match path == Path::new(STANDARD_OUTPUT) {
        true => PathBuf::from("/dev/stdout"),
        false => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
    };
    let directory = path.parent().map(PathBuf::from).unwrap_or_default();
    if is_new && path.is_dir() {
        let problem = format!("{} is a directory, not a file", path.display());
        to.environment_error(key, position, problem);
    } else if is_new && !directory.is_dir() {
        let problem = format!(
            "the directory {} does not exist; create it",
            directory.display()
        );
        to.environment_error(key, position, problem);
    }
    path
}
