//! Why a handshake has failed: a reason from a small fixed set, which metrics count, and a detail for the log.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use crate::wire::text;

macro_rules! reasons {
    ($( $(#[$doc:meta])* $number:literal $variant:ident $label:literal $text:literal; )*) => {
        /// Why a handshake has failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $( $(#[$doc])* $variant, )* }

        headway_os::encoding! {
            enum Reason { $( $number => $variant, )* }
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$( Reason::$variant ),*];

            /// The label in metrics.
            pub fn label(self) -> &'static str {
                match self { $( Reason::$variant => $label, )* }
            }

            /// A clause for the log.
            pub fn text(self) -> &'static str {
                match self { $( Reason::$variant => $text, )* }
            }
        }
    };
}

reasons! {
    /// The first bytes are not a TLS record.
    1 NotTls "not_tls" "the client does not speak TLS";
    /// A record or a message is malformed or out of order.
    2 BadMessage "bad_message" "the client sent an invalid message";
    /// No TLS version in common.
    3 Version "version" "no TLS version in common";
    /// No cipher suite, key exchange group or signature scheme in common.
    4 CipherSuite "cipher_suite" "no cipher suite in common";
    /// No protocol in common (ALPN).
    5 Protocol "alpn" "no application protocol in common";
    /// The client has sent no certificate, but one is required.
    6 ClientCertificateMissing "client_certificate_missing" "the client sent no certificate";
    /// The client's certificate has expired, or is not valid yet.
    7 ClientCertificateExpired "client_certificate_expired" "the client's certificate has expired or is not valid yet";
    /// The client's certificate is invalid for another reason.
    8 ClientCertificateRefused "client_certificate_refused" "the client's certificate is invalid";
    /// The client rejects the default certificate. The server has none for the name that the client asked for.
    9 UnknownName "unknown_name" "the server has no certificate for this name, and the client rejected the default one";
    /// The client rejects the certificate.
    10 CertificateRejected "certificate_rejected" "the client rejected the server's certificate";
    /// The client has reported another failure.
    11 ClientAlert "client_alert" "the client ended the handshake";
    /// The client has disconnected.
    12 ClientClosed "client_closed" "the client disconnected";
    /// The handshake took longer than `tls-handshake-timeout`.
    13 Timeout "timeout" "it took longer than tls-handshake-timeout";
    /// The handshake process has ended.
    14 ProcessGone "process_gone" "the handshake process has ended";
    /// The server failed.
    15 Other "other" "the server failed";
}

/// Why a handshake has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// A detail for the log, or an empty text.
    pub detail: String,
}

headway_os::encoding! {
    struct Failure { reason, detail: text }
}

impl Failure {
    /// A failure of the server itself.
    pub fn other(detail: impl ToString) -> Failure {
        Failure {
            reason: Reason::Other,
            detail: detail.to_string(),
        }
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Failure {
        Failure {
            reason,
            detail: String::new(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.reason.text())?;
        match self.detail.is_empty() {
            true => Ok(()),
            false => write!(out, " ({})", self.detail),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (reason, detail) = match &error {
            Error::AlertReceived(alert) => {
                let name = words(alert, "_");
                (reason_of_alert(*alert), format!("alert {name}"))
            }
            Error::PeerIncompatible(what) => (reason_of_incompatible(what), words(what, " ")),
            Error::NoApplicationProtocol => (Reason::Protocol, String::new()),
            Error::NoCertificatesPresented => (Reason::ClientCertificateMissing, String::new()),
            Error::InvalidCertificate(what) => (reason_of_certificate(what), words(what, " ")),
            Error::InvalidMessage(what) => (Reason::BadMessage, words(what, " ")),
            Error::PeerMisbehaved(what) => (Reason::BadMessage, words(what, " ")),
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::DecryptError
            | Error::PeerSentOversizedRecord => (Reason::BadMessage, words(&error, " ")),
            _ => (Reason::Other, error.to_string()),
        };
        Failure { reason, detail }
    }
}

fn reason_of_alert(alert: AlertDescription) -> Reason {
    match alert {
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        // The signature of a certificate, mostly.
        | AlertDescription::DecryptError => Reason::CertificateRejected,
        _ => Reason::ClientAlert,
    }
}

fn reason_of_incompatible(what: &PeerIncompatible) -> Reason {
    match what {
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        // Versions before 1.2 do not have it.
        | PeerIncompatible::SignatureAlgorithmsExtensionRequired
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled => Reason::Version,
        PeerIncompatible::NoCipherSuitesInCommon
        | PeerIncompatible::NoKxGroupsInCommon
        | PeerIncompatible::NoSignatureSchemesInCommon
        | PeerIncompatible::NoEcPointFormatsInCommon
        | PeerIncompatible::ExtendedMasterSecretExtensionRequired
        | PeerIncompatible::NamedGroupsExtensionRequired
        | PeerIncompatible::UncompressedEcPointsRequired => Reason::CipherSuite,
        _ => Reason::BadMessage,
    }
}

fn reason_of_certificate(what: &CertificateError) -> Reason {
    match what {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Reason::ClientCertificateExpired,
        _ => Reason::ClientCertificateRefused,
    }
}

/// The name of a case as words: `UnknownCA` is `unknown_ca`.
fn words(case: &impl fmt::Debug, separator: &str) -> String {
    let text = format!("{case:?}");
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    let name = &text[..end.unwrap_or(text.len())];
    let name = name.strip_suffix("Context").unwrap_or(name);
    let mut words = String::new();
    let mut is_after_capital = true;
    for c in name.chars() {
        if c.is_ascii_uppercase() && !is_after_capital {
            words.push_str(separator);
        }
        is_after_capital = c.is_ascii_uppercase();
        words.push(c.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use rustls::{InvalidMessage, PeerMisbehaved};

    use super::*;

    #[test]
    fn failure_of_rustls_has_its_reason_and_a_detail_in_words() {
        let alert = Error::AlertReceived;
        let invalid = Error::InvalidCertificate;
        for (error, reason, text) in [
            (
                alert(AlertDescription::UnknownCA),
                Reason::CertificateRejected,
                "the client rejected the server's certificate (alert unknown_ca)",
            ),
            (
                alert(AlertDescription::HandshakeFailure),
                Reason::ClientAlert,
                "the client ended the handshake (alert handshake_failure)",
            ),
            (
                invalid(CertificateError::UnknownIssuer),
                Reason::ClientCertificateRefused,
                "the client's certificate is invalid (unknown issuer)",
            ),
            (
                invalid(CertificateError::Expired),
                Reason::ClientCertificateExpired,
                "the client's certificate has expired or is not valid yet (expired)",
            ),
            (
                Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon),
                Reason::CipherSuite,
                "no cipher suite in common (no kx groups in common)",
            ),
            (
                Error::NoApplicationProtocol,
                Reason::Protocol,
                "no application protocol in common",
            ),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.reason, reason);
            assert_eq!(failure.to_string(), text);
        }
    }

    #[test]
    fn each_failure_of_rustls_has_a_reason_of_its_kind() {
        use AlertDescription as Alert;
        use CertificateError as Certificate;
        use PeerIncompatible as Incompatible;

        for alert in [
            Alert::BadCertificate,
            Alert::UnsupportedCertificate,
            Alert::CertificateRevoked,
            Alert::CertificateExpired,
            Alert::CertificateUnknown,
            Alert::UnknownCA,
            Alert::DecryptError,
        ] {
            assert_eq!(reason_of_alert(alert), Reason::CertificateRejected);
        }
        for alert in [
            Alert::UserCanceled,
            Alert::InternalError,
            Alert::CloseNotify,
        ] {
            assert_eq!(reason_of_alert(alert), Reason::ClientAlert);
        }
        for what in [
            Incompatible::ServerDoesNotSupportTls12Or13,
            Incompatible::SignatureAlgorithmsExtensionRequired,
            Incompatible::SupportedVersionsExtensionRequired,
            Incompatible::Tls12NotOffered,
            Incompatible::Tls12NotOfferedOrEnabled,
        ] {
            assert_eq!(reason_of_incompatible(&what), Reason::Version, "{what:?}");
        }
        for what in [
            Incompatible::NoCipherSuitesInCommon,
            Incompatible::NoKxGroupsInCommon,
            Incompatible::NoSignatureSchemesInCommon,
            Incompatible::NoEcPointFormatsInCommon,
            Incompatible::ExtendedMasterSecretExtensionRequired,
            Incompatible::NamedGroupsExtensionRequired,
            Incompatible::UncompressedEcPointsRequired,
        ] {
            assert_eq!(
                reason_of_incompatible(&what),
                Reason::CipherSuite,
                "{what:?}"
            );
        }
        let what = Incompatible::NullCompressionRequired;
        assert_eq!(reason_of_incompatible(&what), Reason::BadMessage);
        for (what, reason) in [
            (Certificate::Expired, Reason::ClientCertificateExpired),
            (Certificate::NotValidYet, Reason::ClientCertificateExpired),
            (Certificate::BadSignature, Reason::ClientCertificateRefused),
            (Certificate::Revoked, Reason::ClientCertificateRefused),
        ] {
            assert_eq!(reason_of_certificate(&what), reason, "{what:?}");
        }
        for (error, reason) in [
            (
                Error::NoCertificatesPresented,
                Reason::ClientCertificateMissing,
            ),
            (
                Error::InvalidMessage(InvalidMessage::InvalidCcs),
                Reason::BadMessage,
            ),
            (
                Error::PeerMisbehaved(PeerMisbehaved::MissingKeyShare),
                Reason::BadMessage,
            ),
            (Error::DecryptError, Reason::BadMessage),
            (Error::PeerSentOversizedRecord, Reason::BadMessage),
            (Error::EncryptError, Reason::Other),
            (Error::FailedToGetCurrentTime, Reason::Other),
        ] {
            assert_eq!(Failure::from(error.clone()).reason, reason, "{error:?}");
        }
    }

    #[test]
    fn reasons_differ_in_their_labels() {
        let mut labels: Vec<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Reason::ALL.len());
    }
}
