//! Apache with the module when the service fails, and directives that are wrong.

use super::descriptors::give_to_apache;
use super::impostor;
use super::support::{
    Apache, Backend, Over, base, exchange, folder, get, make_cold, module, skip, wait_until,
};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub const FILES: usize = 40;

/// A root with files that say their names, and room for a socket.
pub struct NumberedFiles {
    pub folder: tempfile::TempDir,
}

impl NumberedFiles {
    pub fn new() -> NumberedFiles {
        let folder = folder();
        fs::create_dir(folder.path().join("root")).unwrap();
        let served = NumberedFiles { folder };
        for number in 0..FILES {
            fs::write(served.file(number), format!("file {number} ").repeat(1000)).unwrap();
        }
        served
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn file(&self, number: usize) -> PathBuf {
        self.root().join(format!("f{number}"))
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn backend(&self) -> Backend {
        Backend::start(&self.root(), &self.socket())
    }

    pub fn configuration(&self, module: &Path, more: &str) -> String {
        format!(
            "{}LoadModule headway_module {}\nHeadwayBackend {}\nDocumentRoot {}\n{more}\n",
            base(),
            module.display(),
            self.socket().display(),
            self.root().display()
        )
    }

    /// A file that has to be read from the disk first is what its name says.
    fn is_right(&self, address: &str, number: usize) -> bool {
        make_cold(&self.file(number));
        get(address, &format!("/f{number}")) == format!("file {number} ").repeat(1000)
    }
}

/// The module, or a word about why the test is left out.
pub fn built(test: &str) -> Option<PathBuf> {
    module().map_err(|why| skip(test, &why)).ok()
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn no_request_of_apache_is_lost_when_the_service_is_killed_and_restarted() {
    let Some(module) =
        built("no_request_of_apache_is_lost_when_the_service_is_killed_and_restarted")
    else {
        return;
    };
    for mpm in ["prefork", "event"] {
        let served = NumberedFiles::new();
        let mut backend = served.backend();
        let apache = Apache::start(mpm, &served.configuration(&module, "HeadwayEnable On"));
        let (over, right) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _end = Over(&over);
            for client in 0..4 {
                let (served, apache, over, right) = (&served, &apache, &over, &right);
                scope.spawn(move || {
                    for number in (client..FILES).step_by(4).cycle() {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        assert!(served.is_right(&apache.address, number), "{mpm}: {number}");
                        right.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..3 {
                wait_until("no request arrives", || {
                    backend.counter("requests_total") > 20
                });
                backend.kill();
                let before = right.load(Ordering::Relaxed);
                wait_until("no request is served", || {
                    right.load(Ordering::Relaxed) > before + 20
                });
                backend = served.backend();
            }
        });
        assert!(apache.counter("Unreachable") > 0 && apache.counter("Answered") > 0);
        assert_eq!(apache.counter("Timeouts"), 0);
    }
}

#[test]
fn clients_switch_to_the_service_that_took_over_the_socket_when_the_old_one_ends() {
    let name = "clients_switch_to_the_service_that_took_over_the_socket_when_the_old_one_ends";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    let old = served.backend();
    let one =
        "HeadwayEnable On\nServerLimit 1\nStartServers 1\nThreadsPerChild 1\nMaxRequestWorkers 1\n";
    let apache = Apache::start("worker", &served.configuration(&module, one));
    for number in 0..FILES {
        give_to_apache(&served.file(number));
    }
    let is_right = |number: usize| {
        make_cold(&served.file(number));
        get(&apache.address, &format!("/f{number}")) == "x".repeat(96 << 10)
    };
    (0..10).for_each(|number| assert!(is_right(number)));
    let requests_before = old.counter("requests_total");
    assert!(requests_before > 0);
    let beside = served.folder.path().join("beside");
    let new = Backend::start(&served.root(), &beside);
    fs::rename(&beside, served.socket()).unwrap();
    // A connection stays with the service it was made to.
    (10..20).for_each(|number| assert!(is_right(number)));
    assert!(old.counter("requests_total") > requests_before);
    assert_eq!(new.counter("requests_total"), 0);
    old.kill();
    wait_until("no request reaches the new service", || {
        (20..FILES).for_each(|number| assert!(is_right(number)));
        new.counter("requests_total") > 0
    });
    assert_eq!(apache.counter("Timeouts"), 0);
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn range_is_right_when_it_lies_beyond_four_gigabytes() {
    let name = "range_is_right_when_it_lies_beyond_four_gigabytes";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    let _backend = served.backend();
    let large = fs::File::create(served.file(0)).unwrap();
    let at = (5 << 30) + 1;
    large.write_all_at(b"the end", at).unwrap();
    let more = "HeadwayEnable On\nEnableSendfile On";
    let apache = Apache::start("event", &served.configuration(&module, more));
    let request = format!("GET /f0 HTTP/1.0\r\nRange: bytes={at}-\r\n\r\n");
    let response = exchange(&apache.address, request.as_bytes());
    let text = String::from_utf8_lossy(&response);
    let (first, last) = (at, at + 6);
    let field = format!("Content-Range: bytes {first}-{last}/{}\r\n", last + 1);
    assert!(
        text.contains(&field) && text.ends_with("\r\nthe end"),
        "{text}"
    );
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn response_is_503_when_fallback_is_off_and_the_service_is_down() {
    let Some(module) = built("response_is_503_when_fallback_is_off_and_the_service_is_down") else {
        return;
    };
    let served = NumberedFiles::new();
    let more = "HeadwayEnable On\nHeadwayFallback Off\nHeadwayTimeout 200";
    let apache = Apache::start("event", &served.configuration(&module, more));
    let status = |target: &str| {
        let response = exchange(
            &apache.address,
            format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes(),
        );
        String::from_utf8_lossy(&response[9..12]).into_owned()
    };
    // A disk may have read the file before the probe is over.
    let is_refused = |number: usize| {
        make_cold(&served.file(number));
        status(&format!("/f{number}")) == "503"
    };
    // Known to the kernel, so the service is not asked.
    assert_eq!(status("/f1"), "200");
    wait_until("no response is a 503 while the service is down", || {
        is_refused(2)
    });
    let backend = served.backend();
    make_cold(&served.file(3));
    assert_eq!(status("/f3"), "200");
    backend.signal(Signal::STOP);
    wait_until("no response is a 503 while the service hangs", || {
        is_refused(4)
    });
    backend.signal(Signal::CONT);
    // For a second the service is not asked, and a status page whose path no file has is 503 too.
    wait_until("the service gets no request after the pause", || {
        get(&apache.address, "/server-status?auto").contains("HeadwayTimeouts: 1\n")
    });
    let page = get(&apache.address, "/server-status");
    assert!(
        page.contains("<h2>Headway: the open-file service</h2>\n<dl>")
            && page.contains("<dt>Timeouts: 1</dt>"),
        "{page}"
    );
}

#[test]
fn files_are_served_when_the_service_speaks_another_version() {
    let Some(module) = built("files_are_served_when_the_service_speaks_another_version") else {
        return;
    };
    let served = NumberedFiles::new();
    impostor::start(&served.socket(), impostor::newer, &[served.file(1)]);
    // One process, since each finds out by itself.
    let more =
        "HeadwayEnable On\nServerLimit 1\nStartServers 1\nMaxRequestWorkers 8\nMaxSpareThreads 8";
    let apache = Apache::start("event", &served.configuration(&module, more));
    for number in 0..FILES {
        assert!(served.is_right(&apache.address, number), "{number}");
    }
    assert_eq!(
        (apache.counter("Rejected"), apache.counter("Answered")),
        (1, 0)
    );
    assert!(apache.counter("Fallbacks") > FILES as u64 / 2);
}

#[test]
fn apache_opens_what_it_has_allowed_when_links_are_not_simply_followed() {
    let Some(module) = built("apache_opens_what_it_has_allowed_when_links_are_not_simply_followed")
    else {
        return;
    };
    for (options, sent) in [
        ("FollowSymLinks", 2),
        ("SymLinksIfOwnerMatch", 0),
        ("FollowSymLinks SymLinksIfOwnerMatch", 0),
        ("None", 0),
    ] {
        let served = NumberedFiles::new();
        let _backend = served.backend();
        let root = served.root().display().to_string();
        let more = format!("HeadwayEnable On\n<Directory {root}>\nOptions {options}\n</Directory>");
        let apache = Apache::start("event", &served.configuration(&module, &more));
        // One that is read, and one that is too long for it.
        fs::write(served.file(1), "file 1 ".repeat(100_000)).unwrap();
        assert!(served.is_right(&apache.address, 0), "{options}");
        make_cold(&served.file(1));
        assert!(
            get(&apache.address, "/f1") == "file 1 ".repeat(100_000),
            "{options}"
        );
        assert_eq!(apache.counter("Sent"), sent, "{options}");
        assert!(apache.counter("Answered") > 0, "{options}");
    }
}

#[test]
fn file_is_served_when_its_name_has_any_byte() {
    let Some(module) = built("file_is_served_when_its_name_has_any_byte") else {
        return;
    };
    let served = NumberedFiles::new();
    let backend = served.backend();
    let apache = Apache::start("event", &served.configuration(&module, "HeadwayEnable On"));
    let is_in_a_name = |byte: &u8| !matches!(byte, 0 | b'/');
    let mut requests = 0;
    for byte in (0..=255).filter(is_in_a_name) {
        let file = served.root().join(OsStr::from_bytes(&[b'a', byte, b'z']));
        let content = format!("byte {byte} ").repeat(1000);
        fs::write(&file, &content).unwrap();
        make_cold(&file);
        let response = get(&apache.address, &format!("/a%{byte:02x}z"));
        assert!(response == content, "{byte}: {response:.60}");
        requests += 1;
    }
    assert_eq!((requests, apache.counter("Elsewhere")), (254, 0));
    assert!(apache.counter("PageRequests") > 100);
    assert!(backend.counter("requests_total") > 100);
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn only_names_are_requested_when_prefetching_is_off() {
    let Some(module) = built("only_names_are_requested_when_prefetching_is_off") else {
        return;
    };
    let served = NumberedFiles::new();
    let _backend = served.backend();
    let more = "HeadwayEnable On\nHeadwayPreload 0";
    let apache = Apache::start("prefork", &served.configuration(&module, more));
    assert!(served.is_right(&apache.address, 0));
    assert_eq!(get(&apache.address, "/f0/below").lines().count(), 7);
    assert_eq!(apache.counter("PageRequests"), 0);
    assert!(apache.counter("NameRequests") > 0);
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn module_is_switched_on_and_off_per_directory() {
    let Some(module) = built("module_is_switched_on_and_off_per_directory") else {
        return;
    };
    let served = NumberedFiles::new();
    let _backend = served.backend();
    for folder in ["on", "on/off", "onlooker"] {
        fs::create_dir(served.root().join(folder)).unwrap();
        fs::write(served.root().join(folder).join("f"), "x").unwrap();
    }
    let root = served.root().display().to_string();
    let more = format!(
        "<Directory {root}/on>\nHeadwayEnable On\n</Directory>\n<Directory {root}/on/off/>\nHeadwayEnable Off\n</Directory>"
    );
    let apache = Apache::start("prefork", &served.configuration(&module, &more));
    for (target, opened) in [
        ("/on/f", 1),
        ("/on/off/f", 0),
        ("/onlooker/f", 0),
        ("/f0", 0),
        ("/on/none", 1),
    ] {
        let before = apache.counter("Opened");
        get(&apache.address, target);
        assert_eq!(apache.counter("Opened") - before, opened, "{target}");
    }
}

/// Needs: the programs apache2 and apxs: scripts/setup; the program curl
#[test]
fn files_are_complete_over_http_2() {
    const NAME: &str = "files_are_complete_over_http_2";
    let Some(module) = built(NAME) else { return };
    let curl = Command::new("curl").arg("--version").output();
    let can = curl.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HTTP2"));
    if !can {
        return skip(NAME, "no curl with HTTP/2");
    }
    let served = NumberedFiles::new();
    let _backend = served.backend();
    let more = "LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so\nProtocols h2c http/1.1\nHeadwayEnable On";
    let apache = Apache::start("event", &served.configuration(&module, more));
    let out = served.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    for round in 0..3 {
        (0..FILES).for_each(|number| make_cold(&served.file(number)));
        // One connection each: curl 7.88 fails with several streams on one, with any server.
        let fetched = Command::new("curl")
            .args([
                "--silent",
                "--fail",
                "--http2-prior-knowledge",
                "--parallel",
                "--parallel-immediate",
            ])
            .args(["--parallel-max", "40"])
            .arg(format!("http://{}/f[0-{}]", apache.address, FILES - 1))
            .arg("-o")
            .arg(out.join("#1"))
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(fetched.success(), "{round}: {fetched}");
        for number in 0..FILES {
            let got = fs::read(out.join(number.to_string())).unwrap();
            assert!(
                got == fs::read(served.file(number)).unwrap(),
                "{round}: {number}"
            );
        }
    }
    assert!(apache.counter("Answered") > 50);
}

/// What Apache says of a configuration that it refuses.
fn refusal(served: &NumberedFiles, module: &Path, more: &str) -> String {
    let text = served
        .configuration(module, more)
        .replace("@MPM@", "prefork")
        .replace("@PORT@", "1")
        .replace("@FOLDER@", served.folder.path().to_str().unwrap());
    let file = served.folder.path().join("refused.conf");
    fs::File::create(&file)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = Command::new("/usr/sbin/apache2")
        .args(["-t", "-f"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{more} is taken");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn invalid_directive_is_rejected_with_the_reason() {
    let Some(module) = built("invalid_directive_is_rejected_with_the_reason") else {
        return;
    };
    let served = NumberedFiles::new();
    let long = format!("HeadwayBackend /{}", "x".repeat(107));
    for (wrong, why) in [
        (long.as_str(), "longer than the path of a socket"),
        (
            "HeadwayTimeout soon",
            "HeadwayTimeout: a number from 1 to 600000",
        ),
        ("HeadwayTimeout 0", "a number from 1"),
        ("HeadwayPreload -1", "a number from 0"),
        ("HeadwayEnable perhaps", "must be On or Off"),
        (
            "<Location /x>\nHeadwayEnable On\n</Location>",
            "without patterns",
        ),
        (
            "<Directory /srv/*>\nHeadwayEnable On\n</Directory>",
            "without patterns",
        ),
        (
            "<DirectoryMatch /srv>\nHeadwayEnable On\n</DirectoryMatch>",
            "without patterns",
        ),
        (
            "<Directory ~ /srv>\nHeadwayEnable On\n</Directory>",
            "without patterns",
        ),
        (
            "<VirtualHost *>\nHeadwayBackend /x\n</VirtualHost>",
            "VirtualHost",
        ),
    ] {
        let message = refusal(&served, &module, wrong);
        assert!(message.contains(why), "{wrong}: {message}");
    }
}
