//! A certificate for one server, made when it starts: for its address only, and gone with its
//! folder.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair};

/// PEM files in a server's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl CertificateFiles {
    /// Their names in this folder.
    pub(super) fn of(folder: &Path) -> CertificateFiles {
        CertificateFiles {
            certificate: folder.join("tls.pem"),
            key: folder.join("tls.key"),
        }
    }

    /// Makes a key on the curve P-256 and a certificate that is its own authority.
    pub(super) fn make(&self, address: IpAddr) -> io::Result<()> {
        let certified = || -> Result<_, rcgen::Error> {
            let key = KeyPair::generate()?;
            let params = CertificateParams::new([address.to_string()])?;
            Ok((params.self_signed(&key)?, key))
        };
        let (certificate, key) = certified().map_err(io::Error::other)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.key)?;
        file.write_all(key.serialize_pem().as_bytes())?;
        fs::write(&self.certificate, certificate.pem())
    }
}
