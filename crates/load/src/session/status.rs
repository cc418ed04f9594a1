//! Short HTTP exchanges around a run: the metrics of a Headway server afterwards, one connection
//! before it, and the calls of the application that a measurement needs.
//!
//! Blocking calls with time limits, outside the measured time. A status page that does not answer
//! costs the run a warning, not its result.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::cli_types::{Endpoint, Url};
use crate::engine::{Address, ProxyVersion, proxy_header};
use crate::tls::TlsClient;

/// For the whole exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why the status page could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// The address could not be used.
    #[error("{0}")]
    Address(String),
    /// Connecting, sending or receiving failed.
    #[error("{url}: {source}")]
    Io {
        /// What was asked.
        url: String,
        /// Why the exchange failed.
        source: io::Error,
    },
    /// An answer came, and it is not what a status page says.
    #[error("{url}: {reason}; is it the address of `headway serve --status`?")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What a server answers to one GET, outside the measured time: status and body.
///
/// # Errors
/// What failed, as text.
pub fn get(url: &Url) -> Result<(u16, Vec<u8>), String> {
    let answer = exchange(url).map_err(|error| match error {
        Failed::Address(reason) => reason,
        Failed::Io(source) => format!("{url}: {source}"),
    })?;
    let (status, body) = response(&answer).map_err(|reason| format!("{url}: {reason}"))?;
    Ok((status, body.to_vec()))
}

/// The JSON of a status page. `/` and `/status` are taken for `/status.json`.
///
/// # Errors
/// See [`StatusError`].
pub(crate) fn fetch(url: &Url) -> Result<serde_json::Value, StatusError> {
    let mut url = url.clone();
    if url.path == "/" || url.path == "/status" {
        url.path = "/status.json".to_owned();
    }
    let text = url.to_string();
    let answer = exchange(&url).map_err(|error| match error {
        Failed::Address(reason) => StatusError::Address(reason),
        Failed::Io(source) => StatusError::Io {
            url: text.clone(),
            source,
        },
    })?;
    let value = match response(&answer) {
        Ok((200, body)) => {
            serde_json::from_slice(body).map_err(|error| format!("the answer is no JSON ({error})"))
        }
        Ok((status, _)) => Err(format!("the answer has status {status}")),
        Err(reason) => Err(reason),
    };
    value.map_err(|reason| StatusError::Answer { url: text, reason })
}

enum Failed {
    Address(String),
    Io(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

/// Sends a GET; the response ends with the connection. HTTP/1.0, so that its body is not chunked.
fn exchange(url: &Url) -> Result<Vec<u8>, Failed> {
    let (path, host) = (&url.path, url.endpoint.host_header());
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    match &url.endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
            stream.set_write_timeout(Some(EXCHANGE_TIMEOUT))?;
            Ok(exchange_on(stream, &request)?)
        }
        Endpoint::Inet { tls: true, .. } => {
            let text = format!("{url}: only http:// is possible here");
            Err(Failed::Address(text))
        }
        Endpoint::Inet { host, port, .. } => {
            let address = crate::client::resolve::resolve(host, *port)
                .map_err(|error| Failed::Address(error.to_string()))?;
            let stream = TcpStream::connect_timeout(&address, EXCHANGE_TIMEOUT)?;
            stream.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
            stream.set_write_timeout(Some(EXCHANGE_TIMEOUT))?;
            Ok(exchange_on(stream, &request)?)
        }
    }
}

fn exchange_on(mut stream: impl Read + Write, request: &str) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + EXCHANGE_TIMEOUT;
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(bytes) => answer.extend_from_slice(&buffer[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The read's own limit shows as would-block, which says little to a person.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
}

/// Status and body.
fn response(answer: &[u8]) -> Result<(u16, &[u8]), String> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    match head.parse(answer) {
        Ok(httparse::Status::Complete(length)) => Ok((head.code.unwrap_or(0), &answer[length..])),
        Ok(httparse::Status::Partial) => Err("the answer ended in its head".to_owned()),
        Err(error) => Err(format!("the answer is no HTTP ({error})")),
    }
}

/// Connects to a server once, before the run: nothing can be measured if that fails.
///
/// # Errors
/// Why the connection could not be made within the time limit.
pub fn reach(address: &Address, timeout: Duration) -> io::Result<()> {
    match address {
        Address::Unix(path) => UnixStream::connect(path).map(drop),
        Address::Inet(address) => reach_inet(address, timeout).map(drop),
    }
}

/// The same with TLS, which only TCP has.
///
/// # Errors
/// Why the connection could not be made; or why the handshake failed, as text.
pub(super) fn reach_tls(
    address: &Address,
    tls: &TlsClient,
    proxy: Option<ProxyVersion>,
    timeout: Duration,
) -> io::Result<Result<(), String>> {
    let Address::Inet(address) = address else {
        return reach(address, timeout).map(Ok);
    };
    let mut stream = reach_inet(address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    if let Some(version) = proxy {
        let header = proxy_header(version, Some((stream.local_addr()?, *address)));
        stream.write_all(&header)?;
    }
    Ok(tls.greet(stream))
}

fn reach_inet(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(address, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers one client and ends.
    fn answering(answer: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut request = [0; 1024];
            let bytes = client.read(&mut request).expect("a request");
            assert!(request[..bytes].starts_with(b"GET /status.json HTTP/1.0\r\n"));
            client.write_all(answer.as_bytes()).expect("room");
        });
        format!("http://127.0.0.1:{port}/status")
            .parse()
            .expect("an address")
    }

    #[test]
    fn status_page_counters_are_returned() {
        let value = fetch(&answering("HTTP/1.1 200 OK\r\n\r\n{\"total\": 7}")).expect("JSON");
        assert_eq!(value["total"], 7);
    }

    #[test]
    fn error_has_the_reason_when_the_status_page_is_not_headways() {
        let cases = [
            ("HTTP/1.1 404 Not Found\r\n\r\n", "status 404"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", "no JSON"),
            ("SSH-2.0-x\r\n", "no HTTP"),
            ("HTTP/1.1 200 OK\r\n", "ended in its head"),
        ];
        for (answer, part) in cases {
            let error = fetch(&answering(answer)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(error.contains("headway serve --status"), "{error}");
        }
    }

    #[test]
    fn connection_is_refused_when_no_server_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let reached = reach(&Address::Inet(address), EXCHANGE_TIMEOUT);
        assert!(reached.is_ok(), "{reached:?}");
        drop(listener);
        let refused = reach(&Address::Inet(address), EXCHANGE_TIMEOUT).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
