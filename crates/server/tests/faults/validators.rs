//! Tests of tags and dates: no client joins the bytes of two versions, even if both were written in one
//! second.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use super::tools::*;
use crate::support::{Response, Served, config};

/// Replaces the file by a version of this second.
fn replace(path: &Path, contents: &[u8], second: i64) {
    let new = path.with_extension("new");
    fs::write(&new, contents).unwrap();
    let time = Timespec {
        tv_sec: second,
        tv_nsec: 5,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, &new, &times, AtFlags::empty()).unwrap();
    fs::rename(new, path).unwrap();
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs() as i64
}

fn date(response: &Response, field: &str) -> i64 {
    headway_http::date::parse(response.field(field).unwrap().as_bytes()).unwrap()
}

/// The first version was written in the second in which it is sent: a moment later there may be another
/// one with the same time.
fn first_version(served: &mut Served, path: &Path, contents: &[u8]) -> (i64, Response) {
    loop {
        let second = now();
        replace(path, contents, second);
        let response = served.get("/file");
        if date(&response, "Date") == second {
            assert_eq!(response.body, contents);
            return (second, response);
        }
        // Longer than any `revalidate` of these tests, so that the next version is seen at once.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn part(served: &mut Served, if_range: &str) -> Response {
    let request = format!(
        "GET /file HTTP/1.1\r\nHost: test\r\nConnection: close\r\nRange: bytes=4-\r\nIf-Range: {if_range}\r\n\r\n"
    );
    Response::parse(&served.exchange(request.as_bytes()))
}

#[test]
fn bytes_of_two_versions_of_one_second_are_not_joined_by_if_range() {
    for (settings, is_small) in [
        ("etag = 'mtime-size'", true),
        ("etag = 'inode'", true),
        ("etag = 'content'", true),
        ("etag = 'mtime-size'", false),
        ("etag = 'content'", false),
    ] {
        let root = root();
        let path = root.path().join("file");
        let size = if is_small { "64KiB" } else { "4" };
        let more = format!("{settings}\nrevalidate = '0ms'\nsmall-file-max = '{size}'");
        let mut served = Served::start(config(root.path(), &more));
        let (second, first) = first_version(&mut served, &path, b"version one");
        let modified = first.field("Last-Modified").unwrap();
        let tag = first.field("ETag").unwrap();
        assert_eq!(date(&first, "Last-Modified"), second - 1, "{settings}");
        let by_content = is_small && settings.contains("content");
        assert_eq!(tag.starts_with("W/"), !by_content, "{settings}: {tag}");

        replace(&path, b"version two", second);
        for validator in [modified, tag] {
            let joined = part(&mut served, validator);
            assert_eq!(joined.body, b"version two", "{settings} {validator}");
        }
        // When the second is over, time and tag stand for the second version alone.
        while now() < second + 2 {
            std::thread::sleep(Duration::from_millis(50));
        }
        for validator in [modified, tag] {
            let joined = part(&mut served, validator);
            assert_eq!(joined.body, b"version two", "{settings} {validator}");
        }
        let settled = served.get("/file");
        assert_eq!(settled.body, b"version two");
        assert_eq!(date(&settled, "Last-Modified"), second, "{settings}");
        for field in ["Last-Modified", "ETag"] {
            let validator = settled.field(field).unwrap();
            let rest = part(&mut served, validator);
            assert_eq!(
                (rest.status, &rest.body[..]),
                (206, &b"ion two"[..]),
                "{settings} {validator}"
            );
        }
    }
}

/// The response cache holds the bytes of the first second, with a weak tag, until the file is checked.
#[test]
fn validators_become_strong_when_the_file_is_checked_after_its_second() {
    let root = root();
    let path = root.path().join("file");
    let mut served = Served::start(config(root.path(), "revalidate = '1ms'"));
    let (second, first) = first_version(&mut served, &path, b"version one");
    while now() < second + 2 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = served.snapshot().counters;
    let settled = served.get("/file");
    let tag = settled.field("ETag").unwrap();
    assert_eq!(first.field("ETag"), Some(&*format!("W/{tag}")));
    assert_eq!(date(&settled, "Last-Modified"), second);
    assert_eq!(served.get("/file").field("ETag"), Some(tag));
    let after = served.snapshot().counters;
    // From memory: nothing was read again.
    assert_eq!(after.response_cache_misses, before.response_cache_misses);
}
