//! The certificate of `tls = true`, for development: self-signed, for this machine only.
//!
//! It is stored in a file, with its key, until shortly before it expires. So a browser in which
//! a user has accepted it once also accepts it after a restart.

use std::fmt::Display;
use std::io;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use headway_tls::Identity;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::certificate::Facts;
use crate::disk::{PRIVATE_FILE, make_directories, replace};
use crate::private::read_private;
use crate::process::now_s;

const DAY_S: u64 = 86_400;
/// Longer than some browsers accept would be an error there.
const LIFETIME_S: u64 = 365 * DAY_S;
/// One with less time left is replaced.
const REST_S: u64 = 30 * DAY_S;
const LOCALHOST: &str = "localhost";

/// Makes the certificate if there is none that can be used. Returns its SHA-256 fingerprint.
///
/// # Errors
/// If the file cannot be written, or has to be protected first.
pub fn ensure_development_certificate(path: &Path) -> Result<String, String> {
    let text = |error: &dyn Display| format!("{}: {error}", path.display());
    let names = names();
    match read_private(path) {
        Ok(found) if is_good(&found, &names) => return fingerprint(&found).map_err(|e| text(&e)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(text(&error)),
        _ => {}
    }
    let made = made(&names).map_err(|error| text(&error))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let written =
        make_directories(directory).and_then(|()| replace(path, made.as_bytes(), PRIVATE_FILE));
    written.map_err(|error| {
        format!(
            "certificate for development: {error}; set XDG_DATA_HOME to a directory of this user, or write \
             tls-listen and tls-certificate instead of tls"
        )
    })?;
    fingerprint(made.as_bytes()).map_err(|error| text(&error))
}

/// The DNS names of this machine.
fn names() -> Vec<String> {
    let mut names = vec![LOCALHOST.to_owned()];
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy().to_ascii_lowercase();
    let is_good = |label: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(good)
    };
    if host != LOCALHOST && host.split('.').all(is_good) {
        names.push(host);
    }
    names
}

/// Whether a file of an earlier start can be used.
fn is_good(text: &[u8], names: &[String]) -> bool {
    let identity = Identity {
        certificate: text.to_vec(),
        key: text.to_vec(),
    };
    let (Ok(certified), Some(facts)) = (identity.check(), Facts::of_pem(text)) else {
        return false;
    };
    let now_s = now_s();
    names.iter().all(|name| certified.names.contains(name))
        && facts.not_before_s <= now_s
        && facts.not_after_s > now_s + REST_S
}

/// The certificate, which is what other programs look for first, and its key.
fn made(names: &[String]) -> Result<String, rcgen::Error> {
    let mut wanted = CertificateParams::new(names)?;
    let addresses = ["127.0.0.1", "::1"].map(|one| one.parse().expect("an address"));
    let addresses = addresses.into_iter().map(SanType::IpAddress);
    wanted.subject_alt_names.extend(addresses);
    wanted.distinguished_name = DistinguishedName::new();
    let name = "Headway, for development only";
    wanted.distinguished_name.push(DnType::CommonName, name);
    wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now_s = i64::try_from(now_s()).unwrap_or(0);
    let at = |seconds: i64| {
        rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds.max(0) as u64)
    };
    wanted.not_before = at(now_s - DAY_S as i64);
    wanted.not_after = at(now_s + LIFETIME_S as i64);
    let key = KeyPair::generate()?;
    let certificate = wanted.self_signed(&key)?;
    Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
}

/// As browsers and openssl show it.
fn fingerprint(text: &[u8]) -> Result<String, rustls::pki_types::pem::Error> {
    let certificate = CertificateDer::from_pem_slice(text)?;
    let sum = digest(&SHA256, &certificate);
    let bytes: Vec<String> = sum
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    Ok(bytes.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn certificate_stays_until_it_cannot_be_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/localhost.pem");
        let first = ensure_development_certificate(&path).unwrap();
        assert_eq!(ensure_development_certificate(&path).unwrap(), first);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        fs::write(&path, "damaged").unwrap();
        let second = ensure_development_certificate(&path).unwrap();
        assert_ne!(first, second);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = ensure_development_certificate(&path).unwrap_err();
        assert!(error.contains("run chmod 600"), "{error}");
    }

    #[test]
    fn certificate_is_for_this_machine_and_for_less_than_398_days() {
        let names = ["localhost", "this.machine.example"].map(str::to_owned);
        let text = made(&names).unwrap();
        assert!(is_good(text.as_bytes(), &names));
        assert!(is_good(text.as_bytes(), &names[..1]));
        assert!(!is_good(text.as_bytes(), &["other".to_owned()]));
        let facts = Facts::of_pem(text.as_bytes()).unwrap();
        assert_eq!(facts.not_after_s - facts.not_before_s, 366 * DAY_S);
        assert!(text.starts_with("-----BEGIN CERTIFICATE"));
        let sum = fingerprint(text.as_bytes()).unwrap();
        assert_eq!((sum.len(), sum.matches(':').count()), (95, 31));
    }

    #[test]
    fn certificate_that_expires_soon_is_not_good() {
        let mut wanted = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let in_days = |days: u64| {
            rcgen::date_time_ymd(1970, 1, 1)
                + std::time::Duration::from_secs(now_s() + days * DAY_S)
        };
        for (days, expected) in [(29, false), (31, true)] {
            wanted.not_after = in_days(days);
            let key = KeyPair::generate().unwrap();
            let certificate = wanted.clone().self_signed(&key).unwrap();
            let text = format!("{}{}", certificate.pem(), key.serialize_pem());
            assert_eq!(
                is_good(text.as_bytes(), &["localhost".to_owned()]),
                expected
            );
        }
    }
}
