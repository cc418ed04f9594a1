//! Certificates and keys: the master reads them, checks that they belong together, and gives them to the
//! processes that do handshakes.
//!
//! The master keeps them in a sealed memfd, which it passes to each process that it
//! starts. Session tickets have a secret of the server, which is the same for all.

mod files;
mod validity;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_config::{AcmeChallenge, Config, Offload, TlsConfig};
use headway_os::kernel_tls;
use headway_tls::process::sealed;
use headway_tls::{ChallengeMemory, TicketSecret};

use super::reload::{Generation, Roots};
use super::{Master, log_warn};
pub use files::check_tls;
use files::{Files, Look, Stamp};
use validity::Validity;

/// How often the files are checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

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
        let files = Files::read_in_time(config, tls)?;
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
            settings: sealed(&files.settings).map_err(error)?,
            tickets: match tls.session_tickets {
                true => tickets.clone(),
                false => Tickets::default(),
            },
            challenges,
            stamps: files.stamps,
            development: files.development,
            validities: files.validities,
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
    look: Look,
    /// The files with which a reload was last tried.
    tried: Vec<Option<Stamp>>,
}

impl Renewals {
    pub(super) fn new() -> Renewals {
        Renewals {
            due: Some(Instant::now() + LOOK_INTERVAL),
            look: Look::default(),
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
        let Some(found) = self.renewals.look.stamps(&self.current.config) else {
            return;
        };
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

fn answers_challenges(config: &Config) -> bool {
    let acme = config.acme.as_ref();
    acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01)
}
