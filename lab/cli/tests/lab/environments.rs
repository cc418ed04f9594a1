//! Environments in which opening or reading a file waits today: many files, writers beside the
//! server, an overlay. Each does what it says, and leaves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use headway_test_support::client::{counter, get, receive, send};
use headway_test_support::server::Server;

use crate::common;

use super::support::{Lab, can, headway_lab, text, traces_of, wait_until};

const FAST: [&str; 4] = ["--disk", "nvme", "--disk-size", "400MiB"];

fn up(more: &[&str]) -> Lab {
    Lab::up(&[&FAST[..], more].concat())
}

fn mount_point(lab: &Lab) -> PathBuf {
    lab.directory().join("disk/files")
}

fn disk_reads(lab: &Lab) -> u64 {
    let status = lab.status();
    let reads = status["disk"]["totals"]["reads"].as_u64();
    reads.unwrap_or_else(|| panic!("no reads in {status}"))
}

/// Reads of the disk that a command of the server's side causes.
fn reads_by(lab: &Lab, arguments: &[&str]) -> u64 {
    let before = disk_reads(lab);
    lab.answer("server", arguments);
    disk_reads(lab) - before
}

fn succeed(arguments: &[&str]) -> String {
    let output = headway_lab(arguments).output().expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Needs: root: makes a lab
#[test]
fn name_of_many_files_is_read_from_the_disk_once_the_caches_are_empty() {
    let test = "name_of_many_files_is_read_from_the_disk_once_the_caches_are_empty";
    if !can(test, &["disk"]) {
        return;
    }
    for filesystem in ["ext4", "xfs"] {
        if filesystem == "xfs" && !has_xfs(test) {
            continue;
        }
        let lab = up(&["--filesystem", filesystem, "--many-files", "2000"]);
        let set = mount_point(&lab).join("set");
        let name = |file: &str| set.join(file).display().to_string();
        let first = name("dir00003/file07");
        assert!(reads_by(&lab, &["stat", &first]) > 0, "{filesystem}: cold");
        assert_eq!(reads_by(&lab, &["stat", &first]), 0, "{filesystem}: known");
        assert!(reads_by(&lab, &["stat", &name("dir00017/file42")]) > 0);
        succeed(&["cool", &lab.name]);
        assert!(
            reads_by(&lab, &["stat", &first]) > 0,
            "{filesystem}: cooled"
        );
        assert_eq!(
            fs::read_dir(set.join("dir00019")).expect("there").count(),
            100
        );
    }
}

fn has_xfs(test: &str) -> bool {
    let made = Command::new("mkfs.xfs").arg("-V").output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        super::support::skip(test, "the program mkfs.xfs");
    }
    has
}

/// Needs: root: makes a lab
#[test]
fn inodes_of_many_files_are_reclaimed_when_memory_is_limited() {
    let test = "inodes_of_many_files_are_reclaimed_when_memory_is_limited";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let second_pass = |memory: &str| {
        let lab = up(&["--many-files", "20000", "--memory", memory]);
        let set = mount_point(&lab).join("set").display().to_string();
        let look = ["find", &set, "-size", "+1000"];
        assert!(reads_by(&lab, &look) > 100);
        reads_by(&lab, &look)
    };
    // An inode and its name take more than a kilobyte: 20 MB of them do not fit.
    let (little, enough) = (second_pass("12MiB"), second_pass("400MiB"));
    assert_eq!(enough, 0, "all are still known");
    assert!(little > 100, "{little} reads");
}

/// Needs: root: makes a lab
#[test]
fn published_files_are_others_with_the_same_bytes_while_a_log_grows() {
    let test = "published_files_are_others_with_the_same_bytes_while_a_log_grows";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let lab = up(&["--writable", "--fileset", "20MB", "--memory", "64MiB"]);
    let set = mount_point(&lab).join("set");
    let before = inodes(&set);
    let write = ["write", &lab.name, "--publish", "50", "--append", "50"];
    let said = succeed(&[&write[..], &["--duration", "2s"]].concat());
    assert!(
        said.contains("publish") && said.contains("append"),
        "{said}"
    );
    let after = inodes(&set);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>()
    );
    assert!(before.iter().any(|(path, inode)| after[path] != *inode));
    let log = fs::metadata(mount_point(&lab).join("written/log")).expect("there");
    assert!(
        log.len() > 0 && log.len().is_multiple_of(120),
        "{}",
        log.len()
    );
    let mut verify = Command::new(common::headway());
    let verified = verify.args(["fileset", "verify"]).arg(&set).output();
    let verified = verified.expect("started");
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    assert!(mount_options(&lab).contains("rw,nosuid,nodev,relatime"));
    assert!(lab.status()["disk"]["totals"]["writes"].as_u64() > Some(0));
}

fn inodes(set: &Path) -> BTreeMap<PathBuf, u64> {
    let directories = fs::read_dir(set).expect("there").flatten();
    let directories = directories.filter(|entry| entry.path().is_dir());
    let files = directories.flat_map(|entry| fs::read_dir(entry.path()).expect("there").flatten());
    files
        .map(|file| (file.path(), file.metadata().expect("there").ino()))
        .collect()
}

fn mount_options(lab: &Lab) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let path = mount_point(lab).display().to_string();
    let line = table.lines().find(|line| line.contains(&path));
    line.unwrap_or_default().to_owned()
}

/// Needs: root: makes a lab
#[test]
fn dirty_pages_take_memory_of_the_servers_cache() {
    let test = "dirty_pages_take_memory_of_the_servers_cache";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let lab = up(&["--writable", "--memory", "64MiB"]);
    let script = "head -c 40000000 /dev/zero >kept";
    succeed(&["fill", &lab.name, "--", "sh", "-c", script]);
    let kept = mount_point(&lab).join("kept").display().to_string();
    let read = ["cat", &kept];
    assert!(reads_by(&lab, &read) > 0);
    assert_eq!(reads_by(&lab, &read), 0, "it fits");
    succeed(&["write", &lab.name, "--dirty", "100MB", "--duration", "2s"]);
    assert!(reads_by(&lab, &read) > 0, "some of it made room");
}

/// Needs: root: makes a lab
#[test]
fn disk_is_not_written_to_unless_it_is_writable() {
    let test = "disk_is_not_written_to_unless_it_is_writable";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let lab = up(&[]);
    let mut command = headway_lab(&["write", &lab.name, "--append", "1"]);
    let output = command.output().expect("started");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--writable"));
}

/// Needs: root: makes a lab
#[test]
fn image_below_an_overlay_belongs_to_another_user_and_stays_as_it_is() {
    let test = "image_below_an_overlay_belongs_to_another_user_and_stays_as_it_is";
    if !can(test, &["disk"]) {
        return;
    }
    for (upper, kept) in [("tmpfs", "old"), ("disk", "new")] {
        let lab = up(&["--overlay", upper]);
        let script = "mkdir a; printf old >a/file";
        succeed(&["fill", &lab.name, "--", "sh", "-c", script]);
        let file = mount_point(&lab).join("a/file");
        assert!(mount_options(&lab).contains(" - overlay overlay "));
        assert_eq!(fs::metadata(&file).expect("there").uid(), 1000);
        let name = file.display().to_string();
        assert!(reads_by(&lab, &["cat", &name]) > 0, "{upper}: cold");
        assert_eq!(reads_by(&lab, &["cat", &name]), 0, "{upper}: known");
        fs::write(&file, "new").expect("the upper layer");
        let lower = lab.directory().join("disk/lower/image/a/file");
        assert_eq!(fs::read(lower).expect("there"), b"old");
        succeed(&["cool", &lab.name]);
        assert_eq!(fs::read(&file).expect("there"), kept.as_bytes(), "{upper}");
        assert!(lab.down().status.success());
        assert_eq!(traces_of(&lab.name), Vec::<String>::new());
    }
}

/// Needs: root: makes a lab
#[test]
fn writers_end_with_the_lab() {
    let test = "writers_end_with_the_lab";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let lab = up(&["--overlay", "disk", "--writable", "--fileset", "6MB"]);
    let mut command = headway_lab(&["write", &lab.name, "--publish", "100", "--dirty", "1MB"]);
    let writers = command.stdout(Stdio::null()).spawn();
    let mut writers = writers.expect("started");
    let log = mount_point(&lab).join("written/dirty");
    wait_until("something is written", || log.exists());
    let down = lab.down();
    assert!(down.status.success(), "{}", text(&down.stderr));
    writers.wait().expect("our child");
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());
}

/// Needs: root: makes a lab
#[test]
fn file_in_memory_is_served_from_an_overlay_while_the_disk_stalls() {
    let test = "file_in_memory_is_served_from_an_overlay_while_the_disk_stalls";
    if !can(test, &["disk"]) {
        return;
    }
    let lab = up(&["--overlay", "tmpfs"]);
    let script = "head -c 300000 /dev/zero | tr '\\0' a >large; cp large cold; printf a >small";
    succeed(&["fill", &lab.name, "--", "sh", "-c", script]);
    let command = Command::new(common::headway());
    let server = Server::start(command, &mount_point(&lab), &["--workers", "1"]);
    // Copied by helpers, which come behind the responses. None may be needed while the disk stalls.
    server.wait_for("both files are in memory", |server| {
        assert_eq!(get(server, "/large").body.len(), 300_000);
        assert_eq!(get(server, "/small").text(), "a");
        let copies = ["content_store_insertions", "response_cache_insertions"];
        copies.into_iter().all(|name| counter(server, name) > 0)
    });
    // Longer than the client waits for a response.
    succeed(&["disk", "--name", &lab.name, "stall", "60s"]);
    let mut cold = server.connect();
    send(&mut cold, "GET /cold HTTP/1.1\r\nHost: test\r\n\r\n");
    for _ in 0..30 {
        assert_eq!(get(&server, "/large").body.len(), 300_000);
        assert_eq!(get(&server, "/small").text(), "a");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    cold.set_nonblocking(true).expect("a socket");
    let answered = std::io::Read::read(&mut cold, &mut [0]);
    assert!(answered.is_err(), "the disk did not stall: {answered:?}");
    succeed(&["disk", "--name", &lab.name, "model"]);
    cold.set_nonblocking(false).expect("a socket");
    assert_eq!(receive(&mut cold).expect("a response").body.len(), 300_000);
    drop(server);
}
