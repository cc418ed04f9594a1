//! What is in the storage after an upload, and what comes back.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

use headway_object_storage::{Settings, Storage, Uploaded};
use headway_test_support::skip;
use tempfile::TempDir;

use crate::support::{Fault, Proxy, Server};

const MIB: usize = 1 << 20;
const LOCATION: &str = "s3://runs/tests/my run+1";
const MARK: &str = "run.json";

/// The server, or the test is skipped.
fn server(test: &str) -> Option<Server> {
    let server = Server::start();
    if server.is_none() {
        skip(test, "no moto for Python; run scripts/setup services");
    }
    server
}

/// A run with a file of three parts.
fn run() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    fs::create_dir(&run).unwrap();
    let large: Vec<u8> = (0..20 * MIB / 8)
        .flat_map(|number| number.to_le_bytes())
        .collect();
    fs::write(run.join("requests.parquet"), large).unwrap();
    fs::write(run.join("cells.parquet"), "cells").unwrap();
    fs::write(run.join("server.json"), "").unwrap();
    fs::write(run.join(MARK), "{}").unwrap();
    (directory, run)
}

/// The names in the storage, and whether each has the bytes of the file.
fn assert_whole(server: &mut Server, run: &Path) {
    let (objects, uploads) = server.content();
    assert_eq!(uploads, 0, "nothing is left over");
    let names: Vec<&str> = objects.iter().map(|(name, _)| &**name).collect();
    let expected = ["cells.parquet", "requests.parquet", MARK, "server.json"];
    assert_eq!(
        names,
        expected.map(|name| format!("tests/my run+1/agent=0/{name}"))
    );
    for ((_, sum), name) in objects.iter().zip(expected) {
        let output = std::process::Command::new("sha256sum")
            .arg(run.join(name))
            .output()
            .unwrap();
        let own = String::from_utf8(output.stdout).unwrap();
        assert_eq!(own.split_whitespace().next(), Some(&**sum), "{name}");
    }
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn directory_is_whole_in_the_storage_and_comes_back() {
    let Some(mut server) = server("directory_is_whole_in_the_storage_and_comes_back") else {
        return;
    };
    let (directory, run) = run();
    let storage = server.storage(&server.url, LOCATION);
    storage.probe().unwrap();
    let done = storage.upload(&run, "agent=0", MARK).unwrap();
    let bytes = 20 * MIB as u64 + 7;
    assert_eq!((done.files, done.bytes, done.resumed_bytes), (4, bytes, 0));
    assert_whole(&mut server, &run);
    assert!(!run.join("upload.json").exists());
    assert_eq!(
        storage.upload(&run, "agent=0", MARK).unwrap(),
        Uploaded::default()
    );
    // Without its mark a directory is not whole.
    fs::write(run.join(MARK), "{\"other\": 1}").unwrap();
    let error = storage
        .upload(&run, "agent=0", MARK)
        .unwrap_err()
        .to_string();
    assert!(error.contains("another run.json"), "{error}");
    let to = directory.path().join("back");
    fs::create_dir(&to).unwrap();
    let (whole, partial) = storage.download("agent=", MARK, &to).unwrap();
    assert_eq!((whole, partial), (vec![to.join("agent=0")], vec![]));
    for name in ["requests.parquet", "cells.parquet", "server.json"] {
        assert_eq!(
            fs::read(run.join(name)).unwrap(),
            fs::read(to.join("agent=0").join(name)).unwrap()
        );
    }
    assert_eq!(fs::read(to.join("agent=0").join(MARK)).unwrap(), b"{}");
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn requests_are_sent_again_when_connections_are_cut() {
    let Some(mut server) = server("requests_are_sent_again_when_connections_are_cut") else {
        return;
    };
    for (text, fault) in [
        ("partNumber=2", Fault::Request),
        ("partNumber=3", Fault::Answer),
        (
            "POST /runs/tests/my%20run%2B1/agent%3D0/requests.parquet?uploadId",
            Fault::Answer,
        ),
        ("cells.parquet", Fault::Request),
    ] {
        let (_directory, run) = run();
        let proxy = Proxy::start(&server.url, text, fault, 2);
        let storage = server.storage(&proxy.url, LOCATION);
        storage.upload(&run, "agent=0", MARK).unwrap();
        assert_eq!(proxy.left(), 0, "{text}: the faults happened");
        assert_whole(&mut server, &run);
        server = self::server("requests_are_sent_again_when_connections_are_cut").unwrap();
    }
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn upload_goes_on_where_it_stopped() {
    let Some(mut server) = server("upload_goes_on_where_it_stopped") else {
        return;
    };
    let (_directory, run) = run();
    let proxy = Proxy::start(&server.url, "partNumber=3", Fault::Request, u32::MAX);
    let error = server
        .storage(&proxy.url, LOCATION)
        .upload(&run, "agent=0", MARK)
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("requests.parquet"), "{text}");
    let (objects, uploads) = server.content();
    assert_eq!(uploads, 1);
    assert!(
        objects.iter().all(|(name, _)| !name.ends_with(MARK)),
        "{objects:?}"
    );
    // A part whose bytes have changed is sent again.
    let path = run.join("requests.parquet");
    let mut content = fs::read(&path).unwrap();
    content[9 * MIB] ^= 1;
    fs::write(&path, content).unwrap();
    let storage = server.storage(&server.url, LOCATION);
    let done = storage.upload(&run, "agent=0", MARK).unwrap();
    assert_eq!(done.resumed_bytes, 8 * MIB as u64, "the first part");
    assert_whole(&mut server, &run);
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn errors_say_what_the_storage_says() {
    let Some(server) = server("errors_say_what_the_storage_says") else {
        return;
    };
    let settings = Settings {
        secret_key: "wrong".into(),
        ..server.settings(&server.url)
    };
    let storage = Storage::open(LOCATION.parse().unwrap(), settings).unwrap();
    let error = storage.probe().unwrap_err().to_string();
    assert!(error.contains("403 SignatureDoesNotMatch"), "{error}");
    let error = server
        .storage(&server.url, "s3://none/a")
        .probe()
        .unwrap_err()
        .to_string();
    assert!(error.contains("404 NoSuchBucket"), "{error}");
}

/// Needs: moto for Python: scripts/setup services
#[test]
fn directories_without_a_mark_are_left_out() {
    let Some(server) = server("directories_without_a_mark_are_left_out") else {
        return;
    };
    let (directory, run) = run();
    fs::remove_file(run.join("requests.parquet")).unwrap();
    let storage = server.storage(&server.url, LOCATION);
    storage.upload(&run, "agent=0", MARK).unwrap();
    storage.upload(&run, "agent=1", "cells.parquet").unwrap();
    storage.upload(&run, "merged", MARK).unwrap();
    fs::remove_file(run.join(MARK)).unwrap();
    storage.upload(&run, "agent=2", "cells.parquet").unwrap();
    let (whole, partial) = storage.download("agent=", MARK, directory.path()).unwrap();
    let expected = ["agent=0", "agent=1"].map(|name| directory.path().join(name));
    assert_eq!(
        (whole, partial),
        (expected.to_vec(), vec!["agent=2".to_owned()])
    );
}

/// It answers, and stores nothing. No other program is needed.
#[test]
fn upload_fails_when_the_storage_has_fewer_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            let bytes = client.read(&mut buffer).unwrap();
            let answer = match &buffer[..bytes.min(4)] {
                b"HEAD" => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
                b"PUT " => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                _ => "HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n",
            };
            let _ = client.write_all(answer.as_bytes());
        }
    });
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("cells.parquet"), "cells").unwrap();
    fs::write(directory.path().join(MARK), "{}").unwrap();
    let settings = Settings {
        endpoint: Some(url),
        region: "a".into(),
        access_key: "b".into(),
        secret_key: "c".into(),
        session_token: None,
        authorities: None,
    };
    let storage = Storage::open(LOCATION.parse().unwrap(), settings).unwrap();
    let error = storage
        .upload(directory.path(), "agent=0", MARK)
        .unwrap_err()
        .to_string();
    assert!(error.contains("has 4 bytes, and the file has 5"), "{error}");
}
