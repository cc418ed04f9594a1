//! Files of certificates and keys that can be used, and those that cannot. They were made by openssl(1).

use headway_tls::{Acceptor, Identity, IdentityError};

use crate::support::{Kind, identity, settings};

const EC: &[u8] = include_bytes!("data/ec.crt.pem");
const EC_SEC1: &[u8] = include_bytes!("data/ec.sec1.pem");
const EC_PKCS8: &[u8] = include_bytes!("data/ec.pkcs8.pem");
const EC_PKCS8_ENCRYPTED: &[u8] = include_bytes!("data/ec.pkcs8-encrypted.pem");
const EC_SEC1_ENCRYPTED: &[u8] = include_bytes!("data/ec.sec1-encrypted.pem");
const RSA: &[u8] = include_bytes!("data/rsa.crt.pem");
const RSA_PKCS1: &[u8] = include_bytes!("data/rsa.pkcs1.pem");
const RSA_PKCS8: &[u8] = include_bytes!("data/rsa.pkcs8.pem");
const RSA_PKCS1_ENCRYPTED: &[u8] = include_bytes!("data/rsa.pkcs1-encrypted.pem");

fn of(certificate: &[u8], key: &[u8]) -> Identity {
    Identity {
        certificate: certificate.to_vec(),
        key: key.to_vec(),
    }
}

fn error(certificate: &[u8], key: &[u8]) -> IdentityError {
    of(certificate, key).check().unwrap_err()
}

fn key_text(key: &[u8]) -> String {
    match error(EC, key) {
        IdentityError::Key(text) => text,
        other => panic!("{other:?}"),
    }
}

fn certificate_text(certificate: &[u8]) -> String {
    match error(certificate, EC_SEC1) {
        IdentityError::Certificate(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_in_all_usual_forms_are_accepted() {
    for (certificate, key) in [
        (EC, EC_SEC1),
        (EC, EC_PKCS8),
        (RSA, RSA_PKCS1),
        (RSA, RSA_PKCS8),
    ] {
        let certified = of(certificate, key).check().unwrap();
        assert_eq!(certified.names, ["a.example"]);
    }
}

#[test]
fn certificate_and_key_may_be_in_one_file() {
    for parts in [[EC, EC_SEC1], [EC_SEC1, EC]] {
        let file = parts.concat();
        assert!(of(&file, &file).check().is_ok());
    }
    // Text between the parts is let pass, as are the line ends of other systems.
    let text = String::from_utf8([b"# renewed in May\n", EC].concat()).unwrap();
    let text = text.replace('\n', "\r\n");
    assert!(of(text.as_bytes(), EC_SEC1).check().is_ok());
}

#[test]
fn chain_has_its_own_certificate_first() {
    assert!(of(&[EC, RSA].concat(), EC_SEC1).check().is_ok());
    assert_eq!(error(&[RSA, EC].concat(), EC_SEC1), IdentityError::Mismatch);
}

#[test]
fn key_of_another_certificate_is_a_mismatch() {
    assert_eq!(error(EC, RSA_PKCS1), IdentityError::Mismatch);
    assert_eq!(error(RSA, EC_PKCS8), IdentityError::Mismatch);
    let other = identity(&["a.example"], Kind::P256);
    assert_eq!(error(EC, &other.key), IdentityError::Mismatch);
    let text = error(EC, &other.key).to_string();
    assert_eq!(text, "the key does not belong to the certificate");
}

#[test]
fn encrypted_key_is_said_to_be_encrypted() {
    for key in [EC_PKCS8_ENCRYPTED, EC_SEC1_ENCRYPTED, RSA_PKCS1_ENCRYPTED] {
        let text = key_text(key);
        assert!(text.starts_with("it is encrypted"), "{text}");
    }
}

#[test]
fn files_without_a_part_in_pem_form_say_so() {
    for file in [
        &b""[..],
        b"\n\n",
        b"some text\n",
        &[0xff, 0, 0x80, 10],
        &[0x30, 0x82, 1, 1],
    ] {
        assert_eq!(
            key_text(file),
            "no private key in PEM form; tls-key names the file that has it"
        );
        assert_eq!(certificate_text(file), "no certificate in PEM form");
    }
    // The wrong file.
    assert_eq!(
        key_text(EC),
        "no private key in PEM form; tls-key names the file that has it"
    );
    assert_eq!(certificate_text(EC_PKCS8), "no certificate in PEM form");
}

#[test]
fn parts_without_an_end_and_with_other_text_inside_are_mistakes() {
    let cut = |file: &[u8]| file[..file.len() - 30].to_vec();
    assert_eq!(
        key_text(&cut(EC_SEC1)),
        "a part of it has no end (-----END …)"
    );
    assert_eq!(
        certificate_text(&cut(EC)),
        "a part of it has no end (-----END …)"
    );
    let garbled = |file: &[u8]| {
        let text = String::from_utf8(file.to_vec()).unwrap();
        text.replacen("M", "?", 1).into_bytes()
    };
    assert_eq!(key_text(&garbled(EC_SEC1)), "a part of it is not base64");
    assert_eq!(certificate_text(&garbled(EC)), "a part of it is not base64");
    let malformed =
        String::from_utf8(EC.to_vec())
            .unwrap()
            .replacen("CERTIFICATE-----", "CERTIFICATE", 1);
    assert_eq!(
        certificate_text(malformed.as_bytes()),
        "a line -----BEGIN … is malformed"
    );
}

#[test]
fn base64_of_something_else_is_a_mistake() {
    let certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(!certificate_text(certificate).is_empty());
    for label in ["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"] {
        let key = format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
        assert!(!key_text(key.as_bytes()).is_empty());
    }
}

#[test]
fn acceptor_says_why_it_cannot_be_made() {
    let text = |settings| Acceptor::new(settings, None).err().unwrap();
    let mut with_client_ca = settings(&[of(EC, EC_SEC1)]);
    with_client_ca.client_authorities = b"no certificate".to_vec();
    assert!(text(with_client_ca).starts_with("tls-client-ca: "));
    assert!(text(settings(&[of(EC, b"")])).starts_with("key: "));
    assert!(text(settings(&[of(EC, EC_SEC1), of(EC, RSA_PKCS1)])).contains("does not belong"));
}

#[test]
fn keys_are_not_shown_for_debugging() {
    let shown = format!("{:?}", of(EC, EC_SEC1));
    assert!(!shown.contains("PRIVATE") && shown.len() < 30, "{shown}");
}
