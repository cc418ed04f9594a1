//! A conversation of HTTP/1.1, held by HTTP/2: status, headers and body of each response must be the same.
//!
//! HTTP/2 has no reason phrases and no `Connection`, and its names are in lower case. The order of headers has no
//! meaning, so it is not compared.

use std::net::TcpStream;

use h2::client::Builder;
use headway_test_support::exchange::Exchange;
use http::Request;

use super::case::{Case, Step};
use super::difference;
use super::notation::Names;
use crate::http2::client::Client;

/// The request of a client, and its body.
type Asked = (Request<()>, Vec<u8>);

/// Returns `false` if HTTP/2 has no such requests, or the conversation is about more than them.
pub fn run_conversation(case: &Case, socket: TcpStream, names: &Names) -> Result<bool, String> {
    let Some(exchanges) = translate(case, names)? else {
        return Ok(false);
    };
    let stream = socket.try_clone().map_err(|error| error.to_string())?;
    let mut client = Client::over(stream, socket, "http", &mut Builder::new());
    for (asked, expected) in exchanges {
        let mut said = Vec::new();
        for (request, body) in asked {
            let body = (!body.is_empty()).then_some(&body[..]);
            let at = client.begin_request(request, body);
            let exchange = client.finish(at);
            if exchange.end != Some(Ok(())) {
                return Err(format!("it ends with {:?}", exchange.end));
            }
            said.extend(as_http1(exchange));
        }
        let (said, expected) = (comparable(&names.render(&said)), comparable(expected));
        if said != expected {
            return Err(difference(&expected, &said));
        }
    }
    Ok(true)
}

/// Requests sent together, each group with what is expected of it.
type Exchanges<'c> = Vec<(Vec<Asked>, &'c str)>;

/// The requests of each step, and what is expected.
fn translate<'c>(case: &'c Case, names: &Names) -> Result<Option<Exchanges<'c>>, String> {
    let (mut exchanges, mut bytes) = (Vec::new(), Vec::new());
    for step in &case.steps {
        match step {
            Step::Send(text) => bytes.extend(names.parse(text)?),
            Step::Expect(text) if text.contains("\nTransfer-Encoding: ") => return Ok(None),
            Step::Expect(text) => match requests(&bytes) {
                Some(asked) => {
                    bytes.clear();
                    exchanges.push((asked, &text[..]));
                }
                None => return Ok(None),
            },
            Step::Open | Step::Close => {}
            _ => return Ok(None),
        }
    }
    Ok(bytes.is_empty().then_some(exchanges))
}

/// Parses requests. `None` if HTTP/2 does not have them, or the client cannot send them.
fn requests(mut bytes: &[u8]) -> Option<Vec<Asked>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let (request, length) = parse_head(head)?;
        let (body, rest) = bytes[end + 4..].split_at_checked(length)?;
        found.push((request, body.to_vec()));
        bytes = rest;
    }
    Some(found)
}

/// A request and the length of its body.
fn parse_head(head: &str) -> Option<(Request<()>, usize)> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    if words.next() != Some("HTTP/1.1") || words.next().is_some() || !target.starts_with('/') {
        return None;
    }
    let mut request = Request::builder().method(method);
    let (mut host, mut length) = (None, 0);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim_matches([' ', '\t']);
        match &*name.to_ascii_lowercase() {
            "host" if host.is_some() => return None,
            "host" => host = Some(value),
            "connection" => {}
            "keep-alive" | "te" | "transfer-encoding" | "upgrade" | "expect" => return None,
            "content-length" => {
                length = value.parse().ok()?;
                request = request.header(name, value);
            }
            _ => request = request.header(name, value),
        }
    }
    let request = request.uri(format!("http://{}{target}", host?)).body(());
    let request = request.ok()?;
    // A fragment would be left out.
    let is_same = request.uri().path_and_query()?.as_str() == target;
    is_same.then_some((request, length))
}

/// A response as HTTP/1.1 has it, without a reason.
fn as_http1(exchange: &Exchange) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {}\r\n", exchange.status).into_bytes();
    for (name, value) in &exchange.headers {
        // The notation knows some names.
        let parts = name.as_str().split('-').map(|part| {
            let (first, rest) = part.split_at(1);
            first.to_ascii_uppercase() + rest
        });
        let name = parts.collect::<Vec<_>>().join("-");
        bytes.extend([name.as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    [&bytes, &b"\r\n"[..], &exchange.received].concat()
}

/// Responses without what differs by version: reasons, `Connection`, the case of names, and the order of headers.
fn comparable(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut headers: Option<Vec<String>> = None;
    for line in text.split('\n') {
        match &mut headers {
            Some(_) if line.is_empty() => {
                lines.extend(sorted(headers.take()));
                lines.push(String::new());
            }
            Some(headers) => match line.split_once(':') {
                Some((name, value)) => headers.push(name.to_ascii_lowercase() + ":" + value),
                None => headers.push(line.into()),
            },
            None => match status_line(line) {
                Some(end) => {
                    lines.push(line[..end].into());
                    headers = Some(Vec::new());
                }
                None => lines.push(line.into()),
            },
        }
    }
    lines.extend(sorted(headers));
    lines.join("\n")
}

fn sorted(headers: Option<Vec<String>>) -> Vec<String> {
    let mut headers = headers.unwrap_or_default();
    headers.retain(|header| !header.starts_with("connection:"));
    headers.sort();
    headers
}

/// Where the status ends in this line, behind a body without a line end, if the line has one.
fn status_line(line: &str) -> Option<usize> {
    let end = line.find("HTTP/1.1 ")? + "HTTP/1.1 123".len();
    let status = line.get(end - 3..end)?;
    status
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(end)
}
