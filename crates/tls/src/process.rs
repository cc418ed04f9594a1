//! The handshake process of a worker. It has the private keys, which the worker has not, and may compute
//! for as long as a handshake takes.
//!
//! It handles one message after the other. While it computes for one client, others wait here and not
//! in the worker.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use headway_os::codec::{Field, Version, decode};
use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, IoSlice};
use zeroize::Zeroizing;

use crate::challenge::ChallengeMemory;
use crate::failure::{Failure, Reason};
use crate::handshake::{Acceptor, Handshake, Settings, Step};
use crate::tickets::TicketSecret;
use crate::wire::{Answer, MESSAGE_BYTES_MAX, Order, encode, wipe};

/// Handshakes at a time: the worker has fewer.
const HANDSHAKES_MAX: usize = 1 << 14;
/// Handshakes at a time with messages of any length, which is at most 64 KiB. So together they keep at most
/// 64 MiB of messages.
const LONG_HANDSHAKES_MAX: usize = 1 << 10;
/// What a client may send if there are more handshakes: far more than is usual. So these keep at most 256 MiB.
const SHORT_BYTES_MAX: usize = 16 << 10;
/// More than usual settings need.
const SEALED_BYTES: usize = 1 << 20;

/// A message in a memfd that no process can change.
///
/// # Errors
/// Those of memfd_create(2) and write(2).
pub fn sealed<'b>(message: &impl Field<'b>) -> io::Result<OwnedFd> {
    // A buffer that grew would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(SEALED_BYTES));
    message.write(&mut bytes);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"headway-keys", flags)?);
    file.write_all(&bytes)?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW,
    )?;
    Ok(file.into())
}

/// Gives a handshake process its keys through the worker's end of the socket, before the worker gets this
/// end. So the worker never sees the keys. The descriptors are those of [`read_acceptor`], and behind
/// them that of a [`ChallengeMemory`] if challenges have to be answered.
///
/// # Errors
/// Those of sendmsg(2).
pub fn start(workers_end: &OwnedFd, descriptors: &[OwnedFd]) -> io::Result<()> {
    let mut message = Vec::new();
    encode(&Order::Start { version: Version }, &mut message);
    let parts = [IoSlice::new(&message)];
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    match send_with_descriptors(workers_end, &parts, &descriptors, Wait::Never)? {
        Some(_) => Ok(()),
        None => Err(Errno::AGAIN.into()),
    }
}

/// Makes what begins handshakes, from [sealed] [`Settings`] and a sealed `Option<TicketSecret>`.
///
/// # Errors
/// If they cannot be read or used.
pub fn read_acceptor(settings: OwnedFd, tickets: OwnedFd) -> io::Result<Acceptor> {
    let (settings, tickets) = (contents(settings)?, contents(tickets)?);
    let settings: Settings = decode(&settings).map_err(io::Error::other)?;
    let tickets: Option<TicketSecret> = decode(&tickets).map_err(io::Error::other)?;
    Acceptor::new(settings, tickets).map_err(io::Error::other)
}

/// Reads a sealed `Option<TicketSecret>`.
///
/// # Errors
/// If it cannot be read, as that of another version.
pub fn read_tickets(tickets: OwnedFd) -> io::Result<Option<TicketSecret>> {
    decode(&contents(tickets)?).map_err(io::Error::other)
}

/// Several processes share the descriptor's offset, so it is not used.
fn contents(memory: OwnedFd) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = File::from(memory);
    let mut bytes = Zeroizing::new(vec![0; file.metadata()?.len() as usize]);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Runs a handshake process on its socket until the worker closes it.
///
/// # Errors
/// A broken socket, a malformed message, or settings that cannot be used.
pub fn handshake_main(socket: OwnedFd) -> io::Result<()> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let Some(acceptor) = receive_start(&socket, &mut buffer)? else {
        return Ok(());
    };
    let mut process = Process {
        acceptor,
        handshakes: HashMap::new(),
        output: Vec::new(),
        // Keys are in it, of which no copies may be left behind when it grows.
        message: Vec::with_capacity(MESSAGE_BYTES_MAX),
    };
    while let Some((length, _)) = receive(&socket, &mut buffer, 0)? {
        match decode(&buffer[..length]).map_err(io::Error::other)? {
            Order::Feed { token, records } => process.feed(&socket, token, records)?,
            Order::Forget { token } => drop(process.handshakes.remove(&token)),
            Order::Start { .. } => return Err(io::Error::other("a second start")),
        }
    }
    Ok(())
}

fn receive_start(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<Acceptor>> {
    let Some((length, descriptors)) = receive(socket, buffer, 3)? else {
        return Ok(None);
    };
    let order = decode(&buffer[..length]).map_err(io::Error::other)?;
    let mut descriptors = descriptors.into_iter();
    match (order, descriptors.next(), descriptors.next()) {
        (Order::Start { .. }, Some(settings), Some(tickets)) => {
            let mut acceptor = read_acceptor(settings, tickets)?;
            if let Some(memory) = descriptors.next() {
                acceptor.answer_challenges(ChallengeMemory::shared(memory));
            }
            Ok(Some(acceptor))
        }
        _ => Err(io::Error::other("the first message is not the start")),
    }
}

/// `None` at the end.
fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    descriptors_max: usize,
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    match receive_with_descriptors(socket, buffer, descriptors_max, Wait::Block) {
        Ok(Some(received)) if !received.is_end() => {
            Ok(Some((received.length, received.descriptors)))
        }
        Ok(_) | Err(ReceiveError::Os(Errno::CONNRESET)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

struct Process {
    acceptor: Acceptor,
    /// By the token of the connection.
    handshakes: HashMap<u64, Handshake>,
    output: Vec<u8>,
    message: Vec<u8>,
}

impl Process {
    fn feed(&mut self, socket: &OwnedFd, token: u64, records: &[u8]) -> io::Result<()> {
        self.output.clear();
        let handshake = match self.handshakes.remove(&token) {
            Some(handshake) => Ok(handshake),
            None if self.handshakes.len() >= HANDSHAKES_MAX => {
                Err(Failure::other("too many handshakes"))
            }
            None => Handshake::for_records(&self.acceptor, records),
        };
        match handshake {
            Err(failure) => self.answer_failed(token, failure, None),
            Ok(handshake)
                if self.handshakes.len() >= LONG_HANDSHAKES_MAX
                    && handshake.fed_bytes() + records.len() > SHORT_BYTES_MAX =>
            {
                let failure = Failure::other("its messages are too long for a busy server");
                self.answer_failed(token, failure, None);
            }
            Ok(mut handshake) => {
                let step = handshake.feed(records, &mut self.output);
                let server_name = handshake.server_name().map(<[u8]>::to_vec);
                match step {
                    Step::More => {
                        self.handshakes.insert(token, handshake);
                        let answer = Answer::More {
                            token,
                            server_name,
                            output: &self.output,
                        };
                        encode(&answer, &mut self.message);
                    }
                    Step::Done(established) => {
                        let answer = Answer::Done {
                            token,
                            established: *established,
                            output: &self.output,
                        };
                        encode(&answer, &mut self.message);
                    }
                    Step::Failed(failure) => self.answer_failed(token, failure, server_name),
                }
            }
        }
        // A client's certificates are in its tickets, too, and may be long.
        if self.message.len() > MESSAGE_BYTES_MAX {
            self.output.clear();
            let failure = Failure {
                reason: Reason::ClientCertificateRefused,
                detail: "its chain is too long".to_owned(),
            };
            self.answer_failed(token, failure, None);
        }
        let sent = self.send(socket);
        wipe(&mut self.message);
        match sent {
            // The buffer of the socket is smaller than usual.
            Err(Errno::MSGSIZE) => {
                self.output.clear();
                let why = "the answer is too long for the socket; raise net.core.wmem_default";
                self.answer_failed(token, Failure::other(why), None);
                Ok(self.send(socket)?)
            }
            sent => Ok(sent?),
        }
    }

    fn send(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let parts = [IoSlice::new(&self.message)];
        match send_with_descriptors(socket, &parts, &[], Wait::Block) {
            // The worker has gone: so the next message is the end.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error),
        }
    }
    /// Encodes the answer for a handshake that has failed.
    fn answer_failed(&mut self, token: u64, failure: Failure, server_name: Option<Vec<u8>>) {
        let answer = Answer::Failed {
            token,
            failure,
            server_name,
            output: &self.output,
        };
        encode(&answer, &mut self.message);
    }
}
