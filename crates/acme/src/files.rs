//! The files of the state directory: the account, certificates with their keys, failures, and answers
//! to challenges.
//!
//! A certificate and its key are one file. It is written beside the one before, synced, and renamed over it,
//! so that no process reads a key with the certificate of another key. Only the user of the server can
//! read the files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use headway_config::AcmeConfig;
use headway_tls::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Serialize, de::DeserializeOwned};

use crate::certificate::Facts;
use crate::schedule::Failures;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What the first line of a certificate file begins with; the URL of the authority follows.
const ISSUED_BY: &str = "# Issued by ";
/// A token is base64url of at least 128 bits (RFC 8555, 8.3).
const TOKEN_BYTES_MAX: usize = 256;
const TEMPORARY: &str = ".new";

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{what}({}): {error}", path.display())]
pub(crate) struct FileError {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// The directories of a configuration.
#[derive(Debug)]
pub(crate) struct Files {
    config: AcmeConfig,
}

/// A certificate with its key, as it was found.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The URL of the authority; `None` for one that the server has made itself.
    pub(crate) issued_by: Option<String>,
    pub(crate) facts: Facts,
}

impl Files {
    /// Makes the directories which are missing, and removes answers to challenges of an earlier process.
    pub(crate) fn create(config: &AcmeConfig) -> Result<Files, FileError> {
        let files = Files {
            config: config.clone(),
        };
        for directory in [config.certificates(), files.failures(), config.challenges()] {
            make_directories(&directory)?;
        }
        let challenges = config.challenges();
        let left = fs::read_dir(&challenges).map_err(failed("opendir", &challenges))?;
        for entry in left.flatten() {
            let _ = fs::remove_file(entry.path());
        }
        Ok(files)
    }

    fn failures(&self) -> PathBuf {
        self.config.base().join("failures")
    }

    fn account(&self) -> PathBuf {
        self.config.base().join("account.json")
    }

    fn failures_of(&self, host: &str) -> PathBuf {
        self.failures().join(format!("{host}.json"))
    }

    /// The certificate of a name. `None` if the server could not use it.
    pub(crate) fn certificate(&self, host: &str) -> Option<Stored> {
        let text = fs::read(self.config.certificate(host)).ok()?;
        is_usable(&text).then_some(())?;
        let first = text.split(|byte| *byte == b'\n').next()?;
        let first = std::str::from_utf8(first).ok()?;
        Some(Stored {
            issued_by: first.strip_prefix(ISSUED_BY).map(str::to_owned),
            facts: Facts::of_pem(&text)?,
        })
    }

    /// Replaces the certificate of a name. `None` for the authority is a self-signed one.
    pub(crate) fn set_certificate(
        &self,
        host: &str,
        authority: Option<&str>,
        (key, chain): (&str, &str),
    ) -> Result<(), FileError> {
        let first = match authority {
            Some(url) => format!("{ISSUED_BY}{url}\n"),
            None => "# Self-signed until an authority has issued one\n".into(),
        };
        let text = format!("{first}{key}{chain}");
        replace(&self.config.certificate(host), text.as_bytes())
    }

    /// Makes a self-signed certificate for a name that has no usable one.
    pub(crate) fn ensure_certificate(&self, host: &str) -> Result<(), FileError> {
        if self.certificate(host).is_some() {
            return Ok(());
        }
        let path = self.config.certificate(host);
        let (key, certificate) = self_signed(host)
            .map_err(io::Error::other)
            .map_err(failed("make a certificate", &path))?;
        self.set_certificate(host, None, (&key, &certificate))
    }

    /// The account as it was kept. `None` if there is none that can be read.
    pub(crate) fn account_as<T: DeserializeOwned>(&self) -> Option<T> {
        read_json(&self.account())
    }

    pub(crate) fn set_account(&self, account: &impl Serialize) -> Result<(), FileError> {
        write_json(&self.account(), account)
    }

    pub(crate) fn failures_at(&self, host: &str) -> Failures {
        read_json(&self.failures_of(host)).unwrap_or_default()
    }

    pub(crate) fn set_failures(&self, host: &str, failures: &Failures) -> Result<(), FileError> {
        let path = self.failures_of(host);
        if *failures != Failures::default() {
            return write_json(&path, failures);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("unlink", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Lets the workers answer a challenge until the result is dropped.
    pub(crate) fn answer(&self, token: &str, text: &str) -> Result<Answer, FileError> {
        let path = self.config.challenges().join(token);
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=TOKEN_BYTES_MAX).contains(&token.len()) || !token.bytes().all(good) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the token is not base64url");
            return Err(failed("open", &self.config.challenges())(error));
        }
        replace(&path, text.as_bytes())?;
        Ok(Answer(path))
    }
}

/// The file with the answer to a challenge.
#[derive(Debug)]
pub(crate) struct Answer(PathBuf);

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether the server can use this text of a key and its certificates.
pub(crate) fn is_usable(text: &[u8]) -> bool {
    let identity = Identity {
        certificate: text.to_vec(),
        key: text.to_vec(),
    };
    identity.check().is_ok()
}

/// A key and a certificate that no client trusts.
fn self_signed(host: &str) -> Result<(String, String), rcgen::Error> {
    let mut made = CertificateParams::new(vec![host.to_owned()])?;
    made.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    let certificate = made.self_signed(&key)?;
    Ok((key.serialize_pem(), certificate.pem()))
}

fn make_directories(path: &Path) -> Result<(), FileError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE);
    builder.create(path).map_err(failed("mkdir", path))
}

/// Writes a file in one step. Also after a crash of the machine, it has either the text before or this one.
fn replace(path: &Path, text: &[u8]) -> Result<(), FileError> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    let temporary = PathBuf::from(name);
    // A file which an earlier process left may have another mode.
    let _ = fs::remove_file(&temporary);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(FILE_MODE);
    let mut file = options
        .open(&temporary)
        .map_err(failed("open", &temporary))?;
    file.write_all(text).map_err(failed("write", &temporary))?;
    file.sync_all().map_err(failed("fsync", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename", path))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("fsync", directory))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let text = serde_json::to_vec(value).map_err(io::Error::from);
    replace(path, &text.map_err(failed("write", path))?)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |error| FileError { what, path, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(state: &Path) -> AcmeConfig {
        AcmeConfig {
            hosts: vec!["a.example".into()],
            contact: None,
            directory: "https://ca.example/directory".into(),
            authority: None,
            state_directory: state.into(),
            retry_ms: 60_000,
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn only_the_user_can_read_files_and_directories() {
        let state = tempfile::tempdir().unwrap();
        let config = config(state.path());
        let files = Files::create(&config).unwrap();
        files.ensure_certificate("a.example").unwrap();
        files.set_account(&"the account").unwrap();
        for directory in [
            config.base(),
            config.certificates(),
            config.challenges(),
            files.failures(),
        ] {
            assert_eq!(mode(&directory), 0o700, "{}", directory.display());
        }
        for file in [config.certificate("a.example"), files.account()] {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
        assert_eq!(files.account_as::<String>().unwrap(), "the account");
    }

    #[test]
    fn a_name_without_a_usable_certificate_gets_a_self_signed_one() {
        let state = tempfile::tempdir().unwrap();
        let config = config(state.path());
        let files = Files::create(&config).unwrap();
        let path = config.certificate("a.example");
        for before in [
            None,
            Some(""),
            Some("# Issued by https://ca.example/directory\nno more"),
        ] {
            if let Some(text) = before {
                fs::write(&path, text).unwrap();
            }
            files.ensure_certificate("a.example").unwrap();
            assert!(is_usable(&fs::read(&path).unwrap()));
            assert_eq!(files.certificate("a.example").unwrap().issued_by, None);
        }
        let made = fs::read(&path).unwrap();
        files.ensure_certificate("a.example").unwrap();
        assert_eq!(fs::read(&path).unwrap(), made, "it stays");
    }

    #[test]
    fn a_replaced_certificate_names_its_authority_and_leaves_no_other_file() {
        let state = tempfile::tempdir().unwrap();
        let config = config(state.path());
        let files = Files::create(&config).unwrap();
        files.ensure_certificate("a.example").unwrap();
        fs::write(
            config.certificates().join("a.example.pem.new"),
            "of a crash",
        )
        .unwrap();
        let (key, chain) = self_signed("a.example").unwrap();
        let authority = Some("https://ca.example/directory");
        files
            .set_certificate("a.example", authority, (&key, &chain))
            .unwrap();
        let found = files.certificate("a.example").unwrap();
        assert_eq!(found.issued_by.as_deref(), authority);
        assert_eq!(Some(found.facts), Facts::of_pem(chain.as_bytes()));
        assert_eq!(fs::read_dir(config.certificates()).unwrap().count(), 1);
        assert_eq!(mode(&config.certificate("a.example")), 0o600);
    }

    #[test]
    fn answer_is_there_until_it_is_dropped() {
        let state = tempfile::tempdir().unwrap();
        let config = config(state.path());
        let files = Files::create(&config).unwrap();
        let at = config.challenges().join("token-1_x");
        let answer = files.answer("token-1_x", "token-1_x.thumb").unwrap();
        assert_eq!(fs::read_to_string(&at).unwrap(), "token-1_x.thumb");
        drop(answer);
        assert!(!at.exists());
        std::mem::forget(files.answer("left", "left").unwrap());
        Files::create(&config).unwrap();
        assert_eq!(fs::read_dir(config.challenges()).unwrap().count(), 0);
    }

    #[test]
    fn a_token_cannot_name_another_file() {
        let state = tempfile::tempdir().unwrap();
        let files = Files::create(&config(state.path())).unwrap();
        for token in [
            "",
            "..",
            "../../account.json",
            "a/b",
            "a.b",
            &"x".repeat(300),
        ] {
            assert!(files.answer(token, "text").is_err(), "{token}");
        }
    }

    #[test]
    fn failures_are_kept_until_there_are_none() {
        let state = tempfile::tempdir().unwrap();
        let files = Files::create(&config(state.path())).unwrap();
        assert_eq!(files.failures_at("a.example"), Failures::default());
        files
            .set_failures("a.example", &Failures::default())
            .unwrap();
        let failures = Failures {
            count: 2,
            tried_s: 5,
            wait_until_s: 7,
        };
        files.set_failures("a.example", &failures).unwrap();
        assert_eq!(files.failures_at("a.example"), failures);
        files
            .set_failures("a.example", &Failures::default())
            .unwrap();
        assert_eq!(files.failures_at("a.example"), Failures::default());
        fs::write(files.failures_of("a.example"), "{").unwrap();
        assert_eq!(files.failures_at("a.example"), Failures::default());
    }
}
