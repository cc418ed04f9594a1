//! Each system call: what it may do, how it can fail, and what is changed in its answer so that two
//! runs of a seed see the same.

use headway_base::random::Draw;

use super::layout::{CachestatRange, OpenHow, fill, make, read, shortened, total_bytes, write};
use super::{CachestatAnswer, NowaitAnswer, Role, State};
use crate::clock;
use crate::trap::Arguments;

const SYS_CACHESTAT: i64 = 451;
const RESOLVE_CACHED: u64 = 0x20;
const RWF_NOWAIT: u64 = 8;
const PAGE_BYTES: u64 = 4096;

/// Whether a helper waits for its next job with this call.
pub fn waits_for_a_job(number: i64, arguments: Arguments) -> bool {
    number == libc::SYS_recvmsg && arguments[2] & libc::MSG_DONTWAIT as u64 == 0
}

/// A name for the trace.
pub fn name(number: i64) -> String {
    let known = match number {
        libc::SYS_recvfrom => "recvfrom",
        libc::SYS_sendto => "sendto",
        libc::SYS_sendmsg => "sendmsg",
        libc::SYS_recvmsg => "recvmsg",
        libc::SYS_sendfile => "sendfile",
        libc::SYS_statx => "statx",
        libc::SYS_openat2 => "openat2",
        libc::SYS_openat => "openat",
        libc::SYS_preadv2 => "preadv2",
        libc::SYS_pread64 => "pread",
        libc::SYS_close => "close",
        libc::SYS_accept4 => "accept4",
        libc::SYS_epoll_ctl => "epoll_ctl",
        libc::SYS_shutdown => "shutdown",
        libc::SYS_memfd_create => "memfd_create",
        SYS_CACHESTAT => "cachestat",
        other if super::wait::is_wait(other) => "wait",
        other => return format!("call {other}"),
    };
    known.to_owned()
}

impl State {
    pub(super) fn call(&mut self, role: Role, number: i64, arguments: Arguments) -> i64 {
        let serves = role == Role::Worker && self.is_serving;
        let is_client = self.sockets.contains_key(&(arguments[0] as i32));
        self.has_messages |= role == Role::Worker
            && !is_client
            && matches!(number, libc::SYS_sendmsg | libc::SYS_close);
        let is_of_request = serves || role != Role::Worker;
        // Only a new socket needs memory there.
        if is_of_request && number != libc::SYS_epoll_ctl && self.has_no_memory(number) {
            // Its last message to its master waits for memory.
            self.may_pause |= number == libc::SYS_sendmsg && self.control == Some(arguments[0]);
            return self.no_memory(arguments);
        }
        match number {
            libc::SYS_clock_nanosleep
                if role != Role::Worker || std::mem::take(&mut self.may_pause) =>
            {
                0
            }
            libc::SYS_recvfrom if serves && is_client => self.receive(arguments),
            libc::SYS_sendto | libc::SYS_sendmsg if serves && is_client => {
                self.send(number, arguments)
            }
            libc::SYS_sendmsg if role != Role::Worker => self.answer(role, arguments),
            libc::SYS_sendmsg if serves && self.control == Some(arguments[0]) => {
                self.tell_master(arguments)
            }
            // The first message says that it serves.
            libc::SYS_sendmsg if role == Role::Worker && self.control.is_none() => {
                self.control = Some(arguments[0]);
                make(number, arguments)
            }
            libc::SYS_sendmsg if serves && self.happens(|faults| faults.exhausted) => {
                self.exhausted(&[libc::ENOMEM, libc::ENOBUFS, libc::ETOOMANYREFS])
            }
            libc::SYS_sendmsg if serves => {
                let sent = make(number, arguments);
                if sent >= 0 {
                    self.note_passed(arguments[1]);
                }
                sent
            }
            libc::SYS_recvmsg if serves => self.receive_message(arguments),
            libc::SYS_ioctl if serves && is_client && self.happens(|faults| faults.reset) => {
                self.broken(arguments, &[libc::ENOTCONN, libc::ECONNRESET])
            }
            libc::SYS_setsockopt | libc::SYS_shutdown
                if serves && is_client && self.happens(|faults| faults.exhausted) =>
            {
                self.broken(arguments, &[libc::ENOBUFS, libc::ENOMEM, libc::ENOTCONN])
            }
            libc::SYS_sendfile if serves => self.send_file(arguments),
            libc::SYS_openat2 => self.open(role, arguments),
            libc::SYS_statx => self.status(arguments),
            libc::SYS_preadv2 => self.read_at_once(arguments),
            libc::SYS_pread64 => self.read_file(role, arguments),
            libc::SYS_mincore => self.mincore(arguments),
            libc::SYS_fcntl if self.is_opaque(arguments) => -i64::from(libc::EINVAL),
            SYS_CACHESTAT => self.cachestat(arguments),
            libc::SYS_memfd_create if self.happens(|faults| faults.exhausted) => {
                self.exhausted(&[libc::EMFILE, libc::ENFILE, libc::ENOMEM])
            }
            libc::SYS_accept4 => self.accept(arguments),
            libc::SYS_close => {
                if serves && !is_client {
                    self.note_close(arguments[0]);
                }
                self.close(arguments)
            }
            libc::SYS_write | libc::SYS_fstatfs | libc::SYS_fadvise64 | libc::SYS_getdents64
                if role != Role::Worker =>
            {
                self.file_call(number, arguments)
            }
            libc::SYS_recvmsg if role != Role::Worker => self.receive_job(arguments),
            // A pause before the next attempt.
            libc::SYS_nanosleep | libc::SYS_clock_nanosleep if role != Role::Worker => 0,
            libc::SYS_epoll_ctl if serves => self.epoll_control(arguments),
            libc::SYS_getrandom => {
                let bytes: Vec<u8> = (0..arguments[1])
                    .map(|_| self.random.next_u64() as u8)
                    .collect();
                fill(arguments[0], &bytes);
                arguments[1] as i64
            }
            // Locks belong to the whole program as well.
            libc::SYS_mlockall | libc::SYS_mlock | libc::SYS_capset => 0,
            // There is no listener of TCP whose SYNs could be filtered.
            libc::SYS_bpf => -i64::from(libc::EPERM),
            libc::SYS_prctl if gives_up_rights(arguments[0] as i32) => 0,
            _ => {
                if serves && !is_harmless(number) {
                    self.violation(format!("the loop makes system call {number}: may it wait?"));
                }
                make(number, arguments)
            }
        }
    }

    /// Breaks the connection of a socket.
    pub(super) fn broken(&mut self, arguments: Arguments, errnos: &[i32]) -> i64 {
        if let Some(connection) = self.sockets.get(&(arguments[0] as i32)) {
            self.connections[*connection].is_broken = true;
        }
        self.one_of(errnos)
    }

    pub(super) fn exhausted(&mut self, errnos: &[i32]) -> i64 {
        self.exhausted_ns.push(clock::now_ns());
        self.one_of(errnos)
    }

    fn disk_failed(&mut self) -> i64 {
        self.disk_failed_ns.push(clock::now_ns());
        self.one_of(&[libc::EIO, libc::ESTALE])
    }

    /// The faults that every call on a client's socket can meet.
    fn socket_fault(&mut self, arguments: Arguments, errnos: &[i32]) -> Option<i64> {
        if self.happens(|faults| faults.interrupted) {
            return Some(-i64::from(libc::EINTR));
        }
        if !self.is_edge_triggered && self.happens(|faults| faults.would_block) {
            return Some(-i64::from(libc::EAGAIN));
        }
        if self.happens(|faults| faults.reset) {
            return Some(self.broken(arguments, errnos));
        }
        None
    }

    /// How many bytes of `most` a call moves. With edges a short count says that there is no more.
    fn moved(&mut self, most: u64) -> u64 {
        match !self.is_edge_triggered && most > 1 && self.happens(|faults| faults.short) {
            true => {
                let limit = 1 << self.random.below(64 - u64::from(most.leading_zeros()));
                1 + self.random.below(most.min(limit))
            }
            false => most,
        }
    }

    fn receive(&mut self, mut arguments: Arguments) -> i64 {
        let flags = arguments[3];
        if flags & libc::MSG_DONTWAIT as u64 == 0 {
            self.violation("recv on a client's socket without MSG_DONTWAIT".to_owned());
        }
        if let Some(fault) = self.socket_fault(arguments, &[libc::ECONNRESET, libc::ETIMEDOUT]) {
            return fault;
        }
        arguments[2] = self.moved(arguments[2]);
        let result = make(libc::SYS_recvfrom, arguments);
        self.note_activity(arguments, result)
    }

    /// Notes when bytes of a connection last moved.
    fn note_activity(&mut self, arguments: Arguments, result: i64) -> i64 {
        if let (1.., Some(connection)) = (result, self.sockets.get(&(arguments[0] as i32))) {
            let fate = &mut self.connections[*connection];
            (fate.active_ns, fate.idle_since_ns) = (clock::now_ns(), self.iteration_ns);
        }
        result
    }

    fn send(&mut self, number: i64, mut arguments: Arguments) -> i64 {
        let is_message = number == libc::SYS_sendmsg;
        let flags = arguments[if is_message { 2 } else { 3 }];
        let needed = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
        if flags & needed != needed {
            self.violation(format!("send on a client's socket with flags {flags:#x}"));
        }
        let errnos = [libc::EPIPE, libc::ECONNRESET, libc::ENOBUFS, libc::ENOMEM];
        if let Some(fault) = self.socket_fault(arguments, &errnos) {
            return fault;
        }
        if !is_message {
            arguments[2] = self.moved(arguments[2]);
            let result = make(number, arguments);
            return self.note_activity(arguments, result);
        }
        let mut message: libc::msghdr = read(arguments[1]);
        let (buffers, count) = (message.msg_iov as u64, message.msg_iovlen as u64);
        let bytes = self.moved(total_bytes(buffers, count));
        let mut short = shortened(buffers, count, bytes);
        (message.msg_iov, message.msg_iovlen) = (short.as_mut_ptr(), short.len() as _);
        arguments[1] = &raw const message as u64;
        let result = make(number, arguments);
        self.note_activity(arguments, result)
    }

    /// The worker receives from a helper or the master.
    fn receive_message(&mut self, arguments: Arguments) -> i64 {
        if arguments[2] & libc::MSG_DONTWAIT as u64 == 0 {
            self.violation("recvmsg on the loop without MSG_DONTWAIT".to_owned());
        }
        let received = make(libc::SYS_recvmsg, arguments);
        if received > 0 && self.happens(|faults| faults.exhausted) && lose_descriptors(arguments[1])
        {
            self.exhausted(&[libc::EMFILE]);
        }
        received
    }

    /// The worker sends to its master, which may have stopped reading.
    fn tell_master(&mut self, arguments: Arguments) -> i64 {
        let may_wait = arguments[2] & libc::MSG_DONTWAIT as u64 == 0;
        match !may_wait && self.happens(|faults| faults.would_block) {
            true => -i64::from(libc::EAGAIN),
            false => make(libc::SYS_sendmsg, arguments),
        }
    }

    /// A helper answers, unless it dies before.
    fn answer(&mut self, role: Role, arguments: Arguments) -> i64 {
        if let Role::Helper(index) = role
            && self.dying == Some(index)
        {
            return -i64::from(libc::EPIPE);
        }
        if self.happens(|faults| faults.interrupted) {
            return -i64::from(libc::EINTR);
        }
        make(libc::SYS_sendmsg, arguments)
    }

    /// A helper waits for its next job.
    fn receive_job(&mut self, arguments: Arguments) -> i64 {
        match self.happens(|faults| faults.interrupted) {
            true => -i64::from(libc::EINTR),
            false => make(libc::SYS_recvmsg, arguments),
        }
    }

    /// A helper's call on a file: one of the disk, or one in memory.
    fn file_call(&mut self, number: i64, mut arguments: Arguments) -> i64 {
        let is_write = number == libc::SYS_write;
        // A directory stream ends with its first error.
        let may_repeat = number != libc::SYS_getdents64;
        if may_repeat && self.happens(|faults| faults.interrupted) {
            return -i64::from(libc::EINTR);
        }
        if is_write && self.happens(|faults| faults.exhausted) {
            return self.exhausted(&[libc::ENOSPC, libc::ENOMEM]);
        }
        if !is_write && self.happens(|faults| faults.disk) {
            return self.disk_failed();
        }
        if is_write {
            arguments[2] = self.moved_of_file(arguments[2]);
        }
        make(number, arguments)
    }

    fn send_file(&mut self, mut arguments: Arguments) -> i64 {
        let errnos = [libc::EPIPE, libc::ECONNRESET, libc::ENOMEM];
        if let Some(fault) = self.socket_fault(arguments, &errnos) {
            return fault;
        }
        if self.happens(|faults| faults.disk) {
            self.disk_failed();
            return -i64::from(libc::EIO);
        }
        arguments[3] = self.moved(arguments[3]);
        let result = make(libc::SYS_sendfile, arguments);
        self.note_activity(arguments, result)
    }

    fn open(&mut self, role: Role, mut arguments: Arguments) -> i64 {
        let mut how: OpenHow = read(arguments[2]);
        let is_cached = how.resolve & RESOLVE_CACHED != 0;
        if role == Role::Worker && self.is_serving && !is_cached {
            self.violation("the loop opens a file without RESOLVE_CACHED".to_owned());
        }
        if is_cached && self.happens(|faults| faults.cold) {
            return -i64::from(libc::EAGAIN);
        }
        // A rename raced with the walk (`RESOLVE_BENEATH`).
        if role != Role::Worker && !is_cached && self.happens(|faults| faults.interrupted) {
            return self.one_of(&[libc::EAGAIN, libc::EINTR]);
        }
        if self.happens(|faults| faults.exhausted) {
            return self.exhausted(&[libc::EMFILE, libc::ENFILE, libc::ENOMEM]);
        }
        if self.happens(|faults| faults.disk) {
            return self.disk_failed();
        }
        // Whether following a link writes its access time depends on the time of the machine.
        if arguments[0] as i32 == libc::AT_FDCWD {
            match is_cached && self.is_link_new {
                true => return -i64::from(libc::EAGAIN),
                false => self.is_link_new = false,
            }
            how.resolve &= !RESOLVE_CACHED;
        }
        if self.remembers_missing {
            how.resolve &= !RESOLVE_CACHED;
        }
        arguments[2] = &raw const how as u64;
        let opened = make(libc::SYS_openat2, arguments);
        let opened = self.check_rights(opened, how);
        // What another process does at the moment can make the kernel say that it would wait.
        if role == Role::Worker && self.is_serving && opened != -i64::from(libc::EAGAIN) {
            self.note_lookup(arguments, opened);
        }
        opened
    }

    /// Inode numbers are those of the order in which they are met, and a file's inode changes when
    /// its contents do: both are accidents of the machine otherwise.
    fn status(&mut self, arguments: Arguments) -> i64 {
        if self.happens(|faults| faults.disk) {
            self.costs.closable.insert(arguments[0] as i32);
            return self.disk_failed();
        }
        let result = make(libc::SYS_statx, arguments);
        if result == 0 {
            let mut found: libc::statx = read(arguments[4]);
            let next = self.inodes.len() as u64 + 2;
            found.stx_ino = *self.inodes.entry(found.stx_ino).or_insert(next);
            found.stx_ctime = found.stx_mtime;
            write(arguments[4], found);
        }
        result
    }

    /// A read that may not wait (`RWF_NOWAIT`), which the file system of the test may not know.
    fn read_at_once(&mut self, mut arguments: Arguments) -> i64 {
        let may_wait = arguments[5] & RWF_NOWAIT == 0;
        if !may_wait && self.nowait != NowaitAnswer::Reads {
            return -i64::from(libc::EOPNOTSUPP);
        }
        if !may_wait && self.happens(|faults| faults.cold) {
            self.was_cold = true;
            return -i64::from(libc::EAGAIN);
        }
        if self.happens(|faults| faults.interrupted) {
            return -i64::from(libc::EINTR);
        }
        if self.happens(|faults| faults.disk) {
            return self.disk_failed();
        }
        let bytes = total_bytes(arguments[1], arguments[2]);
        let short = shortened(arguments[1], arguments[2], self.moved_of_file(bytes));
        (arguments[1], arguments[2]) = (short.as_ptr() as u64, short.len() as u64);
        arguments[5] = 0;
        make(libc::SYS_preadv2, arguments)
    }

    fn read_file(&mut self, role: Role, mut arguments: Arguments) -> i64 {
        if role != Role::Worker && self.happens(|faults| faults.interrupted) {
            return -i64::from(libc::EINTR);
        }
        if role != Role::Worker && self.happens(|faults| faults.disk) {
            return self.disk_failed();
        }
        arguments[2] = self.moved_of_file(arguments[2]);
        make(libc::SYS_pread64, arguments)
    }

    /// A read of a file can be short whatever the event mechanism is.
    fn moved_of_file(&mut self, most: u64) -> u64 {
        match most > 1 && self.happens(|faults| faults.short) {
            true => 1 + self.random.below(most),
            false => most,
        }
    }

    fn cachestat(&mut self, arguments: Arguments) -> i64 {
        match self.cachestat {
            CachestatAnswer::Missing => return -i64::from(libc::ENOSYS),
            CachestatAnswer::Forbidden => return -i64::from(libc::EPERM),
            CachestatAnswer::Counts => {}
        }
        let range: CachestatRange = read(arguments[1]);
        let pages = range.length.div_ceil(PAGE_BYTES);
        let cached = match self.happens(|faults| faults.cold) {
            true => self.random.below(pages.max(1)),
            false => pages,
        };
        self.was_cold |= cached < pages;
        write(arguments[2], [cached, 0, 0, 0, 0]);
        0
    }

    /// Some of the pages of a mapping are not in memory.
    fn mincore(&mut self, arguments: Arguments) -> i64 {
        let result = make(libc::SYS_mincore, arguments);
        if result == 0 && self.happens(|faults| faults.cold) {
            self.was_cold = true;
            let pages = arguments[1].div_ceil(PAGE_BYTES);
            write(arguments[2] + self.random.below(pages), 0_u8);
        }
        result
    }

    /// Whether a file is asked for its seals which should not look like one in memory.
    fn is_opaque(&self, arguments: Arguments) -> bool {
        self.nowait == NowaitAnswer::Opaque && arguments[1] == libc::F_GET_SEALS as u64
    }

    fn accept(&mut self, arguments: Arguments) -> i64 {
        if self.happens(|faults| faults.interrupted) {
            return self.one_of(&[libc::EINTR, libc::ECONNABORTED]);
        }
        if self.happens(|faults| faults.exhausted) {
            return self.exhausted(&[libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS]);
        }
        let accepted = make(libc::SYS_accept4, arguments);
        if accepted < 0 {
            return accepted;
        }
        let Some(connection) = self.waiting.pop_front() else {
            self.violation("a connection was accepted that nobody made".to_owned());
            return accepted;
        };
        self.sockets.insert(accepted as i32, connection);
        let fate = &mut self.connections[connection];
        (fate.active_ns, fate.idle_since_ns) = (clock::now_ns(), self.iteration_ns);
        let bytes = self.send_buffer_bytes as i32;
        let option = [
            accepted as u64,
            libc::SOL_SOCKET as u64,
            libc::SO_SNDBUF as u64,
            &raw const bytes as u64,
            4,
            0,
        ];
        make(libc::SYS_setsockopt, option);
        if arguments[1] != 0 {
            let port = 10_000 + connection as u16;
            write(arguments[1], internet_address([10, 0, 0, 1], port));
            write(arguments[2], size_of::<libc::sockaddr_in>() as u32);
        }
        accepted
    }

    fn close(&mut self, arguments: Arguments) -> i64 {
        let socket = arguments[0];
        if let Some(connection) = self.sockets.remove(&(socket as i32)) {
            let fate = &mut self.connections[connection];
            fate.closed_ns = clock::now_ns();
            fate.is_reset =
                queued(socket, libc::FIONREAD) > 0 && queued(socket, libc::TIOCOUTQ) > 0;
        }
        make(libc::SYS_close, arguments)
    }

    fn epoll_control(&mut self, arguments: Arguments) -> i64 {
        let socket = arguments[2] as i32;
        let is_new = arguments[1] == libc::EPOLL_CTL_ADD as u64;
        let fails = |state: &mut State| {
            state.happens(|faults| faults.exhausted) || state.has_no_memory(libc::SYS_epoll_ctl)
        };
        if is_new && self.sockets.contains_key(&socket) && fails(self) {
            let mut of_socket = arguments;
            of_socket[0] = socket as u64;
            return self.broken(of_socket, &[libc::ENOMEM, libc::ENOSPC]);
        }
        make(libc::SYS_epoll_ctl, arguments)
    }
}

/// How many bytes wait in a socket: to be received (`FIONREAD`), or to be read by the other end.
fn queued(socket: u64, which: libc::Ioctl) -> i32 {
    let mut bytes = 0_i32;
    let pointer = &raw mut bytes as u64;
    match make(libc::SYS_ioctl, [socket, which, pointer, 0, 0, 0]) {
        0 => bytes,
        _ => 0,
    }
}

fn internet_address(address: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address),
        },
        sin_zero: [0; 8],
    }
}

/// The descriptors of a message.
pub fn passed_descriptors(pointer: u64) -> Vec<i32> {
    let message: libc::msghdr = read(pointer);
    if message.msg_controllen < size_of::<libc::cmsghdr>() {
        return Vec::new();
    }
    let first = message.msg_control as u64;
    let header: libc::cmsghdr = read(first);
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Vec::new();
    }
    let begin = first + size_of::<libc::cmsghdr>() as u64;
    let end = first + header.cmsg_len as u64;
    (begin..end).step_by(4).map(read).collect()
}

/// Closes the descriptors of a received message, as the kernel does when there is no room for them.
/// Returns whether there were any.
fn lose_descriptors(pointer: u64) -> bool {
    let mut message: libc::msghdr = read(pointer);
    let passed = passed_descriptors(pointer);
    if passed.is_empty() {
        return false;
    }
    for descriptor in passed {
        make(libc::SYS_close, [descriptor as u64, 0, 0, 0, 0, 0]);
    }
    message.msg_controllen = 0;
    message.msg_flags |= libc::MSG_CTRUNC;
    write(pointer, message);
    true
}

/// Rights belong to the whole program, which is the test.
fn gives_up_rights(option: i32) -> bool {
    matches!(
        option,
        libc::PR_SET_NO_NEW_PRIVS
            | libc::PR_CAPBSET_DROP
            | libc::PR_CAP_AMBIENT
            | libc::PR_SET_SECUREBITS
            | libc::PR_SET_DUMPABLE
    )
}

/// Calls of the loop which never wait.
fn is_harmless(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_mincore
            | libc::SYS_shutdown
            | libc::SYS_setsockopt
            | libc::SYS_getsockopt
            | libc::SYS_fcntl
            | libc::SYS_fadvise64
            | libc::SYS_epoll_ctl
            | libc::SYS_ioctl
            | libc::SYS_listen
            | libc::SYS_eventfd2
            // The vector of the program's start, which is in memory.
            | libc::SYS_prctl
    )
}
