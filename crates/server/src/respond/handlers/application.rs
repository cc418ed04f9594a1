//! The built-in SPECweb99 application: translates between HTTP requests and the application's
//! requests, and turns its responses into pieces to send.
//!
//! The `specweb` crate makes the decisions, and the worker does everything that may wait. Nothing
//! here opens or reads a file.

use std::net::IpAddr;

use headway_http::{Head, Status, Target};
use headway_specweb::application::{self, PageResponse};
use headway_specweb::request::{Method, Request};
use headway_specweb::scan::PATH_BYTES;
use headway_specweb::{BodyPiece as Content, FileName};

use crate::config::PathMatch;
use crate::request::{Outgoing, Piece};
use crate::respond::ResponseContext;
use crate::respond::handlers::Route;

/// The value of SERVER_SOFTWARE, as programs get it.
const SERVER: &str = "Headway";

/// The parts of a request that the application uses.
#[derive(Debug)]
pub struct RequestParts {
    method: Method,
    query: String,
    cookie: String,
    client: String,
    script: String,
}

impl RequestParts {
    /// Extracts the parts of a request for this location.
    pub fn new(
        route: &Route,
        request: &headway_gateway::Request<'_>,
        client: IpAddr,
    ) -> RequestParts {
        let cookies: Vec<&[u8]> = request.values(b"Cookie").collect();
        let script = match &route.location.path {
            PathMatch::Prefix(prefix) | PathMatch::Suffix(prefix) => prefix.trim_end_matches('/'),
        };
        RequestParts {
            method: method(request.head),
            query: text(query(request.head)),
            // Several cookie fields are joined as in a CGI variable (RFC 6265, section 5.4).
            cookie: text(&cookies.join(&b"; "[..])),
            client: client.to_string(),
            script: script.to_owned(),
        }
    }

    /// The application's request with this body, at this time in seconds since 1970.
    pub fn request<'a>(&'a self, body: &'a [u8], now_s: i64) -> Request<'a> {
        Request {
            method: self.method,
            query: &self.query,
            cookie: &self.cookie,
            body,
            server: SERVER,
            client: &self.client,
            script: &self.script,
            now_s: now_s.unsigned_abs(),
        }
    }
}

fn method(head: &Head<'_>) -> Method {
    match head.method {
        headway_http::Method::Get => Method::Get,
        headway_http::Method::Other("POST") => Method::Post,
        _ => Method::Other,
    }
}

fn query<'h>(head: &Head<'h>) -> &'h [u8] {
    let Target::Path(target) = head.target else {
        return b"";
    };
    memchr::memchr(b'?', target).map_or(b"", |at| &target[at + 1..])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The file in a response, and the advertisement that goes into its placeholders.
pub fn file(response: &PageResponse) -> Option<(FileName, Option<[u8; PATH_BYTES]>)> {
    response.pieces.iter().find_map(|piece| match piece {
        Content::Bytes(_) => None,
        Content::File(name) => Some((*name, None)),
        Content::Scanned(name, ad) => Some((*name, Some(*ad))),
    })
}

/// A response ready to send; `content` replaces its file.
pub fn page(
    context: &ResponseContext<'_>,
    response: PageResponse,
    content: Option<Piece>,
) -> Outgoing {
    let mut content = content;
    let pieces = response.pieces.into_iter().filter_map(|piece| match piece {
        Content::Bytes(bytes) => Some(Piece::bytes(bytes)),
        Content::File(_) | Content::Scanned(..) => content.take(),
    });
    send(context, response.status, &response.fields, pieces.collect())
}

/// The page with the log.
pub fn log(context: &ResponseContext<'_>, request: &Request<'_>, log: Piece) -> Outgoing {
    let page = application::fetched(request, Vec::new());
    let mut pieces: Vec<Piece> = Vec::with_capacity(page.pieces.len());
    for piece in page.pieces {
        if let Content::Bytes(bytes) = piece {
            pieces.push(Piece::bytes(bytes));
        }
    }
    // Inserted between head and tail of the page, instead of an empty piece.
    pieces.insert(1, log);
    send(context, page.status, &page.fields, pieces)
}

fn send(
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
    context
        .extra_fields(writer.field_u64("Content-Length", length))
        .end();
    let mut outgoing = Outgoing::new(status.code(), head);
    let pieces = pieces.into_iter().filter(|piece| piece.bytes_left() > 0);
    for piece in pieces.filter(|_| !context.head_only) {
        outgoing.push(piece);
    }
    outgoing
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_http::{HeadLimits, Parsed};

    #[test]
    fn built_in_request_matches_cgi_variables() {
        let bytes = b"POST /own?/dir00000/class0_1?x HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\ncookie: my_cookie=user_id=3\r\n\r\n";
        let Parsed::Complete(head) = headway_http::parse(bytes, &HeadLimits::default()) else {
            panic!("not a head");
        };
        assert_eq!(method(&head), Method::Post);
        assert_eq!(query(&head), b"/dir00000/class0_1?x");
        let request = headway_gateway::Request::new(&head, bytes);
        let cookies: Vec<&[u8]> = request.values(b"Cookie").collect();
        let joined = text(&cookies.join(&b"; "[..]));
        assert_eq!(joined, "a=b; my_cookie=user_id=3");
    }
}
