//! Giving up root's rights for another user's, permanently and in all threads.
//!
//! rustix has the bare system calls, which change the calling thread alone; libc's functions change
//! every thread of the process, and know which further groups a user is in.
//!
//! A child can also start as another user ([`Identity`]). It then keeps the capabilities that it is
//! given, and only these.
//!
//! Sources: credentials(7), initgroups(3), getgrouplist(3), setresuid(2), nptl(7), capabilities(7).

use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::privileges::shrink_bounding_set;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
};

/// A user is in no more groups than this (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// The user and groups that a process takes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User<'a> {
    /// Name of the user, for the supplementary groups; none without a name.
    pub name: Option<&'a CStr>,
    /// The user's number.
    pub number: u32,
    /// The primary group's number.
    pub group: u32,
}

/// Makes all threads of the process, and all that it starts later, this user's: real, effective and
/// saved numbers, the primary group and the further ones. For a number that is not root's there is
/// no way back, and capabilities are dropped.
///
/// The process can no longer dump a core or be looked into by this user (`PR_SET_DUMPABLE`,
/// prctl(2)) until it executes a program.
///
/// # Errors
/// `EPERM` without CAP_SETUID and CAP_SETGID; `PermissionDenied` for a number that is none. Some of
/// it may have been done then: the process should end.
pub fn become_user(user: User<'_>) -> io::Result<()> {
    // Groups first: a process that is not root any more may not change them.
    let further = match user.name {
        // SAFETY: the name ends with a NUL and outlives the call, which keeps no pointer.
        Some(name) => unsafe { libc::initgroups(name.as_ptr(), user.group) },
        // SAFETY: one number is read from a live variable.
        None => unsafe { libc::setgroups(1, &raw const user.group) },
    };
    done(further)?;
    // SAFETY: numbers only.
    done(unsafe { libc::setresgid(user.group, user.group, user.group) })?;
    // SAFETY: numbers only.
    done(unsafe { libc::setresuid(user.number, user.number, user.number) })?;
    match is_only(user) {
        true => Ok(()),
        // The largest number means "unchanged".
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Whether this process has only this user's rights: real, effective and saved numbers are this
/// user's and group's. Further groups are not looked at.
pub fn is_only(user: User<'_>) -> bool {
    let (mut users, mut groups) = ([0; 3], [0; 3]);
    let ([real, effective, saved], [own, acting, kept]) = (&mut users, &mut groups);
    // SAFETY: it writes three numbers into live variables.
    let by_user = unsafe { libc::getresuid(real, effective, saved) };
    // SAFETY: as above.
    let by_group = unsafe { libc::getresgid(own, acting, kept) };
    (by_user, by_group) == (0, 0) && users == [user.number; 3] && groups == [user.group; 3]
}

/// The numbers that a child takes on to be a user. They are found before it is created, since it may
/// search for nothing between `fork` and `exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

impl Identity {
    /// The numbers of this user, with the groups that it is in now.
    ///
    /// # Errors
    /// `InvalidData` for a user in more groups than the system allows.
    pub fn of(user: User<'_>) -> io::Result<Identity> {
        let groups = match user.name {
            Some(name) => groups_of(name, user.group)?,
            None => vec![user.group],
        };
        Ok(Identity {
            user: user.number,
            group: user.group,
            groups,
        })
    }

    /// Has the command start as this user. Of the capabilities of this process it has those in `keep`,
    /// which programs that it starts would inherit, and no others.
    ///
    /// # Errors
    /// Starting fails with `EPERM` without CAP_SETUID and CAP_SETGID.
    pub fn start(self, command: &mut Command, keep: CapabilitySet) -> &mut Command {
        let become_it = move || self.become_it(keep);
        // SAFETY: the closure makes system calls, and allocates nothing.
        unsafe { command.pre_exec(become_it) }
    }

    /// Makes the calling process this user. It has no other thread.
    fn become_it(&self, keep: CapabilitySet) -> io::Result<()> {
        set_keep_capabilities(true)?;
        // Afterwards it may not change this set.
        shrink_bounding_set(keep)?;
        let Identity {
            user,
            group,
            groups,
        } = self;
        // SAFETY: the numbers are read from a live slice.
        done(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
        // SAFETY: numbers only.
        done(unsafe { libc::setresgid(*group, *group, *group) })?;
        // SAFETY: numbers only.
        done(unsafe { libc::setresuid(*user, *user, *user) })?;
        // A container may lack some of them.
        let kept = capabilities(None)?.permitted & keep;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: kept,
        };
        set_capabilities(None, sets)?;
        for capability in kept.iter() {
            raise_ambient(capability.bits().trailing_zeros())?;
        }
        Ok(())
    }
}

/// Adds a capability to those that a program inherits (capabilities(7)).
fn raise_ambient(number: u32) -> io::Result<()> {
    let raise = libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong;
    let (number, none) = (libc::c_ulong::from(number), 0 as libc::c_ulong);
    // SAFETY: numbers only.
    done(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, number, none, none) })
}

/// The groups of a user, with this primary one.
fn groups_of(name: &CStr, group: u32) -> io::Result<Vec<u32>> {
    let mut room = 64;
    while room <= GROUPS_MAX {
        let mut groups = vec![0; room];
        let mut count = room as libc::c_int;
        // SAFETY: the name ends with a NUL; `count` is the length of the live vector.
        let found = unsafe {
            libc::getgrouplist(name.as_ptr(), group, groups.as_mut_ptr(), &raw mut count)
        };
        if found >= 0 {
            groups.truncate(usize::try_from(count).unwrap_or_default());
            return Ok(groups);
        }
        room *= 2;
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn done(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    /// Needs: root, to be another user
    #[test]
    fn command_starts_as_the_user_with_these_capabilities_and_no_others() {
        const NAME: &str = "command_starts_as_the_user_with_these_capabilities_and_no_others";
        if !rustix::process::geteuid().is_root() {
            return headway_test_support::skip(NAME, "root, to be another user");
        }
        let user = User {
            name: None,
            number: 4711,
            group: 4712,
        };
        let mut command = Command::new("cat");
        command.arg("/proc/self/status").stdin(Stdio::null());
        let identity = Identity::of(user).unwrap();
        let output = identity
            .start(&mut command, CapabilitySet::IPC_LOCK)
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(value("Uid:"), "4711 4711 4711 4711");
        assert_eq!(value("Gid:"), "4712 4712 4712 4712");
        assert_eq!(value("Groups:"), "4712");
        let has = capabilities(None).unwrap().permitted & CapabilitySet::IPC_LOCK;
        for set in ["CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(value(set), format!("{:016x}", has.bits()), "{set}");
        }
    }

    #[test]
    fn groups_are_those_of_the_user_when_it_has_a_name() {
        let root = User {
            name: Some(c"root"),
            number: 0,
            group: 0,
        };
        assert!(Identity::of(root).unwrap().groups.contains(&0));
        let other = User {
            name: None,
            number: 4711,
            group: 4712,
        };
        assert_eq!(Identity::of(other).unwrap().groups, [4712]);
    }
}
