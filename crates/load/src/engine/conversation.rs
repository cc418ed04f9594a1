//! Clients with state: each request depends on earlier responses, and the client judges responses
//! itself.
//!
//! Where all clients are alike, [`super::Work`] has everything: documents, an order, checksums. A
//! [`Conversation`] takes its place where a request has a body or a cookie, where the response is a
//! page that only the asking client can judge, or where each connection is of another length. A client
//! is a slot, and keeps its memory from one connection to the next. Rows then have the client's number in
//! place of that of its connection.
//!
//! In an open loop the schedule starts *flows*: a request, and the requests that follow from its
//! response, with pauses. A flow has its client, with the slot and its connection, until it ends.
//!
//! The engine's promises to its caller hold on their side too: nothing here may wait, and should
//! allocate once a run has warmed up.

use std::fmt;
use std::time::Duration;

use headway_latency::Outcome;

use super::method::Method;

/// Creates the clients of a run.
pub trait Conversation: fmt::Debug + Send + Sync {
    /// The client with this number, from 0. Asked once for each, before the run.
    fn client(&self, number: u32) -> Box<dyn Client>;

    /// Whether its clients know the [`Client::parts`] of their requests.
    fn speaks_http2(&self) -> bool {
        false
    }
}

/// What is known of a request when it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// For the row.
    pub class: u8,
    /// The body's length, if it is known without the response.
    pub size_bytes: Option<u64>,
    /// Whether the request may be sent again when its kept connection was closed before a byte of
    /// the response (RFC 9110 section 9.2.2: not where doing it twice is not doing it once).
    pub repeats: bool,
}

/// A request in its parts.
#[derive(Clone, Debug)]
pub struct RequestParts<'a> {
    /// The method.
    pub method: Method,
    /// Path and query, percent-encoded.
    pub path: &'a [u8],
    /// Headers besides those of all requests, which they replace.
    pub headers: Vec<(&'a str, &'a [u8])>,
    /// `None`: the request has no body and says nothing of it.
    pub body: Option<&'a [u8]>,
}

/// One client: a slot.
pub trait Client: fmt::Debug {
    /// Chooses the next request: the next one of its flow, or the first one of the flow that the order of
    /// the plan drew. What follows is about this request, until it has [`Client::ended`].
    fn choose(&mut self, document: u32);

    /// What is known of it.
    fn facts(&self) -> RequestFacts;

    /// How many requests the connection that is being opened shall carry: at least 1. `None` is what the
    /// plan says.
    fn requests_on_connection(&mut self) -> Option<u32>;

    /// Appends its bytes. `common` are fields that every request has, with the empty line that ends
    /// the head. Called again when a request leaves in parts or is sent again, and then appends the
    /// same.
    fn form(&self, common: &[u8], out: &mut Vec<u8>);

    /// The request in its parts, for HTTP/2; `None` if the client does not know them.
    fn parts(&self) -> Option<RequestParts<'_>> {
        None
    }

    /// Whether the response has no body, whatever its header says.
    fn is_head(&self) -> bool {
        false
    }

    /// A field of the response's head.
    fn field(&mut self, name: &str, value: &[u8]);

    /// The next piece of the response's body, without framing.
    fn body(&mut self, piece: &[u8]);

    /// The response is whole: what to record it as.
    fn judge(&mut self, status: u16, body_bytes: u64) -> Outcome;

    /// The request has ended so, whether or not there was a response.
    fn ended(&mut self, outcome: Outcome);

    /// Whether the flow of the request that has ended continues with another request.
    fn continues(&self) -> bool {
        false
    }

    /// How long the client pauses after the request that has ended.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    /// The run is over before the flow is.
    fn leave(&mut self) {}
}

/// The client that reads a response as it arrives; the lifetime is that of the borrow.
pub(crate) type BodyReader<'a> = Option<&'a mut (dyn Client + 'static)>;
