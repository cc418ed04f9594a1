//! Another process behind the service's socket.

use super::client::ServedFiles;
use super::support::make_cold;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};
use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Answers everything with these bytes and descriptors of these files.
pub fn start(socket: &Path, answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static, files: &[PathBuf]) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let listener = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    listen(&listener, 10).unwrap();
    fs::set_permissions(socket, fs::Permissions::from_mode(0o777)).unwrap();
    let open = |path: &PathBuf| {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    let files: Vec<OwnedFd> = files.iter().map(open).collect();
    // It ends with the test's process.
    std::thread::spawn(move || {
        while let Ok(client) = accept_with(&listener, SocketFlags::CLOEXEC) {
            let mut request = [0; 5000];
            while let Ok((length @ 1.., _)) = recv(&client, &mut request[..], RecvFlags::empty()) {
                let mut space =
                    [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
                if !files.is_empty() {
                    control.push(SendAncillaryMessage::ScmRights(&files));
                }
                let bytes = answer(&request[..length]);
                // The client may have hung up.
                let _ = sendmsg(
                    &client,
                    &[IoSlice::new(&bytes)],
                    &mut control,
                    SendFlags::NOSIGNAL,
                );
            }
        }
    });
}

/// The answer *done* to a request.
pub fn done(request: &[u8]) -> Vec<u8> {
    let mut bytes = b"HWOF\x01\x00\x01\x00".to_vec();
    bytes.extend(&request[8..16]);
    bytes
}

/// The answer "I speak another version" to a request.
pub fn newer(request: &[u8]) -> Vec<u8> {
    let mut bytes = done(request);
    bytes[4] = 2;
    bytes[6] = 4;
    bytes
}

#[test]
fn right_file_is_opened_when_the_service_passes_another() {
    let served = ServedFiles::new(2);
    make_cold(&served.files[0]);
    start(&served.socket(), done, &served.files[1..]);
    // The program looks for descriptors that were not closed at the end.
    let output = served.run(&["5000", "open"], &served.files[..1]);
    assert!(output.is_right());
    assert_eq!(output.count("answered"), 1);
}

#[test]
fn no_descriptor_stays_when_the_service_passes_more_than_one() {
    let served = ServedFiles::new(2);
    make_cold(&served.files[0]);
    start(&served.socket(), done, &served.files);
    // It looks for what it has not closed at the end.
    let output = served.run(&["5000", "open"], &served.files[..1]);
    assert!(output.is_right());
    assert_eq!(output.count("answered"), 1);
}

#[test]
fn files_are_opened_when_the_service_answers_with_another_version_or_garbage() {
    let other_number = |request: &[u8]| {
        let mut bytes = done(request);
        bytes[8] ^= 1;
        bytes
    };
    let below =
        |served: &ServedFiles| vec![served.files[0].join("below"), served.files[1].join("below")];
    let served = ServedFiles::new(2);
    start(&served.socket(), newer, &served.files[1..]);
    let output = served.run(&["5000", "open"], &below(&served));
    assert_eq!(output.lines, ["ENOTDIR"; 2]);
    // Once is enough.
    assert_eq!(
        (output.count("rejected"), output.count("fallbacks")),
        (1, 2)
    );
    for (nonsense, counter) in [
        (
            Box::new(|_: &[u8]| b"nonsense".to_vec()) as Box<dyn Fn(&[u8]) -> Vec<u8> + Send>,
            "unreachable",
        ),
        (Box::new(|_: &[u8]| vec![0; 4000]), "unreachable"),
        (
            Box::new(|request: &[u8]| done(request)[..12].to_vec()),
            "unreachable",
        ),
        (Box::new(other_number), "timeouts"),
    ] {
        let served = ServedFiles::new(2);
        start(&served.socket(), nonsense, &served.files[1..]);
        let output = served.run(&["100", "open"], &below(&served));
        assert_eq!(output.lines, ["ENOTDIR"; 2]);
        assert!(output.count(counter) > 0, "{counter}: {}", output.counted);
    }
}
