//! Giving up root's rights for another user's, permanently and in all threads.
//!
//! rustix has the bare system calls, which change the calling thread alone; libc's functions change
//! every thread of the process, and know which further groups a user is in.
//!
//! Sources: credentials(7), initgroups(3), setresuid(2), nptl(7).

use std::ffi::CStr;
use std::io;

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

fn done(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
