//! The client's side of a conversation, and the connection of its upstream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::notation::Names;
use crate::tls::tools::TlsStream;

/// How long a client waits for bytes that are expected.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the client waits before it records that nothing more was sent; only when updating.
const QUIET: Duration = Duration::from_millis(500);
/// Long enough that the next data is a segment of its own; no result depends on it.
const PAUSE: Duration = Duration::from_millis(30);

/// A request that every running server answers.
const PROBE: &[u8] = b"OPTIONS * HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n";

/// A connection in the clear or by TLS.
pub trait Wire: Read + Write {
    fn socket(&self) -> &TcpStream;

    /// Ends the sending side.
    fn shut(&mut self) -> io::Result<()>;
}

impl Wire for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn shut(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Wire for TlsStream {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }

    fn shut(&mut self) -> io::Result<()> {
        self.conn.send_close_notify();
        self.flush()
    }
}

pub struct Client {
    stream: Box<dyn Wire>,
    ended: bool,
    shut: bool,
    /// The server has not marked the end, as TLS wants it.
    pub is_cut: bool,
}

impl Client {
    pub fn new(stream: impl Wire + 'static) -> Client {
        stream.socket().set_nodelay(true).expect("set_nodelay");
        Client {
            stream: Box::new(stream),
            ended: false,
            shut: false,
            is_cut: false,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        match self.stream.write_all(bytes) {
            Ok(()) => Ok(()),
            // A server that rejects a request need not read all of it.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(format!("sending: {error}")),
        }
    }

    pub fn pause(&self) {
        std::thread::sleep(PAUSE);
    }

    pub fn shut(&mut self) -> Result<(), String> {
        self.shut = true;
        self.stream
            .shut()
            .map_err(|error| format!("ending the sending side: {error}"))
    }

    /// Reads until `expected` has arrived (or until the server is quiet, if nothing is expected),
    /// or to the end of the stream if these are the `last` bytes.
    pub fn receive(
        &mut self,
        names: &Names,
        expected: Option<&str>,
        last: bool,
    ) -> Result<String, String> {
        let mut said = Vec::new();
        let timeout = if expected.is_some() || last {
            TIMEOUT
        } else {
            QUIET
        };
        self.stream
            .socket()
            .set_read_timeout(Some(timeout))
            .map_err(|error| error.to_string())?;
        loop {
            let text = names.render(&said);
            let complete = !last && expected.is_some_and(|expected| expected == text);
            if complete || self.ended || !self.read(&mut said)? {
                return Ok(names.render(&said));
            }
        }
    }

    /// What has arrived and was not received, without waiting.
    pub fn unread(&mut self, names: &Names) -> Result<String, String> {
        let mut said = Vec::new();
        self.stream
            .socket()
            .set_nonblocking(true)
            .map_err(|error| error.to_string())?;
        while !self.ended && self.read(&mut said)? {}
        Ok(names.render(&said))
    }

    /// Returns `false` if no more data will come.
    fn read(&mut self, said: &mut Vec<u8>) -> Result<bool, String> {
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                Ok(false)
            }
            Ok(count) => {
                said.extend_from_slice(&buffer[..count]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                (self.ended, self.is_cut) = (true, true);
                Ok(false)
            }
            Err(error) => Err(format!("receiving, after {} bytes: {error}", said.len())),
        }
    }

    /// Checks that the server has closed the connection and sends nothing more.
    pub fn is_closed(&mut self, names: &Names) -> Result<(), String> {
        let mut more = Vec::new();
        while !self.ended && self.read(&mut more)? {}
        match (self.ended, more.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err("the server does not close the connection".into()),
            (true, false) => Err(format!("the server says more:\n{}", names.render(&more))),
        }
    }

    /// Checks that the connection is open and that only the expected data was sent.
    pub fn is_open(&mut self, names: &Names) -> Result<(), String> {
        if self.shut {
            return Err(
                "a client that has ended its side cannot see whether the connection is open".into(),
            );
        }
        self.send(PROBE)?;
        let mut response = Vec::new();
        self.stream
            .socket()
            .set_read_timeout(Some(TIMEOUT))
            .map_err(|error| error.to_string())?;
        while !self.ended && self.read(&mut response)? {}
        let text = names.render(&response);
        let heads = response
            .windows(4)
            .filter(|bytes| bytes == b"\r\n\r\n")
            .count();
        let good =
            text.starts_with("HTTP/1.1 200 OK\n") && text.contains("\nAllow: ") && heads == 1;
        if good && self.ended {
            Ok(())
        } else {
            Err(format!("the connection is not kept; a probe gets:\n{text}"))
        }
    }
}
