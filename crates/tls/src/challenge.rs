//! Challenges of an ACME authority that are answered in a handshake (TLS-ALPN-01, RFC 8737).
//!
//! The ACME process puts the certificate for a challenge, with its key, into memory that it shares with the
//! handshake processes. So it asks no process, and a handshake process that has just started knows it, too. A
//! client that offers `acme-tls/1` gets this certificate if it asks for the host of the challenge. Any other
//! client gets an alert, since the server speaks no such protocol.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use headway_os::codec::{Field, decode};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustls::server::{Acceptor, ServerConfig};
use rustls::sign::CertifiedKey;

use crate::handshake::Captured;
use crate::identity::{ByName, Certified, Identity, provider};

/// The protocol of such a handshake.
pub const ACME_TLS: &[u8] = b"acme-tls/1";
/// As a client offers it: with its length in front.
const OFFERED: &[u8] = b"\x0aacme-tls/1";
/// A certificate and its key are about 1 KiB.
const BYTES_MAX: u64 = 64 << 10;

/// A challenge to answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The name to certify, in lower case.
    pub host: Vec<u8>,
    /// The certificate with the answer, and its key.
    pub identity: Identity,
}

headway_os::encoding! {
    struct Challenge { host, identity }
}

/// Memory with at most one challenge, which processes share.
#[derive(Debug)]
pub struct ChallengeMemory(File);

impl ChallengeMemory {
    /// Memory without a challenge.
    ///
    /// # Errors
    /// Those of memfd_create(2).
    pub fn new() -> io::Result<ChallengeMemory> {
        let memory = memfd_create(c"headway-challenge", MemfdFlags::CLOEXEC)?;
        fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
        Ok(ChallengeMemory::shared(memory))
    }

    /// That of another process.
    pub fn shared(descriptor: OwnedFd) -> ChallengeMemory {
        ChallengeMemory(descriptor.into())
    }

    /// Replaces the challenge.
    ///
    /// # Errors
    /// Those of ftruncate(2) and pwrite(2).
    pub fn set(&self, challenge: Option<&Challenge>) -> io::Result<()> {
        self.0.set_len(0)?;
        let mut bytes = Vec::new();
        if let Some(challenge) = challenge {
            challenge.write(&mut bytes);
        }
        self.0.write_all_at(&bytes, 0)
    }

    /// A process that reads while it is replaced gets none: a part of it cannot be decoded. The authority asks only
    /// after that.
    fn get(&self) -> Option<Challenge> {
        let length = self.0.metadata().ok()?.len();
        let mut bytes = vec![
            0;
            (1..=BYTES_MAX)
                .contains(&length)
                .then_some(length as usize)?
        ];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        decode(&bytes).ok()
    }

    /// How to answer a client's first records, if the authority asks for the challenge.
    pub(crate) fn config_for(&self, records: &[u8]) -> Option<Arc<ServerConfig>> {
        if !records.windows(OFFERED.len()).any(|part| part == OFFERED) {
            return None;
        }
        let challenge = self.get()?;
        asks_for(&challenge.host, records).then(|| config(&challenge.identity))?
    }
}

impl AsFd for ChallengeMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the records are a request for the certificate of a challenge: RFC 8737, section 3.
fn asks_for(host: &[u8], mut records: &[u8]) -> bool {
    let mut acceptor = Acceptor::default();
    let read = acceptor.read_tls(&mut records);
    let Ok(Ok(Some(accepted))) = read.map(|_| acceptor.accept()) else {
        return false;
    };
    let hello = accepted.client_hello();
    let name = hello.server_name().map(str::as_bytes);
    let protocols = hello.alpn().into_iter().flatten();
    name.is_some_and(|name| name.eq_ignore_ascii_case(host)) && protocols.eq([ACME_TLS])
}

fn config(identity: &Identity) -> Option<Arc<ServerConfig>> {
    let (chain, key) = (identity.chain().ok()?, identity.private_key().ok()?);
    let provider = provider(&[]);
    let key = provider.key_provider.load_private_key(key).ok()?;
    // The certificate is not checked: its critical extension is for the authority only.
    let certified = Certified::unnamed(CertifiedKey::new(chain, key));
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().ok()?;
    let builder = builder.with_no_client_auth();
    let mut config = builder.with_cert_resolver(Arc::new(ByName(vec![certified])));
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.key_log = Arc::new(Captured);
    config.enable_secret_extraction = true;
    config.send_tls13_tickets = 0;
    Some(Arc::new(config))
}
