//! An HTTP/2 connection: its socket, TLS if used, and the protocol on top.

use std::os::fd::{AsFd, OwnedFd};

use headway_event::{Events, Interest, Token};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use super::super::tls_session::TlsSession;
use super::TOKEN_KIND;
use super::session::{Broken, Receiver, Session};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    /// In the TLS handshake.
    Handshaking,
    /// Requests can be sent.
    Open,
}

#[derive(Debug)]
pub(super) struct Carrier {
    /// `None` if the entry is free.
    pub socket: Option<OwnedFd>,
    pub tls: Option<Box<TlsSession>>,
    pub session: Session,
    pub state: State,
    interest: Option<Interest>,
    /// Incremented with every connection in this entry.
    pub generation: u32,
    pub group: u32,
    /// The number of the connection in the run.
    pub number: u32,
    /// The slot whose request opened it.
    pub opener: u32,
    /// Frames are collected and sent together.
    pub is_corked: bool,
}

/// The result of one receive call.
pub(super) enum Received {
    /// The buffer has `kept` bytes of an incomplete TLS record, then `bytes` new ones. The socket may have more.
    Bytes {
        kept: usize,
        bytes: usize,
        more: bool,
    },
    /// The server closed its side.
    End,
    Nothing,
    Failed(Errno),
}

pub(super) enum FlushError {
    Socket(Errno),
    Tls(rustls::Error),
}

impl Carrier {
    pub(super) fn new(
        socket: OwnedFd,
        tls: Option<Box<TlsSession>>,
        carries: Option<u32>,
        group: u32,
        number: u32,
        opener: u32,
    ) -> Carrier {
        Carrier {
            socket: Some(socket),
            tls,
            session: Session::new(carries),
            state: State::Connecting,
            interest: None,
            generation: 0,
            group,
            number,
            opener,
            is_corked: false,
        }
    }

    /// Registers this interest. Returns false if the kernel has no memory for it.
    pub(super) fn poll_for(&mut self, events: &mut Events, at: u32, interest: Interest) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        let token = Token::new(TOKEN_KIND, at, self.generation);
        let done = match self.interest {
            Some(present) if present == interest => return true,
            Some(_) => events.modify(socket.as_fd(), token, interest),
            None => events.add(socket.as_fd(), token, interest),
        };
        if done.is_ok() {
            self.interest = Some(interest);
        }
        done.is_ok()
    }

    /// Whether the handshake is complete, and the state is not yet `Open`.
    pub(super) fn is_established(&self) -> bool {
        let established = self.tls.as_ref().is_some_and(|tls| tls.established);
        self.state == State::Handshaking && established
    }

    /// Sends all output. Returns false if the socket is full.
    pub(super) fn flush(&mut self) -> Result<bool, FlushError> {
        let Some(socket) = &self.socket else {
            return Ok(true);
        };
        loop {
            let bytes = match &mut self.tls {
                None => self.session.output(),
                Some(tls) => {
                    let content = self.session.output();
                    if tls.unsent().is_empty() && self.state == State::Open && !content.is_empty() {
                        let sealed = tls.seal(content).map_err(FlushError::Tls)?;
                        self.session.sent(sealed);
                    }
                    tls.unsent()
                }
            };
            if bytes.is_empty() {
                return Ok(true);
            }
            match (
                net::send(socket.as_fd(), bytes, SendFlags::NOSIGNAL),
                &mut self.tls,
            ) {
                (Ok(sent), Some(tls)) => tls.sent(sent),
                (Ok(sent), None) => self.session.sent(sent),
                (Err(Errno::INTR), _) => {}
                (Err(Errno::AGAIN), _) => return Ok(false),
                (Err(error), _) => return Err(FlushError::Socket(error)),
            }
        }
    }

    /// Receives into the buffer, after the incomplete TLS record.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        let Some(socket) = &self.socket else {
            return Received::Nothing;
        };
        let kept = self.tls.as_ref().map_or(0, |tls| tls.put_kept(buffer));
        let room = &mut buffer[kept..];
        let requested = room.len();
        let result = loop {
            match net::recv(socket.as_fd(), &mut *room, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match result {
            Ok((_, 0)) => Received::End,
            Ok((_, bytes)) => Received::Bytes {
                kept,
                bytes,
                more: bytes == requested,
            },
            Err(Errno::AGAIN) => Received::Nothing,
            Err(error) => Received::Failed(error),
        }
    }

    /// Decrypts and parses the received bytes.
    pub(super) fn feed(
        &mut self,
        bytes: &mut [u8],
        to: &mut Receiver<'_>,
    ) -> (Result<(), rustls::Error>, Result<(), Broken>) {
        let session = &mut self.session;
        let Some(tls) = &mut self.tls else {
            return (Ok(()), session.feed(bytes, to));
        };
        let mut fed = Ok(());
        let opened = tls.open(bytes, |piece| {
            if fed.is_ok() {
                fed = session.feed(piece, to);
            }
        });
        (opened, fed)
    }

    /// Sends GOAWAY and the end of TLS. If the socket is full, they are not sent: the server needs neither.
    pub(super) fn send_goaway(&mut self, code: u32) {
        if self.state != State::Open || self.tls.as_ref().is_some_and(|tls| tls.failed) {
            return;
        }
        self.session.put_goaway(code);
        if let (Ok(true), Some(tls)) = (self.flush(), &mut self.tls) {
            tls.seal_end();
            let _ = self.flush();
        }
    }

    pub(super) fn close(&mut self, events: &mut Events) {
        let registered = self.interest.take().is_some();
        self.tls = None;
        if let Some(socket) = self.socket.take()
            && registered
        {
            events.forget(socket.as_fd());
        }
    }
}
