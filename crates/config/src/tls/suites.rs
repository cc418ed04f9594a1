//! Cipher suites that clients may use.

use toml::Spanned;

use super::named_values;
use crate::error::Findings;
use crate::keys::Setting;
use crate::units::OneOrMany;

named_values! {
    /// A cipher suite, by its name in the registry of IANA.
    CipherSuite, "cipher suite" {
        /// TLS 1.3.
        #[default]
        Aes256Gcm = "TLS_AES_256_GCM_SHA384",
        /// TLS 1.3.
        Aes128Gcm = "TLS_AES_128_GCM_SHA256",
        /// TLS 1.3.
        Chacha20 = "TLS_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2.
        EcdsaAes256Gcm = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        /// TLS 1.2.
        EcdsaAes128Gcm = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        /// TLS 1.2.
        EcdsaChacha20 = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2.
        RsaAes256Gcm = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        /// TLS 1.2.
        RsaAes128Gcm = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        /// TLS 1.2.
        RsaChacha20 = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    }
}

impl CipherSuite {
    /// Its number in the registry of IANA.
    pub fn number(self) -> u16 {
        match self {
            CipherSuite::Aes128Gcm => 0x1301,
            CipherSuite::Aes256Gcm => 0x1302,
            CipherSuite::Chacha20 => 0x1303,
            CipherSuite::EcdsaAes128Gcm => 0xc02b,
            CipherSuite::EcdsaAes256Gcm => 0xc02c,
            CipherSuite::RsaAes128Gcm => 0xc02f,
            CipherSuite::RsaAes256Gcm => 0xc030,
            CipherSuite::RsaChacha20 => 0xcca8,
            CipherSuite::EcdsaChacha20 => 0xcca9,
        }
    }

    /// Whether it is one of TLS 1.3. The others are of TLS 1.2.
    pub fn is_13(self) -> bool {
        self.number() >> 8 == 0x13
    }
}

/// The suites that are allowed; none stands for all. Each version that clients may use needs one.
pub(super) fn suites(
    item: &Setting<OneOrMany<CipherSuite>>,
    only_13: bool,
    to: &mut Findings<'_>,
) -> Vec<CipherSuite> {
    let Some(list) = item.as_ref().map(Spanned::get_ref) else {
        return Vec::new();
    };
    let position = item.as_ref().map(Spanned::span);
    if !list.0.iter().any(|suite| suite.is_13()) {
        let problem = "no suite of TLS 1.3 is in it; add one, such as TLS_AES_128_GCM_SHA256";
        to.usage_error("tls-suites", position, problem.into());
    } else if !only_13 && list.0.iter().all(|suite| suite.is_13()) {
        let problem = "no suite of TLS 1.2 is in it; add one, or turn this version off: tls-minimum = \"1.3\"";
        to.usage_error("tls-suites", position, problem.into());
    }
    list.0.clone()
}
