//! The settings `user` and `program-user`: the users of the processes of the server.

use rustix::process::geteuid;

use super::account::Account;
use super::error::Findings;
use super::keys::Setting;

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
