//! Names of system calls by their numbers, which differ between architectures.

use std::borrow::Cow;

use syscalls::Sysno;

/// Returns the name of a system call of this architecture; `unknown` for a number that is none.
///
/// ```
/// assert_eq!(headway_debox::calls::name(libc::SYS_sendfile as u32), "sendfile");
/// ```
pub fn name(number: u32) -> &'static str {
    Sysno::new(number as usize).map_or("unknown", |call| call.name())
}

/// Returns the name of a call for a reader; `call 9999` for a number without a name.
///
/// ```
/// assert_eq!(headway_debox::calls::display_name(9999), "call 9999");
/// ```
pub fn display_name(number: u32) -> Cow<'static, str> {
    match Sysno::new(number as usize) {
        Some(call) => Cow::Borrowed(call.name()),
        None => Cow::Owned(format!("call {number}")),
    }
}

/// Returns the number of a system call by its name.
///
/// ```
/// assert_eq!(headway_debox::calls::number("read"), Some(libc::SYS_read as u32));
/// assert_eq!(headway_debox::calls::number("no-such-call"), None);
/// ```
pub fn number(name: &str) -> Option<u32> {
    name.parse().ok().map(|call: Sysno| call.id() as u32)
}

#[cfg(test)]
mod tests {
    use super::{display_name, name, number};

    #[test]
    fn name_and_number_lead_to_each_other_when_the_call_exists() {
        for call in ["read", "sendfile", "openat2", "cachestat", "epoll_pwait2"] {
            assert_eq!(number(call).map(name), Some(call));
        }
        assert_eq!(number("read"), Some(libc::SYS_read as u32));
    }

    #[test]
    fn name_is_unknown_when_the_call_number_is_unused() {
        assert_eq!((name(9999), number("reed")), ("unknown", None));
        assert_eq!(
            (display_name(9999), display_name(0)),
            ("call 9999".into(), "read".into())
        );
    }
}
