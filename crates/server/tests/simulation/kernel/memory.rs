//! Calls for which the kernel has no memory (`ENOMEM`).

use super::State;
use crate::trap::Arguments;

/// The calls between a request and its response that can fail so, by their manual pages, and
/// whether the client then gets 503. Otherwise its connection ends, or it notices nothing.
pub const CALLS_WITH_MEMORY: [(&[i64], bool); 15] = [
    (&[libc::SYS_poll, libc::SYS_ppoll], false),
    (&[libc::SYS_select, libc::SYS_pselect6], false),
    (&[libc::SYS_accept4], false),
    (&[libc::SYS_epoll_ctl], false),
    (&[libc::SYS_recvfrom], false),
    (&[libc::SYS_sendto], false),
    (&[libc::SYS_sendmsg], false),
    (&[libc::SYS_sendfile], false),
    (&[libc::SYS_openat2], true),
    (&[libc::SYS_statx], true),
    (&[libc::SYS_preadv2], true),
    (&[libc::SYS_mincore], true),
    (&[libc::SYS_memfd_create], true),
    (&[libc::SYS_pread64], true),
    (&[libc::SYS_getdents64], true),
];

impl State {
    pub(super) fn has_no_memory(&mut self, number: i64) -> bool {
        let is_one = |calls: &[i64]| calls.contains(&number);
        let may_fail = match self.faults.no_memory_for {
            Some(calls) => is_one(calls),
            None => CALLS_WITH_MEMORY.iter().any(|(calls, _)| is_one(calls)),
        };
        let fails = may_fail && self.happens(|faults| faults.no_memory);
        self.without_memory += usize::from(fails);
        fails
    }

    /// On a client's socket it breaks the connection.
    pub(super) fn no_memory(&mut self, arguments: Arguments) -> i64 {
        let errnos = [libc::ENOMEM];
        match self.sockets.contains_key(&(arguments[0] as i32)) {
            true => self.broken(arguments, &errnos),
            false => self.exhausted(&errnos),
        }
    }
}
