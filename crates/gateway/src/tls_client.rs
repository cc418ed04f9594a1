//! What programs and upstreams get to know of a client that speaks TLS with the server.
//!
//! Sources: variables of Apache's mod_ssl, and the headers in which proxies usually pass them on.

use crate::fields::write_field;

/// A client that speaks TLS.
#[derive(Clone, Copy, Debug)]
pub struct TlsClient<'c> {
    /// `SSL_PROTOCOL`, such as `TLSv1.3`.
    pub version: &'c str,
    /// `SSL_CIPHER`, by its name at IANA.
    pub cipher_suite: &'c str,
    /// `SSL_TLS_SNI`: the host that the client has asked for in its handshake.
    pub server_name: Option<&'c [u8]>,
    /// `SSL_SESSION_RESUMED`.
    pub is_resumed: bool,
    /// The client's certificate. It is valid.
    pub certificate: Option<ClientCertificate<'c>>,
}

/// A client's certificate.
#[derive(Clone, Copy, Debug)]
pub struct ClientCertificate<'c> {
    /// `SSL_CLIENT_S_DN`: the client's name, as in LDAP.
    pub subject: &'c str,
    /// `SSL_CLIENT_I_DN`: the name of the authority.
    pub issuer: &'c str,
    /// `SSL_CLIENT_M_SERIAL`, in hexadecimal digits.
    pub serial: &'c str,
}

impl<'c> TlsClient<'c> {
    /// The variables for programs.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &'c [u8])> {
        let resumed = match self.is_resumed {
            true => "Resumed",
            false => "Initial",
        };
        let certificate = self.certificate;
        let of = |value: fn(&ClientCertificate<'c>) -> &'c str| {
            certificate.as_ref().map(value).map(str::as_bytes)
        };
        let verified = match certificate {
            Some(_) => "SUCCESS",
            None => "NONE",
        };
        let all = [
            ("SSL_PROTOCOL", Some(self.version.as_bytes())),
            ("SSL_CIPHER", Some(self.cipher_suite.as_bytes())),
            ("SSL_TLS_SNI", self.server_name),
            ("SSL_SESSION_RESUMED", Some(resumed.as_bytes())),
            ("SSL_CLIENT_VERIFY", Some(verified.as_bytes())),
            ("SSL_CLIENT_S_DN", of(|one| one.subject)),
            ("SSL_CLIENT_I_DN", of(|one| one.issuer)),
            ("SSL_CLIENT_M_SERIAL", of(|one| one.serial)),
        ];
        all.into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
    }
}

/// What the headers about a client's certificate begin with. Those of clients are not passed on.
const PREFIX: &[u8] = b"x-ssl-client-";

/// Whether a header may tell an upstream of a client's certificate, also one which treats `_` like `-`.
pub(crate) fn is_about_certificate(name: &[u8]) -> bool {
    let same = |(known, byte): (&u8, &u8)| match byte {
        b'_' => *known == b'-',
        _ => *known == byte.to_ascii_lowercase(),
    };
    name.len() >= PREFIX.len() && PREFIX.iter().zip(name).all(same)
}

/// Writes the headers about a client's certificate.
pub(crate) fn write(out: &mut Vec<u8>, certificate: &ClientCertificate<'_>) {
    write_field(out, b"X-SSL-Client-Verify", b"SUCCESS");
    write_field(out, b"X-SSL-Client-S-DN", certificate.subject.as_bytes());
    write_field(out, b"X-SSL-Client-I-DN", certificate.issuer.as_bytes());
    write_field(out, b"X-SSL-Client-Serial", certificate.serial.as_bytes());
}
