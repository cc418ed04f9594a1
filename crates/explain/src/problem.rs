//! What kind of problem a cause is, by where the request was and what its thread did.

use headway_debox::Label;
use headway_debox_bpf::Within;
use serde::Serialize;

use crate::parts::Phase;
use crate::report::CauseShare;

/// A kind of causes with the same remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Problem {
    /// Names of files are looked up or files opened.
    Lookup,
    /// Contents of files are read.
    Read,
    /// Contents of mapped files are read, by page faults.
    MappedRead,
    /// The time of an access is written when a file is read.
    AccessTime,
    /// A log is written.
    Log,
    /// Other files are written.
    Write,
    /// A lock of a file.
    FileLock,
    /// A lock or a queue inside the program.
    Futex,
    /// Too little CPU.
    Cpu,
    /// The threads compute for other requests.
    BusyLoop,
    /// The threads compute for the request.
    Compute,
    /// The accept queue: all processes or threads are busy or idle with a client.
    Accept,
    /// The accept queue is full.
    Backlog,
    /// A handler waits in a call, and with it the thread that serves other clients.
    Blocking,
    /// The answer comes from another process, machine or thread.
    Elsewhere,
    /// It comes from an upstream that does not accept connections in time.
    Upstream,
    /// The client or the network.
    Client,
    /// The file system has no space for what it writes.
    FullDisk,
    /// It has no descriptor left.
    Descriptors,
    /// Calls fail for another lack, or with an error of the disk.
    Failing,
}

impl Problem {
    /// The problem behind a cause, for a server of this kind; `None` if the cause is no problem.
    pub(crate) fn of(cause: &CauseShare, kind: Kind) -> Option<Problem> {
        let waits = cause.phase != Phase::Service && cause.phase != Phase::Transfer;
        match cause.doing {
            "client" => Some(Problem::Client),
            "runnable" => Some(Problem::Cpu),
            "running" if waits || cause.for_others => Some(Problem::BusyLoop),
            "running" => Some(Problem::Compute),
            "asleep" if is_in_a_handler(cause, kind) => Some(Problem::Blocking),
            // A process which is idle with a client accepts no other.
            "asleep" if cause.phase == Phase::AcceptQueue && !cause.blocked => {
                Some(Problem::Accept)
            }
            "asleep" => Problem::of_sleep(cause),
            _ => None,
        }
    }

    fn of_sleep(cause: &CauseShare) -> Option<Problem> {
        let call = cause.call.as_deref().unwrap_or_default();
        match cause.label? {
            Label::FileLock => return Some(Problem::FileLock),
            // An idle thread: the one that passes requests on was late, for a reason of its own.
            Label::Futex if cause.phase == Phase::ReceiveQueue => return None,
            Label::Futex => return Some(Problem::Futex),
            Label::SocketSend => return Some(Problem::Client),
            Label::EventWait
            | Label::SocketRecv
            | Label::SocketConnect
            | Label::Pipe
            | Label::Child => return Some(Problem::Elsewhere),
            Label::SocketAccept | Label::Timer | Label::Signal => return None,
            _ => {}
        }
        let reads = matches!(cause.label?, Label::PageIo | Label::Fuse | Label::NetworkFs);
        let in_a_fault = cause.within == Some(Within::PageFault) && call != "a page fault";
        let writes = ["write", "fsync", "fdatasync", "ftruncate", "fallocate"];
        let looks_up = [
            "open", "stat", "access", "readlink", "getdents", "unlink", "rename", "mkdir", "chdir",
        ];
        Some(match call {
            _ if cause.within == Some(Within::AccessTime) => Problem::AccessTime,
            _ if in_a_fault && reads => Problem::MappedRead,
            "flock" | "fcntl" => Problem::FileLock,
            _ if writes.iter().any(|part| call.contains(part)) => {
                match cause.files.iter().any(|file| is_log(&file.path)) {
                    true => Problem::Log,
                    false => Problem::Write,
                }
            }
            _ if looks_up.iter().any(|part| call.contains(part)) => Problem::Lookup,
            _ => Problem::Read,
        })
    }
}

/// Whether a path is that of a log.
pub(crate) fn is_log(path: &str) -> bool {
    path.ends_with("log") || path.contains("/log/")
}

/// A server whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nginx,
    Apache,
    PhpFpm,
    Node,
    Python,
    Other,
}

impl Kind {
    /// By the name of the program.
    pub fn of(name: &str) -> Kind {
        match name {
            "nginx" | "openresty" | "angie" => Kind::Nginx,
            "apache2" | "httpd" => Kind::Apache,
            "node" | "nodejs" => Kind::Node,
            "gunicorn" | "uvicorn" => Kind::Python,
            _ if name.starts_with("php-fpm") => Kind::PhpFpm,
            _ if name.starts_with("python") => Kind::Python,
            _ => Kind::Other,
        }
    }

    /// Whether a process or thread has one client at a time.
    fn has_one_client(self) -> bool {
        matches!(self, Kind::Apache | Kind::PhpFpm)
    }

    /// Whether handlers run in the thread of an event loop.
    fn has_handlers(self) -> bool {
        matches!(self, Kind::Node | Kind::Python)
    }
}

/// Whether code of a handler waits in the thread that should have read the request, or answered it. A
/// timer and a child are waited for on purpose. Other waits differ from those of the loop by where the
/// request is: a loop that is idle reads it at once.
fn is_in_a_handler(cause: &CauseShare, kind: Kind) -> bool {
    match (cause.label, cause.phase) {
        (_, Phase::Transfer) => false,
        (Some(Label::Timer | Label::Child), Phase::AcceptQueue) => !kind.has_one_client(),
        (Some(Label::Timer | Label::Child), _) => true,
        (_, Phase::Service) => false,
        (Some(Label::EventWait | Label::SocketRecv | Label::Pipe), _) => kind.has_handlers(),
        _ => false,
    }
}
