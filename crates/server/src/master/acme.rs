//! The ACME process, which orders certificates. It is replaced when it dies or a reload has changed its
//! settings.
//!
//! It runs as the user of the server, and the files with keys belong to the master. So neither this process, which
//! uses the network, nor a worker or a program can read them. The master reads and writes them for the process.
//! The files are few and small, and are written once for each certificate.

use std::os::fd::AsFd;
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_acme::{FileRequest, Files, FromAcme, ToAcme};
use headway_config::{AcmeConfig, Config};
use headway_control::{Control, Received};
use headway_metrics::MasterStatus;
use headway_tls::ChallengeMemory;

use super::children::{Programs, Role, ended};
use super::supervised::Supervised;
use super::tls::SharedTls;
use super::{Master, MasterError, log_error, log_info, system};

/// When it is started again after a death. Certificates last for days.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// The ACME process and its channel.
pub(super) struct Acme {
    config: AcmeConfig,
    /// The files that the process may ask for.
    files: Files,
    /// The memory with challenges for the handshake processes.
    challenges: Rc<ChallengeMemory>,
    pub(super) process: Supervised,
}

impl Acme {
    /// Prepares the files of a configuration, if it has names, so that there is a certificate for each. The
    /// process is started later.
    pub(super) fn prepare(
        config: &Config,
        shared_tls: &SharedTls,
    ) -> Result<Option<Acme>, MasterError> {
        let Some(acme) = &config.acme else {
            return Ok(None);
        };
        let files = Files::prepare(acme);
        let challenges = shared_tls.challenges();
        Ok(Some(Acme {
            config: acme.clone(),
            files: files.map_err(|error| MasterError::Acme(error.to_string()))?,
            challenges: challenges.map_err(system("memory for challenges"))?,
            process: Supervised::due(),
        }))
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.process.control()
    }

    /// Asks the process to read the files again.
    fn look(&self) {
        if let Some(control) = self.control() {
            // If it has ended, it is reaped next.
            let _ = control.try_send(&ToAcme::Look, &[]);
        }
    }

    /// Answers a file request of the process. There is one request at a time, so the socket has room for the answer.
    fn perform(&self, request: FileRequest) {
        let reply = self.files.perform(request);
        if let Some(control) = self.control() {
            let _ = control.try_send(&ToAcme::Files(reply), &[]);
        }
    }

    /// Checks whether it has ended.
    pub(super) fn reap(&mut self, stopping: bool, status: &mut MasterStatus) {
        let Some(exit) = self.process.take_end().filter(|_| !stopping) else {
            return;
        };
        status.acme_deaths += 1;
        self.process.restart_in(RESTART_DELAY);
        let (end, delay) = (ended(exit), RESTART_DELAY.as_millis());
        log_error(format_args!(
            "ACME process ended: {end}; restarting it in {delay} ms; certificates stay in use"
        ));
    }

    /// Starts it, or a replacement, when it is due.
    pub(super) fn restart(&mut self, programs: &Programs, now: Instant) {
        if !self.process.is_due(now) {
            return;
        }
        let config = self.config.clone();
        let challenges = self.challenges.as_fd();
        let role = (Role::Acme, "start the ACME process");
        let started = self.process.start(programs, role, |process| {
            process.send(&ToAcme::Start { config }, &[challenges])
        });
        if let Err(error) = started {
            log_error(error);
            self.process.restart_in(RESTART_DELAY);
        }
    }

    /// Closes the channel, so that it ends.
    pub(super) fn let_end(self) -> Option<Child> {
        self.process.let_end()
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
                FromAcme::Files(request) => {
                    if let Some(acme) = &self.acme {
                        acme.perform(request);
                    }
                }
                FromAcme::Certificate { host, expires_s } => {
                    status.acme_expiry_s.insert(host, expires_s);
                }
                FromAcme::Result { is_issued, text } => {
                    match is_issued {
                        true => status.acme_issued += 1,
                        false => status.acme_failures += 1,
                    }
                    match is_issued {
                        true => log_info(text),
                        false => log_error(text),
                    }
                    if is_issued {
                        self.renewals.look_now();
                    }
                }
            }
        }
    }

    /// Starts the ACME process once workers serve, since they have to answer the challenges.
    pub(super) fn start_acme(&mut self, now: Instant) {
        let programs = &self.current.programs;
        if let Some(acme) = self.acme.as_mut().filter(|_| self.announced) {
            acme.restart(programs, now);
        }
    }

    /// When to start the ACME process.
    pub(super) fn acme_deadline(&self) -> Option<Instant> {
        self.acme
            .as_ref()
            .filter(|_| self.announced)?
            .process
            .restart_at()
    }

    /// Tells the ACME process that files have changed.
    pub(super) fn tell_acme(&self) {
        if let Some(acme) = &self.acme {
            acme.look();
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
