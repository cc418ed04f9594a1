//! Certificates and keys: the master reads them, checks that they belong together, and gives them to the
//! processes that do handshakes.
//!
//! The master keeps them in a sealed memfd, which it passes to each process that it
//! starts. Session tickets have a secret of the server, which is the same for all.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_config::{Config, TlsConfig, TlsIdentity};
use headway_tls::process::sealed;
use headway_tls::{Acceptor, Identity, Settings, TicketSecret};

use rustix::fs::{Mode, OFlags};

use super::Master;
use super::reload::Generation;

/// How often the files are checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Certificate files are far shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The secret of tickets, which all generations share.
pub(super) type Tickets = Rc<RefCell<Option<TicketSecret>>>;

/// What a process needs to do handshakes.
pub(super) struct Keys {
    settings: OwnedFd,
    tickets: Tickets,
    /// The files before they were read.
    stamps: Vec<Option<Stamp>>,
}

impl Keys {
    /// Reads what the configuration names. `None` without TLS.
    pub(super) fn load(config: &Config, tickets: &Tickets) -> Result<Option<Keys>, String> {
        let Some(tls) = &config.tls else {
            return Ok(None);
        };
        let stamps = stamps(config);
        let settings = settings(tls, config.http2_streams_max > 0)?;
        if tls.session_tickets && tickets.borrow().is_none() {
            let secret = TicketSecret::random().ok_or("no random numbers for session tickets")?;
            *tickets.borrow_mut() = Some(secret);
        }
        Ok(Some(Keys {
            settings: sealed(&settings).map_err(|error| format!("memfd_create: {error}"))?,
            tickets: match tls.session_tickets {
                true => tickets.clone(),
                false => Tickets::default(),
            },
            stamps,
        }))
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
        let is_busy = !self.announced || self.reload.is_some() || self.stopping.is_some();
        let (Some(keys), true) = (&self.current.keys, due.is_some_and(|due| due <= now)) else {
            return;
        };
        self.renewals.due = Some(now + LOOK_INTERVAL);
        // The secrets of earlier periods are forgotten here, too.
        if let Some(secret) = self.tickets.borrow_mut().as_mut() {
            secret.advance();
        }
        let found = stamps(&self.current.config);
        if is_busy || found == keys.stamps || found == self.renewals.tried {
            return;
        }
        self.renewals.tried = found;
        let config = self.current.config.clone();
        if let Err(why) = self.begin_reload(config, "certificates have changed; workers replaced") {
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
    let has_http2 = config.http2_streams_max > 0;
    let tls = config.tls.as_ref();
    // Those of ACME are made when the server starts.
    let is_there = |identity: &TlsIdentity| {
        let acme = config.acme.as_ref();
        !acme.is_some_and(|acme| acme.owns(identity) && !identity.certificate.exists())
    };
    let Some(mut tls) = tls.cloned() else {
        return Ok(());
    };
    tls.identities.retain(is_there);
    if tls.identities.is_empty() {
        return Ok(());
    }
    settings(&tls, has_http2).map(drop)
}

fn settings(tls: &TlsConfig, has_http2: bool) -> Result<Settings, String> {
    let mut identities = Vec::new();
    for files in &tls.identities {
        let identity = Identity {
            certificate: read("tls-certificate", &files.certificate)?,
            key: read("tls-key", &files.key)?,
        };
        identity.check().map_err(|error| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            format!("tls-certificate {certificate}, tls-key {key}: {error}")
        })?;
        identities.push(identity);
    }
    let client_authorities = match &tls.client_authorities {
        Some(path) => read("tls-client-ca", path)?,
        None => Vec::new(),
    };
    let settings = Settings {
        identities,
        only_13: tls.only_13,
        protocols: match has_http2 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        },
        client_authorities,
        client_may_be_unknown: tls.client_may_be_unknown,
    };
    Acceptor::new(settings.clone(), None)?;
    Ok(settings)
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
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(text)?;
    Ok(bytes)
}
