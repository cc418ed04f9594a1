//! The socket, from one service to the next.

use super::running::*;
use crate::common::directory;
use headway_files::service::wire::Answered;
use headway_files::service::{ListenError, Service, ServiceError};
use std::fs;
use std::path::Path;

#[test]
fn socket_changes_hands_when_a_service_follows_another() {
    let mut running = RunningService::new();
    let path = running.put("f", b"x");
    let other = |tree: &Path| match Service::new(config(tree), Box::new(|_| {})) {
        Err(ServiceError::Listen(error)) => error,
        _ => panic!("it listens"),
    };
    // While one service listens, another one cannot.
    assert!(matches!(other(running.tree.path()), ListenError::InUse(_)));
    assert_eq!(running.client().answer(&path), Answered::Done);
    running.stop();
    assert!(!running.socket.exists(), "it removes its socket");
    // A file of another kind is not overwritten.
    fs::write(&running.socket, "precious").unwrap();
    assert!(matches!(
        other(running.tree.path()),
        ListenError::NoSocket(_)
    ));
    assert_eq!(fs::read(&running.socket).unwrap(), b"precious");
    fs::remove_file(&running.socket).unwrap();
    // What a killed one has left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&running.socket).unwrap());
    let (service, remote) = Service::new(config(running.tree.path()), Box::new(|_| {})).unwrap();
    remote.stop();
    service.run().unwrap();
    assert!(!running.socket.exists());
}

#[test]
fn service_ends_when_all_handles_are_dropped() {
    let tree = directory();
    fs::create_dir(tree.path().join("root")).unwrap();
    let (service, remote) = Service::new(config(tree.path()), Box::new(|_| {})).unwrap();
    let copy = remote.clone();
    drop(remote);
    std::thread::spawn(move || drop(copy));
    service.run().unwrap();
}
