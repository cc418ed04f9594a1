//! Translates an HTTP/2 request to an HTTP/1.1 header (RFC 9113, 8.3.1).
//!
//! No value can end its line: h2 and http have refused control characters in names, values and paths.
//! The headers that frame a message in HTTP/1.1 are written only here, from what the HTTP/2 frames say.

use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, TE};
use http::{HeaderMap, Method};

use crate::priority::Priority;

/// Headers that are not passed on: they concern the connection, or are written here.
const NOT_PASSED: &[HeaderName] = &[CONTENT_LENGTH, COOKIE, EXPECT, HOST, TE];

/// A request as a header of HTTP/1.1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) head: Vec<u8>,
    pub(crate) upload: Upload,
    pub(crate) is_head: bool,
    pub(crate) priority: Priority,
}

/// How the body is framed in HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upload {
    /// There is none.
    None,
    /// By its length.
    Length,
    /// In chunks.
    Chunked,
}

/// `None` if the request contradicts itself.
pub(crate) fn translate(request: &http::request::Parts, has_body: bool) -> Option<Translated> {
    let headers = &request.headers;
    let authority = authority(request)?;
    let upload = upload(headers, has_body)?;
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(request.method.as_str().as_bytes());
    head.push(b' ');
    match request.method == Method::CONNECT {
        true => head.extend_from_slice(authority?),
        false => head.extend_from_slice(path(request)?),
    }
    head.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(authority) = authority {
        push(&mut head, b"Host", authority);
    }
    for (name, value) in headers {
        if !NOT_PASSED.contains(name) {
            push(&mut head, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    // A client may send the parts of a cookie in headers of their own (RFC 9113, 8.2.3).
    let cookies: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(|one| one.as_bytes())
        .collect();
    if !cookies.is_empty() {
        push(&mut head, b"Cookie", &cookies.join(&b"; "[..]));
    }
    match (upload, headers.get(CONTENT_LENGTH)) {
        (Upload::Length, Some(length)) => push(&mut head, b"Content-Length", length.as_bytes()),
        (Upload::Chunked, _) => push(&mut head, b"Transfer-Encoding", b"chunked"),
        _ => {}
    }
    head.extend_from_slice(b"\r\n");
    Some(Translated {
        head,
        upload,
        is_head: request.method == Method::HEAD,
        priority: headers
            .get("priority")
            .map_or_else(Priority::default, |value| Priority::read(value.as_bytes())),
    })
}

fn push(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    head.extend_from_slice(name);
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// The path and the query. Without a slash at its front it would be another form of target.
fn path(request: &http::request::Parts) -> Option<&[u8]> {
    let path = request.uri.path_and_query()?.as_str();
    (path.starts_with('/') || path == "*").then_some(path.as_bytes())
}

/// The host: of `:authority`, or of the header. `None` if the two differ.
fn authority(request: &http::request::Parts) -> Option<Option<&[u8]>> {
    let authority = request.uri.authority();
    let authority = authority.map(|authority| authority.as_str().as_bytes());
    let mut hosts = request.headers.get_all(HOST).iter();
    match (authority, hosts.next(), hosts.next()) {
        (_, Some(_), Some(_)) => None,
        (Some(authority), _, _) if authority.contains(&b'@') => None,
        (Some(authority), Some(host), _) if !authority.eq_ignore_ascii_case(host.as_bytes()) => {
            None
        }
        (Some(authority), _, _) => Some(Some(authority)),
        (None, host, _) => Some(host.map(|host| host.as_bytes())),
    }
}

/// `None` if the length is not a number, or contradicts the frames.
fn upload(headers: &HeaderMap, has_body: bool) -> Option<Upload> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => None,
        (Some(length), None) => Some(length.to_str().ok()?.parse::<u64>().ok()?),
        _ => return None,
    };
    match (length, has_body) {
        (None | Some(0), false) => Some(Upload::None),
        (Some(_), false) => None,
        (Some(_), true) => Some(Upload::Length),
        (None, true) => Some(Upload::Chunked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(request: http::request::Builder, has_body: bool) -> Option<String> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let translated = translate(&parts, has_body)?;
        Some(String::from_utf8(translated.head).unwrap())
    }

    fn get() -> http::request::Builder {
        http::Request::builder().uri("https://a.example:81/x?y=1")
    }

    #[test]
    fn request_is_the_header_of_http_1_that_says_the_same() {
        let request = get()
            .header("accept", "*/*")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("te", "trailers");
        assert_eq!(
            translated(request, false).unwrap(),
            "GET /x?y=1 HTTP/1.1\r\nHost: a.example:81\r\naccept: */*\r\nCookie: a=1; b=2\r\n\r\n"
        );
    }

    #[test]
    fn body_is_framed_by_its_length_or_in_chunks() {
        let put = || get().method("PUT");
        let sized = translated(put().header("content-length", "3"), true).unwrap();
        assert!(sized.ends_with("\r\nContent-Length: 3\r\n\r\n"), "{sized}");
        let unsized_ = translated(put(), true).unwrap();
        assert!(
            unsized_.ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"),
            "{unsized_}"
        );
    }

    #[test]
    fn request_that_contradicts_itself_is_none() {
        assert_eq!(translated(get().header("host", "b.example"), false), None);
        assert_eq!(translated(get().header("content-length", "3"), false), None);
        assert_eq!(translated(get().header("content-length", "x"), true), None);
        let twice = get()
            .header("content-length", "3")
            .header("content-length", "4");
        assert_eq!(translated(twice, true), None);
        let user = http::Request::builder().uri("https://u@a.example/");
        assert_eq!(translated(user, false), None);
        assert!(translated(get().header("host", "A.example:81"), false).is_some());
    }
}
