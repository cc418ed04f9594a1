//! Packets of the control channel: a tag byte and JSON, or a tag byte and a memfd that holds the
//! JSON.
//!
//! A packet is either taken whole or not at all (`SOCK_SEQPACKET`), so there is no reassembly. Long
//! messages avoid the socket buffer, whose size would otherwise decide how large a configuration
//! may be. Sources: unix(7), cmsg(3), memfd_create(2).

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::{ControlError, Received};

/// Longer messages travel in a memfd.
pub(super) const INLINE_BYTES_MAX: usize = 32 * 1024;
/// Longer messages are refused on both sides: no configuration or snapshot comes near.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Descriptors in one packet at most; the kernel's own limit is 253 (`SCM_MAX_FD`).
pub(super) const DESCRIPTORS_MAX: usize = 128;

/// How long a sender waits when the kernel has no memory for its message.
const MEMORY_PAUSE: Duration = Duration::from_millis(10);

const TAG_INLINE: u8 = b'J';
const TAG_MEMFD: u8 = b'M';

pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), ControlError> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| system("socketpair", error))
}

/// Sends one message; `false` when it would have to wait and may not.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> Result<bool, ControlError> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLong {
            bytes: message.len(),
            max: MESSAGE_BYTES_MAX,
        });
    }
    if descriptors.len() >= DESCRIPTORS_MAX {
        let text = format!("{} descriptors in one message", descriptors.len());
        return Err(ControlError::Malformed(text));
    }
    if message.len() <= INLINE_BYTES_MAX {
        return packet(socket, TAG_INLINE, message, descriptors, wait);
    }
    let memory = into_memfd(message)?;
    let mut all = vec![memory.as_fd()];
    all.extend_from_slice(descriptors);
    packet(socket, TAG_MEMFD, &[], &all, wait)
}

fn packet(
    socket: BorrowedFd<'_>,
    tag: u8,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> Result<bool, ControlError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    // Without MSG_NOSIGNAL a dead peer would kill the sender instead of being an error.
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, !wait);
    let parts = [IoSlice::new(std::slice::from_ref(&tag)), IoSlice::new(body)];
    loop {
        match rustix::net::sendmsg(socket, &parts, &mut ancillary, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if !wait => return Ok(false),
            // A sender that may wait also waits for memory of the kernel.
            Err(Errno::NOMEM | Errno::NOBUFS) if wait => std::thread::sleep(MEMORY_PAUSE),
            Err(error) => return Err(system("sendmsg", error)),
        }
    }
}

/// Receives one message with its descriptors, all of them close-on-exec. With none, if there was no
/// room for all of them: the kernel does not tell which are missing.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    wait: bool,
) -> Result<Received<Vec<u8>>, ControlError> {
    let mut buffer = vec![0; INLINE_BYTES_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, !wait);
    let got = loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if !wait => return Ok(Received::WouldBlock),
            // The peer closed with packets of ours unread. The kernel says so once; then come the
            // peer's last packets, such as why it failed, and the end.
            Err(Errno::CONNRESET) => {}
            Err(error) => return Err(system("recvmsg", error)),
        }
    };
    // Collected before any check, so that descriptors of a refused packet are closed.
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Ok(Received::Closed);
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(ControlError::Malformed("the packet was cut off".into()));
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        descriptors.clear();
    }
    open_packet(buffer, got.bytes, descriptors)
}

fn open_packet(
    mut buffer: Vec<u8>,
    bytes: usize,
    mut descriptors: Vec<OwnedFd>,
) -> Result<Received<Vec<u8>>, ControlError> {
    buffer.truncate(bytes);
    match buffer[0] {
        TAG_INLINE => {
            buffer.remove(0);
            Ok(Received::Message(buffer, descriptors))
        }
        TAG_MEMFD if !descriptors.is_empty() => {
            let memory = descriptors.remove(0);
            Ok(Received::Message(from_memfd(memory.as_fd())?, descriptors))
        }
        TAG_MEMFD => Err(ControlError::Malformed(
            "a long packet lost its descriptors".into(),
        )),
        tag => Err(ControlError::Malformed(format!("unknown packet tag {tag}"))),
    }
}

pub(super) fn into_memfd(message: &[u8]) -> Result<OwnedFd, ControlError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("headway-control", flags)
        .map_err(|error| system("memfd_create", error))?;
    let mut written = 0;
    while written < message.len() {
        match rustix::io::write(&memory, &message[written..]) {
            Ok(bytes) => written += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(system("write(memfd)", error)),
        }
    }
    // Sealed, so that what was checked is what is read.
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memory, seals).map_err(|error| system("F_ADD_SEALS", error))?;
    Ok(memory)
}

pub(super) fn from_memfd(memory: BorrowedFd<'_>) -> Result<Vec<u8>, ControlError> {
    let size = rustix::fs::fstat(memory)
        .map_err(|error| system("fstat(memfd)", error))?
        .st_size;
    let bytes = usize::try_from(size).unwrap_or(usize::MAX);
    if bytes > MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLong {
            bytes,
            max: MESSAGE_BYTES_MAX,
        });
    }
    let mut message = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match rustix::io::pread(memory, &mut message[filled..], filled as u64) {
            Ok(0) => {
                return Err(ControlError::Malformed(
                    "the memfd is shorter than it said".into(),
                ));
            }
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(system("pread(memfd)", error)),
        }
    }
    Ok(message)
}

fn system(call: &'static str, error: Errno) -> ControlError {
    ControlError::System {
        call,
        error: error.into(),
    }
}
