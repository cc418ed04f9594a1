//! The preload shim: unchanged programs behave as without it, and the service is asked.

use super::support::{Backend, clients, folder, make_cold, skip};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
    let asked = backend.counter("requests_total");
    let elsewhere = [
        environment[0],
        environment[1],
        ("HEADWAY_OPEN_PREFIXES", "/nowhere:/usr/"),
    ];
    assert_eq!(
        text,
        String::from_utf8_lossy(&python(&root, &elsewhere).stdout)
    );
    assert_eq!(backend.counter("requests_total"), asked);
    drop(backend);
    // Nobody listens.
    assert_eq!(
        text,
        String::from_utf8_lossy(&python(&root, &environment).stdout)
    );
}
