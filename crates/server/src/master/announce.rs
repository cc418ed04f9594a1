//! Startup messages and the ready file, from which scripts learn the addresses.

use std::net::SocketAddr;

use headway_config::Config;
use headway_metrics::Overview;
use headway_os::replace::replace_file;

use super::{MasterError, Options, log_line};

const RUNNING_AS_ROOT: &str = "warning: running as root: files that only root may read can be \
     served; start it as another user (port 80 without root: see the guide)";
const PROGRAMS_AS_ROOT: &str = "warning: programs run as root, who may change this machine even \
     without capabilities; set program-user";

/// Prints one line per listener, and writes the ready file.
pub(super) fn serving(
    config: &Config,
    options: &Options,
    status: Option<SocketAddr>,
    overview: &Overview,
) -> Result<(), MasterError> {
    if rustix::process::geteuid().is_root() {
        log_line(RUNNING_AS_ROOT);
        if config.needs_spawner() && config.program_user.is_none() {
            log_line(PROGRAMS_AS_ROOT);
        }
    }
    if !options.quiet {
        print(config, status, overview);
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

fn print(config: &Config, status: Option<SocketAddr>, overview: &Overview) {
    let root = config.hosts[0].root.display();
    let more = match config.hosts.len() - 1 {
        0 => String::new(),
        hosts => format!(" and {hosts} more"),
    };
    let workers = match config.workers {
        1 => "1 worker".into(),
        workers => format!("{workers} workers"),
    };
    for address in &overview.master.listen {
        log_line(format_args!(
            "serving {root}{more} on http://{address} ({workers}, {})",
            config.events
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
