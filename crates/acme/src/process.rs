//! The ACME process: it orders and renews certificates, one name after the other.
//!
//! It speaks to the network, so it has no access to files with keys: the master reads and writes them. It ends
//! when the master has ended or no longer needs it, also in the middle of an order: every file is written in
//! one step. A try is noted as failed before it begins. So a process that dies again and again
//! does not exhaust the limits of the authority.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headway_config::AcmeConfig;
use headway_control::{Control, ControlError};
use headway_tls::ChallengeMemory;

use crate::authority::{Authority, Failure};
use crate::certificate::Facts;
use crate::challenge::Answers;
use crate::civil::shown;
use crate::file_client::FileClient;
use crate::files::Stored;
use crate::schedule::{Failures, Window, renewal_s};
use crate::wire::{FileReply, FromAcme, ToAcme};

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
    /// It could not be prepared.
    #[error("{0}")]
    Prepare(String),
}

/// The main function of the ACME process; `control` is the channel to the master.
///
/// # Errors
/// The master cannot be reached.
pub fn acme_main(control: Control) -> Result<(), AcmeError> {
    acme_main_with(control, |_| Ok(()))
}

/// As [`acme_main`]; `prepare` confines the process before it starts a thread.
///
/// # Errors
/// As [`acme_main`], and that of `prepare`.
pub fn acme_main_with(
    control: Control,
    prepare: impl FnOnce(&AcmeConfig) -> Result<(), String>,
) -> Result<(), AcmeError> {
    let Some((ToAcme::Start { config }, mut descriptors)) = control.receive::<ToAcme>()? else {
        return Ok(());
    };
    prepare(&config).map_err(AcmeError::Prepare)?;
    let Some(memory) = descriptors.pop().map(ChallengeMemory::shared) else {
        return Ok(());
    };
    // That of an earlier process is over.
    let _ = memory.set(None);
    let control = Arc::new(control);
    let (to_look, look) = sync_channel(1);
    let (reply, replies) = channel();
    listen_to_master(control.clone(), to_look, reply);
    let ask = |request| {
        let sent = control.send(&FromAcme::Files(request), &[]);
        sent.map_err(|error| error.to_string())?;
        replies
            .recv()
            .map_err(|_| "the master has ended".to_owned())
    };
    let files = FileClient(&ask);
    let mut hosts = Vec::new();
    for name in &config.hosts {
        hosts.push(Host::load(&config, &files, name));
    }
    let process = Process {
        config: &config,
        files: &files,
        memory: &memory,
        control: &control,
        look,
    };
    process.run(&mut hosts)
}

/// Receives what the master sends, and ends the process with the master. A request to the authority may take a
/// minute, and the server does not wait for it.
fn listen_to_master(master: Arc<Control>, look: SyncSender<()>, reply: Sender<FileReply>) {
    std::thread::spawn(move || {
        while let Ok(Some((message, _))) = master.receive::<ToAcme>() {
            match message {
                ToAcme::Files(files) => drop(reply.send(files)),
                // One that waits already is enough.
                ToAcme::Look => drop(look.try_send(())),
                ToAcme::Start { .. } => {}
            }
        }
        std::process::exit(0)
    });
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
    reported: Option<Facts>,
    /// The next order, as it was noted.
    planned_s: Option<u64>,
}

impl<'c> Host<'c> {
    fn load(config: &AcmeConfig, files: &FileClient<'_>, name: &'c str) -> Host<'c> {
        let failures = files.failures_at(name);
        Host {
            name,
            not_before_s: failures.first_s(name, config.retry_ms),
            failures,
            window: None,
            ask_at_s: 0,
            reported: None,
            planned_s: None,
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
    files: &'c FileClient<'c>,
    /// Where handshake processes find challenges.
    memory: &'c ChallengeMemory,
    control: &'c Control,
    /// Files have changed.
    look: Receiver<()>,
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
            match self.look.recv_timeout(wait) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Does what is due for a name, and returns when there is more.
    fn tend(&self, host: &mut Host<'_>) -> Result<u64, AcmeError> {
        let stored = self.files.certificate(host.name);
        self.report_certificate(host, stored.as_ref())?;
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
            self.plan(host, order_at_s);
            let ask_at_s = own.map_or(u64::MAX, |_| host.ask_at_s);
            return Ok(order_at_s.min(ask_at_s));
        }
        self.order(host, own.map(|own| &own.facts))?;
        let stored = self.files.certificate(host.name);
        self.report_certificate(host, stored.as_ref())?;
        let order_at_s = host.order_at_s(self.config, stored.as_ref());
        self.plan(host, order_at_s);
        Ok(order_at_s)
    }

    /// Notes the next order. It is for information only, so nothing depends on it.
    fn plan(&self, host: &mut Host<'_>, next_s: u64) {
        if host.planned_s != Some(next_s) && self.files.set_plan(host.name, next_s).is_ok() {
            host.planned_s = Some(next_s);
        }
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
            why: "the order has not ended".into(),
        };
        let noted = self.files.set_failures(host.name, &host.failures);
        let done = noted.map_err(Failure::from).and_then(|()| {
            let mut authority = Authority::connect(self.config, self.files)?;
            let answers = Answers {
                files: self.files,
                memory: self.memory,
            };
            authority.issue(host.name, before, &answers)
        });
        match &done {
            Ok(()) => host.failures = Failures::default(),
            Err(failure) => {
                host.failures.wait_until_s = failure.wait_until_s;
                host.failures.why.clone_from(&failure.why);
            }
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
        let in_use = match stored {
            Some(one) if one.is_revoked => "the one in use is revoked".into(),
            Some(one) if one.issued_by.is_some() => {
                format!("the one in use is valid until {until}")
            }
            _ => "a self-signed one is in use".into(),
        };
        let next = length(host.not_before_s.saturating_sub(now_s()));
        format!(
            "certificate of {name}: the order at {directory} failed: {}; next try in {next}; {in_use}",
            failure.why
        )
    }

    /// Tells the master which certificate is in use.
    fn report_certificate(
        &self,
        host: &mut Host<'_>,
        stored: Option<&Stored>,
    ) -> Result<(), AcmeError> {
        let is_issued = stored.is_some_and(|stored| stored.issued_by.is_some());
        let facts = stored.map(|stored| &stored.facts);
        if let Some(facts) = facts.filter(|_| facts != host.reported.as_ref()) {
            host.reported = Some(facts.clone());
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
