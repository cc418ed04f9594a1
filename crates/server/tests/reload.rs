//! SIGHUP: the configuration is read again, and no request is lost meanwhile.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headway_test_support::{WAIT_MAX, skip};
use rustix::process::Signal;

use crate::site::*;

mod names;

/// A server whose settings are all in a file.
struct Reloaded {
    site: Site,
    server: Server,
}

impl Reloaded {
    fn start(settings: &str) -> Reloaded {
        let site = Site::new();
        write_settings(&site, settings);
        let server = Server::start_from_file(program(), &settings_file(&site));
        Reloaded { site, server }
    }

    /// Changes the settings and waits until they are in use.
    fn reload(&self, settings: &str) {
        let before = self.master("reloads");
        write_settings(&self.site, settings);
        self.server.signal(Signal::HUP);
        self.server
            .wait_for("the reload", |_| self.master("reloads") > before);
    }

    /// Changes the settings and returns why they are refused.
    fn fail(&self, settings: &str) -> String {
        let before = self.master("reload_failures");
        write_settings(&self.site, settings);
        self.server.signal(Signal::HUP);
        self.server
            .wait_for("the refusal", |_| self.master("reload_failures") > before);
        let status = self.server.status();
        status["master"]["reload_error"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn master(&self, name: &str) -> u64 {
        self.server.status()["master"][name].as_u64().unwrap()
    }

    /// Waits until responses are of this version. For a moment the worker before may still accept.
    fn wait_for_version(&self, version: u32) {
        let version = Some(version.to_string());
        self.server
            .wait_for("the version", |_| self.version() == version);
    }

    /// The value of the header `X-Version` in a response.
    fn version(&self) -> Option<String> {
        get(&self.server, "/file.txt")
            .field("x-version")
            .map(str::to_owned)
    }
}

fn is_well(server: &Server) {
    is_well_except(server, waits_for_listener);
}

pub fn settings_file(site: &Site) -> PathBuf {
    site.path("settings.toml")
}

/// Puts a file with these settings, and with what no reload may change, in the place of the one before. A reload that
/// is still reading must not find half a file.
pub fn write_settings(site: &Site, settings: &str) {
    let (root, cgi) = (site.path("root"), site.path("cgi"));
    let listen = match settings.contains("listen =") {
        true => "",
        false => "listen = \"127.0.0.1:0\"\n",
    };
    let text = format!(
        "root = {root:?}\n{listen}status = \"127.0.0.1:0\"\n{settings}\n[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {cgi:?}\n"
    );
    let new = site.path("settings.new");
    fs::write(&new, text).unwrap();
    fs::rename(new, settings_file(site)).unwrap();
}

fn versioned(version: u32) -> String {
    format!("workers = 1\n[[header]]\nname = \"X-Version\"\nvalue = \"{version}\"\n")
}

#[test]
fn new_settings_are_in_use_after_sighup() {
    let reloaded = Reloaded::start(&versioned(1));
    assert_eq!(reloaded.version().as_deref(), Some("1"));
    let mut kept = reloaded.server.connect();
    let request = "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(send_and_receive(&mut kept, request).status, 200);
    reloaded.reload(&versioned(2));
    // The worker before answers its connections once more.
    let last = send_and_receive(&mut kept, request);
    assert_eq!(last.field("x-version"), Some("1"));
    assert_eq!(last.field("connection"), Some("close"));
    for version in 3..5 {
        reloaded.reload(&versioned(version));
        reloaded.wait_for_version(version);
    }
    let server = reloaded.server;
    server.wait_for("the end of the workers before", |server| {
        server.children("serve-worker").len() == 1
    });
    let printed = server.stop();
    assert_eq!(
        printed.matches("configuration reloaded").count(),
        3,
        "{printed}"
    );
}

#[test]
fn request_in_flight_is_finished_by_the_worker_that_has_it() {
    let reloaded = Reloaded::start(&versioned(1));
    let go = reloaded.site.note("go");
    let script = "printf 'Content-Type: text/plain\\n\\nbegun,'; until [ -e {notes}/go ]; do sleep 0.01; done; printf ended";
    reloaded.site.program("slow", script);
    let mut stream = reloaded.server.connect();
    send(&mut stream, "GET /cgi-bin/slow HTTP/1.1\r\nHost: x\r\n\r\n");
    let head = receive_head(&mut stream).unwrap();
    assert_eq!(head.status, 200);
    reloaded.reload(&versioned(2));
    reloaded.wait_for_version(2);
    fs::write(go, "").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("ended"), "{rest}");
    is_well(&reloaded.server);
}

#[test]
fn worker_that_does_not_end_within_the_drain_timeout_is_killed() {
    let settings = |version| format!("drain-timeout = \"300ms\"\n{}", versioned(version));
    let reloaded = Reloaded::start(&settings(1));
    let server = &reloaded.server;
    let before = server.children("serve-worker");
    let pid = rustix::process::Pid::from_raw(before[0]).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    reloaded.reload(&settings(2));
    server.wait_for("the end of the worker", |server| {
        let now = server.children("serve-worker");
        now.len() == 1 && now != before
    });
    is_well(server);
}

#[test]
fn server_goes_on_as_before_when_the_new_configuration_is_wrong() {
    let reloaded = Reloaded::start(&versioned(1));
    let worker = reloaded.server.children("serve-worker");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    // There is a directory, but no file can be made.
    let nowhere = PathBuf::from("/proc/no-such-log");
    for (settings, part) in [
        ("workers = \"many\"\n".to_owned(), "settings.toml:4"),
        ("no-such-key = 1\n".to_owned(), "no-such-key"),
        (
            format!("listen = [\"127.0.0.1:0\", \"{taken}\"]\n"),
            "EADDRINUSE",
        ),
        (format!("log = {nowhere:?}\n"), "access log"),
        (
            "user = \"no-such-user\"\n".to_owned(),
            "user: there is no user \"no-such-user\"",
        ),
        (
            "listeners = \"shared\"\n".to_owned(),
            "listeners: a change needs a restart",
        ),
    ] {
        let why = reloaded.fail(&settings);
        assert!(why.contains(part), "{settings}: {why}");
        assert_eq!(reloaded.version().as_deref(), Some("1"));
        assert_eq!(reloaded.server.children("serve-worker"), worker);
    }
    fs::remove_file(settings_file(&reloaded.site)).unwrap();
    reloaded.server.signal(Signal::HUP);
    reloaded
        .server
        .wait_for("the refusal", |_| reloaded.master("reload_failures") == 7);
    // And a good one is in use afterwards.
    reloaded.reload(&versioned(2));
    reloaded.wait_for_version(2);
    assert!(reloaded.server.status()["master"]["reload_error"].is_null());
    let printed = reloaded.server.stop();
    assert_eq!(printed.matches("reload failed").count(), 7, "{printed}");
}

/// Needs: root, to be another user
#[test]
fn server_goes_on_as_before_when_new_workers_cannot_start() {
    const NAME: &str = "server_goes_on_as_before_when_new_workers_cannot_start";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root, to be another user");
    }
    let site = Site::new();
    site.open_to_all();
    let user = "user = \"4711:4712\"\n";
    write_settings(&site, &format!("{user}{}", versioned(1)));
    let server = Server::start_from_file(program(), &settings_file(&site));
    let reloaded = Reloaded { site, server };
    let root = reloaded.site.path("root");
    let closed = |mode| fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
    closed(0o700);
    let worker = reloaded.server.children("serve-worker");
    let why = reloaded.fail(&format!("workers = 3\n{user}"));
    assert!(why.contains("ermission denied"), "{why}");
    reloaded.server.wait_for("the end of the others", |server| {
        server.children("serve-worker") == worker
    });
    closed(0o755);
    reloaded.wait_for_version(1);
    let why = reloaded.fail("workers = 1\n");
    assert!(why.contains("user: a change needs a restart"), "{why}");
    is_well(&reloaded.server);
}

#[test]
fn listeners_come_and_go_with_the_configuration() {
    let site = Site::new();
    let free = || {
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let (one, two) = (free(), free());
    write_settings(&site, &format!("listen = \"{one}\"\n"));
    let server = Server::start_from_file(program(), &settings_file(&site));
    let reloaded = Reloaded { site, server };
    assert!(TcpStream::connect(two).is_err());
    reloaded.reload(&format!("listen = [\"{one}\", \"{two}\"]\n"));
    assert!(TcpStream::connect(one).is_ok() && TcpStream::connect(two).is_ok());
    reloaded.reload(&format!("listen = \"{two}\"\n"));
    reloaded
        .server
        .wait_for("the end of the first listener", |_| {
            TcpStream::connect(one).is_err()
        });
    assert!(TcpStream::connect(two).is_ok());
    let listen = &reloaded.server.status()["master"]["listen"];
    assert_eq!(listen.as_array().unwrap().len(), 1);
}

#[test]
fn lines_go_to_the_log_of_the_worker_that_answered() {
    let logs = [1, 2].map(|number| format!("log{number}"));
    let site = Site::new();
    let settings = |number: usize| {
        let log = site.path(&logs[number]);
        format!("log = {log:?}\n{}", versioned(number as u32))
    };
    let both = [settings(0), settings(1)];
    write_settings(&site, &both[0]);
    let server = Server::start_from_file(program(), &settings_file(&site));
    let reloaded = Reloaded { site, server };
    let before = reloaded.server.children("serve-log");
    get(&reloaded.server, "/file.txt?first");
    reloaded.reload(&both[1]);
    get(&reloaded.server, "/file.txt?second");
    reloaded
        .server
        .wait_for("the end of the log process before", |server| {
            let now = server.children("serve-log");
            now.len() == 1 && now != before
        });
    let site = reloaded.site;
    reloaded.server.stop();
    let text = |number: usize| fs::read_to_string(site.path(&logs[number])).unwrap();
    assert!(
        text(0).contains("?first") && !text(0).contains("?second"),
        "{}",
        text(0)
    );
    assert!(
        text(1).contains("?second") && !text(1).contains("?first"),
        "{}",
        text(1)
    );
}

/// Has the clients end when it is dropped.
pub struct AtEnd<'o>(pub &'o AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks again and again until `over`, on new connections and on kept ones; returns the number of
/// responses.
pub fn ask(address: &str, is_kept: bool, over: &AtomicBool) -> u64 {
    let mut count = 0;
    let mut kept: Option<TcpStream> = None;
    while !over.load(Ordering::Relaxed) {
        let mut stream = kept.take().unwrap_or_else(|| {
            let stream = TcpStream::connect(address).expect("a connection");
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            stream
        });
        send(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
        let response = receive(&mut stream).expect("a response");
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "a file\n")
        );
        count += 1;
        let is_last = response.field("connection") == Some("close");
        kept = (is_kept && !is_last).then_some(stream);
    }
    count
}

#[test]
fn no_request_is_lost_while_reloads_change_the_number_of_workers() {
    let workers = |count: usize| format!("workers = {count}\n");
    let reloaded = Reloaded::start(&workers(2));
    let (over, server) = (AtomicBool::new(false), &reloaded.server);
    let (end, address) = (AtEnd(&over), &server.address);
    thread::scope(|scope| {
        // Also if something fails here.
        let end = end;
        let over = end.0;
        let clients = [false, true, false, true]
            .map(|is_kept| scope.spawn(move || ask(address, is_kept, over)));
        for count in [1, 3, 2, 4, 1, 1, 2, 3, 1, 2] {
            reloaded.reload(&workers(count));
        }
        drop(end);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
    server.wait_for("the end of the workers before", |server| {
        server.children("serve-worker").len() == 2
    });
    is_well(server);
}

/// Descriptors of a process.
pub fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn nothing_is_left_of_the_configurations_before() {
    let reloaded = Reloaded::start(&versioned(1));
    let server = &reloaded.server;
    let settle = || {
        server.wait_for("the end of the workers before", |server| {
            server.children("serve-worker").len() == 1
        });
    };
    reloaded.reload(&versioned(2));
    settle();
    let before = descriptors(server.master());
    for version in 3..23 {
        reloaded.reload(&versioned(version));
    }
    settle();
    let begun = Instant::now();
    while descriptors(server.master()) > before {
        assert!(
            begun.elapsed() < WAIT_MAX,
            "{} > {before}",
            descriptors(server.master())
        );
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(reloaded.version().as_deref(), Some("22"));
}

#[test]
fn signals_that_come_at_once_are_one_reload_or_two() {
    let reloaded = Reloaded::start(&versioned(1));
    write_settings(&reloaded.site, &versioned(2));
    for _ in 0..50 {
        reloaded.server.signal(Signal::HUP);
    }
    let server = &reloaded.server;
    server.wait_for("the reload", |_| reloaded.version().as_deref() == Some("2"));
    server.wait_for("the end of the workers before", |server| {
        server.children("serve-worker").len() == 1
    });
    let reloads = reloaded.master("reloads");
    assert!((1..=5).contains(&reloads), "{reloads}");
    // A stop during a reload is a stop.
    reloaded.server.signal(Signal::HUP);
    reloaded.server.stop();
}

#[test]
fn killed_worker_is_replaced_with_the_new_configuration() {
    let reloaded = Reloaded::start(&versioned(1));
    reloaded.reload(&versioned(2));
    let server = &reloaded.server;
    server.wait_for("the end of the worker before", |server| {
        server.children("serve-worker").len() == 1
    });
    headway_test_support::server::kill(server.children("serve-worker")[0]);
    server.wait_for("another worker", |_| reloaded.master("worker_deaths") == 1);
    reloaded.wait_for_version(2);
}

#[test]
fn stream_begun_before_a_reload_gets_its_response_after_it() {
    let reloaded = Reloaded::start(&versioned(1));
    let mut stream = reloaded.server.connect();
    stream.write_all(b"GET /file.txt HTTP/1.1\r\nHo").unwrap();
    reloaded.server.wait_for("the connection", |server| {
        counter(server, "connections_open") > 0
    });
    reloaded.reload(&versioned(2));
    send(&mut stream, "st: x\r\n\r\n");
    let response = receive(&mut stream).unwrap();
    assert_eq!(response.field("x-version"), Some("1"));
}

/// Answers each request with this text.
fn saying(text: &str, address: &str) -> crate::upstreams::faults::FakeUpstream {
    use crate::upstreams::faults::{FakeUpstream, read_head};
    let response = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    FakeUpstream::listening(TcpListener::bind(address).unwrap(), move |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(response.as_bytes());
        }
    })
}

#[test]
fn upstream_that_is_named_is_reached_under_its_name() {
    let upstream = saying("found", "127.0.0.1:0");
    let port = upstream.address.rsplit_once(':').unwrap().1;
    let location = |name: &str| {
        format!("workers = 1\n[[location]]\nprefix = \"/app/\"\nproxy = \"http://{name}:{port}\"\n")
    };
    let reloaded = Reloaded::start(&location("localhost"));
    assert_eq!(get(&reloaded.server, "/app/").text(), "found");
    // Too long for a name, so no server is asked.
    let why = reloaded.fail(&location(&"a".repeat(64)));
    assert!(why.contains("cannot resolve aaaa"), "{why}");
    assert_eq!(get(&reloaded.server, "/app/").text(), "found");
}

/// Needs: root and unshare, for a table of hosts of its own
#[test]
fn upstream_is_followed_when_its_name_gets_another_address() {
    const NAME: &str = "upstream_is_followed_when_its_name_gets_another_address";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "root and unshare, for a table of hosts of its own");
    }
    let one = saying("one", "127.0.0.1:0");
    let port = one.address.rsplit_once(':').unwrap().1;
    let _two = saying("two", &format!("127.0.0.2:{port}"));
    let site = Site::new();
    let hosts = site.path("hosts");
    fs::write(&hosts, "127.0.0.1 headway-test-app\n").unwrap();
    write_settings(
        &site,
        &format!(
            "workers = 1\nresolve-interval = \"50ms\"\n[[location]]\nprefix = \"/app/\"\n\
             proxy = \"http://headway-test-app:{port}\"\n"
        ),
    );
    let mut command = std::process::Command::new("unshare");
    // No server is asked about a name which is not in the file.
    let switch = site.path("nsswitch.conf");
    fs::write(&switch, "hosts: files\n").unwrap();
    let script = format!(
        "mount --bind {hosts:?} /etc/hosts && mount --bind {switch:?} /etc/nsswitch.conf && exec \"$0\" \"$@\""
    );
    // What is mounted is the file, so it is written in place, and never empty.
    let rewrite = |line: &str| {
        let mut file = fs::File::options().write(true).open(&hosts).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    };
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        PROGRAM,
    ]);
    let server = Server::start_from_file(command, &settings_file(&site));
    let reloaded = Reloaded { site, server };
    let answer = || get(&reloaded.server, "/app/").text();
    assert_eq!(answer(), "one");
    rewrite("127.0.0.2 headway-test-app\n");
    reloaded
        .server
        .wait_for("the other address", |_| answer() == "two");
    // A name that is gone keeps its addresses.
    rewrite("127.0.0.2 headway-test-xxx\n");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(answer(), "two");
    assert_eq!(reloaded.master("reload_failures"), 0);
    is_well(&reloaded.server);
}

#[test]
fn service_manager_is_notified_of_start_reload_and_stop() {
    let site = Site::new();
    write_settings(&site, &versioned(1));
    let address = site.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut command = program();
    command.env("NOTIFY_SOCKET", &address);
    command.env("WATCHDOG_USEC", "100000");
    // Read at once: the server waits for room.
    let (messages, arrived) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 1000];
        while let Ok(length) = socket.recv(&mut buffer) {
            let text = str::from_utf8(&buffer[..length])
                .unwrap()
                .trim_end()
                .to_owned();
            if messages.send(text).is_err() {
                return;
            }
        }
    });
    // The next message that is not a sign of life, and whether there was one.
    let next = || {
        let mut was_alive = false;
        loop {
            match arrived.recv_timeout(WAIT_MAX).unwrap().as_str() {
                "WATCHDOG=1" => was_alive = true,
                other => return (other.to_owned(), was_alive),
            }
        }
    };
    let server = Server::start_from_file(command, &settings_file(&site));
    assert_eq!(next().0, "READY=1");
    let reloaded = Reloaded { site, server };
    reloaded.reload(&versioned(2));
    let (begun, _) = next();
    assert!(begun.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begun}");
    assert_eq!(next().0, "READY=1");
    reloaded.fail("workers = 0\n");
    assert!(next().0.starts_with("RELOADING=1"));
    assert_eq!(next().0, "READY=1");
    thread::sleep(Duration::from_millis(200));
    reloaded.server.stop();
    assert_eq!(next(), ("STOPPING=1".to_owned(), true));
}

#[test]
fn included_files_are_read_again_in_a_reload() {
    const INCLUDING: &str = "workers = 1\ninclude = \"*.inc\"\n";
    let reloaded = Reloaded::start(INCLUDING);
    assert_eq!(reloaded.version(), None);
    let included = reloaded.site.path("a.inc");
    fs::write(&included, "[[header]]\nname = \"X-Version\"\nvalue = \"1\"").unwrap();
    reloaded.reload(INCLUDING);
    reloaded.wait_for_version(1);
    fs::write(&included, "\n\n[[header]]\nname = \"X-Version\"\nvalue = 2").unwrap();
    let why = reloaded.fail(INCLUDING);
    assert!(why.contains("a.inc:5: header.value: "), "{why}");
    assert_eq!(reloaded.version().as_deref(), Some("1"));
    is_well(&reloaded.server);
}
