//! A small directory for keeping: results and tables of a run of studies, without its raw rows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::store::{Store, StoreError};
use super::text;

/// Why there is no summary.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    /// The run.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The target.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why the call failed.
        source: io::Error,
    },
    /// The target holds something.
    #[error("{}: not empty; name a new directory for the summary", .0.display())]
    NotEmpty(PathBuf),
}

/// One line of `measurements.jsonl`: what was measured, under which key, and how it ended.
#[derive(Serialize)]
struct Line<'a> {
    key: String,
    #[serde(flatten)]
    record: &'a super::store::Record,
}

/// Writes `NAME.json` and `NAME.txt` of each study, and `measurements.jsonl`.
///
/// # Errors
/// See [`SummaryError`].
pub fn summarise(store: &Store, target: &Path) -> Result<usize, SummaryError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| SummaryError::Io { path, source }
    };
    fs::create_dir_all(target).map_err(io(target))?;
    if fs::read_dir(target).map_err(io(target))?.next().is_some() {
        return Err(SummaryError::NotEmpty(target.to_owned()));
    }
    let results = store.results()?;
    for result in &results {
        let json = serde_json::to_string(result).map_err(io::Error::other);
        let file = target.join(format!("{}.json", result.name));
        json.and_then(|json| fs::write(&file, json + "\n"))
            .map_err(io(&file))?;
        let file = target.join(format!("{}.txt", result.name));
        fs::write(&file, text::render(result)).map_err(io(&file))?;
    }
    let mut records = store.records();
    records.sort_by_cached_key(|record| record.spec.key());
    let line = |record: &'_ super::store::Record| {
        let key = record.spec.key();
        serde_json::to_string(&Line { key, record })
    };
    let lines: Result<Vec<String>, _> = records.iter().map(line).collect();
    let file = target.join("measurements.jsonl");
    lines
        .map_err(io::Error::other)
        .and_then(|lines| fs::write(&file, lines.join("\n") + "\n"))
        .map_err(io(&file))?;
    Ok(results.len())
}
