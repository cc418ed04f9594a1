//! What is answered: open files, what names are that are none, and nothing that the service may not
//! open.

use crate::common::{is_root, skip};
use crate::running::*;
use headway_files::service::wire::Answered;
use rustix::io::{Errno, pread};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

#[test]
fn file_is_passed_open_and_read_in_when_it_is_asked_for() {
    let running = Running::new();
    let path = running.put("a/b.html", b"contents");
    let (answered, files) = running.client().answer(&path);
    let Answered::File {
        meta,
        descriptor: true,
        in_memory: true,
    } = answered
    else {
        panic!("{answered:?}");
    };
    assert_eq!(meta.inode, fs::metadata(&path).unwrap().ino());
    assert_eq!(meta.device, fs::metadata(&path).unwrap().dev());
    let mut buffer = [0; 9];
    assert_eq!(pread(&files[0], &mut buffer, 0).unwrap(), 8);
    assert_eq!(&buffer[..8], b"contents");
}

#[test]
fn answer_says_what_a_name_is_when_it_is_no_file() {
    let running = Running::new();
    let file = running.put("file", b"x");
    fs::create_dir(running.path("directory")).unwrap();
    symlink("/etc/passwd", running.path("out")).unwrap();
    let mut client = running.client();
    let mut answered = |path: &Path| client.answer(path).0;
    let failed = |errno: Errno| Answered::Failed {
        errno: errno.raw_os_error() as u32,
    };
    assert_eq!(answered(&running.path("directory")), Answered::Directory);
    assert_eq!(answered(&running.path("directory/")), Answered::Directory);
    assert_eq!(answered(&running.path("")), Answered::Directory);
    assert_eq!(answered(&running.path("none")), failed(Errno::NOENT));
    assert_eq!(answered(&file.join("below")), failed(Errno::NOENT));
    let long = "n".repeat(300);
    assert_eq!(answered(&running.path(&long)), failed(Errno::NAMETOOLONG));
    // Out of the root, by a symbolic link and by name.
    assert_eq!(answered(&running.path("out")), failed(Errno::ACCESS));
    let up = running.path("../socket");
    assert_eq!(answered(&up), failed(Errno::ACCESS));
    assert_eq!(answered(Path::new("/etc/passwd")), Answered::Elsewhere);
}

#[test]
fn fifo_is_never_opened_when_it_lies_in_a_root() {
    let running = Running::new();
    let fifo = running.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let answered = running.client().answer(&fifo).0;
    assert!(matches!(answered, Answered::Failed { .. }), "{answered:?}");
}

#[test]
fn every_name_is_found_when_it_has_any_bytes() {
    use std::ffi::OsStr;
    let running = Running::new();
    let mut client = running.client();
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        let path = running.path("").join(OsStr::from_bytes(&[b'n', byte]));
        fs::write(&path, [byte]).unwrap();
        let (_, files) = client.answer(&path);
        let mut buffer = [0; 2];
        assert_eq!(pread(&files[0], &mut buffer, 0).unwrap(), 1);
        assert_eq!(buffer[0], byte);
    }
}

#[test]
fn new_file_is_answered_when_it_has_replaced_one_that_was_remembered() {
    let running = Running::new();
    let path = running.put("f", b"old");
    let mut client = running.client();
    let inode = |answered| match answered {
        Answered::File { meta, .. } => meta.inode,
        other => panic!("{other:?}"),
    };
    let old = inode(client.answer(&path).0);
    let new = running.put("new", b"new");
    fs::rename(new, &path).unwrap();
    let now = inode(client.answer(&path).0);
    assert_ne!(now, old);
    assert_eq!(now, fs::metadata(&path).unwrap().ino());
    fs::remove_file(&path).unwrap();
    assert!(matches!(client.answer(&path).0, Answered::Failed { .. }));
}

#[test]
fn nothing_is_opened_when_the_service_may_not_read_it() {
    if is_root() {
        return skip(
            "nothing_is_opened_when_the_service_may_not_read_it",
            "root may read every file",
        );
    }
    let running = Running::new();
    let path = running.put("f", b"x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let answered = running.client().answer(&path).0;
    let errno = Errno::ACCESS.raw_os_error() as u32;
    assert_eq!(answered, Answered::Failed { errno });
}

#[test]
fn no_descriptor_is_left_when_thousands_were_passed() {
    let running = Running::new();
    let paths: Vec<_> = (0..20)
        .map(|n| running.put(&format!("f{n}"), b"x"))
        .collect();
    let mut client = running.client();
    for path in &paths {
        client.answer(path);
    }
    // Other tests of this process open files meanwhile, but not thousands that stay.
    let before = open_descriptors();
    for path in paths.iter().cycle().take(5000) {
        let (answered, files) = client.answer(path);
        assert!(matches!(answered, Answered::File { .. }) && files.len() == 1);
    }
    let after = open_descriptors();
    assert!(after < before + 2000, "{before} before, {after} after");
}
