//! The log process writes what workers send, survives a full disk, and ends with the master.

use headway_access_log::process::{LogError, log_main};
use headway_access_log::{Flushed, LogLine, LogQueue, LogStages};
use headway_config::{LogConfig, LogFormat};
use headway_control::{Control, FromLog, Received, ToLog};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For things that must happen but are not timed.
const TIMEOUT: Duration = Duration::from_secs(30);

fn start(path: &Path) -> (Control, JoinHandle<Result<(), LogError>>) {
    let (master, log) = Control::pair().unwrap();
    let thread = std::thread::spawn(move || log_main(log));
    let config = LogConfig {
        path: path.into(),
        format: LogFormat::Common,
        is_of_host: false,
        more: Vec::new(),
    };
    master.send(&ToLog::Start { log: config }, &[]).unwrap();
    (master, thread)
}

fn receive(master: &Control) -> FromLog {
    let begun = Instant::now();
    loop {
        match master.try_receive().unwrap() {
            Received::Message(message, _) => return message,
            Received::Closed => panic!("the log process ended"),
            Received::WouldBlock => assert!(begun.elapsed() < TIMEOUT, "nothing is said"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn worker(master: &Control) -> OwnedFd {
    let (ours, theirs) = Control::pair().unwrap();
    master
        .send(&ToLog::Worker { worker: 0 }, &[theirs.as_fd()])
        .unwrap();
    ours.into_inner()
}

fn line(target: &str) -> LogLine<'_> {
    LogLine {
        client: "127.0.0.1:1".parse().unwrap(),
        time_ms: 0,
        host: None,
        method: b"GET",
        target: target.as_bytes(),
        version: "HTTP/1.1",
        status: 200,
        bytes: 1,
        referer: None,
        user_agent: None,
        duration_us: 1,
        upstream: None,
        stages: LogStages::default(),
        tls: None,
        trace_id: None,
        request_id: None,
        reason: None,
    }
}

fn send(socket: &OwnedFd, target: &str) {
    let mut queue = LogQueue::new(LogFormat::Common);
    queue.push(&line(target), 0);
    assert_eq!(queue.flush(socket.as_fd(), 0), Flushed::All);
}

#[test]
fn log_lines_are_written_after_the_master_has_exited() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    std::fs::write(&path, "before\n").unwrap();
    let (master, thread) = start(&path);
    assert_eq!(receive(&master), FromLog::Ready);
    let sockets = [worker(&master), worker(&master)];
    sockets.iter().for_each(|socket| send(socket, "/x"));
    drop(master);
    sockets.iter().for_each(|socket| send(socket, "/last"));
    drop(sockets);
    thread.join().unwrap().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("before\n"));
    assert_eq!(
        (
            text.matches("GET /x ").count(),
            text.matches("GET /last ").count()
        ),
        (2, 2)
    );
}

#[test]
fn log_lines_are_dropped_and_counted_when_the_disk_is_full() {
    let (master, thread) = start(Path::new("/dev/full"));
    assert_eq!(receive(&master), FromLog::Ready);
    let socket = worker(&master);
    let mut reported = 0;
    while reported < 5 {
        if reported == 0 {
            (0..5).for_each(|_| send(&socket, "/x"));
        }
        let FromLog::Dropped { lines, why } = receive(&master) else {
            panic!("drops are reported");
        };
        assert!(why.contains("write(/dev/full)"), "{why}");
        reported += lines;
    }
    assert_eq!(reported % 5, 0);
    drop((master, socket));
    thread.join().unwrap().unwrap();
}

#[test]
fn log_lines_go_to_the_new_file_after_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let (master, thread) = start(&path);
    assert_eq!(receive(&master), FromLog::Ready);
    let socket = worker(&master);
    send(&socket, "/old");
    while std::fs::read_to_string(&path).unwrap().is_empty() {
        std::thread::yield_now();
    }
    std::fs::rename(&path, directory.path().join("access.log.1")).unwrap();
    master.send(&ToLog::Reopen, &[]).unwrap();
    while !path.exists() {
        std::thread::yield_now();
    }
    send(&socket, "/new");
    drop((master, socket));
    thread.join().unwrap().unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().contains("/new"));
}

#[test]
fn log_stays_in_the_old_file_when_the_new_one_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let (inner, kept) = (directory.path().join("logs"), directory.path().join("kept"));
    std::fs::create_dir(&inner).unwrap();
    let (master, thread) = start(&inner.join("access.log"));
    assert_eq!(receive(&master), FromLog::Ready);
    let socket = worker(&master);
    std::fs::rename(&inner, &kept).unwrap();
    master.send(&ToLog::Reopen, &[]).unwrap();
    assert!(matches!(receive(&master), FromLog::Failed { why } if why.contains("access.log")));
    send(&socket, "/still");
    drop((master, socket));
    thread.join().unwrap().unwrap();
    assert!(
        std::fs::read_to_string(kept.join("access.log"))
            .unwrap()
            .contains("/still")
    );
}

#[test]
fn master_is_notified_when_the_log_cannot_be_opened() {
    let (master, thread) = start(Path::new("/no/such/directory/access.log"));
    let FromLog::Failed { why } = receive(&master) else {
        panic!("it can not be opened")
    };
    assert!(why.contains("/no/such/directory/access.log"), "{why}");
    assert!(thread.join().unwrap().is_err());
}

/// A daemon that the log process sends to, and what it has received.
fn daemon(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn packet(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn log_lines_go_to_syslog_and_to_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    for (name, start_of, end_of) in [
        ("syslog", "<190>headway: 127.0.0.1 - - [", "1"),
        (
            "journal",
            "PRIORITY=6\nSYSLOG_FACILITY=23\nSYSLOG_IDENTIFIER=headway\nMESSAGE=127.0.0.1 ",
            "1\n",
        ),
    ] {
        let receiver = daemon(&path);
        let (master, thread) = start(Path::new(&format!("{name}:{}", path.display())));
        assert_eq!(receive(&master), FromLog::Ready);
        let socket = worker(&master);
        for target in ["/one", "/two"] {
            send(&socket, target);
            let packet = packet(&receiver);
            assert!(
                packet.starts_with(start_of) && packet.ends_with(end_of),
                "{packet:?}"
            );
            assert!(packet.contains(target), "{packet:?}");
        }
        // The daemon is replaced.
        drop(receiver);
        std::fs::remove_file(&path).unwrap();
        let receiver = daemon(&path);
        send(&socket, "/three");
        assert!(packet(&receiver).contains("/three"));
        drop((master, socket, receiver));
        thread.join().unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn log_lines_are_dropped_and_counted_when_the_daemon_does_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let receiver = daemon(&path);
    let (master, thread) = start(Path::new(&format!("syslog:{}", path.display())));
    assert_eq!(receive(&master), FromLog::Ready);
    let socket = worker(&master);
    let limit = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    let sent = limit.trim().parse::<u64>().unwrap() + 50;
    let mut queue = LogQueue::new(LogFormat::Common);
    (0..sent).for_each(|_| queue.push(&line("/x"), 0));
    assert_eq!(queue.flush(socket.as_fd(), 0), Flushed::All);
    let FromLog::Dropped { lines, why } = receive(&master) else {
        panic!("drops are reported");
    };
    assert!(why.contains("sendto("), "{why}");
    drop((master, socket));
    thread.join().unwrap().unwrap();
    receiver.set_nonblocking(true).unwrap();
    let mut buffer = [0; 1024];
    let kept = std::iter::from_fn(|| receiver.recv(&mut buffer).ok()).count() as u64;
    assert!(
        kept > 0 && lines > 0 && kept + lines <= sent,
        "{kept} {lines} {sent}"
    );
}

#[test]
fn log_process_fails_when_the_daemon_is_absent() {
    let (master, thread) = start(Path::new("journal:/nonexistent/socket"));
    let why = "connect(/nonexistent/socket)";
    assert!(matches!(receive(&master), FromLog::Failed { why: said } if said.contains(why)));
    assert!(thread.join().unwrap().is_err());
}
