//! The store process: the content store and the page-cache pinning of all workers of a server.
//!
//! What it does: owns the index of the content store, from a version of a file ([`FileKey`]) to the
//! sealed memfd with its contents, and gives a worker a descriptor of the memfd that it asks for. So all
//! workers send the same pages, and a file is copied once. It locks these pages, evicts by
//! GreedyDual-Size over the uses of all workers, and keeps within the memory that is available.
//!
//! A worker asks when its clients use a file ([`ToStore::Want`]). The answer is the memfd, or that the
//! worker shall have a helper copy the file and offer the copy, or that there is no room. So only
//! workers that serve a file have a descriptor of it, and two workers do not copy it at once.
//!
//! What it refuses: to be waited for. Each worker has a `SOCK_SEQPACKET` pair of its own. What finds no
//! room in it is not sent, and the file is served without the store. To take what can change: a memfd
//! without all its seals is none. Nor does a worker take one.
//!
//! A killed worker: the kernel closes its descriptors and its socket. A killed store process: workers
//! keep what they have, the master starts another one, and they offer it what they have. No memory is
//! shared but the sealed pages, so neither leaves anything half done.
//!
//! Sources: unix(7), memfd_create(2), fcntl(2) on seals, mlock(2).

mod index;
mod process;

pub use process::{StoreLimits, StoreStatistics, join_store, receive_store_statistics, store_main};

use headway_os::codec::{Field, decode};
use headway_os::encoding;
use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::io::{Errno, IoSlice};
use std::io;

use crate::deferred_close::DeferredCloses;
use crate::file::{Meta, OpenFile};

/// The most body numbers in a message.
pub const NUMBERS_MAX: usize = 500;

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 8 * (NUMBERS_MAX + 8);

/// A version of a file: what a copy is of.
///
/// The time of the inode's change is a part of it. An inode number is used again for another file, which
/// may have the same size and, as archives and reproducible builds set it, the same modification time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileKey {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the contents: seconds since 1970.
    pub modified_s: i64,
    /// Its nanoseconds.
    pub modified_ns: u32,
    /// Last change of the inode: seconds since 1970.
    pub changed_s: i64,
    /// Its nanoseconds.
    pub changed_ns: u32,
}

impl From<&Meta> for FileKey {
    fn from(meta: &Meta) -> FileKey {
        FileKey {
            device: meta.device,
            inode: meta.inode,
            size: meta.size,
            modified_s: meta.modified.0,
            modified_ns: meta.modified.1,
            changed_s: meta.changed.0,
            changed_ns: meta.changed.1,
        }
    }
}

/// From a worker to the store process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToStore {
    /// A client uses this file. Answered by [`FromStore::Given`], [`FromStore::Copy`] or
    /// [`FromStore::Refused`].
    Want {
        /// The file.
        key: FileKey,
        /// Also when others have to be evicted for it.
        always: bool,
    },
    /// A copy, whose memfd is attached. Answered by [`FromStore::Accepted`], [`FromStore::Given`] or
    /// [`FromStore::Refused`].
    Offer {
        /// The file.
        key: FileKey,
    },
    /// The copy that was to be made will not come.
    Decline {
        /// The file.
        key: FileKey,
    },
    /// The worker has no descriptor of these bodies any more, evicted or not.
    Returned {
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// Clients have used these bodies.
    Used {
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// A small file to pin, which is attached.
    Pin,
}

/// From the store process to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromStore {
    /// The body, whose memfd is attached.
    Given {
        /// Its file.
        key: FileKey,
        /// Its number.
        number: u64,
    },
    /// The worker shall copy the file and offer the copy.
    Copy {
        /// The file.
        key: FileKey,
    },
    /// There is no room, or another worker copies the file at the moment. An offered copy is not stored.
    Refused {
        /// The file.
        key: FileKey,
    },
    /// The offered copy is stored.
    Accepted {
        /// Its file.
        key: FileKey,
        /// Its number.
        number: u64,
    },
    /// The body is not stored any more. The worker drops it, and answers [`ToStore::Returned`] when no
    /// response sends it any more.
    Evict {
        /// Its number.
        number: u64,
    },
}

encoding! {
    struct FileKey { device, inode, size, modified_s, modified_ns, changed_s, changed_ns }
}

encoding! {
    enum ToStore {
        1 => Want { key, always },
        2 => Offer { key },
        3 => Decline { key },
        4 => Returned { numbers },
        5 => Used { numbers },
        6 => Pin,
    }
}

encoding! {
    enum FromStore {
        1 => Given { key, number },
        2 => Copy { key },
        3 => Refused { key },
        4 => Accepted { key, number },
        5 => Evict { number },
    }
}

/// A worker's socket to the store process.
#[derive(Debug)]
pub struct StoreSocket(OwnedFd);

/// What [`StoreSocket::receive`] returns.
#[derive(Debug)]
pub enum FromStoreSocket {
    /// A message, and the descriptor with it.
    Message(FromStore, Option<OwnedFd>),
    /// There is no message.
    WouldBlock,
    /// The store process has ended.
    End,
}

impl StoreSocket {
    /// Takes over the socket.
    pub fn new(socket: OwnedFd) -> StoreSocket {
        StoreSocket(socket)
    }

    /// Sends a message with a file, and returns whether there was room for it. Never blocks.
    pub fn send(&self, message: &ToStore, file: Option<BorrowedFd<'_>>) -> bool {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        let parts = [IoSlice::new(&bytes)];
        let sent = send_with_descriptors(&self.0, &parts, file.as_slice(), Wait::Never);
        matches!(sent, Ok(Some(_)))
    }

    /// Has a small file pinned that is in memory now, and returns whether the message was sent. Never
    /// blocks.
    pub fn pin(&self, file: &OpenFile) -> bool {
        crate::pinner::takes(file.meta().size) && self.send(&ToStore::Pin, Some(file.as_fd()))
    }

    /// The next message. Never blocks.
    pub fn receive(&self) -> FromStoreSocket {
        match receive_message(&self.0) {
            Ok(Some((message, file))) => FromStoreSocket::Message(message, file),
            Ok(None) => FromStoreSocket::WouldBlock,
            Err(_) => FromStoreSocket::End,
        }
    }
}

impl AsFd for StoreSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The body that was given for a file, if nothing can change it any more. It is closed by a helper.
pub fn stored_body(memfd: OwnedFd, key: &FileKey, closes: &DeferredCloses) -> Option<OpenFile> {
    let meta = match is_sealed(&memfd) {
        true => headway_os::open::status(&memfd).ok().map(Meta::from),
        false => None,
    };
    let is_whole = meta.is_some_and(|meta| meta.size == key.size);
    let file = OpenFile::new(memfd, meta.unwrap_or_default()).with_deferred_close(closes);
    is_whole.then(|| file.memfd())
}

/// Whether nothing can change this file any more. Only a memfd has seals.
fn is_sealed(file: &OwnedFd) -> bool {
    let needed = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(needed))
}

/// The next message with its descriptor; `None` if there is none. One that is malformed is skipped.
///
/// # Errors
/// The other side has closed, or recvmsg(2) failed.
fn receive_message<M: for<'b> Field<'b>>(
    socket: &OwnedFd,
) -> io::Result<Option<(M, Option<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    loop {
        let received = match receive_with_descriptors(socket, &mut bytes, 1, Wait::Never) {
            Ok(Some(received)) if received.is_end() => return Err(Errno::PIPE.into()),
            Ok(Some(received)) => (received.length, received.descriptors.into_iter().next()),
            // The receiver sees that the descriptor is missing.
            Err(ReceiveError::DescriptorsLost { length }) => (length, None),
            Ok(None) => return Ok(None),
            Err(ReceiveError::TooLong) => continue,
            Err(ReceiveError::Os(errno)) => return Err(errno.into()),
        };
        if let Ok(message) = decode(&bytes[..received.0]) {
            return Ok(Some((message, received.1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_message_fits_the_buffer() {
        let mut bytes = Vec::new();
        let numbers = vec![u64::MAX; NUMBERS_MAX];
        ToStore::Returned { numbers }.write(&mut bytes);
        assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    }
}
