//! Helpers of the service: their jobs, joined jobs, and their deaths.

use super::running::*;
use headway_files::protocol::{
    OpenMode, Reply as HelperReply, Request as HelperRequest,
    decode_request as decode_helper_request, encode_reply as encode_helper_reply,
};
use headway_files::service::wire::{Answered, ClientRequest};
use headway_files::{Failure, RawAnswer};
use headway_os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use headway_test_support::skip;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, fadvise};
use rustix::io::IoSlice;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

#[test]
fn identical_requests_share_one_job_when_clients_send_them_at_once() {
    let mut running = RunningService::without_helpers(|_| {});
    // The kernel never answers this one from its cache, so a helper has to.
    let path = running.put("file", b"x").join("below");
    let mut clients: Vec<_> = (0..10).map(|_| running.client()).collect();
    for client in &mut clients {
        client.request(&path);
    }
    while running.remote().statistics().unwrap().requests < 10 {
        std::thread::yield_now();
    }
    running.give_helpers();
    for client in &clients {
        let reply = client.receive().expect("an answer");
        assert_eq!(reply.answered, Answered::Done);
    }
    let statistics = running.remote().statistics().unwrap();
    assert_eq!(statistics.pool.coalesced, 9);
    assert_eq!(statistics.pool.service_us.count, 1);
}

#[test]
fn request_is_discarded_when_its_client_disconnects() {
    let running = RunningService::without_helpers(|_| {});
    let path = running.put("file", b"x").join("below");
    let statistics = || running.remote().statistics().unwrap();
    for number in 1..=30 {
        let mut client = running.client();
        client.request(&path);
        while statistics().requests < number {
            std::thread::yield_now();
        }
        assert_eq!(statistics().pool.queue, 1);
        drop(client);
        while statistics().clients > 0 {
            std::thread::yield_now();
        }
        assert_eq!(statistics().pool.queue, 0);
    }
}

#[test]
fn busy_is_answered_when_the_queue_is_full() {
    let running = RunningService::without_helpers(|config| config.helpers.queue_max = 1);
    let file = running.put("file", b"x");
    let mut client = running.client();
    client.request(file.join("a"));
    assert_eq!(client.answer(file.join("b")), Answered::Busy);
    // What needs no helper is answered all the same.
    assert_eq!(client.answer(&file), Answered::Done);
}

/// Needs: a file system that lets go of pages (not tmpfs)
#[test]
fn file_is_answered_without_prefetch_when_the_queue_is_full() {
    let running = RunningService::without_helpers(|config| config.helpers.queue_max = 1);
    let path = running.put("file", &[7; 10_000]);
    let mut client = running.client();
    client.request(path.join("below"));
    let file = fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    if headway_os::residency::mincore(&file, 0, 10_000).unwrap() > 0 {
        return skip(
            "file_is_answered_without_prefetch_when_the_queue_is_full",
            "this file system does not let go of pages",
        );
    }
    assert_eq!(running.result(&mut client, &path), FILE);
}

#[test]
fn request_is_retried_when_a_helper_dies() {
    let mut running = RunningService::without_helpers(|_| {});
    let path = running.put("file", b"x").join("below");
    let mut client = running.client();
    client.request(&path);
    for _ in 0..3 {
        let (ours, theirs) = pair().unwrap();
        running.remote().helper(ours, 1);
        drop(theirs);
    }
    while running.remote().statistics().unwrap().pool.deaths < 3 {
        std::thread::yield_now();
    }
    running.give_helpers();
    let reply = client.receive().expect("an answer");
    assert_eq!(reply.answered, Answered::Done);
}

#[test]
fn helper_reads_no_more_than_the_client_requested() {
    let running = RunningService::without_helpers(|config| config.prefetch_max = 10_000);
    let path = running.put("file", b"x").join("below");
    let client = running.client();
    let (ours, helper) = pair().unwrap();
    running.remote().helper(ours, 1);
    for (read_in, expected) in [
        (0, OpenMode::Open),
        (5000, OpenMode::OpenAndPrefetch(5000)),
        (20_000, OpenMode::OpenAndPrefetch(10_000)),
    ] {
        let request = ClientRequest {
            number: 1,
            read_in,
            path: path.as_os_str().as_bytes(),
        };
        client.send(&encoded(&request));
        let (job, want) = next_resolve(&helper);
        assert_eq!(want, expected, "{read_in}");
        let answer = RawAnswer::Failed(Failure::NotFound);
        let content = None;
        let mut bytes = Vec::new();
        encode_helper_reply(
            &HelperReply::LookedUp {
                job,
                answer,
                content,
            },
            &mut bytes,
        );
        send_with_descriptors(&helper, &[IoSlice::new(&bytes)], &[], Wait::Block).unwrap();
        client.receive().expect("an answer");
    }
}

/// The next name that a helper is to resolve: its job, and what is wanted of it.
fn next_resolve(helper: &OwnedFd) -> (u64, OpenMode) {
    let mut bytes = [0; 8192];
    loop {
        let received = receive_with_descriptors(helper, &mut bytes, 200, Wait::Block).unwrap();
        let length = received.expect("it waits").length;
        if let HelperRequest::Lookup { job, want, .. } =
            decode_helper_request(&bytes[..length]).unwrap()
        {
            return (job, want);
        }
    }
}

#[test]
fn helpers_are_replaced_with_a_delay_when_they_die_repeatedly() {
    const DEATHS: u32 = 8;
    let mut running = RunningService::without_helpers(|config| config.helpers.max = 1);
    let path = running.put("file", b"x").join("below");
    let mut client = running.client();
    let begun = Instant::now();
    client.request(&path);
    let wanted = running.wanted.take().unwrap();
    for _ in 0..DEATHS {
        assert_eq!(wanted.recv().unwrap(), 1);
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        running.remote().helper(ours, 1);
    }
    // The first is replaced at once, each of the others after a tenth of a second.
    let least = Duration::from_millis(100) * (DEATHS - 2);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    running.wanted = Some(wanted);
    running.give_helpers();
    client.receive().expect("an answer");
}
