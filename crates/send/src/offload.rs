//! Sends to clients for which the kernel seals (kernel TLS): data is written as to any socket, other records
//! with their type.
//!
//! The kernel may have sealed a record which has found no room in the socket, although the call has returned
//! its length. It sends such a record when there is room, but drops it when the socket is closed before. So
//! after each call the socket is asked for room, and without any, something counts as unsent.

use std::os::fd::BorrowedFd;

use headway_metrics::calls::{Call, Tracer};
use headway_os::kernel_tls;
use headway_tls::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Sends what the protocol itself has to send. Returns whether data may follow: the socket has room for all
/// that the kernel has sealed.
pub(crate) fn flush(
    client: &mut Client,
    socket: BorrowedFd<'_>,
    tracer: &Tracer,
) -> Result<bool, Errno> {
    if !client.is_settled() && !has_room(socket, tracer)? {
        return Ok(false);
    }
    client.settle();
    client.prepare().map_err(|_| Errno::PIPE)?;
    while let Some((kind, text)) = client.next_record() {
        let sent = tracer.call(Call::Send, || kernel_tls::send_record(socket, kind, text));
        match sent {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error),
        }
        client.record_sent(|keys| {
            tracer.call(Call::SocketOption, || kernel_tls::set_keys(socket, keys))
        })?;
    }
    Ok(true)
}

/// Notes data that the kernel has got from one call, and asks whether there is room for more.
pub(crate) fn gave(
    client: &mut Client,
    bytes: u64,
    socket: BorrowedFd<'_>,
    tracer: &Tracer,
) -> Result<(), Errno> {
    client.gave(bytes);
    if has_room(socket, tracer)? {
        client.settle();
    }
    Ok(())
}

/// Whether the socket is writable. A third of its buffer is free then, which is more than the kernel can hold
/// back: one record.
fn has_room(socket: BorrowedFd<'_>, tracer: &Tracer) -> Result<bool, Errno> {
    let mut asked = [PollFd::new(&socket, PollFlags::OUT)];
    let at_once = Timespec::default();
    match tracer.call(Call::ClientPoll, || poll(&mut asked, Some(&at_once))) {
        // A connection which has failed is to be written to as well: that shows the error.
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}
