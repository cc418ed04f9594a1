//! Builds error responses: the virtual host's page for the status, or a short built-in one.

use headway_http::Status;
use headway_http::response::HeadWriter;
use headway_request::{Outgoing, Piece, VirtualHost};

use super::ResponseContext;

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
    let writer = status_fields(writer, context, status, size);
    context.apply_rules(writer).end();
    let mut outgoing = Outgoing::new(status.code(), head);
    if !context.head_only {
        outgoing.push(Piece::bytes(page));
    }
    outgoing
}

/// Adds the headers that belong to the status (RFC 9110, 15).
fn status_fields<'o>(
    writer: HeadWriter<'o>,
    context: &ResponseContext<'_>,
    status: Status,
    size: Option<u64>,
) -> HeadWriter<'o> {
    match (status, size) {
        (Status::METHOD_NOT_ALLOWED, _) => writer.field("Allow", context.allowed),
        (Status::SERVICE_UNAVAILABLE, _) => writer.field_u64("Retry-After", context.retry_after_s),
        (Status::RANGE_NOT_SATISFIABLE, Some(size)) => writer.content_range_unsatisfiable(size),
        _ => writer,
    }
}

fn plain_page(status: Status) -> Vec<u8> {
    let (code, reason) = (status.code(), status.phrase());
    let more = explanation(status);
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{code} {reason}</title>\
         <h1>{code} {reason}</h1>{more}</html>\n"
    )
    .into_bytes()
}

/// What a client should know beside the phrase: that the condition is temporary, or which versions
/// there are (RFC 9110, 15.5, 15.6 and 15.6.6).
fn explanation(status: Status) -> &'static str {
    match status {
        Status::REQUEST_TIMEOUT
        | Status::TOO_MANY_REQUESTS
        | Status::BAD_GATEWAY
        | Status::SERVICE_UNAVAILABLE
        | Status::GATEWAY_TIMEOUT => "<p>This is temporary. Try again later.</p>",
        Status::HTTP_VERSION_NOT_SUPPORTED => {
            "<p>This server does not speak this version of HTTP.</p>"
        }
        _ => "",
    }
}
