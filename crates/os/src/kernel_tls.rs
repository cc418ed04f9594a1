//! Kernel TLS for sending: the kernel seals what is written to a TCP socket.
//!
//! [`begin`] makes a connection one that seals with these keys. From then on every write is data of TLS, and
//! [`send_record`] sends other records. Nothing is done for what is received. A write can sleep although it
//! has `MSG_DONTWAIT`: the kernel holds a mutex of the socket while its own worker sends records that found no
//! room before. So can a close.
//!
//! Source: Documentation/networking/tls.rst and include/uapi/linux/tls.h of Linux.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// The level of the options (linux/socket.h).
const SOL_TLS: libc::c_int = 282;
/// The keys for sending, and the type of a record in a control message (linux/tls.h).
const TLS_TX: libc::c_int = 1;
const TLS_SET_RECORD_TYPE: libc::c_int = 1;
/// The option of TCP that names a protocol above it (linux/tcp.h).
const TCP_ULP: libc::c_int = 31;

/// The longest of the structures with keys.
const KEYS_BYTES_MAX: usize = 56;
/// The part of an AES-GCM nonce that is the same in all records.
const SALT_BYTES: usize = 4;

/// How records are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-GCM with a key of 128 bits.
    Aes128Gcm,
    /// AES-GCM with a key of 256 bits.
    Aes256Gcm,
    /// ChaCha20 with Poly1305.
    Chacha20Poly1305,
}

impl Cipher {
    /// All ciphers.
    pub const ALL: [Cipher; 3] = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::Chacha20Poly1305,
    ];

    /// The number in linux/tls.h.
    fn number(self) -> u16 {
        match self {
            Cipher::Aes128Gcm => 51,
            Cipher::Aes256Gcm => 52,
            Cipher::Chacha20Poly1305 => 54,
        }
    }

    fn key_bytes(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::Chacha20Poly1305 => 32,
        }
    }
}

/// The keys with which the kernel seals.
#[derive(Clone, Copy)]
pub struct SendKeys<'a> {
    /// Whether it is TLS 1.3; otherwise 1.2.
    pub is_13: bool,
    /// How records are sealed.
    pub cipher: Cipher,
    /// The key.
    pub key: &'a [u8],
    /// What the number of a record is added to, to make its nonce.
    pub iv: [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

impl SendKeys<'_> {
    /// The structure of linux/tls.h for this cipher, and its length: the version, the cipher, the nonce, the
    /// key, the salt, the number.
    fn encode(&self) -> Result<([u8; KEYS_BYTES_MAX], usize)> {
        if self.key.len() != self.cipher.key_bytes() {
            return Err(Errno::INVAL);
        }
        let version: u16 = if self.is_13 { 0x0304 } else { 0x0303 };
        let is_gcm = self.cipher != Cipher::Chacha20Poly1305;
        let (salt, nonce) = self.iv.split_at(if is_gcm { SALT_BYTES } else { 0 });
        let fresh = fresh_nonce(self.iv);
        let nonce = match is_gcm && !self.is_13 {
            true => &fresh[..],
            false => nonce,
        };
        let number = self.sequence.to_be_bytes();
        let (version, cipher) = (version.to_ne_bytes(), self.cipher.number().to_ne_bytes());
        let (mut bytes, mut length) = ([0; KEYS_BYTES_MAX], 0);
        for part in [&version[..], &cipher, nonce, self.key, salt, &number] {
            bytes[length..][..part.len()].copy_from_slice(part);
            length += part.len();
        }
        Ok((bytes, length))
    }
}

/// The part of the nonce that travels with records of TLS 1.2 with AES-GCM. The kernel counts it up from here,
/// while the records before had the exclusive or of `iv` and their number. The highest bit differs from all of
/// those, so that no nonce comes twice.
fn fresh_nonce(iv: [u8; 12]) -> [u8; 8] {
    let mut nonce = [0; 8];
    nonce[0] = !iv[SALT_BYTES] & 0x80;
    nonce
}

/// Has the kernel seal what is written to a connected socket from now on. If that fails, the socket sends bytes
/// as they are.
///
/// # Errors
/// `ENOENT` if the kernel has no TLS (module `tls`), which only a process with `CAP_NET_ADMIN` has it load;
/// `ENOTCONN` if the socket is not connected; `EINVAL` or `ENOENT` for a cipher that it lacks.
pub fn begin(socket: BorrowedFd<'_>, keys: &SendKeys<'_>) -> Result<()> {
    attach(socket)?;
    set_keys(socket, keys)
}

fn attach(socket: BorrowedFd<'_>) -> Result<()> {
    set_bytes(socket, libc::IPPROTO_TCP, TCP_ULP, b"tls")
}

/// Gives the kernel the next keys. The keys before have sealed all records until here.
///
/// # Errors
/// `EBUSY` if the kernel cannot change keys (before Linux 6.14), and for TLS 1.2.
pub fn set_keys(socket: BorrowedFd<'_>, keys: &SendKeys<'_>) -> Result<()> {
    let (bytes, length) = keys.encode()?;
    set_bytes(socket, SOL_TLS, TLS_TX, &bytes[..length])
}

/// Sends a record of this type, which is no data: an alert or a message of the handshake. Short ones leave
/// whole or not at all.
///
/// # Errors
/// `EAGAIN` without room in the socket; otherwise as sendmsg(2).
pub fn send_record(socket: BorrowedFd<'_>, kind: u8, bytes: &[u8]) -> Result<usize> {
    let header_bytes = size_of::<libc::cmsghdr>();
    let header = libc::cmsghdr {
        cmsg_len: header_bytes + 1,
        cmsg_level: SOL_TLS,
        cmsg_type: TLS_SET_RECORD_TYPE,
    };
    let mut control = Control {
        header,
        kind: [kind, 0, 0, 0, 0, 0, 0, 0],
    };
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zeros are a valid `msghdr`: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points to the bytes and to the control message, which live until the call returns;
    // the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| crate::residency::last_errno())
}

/// A control message with one byte of data, padded as the kernel expects (cmsg(3)).
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    kind: [u8; 8],
}

fn set_bytes(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: `value` is live and as long as `length` says; the kernel reads it and keeps no pointer.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            length,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(crate::residency::last_errno()),
    }
}

/// What the kernel can seal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// By cipher, in TLS 1.2 and in TLS 1.3.
    ciphers: [[bool; 2]; Cipher::ALL.len()],
    /// Whether it can change keys (Linux 6.14).
    pub rekeys: bool,
}

impl Support {
    /// Whether it has this cipher.
    pub fn has(&self, is_13: bool, cipher: Cipher) -> bool {
        self.ciphers[cipher as usize][usize::from(is_13)]
    }
}

/// Tries out what the kernel can seal, on connections within this machine. If this process may load modules,
/// the kernel loads those that it needs. So it may wait, and belongs to the start of a process.
///
/// # Errors
/// Which call failed: `setsockopt(TCP_ULP)` if the kernel has no TLS, `setsockopt(TLS_TX)` if it has no cipher.
pub fn probe() -> std::result::Result<Support, (&'static str, Errno)> {
    let name = |call| {
        move |error: std::io::Error| (call, Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(name("bind"))?;
    let address = listener.local_addr().map_err(name("getsockname"))?;
    let mut support = Support::default();
    let mut failure = Ok(());
    for cipher in Cipher::ALL {
        for is_13 in [false, true] {
            let client = TcpStream::connect(address).map_err(name("connect"))?;
            let _server = listener.accept().map_err(name("accept"))?;
            let keys = SendKeys {
                is_13,
                cipher,
                key: &[0; 32][..cipher.key_bytes()],
                iv: [0; 12],
                sequence: 0,
            };
            attach(client.as_fd()).map_err(|error| ("setsockopt(TCP_ULP, tls)", error))?;
            match set_keys(client.as_fd(), &keys) {
                Ok(()) => support.ciphers[cipher as usize][usize::from(is_13)] = true,
                Err(error) => failure = Err(("setsockopt(TLS_TX)", error)),
            }
            if is_13 && cipher == Cipher::Aes128Gcm {
                support.rekeys = set_keys(client.as_fd(), &keys).is_ok();
            }
        }
    }
    match support == Support::default() {
        true => failure.map(|()| support),
        false => Ok(support),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = {
        let mut key = [0; 32];
        let mut at = 0;
        while at < key.len() {
            key[at] = 0x40 + at as u8;
            at += 1;
        }
        key
    };

    fn keys(is_13: bool, cipher: Cipher) -> SendKeys<'static> {
        SendKeys {
            is_13,
            cipher,
            key: &KEY[..cipher.key_bytes()],
            iv: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            sequence: 0x0102_0304_0506_0708,
        }
    }

    /// The offsets are those of linux/tls.h.
    #[test]
    fn keys_have_the_kernels_layout_in_all_ciphers() {
        let number = [1, 2, 3, 4, 5, 6, 7, 8];
        for (cipher, kind, key_at, length) in [
            (Cipher::Aes128Gcm, 51, 12, 40),
            (Cipher::Aes256Gcm, 52, 12, 56),
            (Cipher::Chacha20Poly1305, 54, 16, 56),
        ] {
            let (bytes, encoded) = keys(true, cipher).encode().unwrap();
            assert_eq!(encoded, length, "{cipher:?}");
            assert_eq!(bytes[..4], [4, 3, kind, 0]);
            let key_end = key_at + cipher.key_bytes();
            assert_eq!(bytes[key_at..key_end], KEY[..cipher.key_bytes()]);
            assert_eq!(bytes[length - 8..length], number);
            match cipher {
                Cipher::Chacha20Poly1305 => assert_eq!(bytes[4..16], keys(true, cipher).iv),
                _ => {
                    assert_eq!(bytes[4..12], [5, 6, 7, 8, 9, 10, 11, 12]);
                    assert_eq!(bytes[key_end..key_end + 4], [1, 2, 3, 4], "the salt");
                }
            }
            let (older, _) = keys(false, cipher).encode().unwrap();
            assert_eq!(older[..4], [3, 3, kind, 0]);
        }
        let short = SendKeys {
            key: &KEY[..31],
            ..keys(true, Cipher::Aes256Gcm)
        };
        assert_eq!(short.encode(), Err(Errno::INVAL));
    }

    /// The records before had the exclusive or of the iv and their number as nonce.
    #[test]
    fn kernel_uses_no_nonce_again_in_tls_12() {
        for low in [0, 1, 0x7f, 0x80, 0xff] {
            for high in [0, 0x7f, 0x80, 0xff] {
                let keys = SendKeys {
                    iv: [9, 9, 9, 9, high, 0, 0, 0, 0, 0, 0, low],
                    sequence: 5,
                    ..keys(false, Cipher::Aes128Gcm)
                };
                let (bytes, _) = keys.encode().unwrap();
                let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
                let first = number(&bytes[4..12]);
                for before in 0..1000 {
                    let used = number(&keys.iv[4..]) ^ before;
                    assert!(used.wrapping_sub(first) > 1 << 40, "{high} {low} {before}");
                }
            }
        }
    }

    #[test]
    fn probe_says_what_failed_or_what_the_kernel_has() {
        match probe() {
            Ok(support) => assert!(support.has(true, Cipher::Aes128Gcm), "{support:?}"),
            Err((call, error)) => {
                assert_eq!((call, error), ("setsockopt(TCP_ULP, tls)", Errno::NOENT));
            }
        }
    }

    #[test]
    fn socket_sends_as_before_when_the_kernel_refuses() {
        use std::io::{Read, Write};
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let wrong = SendKeys {
            key: &[],
            ..keys(true, Cipher::Aes128Gcm)
        };
        assert!(begin(server.as_fd(), &wrong).is_err());
        server.write_all(b"plain").unwrap();
        let mut received = [0; 5];
        client.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"plain");
    }
}
