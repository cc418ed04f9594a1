//! System calls of Apache for a request that memory answers, with the module and without. They are
//! counted (strace), since time on a shared machine is no measure; `bench/serve` measures time. And
//! the memory that such a request leaves.

use super::faults::{NumberedFiles, built};
use super::support::{Apache, make_cold, skip, wait_until};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

const REQUESTS: usize = 40;
/// One process, which does everything, with one connection.
const ALONE: &str = "StartServers 1\nMinSpareServers 1\nMaxSpareServers 1\nMaxRequestWorkers 1\nKeepAlive On\nMaxKeepAliveRequests 0\n";

/// Calls by name.
type Calls = BTreeMap<String, usize>;

/// What each process has called so far, from strace's lines: `PID NAME(…`. The second part of a
/// call that was interrupted in the record is no call.
fn recorded(record: &Path) -> HashMap<(String, String), usize> {
    let mut counts = HashMap::new();
    for line in fs::read_to_string(record).unwrap().lines() {
        let Some((pid, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((name, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        // Whether it has to wait for the next request depends on how soon that comes.
        let waits = matches!(name, "read" | "poll");
        if !waits && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') {
            *counts.entry((pid.to_owned(), name.to_owned())).or_insert(0) += 1;
        }
    }
    counts
}

/// One request on a kept connection; the length of its body.
fn get(stream: &mut BufReader<TcpStream>, target: &str) -> usize {
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length]).unwrap();
    length
}

/// What one request costs the process that answers it. What a count is more than a whole number of
/// times the requests belongs to something else.
fn counted(apache: &Apache, record: &Path, target: &str) -> Calls {
    let stream = TcpStream::connect(&apache.address).unwrap();
    let mut stream = BufReader::new(stream);
    (0..5).for_each(|_| assert!(get(&mut stream, target) > 0));
    let before = recorded(record);
    (0..REQUESTS).for_each(|_| assert!(get(&mut stream, target) > 0));
    let after = recorded(record);
    let mut calls: HashMap<String, Calls> = HashMap::new();
    for ((pid, name), count) in after {
        let key = (pid.clone(), name.clone());
        let new = count - before.get(&key).copied().unwrap_or(0);
        let each = (new + REQUESTS / 2) / REQUESTS;
        if each > 0 {
            calls.entry(pid).or_default().insert(name, each);
        }
    }
    // The one that answers; others wake up now and then.
    calls.into_values().max_by_key(total).unwrap()
}

fn total(calls: &Calls) -> usize {
    calls.values().sum()
}

fn start(record: &Path, configuration: &str) -> Apache {
    // In Apache's place, not as its parent: signals are for Apache.
    let strace = [
        "strace",
        "-D",
        "-f",
        "-q",
        "-s",
        "0",
        "-e",
        "signal=none",
        "-o",
    ];
    let command = [&strace[..], &[record.to_str().unwrap()]].concat();
    Apache::start_under(&command, "prefork", configuration)
}

/// Needs: strace, and the right to trace one's own children
#[test]
fn module_makes_no_more_calls_than_apache_when_a_small_file_is_in_memory() {
    let name = "module_makes_no_more_calls_than_apache_when_a_small_file_is_in_memory";
    let Some(module) = built(name) else { return };
    let traced = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output();
    if !traced.is_ok_and(|output| output.status.success()) {
        return skip(name, "no strace, or it may not trace");
    }
    let served = NumberedFiles::new();
    for bytes in [500, 5000, 50_000, 200_000] {
        fs::write(served.root().join(bytes.to_string()), "x".repeat(bytes)).unwrap();
    }
    let backend = served.backend();
    // As bench/peers/apache.conf has it, and as Apache comes.
    for way in ["EnableSendfile On\nEnableMMAP Off\n", ""] {
        let record = |name: &str| served.folder.path().join(format!("{name}-{}", way.len()));
        let (plain, ours) = (record("plain"), record("ours"));
        let off = format!("{ALONE}{way}HeadwayEnable Off\n");
        let stock = start(&plain, &served.configuration(&module, &off));
        let on = format!("{ALONE}{way}HeadwayEnable On\n");
        let with = start(&ours, &served.configuration(&module, &on));
        for bytes in [500, 5000, 50_000, 200_000] {
            let target = format!("/{bytes}");
            let without = counted(&stock, &plain, &target);
            let calls = counted(&with, &ours, &target);
            println!(
                "{bytes} bytes: {} without, {} with\n{without:?}\n{calls:?}",
                total(&without),
                total(&calls)
            );
            // A large file has one more statx, five probes of its pages, and a descriptor that is
            // passed on.
            let more = if bytes > 65_536 { 8 } else { 0 };
            assert!(
                total(&calls) <= total(&without) + more,
                "{without:?}, {calls:?}"
            );
            assert_eq!(calls.get("openat2"), Some(&1));
            assert_eq!(calls.get("recvmsg"), None);
        }
    }
    assert_eq!(backend.counter("requests_total"), 0);
    // Without the check it would have asked.
    let configuration = served.configuration(&module, "HeadwayEnable On");
    let apache = Apache::start("prefork", &configuration);
    let mut stream = BufReader::new(TcpStream::connect(&apache.address).unwrap());
    wait_until("the service gets no request", || {
        make_cold(&served.root().join("500"));
        assert_eq!(get(&mut stream, "/500"), 500);
        backend.counter("requests_total") > 0
    });
}

#[test]
fn small_file_buffer_is_reclaimable_after_the_request() {
    let name = "small_file_buffer_is_reclaimable_after_the_request";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    let bytes = 60_000;
    fs::write(served.root().join("large"), "x".repeat(bytes)).unwrap();
    let _backend = served.backend();
    let on = format!("{ALONE}HeadwayEnable On\n");
    let apache = Apache::start("prefork", &served.configuration(&module, &on));
    let mut stream = BufReader::new(TcpStream::connect(&apache.address).unwrap());
    assert_eq!(get(&mut stream, "/large"), bytes);
    let pid = apache.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let smaps = format!("/proc/{}/smaps_rollup", children.trim());
    // Asks again each time: the kernel may have evicted it.
    wait_until("nothing is the kernel's to take", || {
        assert_eq!(get(&mut stream, "/large"), bytes);
        let text = fs::read_to_string(&smaps).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("LazyFree:"));
        let kilobytes: usize = line
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        // But for the parts of pages at both ends.
        kilobytes * 1024 + 2 * 4096 > bytes
    });
}
