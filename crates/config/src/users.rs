//! The settings `user` and `program-user`: the users of the processes of the server.

use rustix::process::geteuid;

use super::account::Account;
use super::error::{ConfigError, Findings};
use super::keys::Setting;
use super::{Config, Endpoint};

/// The user which the package creates.
const PACKAGE_USER: &str = "headway";

/// The user of all processes but the master.
pub(super) fn server_user(item: &Setting<String>, to: &mut Findings<'_>) -> Option<Account> {
    match item {
        Some(written) => match account("user", item, to)? {
            Account {
                user: 0,
                group: 1..,
                ..
            } => {
                let problem = "root has no other group; write root, or another user";
                to.usage_error("user", Some(written.span()), problem.into());
                None
            }
            account => Some(account),
        },
        None if geteuid().is_root() => Account::parse(PACKAGE_USER).ok(),
        None => None,
    }
}

impl Config {
    /// What root has to say before it starts this server: all processes would stay root, and other machines
    /// reach them. On addresses of this machine alone, root is warned when the server serves.
    pub fn lacks_user(&self) -> Option<ConfigError> {
        if self.user.is_some() || !geteuid().is_root() {
            return None;
        }
        let is_public = |listen: &&Endpoint| {
            let address = listen.tcp();
            address.is_some_and(|address| !address.ip().is_loopback())
        };
        let public = self.listen.iter().find(is_public)?;
        Some(ConfigError::of_machine(format!(
            "user: root starts no server at {public} without a user for its processes, since other machines can reach \
             it; name a user (--user www-data), or make the default one (useradd --system {PACKAGE_USER}); \
             --user root stays root"
        )))
    }
}

/// The user of the programs.
pub(super) fn program_user(item: &Setting<String>, to: &mut Findings<'_>) -> Option<Account> {
    account("program-user", item, to)
}

/// The owner of Unix sockets.
pub(super) fn socket_owner(item: &Setting<String>, to: &mut Findings<'_>) -> Option<Account> {
    let item = item.as_ref()?;
    let account = Account::parse(item.get_ref());
    let failed = |error| to.environment_error("listen-owner", Some(item.span()), error);
    account.map_err(failed).ok()
}

fn account(key: &'static str, item: &Setting<String>, to: &mut Findings<'_>) -> Option<Account> {
    let item = item.as_ref()?;
    let position = Some(item.span());
    match Account::parse(item.get_ref()) {
        Err(error) => to.environment_error(key, position, error),
        Ok(account) if !account.can_assume() => {
            let problem =
                format!("only root can start processes as {account}; start the server as root");
            to.environment_error(key, position, problem);
        }
        Ok(account) => return Some(account),
    }
    None
}
