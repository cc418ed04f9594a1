//! Filters of system calls and Landlock domains: what a process gives up for good, with all that it
//! starts later.
//!
//! What is allowed is decided elsewhere (`headway-sandbox`). Here are the calls which libraries lack: a
//! filter whose refusals the kernel logs, the version of Landlock, a rule for a directory whose file system may
//! not answer, and entering a domain between `fork` and `exec`.
//!
//! Sources: seccomp(2), landlock(7), `Documentation/userspace-api/seccomp_filter.rst`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;
use rustix::thread::set_no_new_privs;

use crate::residency::last_errno;

/// `LANDLOCK_CREATE_RULESET_VERSION` of linux/landlock.h.
const RULESET_VERSION: libc::c_uint = 1;

/// `LANDLOCK_RULE_PATH_BENEATH`.
const RULE_PATH_BENEATH: libc::c_uint = 1;

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    rights: u64,
    directory: libc::c_int,
}

/// One instruction of a filter, a `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a comparison is true.
    pub if_true: u8,
    /// Instructions to skip if it is false.
    pub if_false: u8,
    /// The operand.
    pub operand: u32,
}

/// Whether the kernel filters system calls.
pub fn has_filters() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads one number from a live variable.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0 as libc::c_uint,
            &raw const action,
        )
    };
    answer == 0
}

/// Filters the system calls of this thread, and of all threads and processes that it starts later. The
/// kernel logs the calls which the filter does not allow, if they are to be. Sets `no_new_privs`.
///
/// # Errors
/// As seccomp(2): `ENOSYS` or `EINVAL` where the kernel has no filters, `EINVAL` for a program which is
/// not valid.
pub fn filter_calls(program: &[Instruction], are_logged: bool) -> Result<()> {
    set_no_new_privs(true)?;
    let mut filter: Vec<libc::sock_filter> = program
        .iter()
        .map(|one| libc::sock_filter {
            code: one.code,
            jt: one.if_true,
            jf: one.if_false,
            k: one.operand,
        })
        .collect();
    let program = libc::sock_fprog {
        len: filter.len() as libc::c_ushort,
        filter: filter.as_mut_ptr(),
    };
    let flags = match are_logged {
        true => libc::SECCOMP_FILTER_FLAG_LOG,
        false => 0,
    };
    // SAFETY: the program and its instructions are live and as long as they say; the kernel copies both.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// The version of Landlock that the kernel has switched on; `None` without Landlock.
pub fn landlock_version() -> Option<u32> {
    let none: *const libc::c_void = std::ptr::null();
    // SAFETY: with this flag no memory is named.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            none,
            0 as libc::size_t,
            RULESET_VERSION,
        )
    };
    u32::try_from(answer).ok().filter(|version| *version > 0)
}

/// Adds to a ruleset of Landlock that these rights, bits of linux/landlock.h, are there beneath a directory. It
/// asks nothing of the file system: the directory may be an `O_PATH` descriptor of one which does not answer.
///
/// # Errors
/// As landlock_add_rule(2); `EINVAL` for a right that the ruleset does not handle.
pub fn allow_beneath(
    ruleset: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    rights: u64,
) -> Result<()> {
    let rule = PathBeneath {
        rights,
        directory: directory.as_raw_fd(),
    };
    // SAFETY: the kernel reads the rule, which is live and of the type that is named.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0 as libc::c_uint,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Puts this thread, and all that it starts later, under a ruleset of Landlock. It allocates nothing, so a
/// child may call it between `fork` and `exec`. It has to have `no_new_privs`.
///
/// # Errors
/// As landlock_restrict_self(2); `E2BIG` beneath 16 other domains.
pub fn enter_domain(ruleset: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: integers only.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_restrict_self,
            ruleset.as_raw_fd(),
            0 as libc::c_uint,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// Needs: filters of system calls in the kernel (seccomp)
    #[test]
    fn call_fails_when_the_filter_does_not_allow_it() {
        const NAME: &str = "call_fails_when_the_filter_does_not_allow_it";
        if !has_filters() {
            return headway_test_support::skip(NAME, "filters of system calls (seccomp)");
        }
        let code = |operation: u32, operand: u32, if_false: u8| Instruction {
            code: operation as u16,
            if_true: 0,
            if_false,
            operand,
        };
        let getppid = libc::SYS_getppid as u32;
        let program = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, getppid, 1),
            code(
                libc::BPF_RET | libc::BPF_K,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
                0,
            ),
            code(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        // The filter is that of this thread alone.
        let errno = std::thread::spawn(move || {
            filter_calls(&program, false).unwrap();
            // SAFETY: no arguments.
            let answer = unsafe { libc::syscall(libc::SYS_getppid) };
            (answer, last_errno())
        });
        assert_eq!(errno.join().unwrap(), (-1, Errno::PERM));
    }
}
