use headway_debox::Label;
use headway_debox_bpf::{OffCpu, SeenRequest, SeenResponse, Thread, Waker};

use super::{Part, Phase, Threads, of_response, until_response};
use crate::names::FileNames;
use crate::timeline::Timeline;

const READER: Thread = Thread { pid: 1, tid: 1 };
const WRITER: Thread = Thread { pid: 1, tid: 2 };
const OWN: u64 = 7;

fn off(thread: Thread, label: Label, times: (u64, u64, u64), connection: Option<u64>) -> OffCpu {
    OffCpu {
        thread,
        call: Some(0),
        start_ns: times.0,
        woken_ns: Some(times.1),
        end_ns: times.2,
        label,
        connection,
        ..OffCpu::default()
    }
}

fn request() -> SeenRequest {
    SeenRequest {
        connection: OWN,
        acceptor: Some(READER),
        reader: Some(READER),
        writer: Some(READER),
        established_ns: Some(90),
        accepted_ns: Some(200),
        arrived_ns: 100,
        read_ns: Some(300),
        last_arrived_ns: Some(300),
        last_read_ns: Some(300),
        written_ns: 500,
        ..SeenRequest::default()
    }
}

/// Phase, what the thread did, whether for others, how long.
type Seen = (Phase, &'static str, bool, u64);

fn seen(parts: &[Part]) -> Vec<Seen> {
    let seen = |part: &Part| {
        let cause = &part.cause;
        let doing = cause.doing.word();
        (cause.phase, doing, cause.for_others, part.length_ns)
    };
    parts.iter().map(seen).collect()
}

fn parts(request: &SeenRequest, offs: &[OffCpu], current: Option<OffCpu>) -> Vec<Seen> {
    let (mut timeline, mut names) = (Timeline::default(), FileNames::default());
    for off in offs {
        timeline.add(off, &mut names);
    }
    let mut threads = Threads {
        timeline: &timeline,
        names: &mut names,
        current: Box::new(move |thread| current.clone().filter(|off| off.thread == thread)),
    };
    seen(&until_response(request, &mut threads))
}

#[test]
fn phases_follow_each_other_and_add_up() {
    let offs = [
        off(READER, Label::PageIo, (50, 150, 160), Some(9)),
        off(READER, Label::PageIo, (350, 450, 450), Some(OWN)),
    ];
    let parts = parts(&request(), &offs, None);
    let expected = [
        (Phase::AcceptQueue, "asleep", true, 50),
        (Phase::AcceptQueue, "runnable", true, 10),
        (Phase::AcceptQueue, "running", true, 40),
        (Phase::ReceiveQueue, "running", true, 100),
        (Phase::Service, "running", false, 50),
        (Phase::Service, "asleep", false, 100),
        (Phase::Service, "running", false, 50),
    ];
    assert_eq!(parts, expected);
}

#[test]
fn thread_that_passed_the_request_on_is_shown_while_the_reader_was_idle() {
    let (listener, waker) = (Thread { pid: 1, tid: 9 }, "worker".to_owned());
    let idle = OffCpu {
        waker: Some(Waker {
            name: waker,
            thread: listener,
            ..Waker::default()
        }),
        ..off(READER, Label::Futex, (50, 280, 290), None)
    };
    let waits = off(listener, Label::EventWait, (40, 105, 260), None);
    let request = SeenRequest {
        accepted_ns: None,
        seen_late: true,
        ..request()
    };
    let receive = |offs: &[OffCpu]| {
        let parts = parts(&request, offs, None).into_iter();
        parts
            .filter(|part| part.0 == Phase::ReceiveQueue)
            .map(|part| (part.1, part.3))
            .collect::<Vec<_>>()
    };
    let late = [
        ("asleep", 5),
        ("runnable", 155),
        ("running", 20),
        ("runnable", 10),
        ("running", 10),
    ];
    assert_eq!(receive(&[idle.clone(), waits]), late);
    // Of another process nothing is known.
    assert_eq!(
        receive(&[idle]),
        [("asleep", 180), ("runnable", 10), ("running", 10)]
    );
}

#[test]
fn time_in_which_the_client_sends_the_rest_is_left_out() {
    let request = SeenRequest {
        last_arrived_ns: Some(400),
        last_read_ns: Some(410),
        ..request()
    };
    let parts = parts(&request, &[], None);
    let total: u64 = parts.iter().map(|part| part.3).sum();
    assert_eq!(total, 400 - 100);
    assert_eq!(parts[2], (Phase::ReceiveQueue, "running", true, 10));
}

#[test]
fn clocks_that_disagree_make_no_negative_time() {
    let request = SeenRequest {
        accepted_ns: Some(900),
        read_ns: Some(50),
        last_arrived_ns: Some(800),
        last_read_ns: Some(20),
        ..request()
    };
    let total: u64 = parts(&request, &[], None).iter().map(|part| part.3).sum();
    assert_eq!(total, 400);
}

#[test]
fn loop_that_went_on_works_for_others_until_it_comes_back() {
    let offs = [
        off(READER, Label::EventWait, (310, 320, 320), Some(OWN)),
        off(READER, Label::PageIo, (330, 400, 400), Some(9)),
        off(READER, Label::EventWait, (410, 470, 480), None),
    ];
    let parts = parts(&request(), &offs, None);
    let service: Vec<Seen> = (parts.into_iter())
        .filter(|part| part.0 == Phase::Service)
        .collect();
    let expected = [
        (Phase::Service, "running", false, 10),
        (Phase::Service, "asleep", false, 10),
        (Phase::Service, "running", true, 10),
        (Phase::Service, "asleep", true, 70),
        (Phase::Service, "running", true, 10),
        (Phase::Service, "asleep", false, 60),
        (Phase::Service, "runnable", false, 10),
        (Phase::Service, "running", false, 20),
    ];
    assert_eq!(service, expected);
}

#[test]
fn writer_is_followed_from_when_the_reader_waits() {
    let request = SeenRequest {
        writer: Some(WRITER),
        ..request()
    };
    // The reader still waits, so its time has not been reported.
    let current = off(READER, Label::EventWait, (320, 900, 900), None);
    let offs = [off(WRITER, Label::PageIo, (330, 480, 480), None)];
    let parts = parts(&request, &offs, Some(current));
    let service: Vec<Seen> = (parts.into_iter())
        .filter(|part| part.0 == Phase::Service)
        .collect();
    let expected = [
        (Phase::Service, "running", false, 20),
        (Phase::Service, "running", false, 10),
        (Phase::Service, "asleep", false, 150),
        (Phase::Service, "running", false, 20),
    ];
    assert_eq!(service, expected);
}

#[test]
fn connection_that_ended_in_the_queue_waited_there() {
    let request = SeenRequest {
        acceptor: None,
        reader: None,
        writer: None,
        accepted_ns: None,
        read_ns: None,
        last_arrived_ns: None,
        last_read_ns: None,
        unanswered: true,
        ..request()
    };
    let parts = parts(&request, &[], None);
    assert_eq!(parts, [(Phase::AcceptQueue, "unseen", false, 400)]);
}

#[test]
fn response_waits_for_its_client_until_it_is_acknowledged() {
    // In a loop, and in a pool of threads.
    waits_for_its_client(Label::EventWait);
    waits_for_its_client(Label::Futex);
}

fn waits_for_its_client(label: Label) {
    let (mut timeline, mut names) = (Timeline::default(), FileNames::default());
    let waits = off(READER, label, (500, 600, 600), None);
    timeline.add(&waits, &mut names);
    let mut threads = Threads {
        timeline: &timeline,
        names: &mut names,
        current: Box::new(|_| None),
    };
    let response = SeenResponse {
        connection: OWN,
        last_written_ns: 620,
        drained_ns: Some(650),
        ..SeenResponse::default()
    };
    let parts = seen(&of_response(&request(), &response, &mut threads));
    let expected = [
        (Phase::Transfer, "client", false, 100),
        (Phase::Transfer, "running", false, 20),
        (Phase::Transfer, "client", false, 30),
    ];
    assert_eq!(parts, expected);
}
