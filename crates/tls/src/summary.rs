//! The TLS properties of a connection, for programs, upstreams and logs.

use crate::certificate::Facts;
use crate::established::Established;
use crate::wire::text;

/// The valid certificate of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The name of the client, as in LDAP.
    pub subject: String,
    /// The name of the authority.
    pub issuer: String,
    /// The number, in hexadecimal digits.
    pub serial: String,
}

headway_os::encoding! {
    struct ClientCertificate { subject: text, issuer: text, serial: text }
}

impl ClientCertificate {
    /// Parses a certificate. `None` if it cannot be parsed.
    pub(crate) fn of_der(certificate: &[u8]) -> Option<ClientCertificate> {
        let facts = Facts::of_der(certificate)?;
        Some(ClientCertificate {
            subject: facts.subject,
            issuer: facts.issuer,
            serial: facts.serial,
        })
    }
}

/// The TLS properties of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    is_13: bool,
    suite: u16,
    /// The host that the client has asked for in its handshake.
    pub server_name: Option<Vec<u8>>,
    /// Whether an earlier session was resumed.
    pub is_resumed: bool,
    /// The client's certificate.
    pub certificate: Option<ClientCertificate>,
}

impl Summary {
    /// The properties of a connection whose handshake is complete.
    pub fn of(established: &Established) -> Summary {
        Summary {
            is_13: established.is_13,
            suite: established.suite,
            server_name: established.server_name.clone(),
            is_resumed: established.is_resumed,
            certificate: established.client_certificate.clone(),
        }
    }

    /// The version, as mod_ssl writes it.
    pub fn version(&self) -> &'static str {
        match self.is_13 {
            true => "TLSv1.3",
            false => "TLSv1.2",
        }
    }

    /// The name of the cipher suite at IANA.
    pub fn cipher_suite(&self) -> &'static str {
        match self.suite {
            0x1301 => "TLS_AES_128_GCM_SHA256",
            0x1302 => "TLS_AES_256_GCM_SHA384",
            0x1303 => "TLS_CHACHA20_POLY1305_SHA256",
            suite => rustls::CipherSuite::from(suite).as_str().unwrap_or("-"),
        }
    }
}
