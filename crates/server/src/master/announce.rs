//! Startup messages and the ready file, from which scripts learn the addresses.

use std::net::SocketAddr;

use headway_config::{Account, Config};
use headway_metrics::Overview;
use headway_os::replace::replace_file;

use super::reload::Generation;
use super::{MasterError, Options, log_line};

const RUNNING_AS_ROOT: &str = "warning: running as root: files that only root may read can be \
     served; set user, as in user = \"www-data\" (user = \"root\" keeps this and does not warn)";
const PROGRAMS_AS_ROOT: &str = "warning: programs run as root, who may change this machine even \
     without capabilities; set program-user";

/// Prints one line per listener, and writes the ready file.
pub(super) fn serving(
    current: &Generation,
    options: &Options,
    status: Option<SocketAddr>,
    overview: &Overview,
) -> Result<(), MasterError> {
    if rustix::process::geteuid().is_root() {
        warn_of_root(&current.config);
    }
    if !options.quiet {
        print(current, status, overview);
    }
    if let Some(path) = &options.ready_file {
        let listen = &overview.master.listen;
        let pid = overview.master.pid;
        let ready = serde_json::json!({ "listen": listen, "status": status, "master_pid": pid });
        replace_file(path, ready.to_string().as_bytes()).map_err(|error| {
            MasterError::ReadyFile {
                path: path.clone(),
                error,
            }
        })?;
    }
    Ok(())
}

fn warn_of_root(config: &Config) {
    if config.user.is_none() {
        log_line(RUNNING_AS_ROOT);
    }
    let stays_root = config.user.as_ref().is_none_or(Account::is_root);
    if stays_root && config.needs_spawner() && config.program_user.is_none() {
        log_line(PROGRAMS_AS_ROOT);
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
    let keys = current.keys.as_ref();
    if let (Some(tls), Some(print)) = (&config.tls, keys.and_then(|keys| keys.development.as_ref()))
    {
        let file = tls.identities[0].certificate.display();
        log_line(format_args!(
            "certificate {file}: self-signed, for development only; SHA-256 {print}"
        ));
    }
    if let Some(status) = status {
        log_line(format_args!("status on http://{status}/status"));
    }
    match overview.total.as_ref().map(|total| &total.trace.level) {
        None | Some(headway_debox::TraceLevel::Stacks) => {}
        Some(_) if !config.trace => log_line("trace: off (trace = false)"),
        Some(level) => log_line(format_args!("trace: {level}")),
    }
}

/// Prints what is served at which addresses.
pub(super) fn addresses(config: &Config, listen: &[String]) {
    let root = config.hosts[0].root.display();
    let more = match config.sites().len() - 1 {
        0 => String::new(),
        hosts => format!(" and {hosts} more"),
    };
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
        log_line(format_args!(
            "serving {root}{more} on {scheme}{address} ({workers}, {}){}",
            config.events,
            as_user(config)
        ));
    }
}
