//! One connection's TLS, without I/O: records in, content out, and the other way round.
//!
//! Records are opened in the receive buffer that all connections share. What a connection keeps is
//! the beginning of a record that has not come whole, and sealed bytes that its socket has not
//! taken: at most what one request or one step of the handshake makes.

use std::fmt;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::unbuffered::{ConnectionState, EncodeTlsData, EncryptError, UnbufferedStatus};
use rustls::{Error, HandshakeKind};

use crate::tls::TlsClient;

/// Plaintext that is sealed at a time. A longer request follows when this has left.
const SEALED_BYTES: usize = 64 * 1024;

/// Room for the framing of these records.
const FRAMING_BYTES: usize = 512;

pub(crate) struct TlsSession {
    session: UnbufferedClientConnection,
    /// Sealed bytes, of which `sent` have left.
    output: Vec<u8>,
    sent: usize,
    /// Received, and not whole enough to be opened.
    input: Vec<u8>,
    /// The handshake is done.
    pub established: bool,
    /// The server has said that nothing more comes (`close_notify`).
    pub closed: bool,
    /// It ended with an error, and can only be dropped.
    pub failed: bool,
    /// When the handshake began.
    pub begun_ns: u64,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsSession").finish_non_exhaustive()
    }
}

impl TlsSession {
    /// `before` leaves before the handshake, in the clear.
    pub(super) fn new(client: &TlsClient, before: Vec<u8>) -> TlsSession {
        TlsSession {
            session: client.session(),
            output: before,
            sent: 0,
            input: Vec::new(),
            established: false,
            closed: false,
            failed: false,
            begun_ns: 0,
        }
    }

    /// Begins the handshake.
    pub(super) fn begin(&mut self, now_ns: u64) -> Result<(), Error> {
        self.begun_ns = now_ns;
        self.advance(&mut [], |_| {}).map(drop)
    }

    /// Puts what was kept before the bytes that are to be received, and says how much that is.
    pub(super) fn put_kept(&self, buffer: &mut [u8]) -> usize {
        buffer[..self.input.len()].copy_from_slice(&self.input);
        self.input.len()
    }

    /// Opens records, and keeps what is not a whole one. `take` gets the content, in pieces.
    pub(super) fn open(
        &mut self,
        received: &mut [u8],
        take: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let opened = self.advance(received, take)?;
        self.input.clear();
        self.input.extend_from_slice(&received[opened..]);
        Ok(())
    }

    /// How many bytes were used up.
    fn advance(
        &mut self,
        received: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, Error> {
        let mut at = 0;
        loop {
            let UnbufferedStatus { discard, state } =
                self.session.process_tls_records(&mut received[at..]);
            let mut used = discard;
            let more = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        used += record.discard;
                        take(record.payload);
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut self.output);
                    true
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.closed = true;
                    true
                }
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.established = true;
                    false
                }
                Ok(_) => false,
                Err(error) => {
                    self.take_alert(&mut received[at + discard..]);
                    return Err(error);
                }
            };
            at += used;
            if !more {
                return Ok(at);
            }
        }
    }

    /// The alert that tells the server why. The library wants to see what is left of its input, and
    /// must not be asked a second time.
    fn take_alert(&mut self, received: &mut [u8]) {
        self.failed = true;
        let UnbufferedStatus { state, .. } = self.session.process_tls_records(received);
        if let Ok(ConnectionState::EncodeTlsData(data)) = state {
            encode(data, &mut self.output);
        }
    }

    /// Seals the beginning of `content`, and says how much of it.
    pub(super) fn seal(&mut self, content: &[u8]) -> Result<usize, Error> {
        let piece = &content[..content.len().min(SEALED_BYTES)];
        // A step in between, such as a key update, only adds to the output.
        let used = self.advance_kept()?;
        self.input.drain(..used);
        let start = self.output.len();
        let mut room = piece.len() + FRAMING_BYTES;
        let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut self.input);
        let ConnectionState::WriteTraffic(mut traffic) = state? else {
            return Err(Error::HandshakeNotComplete);
        };
        loop {
            self.output.resize(start + room, 0);
            match traffic.encrypt(piece, &mut self.output[start..]) {
                Ok(bytes) => {
                    self.output.truncate(start + bytes);
                    return Ok(piece.len());
                }
                Err(EncryptError::InsufficientSize(needed)) => room = needed.required_size,
                Err(EncryptError::EncryptExhausted) => {
                    self.output.truncate(start);
                    return Err(Error::EncryptError);
                }
            }
        }
    }

    fn advance_kept(&mut self) -> Result<usize, Error> {
        let mut kept = std::mem::take(&mut self.input);
        let used = self.advance(&mut kept, |_| {});
        self.input = kept;
        used
    }

    /// Seals the end of what the client sends.
    pub(super) fn seal_end(&mut self) {
        let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut self.input);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            return;
        };
        let start = self.output.len();
        self.output.resize(start + FRAMING_BYTES, 0);
        let bytes = traffic.queue_close_notify(&mut self.output[start..]);
        self.output.truncate(start + bytes.unwrap_or(0));
    }

    /// Sealed bytes that have not left.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// This number of them has left.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Whether the handshake resumed an earlier session.
    pub(super) fn is_resumed(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Whether the server has chosen HTTP/2; otherwise what to do about it.
    pub(super) fn check_http2(&self) -> Result<(), String> {
        crate::tls::check_http2(self.session.alpn_protocol())
    }

    /// Version and cipher suite, as in `TLSv1.3, TLS_AES_128_GCM_SHA256`.
    pub(super) fn protocol(&self) -> String {
        crate::tls::protocol(
            self.session.protocol_version(),
            self.session.negotiated_cipher_suite(),
        )
    }
}

/// Appends a record of the handshake to the output.
fn encode(mut data: EncodeTlsData<'_, ClientConnectionData>, output: &mut Vec<u8>) {
    use rustls::unbuffered::EncodeError;
    let start = output.len();
    let mut room = FRAMING_BYTES;
    loop {
        output.resize(start + room, 0);
        match data.encode(&mut output[start..]) {
            Ok(bytes) => return output.truncate(start + bytes),
            Err(EncodeError::InsufficientSize(needed)) => room = needed.required_size,
            Err(EncodeError::AlreadyEncoded) => return output.truncate(start),
        }
    }
}
