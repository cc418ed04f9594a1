//! Unix sockets of this network namespace, with their peers and the connections that wait for a
//! listener: sock_diag(7), `struct unix_diag_msg`.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// A stream socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnixSocket {
    pub inode: u64,
    pub is_listener: bool,
    /// Its path; an abstract name begins with `@`.
    pub name: Option<String>,
    /// The other end.
    pub peer: Option<u64>,
    /// Sockets of the clients that it has not accepted.
    pub pending: Vec<u64>,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const AF_UNIX: u8 = 1;
const SOCK_STREAM: u8 = 1;
const TCP_LISTEN: u8 = 10;

// What to show, and the attributes with it.
const SHOW_NAME: u32 = 1;
const SHOW_PEER: u32 = 4;
const SHOW_PENDING: u32 = 8;
const NAME: u16 = 0;
const PEER: u16 = 2;
const PENDING: u16 = 3;

const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 16;

/// All of them.
pub(super) fn unix_sockets() -> io::Result<Vec<UnixSocket>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::send(&socket, &request(), SendFlags::empty())?;
    let (mut buffer, mut sockets) = (vec![0; 64 * 1024], Vec::new());
    loop {
        let (bytes, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if bytes == 0 || take(&buffer[..bytes.min(64 * 1024)], &mut sockets)? {
            return Ok(sockets);
        }
    }
}

/// `struct nlmsghdr` and `struct unix_diag_req`.
fn request() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(40_u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([AF_UNIX, 0, 0, 0]);
    // All states, any inode.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend((SHOW_NAME | SHOW_PEER | SHOW_PENDING).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// The messages of a datagram. Whether it was the last.
fn take(mut bytes: &[u8], sockets: &mut Vec<UnixSocket>) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        if length < HEADER_BYTES || length > bytes.len() {
            break;
        }
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(io::Error::other("sock_diag: the kernel refused")),
            _ => sockets.extend(socket_of(&bytes[HEADER_BYTES..length])),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// `struct unix_diag_msg` and its attributes; `None` if it is no stream socket.
fn socket_of(message: &[u8]) -> Option<UnixSocket> {
    if *message.get(1)? != SOCK_STREAM {
        return None;
    }
    let mut socket = UnixSocket {
        inode: u64::from(u32_at(message, 4)?),
        is_listener: *message.get(2)? == TCP_LISTEN,
        ..UnixSocket::default()
    };
    let mut rest = message.get(MESSAGE_BYTES..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let Some(value) = rest.get(4..usize::from(length)) else {
            break;
        };
        match kind {
            NAME => socket.name = name(value),
            PEER => socket.peer = u32_at(value, 0).map(u64::from).filter(|inode| *inode != 0),
            PENDING => {
                let inodes = value.chunks_exact(4).filter_map(|word| u32_at(word, 0));
                socket.pending = inodes.map(u64::from).collect();
            }
            _ => {}
        }
        rest = (rest.get(usize::from(length).next_multiple_of(4)..)).unwrap_or_default();
    }
    Some(socket)
}

/// unix(7): an abstract name begins with a zero byte.
fn name(bytes: &[u8]) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match bytes {
        [] => None,
        [0, rest @ ..] => Some(format!("@{}", text(rest))),
        _ => Some(text(bytes.strip_suffix(b"\0").unwrap_or(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::{name, unix_sockets};

    fn inode(socket: &impl AsFd) -> u64 {
        rustix::fs::fstat(socket).expect("a socket").st_ino
    }

    #[test]
    fn connection_that_waits_is_listed_with_its_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a listener");
        let client = UnixStream::connect(&path).expect("it listens");
        let find = || {
            let all = unix_sockets().expect("sock_diag");
            let own = all.into_iter().find(|one| one.inode == inode(&listener));
            own.expect("our listener")
        };
        let waiting = find();
        assert!(waiting.is_listener);
        assert_eq!(waiting.name.as_deref(), path.to_str());
        assert_eq!(waiting.pending, [inode(&client)]);
        let (accepted, _) = listener.accept().expect("it waits");
        assert!(find().pending.is_empty());
        let all = unix_sockets().expect("sock_diag");
        let own = all.iter().find(|one| one.inode == inode(&client));
        assert_eq!(own.expect("ours").peer, Some(inode(&accepted)));
    }

    #[test]
    fn names_are_paths_or_abstract() {
        assert_eq!(name(b"/run/a\0").as_deref(), Some("/run/a"));
        assert_eq!(name(b"/run/a").as_deref(), Some("/run/a"));
        assert_eq!(name(b"\0a").as_deref(), Some("@a"));
        assert_eq!(name(b""), None);
    }
}
