//! Run directories in, one self-contained HTML file out.
//!
//! The page needs no network and no script, is readable on a phone and on a wide screen, in light,
//! dark and print, and can be sent to a reader without Headway. It shows the client's verdict
//! before any figure, and every drawing has its numbers in a table beside it. Nothing is measured
//! or judged here: figures come from `headway_latency`, and unknown values are left out, never
//! guessed.
//!
//! [`cumulative_svg`] draws one distribution as a picture of its own, and [`sheet`] makes a page of
//! tables and bars, for results that are no run directory.
//!
//! `subject` reads the runs, `section` says one thing each about them, `figure` and `chart` draw,
//! `page` puts it together. Text that came from outside is escaped where it enters an element, in
//! `html`.
//!
//! Sources: the figures of chapter 3 of the dissertation, named in their captions.
#![forbid(unsafe_code)]

mod standalone;
mod over_time;
mod page;
mod section;
mod sheet;
mod study;
mod subject;
mod blocked;
mod figure;
mod chart;
mod html;
mod truncate;
mod units;

use std::path::PathBuf;

pub use headway_latency::OpenError;
pub use html::escaped;
pub use over_time::Shaded;
pub use sheet::{Sheet, SheetBars, SheetPart, SheetSection, SheetTable, sheet};
pub use standalone::{Cumulative, TimeSeries, cumulative_svg, time_series_svg};
pub use study::{page as study_page, table_svg as study_table_svg};

use subject::Subject;

/// What every page of ours contains near its beginning, and hardly another file does.
pub const GENERATOR_META: &str = "<meta name=\"generator\" content=\"headway report\">";

/// Runs that were read and analysed, ready to become a page.
pub struct Report {
    subjects: Vec<Subject>,
}

impl Report {
    /// Reads and analyses run directories, single runs and profiles mixed, in the order they will
    /// appear.
    ///
    /// A run whose requests cannot be read, or a profile with missing points, is not an error: the
    /// page says so.
    ///
    /// # Errors
    /// [`OpenError`] for a path that is no run directory, or one that a newer version wrote.
    ///
    /// ```
    /// use headway_latency::{RunDescription, RunWriter};
    /// use headway_report::Report;
    ///
    /// # let parent = tempfile::tempdir()?;
    /// # let path = parent.path().join("nginx.run");
    /// let description = RunDescription::default();
    /// RunWriter::create(&path, &description)?.finish(&description)?;
    ///
    /// let report = Report::read(&[path])?;
    /// assert!(report.html().contains("nginx.run"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(paths: &[PathBuf]) -> Result<Report, OpenError> {
        let subjects = subject::read(paths)?;
        Ok(Report { subjects })
    }

    /// The page, a whole HTML document.
    pub fn html(&self) -> String {
        page::html(&self.subjects)
    }

    /// One picture of latency over time, a panel per run, as a whole SVG document. A span of time
    /// may be shaded in all panels.
    ///
    /// # Errors
    /// [`OpenError`] if the requests of a run cannot be read.
    pub fn over_time_svg(&self, shaded: Option<&Shaded>) -> Result<String, OpenError> {
        over_time::svg(&self.subjects, shaded)
    }
}
