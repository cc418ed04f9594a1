//! Replies that carry a file, part of it, or the news that it has not changed.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use headway_files::{FoundFile, KnownFile, Meta, OpenFile};
use headway_gateway::FieldList;
use headway_http::conditional::{self, Outcome, Validators};
use headway_http::encoding::{self, Available, Coding};
use headway_http::etag::Etag;
use headway_http::multipart::Multipart;
use headway_http::range::{self, Range, Ranges};
use headway_http::response::HeadWriter;
use headway_http::{Head, Method, Status, Version};

use super::dynamic::handoff;
use super::{Context, error};
use crate::request::{Charge, Content, Outgoing, Piece, Site, Variant};

/// The representation that is to be sent.
pub struct Representation<'a> {
    /// Its file.
    pub file: &'a KnownFile,
    /// Which one it is.
    pub variant: Variant,
    /// Others exist, so the reply depends on `Accept-Encoding`.
    pub varies: bool,
    /// The path that was asked for, for extra fields.
    pub path: &'a [u8],
    /// The name that decides the media type.
    pub name: &'a [u8],
    /// What a program that hands the file over says besides.
    pub handed: Option<&'a FieldList>,
}

/// Which representation the client wants: a precompressed sibling it accepts, or the file itself.
pub fn choose_variant(head: &Head<'_>, found: &FoundFile) -> Variant {
    let Some(accept) = &head.accept_encoding else {
        return 0;
    };
    if !varies(found) {
        return 0;
    }
    let there = Coding::ALL.into_iter().zip(&found.siblings);
    let available: Available = there
        .filter(|(_, sibling)| sibling.is_some())
        .map(|(coding, _)| coding)
        .collect();
    let coding = encoding::negotiate(accept, available);
    coding
        .and_then(|coding| Coding::ALL.iter().position(|&one| one == coding))
        .map_or(0, |at| at + 1)
}

/// Whether the reply depends on `Accept-Encoding` at all.
fn varies(found: &FoundFile) -> bool {
    found.siblings.iter().any(Option::is_some)
}

impl<'a> Representation<'a> {
    /// The chosen variant of `found`.
    pub fn new(found: &'a FoundFile, variant: Variant, site: &'a Site, path: &'a [u8]) -> Self {
        let sibling = variant
            .checked_sub(1)
            .and_then(|at| found.siblings[at].as_ref());
        let index = found
            .index
            .and_then(|index| site.index.get(usize::from(index)));
        Self {
            file: sibling.unwrap_or(&found.file),
            variant,
            varies: varies(found),
            path,
            name: index.map_or(path, |name| name.as_bytes()),
            handed: None,
        }
    }

    /// The fields of every reply about this representation. `described`: the reply carries some of
    /// it.
    fn fields<'o>(
        &self,
        writer: HeadWriter<'o>,
        context: &Context<'_>,
        etag: &Etag,
        described: bool,
    ) -> HeadWriter<'o> {
        let writer = writer
            .field(
                "Last-Modified",
                headway_http::date::format(self.file.meta().modified.0),
            )
            .field("ETag", etag.as_bytes())
            .field_if_some("Vary", self.varies.then_some("Accept-Encoding"));
        let writer = match self.handed {
            Some(kept) => handoff::write_kept(writer, kept, described),
            None => writer,
        };
        context.rules.extra(writer, self.path)
    }

    /// What its content is; not for `304`, which carries none (RFC 9110, 15.4.5).
    fn describe<'o>(&self, writer: HeadWriter<'o>) -> HeadWriter<'o> {
        let coding = self.variant.checked_sub(1).map(|at| Coding::ALL[at]);
        writer.field_if_some("Content-Encoding", coding.map(Coding::as_str))
    }

    fn media<'r>(&'r self, context: &'r Context<'_>) -> Cow<'r, str> {
        match self.handed.and_then(handoff::media) {
            Some(media) => String::from_utf8_lossy(media),
            None => context.rules.media.of(self.name),
        }
    }
}

/// Where the bytes of a representation come from.
pub enum Source {
    /// Memory.
    Content(Rc<Content>),
    /// The open file.
    File(Rc<OpenFile>),
}

impl Source {
    /// A range of it.
    fn piece(&self, range: Range) -> Piece {
        match self {
            Source::Content(content) => {
                let at = content.body_at;
                let range = at + range.start as usize..at + range.end_exclusive as usize;
                Piece::Content(content.clone(), range)
            }
            Source::File(file) => Piece::File(file.clone(), range.start..range.end_exclusive),
        }
    }
}

/// A strong validator: another inode, length or nanosecond of change is another tag.
fn entity_tag(meta: &Meta) -> Etag {
    Etag::of_file(meta.inode, meta.size, modified_ns(meta))
}

fn modified_ns(meta: &Meta) -> i64 {
    let (seconds, nanoseconds) = meta.modified;
    seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(i64::from(nanoseconds))
}

/// Nothing in the request asks for other than the plain `200`.
pub fn is_plain(head: &Head<'_>, keep_alive: bool) -> bool {
    head.method == Method::Get
        && head.conditions.is_empty()
        && head.range.is_none()
        // An HTTP/1.0 client has to be told that its connection stays.
        && (head.version == Version::Http11 || !keep_alive)
}

/// The plain `200` reply, head and body in one piece of memory.
pub fn prepare(
    context: &Context<'_>,
    representation: &Representation<'_>,
    body: &[u8],
    total: &Rc<Cell<u64>>,
) -> Content {
    let etag = entity_tag(representation.file.meta());
    let mut bytes = Vec::with_capacity(512 + body.len());
    bytes.resize(Content::LEAD_BYTES, b' ');
    whole_head(context, representation, &etag, &mut bytes);
    let date_at = memchr::memmem::find(&bytes, b"\r\nDate: ").map_or(0, |at| at + 8);
    let body_at = bytes.len();
    bytes.extend_from_slice(body);
    let bytes = bytes.into_boxed_slice();
    let charge = Charge::new(total, bytes.len() as u64);
    Content {
        bytes,
        start: Content::LEAD_BYTES,
        body_at,
        date_at,
        date_second: context.date.second,
        charge,
    }
}

fn whole_head(
    context: &Context<'_>,
    representation: &Representation<'_>,
    etag: &Etag,
    bytes: &mut Vec<u8>,
) {
    let writer = context
        .begin(bytes, Status::OK)
        .field("Content-Type", &*representation.media(context))
        .field_u64("Content-Length", representation.file.meta().size)
        .field("Accept-Ranges", "bytes");
    let writer = representation.describe(writer);
    representation.fields(writer, context, etag, true).end();
}

/// The reply for a file that is there: preconditions first, then ranges, then all of it.
pub fn file(
    context: &Context<'_>,
    head: &Head<'_>,
    representation: &Representation<'_>,
    source: &Source,
    site: &Site,
) -> Outgoing {
    let meta = representation.file.meta();
    let etag = entity_tag(meta);
    let validators = Validators {
        etag: etag.as_bytes(),
        last_modified: meta.modified.0,
    };
    match conditional::evaluate(head.method, &head.conditions, &validators) {
        Outcome::NotModified => return not_modified(context, representation, &etag),
        Outcome::PreconditionFailed => {
            return error(context, Status::PRECONDITION_FAILED, Some(site), None);
        }
        Outcome::Proceed => {}
    }
    match wanted_ranges(context, head, &validators, meta.size) {
        Ranges::Whole => whole(context, representation, source, &etag),
        Ranges::Unsatisfiable => error(
            context,
            Status::RANGE_NOT_SATISFIABLE,
            Some(site),
            Some(meta.size),
        ),
        Ranges::Satisfiable(ranges) => match *ranges {
            [one] => single_range(context, representation, source, &etag, one),
            ref many => multiple_ranges(context, representation, source, &etag, many),
        },
    }
}

/// RFC 9110, 14.2: Range is defined for GET alone, and holds only if If-Range does.
fn wanted_ranges(
    context: &Context<'_>,
    head: &Head<'_>,
    validators: &Validators<'_>,
    size: u64,
) -> Ranges {
    let current = head
        .if_range
        .is_none_or(|if_range| conditional::if_range_holds(if_range, validators));
    match head.range {
        Some(field) if current && !context.head_only => range::ranges(field, size),
        _ => Ranges::Whole,
    }
}

fn whole(
    context: &Context<'_>,
    representation: &Representation<'_>,
    source: &Source,
    etag: &Etag,
) -> Outgoing {
    let size = representation.file.meta().size;
    let mut bytes = Vec::with_capacity(512);
    whole_head(context, representation, etag, &mut bytes);
    let mut outgoing = Outgoing::new(Status::OK.code(), bytes);
    if !context.head_only && size > 0 {
        outgoing.push(source.piece(Range {
            start: 0,
            end_exclusive: size,
        }));
    }
    outgoing
}

fn not_modified(
    context: &Context<'_>,
    representation: &Representation<'_>,
    etag: &Etag,
) -> Outgoing {
    let mut bytes = Vec::with_capacity(256);
    let writer = context.begin(&mut bytes, Status::NOT_MODIFIED);
    representation.fields(writer, context, etag, false).end();
    Outgoing::new(Status::NOT_MODIFIED.code(), bytes)
}

fn single_range(
    context: &Context<'_>,
    representation: &Representation<'_>,
    source: &Source,
    etag: &Etag,
    range: Range,
) -> Outgoing {
    let mut bytes = Vec::with_capacity(512);
    let writer = context
        .begin(&mut bytes, Status::PARTIAL_CONTENT)
        .field("Content-Type", &*representation.media(context))
        .field_u64("Content-Length", range.length())
        .content_range(range, representation.file.meta().size);
    let writer = representation.describe(writer);
    representation.fields(writer, context, etag, true).end();
    let mut outgoing = Outgoing::new(Status::PARTIAL_CONTENT.code(), bytes);
    outgoing.push(source.piece(range));
    outgoing
}

fn multiple_ranges(
    context: &Context<'_>,
    representation: &Representation<'_>,
    source: &Source,
    etag: &Etag,
    ranges: &[Range],
) -> Outgoing {
    let media = representation.media(context);
    let boundary = boundary(context, representation.file.meta());
    let frame = Multipart::new(&boundary, &media, representation.file.meta().size);
    let mut bytes = Vec::with_capacity(512);
    let writer = context
        .begin(&mut bytes, Status::PARTIAL_CONTENT)
        .field("Content-Type", frame.content_type())
        .field_u64("Content-Length", frame.body_bytes(ranges));
    let writer = representation.describe(writer);
    representation.fields(writer, context, etag, true).end();
    let mut outgoing = Outgoing::new(Status::PARTIAL_CONTENT.code(), bytes);
    for (index, &range) in ranges.iter().enumerate() {
        let mut part = Vec::with_capacity(192);
        frame.write_part_head(&mut part, index, range);
        outgoing.push(Piece::bytes(part));
        outgoing.push(source.piece(range));
    }
    let mut closing = Vec::with_capacity(80);
    frame.write_closing(&mut closing);
    outgoing.push(Piece::bytes(closing));
    outgoing
}

/// A boundary from the file's identity and the second: stable within a reply, of the same length
/// for every file, and a file that holds it on purpose would have to know its own inode and time of
/// change to the nanosecond.
fn boundary(context: &Context<'_>, meta: &Meta) -> String {
    format!(
        "headway{:016x}{:016x}{:016x}",
        meta.inode,
        modified_ns(meta),
        context.date.second
    )
}
