//! Users and groups by name or number, and becoming one of them.
//!
//! Names come from /etc/passwd and /etc/group only; for users that are kept elsewhere give the number.

use crate::Failure;
use anyhow::Context;
use headway_os::user::{User, become_user, is_only};
use std::ffi::CString;

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// A user's number.
pub fn user(text: &str) -> Result<u32, String> {
    number("user", text, USERS)
}

/// A group's number.
pub fn group(text: &str) -> Result<u32, String> {
    number("group", text, GROUPS)
}

/// The user that the service runs as.
#[derive(Debug, PartialEq, Eq)]
pub struct Account {
    /// `None` for a number without a name, which is in no further groups.
    name: Option<CString>,
    pub user: u32,
    group: u32,
}

/// `NAME`, or `NAME:GROUP` for another primary group than the user's own; both may be numbers.
pub fn account(text: &str) -> Result<Account, String> {
    let (who, in_group) = match text.split_once(':') {
        Some((who, group)) => (who, Some(self::group(group)?)),
        None => (text, None),
    };
    let user = user(who)?;
    let table = read(USERS)?;
    // A number may have several names, with a group each.
    let is_who = |words: &Vec<&str>| match who.parse::<u32>() {
        Ok(_) => words.get(2).is_some_and(|number| *number == who),
        Err(_) => words[0] == who,
    };
    let line = records(&table).find(is_who);
    let own = line.as_ref().and_then(|words| words.get(3)?.parse().ok());
    let group = in_group.or(own).ok_or_else(|| {
        format!(
            "user {user} is not in {USERS}, which would tell its group: give --user {user}:GROUP"
        )
    })?;
    let name = line.and_then(|words| CString::new(words[0]).ok());
    Ok(Account { name, user, group })
}

impl Account {
    /// Becomes this user, in all threads and in all processes started later.
    pub fn assume(&self) -> Result<(), Failure> {
        let user = User {
            name: self.name.as_deref(),
            number: self.user,
            group: self.group,
        };
        let who = format!("user {} of group {}", self.user, self.group);
        if !rustix::process::geteuid().is_root() {
            return match is_only(user) {
                true => Ok(()),
                false => Err(Failure::Usage(format!(
                    "--user: only root can become {who}; start it as root, or as that user without --user"
                ))),
            };
        }
        let what = || format!("becoming {who}");
        Ok(become_user(user).with_context(what)?)
    }
}

/// Both files have the name first and the number third.
fn number(what: &str, text: &str, file: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(u32::MAX) => return Err(format!("{text} is no {what}'s number")),
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let table = read(file)?;
    let found = records(&table).find_map(|words| {
        let named = words[0] == text;
        named.then(|| words.get(2)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| format!("there is no {what} {text:?} in {file}; give the number instead"))
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))
}

fn records(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table.lines().map(|line| line.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_found_when_the_name_is_in_the_table() {
        assert_eq!(user("root"), Ok(0));
        assert_eq!(group("root"), Ok(0));
        assert_eq!(user("4711"), Ok(4711));
        let error = user("no-such-user").expect_err("nobody has this name");
        assert!(error.contains("give the number"), "{error}");
    }

    #[test]
    fn group_is_the_users_own_unless_another_one_is_given() {
        let of =
            |text: &str| account(text).map(|account| (account.name, account.user, account.group));
        let root = Some(c"root".to_owned());
        assert_eq!(of("root"), Ok((root.clone(), 0, 0)));
        assert_eq!(of("0:4711"), Ok((root, 0, 4711)));
        assert_eq!(of("4712:4711"), Ok((None, 4712, 4711)));
        let error = of("4712").expect_err("nobody has this number");
        assert!(error.contains("--user 4712:GROUP"), "{error}");
        let error = of("4294967295:33").expect_err("it stands for nobody");
        assert!(error.contains("no user's number"), "{error}");
        let error = of("root:no-such-group").expect_err("no group has this name");
        assert!(error.contains("no group"), "{error}");
    }
}
