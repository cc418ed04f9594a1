//! Builds responses: a file, a byte range, 304, a directory listing, a redirect or an error.
//!
//! Everything is decided from the request header and the file cache entry; nothing is opened, read
//! or sent here. The plain `200` of a small file is built once and kept in the [`ResponseCache`].
//!
//! Sources: RFC 9110 (12: negotiation, 13: preconditions, 14: ranges), RFC 9112 (9.6: close).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod byte_ranges;
mod cors;
pub mod handlers;
mod error;
mod file;
mod header_rules;
pub mod listing;
mod response_cache;

use std::rc::Rc;

use headway_config::{Config, EtagSource, Redirect};
use headway_files::{OpenFile, RootId};
use headway_http::conditional::{self, PreconditionResult};
use headway_http::media::MediaTypes;
use headway_http::path::normalise;
use headway_http::response::{FieldLines, HeadWriter, field_lines};
use headway_http::{Head, Method, Status, Target, Version};
use headway_request::{Outgoing, Piece, VirtualHost};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use header_rules::HeaderRules;

pub use cors::CorsRules;
pub use error::error;
pub use file::{
    CachedBody, ContentSource, Representation, build_cached, choose_variant, file, is_plain,
    variant_file,
};
pub use response_cache::ResponseCache;

/// Settings that all responses share, validated and formatted once.
pub struct ResponseSettings {
    server: FieldLines,
    header_rules: HeaderRules,
    cors: CorsRules,
    media: MediaTypes,
    etag: EtagSource,
}

impl ResponseSettings {
    /// Builds the settings from the configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            server: field_lines(config.server_header.iter().map(|value| ("Server", value))),
            header_rules: HeaderRules::of(config),
            cors: CorsRules::of(config),
            etag: config.etag,
            media: MediaTypes::new(
                config
                    .mime_types
                    .iter()
                    .map(|(extension, media)| (extension, media)),
            ),
        }
    }
}

impl ResponseSettings {
    /// The rules for pages of other origins.
    pub fn cors(&self) -> &CorsRules {
        &self.cors
    }
}

/// The `Date` value of the current second.
#[derive(Clone, Copy)]
pub struct Date {
    /// Seconds since the epoch.
    pub second: i64,
    /// The date as IMF-fixdate.
    pub text: [u8; 29],
}

impl Date {
    /// Formats the date of `second`.
    pub fn new(second: i64) -> Self {
        Self {
            second,
            text: headway_http::date::format(second),
        }
    }
}

/// What a response depends on besides the file.
pub struct ResponseContext<'a> {
    /// The shared settings.
    pub settings: &'a ResponseSettings,
    /// The current date.
    pub date: &'a Date,
    /// Whether the connection stays open after the response.
    pub keep_alive: bool,
    /// Whether the request is HTTP/1.0: such a client must be told that the connection stays open.
    pub is_http10: bool,
    /// Whether the method is HEAD: the same headers, no content.
    pub head_only: bool,
    /// The virtual host.
    pub host: RootId,
    /// The requested path and query, if the request could be parsed that far.
    pub target: Option<&'a [u8]>,
    /// The value of `Retry-After` in a 503, in seconds.
    pub retry_after_s: u64,
    /// Whether the request has If-Range: a partial response completes an earlier one.
    pub completes: bool,
    /// The methods that `Allow` names.
    pub allowed: &'static str,
    /// The origin of the request, if the response has to name it ([`CorsRules::names`]).
    pub origin: Option<Rc<[u8]>>,
    /// The value of `Server-Timing`.
    pub timing: Option<String>,
}

/// `Retry-After` of an ordinary 503, in seconds. Most shortages are over by then.
pub const RETRY_AFTER_S: u64 = 1;

impl<'a> ResponseContext<'a> {
    /// The context of a response to `head`.
    pub fn new(
        settings: &'a ResponseSettings,
        date: &'a Date,
        head: &Head<'a>,
        host: RootId,
        keep_alive: bool,
    ) -> Self {
        let target = match head.target {
            Target::Path(target) => Some(target),
            Target::Asterisk | Target::Authority(_) => None,
        };
        Self {
            settings,
            date,
            keep_alive,
            is_http10: head.version == Version::Http10,
            head_only: head.method == Method::Head,
            completes: head.if_range.is_some(),
            host,
            target,
            retry_after_s: RETRY_AFTER_S,
            allowed: FILE_METHODS,
            origin: None,
            timing: None,
        }
    }

    /// The context of a response to a request that could not be parsed or is rejected early.
    pub fn without_request(
        settings: &'a ResponseSettings,
        date: &'a Date,
        head_only: bool,
    ) -> Self {
        Self {
            settings,
            date,
            keep_alive: false,
            is_http10: false,
            head_only,
            completes: false,
            host: RootId(0),
            target: None,
            retry_after_s: RETRY_AFTER_S,
            allowed: FILE_METHODS,
            origin: None,
            timing: None,
        }
    }

    /// Writes the status line and the headers of every response.
    fn begin<'o>(&self, bytes: &'o mut Vec<u8>, status: Status) -> HeadWriter<'o> {
        let writer = HeadWriter::new(bytes, Version::Http11, status)
            .lines(&self.settings.server)
            .field("Date", self.date.text);
        let writer = match &self.timing {
            Some(timing) => writer.field("Server-Timing", timing),
            None => writer,
        };
        match (self.keep_alive, self.is_http10) {
            (false, _) => writer.field("Connection", "close"),
            (true, true) => writer.field("Connection", "keep-alive"),
            (true, false) => writer,
        }
    }

    /// Applies the header rules of the requested path, where no file says which path it is.
    fn apply_rules<'o>(&self, writer: HeadWriter<'o>) -> HeadWriter<'o> {
        let (rules, cors) = (&self.settings.header_rules, &self.settings.cors);
        if rules.is_empty() && cors.is_empty() {
            return writer;
        }
        match self.target.map(normalise) {
            Some(Ok(path)) => {
                let writer = rules.apply(writer, self.host, &path.bytes, None);
                cors.apply(writer, self.host, &path.bytes, self.origin.as_deref())
            }
            _ => writer,
        }
    }
}

/// Bytes to escape in the path of a URI (RFC 3986, 3.3). Slashes stay.
const PATH_SAFE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Percent-encodes a path.
fn encode_path(path: &[u8]) -> String {
    percent_encode(path, PATH_SAFE).to_string()
}

/// A redirect to the same path with a final slash. The path is rebuilt from its normal form, so
/// that a target like `//elsewhere` cannot become the address of another host.
pub fn redirect_directory(
    context: &ResponseContext<'_>,
    path: &[u8],
    query: Option<&[u8]>,
) -> Outgoing {
    let mut location = format!("/{}/", encode_path(path)).into_bytes();
    push_query(&mut location, query);
    redirect(context, Status::MOVED_PERMANENTLY, location)
}

/// The redirect of a file of HTML to its path without `.html`, which is given in its normal form.
pub fn redirect_clean(
    context: &ResponseContext<'_>,
    path: &[u8],
    query: Option<&[u8]>,
) -> Outgoing {
    let mut location = format!("/{}", encode_path(path)).into_bytes();
    push_query(&mut location, query);
    redirect(context, Status::PERMANENT_REDIRECT, location)
}

/// The redirect of a location. `rest`: what follows its prefix in the path.
pub fn redirect_location(
    context: &ResponseContext<'_>,
    to: &Redirect,
    rest: &[u8],
    query: Option<&[u8]>,
) -> Outgoing {
    let mut location = to.target.clone().into_bytes();
    if to.keeps_rest {
        location.extend_from_slice(encode_path(rest).as_bytes());
        push_query(&mut location, query);
    }
    let status = Status::from_code(to.status).unwrap_or(Status::FOUND);
    redirect(context, status, location)
}

/// The redirect of a request in the clear to TLS. Header rules are for what is served by TLS.
pub fn redirect_to_tls(
    context: &ResponseContext<'_>,
    authority: &[u8],
    path: &[u8],
    query: Option<&[u8]>,
) -> Outgoing {
    let mut location = [b"https://", authority, b"/", encode_path(path).as_bytes()].concat();
    push_query(&mut location, query);
    let mut head = Vec::with_capacity(256);
    context
        .begin(&mut head, Status::PERMANENT_REDIRECT)
        .field("Location", location)
        .field_u64("Content-Length", 0)
        .end();
    Outgoing::new(Status::PERMANENT_REDIRECT.code(), head)
}

fn push_query(location: &mut Vec<u8>, query: Option<&[u8]>) {
    if let Some(query) = query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
}

fn redirect(context: &ResponseContext<'_>, status: Status, location: Vec<u8>) -> Outgoing {
    let mut head = Vec::with_capacity(256);
    let writer = context
        .begin(&mut head, status)
        .field("Location", location)
        .field_u64("Content-Length", 0);
    context.apply_rules(writer).end();
    Outgoing::new(status.code(), head)
}

/// The methods that static files support.
pub const FILE_METHODS: &str = "GET, HEAD, OPTIONS";

/// The methods that handlers get.
pub const HANDLER_METHODS: &str = "GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS";

/// The response to `OPTIONS`.
pub fn options(context: &ResponseContext<'_>) -> Outgoing {
    let mut head = Vec::with_capacity(192);
    let writer = context
        .begin(&mut head, Status::OK)
        .field("Allow", context.allowed)
        .field_u64("Content-Length", 0);
    context.apply_rules(writer).end();
    Outgoing::new(Status::OK.code(), head)
}

/// The response to a preflight: whether a page of another origin may make a request.
pub fn preflight(context: &ResponseContext<'_>) -> Outgoing {
    let mut head = Vec::with_capacity(256);
    let writer = context.begin(&mut head, Status::NO_CONTENT);
    let writer = context.apply_rules(writer);
    let (cors, origin) = (&context.settings.cors, context.origin.as_deref());
    let writer = match context.target.map(normalise) {
        Some(Ok(path)) => cors.answer_preflight(writer, context.host, &path.bytes, origin),
        _ => writer,
    };
    writer.end();
    Outgoing::new(Status::NO_CONTENT.code(), head)
}

/// A directory listing that a helper has rendered. It has no validators, but it exists, which `*` in a
/// precondition asks for.
pub fn listing_page(
    context: &ResponseContext<'_>,
    head: &Head<'_>,
    host: &VirtualHost,
    page: Rc<OpenFile>,
) -> Outgoing {
    match conditional::evaluate_without_validators(head.method, &head.conditions) {
        PreconditionResult::Proceed => {}
        PreconditionResult::NotModified => {
            let mut head = Vec::with_capacity(192);
            let writer = context.begin(&mut head, Status::NOT_MODIFIED);
            context.apply_rules(writer).end();
            return Outgoing::new(Status::NOT_MODIFIED.code(), head);
        }
        PreconditionResult::PreconditionFailed => {
            return error(context, Status::PRECONDITION_FAILED, Some(host), None);
        }
    }
    let size = page.meta().size;
    let mut head = Vec::with_capacity(256);
    let writer = context
        .begin(&mut head, Status::OK)
        .field("Content-Type", "text/html; charset=utf-8")
        .field_u64("Content-Length", size);
    context.apply_rules(writer).end();
    let mut outgoing = Outgoing::new(Status::OK.code(), head);
    if !context.head_only && size > 0 {
        outgoing.push(Piece::File(page, 0..size));
    }
    outgoing
}
