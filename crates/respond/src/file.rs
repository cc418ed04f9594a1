//! Responses about a file: 200, 304 and 412, and which precompressed variant to send. Ranges are in
//! [`super::byte_ranges`].

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use headway_config::EtagSource;
use headway_files::{FoundFile, KnownFile, Meta, OpenFile, RootId};
use headway_gateway::FieldList;
use headway_http::conditional::{self, PreconditionResult, Validators};
use headway_http::encoding::{self, Coding, CodingSet};
use headway_http::etag::Etag;
use headway_http::range::{Range, Ranges};
use headway_http::response::HeadWriter;
use headway_http::{Head, Method, OwnedHead, Status, Version};
use headway_request::{
    CachedResponse, Charge, Modified, Outgoing, Piece, StoredBody, Variant, VirtualHost,
    unsettled_last_modified,
};
use twox_hash::XxHash3_128;

use super::handlers::accel_redirect;
use super::{ResponseContext, byte_ranges, error};

/// The file variant to send.
pub struct Representation<'a> {
    /// The file.
    pub file: &'a KnownFile,
    /// The variant of the file.
    pub variant: Variant,
    /// Whether the response depends on `Accept-Encoding` because precompressed files exist.
    pub varies: bool,
    /// Whether the file was last checked after the second of its modification time, so that no other
    /// version can have the same time.
    pub settled: bool,
    /// The document root of the path.
    pub root: RootId,
    /// The requested path, which selects the configured headers.
    pub path: &'a [u8],
    /// The name that determines the media type.
    pub name: &'a [u8],
    /// The headers of a program that hands the file over.
    pub handed: Option<&'a FieldList>,
}

/// Chooses the variant to send: a precompressed file that the client accepts, or the file itself.
pub fn choose_variant(accept: Option<&[u8]>, found: &FoundFile) -> Variant {
    let Some(accept) = accept else {
        return 0;
    };
    if !varies(found) {
        return 0;
    }
    let files = Coding::ALL.into_iter().zip(&found.siblings);
    let available: CodingSet = files
        .filter(|(_, sibling)| sibling.is_some())
        .map(|(coding, _)| coding)
        .collect();
    let coding = encoding::negotiate(accept, available);
    coding
        .and_then(|coding| Coding::ALL.iter().position(|&one| one == coding))
        .map_or(0, |at| at + 1)
}

/// The file of a variant.
pub fn variant_file(found: &FoundFile, variant: Variant) -> &KnownFile {
    let sibling = variant
        .checked_sub(1)
        .and_then(|at| found.siblings[at].as_ref());
    sibling.unwrap_or(&found.file)
}

/// Whether precompressed files exist.
fn varies(found: &FoundFile) -> bool {
    found.siblings.iter().any(Option::is_some)
}

impl<'a> Representation<'a> {
    /// The chosen variant of `found`.
    pub fn new(
        found: &'a FoundFile,
        variant: Variant,
        host: &'a VirtualHost,
        path: &'a [u8],
        settled: bool,
    ) -> Self {
        let index = found
            .index
            .and_then(|index| host.index.get(usize::from(index)));
        Self {
            file: variant_file(found, variant),
            variant,
            varies: varies(found),
            settled,
            root: host.root,
            path,
            name: index.map_or(path, |name| name.as_bytes()),
            handed: None,
        }
    }

    /// Writes the headers of every response about this file. `described`: the response carries
    /// content.
    pub(super) fn fields<'o>(
        &self,
        writer: HeadWriter<'o>,
        context: &ResponseContext<'_>,
        etag: &Etag,
        described: bool,
    ) -> HeadWriter<'o> {
        let modified = headway_http::date::format(self.last_modified(context));
        let writer = writer.field("Last-Modified", modified);
        self.required_fields(writer, context, etag, described)
    }

    /// Writes the headers that a 206 must have even if its client has the others (RFC 9110, 15.3.7).
    pub(super) fn required_fields<'o>(
        &self,
        writer: HeadWriter<'o>,
        context: &ResponseContext<'_>,
        etag: &Etag,
        described: bool,
    ) -> HeadWriter<'o> {
        let writer = writer
            .field("ETag", etag.as_bytes())
            .field_if_some("Vary", self.varies.then_some("Accept-Encoding"));
        let writer = match self.handed {
            Some(kept) => accel_redirect::write_passed(writer, kept, described),
            None => writer,
        };
        let rules = &context.settings.header_rules;
        let writer = match rules.is_empty() {
            true => writer,
            false => {
                let media = rules.needs_media().then(|| self.media(context));
                rules.apply(writer, self.root, self.path, media.as_deref())
            }
        };
        let origin = context.origin.as_deref();
        context
            .settings
            .cors
            .apply(writer, self.root, self.path, origin)
    }

    /// Never later than Date (RFC 9110, 8.8.2.1): a clock may have been set back, or the file come from
    /// a machine whose clock is ahead.
    fn last_modified(&self, context: &ResponseContext<'_>) -> i64 {
        let (modified, second) = (self.file.meta().modified.0, context.date.second);
        match self.settled {
            true => modified.min(second),
            false => unsettled_last_modified(modified, second),
        }
    }

    /// The tag by size and time, with the inode if that is configured. It is strong once the file is
    /// settled: a later version has another time.
    fn tag_of_meta(&self, context: &ResponseContext<'_>) -> Etag {
        let meta = self.file.meta();
        let numbers = [meta.inode, modified_ns(meta) as u64, meta.size];
        let numbers = match context.settings.etag {
            EtagSource::Inode => &numbers[..],
            EtagSource::MtimeSize | EtagSource::Content => &numbers[1..],
        };
        let tag = Etag::new(numbers, self.coding());
        match self.settled {
            true => tag,
            false => tag.weakened(),
        }
    }

    /// The tag of a file whose content is at hand, if it is to be a checksum. That is always strong.
    pub fn checksum_tag(&self, context: &ResponseContext<'_>, body: &[u8]) -> Option<Etag> {
        if context.settings.etag != EtagSource::Content {
            return None;
        }
        let sum = XxHash3_128::oneshot(body);
        Some(Etag::new(&[(sum >> 64) as u64, sum as u64], self.coding()))
    }

    /// The content coding of the variant. It is a part of the tag: with equal size and time a coded
    /// form would otherwise have the tag of another one.
    fn coding(&self) -> Option<&'static str> {
        let at = self.variant.checked_sub(1)?;
        Some(Coding::ALL[at].as_str())
    }

    /// Writes the headers about the content, which `304` omits (RFC 9110, 15.4.5).
    pub(super) fn describe<'o>(&self, writer: HeadWriter<'o>) -> HeadWriter<'o> {
        writer.field_if_some("Content-Encoding", self.coding())
    }

    pub(super) fn media<'r>(&'r self, context: &'r ResponseContext<'_>) -> Cow<'r, str> {
        match self.handed.and_then(accel_redirect::media) {
            Some(media) => String::from_utf8_lossy(media),
            None => context.settings.media.of(self.name),
        }
    }
}

/// Where the content comes from.
pub enum ContentSource {
    /// Memory.
    Cached(Rc<CachedResponse>),
    /// The open file.
    File(Rc<OpenFile>),
}

impl ContentSource {
    /// A byte range of the content.
    pub(super) fn piece(&self, range: Range) -> Piece {
        match self {
            ContentSource::Cached(content) => content.piece(range.start..range.end_exclusive),
            ContentSource::File(file) => {
                Piece::File(file.clone(), range.start..range.end_exclusive)
            }
        }
    }
}

pub(super) fn modified_ns(meta: &Meta) -> i64 {
    let (seconds, nanoseconds) = meta.modified;
    seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(i64::from(nanoseconds))
}

/// Whether the response is a plain `200`: GET, no preconditions, no range.
pub fn is_plain(head: &OwnedHead, keep_alive: bool) -> bool {
    head.method() == Method::Get
        && head.is_unconditional()
        // An HTTP/1.0 client must be told that its connection stays open.
        && (head.version() >= Version::Http11 || !keep_alive)
}

/// The body of a response that is built for the cache.
pub enum CachedBody<'b> {
    /// To be placed behind the header in one block of memory.
    Inline(&'b [u8]),
    /// In the content store, with its checksum if the tag is one.
    Stored(&'b Rc<StoredBody>, Option<Etag>),
}

/// Builds the cached form of the plain `200`.
pub fn build_cached(
    context: &ResponseContext<'_>,
    representation: &Representation<'_>,
    body: &CachedBody<'_>,
    total: &Rc<Cell<u64>>,
) -> CachedResponse {
    let (inline, stored, checksum) = match *body {
        CachedBody::Inline(body) => (body, None, representation.checksum_tag(context, body)),
        CachedBody::Stored(stored, checksum) => (&[][..], Some(stored), checksum),
    };
    let etag = checksum.unwrap_or_else(|| representation.tag_of_meta(context));
    let mut bytes = Vec::with_capacity(512 + inline.len());
    bytes.resize(CachedResponse::LEAD_BYTES, b' ');
    whole_head(context, representation, &etag, &mut bytes);
    let value_at = |start: &[u8]| memchr::memmem::find(&bytes, start).map(|at| at + start.len());
    let date_at = value_at(b"\r\nDate: ").unwrap_or(0);
    let modified = value_at(b"\r\nLast-Modified: ").map(|at| Modified {
        at,
        second: representation.file.meta().modified.0,
        is_settled: representation.settled,
    });
    let body_at = bytes.len();
    bytes.extend_from_slice(inline);
    let bytes = bytes.into_boxed_slice();
    let charge = Charge::new(total, bytes.len() as u64);
    CachedResponse {
        bytes,
        stored: stored.cloned(),
        start: CachedResponse::LEAD_BYTES,
        body_at,
        date_at,
        date_second: context.date.second,
        etag,
        modified,
        charge,
    }
}

fn whole_head(
    context: &ResponseContext<'_>,
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

/// The response for an existing file: evaluates preconditions, then ranges, then sends the whole
/// file.
pub fn file(
    context: &ResponseContext<'_>,
    head: &Head<'_>,
    representation: &Representation<'_>,
    source: &ContentSource,
    host: &VirtualHost,
) -> Outgoing {
    let meta = representation.file.meta();
    let etag = match source {
        ContentSource::Cached(content) => content.etag,
        ContentSource::File(_) => representation.tag_of_meta(context),
    };
    let validators = Validators {
        etag: etag.tag(),
        last_modified: meta.modified.0,
        is_date_strong: representation.settled,
    };
    match conditional::evaluate(head.method, &head.conditions, &validators) {
        PreconditionResult::NotModified => return not_modified(context, representation, &etag),
        PreconditionResult::PreconditionFailed => {
            return error(context, Status::PRECONDITION_FAILED, Some(host), None);
        }
        PreconditionResult::Proceed => {}
    }
    match byte_ranges::requested_ranges(context, head, &validators, meta.size) {
        Ranges::Whole => whole_file(context, representation, source, &etag),
        Ranges::Unsatisfiable => error(
            context,
            Status::RANGE_NOT_SATISFIABLE,
            Some(host),
            Some(meta.size),
        ),
        Ranges::Satisfiable(ranges) => match *ranges {
            [one] => byte_ranges::single_range(context, representation, source, &etag, one),
            ref many => byte_ranges::multiple_ranges(context, representation, source, &etag, many),
        },
    }
}

fn whole_file(
    context: &ResponseContext<'_>,
    representation: &Representation<'_>,
    source: &ContentSource,
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
    context: &ResponseContext<'_>,
    representation: &Representation<'_>,
    etag: &Etag,
) -> Outgoing {
    let mut bytes = Vec::with_capacity(256);
    let writer = context.begin(&mut bytes, Status::NOT_MODIFIED);
    representation.fields(writer, context, etag, false).end();
    Outgoing::new(Status::NOT_MODIFIED.code(), bytes)
}
