//! The ACME process, which orders certificates. It starts before the keys are read, since it makes the first
//! certificates, and is replaced when it dies or a reload has changed its settings.
//!
//! It runs as the user of the server, so that the master never writes to a directory of this user. It
//! orders nothing before workers serve, since they have to answer the challenges.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::process::Child;
use std::time::{Duration, Instant};

use headway_acme::{FromAcme, ToAcme};
use headway_config::{AcmeConfig, Config};
use headway_control::{Control, Received};
use headway_metrics::MasterStatus;

use super::children::{Programs, Role, ended};
use super::log::answers_within;
use super::stopping::wait_or_kill;
use super::{Master, MasterError, announce, log_line, system};

/// Time for the process to make the first certificates.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// When it is started again after a death. Certificates last for days.
const RESTART_DELAY: Duration = Duration::from_secs(5);
const DIRECTORY_MODE: u32 = 0o700;

/// The ACME process and its channel.
pub(super) struct Acme {
    config: AcmeConfig,
    running: Option<(Child, Control)>,
    /// Whether it may order.
    has_begun: bool,
    pub(super) restart_at: Option<Instant>,
}

impl Acme {
    /// Starts the process of a configuration, if it has one, and waits until there is a certificate for each
    /// name.
    pub(super) fn start_of(
        config: &Config,
        programs: &Programs,
    ) -> Result<Option<Acme>, MasterError> {
        let Some(acme) = &config.acme else {
            return Ok(None);
        };
        let failed = |why: String| MasterError::Acme {
            user: announce::as_user(config),
            why,
        };
        make_directory(config).map_err(failed)?;
        let mut acme = Acme {
            config: acme.clone(),
            running: None,
            has_begun: false,
            restart_at: None,
        };
        acme.spawn(programs)?;
        let control = &acme.running.as_ref().expect("just started").1;
        let answer = match answers_within(control, START_TIMEOUT) {
            true => control.receive::<FromAcme>()?,
            false => None,
        };
        let why = match answer {
            Some((FromAcme::Ready, _)) => return Ok(Some(acme)),
            Some((FromAcme::Failed { why }, _)) => why,
            _ => "the ACME process does not answer".into(),
        };
        acme.end(Instant::now());
        Err(failed(why))
    }

    fn spawn(&mut self, programs: &Programs) -> Result<(), MasterError> {
        let (ours, theirs) = Control::pair()?;
        let config = self.config.clone();
        ours.send(&ToAcme::Start { config }, &[])?;
        let child = programs.spawn(Role::Acme, theirs.into_inner());
        let child = child.map_err(system("start the ACME process"))?;
        self.running = Some((child, ours));
        self.has_begun = false;
        self.restart_at = None;
        Ok(())
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.running.as_ref().map(|(_, control)| control)
    }

    /// Lets the process order what is due.
    fn begin(&mut self) {
        if let Some((_, control)) = self.running.as_ref().filter(|_| !self.has_begun) {
            // If it has ended, it is reaped next.
            let _ = control.try_send(&ToAcme::Begin, &[]);
            self.has_begun = true;
        }
    }

    /// Checks whether it has ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let child = self.running.as_mut().map(|(child, _)| child);
        let Some(Ok(Some(exit))) = child.map(Child::try_wait) else {
            return;
        };
        self.running = None;
        if stopping {
            return;
        }
        status.acme_deaths += 1;
        self.restart_at = Some(Instant::now() + RESTART_DELAY);
        let (end, delay) = (ended(exit), RESTART_DELAY.as_millis());
        log_line(format_args!(
            "ACME process ended: {end}; restarting it in {delay} ms; certificates stay in use"
        ));
    }

    /// Starts a replacement when it is due.
    pub(super) fn restart(&mut self, programs: &Programs, now: Instant) {
        if self.restart_at.is_none_or(|at| at > now) {
            return;
        }
        if let Err(error) = self.spawn(programs) {
            log_line(error);
            self.restart_at = Some(now + RESTART_DELAY);
        }
    }

    /// Closes the channel, so that it ends.
    pub(super) fn let_end(self) -> Option<Child> {
        self.running.map(|(child, _)| child)
    }

    /// Closes the channel, so that it ends, and waits.
    pub(super) fn end(self, deadline: Instant) {
        let mut child = self.let_end();
        wait_or_kill(child.as_mut(), deadline);
    }
}

impl Master<'_> {
    /// Reads messages of the ACME process.
    pub(super) fn read_acme(&mut self) {
        loop {
            let control = self.acme.as_ref().and_then(Acme::control);
            let Some(Ok(Received::Message(message, _))) = control.map(Control::try_receive) else {
                // If it has ended, it is reaped next.
                return;
            };
            let status = &mut self.own_status;
            match message {
                FromAcme::Ready => {}
                FromAcme::Failed { why } => log_line(format_args!("ACME process: {why}")),
                FromAcme::Certificate { host, expires_s } => {
                    status.acme_expiry_s.insert(host, expires_s);
                }
                FromAcme::Result { is_issued, text } => {
                    log_line(text);
                    match is_issued {
                        true => status.acme_issued += 1,
                        false => status.acme_failures += 1,
                    }
                    if is_issued {
                        self.renewals.look_now();
                    }
                }
            }
        }
    }

    /// Lets the ACME process order once workers serve.
    pub(super) fn begin_acme(&mut self) {
        if let Some(acme) = self.acme.as_mut().filter(|_| self.announced) {
            acme.begin();
        }
    }

    /// Replaces the process by that of a reload.
    pub(super) fn replace_acme(&mut self, new: Option<Acme>) {
        let earlier = std::mem::replace(&mut self.acme, new);
        self.ending.extend(earlier.and_then(Acme::let_end));
        let hosts = self.acme.iter().flat_map(|acme| &acme.config.hosts);
        let hosts: Vec<&String> = hosts.collect();
        let expiry = &mut self.own_status.acme_expiry_s;
        expiry.retain(|host, _| hosts.contains(&host));
    }
}

/// Makes the state directory, if only it is missing. Its user is that of the server.
fn make_directory(config: &Config) -> Result<(), String> {
    let Some(acme) = &config.acme else {
        return Ok(());
    };
    let path = &acme.state_directory;
    if path.exists() {
        return Ok(());
    }
    let made = DirBuilder::new().mode(DIRECTORY_MODE).create(path);
    let owned = made.and_then(|()| match config.user.as_ref() {
        Some(user) if rustix::process::geteuid().is_root() => {
            chown(path, Some(user.number()), Some(user.group()))
        }
        _ => Ok(()),
    });
    owned.map_err(|error| format!("state-directory {}: {error}", path.display()))
}
