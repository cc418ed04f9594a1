//! Users and groups by name or number, and becoming one of them.
//!
//! Names come from /etc/passwd and /etc/group only; for users that are kept elsewhere give the
//! number.

use std::ffi::CString;
use std::fmt;
use std::io;

use headway_os::encoding;
use headway_os::user::{Identity, User, become_user, is_only};
use serde::{Deserialize, Serialize};

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// The number of a user, which is given by name or number.
///
/// # Errors
/// What is wrong, as a message.
pub fn user(text: &str) -> Result<u32, String> {
    number("user", text, USERS)
}

/// The number of a group, which is given by name or number.
///
/// # Errors
/// What is wrong, as a message.
pub fn group(text: &str) -> Result<u32, String> {
    number("group", text, GROUPS)
}

/// A user that a process can become, with its primary group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The name, for the further groups. `None` for a number without a name.
    pub name: Option<CString>,
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

// It travels to the spawner.
encoding! {
    struct Account { name, user, group }
}

impl Account {
    /// Reads `NAME`, or `NAME:GROUP` for another primary group than the user's own; both may be
    /// numbers.
    ///
    /// # Errors
    /// What is wrong, as a message.
    pub fn parse(text: &str) -> Result<Account, String> {
        let (name, in_group) = match text.split_once(':') {
            Some((name, group)) => (name, Some(self::group(group)?)),
            None => (text, None),
        };
        let user = user(name)?;
        let table = read(USERS)?;
        // A number may have several names, with a group each.
        let is_named = |fields: &Vec<&str>| match name.parse::<u32>() {
            Ok(_) => fields.get(2).is_some_and(|number| *number == name),
            Err(_) => fields[0] == name,
        };
        let line = lines(&table).find(is_named);
        let own = line.as_ref().and_then(|fields| fields.get(3)?.parse().ok());
        let group = in_group.or(own).ok_or_else(|| {
            format!("user {user} is not in {USERS}, which has its group: write {user}:GROUP")
        })?;
        let name = line.and_then(|fields| CString::new(fields[0]).ok());
        Ok(Account { name, user, group })
    }

    /// Whether this process can become the user: it is root, or is this user already.
    pub fn can_assume(&self) -> bool {
        rustix::process::geteuid().is_root() || is_only(self.as_user())
    }

    /// Becomes this user, in all threads and in all processes started later.
    ///
    /// # Errors
    /// As [`become_user`]; `PermissionDenied` without the right to.
    pub fn assume(&self) -> io::Result<()> {
        if rustix::process::geteuid().is_root() {
            return become_user(self.as_user());
        }
        match self.can_assume() {
            true => Ok(()),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// What a child takes on to start as this user. `None` if this process is this user, or is to stay
    /// root.
    ///
    /// # Errors
    /// As [`Identity::of`].
    pub fn identity(&self) -> io::Result<Option<Identity>> {
        match self.is_root() || !rustix::process::geteuid().is_root() {
            true => Ok(None),
            false => Identity::of(self.as_user()).map(Some),
        }
    }

    /// Whether it is root.
    pub fn is_root(&self) -> bool {
        self.user == 0
    }

    /// The user's number.
    pub fn number(&self) -> u32 {
        self.user
    }

    /// The primary group's number.
    pub fn group(&self) -> u32 {
        self.group
    }

    fn as_user(&self) -> User<'_> {
        User {
            name: self.name.as_deref(),
            number: self.user,
            group: self.group,
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(out, "{}:{}", name.to_string_lossy(), self.group),
            None => write!(out, "{}:{}", self.user, self.group),
        }
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
    let found = lines(&table).find_map(|fields| {
        let named = fields[0] == text;
        named.then(|| fields.get(2)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| format!("there is no {what} {text:?} in {file}; give the number instead"))
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))
}

fn lines(table: &str) -> impl Iterator<Item = Vec<&str>> {
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
        let error = user("no-such-user").expect_err("no user has this name");
        assert!(error.contains("give the number"), "{error}");
    }

    #[test]
    fn group_is_the_users_own_unless_another_one_is_given() {
        let of = |text: &str| {
            Account::parse(text).map(|account| (account.name, account.user, account.group))
        };
        let root = Some(c"root".to_owned());
        assert_eq!(of("root"), Ok((root.clone(), 0, 0)));
        assert_eq!(of("0:4711"), Ok((root, 0, 4711)));
        assert_eq!(of("4712:4711"), Ok((None, 4712, 4711)));
        let error = of("4712").expect_err("no user has this number");
        assert!(error.contains("write 4712:GROUP"), "{error}");
        let error = of("4294967295:33").expect_err("it is the number of no user");
        assert!(error.contains("no user's number"), "{error}");
        let error = of("root:no-such-group").expect_err("no group has this name");
        assert!(error.contains("no group"), "{error}");
    }
}
