//! Requests over HTTP/1.1, with or without TLS: one blocking connection per request, so only for processes that may
//! wait.
//!
//! It follows no redirects and uses no proxy. Whatever a server sends is limited in size and time.
//!
//! ```no_run
//! use headway_http_client::{Client, Timeouts};
//! use http::Request;
//!
//! let request = Request::post("http://127.0.0.1:4318/v1/traces").body("{}".into())?;
//! let response = Client::without_tls(Timeouts::default()).exchange(&request)?;
//! assert_eq!(response.status(), 200);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources: RFC 9112, RFC 8555 section 6.1.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A certificate with its chain is a few kilobytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
const HEADERS_MAX: usize = 100;
const PIECE_BYTES: usize = 16 << 10;
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Where systems keep the certificates of authorities: Debian and Alpine, Fedora, openSUSE, RHEL, OpenBSD
/// and old Alpine.
const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// To connect to an address.
    pub connect: Duration,
    /// Without progress.
    pub io: Duration,
    /// For a whole response.
    pub response: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            io: Duration::from_secs(30),
            response: Duration::from_secs(90),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The system has no certificates of authorities.
    #[error("no certificates of authorities in {}; install ca-certificates, or name a file with them", SYSTEM_ROOTS[0])]
    NoRoots,
    /// The file with certificates of authorities cannot be used.
    #[error("{}: {why}", path.display())]
    Roots {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The URL names no server, or one that this client cannot reach.
    #[error("{0} is not a URL of a server with http or https")]
    Url(String),
    /// A system call or TLS failed.
    #[error("{what} {host}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// On which server.
        host: String,
        /// Why it failed.
        error: io::Error,
    },
    /// The response is invalid.
    #[error("{host} sent {what}")]
    Response {
        /// The server.
        host: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// A client which trusts certain authorities.
#[derive(Clone, Debug)]
pub struct Client {
    tls: Option<Arc<ClientConfig>>,
    timeouts: Timeouts,
    response_bytes_max: usize,
}

impl Client {
    /// One which trusts the certificates in this file, or those of the system.
    ///
    /// # Errors
    /// There are no certificates, so that it could trust no server.
    pub fn new(authorities: Option<&Path>, timeouts: Timeouts) -> Result<Client, RequestError> {
        let roots = match authorities {
            Some(path) => roots_of(path)?,
            None => system_roots()?,
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Client {
            tls: Some(Arc::new(tls)),
            timeouts,
            response_bytes_max: RESPONSE_BYTES_MAX,
        })
    }

    /// One for servers without TLS.
    pub fn without_tls(timeouts: Timeouts) -> Client {
        Client {
            tls: None,
            timeouts,
            response_bytes_max: RESPONSE_BYTES_MAX,
        }
    }

    /// The same, for responses of up to this many bytes, the header included. It is 1 MiB without this.
    pub fn with_response_max(self, bytes: usize) -> Client {
        Client {
            response_bytes_max: bytes,
            ..self
        }
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// There is no valid response in time.
    pub fn exchange(&self, request: &Request<Bytes>) -> Result<Response<Bytes>, RequestError> {
        let uri = request.uri();
        let invalid = || RequestError::Url(uri.to_string());
        let host = uri.host().ok_or_else(invalid)?;
        let name = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let (tls, port) = match (uri.scheme_str(), &self.tls) {
            (Some("http"), _) => (None, HTTP_PORT),
            (Some("https"), Some(tls)) => (Some(tls), HTTPS_PORT),
            _ => return Err(invalid()),
        };
        let port = uri.port_u16().unwrap_or(port);
        let mut stream = connect(&name, port, &self.timeouts)?;
        let is_head = request.method() == Method::HEAD;
        let response = match tls {
            None => self.exchange_on(&mut stream, request, is_head),
            Some(tls) => {
                let server = ServerName::try_from(name).map_err(|_| invalid())?;
                let tls = ClientConnection::new(tls.clone(), server);
                let tls = tls.map_err(|error| RequestError::System {
                    what: "TLS with",
                    host: host.to_owned(),
                    error: io::Error::other(error),
                })?;
                let mut stream = StreamOwned::new(tls, stream);
                self.exchange_on(&mut stream, request, is_head)
            }
        };
        let host = host.to_owned();
        response.map_err(|failure| match failure {
            Failure::Sending(error) => RequestError::System {
                what: "send to",
                host,
                error,
            },
            Failure::System(error) => RequestError::System {
                what: "receive from",
                host,
                error,
            },
            Failure::Response(what) => RequestError::Response { host, what },
        })
    }

    fn exchange_on(
        &self,
        stream: &mut (impl Read + Write),
        request: &Request<Bytes>,
        is_head: bool,
    ) -> Result<Response<Bytes>, Failure> {
        let sent = stream
            .write_all(&written(request))
            .and_then(|()| stream.flush());
        sent.map_err(Failure::Sending)?;
        let limits = Limits {
            time: self.timeouts.response,
            bytes: self.response_bytes_max,
        };
        receive(stream, is_head, limits)
    }
}

fn roots_of(path: &Path) -> Result<RootCertStore, RequestError> {
    let failed = |why: String| RequestError::Roots {
        path: path.to_owned(),
        why,
    };
    let text = fs::read(path).map_err(|error| failed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&text).flatten());
    match roots.is_empty() {
        true => Err(failed("no certificate in PEM form".into())),
        false => Ok(roots),
    }
}

fn system_roots() -> Result<RootCertStore, RequestError> {
    if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
        return roots_of(Path::new(&path));
    }
    let mut found = SYSTEM_ROOTS
        .iter()
        .map(Path::new)
        .filter(|path| path.exists());
    roots_of(found.next().ok_or(RequestError::NoRoots)?)
}

/// Tries the addresses of a name one after the other.
fn connect(host: &str, port: u16, timeouts: &Timeouts) -> Result<TcpStream, RequestError> {
    let failed = |what| {
        let host = format!("{host}:{port}");
        move |error| RequestError::System { what, host, error }
    };
    let addresses = (host, port).to_socket_addrs().map_err(failed("look up"))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeouts.connect) {
            Ok(stream) => {
                let limited = (stream.set_read_timeout(Some(timeouts.io)))
                    .and_then(|()| stream.set_write_timeout(Some(timeouts.io)));
                limited.map_err(failed("connect to"))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(failed("connect to")(last))
}

/// The bytes of a request.
fn written(request: &Request<Bytes>) -> Vec<u8> {
    let (uri, body) = (request.uri(), request.body());
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let mut out = format!(
        "{} {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n",
        request.method()
    )
    .into_bytes();
    if request.method() == Method::POST || request.method() == Method::PUT {
        out.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
    }
    for (name, value) in request.headers() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out
}

#[derive(Debug)]
enum Failure {
    Sending(io::Error),
    System(io::Error),
    Response(&'static str),
}

/// How the end of a body is found (RFC 9112, 6.3).
#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// What a response may take.
#[derive(Clone, Copy)]
struct Limits {
    time: Duration,
    bytes: usize,
}

fn receive(
    stream: &mut impl Read,
    is_head: bool,
    limits: Limits,
) -> Result<Response<Bytes>, Failure> {
    let deadline = Instant::now() + limits.time;
    let mut received = Vec::new();
    let mut is_closed = false;
    loop {
        if let Some(response) = parse(&received, is_head, is_closed)? {
            return Ok(response);
        }
        if is_closed {
            return Err(Failure::Response("an incomplete response"));
        }
        if received.len() > limits.bytes {
            return Err(Failure::Response("too long a response"));
        }
        if deadline <= Instant::now() {
            return Err(Failure::System(io::ErrorKind::TimedOut.into()));
        }
        let before = received.len();
        received.resize(before + PIECE_BYTES, 0);
        let read = stream.read(&mut received[before..]);
        received.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => is_closed = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A read which has timed out.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Failure::System(io::ErrorKind::TimedOut.into()));
            }
            Err(error) => return Err(Failure::System(error)),
        }
    }
}

/// The response, once these bytes have all of it.
fn parse(
    received: &[u8],
    is_head: bool,
    is_closed: bool,
) -> Result<Option<Response<Bytes>>, Failure> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let begin = match head.parse(received) {
        Ok(httparse::Status::Complete(begin)) => begin,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Failure::Response("a response which is not HTTP/1.1")),
    };
    let status = head.code.unwrap_or_default();
    if (100..200).contains(&status) {
        return parse(&received[begin..], is_head, is_closed);
    }
    let mut response = Response::builder().status(status);
    for header in head.headers.iter() {
        response = response.header(header.name, header.value);
    }
    let framing = match is_head || status == 204 || status == 304 {
        true => Framing::Length(0),
        false => framing(head.headers)?,
    };
    let rest = &received[begin..];
    let body = match framing {
        Framing::Length(bytes) => rest.get(..bytes).map(<[u8]>::to_vec),
        Framing::Chunked => dechunked(rest)?,
        Framing::UntilClose => is_closed.then(|| rest.to_vec()),
    };
    let Some(body) = body else { return Ok(None) };
    let response = response.body(Bytes::from(body));
    response
        .map(Some)
        .map_err(|_| Failure::Response("an invalid header"))
}

fn framing(headers: &[httparse::Header<'_>]) -> Result<Framing, Failure> {
    let invalid = || Failure::Response("a body of unknown length");
    let value = |name: &str| {
        let mut same = headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        same.next().map(|header| header.value)
    };
    if let Some(coding) = value("transfer-encoding") {
        return match coding.eq_ignore_ascii_case(b"chunked") {
            true => Ok(Framing::Chunked),
            false => Err(invalid()),
        };
    }
    let Some(length) = value("content-length") else {
        return Ok(Framing::UntilClose);
    };
    let length = std::str::from_utf8(length)
        .ok()
        .and_then(|text| text.parse().ok());
    length.map(Framing::Length).ok_or_else(invalid)
}

/// The body in these chunks. `None` if the last one is not there yet. Trailers are not read.
fn dechunked(mut rest: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
    let invalid = Failure::Response("invalid chunks");
    let mut body = Vec::new();
    loop {
        let (begin, length) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(invalid),
        };
        if length == 0 {
            return Ok(Some(body));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > RESPONSE_BYTES_MAX {
            return Err(invalid);
        }
        let Some((chunk, after)) = rest[begin..].split_at_checked(length) else {
            return Ok(None);
        };
        body.extend_from_slice(chunk);
        rest = match after {
            [b'\r', b'\n', after @ ..] => after,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(invalid),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        time: Duration::from_secs(90),
        bytes: RESPONSE_BYTES_MAX,
    };

    /// Gives one byte at a time, then the end.
    struct Slowly<'t>(&'t [u8]);

    impl Read for Slowly<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else {
                return Ok(0);
            };
            self.0 = rest;
            into[0] = *first;
            Ok(1)
        }
    }

    fn received(text: &str, is_head: bool) -> Result<(u16, String), Failure> {
        let slowly = receive(&mut Slowly(text.as_bytes()), is_head, LIMITS);
        let at_once = receive(&mut text.as_bytes(), is_head, LIMITS);
        let shown = |response: Response<Bytes>| {
            let body = String::from_utf8(response.body().to_vec()).unwrap();
            (response.status().as_u16(), body)
        };
        let slowly = slowly.map(shown);
        assert_eq!(format!("{slowly:?}"), format!("{:?}", at_once.map(shown)));
        slowly
    }

    #[test]
    fn body_ends_as_its_framing_says() {
        for (head, body, expected) in [
            ("Content-Length: 3", "abc", "abc"),
            ("content-length: 3", "abcdef", "abc"),
            ("Content-Length: 0", "", ""),
            (
                "Transfer-Encoding: chunked",
                "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
                "abcde",
            ),
            ("X: y", "until the end", "until the end"),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
            assert_eq!(
                received(&text, false).unwrap(),
                (200, expected.into()),
                "{head}"
            );
        }
    }

    #[test]
    fn responses_without_a_body_need_none() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(received(head, true).unwrap(), (200, String::new()));
        assert_eq!(
            received("HTTP/1.1 204 No\r\n\r\n", false).unwrap(),
            (204, String::new())
        );
        let after = format!("HTTP/1.1 103 Hints\r\n\r\n{head}abc");
        assert_eq!(received(&after, false).unwrap(), (200, "abc".into()));
    }

    #[test]
    fn damaged_responses_are_errors() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "220 mail ready\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\nab",
        ] {
            assert!(received(text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn too_long_a_response_is_an_error() {
        let endless =
            "HTTP/1.1 200 OK\r\n\r\n".to_owned() + &"x".repeat(RESPONSE_BYTES_MAX + PIECE_BYTES);
        assert!(receive(&mut endless.as_bytes(), false, LIMITS).is_err());
        let limits = Limits {
            bytes: 2 * RESPONSE_BYTES_MAX,
            ..LIMITS
        };
        assert!(receive(&mut endless.as_bytes(), false, limits).is_ok());
    }

    #[test]
    fn request_has_a_length_only_with_a_body() {
        let request = |method, body: &'static str| {
            let request = Request::builder()
                .method(method)
                .uri("https://ca.example:14000/a?b");
            let request = request.header("x-y", "z").body(Bytes::from(body)).unwrap();
            String::from_utf8(written(&request)).unwrap()
        };
        let head = "/a?b HTTP/1.1\r\nHost: ca.example:14000\r\nConnection: close\r\n";
        assert_eq!(
            request(Method::HEAD, ""),
            format!("HEAD {head}x-y: z\r\n\r\n")
        );
        assert_eq!(
            request(Method::POST, "{}"),
            format!("POST {head}Content-Length: 2\r\nx-y: z\r\n\r\n{{}}")
        );
        assert_eq!(
            request(Method::PUT, ""),
            format!("PUT {head}Content-Length: 0\r\nx-y: z\r\n\r\n")
        );
    }
}
