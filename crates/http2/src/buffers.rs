//! The input and the output of a connection, and counts of input without effect.

/// The size of the output buffer. While it is full, streams send nothing.
pub(crate) const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Output up to this size grows by steps.
const SMALL_OUTPUT_BYTES: usize = 4 << 10;
/// Room for headers of frames and responses beside the data in the output buffer.
const FRAMES_BYTES: usize = 4 << 10;
/// The most capacity that a buffer keeps while it is empty. It is small because most connections are idle.
const IDLE_BYTES_MAX: usize = 16 << 10;
/// Bytes without effect that are a flood. A well-behaved client stays below: it has fewer bytes of bodies in flight,
/// which no handler may have read.
const WASTED_BYTES_MAX: u64 = 512 << 10;
/// Bytes of control frames without effect that are a flood: about 4,000 PING frames. Control frames, which have
/// neither headers nor data, need the most CPU time per byte.
const CONTROL_BYTES_MAX: u64 = 64 << 10;
/// The same before the first request, which needs few control frames.
const EARLY_CONTROL_BYTES_MAX: u64 = 8 << 10;
/// Bytes of control frames without effect that make a client a suspect.
const SUSPECT_CONTROL_BYTES: u64 = 2 << 10;

/// The buffers of both directions, and counts of bytes without effect.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    input: Vec<u8>,
    /// Bytes of `input` that were processed.
    consumed: usize,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
    /// Bytes without effect: they have brought no request and no body, and no response could be sent since.
    wasted: u64,
    /// The part of `wasted` that is control frames and frame headers.
    control: u64,
    /// The part of `wasted` that is header blocks.
    headers: u64,
    /// The most bytes of header blocks that one request needs.
    header_bytes_max: u64,
}

impl Buffers {
    pub(crate) fn new(header_bytes_max: u32) -> Buffers {
        Buffers {
            header_bytes_max: header_bytes_max.into(),
            ..Buffers::default()
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        // Few bytes are left to move: less than a frame, or the input of a suspect.
        self.input.drain(..self.consumed);
        self.consumed = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Moves the input out while frames are processed. Returns it with the position of the next frame.
    pub(crate) fn begin(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.input), self.consumed)
    }

    /// Puts the input back, with the number of bytes that were processed.
    pub(crate) fn end(&mut self, input: Vec<u8>, consumed: usize) {
        (self.input, self.consumed) = (input, consumed);
        if self.consumed == self.input.len() {
            self.input.clear();
            self.consumed = 0;
            if self.input.capacity() > IDLE_BYTES_MAX {
                self.forget_input();
            }
        }
    }

    pub(crate) fn forget_input(&mut self) {
        (self.input, self.consumed) = (Vec::new(), 0);
    }

    /// Whether there is input that was not processed.
    pub(crate) fn has_input(&self) -> bool {
        self.consumed < self.input.len()
    }

    /// Counts a received frame. Of its bytes `headers` are a header block, and `control` are neither header block nor
    /// data.
    pub(crate) fn count_frame(&mut self, bytes: usize, headers: usize, control: usize) {
        self.wasted += bytes as u64;
        self.headers += headers as u64;
        self.control += control as u64;
    }

    /// Counts an effect: this number of the received bytes is not a flood.
    pub(crate) fn count_use(&mut self, bytes: usize) {
        self.wasted = self.wasted.saturating_sub(bytes as u64);
        self.control = self.control.saturating_sub(bytes as u64);
        self.headers = self.headers.saturating_sub(bytes as u64);
    }

    /// Whether the bytes without effect are a flood.
    pub(crate) fn is_flooded(&self, has_requests: bool) -> bool {
        let control_max = match has_requests {
            true => CONTROL_BYTES_MAX,
            false => EARLY_CONTROL_BYTES_MAX,
        };
        self.wasted > WASTED_BYTES_MAX || self.control > control_max
    }

    /// Whether many of the latest bytes had no effect.
    pub(crate) fn is_suspect(&self) -> bool {
        self.control > SUSPECT_CONTROL_BYTES || self.headers > self.header_bytes_max
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Appends output.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let needed = self.output.len() + bytes.len();
        // A buffer of data is likely to be filled, and growing by steps would copy it.
        let whole = OUTPUT_BYTES_MAX + FRAMES_BYTES;
        if (self.output.capacity().max(SMALL_OUTPUT_BYTES)..whole).contains(&needed) {
            self.output.reserve_exact(whole - self.output.len());
        }
        self.output.extend_from_slice(bytes);
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
            // Otherwise the buffer would grow while the client never reads all of it.
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Bytes of data that streams may append.
    pub(crate) fn room(&self) -> usize {
        OUTPUT_BYTES_MAX.saturating_sub(self.output().len())
    }

    /// Whether there is room for an answer to a frame of the client, for example to PING.
    pub(crate) fn has_room_for_answers(&self) -> bool {
        self.output().len() < 2 * OUTPUT_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_does_not_grow_when_the_client_never_reads_all_of_it() {
        let mut buffers = Buffers::default();
        let (mut written, mut sent) = (0_usize, 0_usize);
        while written < 100 * OUTPUT_BYTES_MAX {
            let bytes: Vec<u8> = (0..10_000).map(|at| ((written + at) % 251) as u8).collect();
            buffers.write(&bytes);
            written += bytes.len();
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
        let mut buffers = Buffers::default();
        buffers.feed(&[1; 100_000]);
        let (input, at) = buffers.begin();
        assert_eq!((input.len(), at), (100_000, 0));
        buffers.end(input, 99_999);
        buffers.feed(&[2; 10]);
        let (input, at) = buffers.begin();
        assert_eq!(input[at..], [&[1][..], &[2; 10]].concat());
        let all = input.len();
        buffers.end(input, all);
        buffers.write(&[2; 2 * OUTPUT_BYTES_MAX]);
        assert!(!buffers.has_room_for_answers() && buffers.room() == 0);
        buffers.sent(2 * OUTPUT_BYTES_MAX);
        assert!(buffers.output().is_empty());
        assert!(buffers.input.capacity() <= IDLE_BYTES_MAX);
        assert!(buffers.output.capacity() <= IDLE_BYTES_MAX);
    }
}
