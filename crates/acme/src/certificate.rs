//! What renewal has to know of a certificate: its validity, its serial number and its issuer's key.
//!
//! A few fields at fixed places, so no general parser of X.509 is needed. The bytes come from the authority
//! or from a file that an administrator may have put in its place. Anything that is not understood is an error.
//!
//! Sources: RFC 5280 sections 4.1 and 4.2.1.1, X.690 (DER), RFC 9773 section 4.1.

use headway_tls::der::{INTEGER, OBJECT_IDENTIFIER, Reader, SEQUENCE};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

const OCTET_STRING: u8 = 0x04;
/// `[0]`: the version of a certificate, or the key identifier of an authority.
const VERSION: u8 = 0xa0;
const KEY_IDENTIFIER: u8 = 0x80;
/// `[3]`: the extensions.
const EXTENSIONS: u8 = 0xa3;
/// id-ce-authorityKeyIdentifier, 2.5.29.35.
const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x23];

/// The facts of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// In seconds since 1970.
    pub(crate) not_before_s: u64,
    pub(crate) not_after_s: u64,
    /// The bytes of the number, with a zero in front of a high bit.
    pub(crate) serial: Vec<u8>,
    /// The identifier of the key that has signed it.
    pub(crate) authority_key: Option<Vec<u8>>,
}

impl Facts {
    /// Those of the first certificate of a file. `None` if there is none, or it is not understood.
    pub(crate) fn of_pem(text: &[u8]) -> Option<Facts> {
        let first = CertificateDer::pem_slice_iter(text).next()?.ok()?;
        Facts::of_der(&first)
    }

    fn of_der(certificate: &[u8]) -> Option<Facts> {
        let signed = Reader::new(Reader::new(certificate).content(SEQUENCE)?).content(SEQUENCE)?;
        let mut fields = Reader::new(signed);
        if fields.next_is(VERSION) {
            fields.content(VERSION)?;
        }
        let serial = fields.content(INTEGER)?;
        // The algorithm and the issuer.
        fields.content(SEQUENCE)?;
        fields.content(SEQUENCE)?;
        let mut validity = Reader::new(fields.content(SEQUENCE)?);
        Some(Facts {
            not_before_s: seconds(&mut validity)?,
            not_after_s: seconds(&mut validity)?,
            serial: serial.to_vec(),
            authority_key: authority_key(fields),
        })
    }
}

/// A time before 1970 is treated as the first second.
fn seconds(validity: &mut Reader<'_>) -> Option<u64> {
    Some(u64::try_from(validity.time()?).unwrap_or(0))
}

/// Looks for the extension in the fields after the validity.
fn authority_key(mut fields: Reader<'_>) -> Option<Vec<u8>> {
    while !fields.next_is(EXTENSIONS) {
        fields.element()?;
    }
    let mut extensions = Reader::new(Reader::new(fields.content(EXTENSIONS)?).content(SEQUENCE)?);
    loop {
        let mut extension = Reader::new(extensions.content(SEQUENCE)?);
        if extension.content(OBJECT_IDENTIFIER)? != AUTHORITY_KEY_IDENTIFIER {
            continue;
        }
        // Only critical extensions have a flag in front.
        while !extension.next_is(OCTET_STRING) {
            extension.element()?;
        }
        let value = Reader::new(extension.content(OCTET_STRING)?).content(SEQUENCE)?;
        return Reader::new(value)
            .content(KEY_IDENTIFIER)
            .map(<[u8]>::to_vec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, IsCa, Issuer, KeyIdMethod, KeyPair, SerialNumber,
        date_time_ymd,
    };

    /// A certificate that an authority has issued.
    fn issued(from: (i32, u8, u8), until: (i32, u8, u8), names: usize) -> (Vec<u8>, String) {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_identifier_method = KeyIdMethod::PreSpecified(vec![0xc0, 0xff, 0xee]);
        let issuer = Issuer::new(authority, KeyPair::generate().unwrap());
        let names: Vec<String> = (0..names).map(|at| format!("n{at}.a.example")).collect();
        let mut own = CertificateParams::new(names).unwrap();
        own.serial_number = Some(SerialNumber::from_slice(&[0xca, 0xfe]));
        own.use_authority_key_identifier_extension = true;
        own.not_before = date_time_ymd(from.0, from.1, from.2);
        own.not_after = date_time_ymd(until.0, until.1, until.2);
        let key = KeyPair::generate().unwrap();
        let certificate = own.signed_by(&key, &issuer).unwrap();
        (certificate.der().to_vec(), certificate.pem())
    }

    #[test]
    fn facts_are_those_with_which_it_was_made() {
        // Many names make lengths of several bytes; after 2049 the other form of time is used.
        for (until, until_s, names) in [
            ((2027, 2, 26), 1_803_600_000, 1),
            ((2050, 1, 1), 2_524_608_000, 20),
            ((2049, 12, 31), 2_524_521_600, 5000),
        ] {
            let (der, pem) = issued((2026, 11, 28), until, names);
            let facts = Facts::of_der(&der).unwrap();
            assert_eq!(facts.not_before_s, 1_795_824_000);
            assert_eq!(facts.not_after_s, until_s);
            assert_eq!(facts.serial, [0x00, 0xca, 0xfe]);
            assert_eq!(facts.authority_key, Some(vec![0xc0, 0xff, 0xee]));
            let text = format!("# Issued by somebody\n{pem}");
            assert_eq!(Facts::of_pem(text.as_bytes()), Some(facts));
        }
    }

    #[test]
    fn a_damaged_certificate_is_no_panic() {
        let (der, _) = issued((2026, 11, 28), (2027, 2, 26), 1);
        for end in 0..der.len() {
            assert_eq!(Facts::of_der(&der[..end]), None);
        }
        for at in 0..der.len() {
            for bit in 0..8 {
                let mut damaged = der.clone();
                damaged[at] ^= 1 << bit;
                let _ = Facts::of_der(&damaged);
            }
        }
    }

    #[test]
    fn a_self_signed_certificate_names_no_authority() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let facts = Facts::of_der(made.cert.der()).unwrap();
        assert_eq!(facts.authority_key, None);
    }
}
