//! The configuration of a seed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::site::Site;
use headway_base::random::{Draw, SplitMix64};
use headway_control::{Control, StartDescriptor, ToWorker};
use headway_server::config::{Config, Environment, KnownExtensions, Memory, Settings};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A configuration, and what the model needs to know of it.
pub struct Setup {
    pub config: Config,
    pub revalidate_ms: u64,
    /// The shortest timeout.
    pub timeout_ms: u64,
    /// Directories without an index file are listed.
    pub listing: bool,
    /// Files leave by sendfile(2): between the comparison and the call they can change.
    pub sends_pages: bool,
    /// The file cache is smaller than the site.
    pub evicts: bool,
    events: &'static str,
}

impl Setup {
    /// A random configuration for this site.
    pub fn draw(site: &Site, random: &mut SplitMix64) -> Setup {
        let events = ["epoll", "epoll-edge", "poll", "select"][random.index(4)];
        let revalidate_ms = [0, 50, 1000, 5000][random.index(4)];
        let timeout_ms = [2_000, 25_000, 25_000, 25_000][random.index(4)];
        let send = ["copy", "copy", "sendfile"][random.index(3)];
        let small_file_max = [0, 4096, 131_072, 1 << 20][random.index(4)];
        let listing = random.below(2) == 0;
        let (entries, descriptors) = ([4, 100][random.index(2)], [16, 100][random.index(2)]);
        let text = format!(
            "root = {:?}\nlisten = \"127.0.0.1:0\"\nworkers = 1\ntrace = false\n\
             events = {events:?}\nrevalidate = \"{revalidate_ms}ms\"\nsend = {send:?}\n\
             header-timeout = \"{timeout_ms}ms\"\nbody-timeout = \"{timeout_ms}ms\"\n\
             send-timeout = \"{timeout_ms}ms\"\nidle-timeout = \"{timeout_ms}ms\"\n\
             small-file-max = {small_file_max}\nresponse-cache-max = {}\nchunk-cache-max = \"2MiB\"\n\
             write-quantum = {}\nfile-cache-entries = {}\nfile-cache-descriptors = {}\n\
             helpers-min = {}\nhelpers-max = {}\naccept-batch = {}\nmax-connections = {}\n\
             max-requests-per-connection = {}\nmax-header-size = 8192\nmax-target-size = 4096\nlisting = {listing}\n\
             etag = \"inode\"\ncontent-store-max = {}\n\
             [[host]]\nnames = [\"other.test\"]\nroot = {:?}\n\
             error-pages = {{ 403 = {:?}, 404 = {:?} }}\n\
             [[location]]\nprefix = \"/internal/\"\nfiles = true\ninternal = true\n",
            site.path("root"),
            [2_u64 << 20, 4 << 20][random.index(2)],
            [65_536, 300_000, 1 << 20][random.index(3)],
            entries,
            descriptors,
            1 + random.below(2),
            2 + random.below(3),
            ["\"auto\"", "1", "0"][random.index(3)],
            [2, 100][random.index(2)],
            [0, 0, 3][random.index(3)],
            [0, 4_u64 << 20, 32 << 20][random.index(3)],
            site.path("other"),
            site.error_page_path(),
            site.error_page_path(),
        );
        Setup {
            config: config(&text),
            revalidate_ms,
            timeout_ms,
            listing,
            sends_pages: send == "sendfile",
            evicts: entries < 100 || descriptors < 100,
            events,
        }
    }

    pub fn is_edge_triggered(&self) -> bool {
        self.events == "epoll-edge"
    }
}

fn config(text: &str) -> Config {
    let settings =
        Settings::from_toml_with(text, Path::new("simulation.toml"), KnownExtensions::NONE);
    let environment = Environment {
        cpus: 1,
        nofile: 10_000,
        somaxconn: 4096,
        memory: Memory {
            bytes: 8 << 30,
            limited: false,
        },
        process_memory_bytes: u64::MAX,
        extensions: KnownExtensions::NONE,
        files_wait: None,
    };
    let checked = Config::check(&settings.expect("settings"), None, &environment);
    checked
        .unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
        .config
}

/// Sends the worker what it begins with.
pub fn start(control: &Control, setup: &Setup, listener: OwnedFd) {
    let start = ToWorker::Start {
        worker: 0,
        listeners: vec![0, 1],
        config: Box::new(setup.config.clone()),
        descriptors: vec![StartDescriptor::Listener],
    };
    control
        .send(&start, &[listener.as_fd()])
        .expect("the start message");
}

/// The listener of the worker.
pub fn listen(address: &SocketAddrUnix) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.expect("a listener");
    rustix::net::bind(&socket, address).expect("an address for it");
    rustix::net::listen(&socket, 64).expect("a queue for it");
    socket
}
