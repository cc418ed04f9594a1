//! Delays of a known length in servers as they are used: nginx, Apache, lighttpd, Node.js, Python and Go. Each delay has
//! a measure of its own: the clock of the file system, of the scheduler, of the holder of the lock, of the client.
//! `bench/explain-truth` makes a table of what these tests print.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use headway_debox::Label;
use headway_explain::{Keep, ListenQueues, Phase, Report, Server, Target};
use headway_test_support::skip;
use serde_json::Value;

use crate::bed::{Observed, time_of};
use crate::fuse::{LateFilesystem, Operation};
use crate::servers::{Running, apache_event, go, lighttpd, nginx_of, node_of, python_of};

/// Much longer than anything that a busy machine adds.
const DELAY: Duration = Duration::from_millis(300);

/// Requests of each kind.
const REQUESTS: usize = 6;

/// A server that serves the folder of a [`Site`].
struct Subject {
    test: &'static str,
    server: Running,
    kind: Kind,
}

/// How a server works.
#[derive(Clone, Copy)]
struct Kind {
    /// One thread serves all clients, and a client that comes meanwhile waits.
    has_one_thread: bool,
    /// `/lock` waits for the lock of that file.
    can_lock: bool,
    /// At least so much of the waits of all its threads for a CPU are those of requests.
    hog_percent: u64,
}

/// A folder with files that are ready, one that is large, and some that open late.
struct Site {
    folder: tempfile::TempDir,
    late: LateFilesystem,
}

impl Site {
    fn new(test: &str) -> Option<Site> {
        let late = LateFilesystem::mount_for_all()
            .map_err(|error| skip(test, &error))
            .ok()?;
        let folder = tempfile::tempdir().expect("a folder");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), mode).expect("our folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("hot"), "hello").expect("written");
        std::fs::write(path("lock"), "hello").expect("written");
        // More than the buffers of both sockets.
        std::fs::write(path("large"), vec![b'x'; 30_000_000]).expect("written");
        for number in 0..REQUESTS {
            let target = late.path().join(format!("f{number}"));
            std::os::unix::fs::symlink(target, path(&format!("late{number}"))).expect("a link");
        }
        Some(Site { folder, late })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A client that keeps its connection, and how long each of its requests took.
struct Client {
    stream: BufReader<TcpStream>,
    port: u16,
    latencies: Vec<Duration>,
}

impl Client {
    fn new(server: &Running) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).expect("a socket");
        Client {
            port: stream.local_addr().expect("an address").port(),
            stream: BufReader::new(stream),
            latencies: Vec::new(),
        }
    }

    fn ask(&mut self, path: &str) {
        self.ask_and_read_after(path, Duration::ZERO);
    }

    fn ask_and_read_after(&mut self, path: &str, delay: Duration) {
        let (begun, waited_ns) = (Instant::now(), own_wait_ns());
        let request = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
        self.stream
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
        if !delay.is_zero() {
            // The server computes the response first.
            self.stream.fill_buf().expect("the first bytes");
            std::thread::sleep(delay);
        }
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(
                self.stream.read_line(&mut line).expect("a header") > 0,
                "{path}"
            );
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("a body");
        // Without the time in which this thread itself waited for a CPU.
        let own = Duration::from_nanos(own_wait_ns() - waited_ns);
        self.latencies.push(begun.elapsed().saturating_sub(own));
    }
}

/// A request, as `explain` saw it.
#[derive(Clone, Copy)]
struct Seen {
    client_port: u64,
    begun_us: f64,
    length_us: f64,
}

/// What `explain` says of a server while clients ask, each of its requests, and what the clients say.
fn observe<T: Send>(
    subject: &Subject,
    clients: impl FnOnce() -> T + Send,
) -> Option<(Report, Vec<Seen>, T)> {
    let keep = Keep {
        timeline: true,
        ..Keep::default()
    };
    let observed = Observed::of(subject.test, &subject.server, keep, clients)?;
    let timeline = observed.collector.chrome("server").expect("it was kept");
    Some((observed.report, seen_one_by_one(&timeline), observed.answer))
}

/// The requests of the timeline: asynchronous events with the client's port among their arguments.
fn seen_one_by_one(timeline: &str) -> Vec<Seen> {
    let timeline: Value = serde_json::from_str(timeline).expect("JSON");
    let events = timeline["traceEvents"].as_array().expect("a list");
    let time = |event: &Value| event["ts"].as_f64().expect("a time");
    let key = |event: &Value| (event["id"].to_string(), event["name"].to_string());
    let ends: HashMap<(String, String), f64> = (events.iter())
        .filter(|event| event["ph"] == "e")
        .map(|event| (key(event), time(event)))
        .collect();
    let begins = (events.iter()).filter(|event| event["args"]["client_port"].is_number());
    let mut seen: Vec<Seen> = begins
        .map(|begin| Seen {
            client_port: begin["args"]["client_port"].as_u64().expect("a port"),
            begun_us: time(begin),
            length_us: ends[&key(begin)] - time(begin),
        })
        .collect();
    seen.sort_by(|a, b| a.begun_us.total_cmp(&b.begun_us));
    seen
}

/// The times of requests at p50, p95 and p99, as the clients measured them, and the sums of the parts of the same
/// requests: joined by the ports of their connections.
fn joined(seen: &[Seen], clients: &[Client]) -> [(f64, f64); 3] {
    let mut pairs = Vec::new();
    for client in clients {
        let of_client = seen
            .iter()
            .filter(|one| one.client_port == u64::from(client.port));
        let parts: Vec<f64> = of_client.map(|one| one.length_us).collect();
        assert_eq!(parts.len(), client.latencies.len(), "port {}", client.port);
        let measured = client
            .latencies
            .iter()
            .map(|latency| latency.as_secs_f64() * 1e6);
        pairs.extend(measured.zip(parts));
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    [50, 95, 99].map(|percent| pairs[(pairs.len() * percent).div_ceil(100) - 1])
}

impl Subject {
    /// Prints a row of the table and checks it: at least this share of what was injected has to be attributed.
    fn check(
        &self,
        fault: &str,
        report: &Report,
        (injected_ns, attributed_ns, least_percent): (u64, u64, u64),
        joined: Option<[(f64, f64); 3]>,
    ) {
        let ms = |ns: u64| ns as f64 / 1e6;
        let times = joined.map_or_else(String::new, |joined| {
            let both =
                joined.map(|(client, parts)| format!("{:.1}|{:.1}", client / 1e3, parts / 1e3));
            both.join("|")
        });
        println!(
            "TRUTH|{}|{fault}|{}|{:.1}|{:.1}|{times}",
            self.server.program,
            report.requests.answered,
            ms(injected_ns),
            ms(attributed_ns)
        );
        let text = headway_explain::text::render(report, str::to_owned);
        assert!(
            attributed_ns * 100 >= injected_ns * least_percent,
            "{fault}: {attributed_ns} of {injected_ns} ns\n{text}"
        );
        for (client, parts) in joined.into_iter().flatten() {
            assert!(
                (client - parts).abs() <= 0.05 * client,
                "{fault}: {client} and {parts} us\n{text}"
            );
        }
    }

    /// Nothing was delayed, so nothing may be found.
    fn undelayed(&self) -> Option<()> {
        let (report, _, clients) = observe(self, || {
            let mut clients: Vec<Client> = (0..4).map(|_| Client::new(&self.server)).collect();
            for _ in 0..20 {
                clients.iter_mut().for_each(|client| client.ask("hot"));
            }
            clients
        })?;
        assert_eq!(report.requests.answered, 80);
        drop(clients);
        // Threads that hand work to each other wait for each other, for some microseconds. And parts of the program
        // itself may be read from the disk.
        let blocked_ns = time_of(&report, |cause| {
            let is_fault = cause.call.as_deref() == Some("a page fault");
            cause.blocked && cause.label != Some(Label::Futex) && !is_fault
        });
        self.check("nothing", &report, (0, blocked_ns, 0), None);
        let text = headway_explain::text::render(&report, str::to_owned);
        assert!(blocked_ns <= 80 * 100_000, "{blocked_ns} ns\n{text}");
        Some(())
    }

    /// Each file is opened late.
    fn late_files(&self, site: &Site) -> Option<()> {
        let delay_ms = DELAY.as_millis() as u64;
        site.late.schedule(&[(Operation::Open, &[delay_ms])]);
        let (report, seen, client) = observe(self, || {
            let mut client = Client::new(&self.server);
            (0..REQUESTS).for_each(|number| client.ask(&format!("late{number}")));
            client
        })?;
        let answers = site.late.answers();
        site.late.schedule(&[]);
        let injected_ns: u64 = (answers.iter())
            .filter(|answer| answer.operation == Operation::Open)
            .map(|answer| answer.answered_ns.0 - answer.received_ns)
            .sum();
        assert!(
            injected_ns >= DELAY.as_nanos() as u64 * REQUESTS as u64,
            "{answers:?}"
        );
        let attributed_ns = time_of(&report, |cause| {
            cause.blocked && cause.label == Some(Label::Fuse)
        });
        let both = joined(&seen, &[client]);
        self.check(
            "late files",
            &report,
            (injected_ns, attributed_ns, 95),
            Some(both),
        );
        Some(())
    }

    /// A client reads its response late.
    fn slow_client(&self) -> Option<()> {
        let (report, _, ()) = observe(self, || {
            let mut client = Client::new(&self.server);
            client.ask_and_read_after("large", DELAY * 4);
        })?;
        let attributed_ns = time_of(&report, |cause| cause.doing == "client");
        // At the beginning of the client's sleep the server still fills the buffers, which a busy machine makes long.
        let own_ns = time_of(&report, |cause| {
            cause.phase == Phase::Transfer && matches!(cause.doing, "running" | "runnable")
        });
        let injected_ns = ((DELAY * 4).as_nanos() as u64).saturating_sub(own_ns);
        let figures = (injected_ns, attributed_ns, 95);
        self.check("slow client", &report, figures, None);
        Some(())
    }

    /// Another process has the lock of the file.
    fn lock(&self, site: &Site) -> Option<()> {
        let file = File::open(site.path().join("lock")).expect("a file");
        file.lock().expect("nobody else has it");
        let (report, seen, client) = observe(self, || {
            let release = std::thread::spawn(move || {
                std::thread::sleep(DELAY * 3);
                drop(file);
            });
            let mut client = Client::new(&self.server);
            client.ask("lock");
            release.join().expect("it slept");
            client
        })?;
        let attributed_ns = time_of(&report, |cause| cause.label == Some(Label::FileLock));
        // All of the client's time, some of which passed before the call.
        let injected_ns = client.latencies[0].as_nanos() as u64;
        let both = joined(&seen, &[client]);
        self.check(
            "lock",
            &report,
            (injected_ns, attributed_ns, 93),
            Some(both),
        );
        Some(())
    }

    /// A process of real-time priority takes the CPU for a while, again and again. The scheduler says how long the threads
    /// waited.
    fn hog(&self) -> Option<()> {
        let pids = Server::find(&Target::Pid(self.server.pid()))
            .expect("it runs")
            .pids;
        pids.iter().for_each(|pid| pin(*pid));
        let hog = Hog::start();
        let waited_ns = || pids.iter().map(|pid| run_queue_wait_ns(*pid)).sum::<u64>();
        let (report, seen, (client, waited_ns)) = observe(self, || {
            let mut client = Client::new(&self.server);
            client.ask("hot");
            let before_ns = waited_ns();
            let begun = Instant::now();
            while begun.elapsed() < DELAY * 8 {
                client.ask("hot");
                std::thread::sleep(Duration::from_millis(5));
            }
            (client, waited_ns() - before_ns)
        })?;
        drop(hog);
        let attributed_ns = time_of(&report, |cause| cause.doing == "runnable");
        let both = joined(&seen, &[client]);
        // Between two requests a thread may wait, too, and so may threads which no request needs.
        let figures = (waited_ns, attributed_ns, self.kind.hog_percent);
        self.check("CPU", &report, figures, Some([both[2]; 3]));
        Some(())
    }

    /// More clients come than the accept queue has room for, while a file is opened.
    fn full_queue(&self, site: &Site) -> Option<()> {
        site.late
            .schedule(&[(Operation::Open, &[DELAY.as_millis() as u64 * 10])]);
        let queues = ListenQueues::of(self.server.pid());
        let address = SocketAddr::from(([127, 0, 0, 1], self.server.port));
        let (mut report, _, overflows) = observe(self, || {
            let mut first = Client::new(&self.server);
            std::thread::scope(|scope| {
                let first = scope.spawn(move || first.ask("late0"));
                let mut others = Vec::new();
                while queues.overflows() == Some(0) && !first.is_finished() {
                    others.extend(
                        TcpStream::connect_timeout(&address, Duration::from_millis(50)).ok(),
                    );
                }
                first.join().expect("it was answered");
                queues.overflows()
            })
        })?;
        site.late.schedule(&[]);
        report.listen_overflows = overflows;
        report.conclude();
        let is_named = (report.advice.iter()).any(|advice| advice.text.contains("somaxconn"));
        println!(
            "TRUTH|{}|full accept queue|{}|{}|{}|",
            self.server.program,
            report.requests.answered,
            overflows.unwrap_or(0),
            if is_named { "named" } else { "not named" }
        );
        assert!(is_named, "{report:#?}");
        Some(())
    }

    fn all(&self, site: &Site) -> Option<()> {
        self.undelayed()?;
        self.late_files(site)?;
        self.slow_client()?;
        if self.kind.can_lock {
            self.lock(site)?;
        }
        if self.kind.has_one_thread {
            self.full_queue(site)?;
        }
        self.hog()
    }
}

/// Takes CPU 0 four tenths of the time, before every other program.
struct Hog(Child);

impl Hog {
    fn start() -> Hog {
        // What ends it has the higher priority.
        let script =
            "while :; do timeout 0.08 chrt -f 1 sh -c 'while :; do :; done'; sleep 0.12; done";
        let child = Command::new("chrt")
            .args(["-f", "2", "taskset", "-c", "0", "sh", "-c", script])
            .process_group(0)
            .spawn();
        Hog(child.expect("chrt of util-linux"))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Keeps all threads of a process on CPU 0.
fn pin(pid: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    for tid in threads(pid) {
        let tid = rustix::process::Pid::from_raw(tid as i32);
        // It may have ended.
        let _ = rustix::thread::sched_setaffinity(tid, &set);
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let names = entries.into_iter().flatten().filter_map(Result::ok);
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// How long the threads of a process have waited for a CPU.
fn run_queue_wait_ns(pid: u32) -> u64 {
    let of_thread = |tid: u32| wait_ns(&format!("/proc/{pid}/task/{tid}/schedstat"));
    threads(pid).into_iter().filter_map(of_thread).sum()
}

/// How long the calling thread has waited for a CPU.
fn own_wait_ns() -> u64 {
    wait_ns("/proc/thread-self/schedstat").expect("figures of the scheduler")
}

/// The second figure of schedstat (Documentation/scheduler/sched-stats.rst).
fn wait_ns(path: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

/// Starts a server that serves a folder, and injects all delays.
fn truth_of(
    test: &'static str,
    start: impl FnOnce(&str, &Path) -> Option<Running>,
    (has_one_thread, can_lock, hog_percent): (bool, bool, u64),
) {
    let Some(site) = Site::new(test) else { return };
    let Some(server) = start(test, site.path()) else {
        return;
    };
    let kind = Kind {
        has_one_thread,
        can_lock,
        hog_percent,
    };
    let subject = Subject { test, server, kind };
    let _ = subject.all(&site);
}

/// Needs: the program nginx: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn truth_of_nginx() {
    truth_of("truth_of_nginx", nginx_of, (true, false, 70));
}

/// Needs: the program apache2: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn truth_of_apache_event() {
    truth_of("truth_of_apache_event", apache_event, (false, false, 70));
}

/// Needs: the program lighttpd: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn truth_of_lighttpd() {
    truth_of("truth_of_lighttpd", lighttpd, (true, false, 70));
}

/// Needs: the program node; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn truth_of_node() {
    truth_of("truth_of_node", node_of, (true, false, 70));
}

/// Needs: the program python3: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn truth_of_python() {
    truth_of("truth_of_python", python_of, (true, true, 70));
}

/// Needs: the program go; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn truth_of_go() {
    truth_of("truth_of_go", go, (false, true, 0));
}
