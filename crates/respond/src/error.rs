//! Builds error responses: the virtual host's page for the status, or a short built-in one.

use headway_http::Status;
use headway_http::response::HeadWriter;
use headway_request::{Outgoing, Piece, VirtualHost};

use super::{ALLOWED, ResponseContext};

/// An error response. `size` is the length of the file, for status 416.
pub fn error(
    context: &ResponseContext<'_>,
    status: Status,
    host: Option<&VirtualHost>,
    size: Option<u64>,
) -> Outgoing {
    let own = host.and_then(|host| host.error_pages.get(&status.code()));
    let (page, media) = match own {
        Some((page, media)) => (page.clone(), media.as_str()),
        None => (plain_page(status), "text/html; charset=utf-8"),
    };
    let mut head = Vec::with_capacity(256);
    let writer = context
        .begin(&mut head, status)
        .field("Content-Type", media)
        .field_u64("Content-Length", page.len() as u64);
    let writer = status_fields(writer, status, size, context.retry_after_s);
    context.extra_fields(writer).end();
    let mut outgoing = Outgoing::new(status.code(), head);
    if !context.head_only {
        outgoing.push(Piece::bytes(page));
    }
    outgoing
}

/// Adds the headers that belong to the status (RFC 9110, 15).
fn status_fields(
    writer: HeadWriter<'_>,
    status: Status,
    size: Option<u64>,
    retry_after_s: u64,
) -> HeadWriter<'_> {
    match (status, size) {
        (Status::METHOD_NOT_ALLOWED, _) => writer.field("Allow", ALLOWED),
        (Status::SERVICE_UNAVAILABLE, _) => writer.field_u64("Retry-After", retry_after_s),
        (Status::RANGE_NOT_SATISFIABLE, Some(size)) => writer.content_range_unsatisfiable(size),
        _ => writer,
    }
}

fn plain_page(status: Status) -> Vec<u8> {
    let (code, reason) = (status.code(), status.phrase());
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{code} {reason}</title>\
         <h1>{code} {reason}</h1></html>\n"
    )
    .into_bytes()
}
