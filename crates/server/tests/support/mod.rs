//! Runs a worker in a thread of the test, with the test as its master: real sockets, real files and
//! real helpers (in threads), so that the test can talk to it and read its counters.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_control::{Control, Drain, FromWorker, StartDescriptor, ToWorker};
use headway_embedded::Applications;
use headway_server::Extensions;
use headway_server::config::{Config, Environment, Settings, TlsConfig};
use headway_server::metrics::Snapshot;
use headway_server::research::RESEARCH;
use headway_server::worker_main;

/// How long a test waits before it fails because nothing arrived.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// The applications of this test program, if it has any.
pub static APPLICATIONS: OnceLock<Applications> = OnceLock::new();

/// What the servers of this test program contain.
fn extensions() -> Extensions {
    Extensions {
        applications: APPLICATIONS.get().unwrap_or(&Applications::NONE),
        research: Some(&RESEARCH),
    }
}

/// A configuration that serves `root`, with additional lines of TOML in `more`.
pub fn config(root: &Path, more: &str) -> Config {
    let text = format!(
        "root = {:?}\nlisten = \"127.0.0.1:0\"\nworkers = 1\n{more}",
        root.display()
    );
    let path = Path::new("test.toml");
    let settings = Settings::from_toml_with(&text, path, extensions().known()).expect("settings");
    let environment = Environment {
        extensions: extensions().known(),
        ..Environment::detect()
    };
    let checked = Config::check(&settings, None, &environment);
    checked
        .unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
        .config
}

/// The helpers that a worker has received.
#[derive(Default)]
struct Helpers {
    /// A second descriptor of each helper's socket, to close it with.
    sockets: Vec<OwnedFd>,
    /// Helpers that are attached but do not work, as if they waited for a disk.
    held: Vec<OwnedFd>,
    holding: bool,
}

/// A running worker.
pub struct Served {
    pub address: SocketAddr,
    /// Where it speaks TLS, if it does.
    pub tls_address: Option<SocketAddr>,
    control: Arc<Control>,
    helpers: Arc<Mutex<Helpers>>,
    snapshots: Receiver<Snapshot>,
    threads: Vec<JoinHandle<()>>,
    next: u64,
}

impl Served {
    /// Starts a worker with this configuration on a free port.
    pub fn start(config: Config) -> Served {
        Served::start_with(config, Helpers::default(), &[], |_| ()).0
    }

    /// Starts a worker that finds connections in its accept queue and `orders` from its master.
    pub fn start_late<T>(
        config: Config,
        orders: &[ToWorker],
        clients: impl FnOnce(SocketAddr) -> T,
    ) -> (Served, T) {
        Served::start_with(config, Helpers::default(), orders, clients)
    }

    /// Starts a worker whose helpers accept jobs and do nothing until [`Served::release_helpers`].
    pub fn start_holding_helpers(config: Config) -> Served {
        let holding = Helpers {
            holding: true,
            ..Helpers::default()
        };
        Served::start_with(config, holding, &[], |_| ()).0
    }

    fn start_with<T>(
        config: Config,
        helpers: Helpers,
        orders: &[ToWorker],
        clients: impl FnOnce(SocketAddr) -> T,
    ) -> (Served, T) {
        let handshakes = config.tls.as_ref().map(handshake_settings);
        let listener = listen(&config);
        let secure = handshakes.is_some().then(|| listen(&config));
        let address = listener.local_addr().expect("local_addr");
        let tls_address = (secure.as_ref()).map(|secure| secure.local_addr().expect("local_addr"));
        let (ours, theirs) = Control::pair().expect("control pair");
        let mut descriptors = vec![StartDescriptor::Listener];
        descriptors.extend(secure.as_ref().map(|_| StartDescriptor::TlsListener));
        let start = ToWorker::Start {
            worker: 0,
            listeners: vec![0, 1],
            config: Box::new(config),
            descriptors,
        };
        let listeners = [Some(&listener), secure.as_ref()];
        let listeners: Vec<_> = listeners.into_iter().flatten().map(AsFd::as_fd).collect();
        ours.send(&start, &listeners).expect("start order");
        if let Some(settings) = handshakes {
            let socket = start_handshakes(settings);
            ours.send(&ToWorker::Handshakes, &[socket.as_fd()])
                .expect("the handshake process");
        }
        for order in orders {
            ours.send(order, &[]).expect("order");
        }
        let clients = clients(address);
        let worker = std::thread::spawn(move || {
            worker_main(theirs, extensions()).expect("the worker serves")
        });
        let (control, helpers) = (Arc::new(ours), Arc::new(Mutex::new(helpers)));
        let (sender, snapshots) = channel();
        let master = {
            let (control, helpers) = (control.clone(), helpers.clone());
            std::thread::spawn(move || play_master(&control, &helpers, &sender))
        };
        let served = Served {
            address,
            tls_address,
            control,
            helpers,
            snapshots,
            threads: vec![worker, master],
            next: 0,
        };
        (served, clients)
    }

    /// Connects a client.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connect");
        stream
            .set_read_timeout(Some(TIMEOUT))
            .expect("set_read_timeout");
        stream
    }

    /// Sends `bytes`, ends the sending side, and reads until the server closes.
    pub fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("send");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("receive");
        response
    }

    /// `GET path` on a connection of its own.
    pub fn get(&self, path: &str) -> Response {
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("send");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("receive");
        Response::parse(&response)
    }

    /// Sends the worker an order of its master.
    pub fn order(&self, order: &ToWorker) {
        self.control.send(order, &[]).expect("order");
    }

    /// Replaces the handshake process: the test acts as it.
    pub fn take_handshakes(&mut self) -> OwnedFd {
        let pair = headway_os::fd_passing::pair().expect("a pair");
        self.take_handshakes_by(pair)
    }

    /// The same with this pair of sockets.
    pub fn take_handshakes_by(&mut self, (ours, theirs): (OwnedFd, OwnedFd)) -> OwnedFd {
        self.control
            .send(&ToWorker::Handshakes, &[ours.as_fd()])
            .expect("order");
        // Its answer comes after that.
        self.snapshot();
        theirs
    }

    /// Asks the worker for a snapshot.
    pub fn snapshot(&mut self) -> Snapshot {
        self.next += 1;
        self.control
            .send(&ToWorker::Snapshot { id: self.next }, &[])
            .expect("ask");
        self.snapshots.recv_timeout(TIMEOUT).expect("a snapshot")
    }

    /// Waits until the worker's counters meet a condition, and returns them.
    pub fn wait_for(&mut self, what: &str, met: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let begun = Instant::now();
        loop {
            let snapshot = self.snapshot();
            if met(&snapshot) {
                return snapshot;
            }
            if begun.elapsed() > TIMEOUT {
                let counted = snapshot.counters.series().into_iter();
                let counted = counted.filter(|one| one.value > 0);
                let counted: Vec<_> = counted.map(|one| (one.key, one.value)).collect();
                panic!("{what} did not happen: {counted:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets the stopped helpers work, and later ones too.
    pub fn release_helpers(&self) {
        let mut helpers = self.helpers.lock().expect("helpers");
        helpers.holding = false;
        helpers.held.drain(..).for_each(run_helper);
    }

    /// Takes over a helper's socket with the jobs that the worker has sent: the test acts as the
    /// helper now.
    pub fn take_helper(&self) -> OwnedFd {
        let mut helpers = self.helpers.lock().expect("helpers");
        helpers.held.pop().expect("a helper that is held")
    }

    /// Ends every helper as SIGKILL would: its socket closes at once. Returns their number.
    pub fn kill_helpers(&self) -> usize {
        let mut helpers = self.helpers.lock().expect("helpers");
        helpers.held.clear();
        let killed = helpers.sockets.drain(..).map(|socket| {
            // It fails only if the worker has already detached the helper.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        });
        killed.count()
    }

    /// Stops the worker and waits until it has ended.
    pub fn drain(mut self) {
        self.control
            .send(&ToWorker::Drain(Drain::within(5_000)), &[])
            .expect("drain");
        for thread in self.threads.drain(..) {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.control.send(&ToWorker::Drain(Drain::within(0)), &[]);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "a server thread panicked"
            );
        }
    }
}

fn listen(config: &Config) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    // The standard library does not document the backlog that it requests.
    rustix::net::listen(&listener, config.backlog as i32).expect("listen");
    listener.set_nonblocking(true).expect("set_nonblocking");
    listener
}

fn handshake_settings(tls: &TlsConfig) -> headway_tls::Settings {
    let read = |path: &Path| std::fs::read(path).expect("a certificate and its key");
    let identities = tls.identities.iter().map(|files| headway_tls::Identity {
        certificate: read(&files.certificate),
        key: read(&files.key),
    });
    headway_tls::Settings {
        identities: identities.collect(),
        only_13: tls.only_13,
        suites: Vec::new(),
        protocols: vec![b"http/1.1".to_vec()],
        client_authorities: Vec::new(),
        client_may_be_unknown: false,
    }
}

/// Does handshakes in a thread, and returns the worker's end.
fn start_handshakes(settings: headway_tls::Settings) -> OwnedFd {
    let (ours, theirs) = headway_os::fd_passing::pair().expect("a pair");
    let tickets = headway_tls::TicketSecret::random();
    let sealed = [
        headway_tls::process::sealed(&settings).expect("a memfd"),
        headway_tls::process::sealed(&tickets).expect("a memfd"),
    ];
    headway_tls::process::start(&ours, &sealed).expect("the first message");
    std::thread::spawn(move || headway_tls::process::handshake_main(theirs));
    ours
}

/// Gives the worker the helpers it requests, and passes its snapshots on.
fn play_master(control: &Control, helpers: &Mutex<Helpers>, snapshots: &Sender<Snapshot>) {
    while let Ok(Some((message, _))) = control.receive::<FromWorker>() {
        match message {
            FromWorker::WantHelpers { count } => {
                for _ in 0..count {
                    give_helper(control, &mut helpers.lock().expect("helpers"));
                }
            }
            FromWorker::Snapshot { snapshot, .. } => drop(snapshots.send(*snapshot)),
            FromWorker::Failed { why } => panic!("the worker failed: {why}"),
            _ => {}
        }
    }
}

fn give_helper(control: &Control, helpers: &mut Helpers) {
    let (ours, theirs): (OwnedFd, OwnedFd) = headway_os::fd_passing::pair().expect("helper pair");
    helpers
        .sockets
        .push(theirs.try_clone().expect("second descriptor"));
    match helpers.holding {
        true => helpers.held.push(theirs),
        false => run_helper(theirs),
    }
    // A worker that is ending accepts no more helpers.
    let _ = control.send(&ToWorker::Helper { pid: 0 }, &[ours.as_fd()]);
}

fn run_helper(socket: OwnedFd) {
    std::thread::spawn(move || headway_server::helper_main(socket, extensions()));
}

/// A parsed response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn parse(bytes: &[u8]) -> Response {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end + 2].to_vec()).expect("the head is text");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .expect("a status");
        Response {
            status,
            head,
            body: bytes[end + 4..].to_vec(),
        }
    }

    /// The value of a header.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}
