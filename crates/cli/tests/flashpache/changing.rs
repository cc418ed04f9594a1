//! Apache with the module when files change between their opening and their last byte.

use super::faults::{NumberedFiles, built};
use super::support::{Apache, Over, TIMEOUT, exchange, get, make_cold, wait_until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[test]
fn response_is_cut_off_and_apache_continues_when_a_file_shrinks() {
    let name = "response_is_cut_off_and_apache_continues_when_a_file_shrinks";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    let _backend = served.backend();
    // Apache's mappings would end its process there, with and without the module (mod_core,
    // EnableMMAP).
    let more = "HeadwayEnable On\nEnableMMAP Off\nEnableSendfile On";
    for mpm in ["prefork", "event"] {
        fs::write(served.file(0), "x".repeat(64 << 20)).unwrap();
        make_cold(&served.file(0));
        let apache = Apache::start(mpm, &served.configuration(&module, more));
        let mut stream = TcpStream::connect(&apache.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"GET /f0 HTTP/1.0\r\n\r\n").unwrap();
        let mut begin = vec![0; 64 << 10];
        stream.read_exact(&mut begin).unwrap();
        fs::File::options()
            .write(true)
            .open(served.file(0))
            .and_then(|file| file.set_len(5))
            .unwrap();
        let mut rest = Vec::new();
        // Closed, or reset because not all could be sent; and not silent.
        let silent = stream
            .read_to_end(&mut rest)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!silent, "{} bytes, and no end", rest.len());
        assert!(begin.len() + rest.len() < 64 << 20, "all of it was sent");
        assert!(rest.iter().all(|byte| *byte == b'x'));
        assert_eq!(get(&apache.address, "/f0"), "xxxxx");
    }
}

/// Contents in which every line names the version.
fn version(number: usize) -> String {
    // Some are sent from memory, some by their descriptor.
    format!("version {number}\n").repeat(if number.is_multiple_of(2) {
        300
    } else {
        30_000
    })
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn response_is_of_one_version_when_files_are_replaced_and_removed_meanwhile() {
    let name = "response_is_of_one_version_when_files_are_replaced_and_removed_meanwhile";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    let _backend = served.backend();
    let apache = Apache::start("event", &served.configuration(&module, "HeadwayEnable On"));
    let over = AtomicBool::new(false);
    let (found, missed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let fetch = || {
        while !over.load(Ordering::Relaxed) {
            let response = exchange(&apache.address, b"GET /f0 HTTP/1.0\r\n\r\n");
            let text = String::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            if head.starts_with("HTTP/1.1 404 ") {
                missed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            let line = body.lines().next().unwrap();
            let number = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(body == version(number), "{number}: {} bytes", body.len());
            let length = format!("Content-Length: {}", body.len());
            assert!(head.lines().any(|line| line == length), "{head}");
            found.fetch_add(1, Ordering::Relaxed);
        }
    };
    fs::write(served.file(0), version(0)).unwrap();
    std::thread::scope(|scope| {
        let _end = Over(&over);
        let fetching = [(); 3].map(|()| scope.spawn(fetch));
        let new = served.root().join("new");
        for number in 1..200 {
            fs::write(&new, version(number)).unwrap();
            make_cold(&new);
            if number.is_multiple_of(3) {
                fs::remove_file(served.file(0)).unwrap();
            }
            fs::rename(&new, served.file(0)).unwrap();
        }
        wait_until("no request is served", || {
            fetching.iter().any(|thread| thread.is_finished()) || found.load(Ordering::Relaxed) > 50
        });
    });
    println!("{missed:?} times the file was gone");
    assert!(apache.counter("Opened") > 50);
}
