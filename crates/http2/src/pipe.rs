//! The two directions of a connection as buffers, which h2 takes for a socket.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes that wait for the client's socket. With more, streams are not asked for data.
pub(crate) const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// The room that a buffer keeps while it is empty: most connections are idle.
const IDLE_BYTES_MAX: usize = 16 << 10;
/// More than the bodies which a client may have in flight and which no handler takes.
const WASTED_BYTES_MAX: u64 = 512 << 10;

/// What has come from the client, and what is to be sent.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    input: Vec<u8>,
    /// Bytes of `input` that were taken.
    taken: usize,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
    /// Data that streams have given since h2 was last polled.
    pub(crate) queued: usize,
    /// Bytes that came without effect: no request, no body, no room for a response.
    wasted: u64,
    /// Requests that the client gave up before their responses were complete.
    pub(crate) given_up: u64,
}

impl Buffers {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
        }
        self.input.extend_from_slice(bytes);
        self.wasted += bytes.len() as u64;
    }

    /// Something had an effect that is worth this number of the bytes which have come.
    pub(crate) fn count_use(&mut self, bytes: usize) {
        self.wasted = self.wasted.saturating_sub(bytes as u64);
    }

    /// Whether the client keeps sending bytes without effect.
    pub(crate) fn is_flooded(&self) -> bool {
        self.wasted > WASTED_BYTES_MAX
    }

    /// Bytes were taken from the input.
    fn take(&mut self, count: usize) {
        self.taken += count;
        if self.is_consumed() && self.input.capacity() > IDLE_BYTES_MAX {
            self.forget_input();
        }
    }

    /// Whether all input was taken. Otherwise h2 waits until there is room for its output.
    pub(crate) fn is_consumed(&self) -> bool {
        self.taken == self.input.len()
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.output.len() {
            if self.output.capacity() > IDLE_BYTES_MAX {
                self.output = Vec::new();
            }
            self.output.clear();
            self.sent = 0;
        } else if self.sent >= OUTPUT_BYTES_MAX {
            // Without this, a client which is always a little behind would make it grow.
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Data that streams may give.
    pub(crate) fn room(&self) -> usize {
        let waiting = self.output().len() + self.queued;
        OUTPUT_BYTES_MAX.saturating_sub(waiting)
    }

    pub(crate) fn forget_input(&mut self) {
        (self.input, self.taken) = (Vec::new(), 0);
    }
}

/// The end of the buffers that h2 has.
pub(crate) struct Pipe(pub(crate) Rc<RefCell<Buffers>>);

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.0.borrow_mut();
        let waiting = &buffers.input[buffers.taken..];
        if waiting.is_empty() {
            return Poll::Pending;
        }
        let count = waiting.len().min(buffer.remaining());
        buffer.put_slice(&waiting[..count]);
        buffers.take(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffers = self.0.borrow_mut();
        // Frames of the protocol itself need room, too.
        let room = (2 * OUTPUT_BYTES_MAX).saturating_sub(buffers.output().len());
        match bytes.len().min(room) {
            0 => Poll::Pending,
            count => {
                buffers.output.extend_from_slice(&bytes[..count]);
                Poll::Ready(Ok(count))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(pipe: &mut Pipe, bytes: &[u8]) -> usize {
        let context = &mut Context::from_waker(std::task::Waker::noop());
        match Pin::new(pipe).poll_write(context, bytes) {
            Poll::Ready(written) => written.unwrap(),
            Poll::Pending => 0,
        }
    }

    #[test]
    fn output_does_not_grow_when_the_client_is_always_a_little_behind() {
        let buffers = Rc::new(RefCell::new(Buffers::default()));
        let mut pipe = Pipe(buffers.clone());
        let (mut written, mut sent) = (0_usize, 0_usize);
        while written < 100 * OUTPUT_BYTES_MAX {
            let bytes: Vec<u8> = (0..10_000).map(|at| ((written + at) % 251) as u8).collect();
            written += write(&mut pipe, &bytes);
            let mut buffers = buffers.borrow_mut();
            let count = buffers.output().len().saturating_sub(1);
            for (at, byte) in buffers.output()[..count].iter().enumerate() {
                assert_eq!(*byte, ((sent + at) % 251) as u8);
            }
            buffers.sent(count);
            sent += count;
            assert!(buffers.output.capacity() <= 4 * OUTPUT_BYTES_MAX);
        }
    }

    #[test]
    fn empty_buffers_keep_little_room() {
        let buffers = Rc::new(RefCell::new(Buffers::default()));
        let mut pipe = Pipe(buffers.clone());
        buffers.borrow_mut().feed(&[1; 100_000]);
        let (mut bytes, mut taken) = ([0; 30_000], 0);
        while taken < 100_000 {
            let context = &mut Context::from_waker(std::task::Waker::noop());
            let mut buffer = ReadBuf::new(&mut bytes);
            assert!(
                Pin::new(&mut pipe)
                    .poll_read(context, &mut buffer)
                    .is_ready()
            );
            taken += buffer.filled().len();
        }
        assert_eq!(write(&mut pipe, &[2; 200_000]), 2 * OUTPUT_BYTES_MAX);
        assert_eq!(write(&mut pipe, &[2; 1]), 0, "it is full");
        buffers.borrow_mut().sent(2 * OUTPUT_BYTES_MAX);
        let buffers = buffers.borrow();
        assert!(buffers.is_consumed() && buffers.output().is_empty());
        assert!(buffers.input.capacity() <= IDLE_BYTES_MAX);
        assert!(buffers.output.capacity() <= IDLE_BYTES_MAX);
    }
}
