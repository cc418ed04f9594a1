//! The preload library: unchanged programs behave as without it, and the service is used.

use super::support::{Backend, clients, folder, make_cold, skip, wait_until};
use rustix::fs::{CWD, FileType, Mode, OFlags, inotify, mknodat};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A program that does with the files what servers do, and prints everything that could differ.
const PROGRAM: &str = r#"
import os, sys
root = sys.argv[1]
def show(what, call):
    try: print(what, call())
    except OSError as error: print(what, "errno", error.errno)
def opened(path, flags, mode=0o600, **more):
    fd = os.open(path, flags, mode, **more)
    try: return fd, os.lseek(fd, 0, os.SEEK_CUR), os.get_inheritable(fd), os.read(fd, 9)
    except OSError as error: return fd, "errno", error.errno
    finally: os.close(fd)
os.chdir(root)
folder = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
for name in ["a.txt", "d/b.txt", "d", "none", "a.txt/below", "link", "dangling", "loop", "n" * 300, "", "closed.txt"]:
    path = os.path.join(root, name) if name else name
    show(name, lambda: opened(path, os.O_RDONLY))
    show(name, lambda: opened(name, os.O_RDONLY | os.O_NOFOLLOW))
    show(name, lambda: opened(path, os.O_RDONLY | os.O_DIRECTORY))
    show(name, lambda: opened(path, os.O_WRONLY))
    show(name, lambda: opened(path, os.O_PATH))
    show(name, lambda: opened(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL))
    show(name, lambda: tuple(os.stat(path))[:1] + tuple(os.stat(path))[2:7])
    show(name, lambda: tuple(os.lstat(path))[:1] + tuple(os.lstat(path))[2:7])
    show(name, lambda: os.access(path, os.R_OK))
    show(name, lambda: open(path).read(5))
for name in ["b.txt", "../a.txt", "none"]:
    show(name, lambda: opened(name, os.O_RDONLY, dir_fd=folder))
    show(name, lambda: os.stat(name, dir_fd=folder).st_size)
first, second = os.open("a.txt", os.O_RDONLY), os.open("a.txt", os.O_RDONLY)
os.read(first, 3)
print(os.lseek(second, 0, os.SEEK_CUR), os.read(second, 4))
if os.fork() == 0:
    show("child", lambda: opened(os.path.join(root, "a.txt/below"), os.O_RDONLY))
    sys.stdout.flush()
    os._exit(0)
os.wait()
"#;

fn python(root: &Path, environment: &[(&str, &str)]) -> Output {
    for made in ["none", "a.txt/below", "dangling"] {
        let _ = fs::remove_file(root.join(made));
    }
    // What the program before has created where nothing was.
    let _ = fs::remove_file(root.join("nowhere"));
    Command::new("python3")
        .args(["-c", PROGRAM])
        .arg(root)
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// Needs: the program python3: scripts/setup
#[test]
fn program_does_the_same_when_it_is_preloaded() {
    const NAME: &str = "program_does_the_same_when_it_is_preloaded";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(NAME, "no python3");
    }
    let folder = folder();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("d")).unwrap();
    fs::write(root.join("a.txt"), "contents of a").unwrap();
    fs::write(root.join("d/b.txt"), "contents of b").unwrap();
    fs::write(root.join("closed.txt"), "closed").unwrap();
    for (name, target) in [("link", "a.txt"), ("loop", "loop")] {
        std::os::unix::fs::symlink(target, root.join(name)).unwrap();
    }
    let without = python(&root, &[]);
    let text = String::from_utf8_lossy(&without.stdout).into_owned();
    assert!(
        without.status.success(),
        "{}",
        String::from_utf8_lossy(&without.stderr)
    );
    assert!(text.lines().count() > 100, "{text}");

    let library = clients().unwrap().join("libheadway_preload.so");
    let socket = folder.path().join("socket");
    let backend = Backend::start(&root, &socket);
    make_cold(&root.join("a.txt"));
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("HEADWAY_OPEN_SOCKET", socket.to_str().unwrap()),
        ("HEADWAY_OPEN_PREFIXES", root.to_str().unwrap()),
    ];
    let with = python(&root, &environment);
    assert_eq!(text, String::from_utf8_lossy(&with.stdout));
    assert!(backend.counter("requests_total") > 5);
    let requests = backend.counter("requests_total");
    let elsewhere = [
        environment[0],
        environment[1],
        ("HEADWAY_OPEN_PREFIXES", "/nowhere:/usr/"),
    ];
    assert_eq!(
        text,
        String::from_utf8_lossy(&python(&root, &elsewhere).stdout)
    );
    assert_eq!(backend.counter("requests_total"), requests);
    drop(backend);
    // No service listens.
    assert_eq!(
        text,
        String::from_utf8_lossy(&python(&root, &environment).stdout)
    );
}

/// Opens a cold file with the lowest descriptor free, then with a higher one; prints the numbers it
/// got.
const LOWEST: &str = r#"
import os, sys
os.close(0)
for path in sys.argv[1:]:
    first = os.open(path, os.O_RDONLY)
    print(first, os.dup(1))
    os.close(first)
"#;

#[test]
fn program_gets_the_lowest_descriptors_when_the_service_opens_its_files() {
    const NAME: &str = "program_gets_the_lowest_descriptors_when_the_service_opens_its_files";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(NAME, "no python3");
    }
    let folder = folder();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    let socket = folder.path().join("socket");
    let backend = Backend::start(&root, &socket);
    let files = ["a", "b", "c"].map(|name| root.join(name));
    for file in &files {
        fs::write(file, [7; 96 << 10]).unwrap();
        make_cold(file);
    }
    let run = |library: &str| {
        let output = Command::new("python3")
            .args(["-c", LOWEST])
            .args(&files)
            .env("LD_PRELOAD", library)
            .env("HEADWAY_OPEN_SOCKET", &socket)
            .env("HEADWAY_OPEN_PREFIXES", &root)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let library = clients().unwrap().join("libheadway_preload.so");
    let with = run(library.to_str().unwrap());
    assert!(backend.counter("requests_total") >= 1, "nothing was cold");
    assert_eq!(with, run(""));
    assert!(with.starts_with("0 3\n0 4\n"), "{with}");
}

/// Calls each interposed function with a name that the kernel does not know yet; prints its result,
/// and whether the service was asked.
const FUNCTIONS: &str = r#"
import ctypes, sys, urllib.request
root, status = sys.argv[1:3]
# Whatever proxy the environment names.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(512)
def asked():
    text = opener.open("http://" + status + "/metrics").read().decode()
    return [line for line in text.splitlines() if line.startswith("headway_open_requests_total ")]
calls = {}
for name in ["open", "open64", "__open_2", "__open64_2"]: calls[name] = lambda path: (path, 0)
for name in ["openat", "openat64", "__openat_2", "__openat64_2"]: calls[name] = lambda path: (-100, path, 0)
for name in ["fopen", "fopen64"]: calls[name] = lambda path: (path, b"r")
for name in ["stat", "stat64", "lstat", "lstat64"]: calls[name] = lambda path: (path, room)
for name in ["fstatat", "fstatat64"]: calls[name] = lambda path: (-100, path, room, 0)
for name in ["__xstat", "__xstat64", "__lxstat", "__lxstat64"]: calls[name] = lambda path: (1, path, room)
calls["statx"] = lambda path: (-100, path, 0, 0x7ff, room)
for name in ["__fxstatat", "__fxstatat64"]: calls[name] = lambda path: (1, -100, path, room, 0)
calls["access"] = lambda path: (path, 4)
calls["faccessat"] = lambda path: (-100, path, 4, 0)
for name, words in calls.items():
    function = getattr(libc, name)
    if name.startswith("fopen"): function.restype = ctypes.c_void_p
    before = asked()
    ctypes.set_errno(0)
    got = function(*words((root + "/none-" + name).encode()))
    failed = got is None or got < 0
    print(name, "asked" if asked() != before else "silent", ctypes.get_errno() if failed else "done")
"#;

#[test]
fn intercepted_functions_query_the_service() {
    const NAME: &str = "intercepted_functions_query_the_service";
    let modules = Command::new("python3")
        .args(["-c", "import ctypes, urllib.request"])
        .output();
    if !modules.is_ok_and(|output| output.status.success()) {
        return skip(NAME, "no python3 with its modules");
    }
    let folder = folder();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    let library = clients().unwrap().join("libheadway_preload.so");
    let socket = folder.path().join("socket");
    let backend = Backend::start(&root, &socket);
    let output = Command::new("python3")
        .args(["-c", FUNCTIONS])
        .arg(&root)
        .arg(&backend.status)
        .env("LD_PRELOAD", &library)
        .env("HEADWAY_OPEN_SOCKET", &socket)
        .env("HEADWAY_OPEN_PREFIXES", &root)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{error}");
    assert_eq!(text.lines().count(), 25, "{text}");
    for line in text.lines() {
        // No such file.
        assert!(line.ends_with(" asked 2"), "{line}");
    }
}

/// Opens a FIFO by `fopen` in each mode, says so, and shows what came out of it.
const READER: &str = r#"
import ctypes, signal, sys
# Whatever becomes of the test.
signal.alarm(60)
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
room = ctypes.create_string_buffer(64)
for mode in sys.argv[2:]:
    file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), mode.encode()))
    print("opened", flush=True)
    count = libc.fread(room, 1, 64, file)
    print(room.raw[:count], flush=True)
    libc.fclose(file)
"#;

/// How often readers of a FIFO have closed it by the time that a program under `environment`, which
/// opens it in one mode after the other, has it open.
fn closings(fifo: &Path, modes: &[&str], environment: &[(&str, &str)]) -> Vec<usize> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let seen = inotify::init(flags).unwrap();
    // Repeated events of one kind are reported once; the opens between closes prevent that here.
    let kinds = inotify::WatchFlags::CLOSE_NOWRITE | inotify::WatchFlags::OPEN;
    inotify::add_watch(&seen, fifo, kinds).unwrap();
    let closed = || {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&seen, &mut space);
        let events = std::iter::from_fn(|| reader.next().ok().map(|event| event.events()));
        events
            .filter(|kind| kind.contains(inotify::ReadFlags::CLOSE_NOWRITE))
            .count()
    };
    let mut program = Command::new("python3")
        .args(["-c", READER])
        .arg(fifo)
        .args(modes)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut counts = Vec::new();
    for mode in modes {
        let mut writer = Err(std::io::ErrorKind::NotFound.into());
        wait_until("no process reads the fifo", || {
            writer = fs::File::options()
                .write(true)
                .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                .open(fifo);
            writer.is_ok()
        });
        let mut writer = writer.unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "opened", "{mode}");
        counts.push(closed());
        writer.write_all(b"contents").unwrap();
        drop(writer);
        assert_eq!(lines.next().unwrap().unwrap(), "b'contents'", "{mode}");
    }
    assert!(program.wait().unwrap().success());
    counts
}

/// Needs: the program python3: scripts/setup
#[test]
fn fifo_is_opened_once_when_a_preloaded_program_opens_it() {
    const NAME: &str = "fifo_is_opened_once_when_a_preloaded_program_opens_it";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(NAME, "no python3");
    }
    let folder = folder();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    let fifo = root.join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // The last two mean more than how to open, and go through.
    let modes = ["r", "rb", "re", "rbe", "rc", "rm"];
    // The end of the one before.
    let expected = [0, 1, 1, 1, 1, 1];
    assert_eq!(closings(&fifo, &modes, &[]), expected);
    let library = clients().unwrap().join("libheadway_preload.so");
    let socket = folder.path().join("socket");
    let backend = Backend::start(&root, &socket);
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("HEADWAY_OPEN_SOCKET", socket.to_str().unwrap()),
        ("HEADWAY_OPEN_PREFIXES", root.to_str().unwrap()),
    ];
    assert_eq!(closings(&fifo, &modes, &environment), expected);
    // The kernel knows the name.
    assert_eq!(backend.counter("requests_total"), 0);
}

/// Opens files by `fopen` in modes of all kinds; says what a caller can see of each.
const MODES: &str = r#"
import ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = libc.fopen64.restype = ctypes.c_void_p
room = ctypes.create_string_buffer(64)
for mode in ["r", "rb", "re", "reb", "rm", "rc", "rx", "r,ccs=UTF-8", "r,ccs=none", "r+", "r+e", "rb+", "w", "a", "", "q"]:
    for name in ["file", "folder", "none", "link"]:
        for opened in libc.fopen, libc.fopen64:
            ctypes.set_errno(0)
            file = opened(os.path.join(sys.argv[1], name).encode(), mode.encode())
            if file is None:
                print(mode, name, ctypes.get_errno())
                continue
            file = ctypes.c_void_p(file)
            fd = libc.fileno(file)
            print(mode, name, ctypes.get_errno(), fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD))
            count = libc.fread(room, 1, 5, file)
            print(count, room.raw[:count], libc.ftell(file), libc.fseek(file, 2, 0), libc.fgetc(file), libc.fclose(file))
"#;

/// Needs: the program python3: scripts/setup
#[test]
fn streams_are_the_same_in_every_mode_when_a_program_is_preloaded() {
    const NAME: &str = "streams_are_the_same_in_every_mode_when_a_program_is_preloaded";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(NAME, "no python3");
    }
    let folder = folder();
    let root = folder.path().join("root");
    let run = |environment: &[(&str, &str)]| {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("folder")).unwrap();
        fs::write(root.join("file"), "the contents").unwrap();
        std::os::unix::fs::symlink("file", root.join("link")).unwrap();
        let output = Command::new("python3")
            .args(["-c", MODES])
            .arg(&root)
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let expected = run(&[]);
    assert!(
        expected.contains("re file 0 32768 1\n5 b'the c' 5 0 101 0\n"),
        "{expected}"
    );
    let library = clients().unwrap().join("libheadway_preload.so");
    let socket = folder.path().join("socket");
    let backend = Backend::start(folder.path(), &socket);
    let actual = run(&[
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("HEADWAY_OPEN_SOCKET", socket.to_str().unwrap()),
        ("HEADWAY_OPEN_PREFIXES", root.to_str().unwrap()),
    ]);
    assert_eq!(expected, actual);
    drop(backend);
}
