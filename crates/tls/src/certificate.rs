//! What a certificate says about itself: names, serial number and validity.
//!
//! Only a few fields at fixed positions are read, so no general parser of X.509 is needed. Names have the form of
//! LDAP, the last part first, in printable ASCII. So headers and logs can have them.
//!
//! Sources: RFC 5280 sections 4.1 and A.1, X.690 (DER), RFC 4514.

use std::fmt::Write;

use crate::der::{INTEGER, OBJECT_IDENTIFIER, Reader, SEQUENCE};

const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const T61_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const BMP_STRING: u8 = 0x1e;
const SET: u8 = 0x31;
/// `[0]`.
const VERSION: u8 = 0xa0;

/// The longest name that programs get. Names are a part of every request to a program.
const NAME_BYTES_MAX: usize = 2_048;

/// What a certificate says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The name of its owner.
    pub subject: String,
    /// The authority.
    pub issuer: String,
    /// The serial number, in hexadecimal digits.
    pub serial: String,
    /// When its validity begins, in seconds since 1970.
    pub not_before_s: i64,
    /// When its validity ends, in seconds since 1970.
    pub not_after_s: i64,
}

impl Facts {
    /// Parses a certificate. `None` if it cannot be parsed.
    pub fn of_der(certificate: &[u8]) -> Option<Facts> {
        let signed = Reader::new(Reader::new(certificate).content(SEQUENCE)?).content(SEQUENCE)?;
        let mut fields = Reader::new(signed);
        if fields.next_is(VERSION) {
            fields.content(VERSION)?;
        }
        let serial = fields.content(INTEGER)?;
        // The algorithm.
        fields.content(SEQUENCE)?;
        let issuer = fields.content(SEQUENCE)?;
        let mut validity = Reader::new(fields.content(SEQUENCE)?);
        Some(Facts {
            serial: digits(serial),
            issuer: name(issuer)?,
            not_before_s: validity.time()?,
            not_after_s: validity.time()?,
            subject: name(fields.content(SEQUENCE)?)?,
        })
    }

    /// Whether it is valid at this time, in seconds since 1970.
    pub fn is_valid_at(&self, now_s: i64) -> bool {
        (self.not_before_s..=self.not_after_s).contains(&now_s)
    }
}

/// A number as an even number of digits, without zeros in front.
fn digits(number: &[u8]) -> String {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    match &number[zeros..] {
        [] => "00".to_owned(),
        number => hex(number),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// A list of sets of types with values.
fn name(sets: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    let mut sets = Reader::new(sets);
    while !sets.is_at_end() {
        let mut set = Reader::new(sets.content(SET)?);
        let mut part = String::new();
        while !set.is_at_end() {
            let mut pair = Reader::new(set.content(SEQUENCE)?);
            if !part.is_empty() {
                part.push('+');
            }
            let kind = pair.content(OBJECT_IDENTIFIER)?;
            let whole = pair.rest();
            let (tag, value) = pair.element()?;
            match (short_name(kind), text(tag, value)) {
                (Some(short), Some(text)) => {
                    part.push_str(short);
                    part.push('=');
                    escape(&text, &mut part);
                }
                // RFC 4514, 2.4.
                _ => part.push_str(&format!("{}=#{}", dotted(kind)?, hex(whole))),
            }
        }
        parts.push(part);
    }
    parts.reverse();
    let name = parts.join(",");
    (name.len() <= NAME_BYTES_MAX).then_some(name)
}

/// RFC 4514, section 3, and what else is usual in certificates of clients.
fn short_name(kind: &[u8]) -> Option<&'static str> {
    Some(match kind {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 4] => "SN",
        [0x55, 4, 5] => "serialNumber",
        [0x55, 4, 6] => "C",
        [0x55, 4, 7] => "L",
        [0x55, 4, 8] => "ST",
        [0x55, 4, 9] => "street",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        [0x55, 4, 12] => "title",
        [0x55, 4, 42] => "GN",
        // 0.9.2342.19200300.100.1.1 and 25.
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1] => "UID",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25] => "DC",
        // 1.2.840.113549.1.9.1.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1] => "emailAddress",
        _ => return None,
    })
}

fn dotted(kind: &[u8]) -> Option<String> {
    let mut numbers = Vec::new();
    let mut number: u64 = 0;
    for byte in kind {
        number = number.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(std::mem::take(&mut number));
        }
    }
    let (first, rest) = numbers.split_first()?;
    let root = (first / 40).min(2);
    let mut text = format!("{root}.{}", first - root * 40);
    rest.iter().for_each(|number| {
        let _ = write!(text, ".{number}");
    });
    Some(text)
}

fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        UTF8_STRING | PRINTABLE_STRING | IA5_STRING => {
            std::str::from_utf8(value).ok().map(str::to_owned)
        }
        // In fact Latin 1.
        T61_STRING => Some(value.iter().copied().map(char::from).collect()),
        BMP_STRING => {
            let (pairs, rest) = value.as_chunks();
            let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

/// RFC 4514, 2.4. What is not printable ASCII is escaped, too.
fn escape(text: &str, out: &mut String) {
    let last = text.len().saturating_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.extend(['\\', char::from(byte)]);
            }
            b'#' | b' ' if at == 0 => out.extend(['\\', char::from(byte)]),
            b' ' if at == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SerialNumber, date_time_ymd,
    };

    fn certificate(names: &[(DnType, DnValue)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.serial_number = Some(SerialNumber::from(vec![0x0a, 0xbc]));
        params.not_before = date_time_ymd(1999, 12, 31);
        params.not_after = date_time_ymd(2100, 2, 28);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn subject(names: &[(DnType, DnValue)]) -> String {
        Facts::of_der(&certificate(names)).unwrap().subject
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn facts_are_those_of_the_certificate() {
        let names = [
            (DnType::CountryName, DnValue::from("DE")),
            (DnType::OrganizationName, utf8("Example")),
            (DnType::CommonName, utf8("a client")),
        ];
        let facts = Facts::of_der(&certificate(&names)).unwrap();
        assert_eq!(facts.subject, "CN=a client,O=Example,C=DE");
        assert_eq!(facts.issuer, facts.subject);
        assert_eq!(facts.serial, "0ABC");
        assert_eq!(
            (facts.not_before_s, facts.not_after_s),
            (946_598_400, 4_107_456_000)
        );
        assert!(facts.is_valid_at(946_598_400) && facts.is_valid_at(4_107_456_000));
        assert!(!facts.is_valid_at(946_598_399) && !facts.is_valid_at(4_107_456_001));
    }

    #[test]
    fn special_characters_of_names_are_escaped() {
        let cn = |value: DnValue| subject(&[(DnType::CommonName, value)]);
        assert_eq!(cn(utf8("x,O=Other+y")), "CN=x\\,O=Other\\+y");
        assert_eq!(cn(utf8(" #a\r\nb ")), "CN=\\ #a\\0D\\0Ab\\ ");
        assert_eq!(cn(utf8("#a")), "CN=\\#a");
        assert_eq!(cn(utf8("Jürgen")), "CN=J\\C3\\BCrgen");
        let wide = rcgen::string::BmpString::try_from("ü").unwrap();
        assert_eq!(cn(DnValue::BmpString(wide)), "CN=\\C3\\BC");
        let unknown = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 65_000]);
        assert_eq!(
            subject(&[(unknown, utf8("a"))]),
            "1.3.6.1.4.1.65000=#0C0161"
        );
        assert_eq!(subject(&[]), "");
    }

    #[test]
    fn truncated_or_changed_certificate_does_not_panic() {
        let whole = certificate(&[(DnType::CommonName, utf8("a"))]);
        for length in 0..whole.len() {
            assert_eq!(Facts::of_der(&whole[..length]), None);
            let mut changed = whole.clone();
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                changed[length] = byte;
                let _ = Facts::of_der(&changed);
            }
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(
            Facts::of_der(&certificate(&[(DnType::CommonName, utf8(&long))])),
            None
        );
    }
}
