//! Control messages arrive as they were sent, with their descriptors, whatever their length.

use headway_control::{Control, ControlError, FromWorker, Received, StartDescriptor, ToWorker};
use headway_os::fd_passing::{Wait, send_with_descriptors};
use headway_server::Extensions;
use headway_server::config::{Config, Environment, KnownExtensions, Memory, Settings};
use headway_server::worker_main;
use headway_test_support::wait_until;
use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

fn config() -> Config {
    let environment = Environment {
        cpus: 2,
        nofile: 20_000,
        somaxconn: 4096,
        memory: Memory {
            bytes: 8 << 30,
            limited: false,
        },
        process_memory_bytes: u64::MAX,
        extensions: KnownExtensions::NONE,
        files_wait: None,
    };
    Config::check(&Settings::default(), None, &environment)
        .unwrap()
        .config
}

fn file(text: &str) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn text(descriptor: OwnedFd) -> String {
    let (mut file, mut text) = (File::from(descriptor), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn last_message_arrives_when_its_sender_closed_with_messages_unread() {
    let (master, worker) = Control::pair().unwrap();
    assert!(master.try_send(&ToWorker::Helper { pid: 1 }, &[]).unwrap());
    let failed = FromWorker::Failed {
        why: "no memory".to_owned(),
    };
    worker.send(&failed, &[]).unwrap();
    drop(worker);
    let (received, _) = master.receive::<FromWorker>().unwrap().unwrap();
    assert!(matches!(received, FromWorker::Failed { why } if why == "no memory"));
    assert!(master.receive::<FromWorker>().unwrap().is_none());
}

#[test]
fn descriptors_keep_their_order_when_several_are_sent() {
    let (master, worker) = Control::pair().unwrap();
    let files = ["first", "second", "third"].map(file);
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let message = ToWorker::Start {
        worker: 3,
        listeners: vec![0, 1],
        config: Box::new(config()),
        descriptors: vec![
            StartDescriptor::Listener,
            StartDescriptor::Listener,
            StartDescriptor::Log,
        ],
    };
    master.send(&message, &borrowed).unwrap();
    let (received, descriptors) = worker.receive::<ToWorker>().unwrap().unwrap();
    assert_eq!(received, message);
    let texts: Vec<String> = descriptors.into_iter().map(text).collect();
    assert_eq!(texts, ["first", "second", "third"]);
}

#[test]
fn long_configuration_is_received_in_several_packets() {
    let (master, worker) = Control::pair().unwrap();
    let mut config = config();
    let host = config.hosts[0].clone();
    for number in 0..20_000 {
        config.hosts.push(host.clone());
        config.hosts[number].names = vec![format!("host-{number}.example")];
    }
    let message = ToWorker::Start {
        worker: 0,
        listeners: vec![0, 1],
        config: Box::new(config),
        descriptors: vec![StartDescriptor::Listener],
    };
    assert!(serde_json::to_vec(&message).unwrap().len() > 1 << 20);
    master.send(&message, &[file("listener").as_fd()]).unwrap();
    let (received, descriptors) = worker.receive::<ToWorker>().unwrap().unwrap();
    assert!(received == message);
    assert_eq!(
        descriptors.into_iter().map(text).collect::<Vec<_>>(),
        ["listener"]
    );
}

#[test]
fn control_message_above_the_size_limit_is_rejected() {
    let (worker, _master) = Control::pair().unwrap();
    let message = FromWorker::Failed {
        why: "x".repeat(17 << 20),
    };
    assert!(matches!(
        worker.send(&message, &[]),
        Err(ControlError::TooLong { .. })
    ));
}

#[test]
fn control_channel_never_blocks_on_a_silent_full_or_closed_peer() {
    let (master, worker) = Control::pair().unwrap();
    assert!(matches!(
        worker.try_receive::<ToWorker>(),
        Ok(Received::WouldBlock)
    ));
    while master.try_send(&ToWorker::Snapshot { id: 0 }, &[]).unwrap() {}
    assert!(matches!(
        worker.try_receive::<ToWorker>(),
        Ok(Received::Message(..))
    ));
    drop(master);
    while let Ok(Received::Message(..)) = worker.try_receive::<ToWorker>() {}
    assert!(matches!(
        worker.try_receive::<ToWorker>(),
        Ok(Received::Closed)
    ));
    assert!(worker.receive::<ToWorker>().unwrap().is_none());
    assert!(worker.try_send(&FromWorker::Ready, &[]).is_err());
}

#[test]
fn malformed_control_message_is_rejected_and_the_next_one_received() {
    let (master, worker) = Control::pair().unwrap();
    for junk in [&b"J{\"Nonsense\":1}"[..], b"J", b"M", b"?", b"J\xff"] {
        rustix::io::write(&master, junk).unwrap();
        let received = worker.try_receive::<ToWorker>();
        assert!(
            matches!(received, Err(ControlError::Malformed(_))),
            "{received:?}"
        );
    }
    master.send(&ToWorker::Log, &[]).unwrap();
    assert!(matches!(
        worker.try_receive::<ToWorker>(),
        Ok(Received::Message(ToWorker::Log, _))
    ));
}

#[test]
fn message_arrives_without_descriptors_when_there_was_no_room_for_all() {
    let (master, worker) = Control::pair().unwrap();
    // As many as no message has: the kernel cuts them off, as it does when descriptors run out.
    let files: Vec<OwnedFd> = (0..200).map(|_| file("a helper's socket")).collect();
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let packet = [IoSlice::new(br#"J{"Helper":{"pid":7}}"#)];
    let sent = send_with_descriptors(&master, &packet, &borrowed, Wait::Never);
    assert!(sent.unwrap().is_some());
    let Received::Message(message, descriptors) = worker.try_receive::<ToWorker>().unwrap() else {
        panic!("no message");
    };
    assert_eq!(message, ToWorker::Helper { pid: 7 });
    assert!(descriptors.is_empty());
}

#[test]
fn helper_is_requested_again_when_the_channel_to_the_master_was_full() {
    let (master, worker) = Control::pair().unwrap();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let start = ToWorker::Start {
        worker: 0,
        listeners: vec![0, 1],
        config: Box::new(config()),
        descriptors: vec![StartDescriptor::Listener],
    };
    master.send(&start, &[socket.as_fd()]).unwrap();
    while worker.try_send(&FromWorker::AcceptPending, &[]).unwrap() {}
    // Room for the message that the worker serves, and for no other.
    master.receive::<FromWorker>().unwrap().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        sender.send(rustix::thread::gettid()).unwrap();
        worker_main(worker, Extensions::NONE)
    });
    let thread_id = receiver.recv().unwrap().as_raw_nonzero();
    let call = format!("/proc/self/task/{thread_id}/syscall");
    let wait = format!("{} ", libc::SYS_epoll_pwait);
    wait_until("the worker waits", || {
        std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&wait))
    });
    wait_until("the request", || {
        matches!(
            master.try_receive::<FromWorker>(),
            Ok(Received::Message(FromWorker::WantHelpers { .. }, _))
        )
    });
    // Without its master a worker ends.
    drop(master);
    thread.join().unwrap().unwrap();
}

#[test]
fn worker_says_which_descriptor_of_the_start_message_is_missing_or_surplus() {
    use StartDescriptor::{Listener, Log};
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let cases = [
        (vec![], 0, "missing descriptor: listener"),
        (vec![Log], 1, "missing descriptor: listener"),
        (
            vec![Listener, Log],
            2,
            "unexpected descriptor: socket to the log process",
        ),
        (
            vec![Listener, Log],
            1,
            "2 descriptors are named and 1 arrived",
        ),
    ];
    for (names, sent, expected) in cases {
        let (master, worker) = Control::pair().unwrap();
        let message = ToWorker::Start {
            worker: 0,
            listeners: vec![0, 1],
            config: Box::new(config()),
            descriptors: names,
        };
        master.send(&message, &vec![socket.as_fd(); sent]).unwrap();
        assert!(worker_main(worker, Extensions::NONE).is_err());
        let (answer, _) = master.receive::<FromWorker>().unwrap().unwrap();
        let FromWorker::Failed { why } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(why, format!("start message: {expected}"));
    }
}
