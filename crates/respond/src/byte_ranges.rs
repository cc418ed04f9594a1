//! Responses to range requests: `206` with one range or `multipart/byteranges`, and `416`.
//!
//! Source: RFC 9110 section 14.

use headway_files::Meta;
use headway_http::conditional::{self, Validators};
use headway_http::etag::Etag;
use headway_http::multipart::Multipart;
use headway_http::range::{self, Range, Ranges};
use headway_http::{Head, Status};
use headway_request::{Outgoing, Piece};

use super::ResponseContext;
use super::file::{ContentSource, Representation, modified_ns};

/// The ranges to send. Range applies to GET only, and only if If-Range matches (RFC 9110, 14.2).
pub(super) fn requested_ranges(
    context: &ResponseContext<'_>,
    head: &Head<'_>,
    validators: &Validators<'_>,
    size: u64,
) -> Ranges {
    let current = head
        .if_range
        .is_none_or(|if_range| conditional::if_range_matches(if_range, validators));
    match head.range {
        Some(field) if current && !context.head_only => range::ranges(field, size),
        _ => Ranges::Whole,
    }
}

/// `206` with one range. A client whose If-Range matches has the headers about the file from an earlier
/// response, and gets those that are required (RFC 9110, 15.3.7).
pub(super) fn single_range(
    context: &ResponseContext<'_>,
    representation: &Representation<'_>,
    source: &ContentSource,
    etag: &Etag,
    range: Range,
) -> Outgoing {
    let mut bytes = Vec::with_capacity(512);
    let media = (!context.completes).then(|| representation.media(context));
    let writer = context
        .begin(&mut bytes, Status::PARTIAL_CONTENT)
        .field_if_some("Content-Type", media.as_deref())
        .field_u64("Content-Length", range.length())
        .content_range(range, representation.file.meta().size);
    if context.completes {
        representation.required_fields(writer, context, etag, false)
    } else {
        let writer = representation.describe(writer);
        representation.fields(writer, context, etag, true)
    }
    .end();
    let mut outgoing = Outgoing::new(Status::PARTIAL_CONTENT.code(), bytes);
    outgoing.push(source.piece(range));
    outgoing
}

/// `206` with several ranges as `multipart/byteranges`.
pub(super) fn multiple_ranges(
    context: &ResponseContext<'_>,
    representation: &Representation<'_>,
    source: &ContentSource,
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

/// A multipart boundary made of the file's identity and the current second. It is constant within a
/// response, and a file could contain it only by knowing its own inode and change time to the
/// nanosecond.
fn boundary(context: &ResponseContext<'_>, meta: &Meta) -> String {
    format!(
        "headway{:016x}{:016x}{:016x}",
        meta.inode,
        modified_ns(meta),
        context.date.second
    )
}
