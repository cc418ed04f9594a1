//! The ACME process: it makes what the server needs to start, then orders and renews certificates, one name
//! after the other.
//!
//! It ends when the master has ended or no longer needs it, also in the middle of an order: every file is
//! written in one step. A try is noted as failed before it begins. So a process that dies again and again
//! does not exhaust the limits of the authority.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headway_config::AcmeConfig;
use headway_control::{Control, ControlError};

use crate::authority::{Authority, Failure};
use crate::certificate::Facts;
use crate::civil::shown;
use crate::files::{FileError, Files, Stored};
use crate::schedule::{Failures, Window, renewal_s};
use crate::wire::{FromAcme, ToAcme};

/// How often the clock is read: it may be set, or the machine may sleep.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// When to ask the authority again about renewal, if it did not answer.
const ASK_AGAIN_S: u64 = 3_600;

/// Why the process ends.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// The main function of the ACME process; `control` is the channel to the master.
///
/// # Errors
/// The master cannot be reached.
pub fn acme_main(control: Control) -> Result<(), AcmeError> {
    let Some((ToAcme::Start { config }, _)) = control.receive::<ToAcme>()? else {
        return Ok(());
    };
    let files = match prepare(&config) {
        Ok(files) => files,
        Err(error) => {
            let why = error.to_string();
            return Ok(control.send(&FromAcme::Failed { why }, &[])?);
        }
    };
    control.send(&FromAcme::Ready, &[])?;
    if control.receive::<ToAcme>()?.is_none() {
        return Ok(());
    }
    let control = Arc::new(control);
    let master = control.clone();
    let (gone, has_gone) = channel::<()>();
    std::thread::spawn(move || {
        // A request to the authority may take a minute, and the server does not wait for it.
        while let Ok(Some(_)) = master.receive::<ToAcme>() {}
        drop(gone);
        std::process::exit(0)
    });
    let mut hosts = Vec::new();
    for name in &config.hosts {
        hosts.push(Host::load(&config, &files, name));
    }
    let process = Process {
        config: &config,
        files: &files,
        control: &control,
        has_gone,
    };
    process.run(&mut hosts)
}

/// Makes directories, and certificates for names that have none.
fn prepare(config: &AcmeConfig) -> Result<Files, FileError> {
    let files = Files::create(config)?;
    for host in &config.hosts {
        files.ensure_certificate(host)?;
    }
    Ok(files)
}

/// A name, and when there is something to do for it.
struct Host<'c> {
    name: &'c str,
    failures: Failures,
    /// No order before this time.
    not_before_s: u64,
    /// What the authority has said about the certificate with this serial number.
    window: Option<(Vec<u8>, Window)>,
    ask_at_s: u64,
    /// The certificate of which the master knows.
    told: Option<Facts>,
}

impl<'c> Host<'c> {
    fn load(config: &AcmeConfig, files: &Files, name: &'c str) -> Host<'c> {
        let failures = files.failures_at(name);
        Host {
            name,
            not_before_s: failures.first_s(name, config.retry_ms),
            failures,
            window: None,
            ask_at_s: 0,
            told: None,
        }
    }

    /// When to order, for a certificate that was found: at once unless it is of this authority.
    fn order_at_s(&self, config: &AcmeConfig, stored: Option<&Stored>) -> u64 {
        let stored = stored.filter(|one| is_of(config, one));
        let renewal = stored.map_or(0, |one| {
            let window = self.window.as_ref();
            let window = window.filter(|(serial, _)| *serial == one.facts.serial);
            renewal_s(&one.facts, window.map(|(_, window)| *window))
        });
        renewal.max(self.not_before_s)
    }
}

/// Whether a certificate is of the authority that is configured now. One of a test authority is replaced.
fn is_of(config: &AcmeConfig, stored: &Stored) -> bool {
    stored.issued_by.as_deref() == Some(&config.directory)
}

struct Process<'c> {
    config: &'c AcmeConfig,
    files: &'c Files,
    control: &'c Control,
    has_gone: Receiver<()>,
}

impl Process<'_> {
    fn run(&self, hosts: &mut [Host<'_>]) -> Result<(), AcmeError> {
        loop {
            let mut next_s = u64::MAX;
            for host in &mut *hosts {
                next_s = next_s.min(self.tend(host)?);
            }
            let wait = Duration::from_secs(next_s.saturating_sub(now_s()));
            // At least a moment, so that a wrong clock makes no busy loop.
            let wait = wait.clamp(Duration::from_secs(1), CLOCK_INTERVAL);
            match self.has_gone.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Does what is due for a name, and returns when there is more.
    fn tend(&self, host: &mut Host<'_>) -> Result<u64, AcmeError> {
        let stored = self.files.certificate(host.name);
        self.tell(host, stored.as_ref())?;
        let own = stored.as_ref().filter(|one| is_of(self.config, one));
        if let Some(own) = own.filter(|_| host.ask_at_s <= now_s()) {
            self.ask(host, &own.facts);
        }
        if host.failures.is_of_future(now_s()) {
            host.failures = Failures::default();
            host.not_before_s = 0;
        }
        let order_at_s = host.order_at_s(self.config, stored.as_ref());
        if now_s() < order_at_s {
            let ask_at_s = own.map_or(u64::MAX, |_| host.ask_at_s);
            return Ok(order_at_s.min(ask_at_s));
        }
        self.order(host, own.map(|own| &own.facts))?;
        let stored = self.files.certificate(host.name);
        self.tell(host, stored.as_ref())?;
        Ok(host.order_at_s(self.config, stored.as_ref()))
    }

    /// Asks the authority when to renew. Without an answer the lifetime decides.
    fn ask(&self, host: &mut Host<'_>, facts: &Facts) {
        host.ask_at_s = now_s() + ASK_AGAIN_S;
        let authority = Authority::connect(self.config, self.files);
        if let Ok(advice) = authority.and_then(|authority| authority.advice(facts)) {
            host.window = advice.window.map(|window| (facts.serial.clone(), window));
            host.ask_at_s = advice.ask_again_s;
        }
    }

    /// Orders a certificate, and tells the administrator how that ended.
    fn order(&self, host: &mut Host<'_>, before: Option<&Facts>) -> Result<(), AcmeError> {
        let earlier = host.failures.count;
        host.failures = Failures {
            count: earlier.saturating_add(1),
            tried_s: now_s(),
            wait_until_s: 0,
        };
        let noted = self.files.set_failures(host.name, &host.failures);
        let done = noted.map_err(Failure::from).and_then(|()| {
            let mut authority = Authority::connect(self.config, self.files)?;
            authority.issue(host.name, before)
        });
        match &done {
            Ok(()) => host.failures = Failures::default(),
            Err(failure) => host.failures.wait_until_s = failure.wait_until_s,
        }
        // If it cannot be written, the failures are still known to this process.
        let _ = self.files.set_failures(host.name, &host.failures);
        host.not_before_s = host.failures.next_s(host.name, self.config.retry_ms);
        if done.is_ok() {
            host.ask_at_s = 0;
        }
        let stored = self.files.certificate(host.name);
        self.send(&FromAcme::Result {
            is_issued: done.is_ok(),
            text: self.report(host, done.as_ref().err(), stored.as_ref()),
        })
    }

    fn report(
        &self,
        host: &Host<'_>,
        failure: Option<&Failure>,
        stored: Option<&Stored>,
    ) -> String {
        let (name, directory) = (host.name, &self.config.directory);
        let until = stored
            .map(|one| shown(one.facts.not_after_s))
            .unwrap_or_default();
        let Some(failure) = failure else {
            return format!("certificate of {name}: issued by {directory}, valid until {until}");
        };
        let in_use = match stored.and_then(|one| one.issued_by.as_deref()) {
            Some(_) => format!("the one in use is valid until {until}"),
            None => "a self-signed one is in use".into(),
        };
        let next = length(host.not_before_s.saturating_sub(now_s()));
        format!(
            "certificate of {name}: {directory}: {}; next try in {next}; {in_use}",
            failure.why
        )
    }

    /// Tells the master which certificate is in use.
    fn tell(&self, host: &mut Host<'_>, stored: Option<&Stored>) -> Result<(), AcmeError> {
        let is_issued = stored.is_some_and(|stored| stored.issued_by.is_some());
        let facts = stored.map(|stored| &stored.facts);
        if let Some(facts) = facts.filter(|_| facts != host.told.as_ref()) {
            host.told = Some(facts.clone());
            self.send(&FromAcme::Certificate {
                host: host.name.to_owned(),
                expires_s: match is_issued {
                    true => facts.not_after_s,
                    false => 0,
                },
            })?;
        }
        Ok(())
    }

    fn send(&self, message: &FromAcme) -> Result<(), AcmeError> {
        Ok(self.control.send(message, &[])?)
    }
}

/// A length of time in the unit that a reader expects.
fn length(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
