//! Messages with descriptors attached, over a Unix `SOCK_SEQPACKET` socket.
//!
//! What it does: sends a message with open files as ancillary data and receives one, so that a
//! helper process can hand an opened file to a worker. A message arrives whole with its descriptors
//! or not at all: a truncated message or control message is an error, and whatever did arrive of it
//! is closed, never leaked. Received descriptors are close-on-exec from the start.
//!
//! What it refuses: `SCM_CREDENTIALS` and every other kind of ancillary data, and more than
//! [`DESCRIPTORS_MAX`] descriptors a message.
//!
//! Sources: unix(7), cmsg(3), sendmsg(2), recvmsg(2).

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::mem::MaybeUninit;

/// Has the kernel refuse messages with descriptors to this socket, and to those accepted from it:
/// the sender gets `EPERM` (`SO_PASSRIGHTS`, Linux 6.16). Returns whether it will.
///
/// A receiver that has no use for them still has to close them, and the last close of a file or
/// socket may wait.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    crate::socket::set(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0).is_ok()
}

/// The most descriptors one message can carry: the kernel's `SCM_MAX_FD` (unix(7)).
pub const DESCRIPTORS_MAX: usize = 253;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// Whether a call may wait for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Wait for room, or for a message.
    Block,
    /// Answer `None` at once where the call would have to wait (`MSG_DONTWAIT`). The socket itself
    /// need not be non-blocking, so the two ends of one pair can each choose.
    Never,
}

/// A received message. Length 0 without descriptors is the end: the peer has closed.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer the message filled.
    pub length: usize,
    /// The descriptors that came with it, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

impl Received {
    /// The peer has closed its end. A message of no bytes and no descriptors cannot be told from
    /// it, so protocols here never send one.
    pub fn is_end(&self) -> bool {
        self.length == 0 && self.descriptors.is_empty()
    }
}

/// Why no message could be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveError {
    /// The message's bytes arrived, but not all of its descriptors: there were more than the caller
    /// allowed, or this process is at its descriptor limit (the kernel does not tell which). What
    /// arrived is closed; the bytes are in the buffer, so the reply can still be matched to its
    /// request.
    DescriptorsLost {
        /// How many bytes of the buffer the message filled.
        length: usize,
    },
    /// The message was longer than the buffer; its descriptors are closed, its rest is gone.
    TooLong,
    /// `recvmsg` failed.
    Os(Errno),
}

impl std::fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DescriptorsLost { .. } => f.write_str("recvmsg: not all descriptors arrived"),
            Self::TooLong => f.write_str("recvmsg: message longer than the buffer"),
            Self::Os(errno) => write!(f, "recvmsg: {errno}"),
        }
    }
}

impl std::error::Error for ReceiveError {}

impl From<ReceiveError> for std::io::Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::DescriptorsLost { .. } => Errno::MFILE.into(),
            ReceiveError::TooLong => Errno::MSGSIZE.into(),
            ReceiveError::Os(errno) => errno.into(),
        }
    }
}

/// A connected pair of close-on-exec `SOCK_SEQPACKET` sockets: message boundaries are kept, order
/// is kept, and either end sees when the other is gone.
///
/// # Errors
/// As socketpair(2), `EMFILE` above all.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Send one message, gathered from `parts`, with `descriptors` attached; `None` where it would have
/// to wait and must not. The sender keeps its own copies. A closed peer is `EPIPE`, never a signal.
/// An interrupted call is made again.
///
/// # Errors
/// As sendmsg(2); `EINVAL` for more than [`DESCRIPTORS_MAX`] descriptors; `ETOOMANYREFS` when too
/// many descriptors of this user are in flight.
///
/// # Example
/// ```
/// use os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
/// use rustix::{fd::AsFd, io::IoSlice};
/// # use headway_os as os;
/// let (a, b) = pair()?;
/// let file = std::fs::File::open("/proc/self/exe")?;
/// send_with_descriptors(&a, &[IoSlice::new(b"here")], &[file.as_fd()], Wait::Never)?;
/// let mut buffer = [0; 16];
/// let message = receive_with_descriptors(&b, &mut buffer, 1, Wait::Never)?.unwrap();
/// assert_eq!(&buffer[..message.length], b"here");
/// assert_eq!(message.descriptors.len(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn send_with_descriptors(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
    wait: Wait,
) -> rustix::io::Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(Errno::INVAL);
    }
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = match wait {
        Wait::Block => SendFlags::NOSIGNAL,
        Wait::Never => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    loop {
        match sendmsg(&socket, parts, &mut control, flags) {
            Ok(length) => return Ok(Some(length)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

/// Receive one message into `buffer` with at most `descriptors_max` descriptors; `None` where it
/// would have to wait and must not. An interrupted call is made again.
///
/// # Errors
/// [`ReceiveError`]; in every case nothing of the failed message stays open. `ECONNRESET` means
/// that the peer closed with unread messages in its queue: treat it as the end.
pub fn receive_with_descriptors(
    socket: impl AsFd,
    buffer: &mut [u8],
    descriptors_max: usize,
    wait: Wait,
) -> Result<Option<Received>, ReceiveError> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let room = match descriptors_max.min(DESCRIPTORS_MAX) {
        0 => 0,
        some => rustix::cmsg_space!(ScmRights(some)),
    };
    let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
    let flags = match wait {
        Wait::Block => RecvFlags::CMSG_CLOEXEC,
        Wait::Never => RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    };
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(ReceiveError::Os(errno)),
        }
    };
    let length = message.bytes;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = part {
            descriptors.extend(arrived);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveError::TooLong);
    }
    // The control space is rounded up, so one descriptor more than asked for can fit in it.
    if message.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > descriptors_max {
        return Err(ReceiveError::DescriptorsLost { length });
    }
    Ok(Some(Received {
        length,
        descriptors,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd, read, write};
    use rustix::pipe::{PipeFlags, pipe_with};

    fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let sent = send_with_descriptors(socket, &[IoSlice::new(bytes)], descriptors, Wait::Never)
            .unwrap();
        assert_eq!(sent, Some(bytes.len()));
    }

    #[test]
    fn message_and_descriptors_arrive_whole_when_sent_together() {
        let (a, b) = pair().unwrap();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        send(&a, b"one", &[reader.as_fd(), writer.as_fd()]);
        let mut buffer = [0; 8];
        let got = receive_with_descriptors(&b, &mut buffer, 2, Wait::Never)
            .unwrap()
            .unwrap();
        assert_eq!(&buffer[..got.length], b"one");
        write(&got.descriptors[1], b"x").unwrap();
        assert_eq!(read(&reader, &mut buffer).unwrap(), 1);
        for descriptor in &got.descriptors {
            assert!(fcntl_getfd(descriptor).unwrap().contains(FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn arrived_descriptors_are_closed_when_there_are_too_many() {
        let (a, b) = pair().unwrap();
        for allowed in 0..3 {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let extra = vec![writer.as_fd(); allowed + 1];
            send(&a, b"surplus", &extra);
            let mut buffer = [0; 8];
            let error =
                receive_with_descriptors(&b, &mut buffer, allowed, Wait::Never).unwrap_err();
            assert_eq!(error, ReceiveError::DescriptorsLost { length: 7 });
            assert_eq!(&buffer[..7], b"surplus");
            drop(writer);
            assert_eq!(
                read(&reader, &mut buffer).unwrap(),
                0,
                "a writing end is still open"
            );
        }
    }

    #[test]
    fn message_is_refused_when_longer_than_the_buffer() {
        let (a, b) = pair().unwrap();
        send(&a, b"longer", &[]);
        let error = receive_with_descriptors(&b, &mut [0; 3], 0, Wait::Never).unwrap_err();
        assert_eq!(error, ReceiveError::TooLong);
    }

    #[test]
    fn none_is_answered_when_the_call_would_wait() {
        let (a, b) = pair().unwrap();
        assert!(
            receive_with_descriptors(&b, &mut [0; 3], 0, Wait::Never)
                .unwrap()
                .is_none()
        );
        let full = (0..100_000).find(|_| {
            let part = [IoSlice::new(&[0; 1024])];
            send_with_descriptors(&a, &part, &[], Wait::Never)
                .unwrap()
                .is_none()
        });
        assert!(full.is_some());
    }

    #[test]
    fn end_is_seen_when_the_peer_has_closed() {
        let (a, b) = pair().unwrap();
        drop(a);
        assert!(
            receive_with_descriptors(&b, &mut [0; 3], 1, Wait::Block)
                .unwrap()
                .unwrap()
                .is_end()
        );
        let sent = send_with_descriptors(&b, &[IoSlice::new(b"x")], &[], Wait::Block);
        assert_eq!(sent, Err(Errno::PIPE));
    }
}
