//! The response of an embedded application: its fields and pieces behind the server's own fields.

use headway_http::Status;
use headway_request::{Outgoing, Piece};

use crate::ResponseContext;

/// A response ready to send.
pub fn response(
    context: &ResponseContext<'_>,
    status: u16,
    fields: &[(&str, String)],
    pieces: Vec<Piece>,
) -> Outgoing {
    let length = pieces.iter().map(Piece::bytes_left).sum();
    let status = Status::from_code(status).unwrap_or(Status::INTERNAL_SERVER_ERROR);
    let mut head = Vec::with_capacity(512);
    let mut writer = context.begin(&mut head, status);
    for (name, value) in fields {
        writer = writer.field(name, value);
    }
    if !status.is_bodiless() {
        writer = writer.field_u64("Content-Length", length);
    }
    context.apply_rules(writer).end();
    let mut outgoing = Outgoing::new(status.code(), head);
    let pieces = pieces.into_iter().filter(|piece| piece.bytes_left() > 0);
    for piece in pieces.filter(|_| !context.head_only && !status.is_bodiless()) {
        outgoing.push(piece);
    }
    outgoing
}
