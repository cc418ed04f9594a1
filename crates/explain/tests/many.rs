//! Very many connections, and more than there is space for.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use headway_debox_bpf::RequestLimits;
use headway_explain::Target;
use headway_test_support::skip;
use rustix::process::{Resource, getrlimit};

use crate::bed::{Bed, Client};

/// Processes with clients, and the clients of each.
const PROCESSES: usize = 8;
const CLIENTS: usize = 12_500;

/// Descriptors of a process of the server (SHARE of `server.c`), and some.
const FILES: u64 = 15_100;

/// A process with clients. It ends with this.
struct Clients {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Clients {
    fn start(program: &Path, port: u16, number: usize) -> Clients {
        let numbers = [usize::from(port), number, CLIENTS].map(|number| number.to_string());
        let mut child = Command::new(program)
            .arg("clients")
            .args(numbers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program of the bed");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Clients { child, lines }
    }

    /// Every hundredth asks again.
    fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(b"\n").expect("it waits for it");
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Until all clients have had their answers.
fn until_answered(bed: &mut Bed, all: &mut [Clients]) {
    std::thread::scope(|scope| {
        let answers: Vec<_> = (all.iter_mut())
            .map(|clients| {
                scope.spawn(|| {
                    let mut line = String::new();
                    clients.lines.read_line(&mut line).expect("a line");
                    line
                })
            })
            .collect();
        while !answers.iter().all(|answer| answer.is_finished()) {
            bed.poll();
            std::thread::sleep(Duration::from_millis(2));
        }
        for answer in answers {
            assert_eq!(answer.join().expect("no panic"), "0 failed\n");
        }
    });
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build; 15,100 open files per process
#[test]
fn hundred_thousand_connections_are_observed_and_nothing_is_lost_silently() {
    let test = "hundred_thousand_connections_are_observed_and_nothing_is_lost_silently";
    if (getrlimit(Resource::Nofile).maximum).is_some_and(|files| files < FILES) {
        return skip(test, "15,100 open files per process");
    }
    let (child, port, folder) = Bed::server("many 4096");
    let program = folder.path().join("bed-server");
    let Some(mut bed) = Bed::of(test, child, port, folder) else {
        return;
    };
    let start = |number| Clients::start(&program, port, number);
    let mut all: Vec<Clients> = (0..PROCESSES).map(start).collect();
    until_answered(&mut bed, &mut all);
    assert_eq!(bed.connections(), PROCESSES * CLIENTS);
    all.iter_mut().for_each(Clients::go_on);
    until_answered(&mut bed, &mut all);
    let report = bed.partial_report();
    let requests = (PROCESSES * CLIENTS * 101 / 100) as u64;
    // A busy machine may read events too late.
    match report.lost_events {
        0 => assert_eq!(report.requests.answered, requests),
        _ => assert!(report.missing[0].contains("not seen"), "{report:#?}"),
    }
    assert!(report.requests.answered <= requests);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn limit_of_connections_is_named_when_there_are_more() {
    let test = "limit_of_connections_is_named_when_there_are_more";
    let (child, port, folder) = Bed::server("loop");
    let target = Target::Pid(child.id());
    let limits = RequestLimits {
        connections_max: 4,
        ..RequestLimits::default()
    };
    let server = (Some(child), port, Some(folder));
    let Some(bed) = Bed::of_target(test, &target, limits, server) else {
        return;
    };
    let mut clients: Vec<Client> = (0..8).map(|_| bed.connect()).collect();
    clients
        .iter_mut()
        .for_each(|client| drop(client.ask("hot 1")));
    assert_eq!(bed.connections(), 4);
    let report = bed.report();
    assert_eq!(report.requests.answered, 4);
    let text = headway_explain::text::render(&report, str::to_owned);
    let said = "More than 4 connections were open at a time, and requests on the others are in no";
    assert!(text.contains(said), "{text}");
    assert!(
        text.contains("events of connections beyond the limit"),
        "{text}"
    );
}
