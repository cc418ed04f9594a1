//! What the tests share: a server that does what it is asked, clients with a clock, and what
//! `explain` says of both.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headway_debox_bpf::{AttachError, RequestLimits, RequestObserver};
use headway_explain::{CauseShare, Collector, Keep, Report, Server, Target, Upstreams};
use headway_os::ticks::monotonic_ns;
use headway_test_support::skip;

use crate::fuse::LateFilesystem;
use crate::servers::Running;

/// A server under observation.
pub struct Bed {
    /// It ends with this, if it is the bed's.
    child: Option<Child>,
    pub port: u16,
    observer: RequestObserver,
    connections_max: u32,
    collector: Collector,
    _folder: Option<tempfile::TempDir>,
}

impl Bed {
    /// `tests/bed/server.c` of a kind; `None` after saying what this machine lacks.
    pub fn start(test: &str, kind: &str) -> Option<Bed> {
        let (child, port, folder) = Bed::server(kind);
        Bed::of(test, child, port, folder)
    }

    /// The server, of a kind and perhaps with a backlog; its port, and the folder of its program.
    pub fn server(kind: &str) -> (Child, u16, tempfile::TempDir) {
        Bed::compiled("server.c", &[], kind)
    }

    /// A server of this source, compiled with these options.
    pub fn compiled(source: &str, options: &[&str], kind: &str) -> (Child, u16, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("bed-server");
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bed/");
        let output = Command::new("cc")
            .args(["-O1", "-pthread"])
            .args(options)
            .arg(format!("{sources}{source}"))
            .arg("-o")
            .arg(&program)
            .output()
            .expect("a C compiler, which linking this test needed as well");
        assert!(output.status.success(), "{output:?}");
        let mut child = Command::new(&program)
            .args(kind.split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program that was just compiled");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut line).expect("its port");
        // One that cannot serve prints why.
        let port = line.trim().parse().unwrap_or(0);
        (child, port, folder)
    }

    /// A server that has been started.
    pub fn of(test: &str, child: Child, port: u16, folder: tempfile::TempDir) -> Option<Bed> {
        let target = Target::Pid(child.id());
        let server = (Some(child), port, Some(folder));
        Bed::of_target(test, &target, RequestLimits::default(), server)
    }

    /// The same, found in another way or with other limits.
    pub fn of_target(
        test: &str,
        target: &Target,
        limits: RequestLimits,
        (mut child, port, folder): (Option<Child>, u16, Option<tempfile::TempDir>),
    ) -> Option<Bed> {
        let limits = RequestLimits {
            heads: true,
            ..limits
        };
        let server = Server::find(target).expect("it runs");
        let listens = match port {
            0 => !server.sockets.is_empty(),
            port => server.ports.iter().any(|known| known.port == port),
        };
        assert!(listens, "{server:?}");
        let observer = match server.observe(&limits) {
            Ok(observer) => observer,
            Err(error) => {
                if let Some(child) = &mut child {
                    child.kill().expect("our child");
                    child.wait().expect("our child");
                }
                assert!(is_unsupported(&error), "{error}");
                skip(test, &error.to_string());
                return None;
            }
        };
        assert_eq!(observer.visibility().missing, Vec::<String>::new());
        Some(Bed {
            child,
            port,
            observer,
            connections_max: limits.connections_max,
            collector: Collector::default(),
            _folder: folder,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the bed's own server").id()
    }

    /// The processes of the server.
    pub fn processes(&self) -> Vec<u32> {
        self.observer.processes()
    }

    /// Observes one in 2^`halvings` connections from now on.
    pub fn sample(&mut self, halvings: u32) {
        self.observer.sample(halvings).expect("a map");
    }

    /// Sees when connections are accepted, or not.
    pub fn see_calls(&mut self, on: bool) {
        self.observer.see_calls(on).expect("the kernel's part");
    }

    /// Takes what was seen up to now, lest it become too much.
    pub fn poll(&mut self) {
        self.observer.poll(|event| self.collector.take(event));
        self.collector.settle(&mut self.observer);
    }

    /// Requests without an answer.
    pub fn waiting(&self) -> u64 {
        self.observer.waiting().expect("a map").0
    }

    /// Connections which have not ended.
    pub fn connections(&self) -> usize {
        self.observer.open_connections().expect("a map")
    }

    pub fn connect(&self) -> Client {
        Client::new(self.port)
    }

    /// What was seen, after the clients have closed.
    pub fn report(self) -> Report {
        let report = self.partial_report();
        assert_eq!(report.lost_events, 0, "{:?}", report.missing);
        report
    }

    /// The same, if events may be lost.
    pub fn partial_report(mut self) -> Report {
        let open = self.observer.open_responses().expect("a map");
        self.poll();
        let now_ns = monotonic_ns();
        (self.collector).sweep(&open, now_ns, true, &mut self.observer);
        let mut report = Report::of(&self.collector);
        report.lose(&self.observer.lost(), self.connections_max);
        report.server = "bed-server".to_owned();
        report.conclude();
        report
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Not SIGKILL, which would leave the workers of nginx behind.
        if let Some(child) = &mut self.child {
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}

/// What `explain` says of a server while clients ask.
pub struct Observed<T> {
    pub report: Report,
    pub collector: Collector,
    /// Of the clients.
    pub answer: T,
}

impl<T: Send> Observed<T> {
    /// `None` after saying what this machine lacks.
    pub fn of(
        test: &str,
        server: &Running,
        keep: Keep,
        clients: impl FnOnce() -> T + Send,
    ) -> Option<Observed<T>> {
        let target = Server::find(&Target::Pid(server.pid())).expect("it runs");
        let limits = RequestLimits::default();
        let mut observer = match target.observe(&limits) {
            Ok(observer) => observer,
            Err(error) => {
                assert!(is_unsupported(&error), "{error}");
                skip(test, &error.to_string());
                return None;
            }
        };
        let begun = Instant::now();
        let (mut collector, mut upstreams) = (Collector::new(keep), Upstreams::default());
        let answer = std::thread::scope(|scope| {
            let clients = scope.spawn(clients);
            while !clients.is_finished() {
                observer.poll(|event| collector.take(event));
                collector.settle(&mut observer);
                if upstreams.is_due() {
                    upstreams.look(&observer.processes(), &observer.ports());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            clients.join().expect("the clients")
        });
        let open = observer.open_responses().expect("a map");
        observer.poll(|event| collector.take(event));
        collector.settle(&mut observer);
        collector.sweep(&open, monotonic_ns(), true, &mut observer);
        let mut report = Report::of(&collector);
        report.server = target.name;
        report.duration_s = begun.elapsed().as_secs_f64();
        report.pids = observer.processes();
        report.ports = observer.ports();
        report.upstreams = upstreams.found();
        report.failures = collector.failures(&observer.failures());
        report.lose(&observer.lost(), limits.connections_max);
        report.conclude();
        Some(Observed {
            report,
            collector,
            answer,
        })
    }
}

/// Files that are late for programs of this user.
pub fn late_or_skip(test: &str) -> Option<LateFilesystem> {
    LateFilesystem::mount(Vec::new())
        .map_err(|error| skip(test, &error))
        .ok()
}

/// Whether the machine lacks something.
fn is_unsupported(error: &AttachError) -> bool {
    match error {
        AttachError::NotBuilt { why } => !why.contains("could not compile"),
        AttachError::Tracepoint { why, .. } => !why.contains("refused"),
        AttachError::NotPermitted { .. }
        | AttachError::NoBtf { .. }
        | AttachError::Namespace { .. } => true,
        _ => false,
    }
}

/// A client which measures its requests.
pub struct Client<S = TcpStream> {
    stream: S,
    pub latency: Duration,
}

impl Client {
    pub fn new(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).expect("a socket");
        Client::of(stream)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn of(stream: S) -> Client<S> {
        Client {
            stream,
            latency: Duration::ZERO,
        }
    }

    /// Asks for something and waits for the answer, whose last line it returns.
    pub fn ask(&mut self, line: &str) -> String {
        let begun = Instant::now();
        // In one piece, since the server takes what it gets for a whole line.
        let line = format!("{line}\n");
        self.stream.write_all(line.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        let mut reader = BufReader::new(&mut self.stream);
        reader.read_until(b'\n', &mut answer).expect("an answer");
        self.latency += begun.elapsed();
        let text = String::from_utf8_lossy(&answer);
        let text = text.trim_matches('\0').trim().to_owned();
        assert!(!text.is_empty() && text != "error", "{line}: {text}");
        text
    }
}

/// The time of causes which are as wanted, in nanoseconds.
pub fn time_of(report: &Report, wanted: impl Fn(&CauseShare) -> bool) -> u64 {
    let causes = report.causes.iter().filter(|cause| wanted(cause));
    causes.map(|cause| cause.total_ns).sum()
}

/// Whether a time is the injected delay, of which at least 95 % are required.
#[track_caller]
pub fn assert_attributed(attributed_ns: u64, injected: Duration, report: &Report) {
    let injected_ns = injected.as_nanos() as u64;
    assert!(
        attributed_ns * 100 >= injected_ns * 95,
        "{attributed_ns} of {injected_ns} ns\n{}",
        headway_explain::text::render(report, str::to_owned)
    );
}

/// Whether the parts of all requests add up to what the clients measured.
#[track_caller]
pub fn assert_adds_up<S>(report: &Report, clients: &[&Client<S>]) {
    let measured_ns: u128 = clients.iter().map(|client| client.latency.as_nanos()).sum();
    let parts_ns: u64 = report.causes.iter().map(|cause| cause.total_ns).sum();
    let difference_ns = measured_ns.abs_diff(u128::from(parts_ns));
    assert!(
        difference_ns * 20 <= measured_ns,
        "parts {parts_ns} ns, measured {measured_ns} ns\n{}",
        headway_explain::text::render(report, str::to_owned)
    );
}
