//! A file with a line per second.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::session::SessionError;
use headway_latency::export::{Format, Second, Series};

/// A file that gets each second when it has ended.
#[derive(Debug)]
pub(super) struct SeriesFile {
    path: PathBuf,
    format: Format,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Without a line.
    Empty(File),
    Begun(Series<BufWriter<File>>),
    /// Nothing more is written. The lines before are whole.
    Failed(String),
}

impl SeriesFile {
    /// Creates or empties a file.
    pub(super) fn create(path: &Path, format: Format) -> Result<SeriesFile, SessionError> {
        let file = File::create(path).map_err(|source| SessionError::File {
            what: "creating",
            path: path.into(),
            source,
        })?;
        Ok(SeriesFile {
            path: path.into(),
            format,
            state: State::Empty(file),
        })
    }

    /// Writes a second. `start_ns` is the start of the measured part, since 1970.
    pub(super) fn write(&mut self, start_ns: u64, second: &Second) {
        let write = |series: &mut Series<BufWriter<File>>| -> io::Result<()> {
            series.write(second)?;
            series.flush()
        };
        let state = std::mem::replace(&mut self.state, State::Failed(String::new()));
        let begun = match state {
            State::Failed(why) => {
                self.state = State::Failed(why);
                return;
            }
            State::Empty(file) => Series::begin(self.format, start_ns, BufWriter::new(file)),
            State::Begun(series) => Ok(series),
        };
        let written = begun.and_then(|mut series| write(&mut series).map(|()| series));
        self.state = match written {
            Ok(series) => State::Begun(series),
            Err(error) => State::Failed(format!(
                "writing second {} to {}: {error}; the file ends before it, the run went on",
                second.at,
                self.path.display()
            )),
        };
    }

    /// Why the file is not whole, if it is not.
    pub(super) fn finish(self) -> Option<String> {
        match self.state {
            State::Failed(why) => Some(why),
            State::Empty(_) | State::Begun(_) => None,
        }
    }
}
