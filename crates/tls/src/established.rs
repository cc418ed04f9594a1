//! What a handshake has agreed on, as the worker gets it.

use std::fmt;

use zeroize::Zeroize;

use crate::summary::ClientCertificate;
use crate::wire::secret;

/// How records are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-GCM with a key of 128 bits.
    Aes128Gcm,
    /// AES-GCM with a key of 256 bits.
    Aes256Gcm,
    /// ChaCha20 with Poly1305.
    Chacha20Poly1305,
}

/// The keys of one direction.
#[derive(Clone, PartialEq, Eq)]
pub struct Direction {
    /// The key.
    pub key: Vec<u8>,
    /// What the number of a record is added to, to make its nonce.
    pub iv: [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
    /// The traffic secret, from which the next keys are made; empty in TLS 1.2.
    pub secret: Vec<u8>,
}

impl Drop for Direction {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
        self.secret.zeroize();
    }
}

/// Keys are not for logs.
impl fmt::Debug for Direction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Direction")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// A connection after its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Whether it is TLS 1.3; otherwise 1.2.
    pub is_13: bool,
    /// How records are sealed.
    pub cipher: Cipher,
    /// The number of the cipher suite.
    pub suite: u16,
    /// For what the client sends.
    pub receive: Direction,
    /// For what the server sends.
    pub send: Direction,
    /// The protocol that was agreed on by ALPN; empty if none was.
    pub protocol: Vec<u8>,
    /// The host that the client has asked for.
    pub server_name: Option<Vec<u8>>,
    /// Whether an earlier session was resumed.
    pub is_resumed: bool,
    /// What the client has sent right after the handshake, already opened.
    pub early: Vec<u8>,
    /// Whether the client has sent, right after that, that it sends nothing more.
    pub is_at_end: bool,
    /// The client's certificate, if it was asked for one and has shown a valid one.
    pub client_certificate: Option<ClientCertificate>,
}

impl Established {
    /// A connection with these keys, of which nothing else is known.
    pub fn with_keys(
        is_13: bool,
        cipher: Cipher,
        receive: Direction,
        send: Direction,
    ) -> Established {
        Established {
            is_13,
            cipher,
            suite: 0,
            receive,
            send,
            protocol: Vec::new(),
            server_name: None,
            is_resumed: false,
            early: Vec::new(),
            is_at_end: false,
            client_certificate: None,
        }
    }
}

headway_os::encoding! {
    enum Cipher {
        1 => Aes128Gcm,
        2 => Aes256Gcm,
        3 => Chacha20Poly1305,
    }
}

headway_os::encoding! {
    struct Direction { key: secret, iv, sequence, secret: secret }
}

headway_os::encoding! {
    struct Established {
        is_13, cipher, suite, receive, send, protocol, server_name, is_resumed, early, is_at_end,
        client_certificate,
    }
}
