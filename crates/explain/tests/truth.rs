//! Delays of a known kind, and whether they are attributed to it.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use headway_debox::Label;
use headway_explain::{CauseShare, Keep, ListenQueues, Phase, Problem};
use headway_test_support::wait_until;

use crate::bed::{Bed, Client, Observed, assert_adds_up, assert_attributed, late_or_skip, time_of};
use crate::fuse::Operation;
use crate::servers::nginx;

/// Much longer than anything that a busy machine adds.
const DELAY: Duration = Duration::from_millis(1500);

fn sleeps_in(cause: &CauseShare, call: &str) -> bool {
    cause.doing == "asleep" && cause.call.as_deref() == Some(call)
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn request_waits_unread_while_the_thread_opens_a_file_for_another() {
    let test = "request_waits_unread_while_the_thread_opens_a_file_for_another";
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    let (mut slow, mut hot) = (bed.connect(), bed.connect());
    hot.ask("hot 1");
    slow.ask("hot 1");
    late.schedule(&[(Operation::Open, &[DELAY.as_millis() as u64])]);
    let path = late.path().join("f1");
    let line = format!("open {}", path.display());
    let slow = std::thread::spawn(move || {
        slow.ask(&line);
        slow
    });
    wait_until("the file is being opened", || {
        late.begun(Operation::Open) > 0
    });
    hot.ask("hot 1");
    let slow = slow.join().expect("it was answered");
    late.schedule(&[]);
    let report = bed.report();
    assert_eq!(report.requests.answered, 4);
    let own = time_of(&report, |cause| {
        cause.phase == Phase::Service && sleeps_in(cause, "openat") && !cause.for_others
    });
    assert_attributed(own, DELAY, &report);
    // It came shortly after the other one.
    let waited = hot.latency.mul_f64(0.95);
    let cause = |cause: &CauseShare| {
        cause.phase == Phase::ReceiveQueue && sleeps_in(cause, "openat") && cause.for_others
    };
    assert_attributed(time_of(&report, cause), waited, &report);
    let blocking = report.causes.iter().find(|one| cause(one)).expect("it");
    assert_eq!(blocking.files[0].path, path.to_str().expect("UTF-8"));
    assert!(blocking.blocked, "{blocking:?}");
    assert_adds_up(&report, &[&slow, &hot]);
    assert!(report.summary.contains("openat"), "{}", report.summary);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn connection_waits_to_be_accepted_while_the_only_process_keeps_another() {
    let test = "connection_waits_to_be_accepted_while_the_only_process_keeps_another";
    let Some(bed) = Bed::start(test, "prefork") else {
        return;
    };
    let mut first = bed.connect();
    first.ask("hot 1");
    let port = bed.port;
    let second = std::thread::spawn(move || {
        let mut second = Client::new(port);
        second.ask("hot 1");
        second
    });
    std::thread::sleep(DELAY);
    let first_latency = first.latency;
    drop(first);
    let second = second.join().expect("it was answered");
    let report = bed.report();
    assert_eq!(report.requests.answered, 2);
    // The process was idle with the first client.
    let idle = time_of(&report, |cause| {
        cause.phase == Phase::AcceptQueue && sleeps_in(cause, "poll")
    });
    assert_attributed(idle, second.latency.mul_f64(0.95), &report);
    let blocked = time_of(&report, |cause| cause.blocked);
    assert!(
        blocked * 100 < second.latency.as_nanos() as u64,
        "{report:#?}"
    );
    let parts = time_of(&report, |_| true);
    assert_attributed(parts, first_latency + second.latency, &report);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn lock_of_a_file_is_named_when_another_process_has_it() {
    let test = "lock_of_a_file_is_named_when_another_process_has_it";
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lock");
    let file = File::create(&path).expect("a file");
    // Its CPU is idle and makes the wakeup itself.
    pin(bed.pid(), 0);
    pin(0, last_cpu());
    file.lock().expect("nobody else has it");
    let mut client = bed.connect();
    let line = format!("lock {}", path.display());
    let client = std::thread::spawn(move || {
        client.ask(&line);
        client
    });
    std::thread::sleep(DELAY);
    drop(file);
    let client = client.join().expect("it was answered");
    let report = bed.report();
    let locked = time_of(&report, |cause| {
        cause.phase == Phase::Service && sleeps_in(cause, "flock")
    });
    assert_attributed(locked, client.latency.mul_f64(0.95), &report);
    let cause = (report.causes.iter()).find(|cause| sleeps_in(cause, "flock"));
    let cause = cause.expect("it");
    assert_eq!(cause.label, Some(Label::FileLock));
    assert_eq!(cause.files[0].path, path.to_str().expect("UTF-8"));
    // It was this process.
    let own = format!("(process {})", std::process::id());
    assert!(cause.holders[0].name.ends_with(&own), "{:?}", cause.holders);
    assert!(report.summary.contains(&own), "{}", report.summary);
    let woken_in = &cause.holders[0].woken_in;
    assert!(
        woken_in.iter().any(|name| name.contains("lock")),
        "{woken_in:?}"
    );
    let text = headway_explain::text::render(&report, str::to_owned);
    let shown = format!("{own}, woken in {}", woken_in[0]);
    assert!(text.contains(&shown), "{text}");
    assert_eq!(cause.waiters_max, 0);
    assert_adds_up(&report, &[&client]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn threads_that_wait_for_the_same_lock_are_counted() {
    let test = "threads_that_wait_for_the_same_lock_are_counted";
    let Some(bed) = Bed::start(test, "pool") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lock");
    let file = File::create(&path).expect("a file");
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().expect("a file"));
    file.lock().expect("nobody else has it");
    let line = format!("lock {}", path.display());
    let ask = |mut client: Client| {
        let line = line.clone();
        std::thread::spawn(move || client.ask(&line))
    };
    let clients = [bed.connect(), bed.connect(), bed.connect()].map(ask);
    wait_until("all threads wait for the lock", || {
        let locks = std::fs::read_to_string("/proc/locks").expect("proc_locks(5)");
        let ours = format!(":{inode} ");
        let waiting = (locks.lines()).filter(|line| line.contains("->") && line.contains(&ours));
        waiting.count() == 3
    });
    drop(file);
    for client in clients {
        client.join().expect("it was answered");
    }
    let report = bed.report();
    let cause = (report.causes.iter()).find(|cause| sleeps_in(cause, "flock"));
    assert_eq!(cause.expect("it").waiters_max, 2);
    let text = headway_explain::text::render(&report, str::to_owned);
    assert!(text.contains("with up to 2 more waiters"), "{text}");
    assert!(
        report.summary.contains("with up to 2 more waiters"),
        "{text}"
    );
}

/// Ends a process with the test.
struct Hog(std::process::Child);

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last one that this process may use.
fn last_cpu() -> usize {
    let set = rustix::thread::sched_getaffinity(None).expect("our own");
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|cpu| set.is_set(*cpu));
    last.expect("one at least")
}

/// Keeps a process, or this thread (0), on one CPU.
fn pin(pid: u32, cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let pid = rustix::process::Pid::from_raw(pid as i32);
    rustix::thread::sched_setaffinity(pid, &set).expect("a process of ours");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn wait_for_a_cpu_is_what_the_server_itself_measured() {
    let test = "wait_for_a_cpu_is_what_the_server_itself_measured";
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    let hog = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn();
    let hog = Hog(hog.expect("a shell"));
    pin(bed.pid(), 0);
    pin(hog.0.id(), 0);
    let mut client = bed.connect();
    let waited_ns: u64 = client.ask("spin 1500").parse().expect("a number");
    drop(hog);
    let report = bed.report();
    let runnable = |cause: &CauseShare| cause.phase == Phase::Service && cause.doing == "runnable";
    let seen = time_of(&report, runnable);
    assert_attributed(seen, Duration::from_nanos(waited_ns), &report);
    assert!(
        seen * 95 <= (waited_ns + 4_000_000) * 100,
        "{seen} of {waited_ns}"
    );
    let running = time_of(&report, |cause| cause.doing == "running");
    assert_attributed(running, Duration::from_millis(1500), &report);
    assert_adds_up(&report, &[&client]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn thread_which_answers_is_followed_when_another_one_has_read() {
    let test = "thread_which_answers_is_followed_when_another_one_has_read";
    let Some(bed) = Bed::start(test, "threads") else {
        return;
    };
    let mut client = bed.connect();
    client.ask(&format!("sleep {}", DELAY.as_millis()));
    let report = bed.report();
    let slept = time_of(&report, |cause| {
        cause.phase == Phase::Service && cause.label == Some(Label::Timer)
    });
    assert_attributed(slept, DELAY, &report);
    assert_adds_up(&report, &[&client]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn thread_that_passes_a_request_on_late_is_named_and_not_the_idle_one() {
    let test = "thread_that_passes_a_request_on_late_is_named_and_not_the_idle_one";
    let Some(bed) = Bed::start(test, "late") else {
        return;
    };
    // From the second on, the thread that passes it on has been seen before.
    bed.connect().ask("hot 1");
    bed.connect().ask("hot 1");
    let report = bed.report();
    let unread = |cause: &CauseShare| cause.phase == Phase::ReceiveQueue;
    let late = |cause: &CauseShare| unread(cause) && cause.label == Some(Label::Timer);
    assert_attributed(time_of(&report, late), DELAY * 2, &report);
    let idle = time_of(&report, |cause| {
        unread(cause) && cause.label == Some(Label::Futex)
    });
    assert!(idle < DELAY.as_nanos() as u64 / 20, "{report:#?}");
    let said = "while the thread that then passed it on was asleep in clock_nanosleep";
    assert!(report.summary.contains(said), "{}", report.summary);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn slow_client_is_named_when_it_reads_late() {
    let test = "slow_client_is_named_when_it_reads_late";
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    // More than the buffers of both sockets.
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", bed.port)).expect("it listens");
    std::io::Write::write_all(&mut stream, b"large 50000000\n").expect("sent");
    std::thread::sleep(DELAY);
    let mut bytes = vec![0; 50_000_005];
    std::io::Read::read_exact(&mut stream, &mut bytes).expect("a response");
    let report = bed.report();
    let client = time_of(&report, |cause| cause.doing == "client");
    assert_attributed(client, DELAY.mul_f64(0.95), &report);
    assert_eq!(time_of(&report, |cause| cause.blocked), 0, "{report:#?}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn nothing_is_attributed_when_nothing_was_delayed() {
    let test = "nothing_is_attributed_when_nothing_was_delayed";
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    let mut clients: Vec<Client> = (0..8).map(|_| bed.connect()).collect();
    for _ in 0..50 {
        for client in &mut clients {
            client.ask("hot 1");
        }
    }
    drop(clients);
    let report = bed.report();
    assert_eq!(report.requests.answered, 400);
    assert_eq!(time_of(&report, |cause| cause.blocked), 0, "{report:#?}");
    assert!(report.causes.iter().all(|cause| cause.files.is_empty()));
    assert!(report.ready_events.is_empty(), "the caller adds it");
}

/// Needs: the program nginx: scripts/setup; root; BTF (Linux 6.3); clang at build; FUSE: mounts a file system
#[test]
fn nginx_is_told_to_keep_files_open_when_lookups_are_slow() {
    let test = "nginx_is_told_to_keep_files_open_when_lookups_are_slow";
    let Some(late) = late_or_skip(test) else {
        return;
    };
    let Some(server) = nginx(test, late.path(), "off", "") else {
        return;
    };
    let port = server.port;
    late.schedule(&[(Operation::Lookup, &[DELAY.as_millis() as u64])]);
    let fetch = move |path: &'static str| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("sent");
        let mut response = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut response).expect("a response");
        assert!(response.starts_with(b"HTTP/1.1 200"), "{path}");
    };
    let clients = || {
        let requests = ["/f1", "/f2"].map(|path| std::thread::spawn(move || fetch(path)));
        for request in requests {
            request.join().expect("it was answered");
        }
    };
    let Some(Observed { report, .. }) = Observed::of(test, &server, Keep::default(), clients)
    else {
        return;
    };
    late.schedule(&[]);
    assert_eq!(report.requests.answered, 2);
    // The lookup of each, and the lookup of one for which the other waited.
    let asleep = time_of(&report, |cause| cause.blocked);
    assert_attributed(asleep, DELAY * 3, &report);
    let advice = &report.advice[0];
    assert!(advice.text.contains("open_file_cache"), "{advice:?}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn connection_that_is_older_than_the_observation_is_seen() {
    let test = "connection_that_is_older_than_the_observation_is_seen";
    let (child, port, folder) = Bed::server("loop");
    let mut client = Client::new(port);
    client.ask("hot 1");
    client.latency = Duration::ZERO;
    let Some(bed) = Bed::of(test, child, port, folder) else {
        return;
    };
    client.ask(&format!("sleep {}", DELAY.as_millis()));
    let report = bed.report();
    assert_eq!(report.requests.answered, 1);
    let slept = time_of(&report, |cause| cause.label == Some(Label::Timer));
    assert_attributed(slept, DELAY, &report);
    assert_adds_up(&report, &[&client]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn status_is_known_by_each_call_that_sends() {
    let test = "status_is_known_by_each_call_that_sends";
    let Some(bed) = Bed::start(test, "loop") else {
        return;
    };
    let mut client = bed.connect();
    let calls = [
        ("WRITE", 200),
        ("WRITEV", 404),
        ("SEND", 503),
        ("SENDMSG", 301),
    ];
    for (call, status) in calls {
        client.ask(&format!("{call} /{status}"));
    }
    // One path with two statuses, and a response that is none of HTTP.
    for line in ["SEND /503", "SEND /100", "hot 1"] {
        client.ask(line);
    }
    drop(client);
    let report = bed.report();
    for (call, status) in calls {
        let path = format!("{call} /{status}");
        let row = report.paths.iter().find(|row| row.path == path);
        let row = row.unwrap_or_else(|| panic!("{path} in {:#?}", report.paths));
        assert_eq!(row.statuses.keys().collect::<Vec<_>>(), [&status], "{path}");
        let count = if call == "SEND" { 2 } else { 1 };
        assert_eq!(row.statuses[&status], count, "{path}");
    }
    let interim = report.paths.iter().find(|row| row.path == "SEND /100");
    assert!(interim.expect("it").statuses.is_empty());
    let text = headway_explain::text::render(&report, str::to_owned);
    assert!(text.contains("  503               SEND /503"), "{text}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn connection_is_observed_whole_or_not_at_all_when_they_are_sampled() {
    let test = "connection_is_observed_whole_or_not_at_all_when_they_are_sampled";
    let Some(mut bed) = Bed::start(test, "loop") else {
        return;
    };
    bed.sample(1);
    let mut clients: Vec<Client> = (0..40).map(|_| bed.connect()).collect();
    for client in &mut clients {
        client.ask("hot 1");
        client.ask("hot 1");
    }
    // Half of their ports have an even hash, more or less.
    let before = bed.connections();
    assert!((1..40).contains(&before), "{before}");
    bed.sample(3);
    let after = bed.connections();
    assert!((1..=before).contains(&after), "{after} of {before}");
    for client in &mut clients {
        client.ask("hot 1");
    }
    drop(clients);
    let answered = bed.report().requests.answered as usize;
    // The second response of those that were left out had not ended.
    assert_eq!(answered, before + 2 * after);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn first_request_is_left_out_when_the_accept_of_its_connection_was_not_seen() {
    let test = "first_request_is_left_out_when_the_accept_of_its_connection_was_not_seen";
    let Some(mut bed) = Bed::start(test, "loop") else {
        return;
    };
    let mut before = bed.connect();
    before.ask("hot 1");
    bed.see_calls(false);
    before.ask("hot 1");
    let mut meanwhile = bed.connect();
    meanwhile.ask("hot 1");
    meanwhile.ask("hot 1");
    bed.see_calls(true);
    let mut after = bed.connect();
    after.ask("hot 1");
    let report = bed.report();
    assert_eq!(report.requests.answered, 4, "{report:#?}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn request_without_an_answer_is_counted_while_it_waits() {
    let test = "request_without_an_answer_is_counted_while_it_waits";
    let Some(bed) = Bed::start(test, "prefork") else {
        return;
    };
    let mut first = bed.connect();
    first.ask("hot 1");
    assert_eq!(bed.waiting(), 0);
    // The only process keeps the first connection.
    let mut second = std::net::TcpStream::connect(("127.0.0.1", bed.port)).expect("it listens");
    std::io::Write::write_all(&mut second, b"hot 1\n").expect("sent");
    wait_until("the request has arrived", || bed.waiting() == 1);
    drop(first);
    wait_until("it is answered", || bed.waiting() == 0);
    assert_eq!(bed.report().requests.answered, 2);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn sleep_that_began_before_the_observation_is_not_taken_for_running() {
    let test = "sleep_that_began_before_the_observation_is_not_taken_for_running";
    let (child, port, folder) = Bed::server("loop");
    let mut early = Client::new(port);
    let (started, starts) = std::sync::mpsc::channel();
    let early = std::thread::spawn(move || {
        started.send(()).expect("it waits");
        early.ask("sleep 5000");
    });
    starts.recv().expect("it begins");
    std::thread::sleep(Duration::from_millis(200));
    let Some(bed) = Bed::of(test, child, port, folder) else {
        return early.join().expect("it was answered");
    };
    let mut client = bed.connect();
    client.ask("hot 1");
    early.join().expect("it was answered");
    let report = bed.report();
    assert_eq!(report.requests.answered, 1);
    let unseen = time_of(&report, |cause| cause.doing == "unseen");
    let parts = Duration::from_nanos(time_of(&report, |_| true));
    assert_attributed(unseen, parts, &report);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn full_accept_queue_is_counted_and_the_backlog_is_named() {
    let test = "full_accept_queue_is_counted_and_the_backlog_is_named";
    let Some(bed) = Bed::start(test, "prefork 1") else {
        return;
    };
    let queues = ListenQueues::of(bed.pid());
    assert_eq!(queues.overflows(), Some(0));
    let mut first = bed.connect();
    first.ask("hot 1");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], bed.port));
    let mut others = Vec::new();
    wait_until("the queue is full", || {
        let attempt = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(50));
        others.extend(attempt.ok());
        queues.overflows() > Some(0)
    });
    // Before the server ends, whose namespace is looked at.
    let overflows = queues.overflows();
    drop(others);
    drop(first);
    let mut report = bed.report();
    report.listen_overflows = overflows;
    report.conclude();
    let advice = report
        .advice
        .iter()
        .find(|advice| advice.problem == Problem::Backlog);
    assert!(
        advice.is_some_and(|advice| advice.text.contains("somaxconn")),
        "{report:#?}"
    );
}
