//! What to answer: the file, a range of it, not modified, a listing, a redirect, an error.
//!
//! Everything here is decided from the request head and what is known about the name; nothing is
//! opened, read or sent. The plain `200` of a small file is prepared once ([`shelf`]) and reused.
//!
//! Sources: RFC 9110 (13: preconditions, 14: ranges, 12: negotiation), RFC 9112 (9.6: close).

pub mod dynamic;
mod error;
mod file;
pub mod listing;
mod shelf;

use std::rc::Rc;

use headway_files::OpenFile;
use headway_http::media::MediaTypes;
use headway_http::path::normalise;
use headway_http::response::{FieldLines, HeadWriter, field_lines};
use headway_http::{Head, Method, Status, Target, Version};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use crate::config::Config;
use crate::request::{Outgoing, Piece};

pub use error::error;
pub use file::{Representation, Source, choose_variant, file, is_plain, prepare};
pub use shelf::Shelf;

/// What all replies share, checked and joined once.
pub struct Rules {
    server: FieldLines,
    /// By path prefix, without its first slash.
    extra: Vec<(Vec<u8>, FieldLines)>,
    media: MediaTypes,
}

impl Rules {
    /// From the configuration.
    pub fn new(config: &Config) -> Self {
        let extra = config.headers.iter().map(|field| {
            let prefix = field.prefix.strip_prefix('/').unwrap_or(&field.prefix);
            (
                prefix.as_bytes().to_vec(),
                field_lines([(&field.name, &field.value)]),
            )
        });
        Self {
            server: field_lines(config.server_header.iter().map(|value| ("Server", value))),
            extra: extra.collect(),
            media: MediaTypes::new(
                config
                    .mime_types
                    .iter()
                    .map(|(extension, media)| (extension, media)),
            ),
        }
    }

    /// Adds the fields configured for a path (relative, as `lookup` names it).
    fn extra<'o>(&self, mut writer: HeadWriter<'o>, path: &[u8]) -> HeadWriter<'o> {
        for (prefix, lines) in &self.extra {
            if path.starts_with(prefix) {
                writer = writer.lines(lines);
            }
        }
        writer
    }
}

/// The `Date` value of this second.
#[derive(Clone, Copy)]
pub struct Date {
    /// Seconds since the epoch.
    pub second: i64,
    /// As IMF-fixdate.
    pub text: [u8; 29],
}

impl Date {
    /// The date of `second`.
    pub fn new(second: i64) -> Self {
        Self {
            second,
            text: headway_http::date::format(second),
        }
    }
}

/// What the stage knows when it answers.
pub struct Context<'a> {
    /// Shared settings.
    pub rules: &'a Rules,
    /// This second.
    pub date: &'a Date,
    /// The connection stays after the reply.
    pub keep_alive: bool,
    /// The request asked by HTTP/1.0, which has to be told that the connection stays.
    pub old: bool,
    /// `HEAD`: the same fields and no body.
    pub head_only: bool,
    /// The path and query that were asked for, if that much was understood.
    pub target: Option<&'a [u8]>,
    /// When to ask again what cannot be answered now, in seconds.
    pub retry_after_s: u64,
}

/// When to ask again what could not be answered: what is usually in the way has gone by then.
pub const RETRY_AFTER_S: u64 = 1;

impl<'a> Context<'a> {
    /// For the request `head`.
    pub fn new(rules: &'a Rules, date: &'a Date, head: &Head<'a>, keep_alive: bool) -> Self {
        let target = match head.target {
            Target::Path(target) => Some(target),
            Target::Asterisk | Target::Authority(_) => None,
        };
        Self {
            rules,
            date,
            keep_alive,
            old: head.version == Version::Http10,
            head_only: head.method == Method::Head,
            target,
            retry_after_s: RETRY_AFTER_S,
        }
    }

    /// For a request that is refused before it is understood.
    pub fn unread(rules: &'a Rules, date: &'a Date, head_only: bool) -> Self {
        Self {
            rules,
            date,
            keep_alive: false,
            old: false,
            head_only,
            target: None,
            retry_after_s: RETRY_AFTER_S,
        }
    }

    /// Status line and the fields of every reply.
    fn begin<'o>(&self, bytes: &'o mut Vec<u8>, status: Status) -> HeadWriter<'o> {
        let writer = HeadWriter::new(bytes, Version::Http11, status)
            .lines(&self.rules.server)
            .field("Date", self.date.text);
        match (self.keep_alive, self.old) {
            (false, _) => writer.field("Connection", "close"),
            (true, true) => writer.field("Connection", "keep-alive"),
            (true, false) => writer,
        }
    }

    /// Adds the fields configured for the path that was asked for, where no file was found that
    /// knows it.
    fn extra<'o>(&self, writer: HeadWriter<'o>) -> HeadWriter<'o> {
        if self.rules.extra.is_empty() {
            return writer;
        }
        match self.target.map(normalise) {
            Some(Ok(path)) => self.rules.extra(writer, &path.bytes),
            _ => writer,
        }
    }
}

/// What stays as it is in the path of a URI (RFC 3986, 3.3), slashes included.
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

/// A path as it stands in a URI.
fn encode_path(path: &[u8]) -> String {
    percent_encode(path, PATH_SAFE).to_string()
}

/// A directory asked for without its slash. The path is written anew from its normal form, so that
/// a target like `//elsewhere` cannot become another host's address.
pub fn redirect(context: &Context<'_>, path: &[u8], query: Option<&[u8]>) -> Outgoing {
    let mut location = format!("/{}/", encode_path(path)).into_bytes();
    if let Some(query) = query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    let mut head = Vec::with_capacity(256);
    let writer = context
        .begin(&mut head, Status::MOVED_PERMANENTLY)
        .field("Location", location)
        .field_u64("Content-Length", 0);
    context.extra(writer).end();
    Outgoing::new(Status::MOVED_PERMANENTLY.code(), head)
}

/// The methods static files know.
pub const ALLOWED: &str = "GET, HEAD, OPTIONS";

/// The answer to `OPTIONS`.
pub fn options(context: &Context<'_>) -> Outgoing {
    let mut head = Vec::with_capacity(192);
    let writer = context
        .begin(&mut head, Status::OK)
        .field("Allow", ALLOWED)
        .field_u64("Content-Length", 0);
    context.extra(writer).end();
    Outgoing::new(Status::OK.code(), head)
}

/// A directory's page, made by a helper.
pub fn listing_page(context: &Context<'_>, page: Rc<OpenFile>) -> Outgoing {
    let size = page.meta().size;
    let mut head = Vec::with_capacity(256);
    let writer = context
        .begin(&mut head, Status::OK)
        .field("Content-Type", "text/html; charset=utf-8")
        .field_u64("Content-Length", size);
    context.extra(writer).end();
    let mut outgoing = Outgoing::new(Status::OK.code(), head);
    if !context.head_only && size > 0 {
        outgoing.push(Piece::File(page, 0..size));
    }
    outgoing
}
