//! Clients that ask much, take nothing, send nonsense, speak another version or may not come in.

use super::running::*;
use headway_base::random::{Draw, SplitMix64};
use headway_files::service::wire::{Answered, REQUEST_BYTES_MAX};
use headway_os::fd_passing::{Wait, pair, send_with_descriptors};
use rustix::fd::AsFd;
use rustix::io::{Errno, IoSlice};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn every_request_has_its_answer_when_many_are_sent_at_once() {
    let running = RunningService::new();
    let paths: Vec<_> = (0..10)
        .map(|n| running.put(&format!("f{n}"), b"x"))
        .collect();
    let mut client = running.client();
    for path in paths.iter().cycle().take(200) {
        client.request(path);
        if client.number > 50 {
            client.receive().expect("an answer");
        }
    }
    for _ in 0..50 {
        client.receive().expect("an answer");
    }
}

#[test]
fn only_the_sender_is_disconnected_when_its_message_is_malformed() {
    let running = RunningService::new();
    let path = running.put("f", b"x");
    let mut other = running.client();
    let mut wrong_magic = request(1, &path);
    wrong_magic[0] = b'X';
    let mut wrong_kind = request(1, &path);
    wrong_kind[6] = 9;
    let mut too_long = request(1, &path);
    too_long.resize(REQUEST_BYTES_MAX + 1, b'x');
    let mut far_too_long = request(1, &path);
    far_too_long.resize(100_000, b'x');
    let relative = request(1, Path::new("f"));
    for garbage in [
        &b"x"[..],
        b"HWOF",
        &wrong_magic,
        &wrong_kind,
        &too_long,
        &far_too_long,
        &relative,
    ] {
        let client = running.client();
        client.send(garbage);
        assert!(client.is_closed(), "{garbage:?}");
        assert_eq!(other.answer(&path), Answered::Done);
    }
    let statistics = running.remote().statistics().unwrap();
    assert_eq!((statistics.malformed, statistics.clients), (7, 1));
}

#[test]
fn descriptors_sent_by_a_client_are_not_kept() {
    let running = RunningService::new();
    let path = running.put("f", b"x");
    let mut other = running.client();
    other.answer(&path);
    // From Linux 6.16 on they do not leave the client.
    let (probe, _peer) = pair().unwrap();
    let refused = headway_os::fd_passing::refuse_descriptors(probe.as_fd());
    let mut closed = 0;
    for _ in 0..50 {
        let mut client = running.client();
        let file = fs::File::open("/dev/null").unwrap();
        let files = vec![file.as_fd(); 20];
        let bytes = request(1, &path);
        let message = [IoSlice::new(&bytes)];
        match send_with_descriptors(&client.socket, &message, &files, Wait::Block) {
            Ok(_) => {
                assert!(!refused && client.is_closed());
                closed += 1;
            }
            Err(error) => {
                assert!(refused && error == Errno::PERM, "{error}");
                client.answer(&path);
            }
        }
    }
    other.answer(&path);
    assert_eq!(running.remote().statistics().unwrap().malformed, closed);
}

#[test]
fn client_with_another_version_gets_the_version_answer() {
    let running = RunningService::new();
    let client = running.client();
    let mut bytes = request(5, &running.path("f"));
    bytes[4] = 2;
    client.send(&bytes);
    let reply = client.receive().expect("an answer");
    assert_eq!((reply.number, reply.answered), (5, Answered::Version));
    assert!(client.is_closed());
}

#[test]
fn others_are_served_when_clients_do_not_read_or_die() {
    let running = RunningService::new();
    let path = running.put("f", b"x");
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut client = running.client();
        client.request_without_end(&path);
        slow.push(client);
    }
    let mut quick = running.client();
    for _ in 0..100 {
        let dead = running.client();
        dead.send(&request(1, &path));
        drop(dead);
        assert_eq!(quick.answer(&path), Answered::Done);
    }
    // A slow client gets its answers when it receives them.
    for number in 1..=16 {
        assert_eq!(slow[0].receive().expect("an answer").number, number);
    }
}

#[test]
fn client_is_disconnected_without_delaying_others_when_it_receives_no_answer_in_time() {
    let mut running =
        RunningService::without_helpers(|config| config.send_timeout = Duration::from_millis(200));
    running.give_helpers();
    let path = running.put("f", b"x");
    let mut slow: Vec<TestClient> = (0..3).map(|_| running.client()).collect();
    for client in &mut slow {
        client.request_without_end(&path);
    }
    let mut quick = running.client();
    let begun = Instant::now();
    while running.remote().statistics().unwrap().stalled < 3 {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "no client is disconnected"
        );
        assert_eq!(quick.answer(&path), Answered::Done);
    }
    assert_eq!(running.remote().statistics().unwrap().clients, 1);
    assert_eq!(quick.answer(&path), Answered::Done);
}

#[test]
fn client_is_rejected_when_its_user_is_not_allowed() {
    let running = RunningService::without_helpers(|config| config.users.clear());
    assert!(running.client().is_closed());
    let own = rustix::process::getegid().as_raw();
    let by_group = RunningService::without_helpers(|config| {
        config.users.clear();
        config.groups = vec![own];
    });
    let path = by_group.put("f", b"x");
    assert_eq!(by_group.client().answer(&path), Answered::Done);
    let statistics = running.remote().statistics().unwrap();
    assert_eq!((statistics.refused_user, statistics.accepted), (1, 0));
}

#[test]
fn client_is_rejected_when_there_are_too_many_connections() {
    let running = RunningService::without_helpers(|config| config.connections_max = 2);
    let path = running.put("f", b"x");
    let mut first = running.client();
    first.answer(&path);
    let mut second = running.client();
    second.answer(&path);
    assert!(running.client().is_closed());
    drop(second);
    while running.remote().statistics().unwrap().clients > 1 {
        std::thread::yield_now();
    }
    let mut third = running.client();
    assert_eq!(third.answer(&path), Answered::Done);
}

/// Requests with some bytes changed, cut or added, and bytes that never were one; each on a
/// connection of its own.
#[test]
fn others_are_answered_when_clients_send_random_bytes() {
    let running = RunningService::new();
    let path = running.put("f", b"x");
    let (mut other, whole) = (running.client(), request(7, &path));
    // The same bytes each time.
    let mut generator = SplitMix64(0);
    let mut random = move |below: usize| generator.index(below);
    let (mut answered, mut closed) = (0, 0);
    for round in 0..3000 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes = (0..1 + random(6000)).map(|_| random(256) as u8).collect(),
            1 => bytes.truncate(1 + random(whole.len() - 1)),
            2 => bytes.extend((0..random(6000)).map(|_| random(256) as u8)),
            _ => {}
        }
        for _ in 0..random(4) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        let client = running.client();
        client.send(&bytes);
        match client.receive() {
            Some(_) => answered += 1,
            None => closed += 1,
        }
        if round % 16 == 0 {
            assert_eq!(other.answer(&path), Answered::Done);
        }
    }
    assert!(answered > 100 && closed > 100, "{answered} and {closed}");
    assert_eq!(other.answer(&path), Answered::Done);
}
