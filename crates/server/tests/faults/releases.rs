//! Tests of a document root that is switched, by a symbolic link or by renames, as deploy tools do.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::tools::*;
use crate::support::{Response, Served, TIMEOUT, config};

/// What clients ask for, and how often its content has the number of the release: the index, small files, the
/// precompressed form of one, a file that is sent in chunks, and a listing.
const PATHS: [(&str, usize); 6] = [
    ("/", 10),
    ("/small", 1000),
    ("/below/own", 1),
    ("/style.css", 5),
    ("/large", 40_000),
    // In the address and in the name.
    ("/list/", 2),
];

/// Switches of the root in one test; more by `HEADWAY_SWITCHES`.
const SWITCHES: u64 = 50;

/// A directory of releases, and the link to the current one.
struct Site {
    directory: TempDir,
}

impl Site {
    fn new() -> Site {
        let site = Site { directory: root() };
        site.release(0);
        symlink(site.path("0"), site.path("current")).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a release whose files all hold its number.
    fn release(&self, number: u64) {
        let release = self.path(&number.to_string());
        let marker = marker(number);
        for (name, times) in [
            ("index.html", 10),
            ("small", 1000),
            ("below/own", 1),
            ("style.css", 20),
            ("style.css.gz", 5),
            ("large", 40_000),
            (&format!("list/{marker}"), 1),
        ] {
            let path = release.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, marker.repeat(times)).unwrap();
        }
    }

    /// Switches the link to a release in one step.
    fn switch(&self, number: u64) {
        symlink(self.path(&number.to_string()), self.path("next")).unwrap();
        fs::rename(self.path("next"), self.path("current")).unwrap();
    }

    fn remove(&self, number: u64) {
        fs::remove_dir_all(self.path(&number.to_string())).unwrap();
    }

    fn serve(&self, more: &str) -> Served {
        Served::start(config(&self.path("current"), more))
    }
}

fn marker(number: u64) -> String {
    format!("release{number:08}.")
}

/// The release of a response.
///
/// # Panics
/// If the response is an error, is not whole, or holds another release, too.
fn release_of(path: &str, times: usize, response: &Response) -> u64 {
    assert_eq!(response.status, 200, "{path}: {}", response.head);
    let text = String::from_utf8_lossy(&response.body);
    let at = text.find("release").expect("a marker");
    let number = text[at + 7..at + 15].parse().expect("a number");
    let found = [text.matches("release"), text.matches(&marker(number)[..])].map(Iterator::count);
    // The precompressed file may be deleted before its original.
    let times = match found {
        [20, 20] if path == "/style.css" => 20,
        _ => times,
    };
    assert_eq!(found, [times; 2], "{path}");
    number
}

/// Asks for all paths, again and again, until there is no more to do. A request that begins when a release has been
/// `seen` by any client is answered with that or a later one.
fn ask(
    address: SocketAddr,
    seen: &AtomicU64,
    next: &AtomicU64,
    count: &AtomicU64,
    is_over: &AtomicBool,
) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    while !is_over.load(Ordering::SeqCst) {
        for (path, times) in PATHS {
            let oldest = seen.load(Ordering::SeqCst);
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            let release = release_of(path, times, &read_response(&mut client));
            let newest = next.load(Ordering::SeqCst);
            assert!(
                (oldest..=newest).contains(&release),
                "{path}: {release}, not {oldest} to {newest}"
            );
            seen.fetch_max(release, Ordering::SeqCst);
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn every_response_is_whole_and_current_when_the_root_is_switched_under_load() {
    let switches = std::env::var("HEADWAY_SWITCHES").map_or(SWITCHES, |text| text.parse().unwrap());
    for backend in ["helpers = 2", "helpers = 'io_uring'"] {
        let site = Site::new();
        let more = format!("revalidate = '0ms'\nlisting = true\n{backend}");
        let mut served = site.serve(&more);
        let address = served.address;
        assert_eq!(release_of("/", 10, &served.get("/")), 0);
        let (seen, next) = (AtomicU64::new(0), AtomicU64::new(0));
        let (count, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let clients =
                [(); 3].map(|()| scope.spawn(|| ask(address, &seen, &next, &count, &is_over)));
            for number in 1..=switches {
                site.release(number);
                next.store(number, Ordering::SeqCst);
                site.switch(number);
                site.remove(number - 1);
                let before = count.load(Ordering::SeqCst);
                while (seen.load(Ordering::SeqCst) < number
                    || count.load(Ordering::SeqCst) < before + 7)
                    && !clients.iter().any(|client| client.is_finished())
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let counters = served.snapshot().counters;
        assert_eq!(counters.root_switches, switches, "{backend}");
        println!(
            "{backend}: {} responses, {switches} switches",
            count.into_inner()
        );
    }
}

/// The file cache knows the old release for a while; then it is not asked any more.
#[test]
fn missing_file_is_found_in_the_new_release_when_the_old_one_was_deleted() {
    let site = Site::new();
    let served = site.serve("revalidate = '1h'\nlisting = true");
    // Without Accept-Encoding another form of this one is sent.
    let plain = PATHS.iter().filter(|(path, _)| *path != "/style.css");
    for (path, times) in plain.clone() {
        assert_eq!(release_of(path, *times, &served.get(path)), 0);
    }
    site.release(1);
    site.switch(1);
    site.remove(0);
    // Not in the cache, and gone from the directory that is the root yet.
    fs::write(site.path("1/other"), marker(1)).unwrap();
    assert_eq!(release_of("/other", 1, &served.get("/other")), 1);
    for (path, times) in plain {
        assert_eq!(release_of(path, *times, &served.get(path)), 1);
    }
}

/// A new link takes a helper to follow, since its access time has to be written.
#[test]
fn first_request_after_a_switch_gets_the_new_release_when_the_name_is_due() {
    let site = Site::new();
    let served = site.serve("revalidate = '1ms'");
    for number in 1..=5 {
        assert_eq!(
            release_of("/small", 1000, &served.get("/small")),
            number - 1
        );
        site.release(number);
        site.switch(number);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(release_of("/small", 1000, &served.get("/small")), number);
    }
}

#[test]
fn last_release_is_served_while_the_link_leads_nowhere() {
    let site = Site::new();
    let mut served = site.serve("revalidate = '0ms'");
    assert_eq!(release_of("/small", 1000, &served.get("/small")), 0);
    fs::remove_file(site.path("current")).unwrap();
    assert_eq!(release_of("/small", 1000, &served.get("/small")), 0);
    site.release(1);
    symlink("nowhere", site.path("current")).unwrap();
    assert_eq!(release_of("/small", 1000, &served.get("/small")), 0);
    served.wait_for("a failed lookup", |snapshot| {
        snapshot.counters.root_lookup_failures > 0
    });
    site.switch(1);
    assert_eq!(release_of("/small", 1000, &served.get("/small")), 1);
}

#[test]
fn another_directory_is_the_root_when_it_has_got_the_name() {
    let site = Site::new();
    let mut served = Served::start(config(&site.path("0"), "revalidate = '0ms'"));
    assert_eq!(release_of("/small", 1000, &served.get("/small")), 0);
    for number in 1..=2 {
        fs::rename(site.path("0"), site.path("old")).unwrap();
        assert_eq!(
            release_of("/small", 1000, &served.get("/small")),
            number - 1
        );
        site.release(number);
        fs::rename(site.path(&number.to_string()), site.path("0")).unwrap();
        fs::remove_dir_all(site.path("old")).unwrap();
        // The path is looked up once a second. Until then only what is in memory is there.
        let begun = Instant::now();
        while served.snapshot().counters.root_switches < number {
            assert!(begun.elapsed() < TIMEOUT, "{number} is not the root");
            served.get("/small");
        }
        assert_eq!(release_of("/small", 1000, &served.get("/small")), number);
    }
}
