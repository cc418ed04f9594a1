//! Writes responses to client sockets: prepared responses in one call, larger files one resident
//! chunk (256 KiB) at a time, up to the write quantum per loop iteration.
//!
//! Files leave in one of two ways. [`copy`], the default, reads a chunk into the worker's memory
//! with a call that cannot block, then checks that the file is unchanged, then sends the chunk. In
//! this order every byte sent belongs to the version that was opened. If the file changes, what was
//! sent is compared with it ([`headway_files::SentPrefix`]): a file that was only appended to or
//! touched is sent up to the promised length, otherwise the connection closes before it. [`sendfile`]
//! passes the file's own pages to the socket. This saves the copy, but there is nothing to compare, so
//! every change closes the connection. Data that is still in the socket changes when the file is
//! rewritten in place, and the change may go unnoticed. [`auto`] is `sendfile` until one sleeps.
//!
//! Bodies in the content store cannot change, and are always sent by `sendfile` ([`stored`]).
//!
//! To clients that speak TLS everything leaves by [`copy`], and is sealed on the way ([`sealed`]), unless the
//! kernel seals ([`offload`]).
//!
//! A research server may have another way, which implements [`SendFiles`].
//!
//! Nothing here waits. A chunk that is not in memory ends the attempt with
//! [`SendProgress::NotResident`], and the worker asks a helper. A connection owns no send buffer:
//! what the socket does not accept is looked up or read again.
//!
//! Limits of the change check: it compares size and modification time, so it misses a store through
//! a writable mapping, and the rest of a `write` that was in progress when the file was opened.
//!
//! Sources: dissertation 3.5 and Table 3.3 (`New-Flash`: sendfile without disk access);
//! sendfile(2), preadv2(2), cachestat(2), tcp(7) on `MSG_MORE`.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod auto;
pub(crate) mod chunk;
mod chunk_pool;
pub(crate) mod copy;
mod offload;
pub mod research;
pub(crate) mod sendfile;
mod sealed;
mod stored;

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use headway_config::SendMethod;
use headway_files::{Failure, OpenFile, Residency, SentPrefix};
use headway_http2::{Gone, Stream};
use headway_metrics::Counters;
use headway_metrics::calls::{Call, Tracer};
use headway_request::Outgoing;
use headway_tls::Client;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

pub use chunk_pool::ChunkPool;
use chunk_pool::PINNED_CHUNKS_MAX;
use copy::Batch;
pub use sealed::{Sealer, flush, flush_before};

/// The most in-memory pieces that one system call sends.
pub(crate) const PIECES_PER_CALL_MAX: usize = 16;

/// The resources and limits of one attempt to send.
pub struct SendContext<'a> {
    /// Records the system calls.
    pub tracer: &'a Tracer,
    /// Knows which pages are in the page cache.
    pub residency: &'a Residency,
    /// The configured way to send files.
    pub method: SendMethod,
    /// The time.
    pub now_ms: u64,
    /// Until when [`SendMethod::Auto`] copies.
    pub copies_until_ms: &'a mut u64,
    /// TLS, if the client speaks it.
    pub tls: Option<Sealer<'a>>,
    /// What takes the bytes in place of the socket, if the client speaks HTTP/2.
    pub stream: Option<&'a mut Stream>,
    /// Another process has had the socket, and may have cleared its `O_NONBLOCK`.
    pub was_passed: bool,
    /// What is sent from memory never waits for what follows it.
    pub without_more: bool,
    /// Buffers for chunks of larger files.
    pub chunks: &'a mut ChunkPool,
    /// How many bytes the client's socket is likely to accept in one call; 0 if unknown.
    pub write_size_hint: &'a mut u32,
    /// File bytes that this response may still send in this loop iteration.
    pub quantum_bytes: u64,
    /// Counts chunks and bytes.
    pub counters: &'a mut Counters,
    /// Ranges that helpers should read ahead. Each starts at a chunk boundary.
    pub prefetch: &'a mut Vec<(Rc<OpenFile>, Range<u64>)>,
    /// The range that was last found resident in this iteration, so that its pages are counted only
    /// once.
    pub known_resident: Option<(Rc<OpenFile>, Range<u64>)>,
}

/// The result of an attempt to send.
pub enum SendProgress {
    /// The response has been sent completely.
    Finished,
    /// The socket's send buffer is full.
    SocketFull,
    /// The write quantum of this iteration is used up; other connections run first.
    QuantumSpent,
    /// The chunk at this offset is not in memory.
    NotResident(Rc<OpenFile>, u64),
    /// The file system cannot tell what is resident, so a helper must copy these bytes.
    ResidencyUnknown(Rc<OpenFile>, u64),
    /// The file was rewritten or truncated while it was sent.
    Changed,
    /// The file has changed, and is not shorter. A helper must compare what was sent with it, and copy
    /// what follows in this range.
    Unchecked(Rc<OpenFile>, Range<u64>),
    /// The file could not be read: [`Failure::Io`], or [`Failure::Exhausted`] for want of memory.
    Unreadable(Failure),
    /// The client has disconnected.
    Disconnected,
}

/// Another way to send files, in place of the configured one.
pub trait SendFiles {
    /// Sends what one system call can take: the pieces in memory at the front, or a part of the
    /// first file. Returns `None` if the caller can go on.
    fn send_some(
        &mut self,
        outgoing: &mut Outgoing,
        socket: BorrowedFd<'_>,
        context: &mut SendContext<'_>,
    ) -> Option<SendProgress>;

    /// How it finds out what is resident, where it does so in its own way.
    fn residency(&self) -> Option<&'static str> {
        None
    }

    /// Whether it maps files.
    fn maps_files(&self) -> bool {
        false
    }

    /// Learns that a helper has read the chunk at `offset`.
    fn chunk_was_read(&mut self, _file: &OpenFile, _offset: u64) {}

    /// Sets the gauges of a snapshot.
    fn gauges(&self, _counters: &mut Counters) {}
}

/// Sends as much of `outgoing` as the socket and the quantum allow, by `other` if there is one.
pub fn send(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
    mut other: Option<&mut (dyn SendFiles + 'static)>,
) -> SendProgress {
    if let Some(progress) = flush_sealed(socket, context) {
        return progress;
    }
    while !outgoing.pieces.is_empty() {
        let before = outgoing.sent_bytes;
        let progress = match (&mut other, context.method) {
            _ if context.seals() || context.stream.is_some() => {
                copied_some(outgoing, socket, context)
            }
            _ if stored::is_next(outgoing) => stored::send_some(outgoing, socket, context),
            (Some(other), _) => other.send_some(outgoing, socket, context),
            (None, SendMethod::Auto) => auto::send_some(outgoing, socket, context),
            (None, SendMethod::Copy) => copy::send_some(outgoing, socket, context),
            (None, SendMethod::Sendfile) => {
                sendfile::send_some(outgoing, socket, context, &mut chunk::expect_resident, true)
            }
        };
        let (given, tracer) = (outgoing.sent_bytes - before, context.tracer);
        if let Some(client) = context.offloaded()
            && offload::gave(client, given, socket, tracer).is_err()
        {
            return SendProgress::Disconnected;
        }
        if let Some(progress) = progress {
            return progress;
        }
        if context.quantum_bytes == 0 && !outgoing.pieces.is_empty() {
            return SendProgress::QuantumSpent;
        }
    }
    // What the kernel has sealed may have found no room.
    flush_sealed(socket, context).unwrap_or(SendProgress::Finished)
}

/// Sends what was sealed before. `None` if nothing of it is left.
fn flush_sealed(socket: BorrowedFd<'_>, context: &mut SendContext<'_>) -> Option<SendProgress> {
    match context.tls.as_mut()?.flush(socket, context.tracer) {
        Ok(true) => None,
        Ok(false) => Some(SendProgress::SocketFull),
        Err(_) => Some(SendProgress::Disconnected),
    }
}

/// Sends what is next to a client that speaks TLS or HTTP/2.
fn copied_some(
    outgoing: &mut Outgoing,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
) -> Option<SendProgress> {
    // Its descriptor was closed, so that there is nothing to read.
    if let Some(file) = outgoing.file()
        && file.is_let_go()
    {
        file.outdate();
        return Some(SendProgress::Changed);
    }
    stored::read_instead(outgoing);
    copy::send_some(outgoing, socket, context)
}

impl SendContext<'_> {
    /// The most bytes of pieces in memory, and the most of a file, that leave with one call.
    pub(crate) fn call_bytes_max(&self) -> u64 {
        match self.seals() || self.stream.is_some() {
            true => sealed::CALL_BYTES_MAX,
            false => u64::MAX,
        }
    }

    /// Whether bytes are sealed here, and not by the kernel.
    fn seals(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| !tls.client.is_offloaded())
    }

    /// Whether the kernel seals.
    fn is_offloaded(&self) -> bool {
        self.tls.is_some() && !self.seals()
    }

    /// TLS for which the kernel seals.
    fn offloaded(&mut self) -> Option<&mut Client> {
        let tls = self.tls.as_mut()?;
        tls.client.is_offloaded().then_some(&mut *tls.client)
    }
}

/// Sends the in-memory pieces at the front, and then `batch`, the chunks of the file that follows,
/// in one call. Returns `None` if everything was sent.
pub(crate) fn send_memory(
    outgoing: &mut Outgoing,
    batch: &Batch,
    socket: BorrowedFd<'_>,
    context: &mut SendContext<'_>,
) -> Option<SendProgress> {
    let mut slices = [IoSlice::new(&[]); PIECES_PER_CALL_MAX + PINNED_CHUNKS_MAX];
    let (mut count, mut length, room) = (0, 0, context.call_bytes_max());
    let mut is_cut = false;
    for piece in outgoing.pieces.iter().take(PIECES_PER_CALL_MAX) {
        let Some(memory) = piece.memory() else { break };
        let part = &memory[..memory.len().min((room - length) as usize)];
        slices[count] = IoSlice::new(part);
        count += 1;
        length += part.len() as u64;
        if part.len() < memory.len() {
            is_cut = true;
            break;
        }
    }
    // The file comes after the whole piece.
    let none = Batch::default();
    let batch = if is_cut { &none } else { batch };
    count = batch.append(context.chunks, &mut slices, count);
    length += batch.length;
    // More data follows, so the kernel may wait to fill the last packet (tcp(7)). When it seals, it would wait
    // for a whole record without a limit of time, so there only a header waits for its file.
    let may_wait = !context.without_more && (batch.length == 0 || !context.is_offloaded());
    let more = match may_wait && outgoing.bytes_left() > length {
        true => SendFlags::MORE,
        false => SendFlags::empty(),
    };
    // MSG_DONTWAIT is needed: a process that shares the socket may have cleared O_NONBLOCK.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more;
    if context.seals()
        && let Some(sealer) = &mut context.tls
    {
        let sent = sealer.send(socket, &slices[..count], flags, context.tracer);
        return after_sealing(outgoing, batch, length, sent, context);
    }
    let sent = match &mut context.stream {
        Some(stream) => send_frames(stream, &slices[..count]),
        None => context.tracer.call(Call::Send, || match &slices[..count] {
            [one] => rustix::net::send(socket, one, flags),
            many => rustix::net::sendmsg(socket, many, &mut SendAncillaryBuffer::default(), flags),
        }),
    };
    match sent {
        Ok(sent) => {
            let left = length - sent as u64;
            if batch.length > 0 {
                record_sent(outgoing, batch, left, context.chunks);
                batch.update_write_hint(left, context);
            }
            account_sent(outgoing, sent as u64, context);
            // A short count means that the socket is full; another call would only return EAGAIN.
            (left > 0).then_some(SendProgress::SocketFull)
        }
        Err(error) => classify_send_error(error),
    }
}

/// Gives bytes to a stream of HTTP/2, as to a socket.
fn send_frames(stream: &mut Stream, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    match stream.send(parts) {
        Ok(Some(count)) => Ok(count),
        Ok(None) => Err(Errno::AGAIN),
        Err(Gone) => Err(Errno::PIPE),
    }
}

/// Accounts for bytes that were sealed: they count as sent, since they cannot be replaced any more.
fn after_sealing(
    outgoing: &mut Outgoing,
    batch: &Batch,
    length: u64,
    sent: Result<(), Errno>,
    context: &mut SendContext<'_>,
) -> Option<SendProgress> {
    if sent.is_err() {
        return Some(SendProgress::Disconnected);
    }
    let is_full = context
        .tls
        .as_ref()
        .is_some_and(|tls| tls.client.has_unsent());
    if batch.length > 0 {
        record_sent(outgoing, batch, 0, context.chunks);
        batch.update_write_hint(0, context);
    }
    // Sealing takes time, whatever is sealed.
    let memory = length - batch.length;
    context.quantum_bytes = context.quantum_bytes.saturating_sub(memory);
    account_sent(outgoing, length, context);
    is_full.then_some(SendProgress::SocketFull)
}

/// Records the bytes of `batch` that were sent, all but the last `left`, unless they were the last
/// ones of the file: then nothing can follow that does not belong to them.
fn record_sent(outgoing: &mut Outgoing, batch: &Batch, left: u64, chunks: &ChunkPool) {
    let file_left = outgoing.file_left();
    let sent = batch.length.saturating_sub(left);
    if sent == 0 || sent == file_left || outgoing.is_unrecorded {
        return;
    }
    let Some((file, offset)) = outgoing.file_position() else {
        return;
    };
    let meta = *file.meta();
    let prefix = &mut outgoing.sent_prefix;
    let prefix = prefix.get_or_insert_with(|| Box::new(SentPrefix::new(&meta, offset)));
    batch.record(chunks, offset, sent, prefix);
}

pub(crate) fn account_sent(outgoing: &mut Outgoing, sent: u64, context: &mut SendContext<'_>) {
    context.counters.sent_bytes += sent;
    outgoing.advance(sent);
}

/// What a failed send means: EAGAIN is a full socket, EIO a disk error, EINTR a reason to retry.
/// Every other error means that the client has disconnected.
pub(crate) fn classify_send_error(error: Errno) -> Option<SendProgress> {
    match error {
        Errno::AGAIN => Some(SendProgress::SocketFull),
        Errno::INTR => None,
        Errno::IO => Some(SendProgress::Unreadable(Failure::Io)),
        _ => Some(SendProgress::Disconnected),
    }
}

/// Sends a complete cached response with one call: the hot path. Returns the number of bytes sent. To a
/// client that speaks TLS all are sent or none, and some may wait for room in the socket.
pub fn send_whole(
    socket: &impl AsFd,
    tls: Option<Sealer<'_>>,
    stream: Option<&mut Stream>,
    bytes: &[u8],
    more: bool,
    tracer: &Tracer,
) -> Result<usize, Errno> {
    if let Some(stream) = stream {
        return send_frames(stream, &[IoSlice::new(bytes)]);
    }
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let is_offloaded = tls.as_ref().is_some_and(|tls| tls.client.is_offloaded());
    flags.set(SendFlags::MORE, more && !is_offloaded);
    let Some(mut sealer) = tls else {
        return tracer.call(Call::Send, || rustix::net::send(socket, bytes, flags));
    };
    if !sealer.flush(socket, tracer)? {
        return Err(Errno::AGAIN);
    }
    if is_offloaded {
        let sent = tracer.call(Call::Send, || rustix::net::send(socket, bytes, flags))?;
        offload::gave(sealer.client, sent as u64, socket.as_fd(), tracer)?;
        return Ok(sent);
    }
    let parts = [IoSlice::new(bytes)];
    sealer.send(socket, &parts, flags, tracer)?;
    Ok(bytes.len())
}

#[cfg(test)]
mod tests;
