//! The state of a request to the built-in application while it waits for a helper.
//!
//! Decisions are kept, so that no work is repeated when the request is resumed: a record is
//! appended once. The request body is not kept; the stage holds what was parsed from it.

use headway_files::Meta;
use headway_specweb::application::PageResponse;
use headway_specweb::post::Entry;
use headway_specweb::profile::Reset;

/// A waiting request.
#[derive(Debug)]
pub struct ApplicationRequest {
    /// The index of the location.
    pub route: usize,
    /// The stage.
    pub stage: ApplicationStage,
}

/// The stage of a request to the application.
#[derive(Debug)]
pub enum ApplicationStage {
    /// The path of a table is being looked up.
    Tables,
    /// A version of the tables is being loaded.
    Loading(Meta),
    /// A record is being appended.
    Posting(Entry),
    /// The tables are being reset.
    Resetting(Reset),
    /// The log is being read.
    Fetching,
    /// The file in this response is being looked up or read in.
    Page(PageResponse),
}
