//! Tests of files that change while the papers' presets send them: complete or visibly short, and
//! no process dies of it.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use super::PRESETS;
use super::tools::*;
use crate::support::{Served, config};

fn begin(served: &Served, path: &str) -> TcpStream {
    let mut client = tiny_client(served);
    send_request(&mut client, path);
    assert_eq!(read_head(&mut client).status, 200);
    client
}

fn truncate(path: &std::path::Path, length: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

#[test]
fn connection_closes_early_when_the_file_is_truncated_while_sent() {
    let root = root();
    let path = root.path().join("large");
    let old = contents(0, large());
    for preset in PRESETS {
        for length in [0, 100, 300_000] {
            fs::write(&path, &old).unwrap();
            let text = format!("{preset}\nrevalidate = '0ms'");
            let mut served = Served::start(config(root.path(), &text));
            let mut client = begin(&served, "/large");
            truncate(&path, length);
            let body = read_to_close(&mut client, usize::MAX);
            assert!(
                body.len() < old.len(),
                "{preset} {length}: it must be seen as short"
            );
            // The kernel fills the rest of the last page with zeros, even while a socket holds it.
            let mut either = body.iter().zip(&old);
            assert!(
                either.all(|(byte, old)| byte == old || *byte == 0),
                "{preset} {length}"
            );
            assert_eq!(
                served.snapshot().counters.chunks_changed,
                1,
                "{preset} {length}"
            );
            let next = served.get("/large");
            assert_eq!(
                (next.status, next.body.len() as u64),
                (200, length),
                "{preset}"
            );
            assert!(old.starts_with(&next.body), "{preset} {length}");
        }
    }
}

#[test]
fn old_version_is_sent_completely_when_the_file_is_replaced_meanwhile() {
    let root = root();
    let path = root.path().join("large");
    let (old, new) = (contents(0, large()), contents(1, large()));
    for preset in PRESETS {
        fs::write(&path, &old).unwrap();
        let text = format!("{preset}\nrevalidate = '0ms'");
        let mut served = Served::start(config(root.path(), &text));
        let mut first = begin(&served, "/large");
        fs::write(root.path().join("new"), &new).unwrap();
        fs::rename(root.path().join("new"), &path).unwrap();
        assert!(
            served.get("/large").body == new,
            "{preset}: the second version"
        );
        assert!(
            read_to_close(&mut first, old.len()) == old,
            "{preset}: the first version"
        );
        assert_eq!(served.snapshot().counters.responses_aborted, 0, "{preset}");
    }
}

/// In each round the file is truncated while it is being sent, and then restored.
#[test]
fn server_survives_when_a_file_is_truncated_repeatedly() {
    let root = root();
    let path = root.path().join("file");
    let whole = contents(0, 600_000);
    for preset in PRESETS {
        fs::write(&path, &whole).unwrap();
        let text = format!("{preset}\nrevalidate = '0ms'");
        let served = Served::start(config(root.path(), &text));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    truncate(&path, 1000);
                    fs::write(&path, &whole).unwrap();
                }
            });
            for _ in 0..40 {
                let mut client = served.connect();
                client
                    .write_all(b"GET /file HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
                    .unwrap();
                read_to_close(&mut client, usize::MAX);
            }
        });
        fs::write(&path, &whole).unwrap();
        assert!(served.get("/file").body == whole, "{preset}");
    }
}
