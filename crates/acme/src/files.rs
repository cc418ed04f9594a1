//! The files of the state directory: the account, certificates with their keys, failures, and answers
//! to challenges.
//!
//! A certificate and its key are one file. It is written beside the one before, synced, and renamed over it,
//! so that no process reads a key with the certificate of another key. Only the user of the master can read
//! files with keys. The workers, which may be another user, can read the answers to challenges.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headway_config::AcmeConfig;
use headway_tls::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};

use crate::certificate::Facts;
use crate::disk::{
    FileError, PRIVATE_DIRECTORY, PRIVATE_FILE, check_directory, failed, make_directory, read_json,
    remove, replace, set_mode, write_json,
};
use crate::private::read_private;
use crate::schedule::Failures;
use crate::wire::{FileReply, FileRequest};

/// Workers pass through it to the answers to challenges.
const PASSED_DIRECTORY: u32 = 0o711;
const OPEN_DIRECTORY: u32 = 0o755;
const OPEN_FILE: u32 = 0o644;
/// What the first line of a certificate file begins with; the URL of the authority follows.
const ISSUED_BY: &str = "# Issued by ";
/// What that line becomes when the certificate is revoked.
const REVOKED: &str = "# Revoked, was issued by ";
/// A token is base64url of at least 128 bits (RFC 8555, 8.3).
const TOKEN_BYTES_MAX: usize = 256;

/// The directories of a configuration. The master has them, and a command of the administrator.
#[derive(Debug)]
pub struct Files {
    config: AcmeConfig,
}

/// A certificate with its key, as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The URL of the authority; `None` for one that the server has made itself, or which was revoked.
    pub(crate) issued_by: Option<String>,
    pub(crate) is_revoked: bool,
    pub(crate) facts: Facts,
}

impl Files {
    /// Makes the directories which are missing and a certificate for each name that has none. Removes
    /// answers to challenges of an earlier process.
    ///
    /// # Errors
    /// If a file cannot be written, or belongs to another user.
    pub fn prepare(config: &AcmeConfig) -> Result<Files, FileError> {
        let files = Files::open(config)?;
        make_directory(&config.state_directory, PASSED_DIRECTORY)?;
        make_directory(&config.base(), PASSED_DIRECTORY)?;
        for directory in [config.certificates(), files.failures(), files.plans()] {
            make_directory(&directory, PRIVATE_DIRECTORY)?;
            set_mode(&directory, PRIVATE_DIRECTORY)?;
        }
        set_mode(&config.base(), PASSED_DIRECTORY)?;
        let challenges = config.challenges();
        let mut parts: Vec<&Path> = challenges.ancestors().take(3).collect();
        parts.reverse();
        for directory in parts {
            make_directory(directory, OPEN_DIRECTORY)?;
            set_mode(directory, OPEN_DIRECTORY)?;
        }
        let left = fs::read_dir(&challenges).map_err(failed("opendir", &challenges))?;
        for entry in left.flatten() {
            let _ = fs::remove_file(entry.path());
        }
        for host in &config.hosts {
            files.ensure_certificate(host)?;
        }
        Ok(files)
    }

    /// The files as they are.
    ///
    /// # Errors
    /// If they belong to another user, or others may replace them.
    pub fn open(config: &AcmeConfig) -> Result<Files, FileError> {
        check_directory(&config.state_directory)?;
        check_directory(&config.base())?;
        let config = config.clone();
        Ok(Files { config })
    }

    /// Does what the ACME process wants, if it is about names of the configuration.
    pub fn perform(&self, request: FileRequest) -> FileReply {
        let host = match &request {
            FileRequest::Certificate { host }
            | FileRequest::SetCertificate { host, .. }
            | FileRequest::Failures { host }
            | FileRequest::SetFailures { host, .. }
            | FileRequest::SetPlan { host, .. } => Some(host),
            _ => None,
        };
        if host.is_some_and(|host| !self.config.hosts.contains(host)) {
            let why = "a name which is not one of acme-hosts".into();
            return FileReply::Failed { why };
        }
        self.try_perform(request)
            .unwrap_or_else(|error| FileReply::Failed {
                why: error.to_string(),
            })
    }

    fn try_perform(&self, request: FileRequest) -> Result<FileReply, FileError> {
        let done = |()| FileReply::Done;
        match request {
            FileRequest::Certificate { host } => Ok(FileReply::Certificate {
                stored: self.certificate(&host)?,
            }),
            FileRequest::SetCertificate {
                host,
                authority,
                key,
                chain,
            } => {
                let first = format!("{ISSUED_BY}{authority}\n");
                self.write_certificate(&host, &first, (&key, &chain))
                    .map(done)
            }
            FileRequest::Account => Ok(FileReply::Account {
                text: self.account_text()?,
            }),
            FileRequest::SetAccount { text } => {
                replace(&self.account(), text.as_bytes(), PRIVATE_FILE).map(done)
            }
            FileRequest::Failures { host } => Ok(FileReply::Failures {
                failures: self.failures_at(&host),
            }),
            FileRequest::SetFailures { host, failures } => {
                self.set_failures(&host, &failures).map(done)
            }
            FileRequest::SetPlan { host, next_s } => {
                write_json(&self.plan_of(&host), &next_s).map(done)
            }
            FileRequest::Answer { token, text } => self.answer(&token, &text).map(done),
            FileRequest::Forget { token } => self.forget(&token).map(done),
        }
    }

    fn failures(&self) -> PathBuf {
        self.config.base().join("failures")
    }

    fn plans(&self) -> PathBuf {
        self.config.base().join("plans")
    }

    fn account(&self) -> PathBuf {
        self.config.base().join("account.json")
    }

    fn failures_of(&self, host: &str) -> PathBuf {
        self.failures().join(format!("{host}.json"))
    }

    fn plan_of(&self, host: &str) -> PathBuf {
        self.plans().join(format!("{host}.json"))
    }

    /// The certificate of a name. `None` if the server could not use it.
    pub(crate) fn certificate(&self, host: &str) -> Result<Option<Stored>, FileError> {
        Ok(self.certificate_text(host)?.and_then(|text| stored(&text)))
    }

    /// The file of a name. `None` if there is none.
    pub(crate) fn certificate_text(&self, host: &str) -> Result<Option<Vec<u8>>, FileError> {
        let path = self.config.certificate(host);
        match read_private(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("open", &path)(error)),
        }
    }

    /// Replaces the certificate of a name.
    fn write_certificate(
        &self,
        host: &str,
        first: &str,
        (key, chain): (&str, &str),
    ) -> Result<(), FileError> {
        let text = format!("{first}{key}{chain}");
        replace(
            &self.config.certificate(host),
            text.as_bytes(),
            PRIVATE_FILE,
        )
    }

    /// Makes a self-signed certificate for a name that has no usable one.
    fn ensure_certificate(&self, host: &str) -> Result<(), FileError> {
        if self.certificate(host)?.is_some() {
            return Ok(());
        }
        let path = self.config.certificate(host);
        let (key, certificate) = self_signed(host)
            .map_err(io::Error::other)
            .map_err(failed("make a certificate", &path))?;
        let first = "# Self-signed until an authority has issued one\n";
        self.write_certificate(host, first, (&key, &certificate))
    }

    /// Notes that a certificate is revoked, so that another one is ordered. It is in use until then.
    pub(crate) fn note_revoked(&self, host: &str) -> Result<(), FileError> {
        let Some(text) = self.certificate_text(host)? else {
            return Ok(());
        };
        let Some(rest) = text.strip_prefix(ISSUED_BY.as_bytes()) else {
            return Ok(());
        };
        let text = [REVOKED.as_bytes(), rest].concat();
        replace(&self.config.certificate(host), &text, PRIVATE_FILE)
    }

    /// The account as it was kept. Empty if there is none.
    fn account_text(&self) -> Result<String, FileError> {
        let path = self.account();
        match read_private(&path) {
            Ok(text) => Ok(String::from_utf8(text).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(failed("open", &path)(error)),
        }
    }

    pub(crate) fn failures_at(&self, host: &str) -> Failures {
        read_json(&self.failures_of(host)).unwrap_or_default()
    }

    fn set_failures(&self, host: &str, failures: &Failures) -> Result<(), FileError> {
        let path = self.failures_of(host);
        match *failures == Failures::default() {
            true => remove(&path),
            false => write_json(&path, failures),
        }
    }

    /// When the next order is planned.
    pub(crate) fn plan_at(&self, host: &str) -> Option<u64> {
        read_json(&self.plan_of(host))
    }

    /// Lets the workers answer a challenge.
    fn answer(&self, token: &str, text: &str) -> Result<(), FileError> {
        replace(&self.answer_path(token)?, text.as_bytes(), OPEN_FILE)
    }

    fn forget(&self, token: &str) -> Result<(), FileError> {
        remove(&self.answer_path(token)?)
    }

    fn answer_path(&self, token: &str) -> Result<PathBuf, FileError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=TOKEN_BYTES_MAX).contains(&token.len()) || !token.bytes().all(good) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the token is not base64url");
            return Err(failed("open", &self.config.challenges())(error));
        }
        Ok(self.config.challenges().join(token))
    }
}

fn stored(text: &[u8]) -> Option<Stored> {
    is_usable(text).then_some(())?;
    let first = text.split(|byte| *byte == b'\n').next()?;
    let first = std::str::from_utf8(first).ok()?;
    Some(Stored {
        issued_by: first.strip_prefix(ISSUED_BY).map(str::to_owned),
        is_revoked: first.starts_with(REVOKED),
        facts: Facts::of_pem(text)?,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use headway_config::AcmeChallenge;
    use std::os::unix::fs::PermissionsExt;

    fn config(state: &Path) -> AcmeConfig {
        AcmeConfig {
            hosts: vec!["a.example".into()],
            challenge: AcmeChallenge::default(),
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

    fn prepared(state: &Path) -> (AcmeConfig, Files) {
        let config = config(state);
        let files = Files::prepare(&config).unwrap();
        (config, files)
    }

    fn done(files: &Files, request: FileRequest) {
        assert_eq!(files.perform(request), FileReply::Done);
    }

    fn why(reply: FileReply) -> String {
        match reply {
            FileReply::Failed { why } => why,
            _ => panic!("it is done"),
        }
    }

    fn set_certificate(files: &Files, host: &str, (key, chain): (&str, &str)) -> FileReply {
        files.perform(FileRequest::SetCertificate {
            host: host.into(),
            authority: "https://ca.example/directory".into(),
            key: key.into(),
            chain: chain.into(),
        })
    }

    #[test]
    fn only_the_user_can_read_keys_and_workers_only_answers() {
        let state = tempfile::tempdir().unwrap();
        let (config, files) = prepared(&state.path().join("new"));
        let text = "the account".to_owned();
        done(&files, FileRequest::SetAccount { text });
        let (token, text) = ("token".to_owned(), "text".to_owned());
        done(&files, FileRequest::Answer { token, text });
        for (path, expected) in [
            (config.state_directory.clone(), 0o711),
            (config.base(), 0o711),
            (config.certificates(), 0o700),
            (files.failures(), 0o700),
            (files.plans(), 0o700),
            (config.challenge_root(), 0o755),
            (config.challenges(), 0o755),
            (config.certificate("a.example"), 0o600),
            (files.account(), 0o600),
            (config.challenges().join("token"), 0o644),
        ] {
            assert_eq!(mode(&path), expected, "{}", path.display());
        }
        // Whatever they were, they are private afterwards.
        set_mode(&config.certificates(), 0o755).unwrap();
        Files::prepare(&config).unwrap();
        assert_eq!(mode(&config.certificates()), 0o700);
        assert_eq!(files.account_text().unwrap(), "the account");
    }

    #[test]
    fn directory_that_others_may_change_is_not_used() {
        let state = tempfile::tempdir().unwrap();
        let (config, _) = prepared(state.path());
        for path in [state.path().to_owned(), config.base()] {
            let before = mode(&path);
            for mode in [0o720, 0o777] {
                set_mode(&path, mode).unwrap();
                let error = Files::prepare(&config).unwrap_err().to_string();
                assert!(error.contains("run chmod go-w"), "{error}");
            }
            set_mode(&path, before).unwrap();
        }
        Files::prepare(&config).unwrap();
    }

    /// Needs: root
    #[test]
    fn directory_of_another_user_is_not_used() {
        let state = tempfile::tempdir().unwrap();
        let (config, _) = prepared(state.path());
        if std::os::unix::fs::chown(config.base(), Some(4711), None).is_err() {
            let name = "directory_of_another_user_is_not_used";
            return headway_test_support::skip(name, "not root");
        }
        let error = Files::prepare(&config).unwrap_err().to_string();
        assert!(error.contains("belongs to the user 4711"), "{error}");
    }

    #[test]
    fn key_that_others_can_read_is_not_used_and_not_replaced() {
        let state = tempfile::tempdir().unwrap();
        let (config, files) = prepared(state.path());
        let text = "{}".to_owned();
        done(&files, FileRequest::SetAccount { text });
        for path in [config.certificate("a.example"), files.account()] {
            set_mode(&path, 0o644).unwrap();
        }
        let before = fs::read(config.certificate("a.example")).unwrap();
        let error = Files::prepare(&config).unwrap_err().to_string();
        assert!(
            error.contains("a.example.pem") && error.contains("run chmod 600"),
            "{error}"
        );
        assert_eq!(fs::read(config.certificate("a.example")).unwrap(), before);
        let error = why(files.perform(FileRequest::Account));
        assert!(
            error.contains("account.json") && error.contains("run chmod 600"),
            "{error}"
        );
    }

    #[test]
    fn a_name_without_a_usable_certificate_gets_a_self_signed_one() {
        let state = tempfile::tempdir().unwrap();
        let (config, files) = prepared(state.path());
        let path = config.certificate("a.example");
        for text in ["", "# Issued by https://ca.example/directory\nno more"] {
            fs::write(&path, text).unwrap();
            files.ensure_certificate("a.example").unwrap();
            assert!(is_usable(&fs::read(&path).unwrap()));
            let stored = files.certificate("a.example").unwrap().unwrap();
            assert_eq!(stored.issued_by, None);
        }
        let made = fs::read(&path).unwrap();
        files.ensure_certificate("a.example").unwrap();
        assert_eq!(fs::read(&path).unwrap(), made, "it stays");
    }

    #[test]
    fn a_replaced_certificate_names_its_authority_and_leaves_no_other_file() {
        let state = tempfile::tempdir().unwrap();
        let (config, files) = prepared(state.path());
        let left = config.certificates().join("a.example.pem.new");
        fs::write(left, "of a crash").unwrap();
        let (key, chain) = self_signed("a.example").unwrap();
        assert_eq!(
            set_certificate(&files, "a.example", (&key, &chain)),
            FileReply::Done
        );
        let found = files.certificate("a.example").unwrap().unwrap();
        let authority = Some("https://ca.example/directory");
        assert_eq!(
            (found.issued_by.as_deref(), found.is_revoked),
            (authority, false)
        );
        assert_eq!(Some(found.facts), Facts::of_pem(chain.as_bytes()));
        assert_eq!(fs::read_dir(config.certificates()).unwrap().count(), 1);
        assert_eq!(mode(&config.certificate("a.example")), 0o600);
        files.note_revoked("a.example").unwrap();
        let found = files.certificate("a.example").unwrap().unwrap();
        assert!(found.issued_by.is_none() && found.is_revoked);
        assert_eq!(Some(found.facts), Facts::of_pem(chain.as_bytes()));
    }

    #[test]
    fn only_names_of_the_configuration_have_files() {
        let state = tempfile::tempdir().unwrap();
        let (_, files) = prepared(state.path());
        let (key, chain) = self_signed("b.example").unwrap();
        for host in ["b.example", "../account", ""] {
            let error = why(set_certificate(&files, host, (&key, &chain)));
            assert!(error.contains("not one of acme-hosts"), "{error}");
            let host = host.to_owned();
            why(files.perform(FileRequest::Certificate { host }));
        }
    }

    #[test]
    fn answer_exists_until_it_is_dropped() {
        let state = tempfile::tempdir().unwrap();
        let (config, files) = prepared(state.path());
        let at = config.challenges().join("token-1_x");
        let answer = |token: &str| {
            let (token, text) = (token.to_owned(), "token-1_x.thumb".to_owned());
            FileRequest::Answer { token, text }
        };
        done(&files, answer("token-1_x"));
        assert_eq!(fs::read_to_string(&at).unwrap(), "token-1_x.thumb");
        for _ in 0..2 {
            let token = "token-1_x".to_owned();
            done(&files, FileRequest::Forget { token });
            assert!(!at.exists());
        }
        done(&files, answer("left"));
        Files::prepare(&config).unwrap();
        assert_eq!(fs::read_dir(config.challenges()).unwrap().count(), 0);
        for token in [
            "",
            "..",
            "../../account.json",
            "a/b",
            "a.b",
            &"x".repeat(300),
        ] {
            why(files.perform(answer(token)));
            let token = token.to_owned();
            why(files.perform(FileRequest::Forget { token }));
        }
    }

    #[test]
    fn failures_are_kept_until_there_are_none() {
        let state = tempfile::tempdir().unwrap();
        let (_, files) = prepared(state.path());
        assert_eq!(files.failures_at("a.example"), Failures::default());
        let set = |failures: &Failures| {
            let (host, failures) = ("a.example".to_owned(), failures.clone());
            done(&files, FileRequest::SetFailures { host, failures });
        };
        set(&Failures::default());
        let failures = Failures {
            count: 2,
            tried_s: 5,
            wait_until_s: 7,
            why: "no answer".into(),
        };
        set(&failures);
        assert_eq!(files.failures_at("a.example"), failures);
        set(&Failures::default());
        assert_eq!(files.failures_at("a.example"), Failures::default());
        fs::write(files.failures_of("a.example"), "{").unwrap();
        assert_eq!(files.failures_at("a.example"), Failures::default());
    }
}
