//! What a path resolves to: the loop's way, the helper's way, and both alike.

use crate::common;
use common::{ROOT, answer_text, as_nobody, directory, put, raw_answer_text, roots};
use headway_files::{
    AbsentSiblings, Answer, DeferredCloses, Failure, LoopResolver, Probe, RawAnswer, Revalidation,
    Roots, resolve_blocking,
};
use headway_test_support::{is_root, skip};
use proptest::prelude::*;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;

/// Drops what it is given.
fn on_loop<T>(roots: &Roots, resolve: impl FnOnce(LoopResolver<'_>) -> T) -> T {
    let deferred = &DeferredCloses::new();
    resolve(LoopResolver { roots, deferred })
}

/// The loop's answer after a helper has warmed the kernel's cache; `None` if the kernel does not
/// answer from it. The kernel may evict the name at any time, so it is tried a few times.
fn warm(roots: &Roots, path: &str) -> Option<Answer> {
    (0..20).find_map(|_| {
        resolve_blocking(roots, ROOT, path.as_bytes());
        match on_loop(roots, |resolver| {
            resolver.resolve_cached(ROOT, path.as_bytes())
        }) {
            Probe::Answered(answer) => Some(answer),
            Probe::WouldBlock => None,
        }
    })
}

/// The loop's answer where there must be one.
fn cached(roots: &Roots, path: &str) -> Answer {
    warm(roots, path).unwrap_or_else(|| panic!("{path}: the loop has no answer"))
}

/// The helper's answer in words; if the loop has one, it must be the same.
fn answer(roots: &Roots, path: &str) -> String {
    let blocking = raw_answer_text(&resolve_blocking(roots, ROOT, path.as_bytes()));
    if let Some(answer) = warm(roots, path) {
        assert_eq!(answer_text(&answer), blocking, "{path}");
    }
    blocking
}

fn failure(roots: &Roots, path: &str) -> Option<Failure> {
    answer(roots, path);
    match resolve_blocking(roots, ROOT, path.as_bytes()) {
        RawAnswer::Failed(failure) => Some(failure),
        _ => None,
    }
}

fn inode(directory: &Path, name: &str) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(directory.join(name)).unwrap())
}

fn file(directory: &Path, name: &str) -> String {
    format!("file {} None [None, None, None]", inode(directory, name))
}

#[test]
fn file_is_found_when_it_lies_in_nested_directories() {
    let tree = directory();
    put(tree.path(), "a/b/c.html", b"deep");
    let roots = roots(tree.path(), &[], false);
    assert_eq!(
        answer(&roots, "a/b/c.html"),
        file(tree.path(), "a/b/c.html")
    );
    assert_eq!(answer(&roots, "a/b/d.html"), "NotFound");
    assert_eq!(answer(&roots, "a/b/c.html/d"), "NotFound");
}

#[test]
fn metadata_is_the_files_when_it_is_opened() {
    let tree = directory();
    put(tree.path(), "five", b"12345");
    let roots = roots(tree.path(), &[], false);
    let Answer::File(found) = cached(&roots, "five") else {
        panic!("no file")
    };
    let metadata = fs::metadata(tree.path().join("five")).unwrap();
    let modified = metadata
        .modified()
        .unwrap()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert_eq!(found.file.meta().size, 5);
    assert_eq!(found.file.meta().modified.0, modified.as_secs() as i64);
    assert_eq!(found.file.meta().modified.1, modified.subsec_nanos());
    assert!(found.file.open().unwrap().unchanged().unwrap());
    put(tree.path(), "five", b"123456");
    assert!(!found.file.open().unwrap().unchanged().unwrap());
}

#[test]
fn opened_file_is_unchanged_when_only_its_name_goes() {
    let tree = directory();
    put(tree.path(), "a", b"12345");
    let roots = roots(tree.path(), &[], false);
    let Answer::File(found) = cached(&roots, "a") else {
        panic!("no file")
    };
    fs::rename(tree.path().join("a"), tree.path().join("b")).unwrap();
    fs::remove_file(tree.path().join("b")).unwrap();
    assert!(found.file.open().unwrap().unchanged().unwrap());
}

#[test]
fn first_existing_index_file_is_used_when_a_directory_is_requested() {
    let tree = directory();
    put(tree.path(), "d/index.htm", b"x");
    put(tree.path(), "both/index.html", b"x");
    put(tree.path(), "both/index.htm", b"x");
    put(tree.path(), "none/other", b"x");
    put(tree.path(), "odd/index.html/inner", b"x");
    put(tree.path(), "odd/index.htm", b"x");
    let roots = roots(tree.path(), &["index.html", "index.htm"], false);
    let index = |name: &str, position: u16| {
        format!(
            "file {} Some({position}) [None, None, None]",
            inode(tree.path(), name)
        )
    };
    assert_eq!(answer(&roots, "d/"), index("d/index.htm", 1));
    assert_eq!(answer(&roots, "both/"), index("both/index.html", 0));
    assert_eq!(answer(&roots, "odd/"), index("odd/index.htm", 1));
    assert_eq!(answer(&roots, "none/"), "directory");
    assert_eq!(answer(&roots, ""), "directory");
    assert_eq!(answer(&roots, "missing/"), "NotFound");
    put(tree.path(), "index.html", b"x");
    assert_eq!(answer(&roots, ""), index("index.html", 0));
}

#[test]
fn slash_decides_when_directories_and_files_are_confused() {
    let tree = directory();
    put(tree.path(), "d/f", b"x");
    let roots = roots(tree.path(), &[], false);
    assert_eq!(answer(&roots, "d"), "redirect");
    assert_eq!(answer(&roots, "d/"), "directory");
    assert_eq!(failure(&roots, "d/f/"), Some(Failure::NotFound));
}

#[test]
fn symlink_is_followed_when_it_stays_inside() {
    let tree = directory();
    put(tree.path(), "a/f", b"x");
    symlink("a/f", tree.path().join("to-file")).unwrap();
    symlink("a", tree.path().join("to-directory")).unwrap();
    symlink("../a/f", tree.path().join("a/up-and-back")).unwrap();
    let roots = roots(tree.path(), &[], false);
    for name in ["to-file", "to-directory/f", "a/up-and-back"] {
        assert_eq!(answer(&roots, name), file(tree.path(), "a/f"), "{name}");
    }
    assert_eq!(answer(&roots, "to-directory"), "redirect");
}

#[test]
fn path_is_forbidden_when_it_leads_out_of_the_root() {
    let tree = directory();
    put(tree.path(), "secret", b"x");
    put(tree.path(), "site/d/f", b"x");
    symlink("../secret", tree.path().join("site/out")).unwrap();
    symlink("..", tree.path().join("site/out-directory")).unwrap();
    symlink("/etc/passwd", tree.path().join("site/absolute")).unwrap();
    symlink("loop-b", tree.path().join("site/loop-a")).unwrap();
    symlink("loop-a", tree.path().join("site/loop-b")).unwrap();
    let roots = roots(&tree.path().join("site"), &[], false);
    for path in [
        "out",
        "out-directory/secret",
        "absolute",
        "loop-a",
        "../secret",
        "d/../../secret",
        "..",
        "/etc/passwd",
    ] {
        assert_eq!(failure(&roots, path), Some(Failure::Forbidden), "{path}");
    }
}

#[test]
fn special_file_is_not_opened_when_requested() {
    let tree = directory();
    let fifo = tree.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _listener = UnixListener::bind(tree.path().join("socket")).unwrap();
    let roots = roots(tree.path(), &["fifo"], false);
    // Opening a FIFO would wake a writer that waits for a reader. inotify sees every opening but
    // `O_PATH`.
    let seen = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&seen, &fifo, WatchFlags::OPEN).unwrap();
    for path in ["fifo", "socket", ""] {
        assert_eq!(failure(&roots, path), Some(Failure::NotRegular), "{path}");
    }
    assert_eq!(
        rustix::io::read(&seen, &mut [0; 512]),
        Err(Errno::AGAIN),
        "it was opened"
    );
}

#[test]
fn device_is_not_opened_when_requested() {
    let tree = directory();
    let node = tree.path().join("null");
    let made = mknodat(
        CWD,
        &node,
        FileType::CharacterDevice,
        Mode::RUSR,
        makedev(1, 3),
    );
    if made.is_err() {
        return skip(
            "device_is_not_opened_when_requested",
            "mknod needs CAP_MKNOD",
        );
    }
    let roots = roots(tree.path(), &[], false);
    assert_eq!(failure(&roots, "null"), Some(Failure::NotRegular));
}

#[test]
fn name_is_too_long_when_a_component_exceeds_255_bytes() {
    let tree = directory();
    let longest = "n".repeat(255);
    put(tree.path(), &longest, b"x");
    let roots = roots(tree.path(), &[], true);
    assert_eq!(answer(&roots, &longest), file(tree.path(), &longest));
    assert_eq!(
        failure(&roots, &"n".repeat(256)),
        Some(Failure::NameTooLong)
    );
    assert_eq!(
        failure(&roots, &"d/".repeat(2500)),
        Some(Failure::NameTooLong)
    );
    assert_eq!(failure(&roots, "nul\0inside"), Some(Failure::NotFound));
}

#[test]
fn only_regular_precompressed_files_are_found_when_requested() {
    let tree = directory();
    for name in [
        "a.js",
        "a.js.br",
        "a.js.gz",
        "b.js",
        "b.js.zst/inner",
        "index.html",
        "index.html.gz",
    ] {
        put(tree.path(), name, b"x");
    }
    symlink("/etc/passwd", tree.path().join("b.js.gz")).unwrap();
    let with = roots(tree.path(), &["index.html"], true);
    let of = |name| inode(tree.path(), name);
    let a = format!(
        "file {} None [Some({}), None, Some({})]",
        of("a.js"),
        of("a.js.br"),
        of("a.js.gz")
    );
    assert_eq!(answer(&with, "a.js"), a);
    assert_eq!(answer(&with, "b.js"), file(tree.path(), "b.js"));
    let index = format!(
        "file {} Some(0) [None, None, Some({})]",
        of("index.html"),
        of("index.html.gz")
    );
    assert_eq!(answer(&with, ""), index);
    let without = roots(tree.path(), &[], false);
    assert_eq!(answer(&without, "a.js"), file(tree.path(), "a.js"));
}

/// Warm names are the bulk of all requests; were one of them left to helpers, the server would be
/// slow and every other test still green.
#[test]
fn loop_resolves_a_cached_name_without_a_helper() {
    let tree = directory();
    put(tree.path(), "d/index.html", b"x");
    put(tree.path(), "e/f", b"x");
    symlink("../d/index.html", tree.path().join("e/link")).unwrap();
    let roots = roots(tree.path(), &["index.html"], true);
    for (path, start) in [
        ("d/index.html", "file"),
        ("d/", "file"),
        ("e/link", "file"),
        ("d", "redirect"),
        ("e/", "directory"),
        ("e/missing", "NotFound"),
        ("missing/", "NotFound"),
    ] {
        let text = answer_text(&cached(&roots, path));
        assert!(text.starts_with(start), "{path}: {text}");
    }
}

#[test]
fn helper_resolves_a_name_that_is_not_cached() {
    const TEST: &str = "helper_resolves_a_name_that_is_not_cached";
    let tree = directory();
    put(tree.path(), "cold/name", b"x");
    let roots = roots(tree.path(), &[], false);
    for _ in 0..20 {
        if fs::write("/proc/sys/vm/drop_caches", "2").is_err() {
            return skip(TEST, "dropping the name cache needs root");
        }
        let probe = on_loop(&roots, |resolver| {
            resolver.resolve_cached(ROOT, b"cold/name")
        });
        if let Probe::WouldBlock = probe {
            return;
        }
    }
    // A file system that lives in memory has no cold names.
    skip(TEST, "the names of this file system stay cached");
}

#[test]
fn file_is_forbidden_when_it_is_unreadable() {
    let tree = directory();
    put(tree.path(), "mine", b"x");
    put(tree.path(), "closed/f", b"x");
    fs::set_permissions(tree.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["mine", "closed"] {
        fs::set_permissions(tree.path().join(name), fs::Permissions::from_mode(0o0)).unwrap();
    }
    as_nobody(|| {
        let roots: &Roots = &roots(tree.path(), &[], false);
        assert_eq!(answer(roots, "mine"), "Forbidden");
        assert_eq!(answer(roots, "closed/f"), "Forbidden");
    });
    fs::set_permissions(
        tree.path().join("closed"),
        fs::Permissions::from_mode(0o700),
    )
    .unwrap();
}

/// Another user's file cannot be opened with `O_NOATIME`, and reading it may have to write the
/// access time: helpers open such files.
#[test]
fn helper_opens_a_file_when_o_noatime_is_not_permitted() {
    const TEST: &str = "helper_opens_a_file_when_o_noatime_is_not_permitted";
    if !is_root() {
        return skip(TEST, "giving a file to another user needs root");
    }
    let tree = directory();
    put(tree.path(), "theirs", b"x");
    chown(tree.path().join("theirs"), Some(4321), None).unwrap();
    fs::set_permissions(tree.path(), fs::Permissions::from_mode(0o755)).unwrap();
    as_nobody(|| {
        let roots: &Roots = &roots(tree.path(), &[], false);
        let opened = raw_answer_text(&resolve_blocking(roots, ROOT, b"theirs"));
        assert_eq!(opened, file(tree.path(), "theirs"));
        let probe = on_loop(roots, |resolver| resolver.resolve_cached(ROOT, b"theirs"));
        assert!(matches!(probe, Probe::WouldBlock), "{probe:?}");
    });
}

#[test]
fn unknown_root_has_no_files() {
    let none = Roots::open(&[]).unwrap();
    assert_eq!(failure(&none, "a"), Some(Failure::NotFound));
}

#[test]
fn error_names_the_directory_when_a_root_cannot_be_opened() {
    let tree = directory();
    put(tree.path(), "file", b"x");
    for (name, why) in [("missing", "No such file"), ("file", "Not a directory")] {
        let directory = tree.path().join(name);
        let config = headway_files::RootConfig {
            directory,
            index: vec![],
            siblings: false,
            dotfiles: false,
            symlinks: Default::default(),
            rules: Vec::new(),
        };
        let said = Roots::open(&[config]).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains(why), "{said}");
    }
}

/// What revalidation says of the answer given before `change`.
fn revalidated(
    tree: &Path,
    roots: &Rc<Roots>,
    path: &str,
    change: impl FnOnce(&Path),
) -> Revalidation {
    let before = cached(roots, path);
    let again = || {
        let path = path.as_bytes();
        on_loop(roots, |resolver| {
            resolver.revalidate_cached(ROOT, path, &before, AbsentSiblings::Probe)
        })
    };
    assert_eq!(warmed(roots, path, again), Revalidation::Same, "{path}");
    change(tree);
    warmed(roots, path, again)
}

/// The result of a lookup after a helper has done it. A rename or a mount anywhere on the machine
/// makes the kernel answer that it would block (openat2(2), `EAGAIN`), so it is tried again.
fn warmed(roots: &Rc<Roots>, path: &str, lookup: impl Fn() -> Revalidation) -> Revalidation {
    let tries = (0..100).map(|_| {
        resolve_blocking(roots, ROOT, path.as_bytes());
        lookup()
    });
    let mut decided = tries.skip_while(|found| *found == Revalidation::WouldBlock);
    decided.next().unwrap_or(Revalidation::WouldBlock)
}

#[test]
fn only_new_precompressed_files_are_missed_when_absent_ones_are_not_probed() {
    let check = |path: &str, change: &dyn Fn(&Path), expected: [Revalidation; 2]| {
        let tree = directory();
        let tree = tree.path();
        put(tree, "plain", b"x");
        put(tree, "zipped", b"x");
        put(tree, "zipped.gz", b"x");
        let roots = roots(tree, &[], true);
        let before = cached(&roots, path);
        change(tree);
        let found = [AbsentSiblings::AssumeAbsent, AbsentSiblings::Probe].map(|absent| {
            warmed(&roots, path, || {
                let path = path.as_bytes();
                on_loop(&roots, |resolver| {
                    resolver.revalidate_cached(ROOT, path, &before, absent)
                })
            })
        });
        assert_eq!(found, expected, "{path}");
    };
    let (same, changed) = (Revalidation::Same, Revalidation::Changed);
    let appears = |tree: &Path| put(tree, "plain.br", b"x");
    check("plain", &appears, [same, changed]);
    let is_edited = |tree: &Path| put(tree, "plain", b"longer");
    check("plain", &is_edited, [changed, changed]);
    let goes = |tree: &Path| fs::remove_file(tree.join("zipped.gz")).unwrap();
    check("zipped", &goes, [changed, changed]);
    let has_another = |tree: &Path| put(tree, "zipped.br", b"x");
    check("zipped", &has_another, [same, changed]);
}

#[test]
fn change_is_noticed_when_an_answer_is_revalidated() {
    let tree = directory();
    let tree = tree.path();
    for name in [
        "edited", "replaced", "new", "deleted", "locked", "z", "zipped", "d/second",
    ] {
        put(tree, name, b"x");
    }
    let roots = roots(tree, &["first", "second"], true);
    let check = |path: &str, change: &dyn Fn(&Path)| {
        assert_eq!(
            revalidated(tree, &roots, path, change),
            Revalidation::Changed,
            "{path}"
        );
    };
    check("edited", &|tree| put(tree, "edited", b"longer"));
    check("replaced", &|tree| {
        fs::rename(tree.join("new"), tree.join("replaced")).unwrap()
    });
    check("deleted", &|tree| {
        fs::remove_file(tree.join("deleted")).unwrap()
    });
    check("locked", &|tree| {
        fs::set_permissions(tree.join("locked"), fs::Permissions::from_mode(0o0)).unwrap();
    });
    check("created", &|tree| put(tree, "created", b"x"));
    check("zipped", &|tree| put(tree, "zipped.gz", b"x"));
    check("zipped", &|tree| put(tree, "zipped.gz", b"longer"));
    check("zipped", &|tree| {
        fs::remove_file(tree.join("zipped.gz")).unwrap()
    });
    check("d/", &|tree| put(tree, "d/first", b"x"));
    check("d", &|tree| {
        fs::rename(tree.join("d"), tree.join("e")).unwrap()
    });
    let unrelated = |tree: &Path| put(tree, "unrelated", b"x");
    assert_eq!(
        revalidated(tree, &roots, "z", unrelated),
        Revalidation::Same
    );
}

#[test]
fn answer_holds_when_nothing_but_the_access_time_changes() {
    let tree = directory();
    put(tree.path(), "read", b"x");
    let roots = roots(tree.path(), &[], false);
    let read = |tree: &Path| drop(fs::read(tree.join("read")).unwrap());
    assert_eq!(
        revalidated(tree.path(), &roots, "read", read),
        Revalidation::Same
    );
}

/// FileCache of a tree small enough for paths to meet by chance.
fn component() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "index.html", "a.gz", "..", "."])
}

fn path() -> impl Strategy<Value = String> {
    let components = prop::collection::vec(component(), 0..4);
    (components, any::<bool>()).prop_map(|(components, slash)| {
        let path = components.join("/");
        if slash && !path.is_empty() {
            format!("{path}/")
        } else {
            path
        }
    })
}

#[derive(Clone, Debug)]
enum Node {
    File(String),
    Directory(String),
    Symlink(String, String),
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        path().prop_map(Node::File),
        path().prop_map(Node::Directory),
        (path(), path()).prop_map(|(name, target)| Node::Symlink(name, target)),
    ]
}

fn make(root: &Path, nodes: &[Node]) {
    // Many of these fail on one another; whatever tree comes of it will do. No name leaves the
    // directory, since each has at most three components.
    let inside = root.join("1/2/3/root");
    fs::create_dir_all(&inside).unwrap();
    for node in nodes {
        let _ = match node {
            Node::File(name) => fs::write(inside.join(name), name),
            Node::Directory(name) => fs::create_dir_all(inside.join(name)),
            Node::Symlink(name, target) => symlink(target, inside.join(name)),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn loop_and_helper_agree_when_the_tree_is_random(
        nodes in prop::collection::vec(node(), 0..12),
        paths in prop::collection::vec(path(), 1..12),
        siblings: bool,
    ) {
        let tree = directory();
        make(tree.path(), &nodes);
        let roots = roots(&tree.path().join("1/2/3/root"), &["index.html", "a"], siblings);
        for path in &paths {
            answer(&roots, path);
            let Some(now) = warm(&roots, path) else { continue };
            let name = path.as_bytes();
            let again = on_loop(&roots, |resolver| resolver.revalidate_cached(ROOT, name, &now, AbsentSiblings::Probe));
            prop_assert_ne!(again, Revalidation::Changed, "{}", path);
        }
    }
}
