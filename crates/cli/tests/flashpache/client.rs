//! The C library: what it answers is what open(2) would have, whatever becomes of the service.

use super::support::{Backend, clients, folder, is_root, make_cold, skip, wait_until};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The compiled test program.
fn program() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let (libraries, folder) = (clients().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
        let out = libraries.join("exercise");
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .arg(&out)
            .arg(folder.join("tests/flashpache/exercise.c"))
            .arg("-I")
            .arg(folder.join("../../clients"))
            .arg(libraries.join("libheadway_open.a"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(compiled.status.success(), "{stderr}");
        out
    })
}

/// Files whose contents are their names, in a folder with a place for a socket.
pub struct ServedFiles {
    folder: tempfile::TempDir,
    pub files: Vec<PathBuf>,
}

impl ServedFiles {
    pub fn new(count: usize) -> ServedFiles {
        let folder = folder();
        fs::create_dir(folder.path().join("root")).unwrap();
        let mut served = ServedFiles {
            folder,
            files: Vec::new(),
        };
        for number in 0..count {
            let file = served.put(format!("file-{number}"));
            served.files.push(file);
        }
        served
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn put(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.root().join(Path::new(name.as_ref()));
        fs::write(&path, name.as_ref().as_bytes().repeat(20)).unwrap();
        path
    }

    fn backend(&self) -> Backend {
        Backend::start(&self.root(), &self.socket())
    }

    fn command(&self, arguments: &[&str], paths: &[PathBuf]) -> Command {
        let mut command = Command::new(program());
        command.arg(self.socket()).args(arguments).args(paths);
        command
    }

    pub fn run(&self, arguments: &[&str], paths: &[PathBuf]) -> ClientOutput {
        ClientOutput::of(self.command(arguments, paths).output().unwrap())
    }
}

/// What the program printed.
pub struct ClientOutput {
    pub lines: Vec<String>,
    pub counted: String,
}

impl ClientOutput {
    pub fn of(output: Output) -> ClientOutput {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}{error}", output.status);
        let mut lines: Vec<String> = text.lines().map(Into::into).collect();
        let counted = lines.pop().unwrap_or_default();
        ClientOutput { lines, counted }
    }

    pub fn counted(&self) -> &str {
        &self.counted
    }

    pub fn count(&self, name: &str) -> u64 {
        let mut parts = self.counted.split(' ').skip_while(|part| *part != name);
        parts
            .nth(1)
            .unwrap_or_else(|| panic!("{name}: {}", self.counted))
            .parse()
            .unwrap()
    }

    /// Every file was what its name says.
    pub fn is_right(&self) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| line.starts_with("right "))
    }
}

#[test]
fn service_is_queried_only_when_pages_or_names_are_not_in_memory() {
    let served = ServedFiles::new(3);
    let backend = served.backend();
    make_cold(&served.files[1]);
    let below = served.files[0].join("below");
    let paths = [&served.files[..], &[below]].concat();
    let output = served.run(&["5000", "open"], &paths);
    assert!(
        output.lines[..3]
            .iter()
            .all(|line| line.starts_with("right "))
    );
    assert_eq!(output.lines[3], "ENOTDIR");
    assert_eq!(
        (
            output.count("opened"),
            output.count("pages"),
            output.count("names")
        ),
        (4, 1, 1)
    );
    assert_eq!(
        (output.count("answered"), output.count("fallbacks")),
        (2, 0)
    );
    assert_eq!(backend.counter("requests_total"), 2);
}

/// A file of this many bytes, which repeat its name.
fn put_long(served: &ServedFiles, name: &str, bytes: usize) -> PathBuf {
    let path = served.root().join(name);
    let text = name.repeat(bytes / name.len() + 1);
    fs::write(&path, &text.as_bytes()[..bytes]).unwrap();
    path
}

/// What a client reports that found something missing, by one of its counters. Probing a file makes
/// the kernel begin to read it, and a quick disk may finish before the probe ends. Then it is tried
/// again, with the file cooled by `run` each time.
fn when_cold(seen: &str, run: impl Fn() -> ClientOutput) -> ClientOutput {
    let tries = std::iter::repeat_with(run).take(20);
    let mut cold = tries.filter(|output| output.count(seen) > 0);
    cold.next().expect("something that is not in memory")
}

#[test]
fn contents_are_whole_when_a_small_file_is_loaded() {
    let served = ServedFiles::new(2);
    let backend = served.backend();
    let fits = put_long(&served, "fits", 8192);
    let too_long = put_long(&served, "too-long", 8193);
    let below = served.files[0].join("below");
    let paths = [&served.files[..], &[fits, too_long, served.root(), below]].concat();
    let opened = served.run(&["5000", "open"], &paths);
    let look = |line: &str| line.split(' ').nth(1).unwrap_or_default().to_owned();
    let load = || {
        let before = backend.counter("requests_total");
        let output = served.run(&["5000", "load"], &paths);
        let requests = backend.counter("requests_total") - before;
        assert_eq!(requests, output.count("pages") + 1, "{}", output.counted);
        output
    };
    for state in ["warm", "cold"] {
        let output = match state {
            "warm" => load(),
            _ => when_cold("pages", || {
                paths[..4].iter().for_each(|file| make_cold(file));
                load()
            }),
        };
        for (at, end) in [(0, " 120"), (1, " 120"), (2, " 8192")] {
            let line = &output.lines[at];
            assert!(
                line.starts_with("whole ") && line.ends_with(end),
                "{state}: {line}"
            );
        }
        assert!(
            output.lines[3].starts_with("right "),
            "{state}: {:?}",
            output.lines
        );
        assert_eq!(output.lines[4..], ["special", "ENOTDIR"], "{state}");
        for (opened, loaded) in opened.lines.iter().zip(&output.lines).take(4) {
            assert_eq!(look(opened), look(loaded), "{state}");
        }
        let expected = if state == "cold" { 1..=4 } else { 0..=0 };
        assert!(
            expected.contains(&output.count("pages")),
            "{state}: {}",
            output.counted
        );
    }
}

#[test]
fn contents_are_whole_when_no_service_reads_them_into_memory() {
    let served = ServedFiles::new(3);
    let cool = || served.files.iter().for_each(|file| make_cold(file));
    let are_whole =
        |output: &ClientOutput| output.lines.iter().all(|line| line.starts_with("whole "));
    let load = |timeout: &str| {
        cool();
        let output = served.run(&[timeout, "load"], &served.files);
        assert!(are_whole(&output), "{:?}", output.lines);
        output
    };
    when_cold("unreachable", || load("5000"));
    let backend = served.backend();
    backend.signal(Signal::STOP);
    let still = when_cold("timeouts", || load("100"));
    assert_eq!(still.count("timeouts"), 1, "{}", still.counted);
    backend.signal(Signal::CONT);
}

#[test]
fn results_equal_those_of_open_for_unusual_names() {
    let served = ServedFiles::new(0);
    let _backend = served.backend();
    let strange: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let mut paths: Vec<PathBuf> = strange
        .chunks(100)
        .map(|name| served.put(OsStr::from_bytes(name)))
        .collect();
    let long = served.root().join("n".repeat(256));
    let longest = served.root().join("n/".repeat(2100));
    paths.extend([long, longest, served.root().join("none"), served.root()]);
    let output = served.run(&["5000", "open"], &paths);
    assert!(
        output.lines[..3]
            .iter()
            .all(|line| line.starts_with("right ")),
        "{:?}",
        output.lines
    );
    assert_eq!(
        output.lines[3..],
        ["ENAMETOOLONG", "ENAMETOOLONG", "ENOENT", "special"]
    );
    let outside = served.run(&["5000", "open"], &["/etc/hostname/below".into()]);
    assert_eq!(
        (&*outside.lines[0], outside.count("elsewhere")),
        ("ENOTDIR", 1)
    );
}

#[test]
fn size_is_right_when_a_file_is_beyond_four_gigabytes() {
    let served = ServedFiles::new(0);
    let _backend = served.backend();
    let large = served.put("large");
    fs::File::options()
        .write(true)
        .open(&large)
        .unwrap()
        .set_len((5 << 30) + 1)
        .unwrap();
    make_cold(&large);
    let output = served.run(&["5000", "open"], &[large]);
    assert!(
        output.lines[0].contains("-140000001-"),
        "{:?}",
        output.lines
    );
}

/// Needs: root, to become another user; cachestat (Linux 6.5)
#[test]
fn end_is_not_prefetched_when_the_beginning_is_not_in_memory() {
    const NAME: &str = "end_is_not_prefetched_when_the_beginning_is_not_in_memory";
    if !is_root() {
        return skip(NAME, "root, to become another user");
    }
    let served = ServedFiles::new(0);
    let long = put_long(&served, "long", 900_000);
    // The kernel counts pages only for a file's owner, so another user's client has to probe single
    // bytes.
    let output = when_cold("pages", || {
        make_cold(&long);
        served.run(&["5000", "as", "65534"], std::slice::from_ref(&long))
    });
    assert!(output.is_right(), "{:?}", output.lines);
    assert_eq!(output.count("pages"), 1, "{}", output.counted);
    let file = fs::File::open(&long).unwrap();
    match headway_os::residency::cachestat(&file, 800_000, 100_000) {
        Ok(counted) => assert_eq!(counted.cached, 0),
        Err(why) => skip(NAME, &format!("cachestat: {why}")),
    }
}

#[test]
fn files_are_correct_when_threads_and_processes_open_them_at_once() {
    let served = ServedFiles::new(20);
    let backend = served.backend();
    let output = served.run(&["5000", "threads", "80", "5"], &served.files);
    assert_eq!(
        (output.count("opened"), output.count("fallbacks")),
        (8000, 0),
        "{}",
        output.counted
    );
    // How often depends on scheduling: a file that one thread evicted may be back in memory because
    // of another.
    assert!(output.count("answered") > 0, "{}", output.counted);
    let output = served.run(&["5000", "fork", "8", "5"], &served.files);
    assert_eq!(
        (output.count("opened"), output.count("fallbacks")),
        (1700, 0)
    );
    assert!(backend.counter("helper_jobs_joined_total") > 0);
    assert_eq!(
        backend.counter(r#"connections_closed_total{reason="malformed"}"#),
        0
    );
    wait_until("clients stay", || backend.counter("connections") == 0);
}

#[test]
fn forked_children_do_not_share_a_connection_with_their_parent() {
    let served = ServedFiles::new(10);
    let backend = served.backend();
    let output = served.run(&["5000", "while", "6", "60"], &served.files);
    assert_eq!(output.count("fallbacks"), 0, "{}", output.counted);
    assert!(output.count("answered") > 0, "{}", output.counted);
    assert_eq!(
        backend.counter(r#"connections_closed_total{reason="malformed"}"#),
        0
    );
    wait_until("clients stay", || backend.counter("connections") == 0);
}

#[test]
fn files_are_opened_when_there_is_no_service() {
    let served = ServedFiles::new(3);
    make_cold(&served.files[0]);
    let below = served.files[0].join("below");
    let output = served.run(&["5000", "open"], &served.files);
    assert!(output.is_right());
    assert_eq!(
        (output.count("unreachable"), output.count("fallbacks")),
        (1, 1)
    );
    // Without fall-back what is in memory is opened all the same.
    let output = served.run(&["5000", "strict"], &[served.files[1].clone(), below]);
    assert!(output.lines[0].starts_with("right "));
    assert_eq!(output.lines[1], "ETIMEDOUT");
}

#[test]
fn files_are_opened_when_the_service_hangs() {
    let served = ServedFiles::new(3);
    let backend = served.backend();
    backend.signal(Signal::STOP);
    let below = |number: usize| served.files[number].join("below");
    let output = served.run(&["100", "open"], &[below(0), below(1), below(2)]);
    assert_eq!(output.lines, ["ENOTDIR"; 3]);
    // The first waits until its timeout; the others do not try.
    assert_eq!(
        (output.count("timeouts"), output.count("fallbacks")),
        (1, 3)
    );
    let output = served.run(&["100", "strict"], &[below(0)]);
    assert_eq!(output.lines, ["ETIMEDOUT"]);
    backend.signal(Signal::CONT);
    let output = served.run(&["5000", "open"], &[below(0)]);
    assert_eq!(output.count("answered"), 1);
}

#[test]
fn one_thread_retries_when_the_service_hangs() {
    let served = ServedFiles::new(1);
    let backend = served.backend();
    let below = [served.files[0].join("below")];
    backend.signal(Signal::STOP);
    let one = served.run(&["200", "during", "1", "4000"], &below);
    let eight = served.run(&["200", "during", "8", "4000"], &below);
    backend.signal(Signal::CONT);
    // Each finds out, the eight at the same time; from then on one for each second of rest and its
    // own wait.
    assert!(
        (2..=1 + 3).contains(&one.count("timeouts")),
        "{}",
        one.counted
    );
    assert!(eight.count("timeouts") <= 8 + 3, "{}", eight.counted);
    for output in [one, eight] {
        assert!(output.count("fallbacks") > 100, "{}", output.counted);
    }
}

#[test]
fn all_threads_use_the_service_again_when_it_resumes() {
    let served = ServedFiles::new(1);
    let backend = served.backend();
    backend.signal(Signal::STOP);
    let arguments = ["200", "during", "4", "4000"];
    let child = start(served.command(&arguments, &[served.files[0].join("below")]));
    std::thread::sleep(Duration::from_millis(500));
    backend.signal(Signal::CONT);
    let output = ClientOutput::of(child.wait_with_output().unwrap());
    assert!(output.count("timeouts") >= 1, "{}", output.counted);
    // One for each rest would be three.
    assert!(output.count("answered") > 100, "{}", output.counted);
}

fn start(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn no_request_is_lost_when_the_service_is_killed_and_restarted_under_load() {
    let served = ServedFiles::new(20);
    let mut backend = served.backend();
    let child = start(served.command(&["5000", "threads", "8", "300"], &served.files));
    for _ in 0..5 {
        wait_until("no request arrives", || {
            backend.counter("requests_total") > 20
        });
        backend.kill();
        backend = served.backend();
    }
    let output = ClientOutput::of(child.wait_with_output().unwrap());
    assert_eq!(output.count("opened"), 8 * 300 * 20);
    assert!(output.count("retries") > 0, "{}", output.counted);
    assert_eq!(output.count("timeouts"), 0);
}

/// Needs: root, to become another user
#[test]
fn permission_is_the_clients_when_the_service_has_more() {
    const NAME: &str = "permission_is_the_clients_when_the_service_has_more";
    if !is_root() {
        return skip(NAME, "root, to become another user");
    }
    let served = ServedFiles::new(2);
    let _backend = served.backend();
    let secret = &served.files[0];
    fs::set_permissions(secret, fs::Permissions::from_mode(0o600)).unwrap();
    let hidden = served.root().join("hidden");
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("file"), "file").unwrap();
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
    let paths = [secret.clone(), hidden.join("file"), served.files[1].clone()];
    // The service has them in its cache.
    let all = served.run(&["5000", "open"], &paths);
    assert!(all.is_right());
    let nobody = served.run(&["5000", "as", "65534"], &paths);
    assert_eq!(nobody.lines[..2], ["EACCES", "EACCES"]);
    assert!(nobody.lines[2].starts_with("right "));
}

#[test]
fn file_is_opened_when_only_a_further_group_of_the_client_may_read_it() {
    const NAME: &str = "file_is_opened_when_only_a_further_group_of_the_client_may_read_it";
    if !is_root() {
        return skip(NAME, "root, to become another user");
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skip(NAME, "no setpriv");
    }
    let served = ServedFiles::new(1);
    let _backend = served.backend();
    let file = &served.files[0];
    std::os::unix::fs::chown(file, Some(0), Some(4_321)).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o040)).unwrap();
    // The kernel does not know the second name, so both ask the service.
    let open = served.command(&["5000", "open"], &[file.clone(), file.join("below")]);
    let as_nobody = |groups: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", groups]);
        command.arg(open.get_program()).args(open.get_args());
        let output = ClientOutput::of(command.output().unwrap());
        assert!(output.count("answered") > 0, "{}", output.counted);
        assert_eq!(output.lines[1], "ENOTDIR");
        output.lines[0].clone()
    };
    assert_eq!(as_nobody("--clear-groups"), "EACCES");
    assert!(as_nobody("--groups=4321").starts_with("right "));
}

#[test]
fn error_is_that_of_open_when_descriptors_run_out() {
    let served = ServedFiles::new(2);
    let _backend = served.backend();
    make_cold(&served.files[0]);
    make_cold(&served.files[1]);
    let none = served.run(&["5000", "few", "0"], &served.files);
    assert_eq!(none.lines, ["EMFILE", "EMFILE"]);
    // One for the file, none for a connection; then one for that, none for what it passes.
    for (few, answered) in [("1", 0), ("2", 2)] {
        served.files.iter().for_each(|file| make_cold(file));
        let output = served.run(&["5000", "few", few], &served.files);
        assert!(output.is_right(), "{few}: {:?}", output.lines);
        assert_eq!(
            output.count("answered"),
            answered,
            "{few}: {}",
            output.counted
        );
    }
}

#[test]
fn clients_open_their_files_when_the_service_has_no_descriptors() {
    let served = ServedFiles::new(30);
    // Enough to start, and for a few clients.
    const DESCRIPTORS: usize = 24;
    let script = "ulimit -n $3; exec \"$0\" backend $4 --quiet --root \"$1\" --socket \"$2\"";
    let mut backend = Command::new("sh")
        .args(["-c", script])
        .arg(env!("CARGO_BIN_EXE_headway"))
        .args([served.root(), served.socket()])
        .arg(DESCRIPTORS.to_string())
        .arg(if is_root() { "--user root" } else { "" })
        .spawn()
        .unwrap();
    wait_until("no socket", || served.socket().exists());
    let run = || {
        let output = served.run(&["2000", "threads", "60", "3"], &served.files);
        assert_eq!(output.count("opened"), 60 * 3 * 30);
        output
    };
    // How many of them ask at a time is for the machine to say.
    run();
    // Others have all of its descriptors.
    let address = SocketAddrUnix::new(served.socket()).unwrap();
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let others: Vec<OwnedFd> = (0..DESCRIPTORS)
        .map(|_| {
            let other = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            connect(&other, &address).unwrap();
            other
        })
        .collect();
    let output = run();
    assert!(
        output.count("fallbacks") > 0,
        "there was room: {}",
        output.counted
    );
    drop(others);
    let pid = rustix::process::Pid::from_child(&backend);
    assert!(backend.try_wait().unwrap().is_none(), "the service ended");
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    backend.wait().unwrap();
}

#[test]
fn no_other_socket_is_written_to_when_the_program_has_closed_its_own() {
    let served = ServedFiles::new(2);
    let _backend = served.backend();
    served.files.iter().for_each(|file| make_cold(file));
    let output = served.run(&["5000", "closed"], &served.files);
    assert!(output.is_right(), "{:?}", output.lines);
    assert!(output.count("answered") > 2, "{}", output.counted);
}
