//! The state of a request to an embedded application while it waits for a helper.
//!
//! Decisions are kept, so that no work is repeated when the request is resumed: a job that runs once
//! is submitted once.

use std::borrow::Cow;
use std::collections::VecDeque;

use headway_embedded::{Part, Response, State};
use headway_request::Piece;

/// A waiting request.
pub struct ApplicationRequest {
    /// The index of the location.
    pub route: usize,
    /// What it waits for.
    pub stage: ApplicationStage,
}

/// What a request to an application waits for.
pub enum ApplicationStage {
    /// The version of a file of the application.
    File(State),
    /// A job, and the file that it replaces.
    Job(State, Option<Cow<'static, str>>),
    /// The next document of a response, to be looked up or read.
    Response(PendingResponse),
}

/// A response whose documents are being collected.
pub struct PendingResponse {
    /// The status.
    pub status: u16,
    /// The application's fields.
    pub fields: Vec<(&'static str, String)>,
    /// The pieces at hand.
    pub ready: Vec<Piece>,
    /// The other parts.
    pub left: VecDeque<Part>,
    /// Whether it stands for one whose document does not exist.
    pub is_substitute: bool,
}

impl From<Response> for PendingResponse {
    fn from(response: Response) -> Self {
        Self {
            status: response.status,
            fields: response.fields,
            ready: Vec::with_capacity(response.body.len()),
            left: response.body.into(),
            is_substitute: false,
        }
    }
}
