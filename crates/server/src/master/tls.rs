//! Certificates and keys: the master reads them, checks that they belong together, and gives them to the
//! processes that do handshakes.
//!
//! The master keeps them in a sealed memfd, which it passes to each process that it
//! starts. Session tickets have a secret of the server, which is the same for all.

mod validity;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_acme::{ensure_development_certificate, read_private};
use headway_config::{AcmeChallenge, Config, Offload, TlsConfig, TlsIdentity};
use headway_os::kernel_tls;
use headway_tls::process::sealed;
use headway_tls::{Acceptor, ChallengeMemory, Identity, Settings, TicketSecret};

use rustix::fs::{Mode, OFlags};

use super::reload::{Generation, Roots};
use super::{Master, log_warn};
use validity::Validity;

/// How often the files are checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Certificate files are far shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The secret of tickets.
type Tickets = Rc<RefCell<Option<TicketSecret>>>;

/// The TLS state that all generations of workers share.
#[derive(Clone, Default)]
pub(super) struct SharedTls {
    tickets: Tickets,
    challenges: Rc<OnceCell<Rc<ChallengeMemory>>>,
}

impl SharedTls {
    /// The state with a secret of tickets from before, if there is one.
    pub(super) fn with_tickets(secret: Option<TicketSecret>) -> SharedTls {
        SharedTls {
            tickets: Rc::new(RefCell::new(secret)),
            ..SharedTls::default()
        }
    }

    /// The secret of tickets for the next program.
    pub(super) fn tickets(&self) -> Option<TicketSecret> {
        let mut tickets = self.tickets.borrow_mut();
        if let Some(secret) = tickets.as_mut() {
            secret.advance();
        }
        tickets.clone()
    }

    /// The memory with challenges for the handshake processes. It is created when it is first needed.
    pub(super) fn challenges(&self) -> io::Result<Rc<ChallengeMemory>> {
        if let Some(made) = self.challenges.get() {
            return Ok(made.clone());
        }
        let made = Rc::new(ChallengeMemory::new()?);
        Ok(self.challenges.get_or_init(|| made).clone())
    }
}

/// What a process needs to do handshakes.
pub(super) struct Keys {
    settings: OwnedFd,
    tickets: Tickets,
    /// `None` if no handshake answers challenges.
    challenges: Option<Rc<ChallengeMemory>>,
    /// The files before they were read.
    stamps: Vec<Option<Stamp>>,
    /// The fingerprint of the certificate for development.
    pub(super) development: Option<String>,
    validities: Vec<Validity>,
}

impl Keys {
    /// Reads what the configuration names. `None` without TLS.
    pub(super) fn load(config: &Config, shared: &SharedTls) -> Result<Option<Keys>, String> {
        let Some(tls) = &config.tls else {
            return Ok(None);
        };
        let development = match tls.identities.first() {
            Some(own) if tls.is_for_development => {
                Some(ensure_development_certificate(&own.certificate)?)
            }
            _ => None,
        };
        let stamps = stamps(config);
        let (settings, validities) = settings(config, tls)?;
        warn_without_offload(tls);
        let error = |error: io::Error| format!("memfd_create: {error}");
        let challenges = match answers_challenges(config) {
            true => Some(shared.challenges().map_err(error)?),
            false => None,
        };
        let tickets = &shared.tickets;
        if tls.session_tickets && tickets.borrow().is_none() {
            let secret = TicketSecret::random().ok_or("no random numbers for session tickets")?;
            *tickets.borrow_mut() = Some(secret);
        }
        Ok(Some(Keys {
            settings: sealed(&settings).map_err(error)?,
            tickets: match tls.session_tickets {
                true => tickets.clone(),
                false => Tickets::default(),
            },
            challenges,
            stamps,
            development,
            validities,
        }))
    }

    /// Checks that no invalid certificate replaces a valid one. Logs the certificates that are not valid now.
    pub(super) fn check_validity(&self, before: Option<&Keys>) -> Result<(), String> {
        let before = before.map_or(&[][..], |before| &before.validities);
        for fault in validity::check(&self.validities, before)? {
            log_warn(format_args!("{fault}; clients will refuse it"));
        }
        Ok(())
    }

    /// When each certificate expires, by its first name. Of several for one name, the first to expire
    /// counts.
    pub(super) fn expiry_s(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (name, until_s) in self.validities.iter().map(Validity::expiry_s) {
            let known: &mut u64 = all.entry(name).or_insert(until_s);
            *known = until_s.min(*known);
        }
        all
    }

    /// The descriptors for a handshake process: settings, tickets, and where challenges are, if it answers
    /// them.
    pub(super) fn of_process(&self) -> io::Result<Vec<OwnedFd>> {
        let mut all = Vec::from(self.descriptors()?);
        if let Some(memory) = &self.challenges {
            all.push(memory.as_fd().try_clone_to_owned()?);
        }
        Ok(all)
    }

    /// The descriptors for a process that does handshakes: settings and tickets.
    pub(super) fn descriptors(&self) -> io::Result<[OwnedFd; 2]> {
        let mut tickets = self.tickets.borrow_mut();
        if let Some(secret) = tickets.as_mut() {
            secret.advance();
        }
        Ok([self.settings.try_clone()?, sealed(&*tickets)?])
    }
}

/// Warns if the kernel cannot encrypt. The kernel loads its module here, because workers may not load modules.
fn warn_without_offload(tls: &TlsConfig) {
    if tls.offload == Offload::Off {
        return;
    }
    if let Err((call, error)) = kernel_tls::probe() {
        let error = io::Error::from(error);
        log_warn(format_args!(
            "tls-offload: {call}: {error}; workers seal records themselves; load the kernel module tls, \
             or set tls-offload = \"off\""
        ));
    }
}

/// Checks whether certificate files have changed, for example after a renewal.
pub(super) struct Renewals {
    due: Option<Instant>,
    /// The files with which a reload was last tried.
    tried: Vec<Option<Stamp>>,
}

/// What changes when a file is written or replaced.
#[derive(PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Renewals {
    pub(super) fn new() -> Renewals {
        Renewals {
            due: Some(Instant::now() + LOOK_INTERVAL),
            tried: Vec::new(),
        }
    }

    /// Lets the files be checked as soon as possible.
    pub(super) fn look_now(&mut self) {
        self.due = Some(Instant::now());
    }

    pub(super) fn deadline(&self, current: &Generation) -> Option<Instant> {
        self.due.filter(|_| current.keys.is_some())
    }
}

impl Master<'_> {
    /// Begins a reload if files of certificates have changed, once for each change.
    pub(super) fn look_for_renewals(&mut self, now: Instant) {
        let due = self.renewals.deadline(&self.current);
        let is_busy = !self.announced || self.is_busy() || self.stopping.is_some();
        let (Some(keys), true) = (&self.current.keys, due.is_some_and(|due| due <= now)) else {
            return;
        };
        self.renewals.due = Some(now + LOOK_INTERVAL);
        // The secrets of earlier periods are forgotten here, too.
        if let Some(secret) = self.shared_tls.tickets.borrow_mut().as_mut() {
            secret.advance();
        }
        let found = stamps(&self.current.config);
        if is_busy || found == keys.stamps || found == self.renewals.tried {
            return;
        }
        self.renewals.tried = found;
        self.tell_acme();
        let config = self.current.config.clone();
        let done = "certificates have changed; workers replaced";
        if let Err(why) = self.begin_reload(config, done, Roots::Kept) {
            self.fail_reload(&why);
        }
    }
}

/// The stamps of the files with certificates and keys.
fn stamps(config: &Config) -> Vec<Option<Stamp>> {
    let tls = config.tls.iter();
    let identities = tls.clone().flat_map(|tls| &tls.identities);
    let files = identities.flat_map(|files| [&*files.certificate, &*files.key]);
    let authorities = tls.filter_map(|tls| tls.client_authorities.as_deref());
    files.chain(authorities).map(stamp).collect()
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

fn answers_challenges(config: &Config) -> bool {
    let acme = config.acme.as_ref();
    acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01)
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
