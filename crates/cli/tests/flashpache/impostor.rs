//! Another process behind the service's socket.

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

/// A reply in the protocol's layout: a file, which is attached.
pub fn reply(request: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 72];
    bytes[..8].copy_from_slice(b"HWOF\x01\x00\x01\x01");
    bytes[8..16].copy_from_slice(&request[8..16]);
    bytes
}

/// The same with "I speak another version" in it.
pub fn newer(request: &[u8]) -> Vec<u8> {
    let mut bytes = reply(request);
    bytes[4] = 2;
    bytes[6] = 6;
    bytes
}
