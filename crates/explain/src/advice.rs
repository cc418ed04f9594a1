//! What to change, by the causes that were found. Each piece of advice says by what evidence.

use headway_base::format::{counted, percent, time_ns};
use headway_debox::Label;
use serde::Serialize;

use crate::parts::Phase;
use crate::report::{CauseShare, Report};

/// A kind of causes needs this share, at the p99 or of all, before anything is said.
const SHARE_MIN: f64 = 0.1;
/// If 99 % of the requests are answered sooner, nothing is worth a change.
const FAST_US: f64 = 1000.0;

/// What to change, and why that would help.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What the requests suffered from.
    pub problem: Problem,
    /// What to change.
    pub text: String,
    /// The figures behind it.
    pub evidence: String,
    /// The share of the p99 that it could shorten.
    pub share_p99: f64,
}

/// A kind of causes with the same remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Problem {
    /// Names of files are looked up or files opened.
    Lookup,
    /// Contents of files are read.
    Read,
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
    /// The answer comes from another process, machine or thread.
    Elsewhere,
    /// The client or the network.
    Client,
}

impl Problem {
    fn of(cause: &CauseShare) -> Option<Problem> {
        let waits = cause.phase != Phase::Service && cause.phase != Phase::Transfer;
        match cause.doing {
            "client" => Some(Problem::Client),
            "runnable" => Some(Problem::Cpu),
            "running" if waits || cause.for_others => Some(Problem::BusyLoop),
            "running" => Some(Problem::Compute),
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
        let is_log = |path: &str| path.ends_with("log") || path.contains("/log/");
        let writes = ["write", "fsync", "fdatasync", "ftruncate", "fallocate"];
        let looks_up = [
            "open", "stat", "access", "readlink", "getdents", "unlink", "rename", "mkdir", "chdir",
        ];
        Some(match call {
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

/// A server whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nginx,
    Apache,
    Node,
    Other,
}

impl Kind {
    fn of(name: &str) -> Kind {
        match name {
            "nginx" | "openresty" | "angie" => Kind::Nginx,
            "apache2" | "httpd" => Kind::Apache,
            "node" | "nodejs" => Kind::Node,
            _ => Kind::Other,
        }
    }
}

/// Whether the requests were answered so soon that nothing is worth a change.
pub(crate) fn is_fast(report: &Report) -> bool {
    report.latency.p99_us < FAST_US
}

/// What to change, the most important first.
pub fn advice(report: &Report) -> Vec<Advice> {
    let kind = Kind::of(&report.server);
    let mut problems: Vec<(Problem, Vec<&CauseShare>)> = Vec::new();
    for cause in &report.causes {
        let Some(problem) = Problem::of(cause) else {
            continue;
        };
        match problems.iter_mut().find(|(known, _)| *known == problem) {
            Some((_, causes)) => causes.push(cause),
            None => problems.push((problem, vec![cause])),
        }
    }
    let mut all: Vec<Advice> = problems
        .into_iter()
        .filter(|_| !is_fast(report))
        .filter_map(|(problem, causes)| one(problem, &causes, kind))
        .collect();
    all.sort_by(|a, b| b.share_p99.total_cmp(&a.share_p99));
    let overflows = report.listen_overflows.filter(|overflows| *overflows > 0);
    if let Some(overflows) = overflows {
        let connections = counted(overflows, "connection was", "connections were");
        all.push(Advice {
            problem: Problem::Backlog,
            text: remedy(Problem::Backlog, kind).to_owned(),
            evidence: format!("{connections} not accepted because the accept queue was full"),
            share_p99: 0.0,
        });
    }
    all
}

fn one(problem: Problem, causes: &[&CauseShare], kind: Kind) -> Option<Advice> {
    let share_p99: f64 = causes.iter().map(|cause| cause.share.p99).sum();
    let share_all: f64 = causes.iter().map(|cause| cause.share.all).sum();
    if share_p99.max(share_all) < SHARE_MIN {
        return None;
    }
    let total_ns: u64 = causes.iter().map(|cause| cause.total_ns).sum();
    let requests: u64 = causes.iter().map(|cause| cause.requests).max().unwrap_or(0);
    let round = |share: f64| percent((share * 100.0).round() / 100.0);
    Some(Advice {
        problem,
        text: remedy(problem, kind).to_owned(),
        evidence: format!(
            "{} of the time at the p99, {} of all; {} in {}",
            round(share_p99),
            round(share_all),
            time_ns(total_ns as f64),
            counted(requests, "request", "requests")
        ),
        share_p99,
    })
}

/// What to change.
fn remedy(problem: Problem, kind: Kind) -> &'static str {
    match (problem, kind) {
        (Problem::Lookup, Kind::Nginx) => {
            "set `open_file_cache max=10000 inactive=60s` and `open_file_cache_errors on`: opening a file and looking \
             it up block the worker, which `aio threads` does not change."
        }
        (Problem::Lookup, Kind::Apache) => {
            "allow more threads (`ThreadsPerChild`, `MaxRequestWorkers`), set `AllowOverride None`, and avoid \
             `Options SymLinksIfOwnerMatch`: each makes lookups of names which block a thread."
        }
        (Problem::Lookup, Kind::Node) => {
            "raise `UV_THREADPOOL_SIZE`, do not call functions such as `fs.statSync` in a handler, and cache what was \
             looked up."
        }
        (Problem::Lookup, Kind::Other) => {
            "keep files open, or look them up outside the thread that serves other clients: names are looked up on a \
             slow file system."
        }
        (Problem::Read, Kind::Nginx) => {
            "set `aio threads` (with `sendfile on` and `sendfile_max_chunk 256k`): the worker sleeps while a file is \
             read from the disk. More memory or `worker_processes` help less."
        }
        (Problem::Read, Kind::Apache) => {
            "allow more threads (`ThreadsPerChild`, `MaxRequestWorkers`) or keep the files in memory: a thread sleeps \
             while its file is read from the disk."
        }
        (Problem::Read, Kind::Node) => {
            "raise `UV_THREADPOOL_SIZE`, and do not call `fs.readFileSync` in a handler: reading from the disk blocks \
             a thread."
        }
        (Problem::Read, Kind::Other) => {
            "read files outside the thread that serves other clients, or keep them in memory: it sleeps while the \
             disk works."
        }
        (Problem::Log, Kind::Nginx) => {
            "set `access_log PATH FORMAT buffer=64k flush=1s`, or move the log to another disk: the worker sleeps when \
             it writes its log."
        }
        (Problem::Log, Kind::Apache) => {
            "set `BufferedLogs On`, or move the log to another disk: a process sleeps when it writes its log."
        }
        (Problem::Log, _) => {
            "buffer the log, write it from another thread, or move it to another disk: the server sleeps when it \
             writes its log."
        }
        (Problem::Write, Kind::Nginx) => {
            "put `client_body_temp_path` and `proxy_temp_path` on a faster disk, or set `aio_write on`: the worker \
             sleeps when it writes a file."
        }
        (Problem::Write, _) => {
            "write files from another thread or to a faster disk: the server sleeps when it writes."
        }
        (Problem::FileLock, Kind::Apache) => {
            "choose another `Mutex` mechanism, or find the holder of the file lock with `lslocks`."
        }
        (Problem::FileLock, _) => {
            "find the holder of the file lock with `lslocks`: the server waits for it."
        }
        (Problem::Futex, Kind::Nginx) => {
            "raise the size of `thread_pool`: the thread waited for another thread of the process."
        }
        (Problem::Futex, Kind::Apache) => {
            "raise `ThreadsPerChild` and `MaxRequestWorkers`: a thread waited for another one of its process."
        }
        (Problem::Futex, Kind::Node) => {
            "raise `UV_THREADPOOL_SIZE`: a thread waited for another one of the process."
        }
        (Problem::Futex, Kind::Other) => {
            "look for a contended lock or too few threads: a thread waited for another one of its process."
        }
        (Problem::Cpu, Kind::Nginx) => {
            "give it CPUs: move other programs away, check the CPU quota (`cpu.stat` of its control group), and set \
             `worker_processes auto` with `worker_cpu_affinity auto`."
        }
        (Problem::Cpu, _) => {
            "give it CPUs: move other programs away, and check the CPU quota (`cpu.stat` of its control group)."
        }
        (Problem::BusyLoop, Kind::Nginx) => {
            "raise `worker_processes` if CPUs are idle, set `listen … reuseport` if one worker has most connections, \
             and lower `gzip_comp_level`: the worker computed for other requests."
        }
        (Problem::BusyLoop, Kind::Node) => {
            "move computing out of handlers (`worker_threads`) or run a process per CPU (`cluster`): the event loop \
             computed for other requests."
        }
        (Problem::BusyLoop, _) => {
            "use more threads or processes if CPUs are idle, or compute less in each: it computed for other requests."
        }
        (Problem::Compute, _) => {
            "make the handler compute less: `perf record -p PID` shows where. The server itself computed the answer."
        }
        (Problem::Accept, Kind::Apache) => {
            "raise `MaxRequestWorkers` (and `ServerLimit`), lower `KeepAliveTimeout`, or use the event MPM: all \
             processes had a client."
        }
        (Problem::Accept, Kind::Nginx) => {
            "set `multi_accept on` or `listen … reuseport`, and look below for what kept the worker from accepting."
        }
        (Problem::Accept, _) => {
            "use more processes or threads, or accept in a thread of its own: the accepting thread was busy."
        }
        (Problem::Backlog, Kind::Nginx) => {
            "raise `listen … backlog=4096` and `net.core.somaxconn`: clients repeat a rejected connection after a \
             second."
        }
        (Problem::Backlog, Kind::Apache) => {
            "raise `ListenBackLog` and `net.core.somaxconn`: clients repeat a rejected connection after a second."
        }
        (Problem::Backlog, _) => {
            "raise the backlog of listen(2) and `net.core.somaxconn`: clients repeat a rejected connection after a \
             second."
        }
        (Problem::Elsewhere, Kind::Nginx) => {
            "look at the upstream (`$upstream_response_time` in the log), and run `headway explain` on it: the worker \
             waited for an answer from elsewhere."
        }
        (Problem::Elsewhere, _) => {
            "look at what it asks (a database, an upstream, a thread pool, a timer), and run `headway explain` on \
             that: it waited for an answer from elsewhere."
        }
        (Problem::Client, _) => {
            "nothing in the server: the client or the network took the response slowly. Smaller responses help."
        }
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;

    use super::{FAST_US, Problem, advice};
    use crate::parts::Phase;
    use crate::report::{CauseShare, FileShare, Latency, Report, Shares};

    fn cause(phase: Phase, doing: &'static str, call: &str, label: Label) -> CauseShare {
        CauseShare {
            phase,
            doing,
            call: Some(call.to_owned()),
            label: Some(label),
            share: Shares {
                p99: 0.5,
                ..Shares::default()
            },
            ..CauseShare::default()
        }
    }

    fn slow() -> Latency {
        Latency {
            p99_us: FAST_US,
            ..Latency::default()
        }
    }

    fn first(server: &str, cause: CauseShare) -> (Problem, String) {
        let report = Report {
            server: server.to_owned(),
            causes: vec![cause],
            latency: slow(),
            ..Report::default()
        };
        let advice = advice(&report);
        (advice[0].problem, advice[0].text.clone())
    }

    #[test]
    fn advice_names_the_setting_of_the_server() {
        let open = cause(Phase::ReceiveQueue, "asleep", "openat", Label::Other);
        let (problem, text) = first("nginx", open);
        assert_eq!(problem, Problem::Lookup);
        assert!(text.contains("open_file_cache"), "{text}");
        let accept = cause(Phase::AcceptQueue, "asleep", "poll", Label::EventWait);
        let (problem, text) = first("apache2", accept);
        assert_eq!(problem, Problem::Accept);
        assert!(text.contains("MaxRequestWorkers"), "{text}");
    }

    #[test]
    fn kinds_of_sleeps_are_told_apart() {
        let problem = |call, label| {
            Problem::of(&cause(Phase::Service, "asleep", call, label)).expect("a problem")
        };
        assert_eq!(problem("sendfile", Label::PageIo), Problem::Read);
        assert_eq!(problem("a page fault", Label::PageIo), Problem::Read);
        assert_eq!(problem("newfstatat", Label::BufferIo), Problem::Lookup);
        assert_eq!(problem("pwrite64", Label::InodeLock), Problem::Write);
        assert_eq!(problem("flock", Label::FileLock), Problem::FileLock);
        assert_eq!(problem("epoll_wait", Label::EventWait), Problem::Elsewhere);
        assert_eq!(problem("futex", Label::Futex), Problem::Futex);
        let idle = cause(Phase::ReceiveQueue, "asleep", "futex", Label::Futex);
        assert_eq!(Problem::of(&idle), None);
        let mut log = cause(Phase::Service, "asleep", "write", Label::DirtyThrottle);
        log.files.push(FileShare {
            path: "/var/log/nginx/access.log".to_owned(),
            total_ns: 1,
        });
        assert_eq!(Problem::of(&log), Some(Problem::Log));
    }

    #[test]
    fn small_shares_need_no_advice_but_overflows_do() {
        let mut small = cause(Phase::Service, "running", "", Label::Other);
        small.share.p99 = 0.05;
        let mut report = Report {
            causes: vec![small],
            latency: slow(),
            ..Report::default()
        };
        assert!(advice(&report).is_empty());
        report.causes[0].share.p99 = 0.5;
        assert_eq!(advice(&report).len(), 1);
        report.latency.p99_us = FAST_US - 1.0;
        assert!(advice(&report).is_empty());
        report.listen_overflows = Some(3);
        assert_eq!(advice(&report)[0].problem, Problem::Backlog);
    }
}
