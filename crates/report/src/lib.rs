//! Run directories in, one self-contained HTML file out.
//!
//! The page needs no network and no script, reads well from a phone to a wide screen, in light,
//! dark and print, and can be sent to somebody who has nothing of Headway. It shows the client's
//! verdict before any figure, and every drawing has its numbers as a table beside it. Nothing is
//! measured or judged here: figures come from `latency`, and what a run does not know is left out,
//! never guessed.
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

mod alone;
mod page;
mod section;
mod sheet;
mod study;
mod subject;
mod blocked;
mod figure;
mod chart;
mod html;
mod bounds;
mod units;

use std::path::PathBuf;

pub use alone::{Courses, Cumulative, courses_svg, cumulative_svg};
pub use headway_latency::OpenError;
pub use html::escaped;
pub use sheet::{Sheet, SheetBars, SheetPart, SheetSection, SheetTable, sheet};
pub use study::page as study_page;

use subject::Subject;

/// What every page of ours contains near its beginning, and hardly another file does.
pub const MARK: &str = "<meta name=\"generator\" content=\"headway report\">";

/// Runs that were read and analysed, ready to become a page.
pub struct Report {
    subjects: Vec<Subject>,
}

impl Report {
    /// Reads and analyses run directories, single runs and profiles mixed, in the order they will
    /// appear.
    ///
    /// A run whose requests cannot be read, or a profile with missing points, is no error: the page
    /// says it.
    ///
    /// # Errors
    /// [`OpenError`] for a path that is no run directory, or one that a newer version wrote.
    ///
    /// ```no_run
    /// let report = headway_report::Report::read(&["nginx.run".into(), "headway.run".into()])?;
    /// std::fs::write("report.html", report.html())?;
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
}
