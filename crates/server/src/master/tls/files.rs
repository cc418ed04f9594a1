//! The files of certificates and keys. Threads read them, because their file system may not answer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use headway_acme::{ensure_development_certificate, read_private};
use headway_config::{Config, TlsConfig, TlsIdentity};
use headway_os::answer::Answer;
use headway_tls::{Acceptor, Identity, Settings};
use rustix::fs::{Mode, OFlags};

use super::super::log_warn;
use super::validity::Validity;

/// Time to read them all.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a look at them may hold up the master.
const LOOK_TIME_MAX: Duration = Duration::from_millis(100);
/// Threads that read them. Those that are not waited for any more may still wait.
static READERS: AtomicUsize = AtomicUsize::new(0);
const READERS_MAX: usize = 4;
/// Certificate files are far shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is in the files.
pub(super) struct Files {
    pub(super) settings: Settings,
    pub(super) validities: Vec<Validity>,
    /// The files before they were read.
    pub(super) stamps: Vec<Option<Stamp>>,
    /// The fingerprint of the certificate for development.
    pub(super) development: Option<String>,
}

/// What changes when a file is written or replaced.
#[derive(PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Files {
    /// Reads what the configuration names, and checks it.
    ///
    /// # Errors
    /// Which file cannot be used, and why; or that a file system does not answer.
    pub(super) fn read_in_time(config: &Config, tls: &TlsConfig) -> Result<Files, String> {
        let places = places(&paths(config));
        if READERS.load(Ordering::Relaxed) >= READERS_MAX {
            return Err(format!(
                "certificates and keys cannot be read: {READERS_MAX} earlier attempts still wait for a file system \
                 (perhaps {places})"
            ));
        }
        let own = (config.clone(), tls.clone());
        let read = move || {
            READERS.fetch_add(1, Ordering::Relaxed);
            let files = Files::read(&own.0, &own.1);
            READERS.fetch_sub(1, Ordering::Relaxed);
            files
        };
        // Without another thread nothing else can be done.
        let Ok(answer) = Answer::of("certificates", read) else {
            return Files::read(config, tls);
        };
        answer.within(READ_TIME_MAX).unwrap_or_else(|| {
            let seconds = READ_TIME_MAX.as_secs();
            Err(format!(
                "certificates and keys cannot be read within {seconds} s: a file system does not answer \
                 (perhaps {places})"
            ))
        })
    }

    fn read(config: &Config, tls: &TlsConfig) -> Result<Files, String> {
        let development = match tls.identities.first() {
            Some(own) if tls.is_for_development => {
                Some(ensure_development_certificate(&own.certificate)?)
            }
            _ => None,
        };
        let stamps = stamps(&paths(config));
        let (settings, validities) = settings(config, tls)?;
        Ok(Files {
            settings,
            validities,
            stamps,
            development,
        })
    }
}

/// A look at the files now and then. One that gets no answer is not followed by another one.
#[derive(Default)]
pub(super) struct Look {
    unanswered: Option<Answer<Looked>>,
}

/// The files that a look was at, and what it has found.
type Looked = (Vec<PathBuf>, Vec<Option<Stamp>>);

impl Look {
    /// The stamps of the files. `None` if their file system does not answer now.
    pub(super) fn stamps(&mut self, config: &Config) -> Option<Vec<Option<Stamp>>> {
        let paths = paths(config);
        if let Some(earlier) = self.unanswered.take() {
            let Some((looked_at, found)) = earlier.within(Duration::ZERO) else {
                self.unanswered = Some(earlier);
                return None;
            };
            // Those of another configuration say nothing.
            return (looked_at == paths).then_some(found);
        }
        let own = paths.clone();
        let look = move || {
            let found = stamps(&own);
            (own, found)
        };
        let Ok(answer) = Answer::of("certificates", look) else {
            return Some(stamps(&paths));
        };
        let found = answer.within(LOOK_TIME_MAX);
        if found.is_none() {
            log_warn(format_args!(
                "certificates are not checked for changes: a file system does not answer (perhaps {}); serving on \
                 with those in use",
                places(&paths)
            ));
            self.unanswered = Some(answer);
        }
        found.map(|(_, found)| found)
    }
}

/// The files with certificates and keys.
fn paths(config: &Config) -> Vec<PathBuf> {
    let tls = config.tls.iter();
    let identities = tls.clone().flat_map(|tls| &tls.identities);
    let files = identities.flat_map(|files| [&files.certificate, &files.key]);
    let authorities = tls.filter_map(|tls| tls.client_authorities.as_ref());
    files.chain(authorities).cloned().collect()
}

/// The directories of files, for a message.
fn places(paths: &[PathBuf]) -> String {
    let all: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    let all: Vec<String> = all.iter().map(|path| path.display().to_string()).collect();
    all.join(", ")
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    paths.iter().map(|path| stamp(path)).collect()
}

/// `None` if there is no such file now.
fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Stamp {
        inode: meta.ino(),
        bytes: meta.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
    })
}

/// Checks the files that the configuration names.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn check_tls(config: &Config) -> Result<(), String> {
    let Some(mut tls) = config.tls.clone() else {
        return Ok(());
    };
    // The server makes its own ones when it starts.
    let is_there =
        |identity: &TlsIdentity| !is_own(config, identity) || identity.certificate.exists();
    tls.identities.retain(is_there);
    if tls.identities.is_empty() {
        return Ok(());
    }
    settings(config, &tls).map(drop)
}

/// Whether the server has made the certificate, or will make it.
fn is_own(config: &Config, identity: &TlsIdentity) -> bool {
    let is_of_acme = config.acme.as_ref().is_some_and(|acme| acme.owns(identity));
    let tls = config.tls.as_ref();
    is_of_acme || tls.is_some_and(|tls| tls.is_for_development)
}

/// Reads a certificate and its key. A file of the server itself must not be readable by others, while that of
/// an administrator may belong to any user and group.
fn read_identity(config: &Config, files: &TlsIdentity) -> Result<Identity, String> {
    if !is_own(config, files) {
        return Ok(Identity {
            certificate: read("tls-certificate", &files.certificate)?,
            key: read("tls-key", &files.key)?,
        });
    }
    let text = read_private(&files.certificate);
    let text = text.map_err(|error| format!("{}: {error}", files.certificate.display()))?;
    Ok(Identity {
        certificate: text.clone(),
        key: text,
    })
}

fn settings(config: &Config, tls: &TlsConfig) -> Result<(Settings, Vec<Validity>), String> {
    let (mut identities, mut validities) = (Vec::new(), Vec::new());
    for files in &tls.identities {
        let identity = read_identity(config, files)?;
        let checked = identity.check().map_err(|error| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            format!("tls-certificate {certificate}, tls-key {key}: {error}")
        })?;
        validities.extend(Validity::of(files, &checked));
        identities.push(identity);
    }
    let client_authorities = match &tls.client_authorities {
        Some(path) => read("tls-client-ca", path)?,
        None => Vec::new(),
    };
    let settings = Settings {
        identities,
        only_13: tls.only_13,
        suites: tls.suites.iter().map(|suite| suite.number()).collect(),
        protocols: match config.http2_streams_max > 0 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        },
        client_authorities,
        client_may_be_unknown: tls.client_may_be_unknown,
    };
    Acceptor::new(settings.clone(), None)?;
    Ok((settings, validities))
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| format!("{setting} {}: {error}", path.display());
    // A FIFO that someone has put there must not hold up the server.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(file.map_err(|error| text(error.into()))?);
    if !file.metadata().map_err(text)?.is_file() {
        return Err(format!("{setting} {}: not a regular file", path.display()));
    }
    // A growing buffer would leave copies of the key in freed memory.
    let length = file.metadata().map_err(text)?.len().min(FILE_BYTES_MAX);
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(text)?;
    Ok(bytes)
}
