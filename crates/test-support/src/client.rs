//! Strict clients of a server: a response with an error in its framing fails the test.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::server::Server;

/// A parsed response; its body without framing.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the fields.
    pub head: String,
    /// What they announce.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends bytes.
pub fn send(stream: &mut impl Write, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref()).unwrap();
}

/// Reads one response, however its body is framed. A premature end is an error.
pub fn receive(stream: &mut impl Read) -> Result<Response, String> {
    receive_response(stream, false)
}

/// Sends a request while its response is read: both may be larger than the buffers between.
pub fn send_and_receive(stream: &mut TcpStream, request: impl AsRef<[u8]> + Send) -> Response {
    let mut sender = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || send(&mut sender, request));
        receive(stream).unwrap()
    })
}

/// Reads one response to HEAD.
pub fn receive_head(stream: &mut impl Read) -> Result<Response, String> {
    receive_response(stream, true)
}

fn receive_response(stream: &mut impl Read, bodiless: bool) -> Result<Response, String> {
    let head = until(stream, b"\r\n\r\n")?;
    let head = String::from_utf8(head).map_err(|error| error.to_string())?;
    let status = head.get(9..12).and_then(|digits| digits.parse().ok());
    let mut response = Response {
        status: status.ok_or_else(|| format!("no status: {head:?}"))?,
        head,
        body: Vec::new(),
    };
    if bodiless || matches!(response.status, 204 | 304) {
        return Ok(response);
    }
    response.body = match (
        response.field("Content-Length"),
        response.field("Transfer-Encoding"),
    ) {
        (Some(length), None) => exactly(stream, length.parse().unwrap())?,
        (None, Some("chunked")) => chunks(stream)?,
        (None, None) => {
            let mut rest = Vec::new();
            stream
                .read_to_end(&mut rest)
                .map_err(|error| error.to_string())?;
            rest
        }
        other => return Err(format!("framed as {other:?}")),
    };
    Ok(response)
}

fn until(stream: &mut impl Read, end: &[u8]) -> Result<Vec<u8>, String> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(end) {
        let read = stream.read_exact(&mut byte);
        read.map_err(|error| format!("{error} after {:?}", String::from_utf8_lossy(&bytes)))?;
        bytes.push(byte[0]);
    }
    Ok(bytes)
}

fn exactly(stream: &mut impl Read, length: usize) -> Result<Vec<u8>, String> {
    let mut body = vec![0; length];
    stream
        .read_exact(&mut body)
        .map_err(|error| error.to_string())?;
    Ok(body)
}

fn chunks(stream: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let size = String::from_utf8(until(stream, b"\r\n")?).unwrap();
        let size = usize::from_str_radix(size.trim_end(), 16).map_err(|error| error.to_string())?;
        body.extend(exactly(stream, size)?);
        if until(stream, b"\r\n")? != b"\r\n" {
            return Err("a chunk does not end where it says".into());
        }
        if size == 0 {
            return Ok(body);
        }
    }
}

/// One request on a connection of its own.
pub fn exchange(server: &Server, request: impl AsRef<[u8]>) -> Response {
    let mut stream = server.connect();
    send(&mut stream, request);
    receive(&mut stream).unwrap()
}

/// One GET on a connection of its own.
pub fn get(server: &Server, path: &str) -> Response {
    exchange(server, format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
}

/// A POST with this body, to be sent.
pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A counter of the whole server.
pub fn counter(server: &Server, name: &str) -> u64 {
    let status = server.status();
    let value = &status["total"]["counters"][name];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {name}"))
}

/// Bytes in which each position differs from its neighbours.
pub fn contents(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}
