//! Names of system calls by their numbers, which differ between architectures.

use std::borrow::Cow;

use syscalls::Sysno;

/// The name of a system call of this architecture; `unknown` for a number that is none.
pub fn name(number: u32) -> &'static str {
    Sysno::new(number as usize).map_or("unknown", |call| call.name())
}

/// The name of a call for people; `call 9999` for a number without a name.
pub fn display_name(number: u32) -> Cow<'static, str> {
    match Sysno::new(number as usize) {
        Some(call) => Cow::Borrowed(call.name()),
        None => Cow::Owned(format!("call {number}")),
    }
}

/// The number of a system call by its name.
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
