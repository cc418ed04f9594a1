//! Words that change what happens on the wire: each has to reach the loop, not only `run.json`.

use super::responding::{GOOD, Manner, Responding};
use super::{headway, load, measured};
use headway_latency::{Row, Run};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc;

/// A length that nothing but the word can explain; a busy machine only makes it longer.
fn lasts_at_least(json: &serde_json::Value, least_s: f64) {
    let length_s = json["analysis"]["duration_s"].as_f64().unwrap();
    assert!(length_s >= least_s, "{length_s} s");
}

#[test]
fn clients_pause_for_the_think_time() {
    let server = Responding::start(GOOD);
    let json = measured(&[&server.url, "-c", "1", "-n", "6", "--think", "60ms"]);
    assert_eq!(json["load"]["think_ms"], 60.0);
    lasts_at_least(&json, 0.3);
}

#[test]
fn responses_are_slower_with_a_bandwidth_limit() {
    let body = "x".repeat(20_000);
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n{body}");
    let server = Responding::start(Manner::Responses(Box::leak(response.into_boxed_str())));
    let arguments = ["-c", "1", "-n", "2", "--bandwidth", "400kbit"];
    let json = measured(&[&[server.url.as_str()], &arguments[..]].concat());
    assert_eq!(json["load"]["bandwidth_bits_per_s"], 400_000);
    // 40 kB at 50 kB/s, less the initial burst of a tenth of a second.
    lasts_at_least(&json, 0.6);
}

/// Between the intended starts of a run at 200 requests/s, in the order of the schedule.
fn gaps(directory: &Path, arguments: &[&str]) -> Vec<u64> {
    let server = Responding::start(GOOD);
    let run = directory.join(format!("run{}", arguments.concat()));
    let fixed = ["--rate", "200", "-n", "30", "-o", run.to_str().unwrap()];
    let (code, _, err) = headway(&[&["load", &server.url], &fixed[..], arguments].concat());
    assert_eq!(code, 0, "{err}");
    let rows = Run::open(&run).unwrap().rows().unwrap();
    let rows: Vec<Row> = rows.flat_map(Result::unwrap).collect();
    let mut starts: Vec<u64> = rows.iter().map(|row| row.intended_ns).collect();
    starts.sort_unstable();
    starts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn starts_are_equally_spaced_when_arrivals_are_constant_and_not_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let constant = gaps(directory.path(), &["--arrivals", "constant"]);
    assert_eq!(constant, [5_000_000; 29]);
    let poisson = gaps(directory.path(), &[]);
    assert_eq!(poisson.len(), 29);
    assert!(poisson.iter().any(|gap| *gap > 10_000_000), "{poisson:?}");
    assert_eq!(gaps(directory.path(), &["--seed", "1"]), poisson);
    assert_ne!(gaps(directory.path(), &["--seed", "2"]), poisson);
}

#[test]
fn connections_come_from_the_source_addresses_given() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel::<IpAddr>();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut head = [0; 1024];
            if client.read(&mut head).is_ok_and(|bytes| bytes > 0) {
                sender.send(client.peer_addr().unwrap().ip()).unwrap();
                let response =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                client.write_all(response).unwrap();
            }
        }
    });
    let arguments = ["-n", "4", "-c", "1", "--source", "127.0.0.77,127.0.0.78"];
    let (code, _, err) = load(&[&[url.as_str()], &arguments[..]].concat());
    assert_eq!(code, 0, "{err}");
    let from: Vec<String> = receiver.try_iter().map(|from| from.to_string()).collect();
    assert_eq!(from.len(), 4);
    assert!(
        ["127.0.0.77", "127.0.0.78"]
            .iter()
            .all(|one| from.iter().any(|from| from == one)),
        "{from:?}"
    );
}
