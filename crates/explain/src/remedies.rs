//! What was found and what to change, in words, for each kind of problem.

use headway_base::format::{counted, printable};

use crate::figures::Failure;
use crate::problem::{Kind, Problem, is_log};
use crate::report::CauseShare;
use crate::upstreams::Upstream;

/// What was found: a sentence without its end. `cause` is the largest of its kind.
pub(crate) fn finding(
    problem: Problem,
    server: &str,
    cause: &CauseShare,
    upstream: Option<&Upstream>,
) -> String {
    let server = printable(server);
    let file = match cause.files.first() {
        Some(file) => format!(", {}", printable(&file.path)),
        None => String::new(),
    };
    let call = cause.call.as_deref().unwrap_or("a call");
    match (problem, upstream) {
        (Problem::Lookup, _) => {
            format!("{server} sleeps when it opens files or looks them up ({call}{file})")
        }
        (Problem::Read, _) => format!("{server} sleeps when it reads files ({call}{file})"),
        (Problem::MappedRead, _) => {
            format!("{server} sleeps in page faults of mapped files ({call}{file})")
        }
        (Problem::AccessTime, _) => {
            format!("{server} sleeps when it updates the access times of files ({call}{file})")
        }
        (Problem::Log, _) => format!("{server} sleeps when it writes its log ({call}{file})"),
        (Problem::Write, _) => format!("{server} sleeps when it writes files ({call}{file})"),
        (Problem::FileLock, _) => {
            let holder = match cause.holders.first() {
                Some(holder) => format!(", which {} had", printable(&holder.name)),
                None => String::new(),
            };
            format!("{server} sleeps until it gets the lock of a file ({call}{file}){holder}")
        }
        (Problem::Futex, _) => format!("{server} waits for a lock or a free thread of its own"),
        (Problem::Cpu, _) => format!("{server} waits for a CPU"),
        (Problem::BusyLoop, _) => format!("{server} computes for other requests"),
        (Problem::Compute, _) => format!("{server} computes the responses"),
        (Problem::Accept, _) => {
            format!("{server} has no free process or thread that accepts connections")
        }
        (Problem::Backlog, _) => format!("The accept queue of {server} is full"),
        (Problem::Blocking, _) => {
            format!("A handler of {server} blocks its thread: it sleeps in {call}")
        }
        (Problem::Upstream, Some(upstream)) => format!(
            "{server} waits for {}, which has no free process or thread: up to {} in its accept queue",
            upstream_in_words(upstream),
            counted(upstream.waiting_max, "connection waits", "connections wait"),
        ),
        (Problem::Elsewhere, Some(upstream)) => {
            format!("{server} waits for {}", upstream_in_words(upstream))
        }
        (Problem::Upstream | Problem::Elsewhere, _) => {
            format!("{server} waits for an answer from elsewhere")
        }
        (Problem::Client, _) => "Clients or the network take the responses slowly".to_owned(),
        // Those of calls, see [`finding_of_failure`].
        (Problem::FullDisk | Problem::Descriptors | Problem::Failing, _) => {
            format!("Calls of {server} fail")
        }
    }
}

/// The same of calls that failed.
pub(crate) fn finding_of_failure(problem: Problem, server: &str, failure: &Failure) -> String {
    let server = printable(server);
    let file = failure.file.as_deref();
    let shown = file.map_or_else(String::new, |path| format!(", {}", printable(path)));
    let call = format!("({}{shown}: {})", failure.call, failure.error);
    match problem {
        Problem::FullDisk if file.is_some_and(is_log) => {
            format!("{server} cannot write its log: the file system is full {call}")
        }
        Problem::FullDisk => format!("{server} cannot write: the file system is full {call}"),
        Problem::Descriptors => format!("{server} has no descriptor left {call}"),
        _ => format!("Calls of {server} fail {call}"),
    }
}

fn upstream_in_words(upstream: &Upstream) -> String {
    let address = printable(&upstream.address);
    match &upstream.program {
        Some(program) => format!("its upstream {} at {address}", printable(program)),
        None => format!("its upstream at {address}"),
    }
}

/// What to change.
pub(crate) fn remedy(problem: Problem, kind: Kind) -> &'static str {
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
        (Problem::Lookup, _) => {
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
        (Problem::MappedRead, Kind::Apache) => {
            "allow more threads (`ThreadsPerChild`, `MaxRequestWorkers`): a thread sleeps in each page fault while it sends a \
             mapped file. With `EnableMMAP Off` and `EnableSendfile On` reading takes as long, but a response begins \
             before its whole file is read."
        }
        (Problem::MappedRead, _) => {
            "keep the files in memory, or send them from more threads: a thread sleeps in each page fault while it sends a \
             mapped file."
        }
        (Problem::Read, Kind::Node) => {
            "raise `UV_THREADPOOL_SIZE`, and do not call `fs.readFileSync` in a handler: reading from the disk blocks \
             a thread."
        }
        (Problem::Read, _) => {
            "read files outside the thread that serves other clients, or keep them in memory: it sleeps while the \
             disk works."
        }
        (Problem::AccessTime, _) => {
            "mount the file system with `noatime`: reading a file also writes the time of its access, and that sleeps. With \
             `relatime` this still happens once per day, and after each change of the file."
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
        (Problem::Futex, _) => {
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
        (Problem::Accept, Kind::PhpFpm) => {
            "raise `pm.max_children` of the pool, or make its scripts faster: all children had a request."
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
        (Problem::Upstream, _) => {
            "give the upstream more processes or threads (`pm.max_children` of PHP-FPM), or make each of its requests \
             faster: `headway explain` on it shows what they wait for."
        }
        (Problem::Blocking, Kind::Python) => {
            "run the call in a thread (`await asyncio.to_thread(…)`) or use a library for asyncio: meanwhile the event \
             loop serves no client. `PYTHONASYNCIODEBUG=1` logs which handler it is."
        }
        (Problem::Blocking, Kind::Node) => {
            "use the asynchronous form of the call (`exec` and not `execSync`): meanwhile the event loop serves no client. \
             `node --cpu-prof` shows which handler it is."
        }
        (Problem::Blocking, Kind::Apache | Kind::PhpFpm) => {
            "look for the call in the script, and for what it waits: meanwhile its process serves no other client."
        }
        (Problem::Blocking, _) => {
            "make the call in a thread of its own: meanwhile the thread serves no other client."
        }
        (Problem::FullDisk, Kind::Nginx) => {
            "free space or move the file: for a second after such an error nginx writes no line of this log, so lines \
             are missing."
        }
        (Problem::FullDisk, _) => "free space or move the file: what was to be written is lost.",
        (Problem::Descriptors, Kind::Nginx) => {
            "raise `worker_rlimit_nofile` to at least twice `worker_connections`: without a descriptor nginx accepts \
             no connection for half a second."
        }
        (Problem::Descriptors, _) => {
            "raise the limit of open files (`LimitNOFILE` of the unit, `ulimit -n`): connections wait meanwhile."
        }
        (Problem::Failing, _) => {
            "look at the kernel's messages (`dmesg`) and the server's error log: they have the reason."
        }
        (Problem::Client, _) => {
            "nothing in the server: the client or the network took the response slowly. Smaller responses help."
        }
    }
}
