//! A process that keeps small files for all workers of a server, so that they need not each have a
//! copy.
//!
//! Who talks: the master starts it with one end of a `SOCK_SEQPACKET` pair as its standard input,
//! and gives each worker the other end. A worker offers a small file that has come into its memory
//! ([`KeeperSocket`]): one message is how many bytes are kept at most (u64, little-endian) with the
//! file attached. What the keeper says back is for the master alone, since workers never read
//! there: the five numbers of [`KeepStatistics`] ([`told_by_keeper`]).
//!
//! What it refuses: to be waited for. A worker whose offer finds no room goes on, and may offer the
//! file again. It ends when nobody has the other end any more.
//!
//! Sources: unix(7), mlock(2).

use super::{FILE_BYTES_MAX, Keep, KeepLimits, KeepStatistics, Kept, LOOK, Offer, Offered, Offers};
use crate::file::OpenFile;
use headway_os::rights::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OFFER_BYTES: usize = size_of::<u64>();
const TOLD_BYTES: usize = 5 * size_of::<u64>();

/// Keep files offered on `socket` until nobody has its other end. `available` as in [`KeepLimits`].
///
/// # Errors
/// A broken socket.
pub fn keeper_main(socket: OwnedFd, available: fn() -> Option<u64>) -> io::Result<()> {
    // How much is kept comes with each offer.
    let limits = KeepLimits {
        bytes_max: 0,
        available,
    };
    let kept = Arc::new(Kept::default());
    let mut offers = FromWorkers {
        socket,
        kept: Arc::clone(&kept),
        bound: 0,
        held: None,
        told: None,
    };
    Keep::new(limits, kept).run(&mut offers)
}

/// What the keeper has told since it was last asked, the newest of it; never waits.
///
/// # Errors
/// As recvmsg(2).
pub fn told_by_keeper(keeper: impl AsFd) -> io::Result<Option<KeepStatistics>> {
    let (mut newest, mut message) = (None, [0; TOLD_BYTES]);
    while let Some(received) = receive_with_descriptors(&keeper, &mut message, 0, Wait::Never)? {
        if received.is_end() {
            break;
        }
        newest = KeepStatistics::from_bytes(&message[..received.length]).or(newest);
    }
    Ok(newest)
}

/// A worker's way to the keeper.
#[derive(Debug)]
pub struct KeeperSocket {
    socket: OwnedFd,
    bytes_max: u64,
}

impl KeeperSocket {
    /// This one, which is to keep so much.
    pub fn new(socket: OwnedFd, bytes_max: u64) -> KeeperSocket {
        KeeperSocket { socket, bytes_max }
    }

    /// Somebody has asked for this small file, and it is in memory now; was that taken? Never
    /// waits.
    pub fn offer(&self, file: &OpenFile) -> bool {
        if !(1..=FILE_BYTES_MAX).contains(&file.meta().size) {
            return false;
        }
        let message = self.bytes_max.to_le_bytes();
        let parts = [IoSlice::new(&message)];
        let sent = send_with_descriptors(&self.socket, &parts, &[file.as_fd()], Wait::Never);
        matches!(sent, Ok(Some(_)))
    }
}

/// The offers as the process takes them; between them it tells what it keeps.
struct FromWorkers {
    socket: OwnedFd,
    kept: Arc<Kept>,
    bound: u64,
    /// Came with a new bound, which is told first.
    held: Option<Offer>,
    /// What the master knows, and since when.
    told: Option<(KeepStatistics, Instant)>,
}

impl Offers for FromWorkers {
    fn next(&mut self, patience: Duration) -> io::Result<Offered> {
        if let Some(offer) = self.held.take() {
            return Ok(Offered::File(offer));
        }
        let patience = match self.tell() {
            true => patience,
            false => patience.min(LOOK),
        };
        if !self.wait(patience)? {
            return Ok(Offered::Nothing);
        }
        let mut message = [0; OFFER_BYTES];
        let received = match receive_with_descriptors(&self.socket, &mut message, 1, Wait::Never) {
            Ok(Some(received)) if received.is_end() => return Ok(Offered::End),
            Ok(Some(received)) => received,
            Err(ReceiveError::Os(Errno::CONNRESET)) => return Ok(Offered::End),
            Err(ReceiveError::Os(errno)) => return Err(errno.into()),
            // One that has lost its file is none.
            Ok(None) | Err(_) => return Ok(Offered::Nothing),
        };
        let file = received.descriptors.into_iter().next();
        let offer = file.and_then(|file| {
            let meta = headway_os::open::status(&file).ok()?.into();
            Some(Offer { file, meta })
        });
        Ok(match offer {
            Some(offer) if received.length == OFFER_BYTES => self.taken(message, offer),
            _ => Offered::Nothing,
        })
    }
}

impl FromWorkers {
    fn taken(&mut self, message: [u8; OFFER_BYTES], offer: Offer) -> Offered {
        let bound = u64::from_le_bytes(message);
        if bound == self.bound {
            return Offered::File(offer);
        }
        (self.bound, self.held) = (bound, Some(offer));
        Offered::Bound(bound)
    }

    /// Whether there is something to be taken.
    fn wait(&self, patience: Duration) -> io::Result<bool> {
        let timeout = (patience < Duration::MAX).then(|| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        });
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Tells the master what has changed, now and then; whether it knows everything.
    fn tell(&mut self) -> bool {
        let now = self.kept.now();
        let due = match self.told {
            Some((known, _)) if known == now => return true,
            Some((_, at)) => at.elapsed() >= LOOK,
            None => true,
        };
        if !due {
            return false;
        }
        let message = now.to_bytes();
        let sent = send_with_descriptors(&self.socket, &[IoSlice::new(&message)], &[], Wait::Never);
        match sent {
            Ok(Some(_)) => self.told = Some((now, Instant::now())),
            // There is no room now; or nobody is there, which the next look at the socket shows.
            Ok(None) | Err(_) => return false,
        }
        true
    }
}

impl KeepStatistics {
    fn to_bytes(self) -> Vec<u8> {
        let all = [
            self.files,
            self.bytes,
            self.bytes_max,
            self.let_go,
            self.missed,
        ];
        all.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<KeepStatistics> {
        let (numbers, []) = bytes.as_chunks::<{ size_of::<u64>() }>() else {
            return None;
        };
        let &[files, bytes, bytes_max, let_go, missed] = numbers else {
            return None;
        };
        let number = u64::from_le_bytes;
        Some(KeepStatistics {
            files: number(files),
            bytes: number(bytes),
            bytes_max: number(bytes_max),
            let_go: number(let_go),
            missed: number(missed),
        })
    }
}
