//! Startup messages and the ready file, from which scripts learn the addresses.

use std::net::SocketAddr;

use headway_config::{Account, Config, Host};
use headway_metrics::Overview;
use headway_os::replace::replace_file;
use headway_sandbox::Support;

use super::reload::Generation;
use super::status_page::StatusPage;
use super::{Master, MasterError, Options, log_error, log_info, log_warn, signals};
use crate::confinement;

const RUNNING_AS_ROOT: &str = "running as root: files that only root may read can be \
     served; set user, as in user = \"www-data\" (user = \"root\" keeps this and does not warn)";
const PROGRAMS_AS_ROOT: &str = "programs run as root, who may change this machine even \
     without capabilities; set program-user";

/// What root is needed for.
const STAYS_ROOT: &str = "the master alone stays root, to bind addresses, to read keys and to start processes \
     as other users";

/// Prints one line per listener.
pub(super) fn serving(
    current: &Generation,
    options: &Options,
    status: Option<&StatusPage>,
    overview: &Overview,
) {
    if rustix::process::geteuid().is_root() {
        warn_of_root(&current.config);
    }
    warn_of_sandbox(current);
    if !options.quiet {
        print(current, status.map(|status| status.address), overview);
    }
}

impl Master<'_> {
    /// Writes the ready file. `headway reload` and `headway upgrade` read the counts in it.
    pub(super) fn write_ready_file(&self) -> Result<(), MasterError> {
        let Some(path) = &self.options.ready_file else {
            return Ok(());
        };
        let status = &self.own_status;
        let ready = serde_json::json!({
            "listen": status.listen,
            "status": self.status.as_ref().map(|status| status.address),
            "master_pid": status.pid,
            "version": env!("CARGO_PKG_VERSION"),
            "reloads": status.reloads,
            "reload_failures": status.reload_failures,
            "reload_error": status.reload_error,
            "upgrades": status.upgrades,
            "upgrade_failures": status.upgrade_failures,
            "upgrade_error": status.upgrade_error,
            "pending": self.is_changing(),
        });
        let written = replace_file(path, ready.to_string().as_bytes());
        written.map_err(|error| MasterError::ReadyFile {
            path: path.clone(),
            error,
        })
    }

    /// Writes the result of a reload or an upgrade into the ready file. The server also serves without it.
    pub(super) fn report_result(&mut self) {
        // A signal that has come meanwhile is for a change that follows.
        self.reload_is_due |= signals::drain(&self.signals.reload) > 0;
        self.upgrade_is_due |= signals::drain(&self.signals.upgrade) > 0;
        if let Err(error) = self.write_ready_file() {
            log_error(format_args!("{error}; serving on"));
        }
    }
}

fn warn_of_root(config: &Config) {
    if config.user.is_none() {
        log_warn(RUNNING_AS_ROOT);
    }
    let stays_root = config.user.as_ref().is_none_or(Account::is_root);
    if stays_root && config.needs_spawner() && config.program_user.is_none() {
        log_warn(PROGRAMS_AS_ROOT);
    }
}

/// Says what is not confined, unless that is the configuration.
fn warn_of_sandbox(current: &Generation) {
    if current.programs.sandbox.is_none() {
        return;
    }
    for lack in Support::probe().lacks() {
        log_warn(format_args!("sandbox: {lack}"));
    }
    if let Some(why) = confinement::workers_need_more(&current.config) {
        log_warn(format_args!(
            "sandbox: workers and helpers are not confined: {why}"
        ));
    }
}

/// ` as NAME:GROUP`, if children are not the user of the master.
pub(super) fn as_user(config: &Config) -> String {
    let other = config.user.as_ref().filter(|account| !account.is_root());
    other.map_or_else(String::new, |account| format!(" as {account}"))
}

fn print(current: &Generation, status: Option<SocketAddr>, overview: &Overview) {
    let config = &current.config;
    addresses(config, &overview.master.listen);
    if rustix::process::geteuid().is_root() && !as_user(config).is_empty() {
        log_info(STAYS_ROOT);
    }
    let keys = current.keys.as_ref();
    if let (Some(tls), Some(print)) = (&config.tls, keys.and_then(|keys| keys.development.as_ref()))
    {
        let file = tls.identities[0].certificate.display();
        log_info(format_args!(
            "certificate {file}: self-signed, for development only; SHA-256 {print}"
        ));
    }
    if let Some(status) = status {
        log_info(format_args!("status on http://{status}/status"));
    }
    match overview.total.as_ref().map(|total| &total.trace.level) {
        None | Some(headway_debox::TraceLevel::Stacks) => {}
        Some(_) if !config.trace => log_info("trace: off (trace = false)"),
        Some(level) => log_info(format_args!("trace: {level}")),
    }
}

/// Prints what is served at which addresses.
pub(super) fn addresses(config: &Config, listen: &[String]) {
    let workers = match config.workers {
        1 => "1 worker".into(),
        workers => format!("{workers} workers"),
    };
    let plain = config.plain_listeners();
    for (at, address) in listen.iter().enumerate() {
        let scheme = match address.starts_with("unix:") {
            true => "",
            false if at < plain => "http://",
            false => "https://",
        };
        let served = |host: &&Host| {
            let wanted = config.listen.get(at);
            wanted.is_none_or(|wanted| host.is_served_at(wanted))
        };
        let mut hosts = config.sites().iter().filter(served);
        let Some(root) = hosts.next().map(|host| host.root.display()) else {
            continue;
        };
        let more = match hosts.count() {
            0 => String::new(),
            hosts => format!(" and {hosts} more"),
        };
        log_info(format_args!(
            "serving {root}{more} on {scheme}{address} ({workers}, {}){}",
            config.events,
            as_user(config)
        ));
    }
}
