use super::*;
use std::time::UNIX_EPOCH;

const NOW: SystemTime = UNIX_EPOCH;

const OWNERSHIP: Ownership = Ownership {
    user: 7,
    group: 8,
    permissions: 0o640,
};

fn tree() -> Tree {
    Tree::new(100, NOW)
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Makes a file in the top directory and returns its number.
fn file(tree: &mut Tree, file_name: &str, bytes: &[u8]) -> u64 {
    let made = tree.make(ROOT, name(file_name), New::File, OWNERSHIP, NOW);
    let number = made.expect("a new name").ino.0;
    tree.write(number, 0, bytes, NOW).expect("room");
    number
}

fn code(error: Errno) -> i32 {
    error.code()
}

#[test]
fn written_bytes_are_read_and_holes_are_zeros() {
    let mut tree = tree();
    let number = file(&mut tree, "a", b"abc");
    tree.write(number, 5, b"x", NOW).expect("room");
    assert_eq!(tree.read(number, 0, 100).expect("a file"), b"abc\0\0x");
    assert_eq!(tree.read(number, 4, 1).expect("a file"), b"\0");
    assert_eq!(tree.read(number, 9, 1).expect("a file"), b"");
    let attributes = tree.attributes(number).expect("there");
    assert_eq!(
        (attributes.size, attributes.uid, attributes.perm),
        (6, 7, 0o640)
    );
}

#[test]
fn file_keeps_its_bytes_when_it_is_deleted_while_the_kernel_knows_it() {
    let mut tree = tree();
    let number = file(&mut tree, "a", b"abc");
    tree.remove(ROOT, name("a"), false, NOW).expect("there");
    assert_eq!(tree.read(number, 0, 3).expect("still known"), b"abc");
    tree.forget(number, 1);
    let error = tree.read(number, 0, 3).expect_err("gone");
    assert_eq!(code(error), code(Errno::ESTALE));
    assert_eq!(tree.used_and_capacity_bytes(), (0, 100));
}

#[test]
fn rename_replaces_a_file_in_one_step() {
    let mut tree = tree();
    let old = file(&mut tree, "page", b"old");
    let new = file(&mut tree, "page.new", b"new");
    let (from, to) = ((ROOT, name("page.new")), (ROOT, name("page")));
    let refused = tree.rename(from, to, false, NOW).expect_err("it exists");
    assert_eq!(code(refused), code(Errno::EEXIST));
    tree.rename(from, to, true, NOW).expect("both are there");
    assert_eq!(tree.look_up(ROOT, name("page")).expect("there").ino.0, new);
    assert_eq!(tree.read(old, 0, 3).expect("still known"), b"old");
    let absent = tree.look_up(ROOT, name("page.new")).expect_err("moved");
    assert_eq!(code(absent), code(Errno::ENOENT));
}

#[test]
fn numbers_are_stale_after_a_restart_and_names_lead_to_new_ones() {
    let mut tree = tree();
    let before = file(&mut tree, "a", b"abc");
    tree.restart();
    let error = tree.attributes(before).expect_err("stale");
    assert_eq!(code(error), code(Errno::ESTALE));
    let after = tree.look_up(ROOT, name("a")).expect("there").ino.0;
    assert_ne!(before, after);
    assert_eq!(tree.read(after, 0, 3).expect("a file"), b"abc");
}

#[test]
fn cached_bytes_are_kept_only_while_the_file_is_unchanged() {
    let mut tree = tree();
    let number = file(&mut tree, "a", b"abc");
    assert!(tree.open(number).expect("there"), "the kernel wrote these");
    tree.forget(number, 1);
    tree.look_up(ROOT, name("a")).expect("there");
    assert!(!tree.open(number).expect("there"), "the kernel has none");
    assert!(tree.open(number).expect("there"));
}

#[test]
fn directory_is_removed_only_when_empty() {
    let mut tree = tree();
    let made = tree.make(ROOT, name("d"), New::Directory, OWNERSHIP, NOW);
    let directory = made.expect("a new name").ino.0;
    tree.make(directory, name("f"), New::File, OWNERSHIP, NOW)
        .expect("a new name");
    let full = tree.remove(ROOT, name("d"), true, NOW).expect_err("full");
    assert_eq!(code(full), code(Errno::ENOTEMPTY));
    let kind = tree
        .remove(ROOT, name("d"), false, NOW)
        .expect_err("no file");
    assert_eq!(code(kind), code(Errno::EISDIR));
    tree.remove(directory, name("f"), false, NOW)
        .expect("there");
    tree.remove(ROOT, name("d"), true, NOW).expect("empty");
    assert!(tree.entries(ROOT).expect("a directory").is_empty());
}

#[test]
fn write_fails_when_the_capacity_is_used() {
    let mut tree = tree();
    let number = file(&mut tree, "a", &[1; 60]);
    let other = file(&mut tree, "b", &[1; 40]);
    let full = tree.write(other, 40, b"x", NOW).expect_err("no room");
    assert_eq!(code(full), code(Errno::ENOSPC));
    let smaller = Change {
        size: Some(10),
        ..Change::default()
    };
    tree.change(number, smaller, NOW).expect("there");
    tree.write(other, 40, b"x", NOW).expect("room again");
    assert_eq!(tree.used_and_capacity_bytes(), (51, 100));
}

#[test]
fn known_nodes_are_those_that_the_kernel_has_not_forgotten() {
    let mut tree = tree();
    let number = file(&mut tree, "a", b"abc");
    tree.look_up(ROOT, name("a")).expect("there");
    assert_eq!(tree.known(), 1);
    tree.forget(number, 1);
    assert_eq!(tree.known(), 1);
    tree.forget(number, 1);
    assert_eq!(tree.known(), 0);
    assert_eq!(tree.count(), 2);
}
