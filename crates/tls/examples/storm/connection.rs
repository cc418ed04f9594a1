//! A connection of the client, and where it goes to.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headway_test_support::trust::Trusting;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConnection, HandshakeKind};

use super::Options;

/// Of a connection, from its intended start to the end of its response.
pub(super) const NEW_CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Where connections go to, and how.
pub(super) struct Target {
    address: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    request: Vec<u8>,
}

impl Target {
    pub(super) fn new(options: &Options, resumes: bool) -> Result<Target, Box<dyn Error>> {
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites.retain(|suite| {
            matches!(
                suite.suite(),
                CipherSuite::TLS13_AES_128_GCM_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                    | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
            )
        });
        provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
        let provider = Arc::new(provider);
        let versions = match options.only_12 {
            true => &[&rustls::version::TLS12][..],
            false => &[&rustls::version::TLS13][..],
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Trusting::all()))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if !resumes {
            config.resumption = Resumption::disabled();
        }
        Ok(Target {
            address: options.address,
            name: "localhost".try_into()?,
            config: Arc::new(config),
            request: format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", options.path)
                .into_bytes(),
        })
    }
}

/// A connection with at most one request under way.
pub(super) struct Connection {
    stream: TcpStream,
    tls: ClientConnection,
    /// The response, as far as it is there.
    input: Vec<u8>,
}

impl Connection {
    /// Begins to connect, with the first request behind the handshake.
    pub(super) fn open(target: &Target) -> io::Result<Connection> {
        let family = match target.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &target.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let tls = ClientConnection::new(target.config.clone(), target.name.clone());
        let mut connection = Connection {
            stream,
            tls: tls.map_err(io::Error::other)?,
            input: Vec::new(),
        };
        connection.request(target)?;
        Ok(connection)
    }

    pub(super) fn request(&mut self, target: &Target) -> io::Result<()> {
        self.input.clear();
        self.tls.writer().write_all(&target.request)?;
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let output = match self.tls.wants_write() {
            true => PollFlags::OUT,
            false => PollFlags::empty(),
        };
        PollFd::new(&self.stream, PollFlags::IN | output)
    }

    /// Goes on after an event; true when the response is whole.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        self.tls.process_new_packets().map_err(io::Error::other)?;
        match self.tls.reader().read_to_end(&mut self.input) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        self.send()?;
        self.is_answered()
    }

    fn is_answered(&self) -> io::Result<bool> {
        let Some(end) = self.input.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(false);
        };
        let invalid = || io::Error::other("not a response with 200 and Content-Length");
        let head = std::str::from_utf8(&self.input[..end]).map_err(io::Error::other)?;
        let length = head.lines().skip(1).find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        match length {
            Some(length) if head.starts_with("HTTP/1.1 200") => {
                Ok(self.input.len() >= end + 4 + length)
            }
            _ => Err(invalid()),
        }
    }

    /// Waits for the response.
    pub(super) fn finish(mut self) -> io::Result<Connection> {
        let deadline = Instant::now() + NEW_CONNECTION_TIMEOUT;
        loop {
            wait(&mut [self.poll_fd()], deadline)?;
            if self.advance()? {
                return Ok(self);
            }
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    pub(super) fn close(mut self) {
        self.tls.send_close_notify();
        // It may have gone, and then needs no goodbye.
        drop(self.send());
    }
}

pub(super) fn established_connections(
    target: &Target,
    count: usize,
) -> io::Result<Vec<Connection>> {
    let open = |_| Connection::open(target)?.finish();
    (0..count).map(open).collect()
}

/// Sleeps until an event or the deadline.
pub(super) fn wait(descriptors: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(descriptors, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The places of those with events.
pub(super) fn ready(descriptors: &[PollFd<'_>], places: &[usize]) -> Vec<usize> {
    let both = descriptors.iter().zip(places);
    let ready = both.filter(|(descriptor, _)| !descriptor.revents().is_empty());
    ready.map(|(_, &place)| place).collect()
}
