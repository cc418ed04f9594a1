//! A client of HTTP/1.1 on plain sockets. It shares no code with the server, and is strict: what it
//! does not understand is wrong.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::journal::Failure;

/// Longer than every timeout of the server, and than a stopped worker is tolerated.
pub const WAIT_MAX: Duration = Duration::from_secs(45);
const ADDRESS: &str = "127.0.0.1:8080";

/// How a client reads.
#[derive(Clone, Copy)]
pub struct Pace {
    pub part: usize,
    pub pause: Duration,
}

/// A response, whole.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

/// A connection with what has been received and not used.
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    pace: Option<Pace>,
    /// When the server was last known to live: the connection was made, or the last requests that
    /// were answered were sent.
    pub good: Instant,
    /// What is received now is the body of a response with a length.
    is_in_body: bool,
}

impl Connection {
    pub fn open(pace: Option<Pace>) -> Result<Connection, Failure> {
        let good = Instant::now();
        let stream = match pace {
            // What a slow client does not read is to stay at the server.
            Some(_) => slow_stream(),
            None => TcpStream::connect(ADDRESS),
        };
        let stream = stream.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Failure::Hung,
            _ => Failure::Refused,
        })?;
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        stream.set_write_timeout(Some(WAIT_MAX)).expect("a timeout");
        Ok(Connection {
            stream,
            received: Vec::new(),
            pace,
            good,
            is_in_body: false,
        })
    }

    /// Sends bytes. The next read sees an error: the server may answer before it closes.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Resets the connection with whatever is under way.
    pub fn reset(self) {
        let linger = Some(Duration::ZERO);
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, linger);
    }

    /// Reads something, as part of a response of which `before` bytes have come.
    fn fill(&mut self, before: usize) -> Result<(), Failure> {
        let mut part = [0; 64 << 10];
        let most = self
            .pace
            .map_or(part.len(), |pace| pace.part.min(part.len()));
        match self.stream.read(&mut part[..most]) {
            Ok(0) if before == 0 => Err(Failure::NoReply),
            Ok(0) => Err(Failure::Cut),
            Ok(bytes) => {
                self.received.extend_from_slice(&part[..bytes]);
                if let Some(pace) = self.pace {
                    std::thread::sleep(pace.pause);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Failure::Hung),
            Err(_) if before == 0 => Err(Failure::NoReply),
            Err(_) => Err(Failure::Cut),
        }
    }

    /// Reads the beginning of a response.
    pub fn read_some(&mut self) -> Result<(), Failure> {
        self.fill(0)
    }

    /// Reads one response to a request with this method.
    pub fn read_reply(&mut self, method: &str) -> Result<Reply, Failure> {
        let (status, headers) = loop {
            let head = self.read_head()?;
            // 100 Continue was not asked for, but may come.
            if head.0 != 100 {
                break head;
            }
        };
        let mut reply = Reply {
            status,
            headers,
            body: Vec::new(),
        };
        let lengths: Vec<&str> = reply
            .headers
            .iter()
            .filter(|(name, _)| name == "content-length")
            .map(|(_, value)| value.as_str())
            .collect();
        let coding = reply.header("transfer-encoding");
        let is_bodiless = method == "HEAD" || status == 304 || status == 204;
        let body = match (lengths.as_slice(), coding) {
            _ if is_bodiless => Ok(Vec::new()),
            ([length], None) => {
                let length = length
                    .parse()
                    .map_err(|_| wrong(format!("length {length}")))?;
                self.is_in_body = true;
                self.read_bytes(length)
            }
            ([], Some("chunked")) => self.read_chunks(),
            _ => Err(wrong(format!("framing {:?}", reply.headers))),
        };
        reply.body = body?;
        self.is_in_body = false;
        Ok(reply)
    }

    fn read_head(&mut self) -> Result<(u16, Vec<(String, String)>), Failure> {
        let end = loop {
            if let Some(at) = position(&self.received, b"\r\n\r\n") {
                break at;
            }
            if self.received.len() > 64 << 10 {
                return Err(wrong("a header without an end".into()));
            }
            self.fill(self.received.len())?;
        };
        let rest = self.received.split_off(end + 4);
        let head = std::mem::replace(&mut self.received, rest);
        let head =
            String::from_utf8(head).map_err(|_| wrong("a header which is no text".into()))?;
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let first = lines.next().unwrap_or("");
        let status = first
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| wrong(format!("status line {first:?}")))?;
        let headers = lines.map(|line| {
            let (name, value) = line
                .split_once(": ")
                .ok_or_else(|| wrong(format!("header {line:?}")))?;
            Ok((name.to_ascii_lowercase(), value.to_owned()))
        });
        Ok((status, headers.collect::<Result<_, Failure>>()?))
    }

    fn read_bytes(&mut self, length: usize) -> Result<Vec<u8>, Failure> {
        while self.received.len() < length {
            self.fill(1)?;
        }
        let rest = self.received.split_off(length);
        Ok(std::mem::replace(&mut self.received, rest))
    }

    fn read_line(&mut self) -> Result<String, Failure> {
        let end = loop {
            if let Some(at) = position(&self.received, b"\r\n") {
                break at;
            }
            if self.received.len() > 64 {
                return Err(wrong("a chunk without a size".into()));
            }
            self.fill(1)?;
        };
        let line = self.read_bytes(end + 2)?;
        String::from_utf8(line).map_err(|_| wrong("a chunk size which is no text".into()))
    }

    fn read_chunks(&mut self) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let size = usize::from_str_radix(line.trim_end(), 16)
                .map_err(|_| wrong(format!("chunk size {line:?}")))?;
            body.extend(self.read_bytes(size)?);
            if self.read_line()? != "\r\n" {
                return Err(wrong("a chunk without an end".into()));
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }

    /// The beginning of the body of the response that ended early.
    pub fn partial_body(&self) -> &[u8] {
        if self.is_in_body { &self.received } else { &[] }
    }

    /// Whether bytes have come which no request asked for.
    pub fn has_surplus(&self) -> bool {
        !self.received.is_empty()
    }
}

pub fn wrong(what: String) -> Failure {
    Failure::Wrong(what)
}

fn position(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn slow_stream() -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let slow = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_recv_buffer_size(&slow, 16 << 10)?;
    let address: std::net::SocketAddr = ADDRESS.parse().expect("an address");
    connect(&slow, &address)?;
    Ok(TcpStream::from(slow))
}
