//! A request of the application in the worker itself, while a helper works for it.
//!
//! What has been decided is kept, so that nothing is done a second time when the request is gone on
//! with: a record is appended once. The request's body is not kept; what it said is in the stage.

use headway_files::Meta;
use headway_specweb::application::Reply;
use headway_specweb::post::Entry;
use headway_specweb::profile::Reset;

/// A request that waits.
#[derive(Debug)]
pub struct Turn {
    /// The location, by its number.
    pub place: usize,
    /// How far it is.
    pub stage: TurnStage,
}

/// How far a request of the application is.
#[derive(Debug)]
pub enum TurnStage {
    /// The name of a table is being looked up.
    Tables,
    /// The tables are being loaded, in this version.
    Loading(Meta),
    /// This record is being appended.
    Posting(Entry),
    /// The tables are being made anew.
    Resetting(Reset),
    /// The log is being read.
    Fetching,
    /// The file in this reply is being looked up or read in.
    Page(Reply),
}
