//! What is answered, which says nothing about a file; and that nothing is opened outside the roots
//! or without the right to.

use super::running::*;
use headway_files::service::wire::Answered;
use headway_test_support::{is_root, skip};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A file, a directory and names that cannot be opened, each with what the service counts.
fn paths(running: &RunningService) -> Vec<(PathBuf, [u64; 3])> {
    let file = running.put("file", b"x");
    fs::create_dir(running.path("directory")).unwrap();
    symlink("/etc/passwd", running.path("out")).unwrap();
    let fifo = running.path("fifo");
    let (kind, mode) = (rustix::fs::FileType::Fifo, 0o600.into());
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    vec![
        (file.clone(), FILE),
        (running.path("directory"), DIRECTORY),
        (running.path("directory/"), DIRECTORY),
        (running.path(""), DIRECTORY),
        (running.path("none"), FAILED),
        (file.join("below"), FAILED),
        (running.path(&"n".repeat(300)), FAILED),
        // Out of the root, by a symbolic link and by name.
        (running.path("out"), FAILED),
        (running.path("../socket"), FAILED),
        (running.path("directory/../file"), FAILED),
        // Opening it would wait for a writer.
        (fifo, FAILED),
    ]
}

#[test]
fn results_are_counted_when_names_are_files_directories_or_cannot_be_opened() {
    let running = RunningService::new();
    let mut client = running.client();
    for (path, expected) in paths(&running) {
        assert_eq!(running.result(&mut client, &path), expected, "{path:?}");
    }
    let outside = client.answer(Path::new("/etc/passwd"));
    assert_eq!(outside, Answered::Elsewhere);
}

#[test]
fn answers_are_equal_when_files_exist_or_not() {
    let running = RunningService::new();
    let mut answers = paths(&running).into_iter().map(|(path, _)| {
        let client = running.client();
        client.send(&request(7, &path));
        client.receive_bytes()
    });
    let first = answers.next().unwrap();
    assert_eq!(first.len(), 16);
    assert!(answers.all(|other| other == first));
}

#[test]
fn every_name_is_found_when_it_has_any_bytes() {
    let running = RunningService::new();
    let mut client = running.client();
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        let path = running.path("").join(OsStr::from_bytes(&[b'n', byte]));
        fs::write(&path, [byte]).unwrap();
        assert_eq!(running.result(&mut client, &path), FILE, "{byte}");
    }
}

#[test]
fn new_file_is_looked_up_when_it_has_replaced_a_cached_one() {
    let running = RunningService::new();
    let path = running.put("f", b"old");
    let mut client = running.client();
    let hits = || running.remote().statistics().unwrap().hits;
    assert_eq!(running.result(&mut client, &path), FILE);
    assert_eq!(running.result(&mut client, &path), FILE);
    assert_eq!(hits(), 1);
    let new = running.put("new", b"new");
    fs::rename(new, &path).unwrap();
    assert_eq!(running.result(&mut client, &path), FILE);
    assert_eq!(hits(), 1, "the old file was taken for the new one");
    assert_eq!(running.result(&mut client, &path), FILE);
    assert_eq!(hits(), 2);
    fs::remove_file(&path).unwrap();
    assert_eq!(running.result(&mut client, &path), FAILED);
}

/// Needs: a user other than root: root may read every file
#[test]
fn nothing_is_opened_when_the_service_may_not_read_it() {
    if is_root() {
        return skip(
            "nothing_is_opened_when_the_service_may_not_read_it",
            "root may read every file",
        );
    }
    let running = RunningService::new();
    let path = running.put("f", b"x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(running.result(&mut running.client(), &path), FAILED);
}
