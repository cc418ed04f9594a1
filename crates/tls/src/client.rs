//! The TLS state of a connection in the worker: its stage, input that is not a whole record yet, and
//! sealed bytes that the socket has not taken.

use crate::handshake::Handshake;
use crate::record::{PLAINTEXT_BYTES_MAX, Splitter, alert};
use crate::records::{Opened, Records, Violation};

/// The first records of a response are short, so that the client can open them as soon as they arrive
/// and need not wait for more packets. This is what fits into one packet of an Ethernet.
const SHORT_RECORD_BYTES: usize = 1_350;
/// The number of records that are short: about as many as the first round trips carry.
const SHORT_RECORDS: u32 = 20;
/// After a pause, records are short again.
const PAUSE_MS: u64 = 1_000;

/// Where a connection stands.
pub enum Stage {
    /// The handshake waits for the client.
    Begun,
    /// The handshake process computes.
    Away,
    /// The worker does the handshake itself.
    Inline(Box<Handshake>),
    /// Records are exchanged.
    Open(Box<Records>),
    /// The connection is over: no more records can be exchanged.
    Over,
}

/// What input has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Data, and the number of its bytes.
    Data(usize),
    /// No data yet.
    Nothing,
    /// The client sends nothing more.
    End,
    /// The connection cannot continue. An alert may wait to be sent.
    Failed(Violation),
}

/// TLS of one connection.
pub struct Client {
    /// Where it stands.
    pub stage: Stage,
    /// Input that has not been opened.
    input: Vec<u8>,
    /// Whether `input` begins with a whole record, or with something that will never be one.
    has_record: bool,
    /// What is reported once the data before it is consumed.
    end: Option<Received>,
    /// Sealed bytes, of which the first ones have been sent.
    unsent: Vec<u8>,
    unsent_from: usize,
    records: u32,
    sealed_ms: u64,
    /// Whether the handshake has had records of the client.
    pub is_begun: bool,
    /// Whether the client has sent anything.
    pub has_spoken: bool,
    /// The host that the client asks for, as far as it is known; until the handshake is done.
    pub server_name: Option<Box<[u8]>>,
    /// What was opened before it was wanted.
    opened: Vec<u8>,
    is_cut: bool,
    /// Whether the socket has room for all that the kernel has sealed.
    pub(crate) is_settled: bool,
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}

impl Client {
    /// Before the handshake.
    pub fn new() -> Client {
        Client {
            stage: Stage::Begun,
            input: Vec::new(),
            has_record: false,
            end: None,
            unsent: Vec::new(),
            unsent_from: 0,
            records: 0,
            sealed_ms: 0,
            is_begun: false,
            has_spoken: false,
            server_name: None,
            opened: Vec::new(),
            is_cut: false,
            is_settled: true,
        }
    }

    /// Whether the handshake is done.
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    /// Whether there is input for which no event will come: a whole record, or the end.
    pub fn has_input(&self) -> bool {
        let records = match &self.stage {
            Stage::Open(records) => records,
            // Something else than a record may stand behind those of the handshake.
            Stage::Begun | Stage::Inline(_) => return self.has_record,
            Stage::Away | Stage::Over => return false,
        };
        let has_more = self.has_record || !self.opened.is_empty();
        has_more || self.end.is_some() || records.is_at_end()
    }

    /// Puts the input that was kept to the front of a buffer, and returns its length.
    pub fn restore_input(&mut self, buffer: &mut [u8]) -> usize {
        let kept = std::mem::take(&mut self.input);
        buffer[..kept.len()].copy_from_slice(&kept);
        kept.len()
    }

    /// Keeps input.
    pub fn keep_input(&mut self, input: &[u8]) {
        self.has_record = Splitter::look(input) != Splitter::Partial;
        self.input.clear();
        self.input.extend_from_slice(input);
        if input.is_empty() {
            self.input = Vec::new();
        }
    }

    /// Keeps bytes before the first record which are not a record.
    pub fn keep_preface(&mut self, input: &[u8]) {
        self.keep_input(input);
        self.has_record = false;
    }

    /// Keeps data that was opened only to see what there is. The next call of [`open`](Client::open)
    /// returns it.
    pub fn keep_opened(&mut self, data: &[u8]) {
        self.opened.extend_from_slice(data);
    }

    /// Takes such data.
    pub fn take_opened(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.opened)
    }

    /// Opens the records in `input` into `out`, as far as there is room, and keeps the rest.
    pub fn open(&mut self, input: &[u8], out: &mut [u8]) -> Received {
        if !self.opened.is_empty() {
            let length = self.opened.len().min(out.len());
            out[..length].copy_from_slice(&self.opened[..length]);
            self.opened.drain(..length);
            if self.end.is_none() {
                self.keep_input(input);
            }
            return Received::Data(length);
        }
        if let Some(end) = self.end {
            return end;
        }
        let Stage::Open(records) = &mut self.stage else {
            return Received::End;
        };
        if records.is_at_end() {
            return Received::End;
        }
        let (mut at, mut length) = (0, 0);
        let end = loop {
            let record = match Splitter::look(&input[at..]) {
                Splitter::Whole(record) => &input[at..at + record],
                Splitter::Partial => break None,
                Splitter::NoRecord => {
                    let reason = Splitter::fault(&input[at..]);
                    break Some(Received::Failed(Violation::Ours(reason)));
                }
            };
            if records.text_room(record.len()) > out.len() - length {
                break None;
            }
            at += record.len();
            match records.open(record, &mut out[length..]) {
                Ok(Opened::Data(count)) => length += count,
                Ok(Opened::Control) => {}
                Ok(Opened::End) => break Some(Received::End),
                Err(violation) => break Some(Received::Failed(violation)),
            }
        };
        if let Some(Received::Failed(Violation::Ours(reason))) = end {
            records.seal_alert(reason, &mut self.unsent);
        }
        // A client that asks for answers and does not read them would fill memory, so one answer waits at a
        // time. Further ones go with the next data.
        let has_unsent = self.unsent_from < self.unsent.len();
        if records.owes_control() && !has_unsent && records.seal_control(&mut self.unsent).is_err()
        {
            self.stage = Stage::Over;
        }
        self.end = end;
        match end {
            None => self.keep_input(&input[at..]),
            Some(_) => self.keep_input(&[]),
        }
        match (length, end) {
            (0, None) => Received::Nothing,
            (0, Some(end)) => end,
            (length, _) => Received::Data(length),
        }
    }

    /// The longest data of the next record.
    pub fn next_record_bytes(&mut self, now_ms: u64) -> usize {
        if now_ms >= self.sealed_ms + PAUSE_MS {
            self.records = 0;
        }
        self.sealed_ms = now_ms;
        self.records = self.records.saturating_add(1);
        match self.records > SHORT_RECORDS {
            true => PLAINTEXT_BYTES_MAX,
            false => SHORT_RECORD_BYTES,
        }
    }

    /// Appends data as records to `out`, behind what is unsent.
    ///
    /// # Errors
    /// If nothing can be sealed any more.
    pub fn seal<'p>(
        &mut self,
        parts: impl IntoIterator<Item = &'p [u8]>,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let mut gathered: [&[u8]; GATHERED_MAX] = [&[]; GATHERED_MAX];
        let (mut count, mut length) = (0, 0);
        let mut limit = self.next_record_bytes(now_ms);
        for mut part in parts {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(limit - length));
                gathered[count] = now;
                (count, length, part) = (count + 1, length + now.len(), later);
                if length == limit || count == GATHERED_MAX {
                    self.seal_one(&gathered[..count], out)?;
                    (count, length) = (0, 0);
                    limit = self.next_record_bytes(now_ms);
                }
            }
        }
        match count {
            0 => Ok(()),
            count => self.seal_one(&gathered[..count], out),
        }
    }

    fn seal_one(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Violation> {
        match &mut self.stage {
            Stage::Open(records) => records.seal(parts, out),
            _ => Err(Violation::Ours(alert::INTERNAL_ERROR)),
        }
    }

    /// A response is cut off. The client must not take this for its end, so
    /// [`seal_end`](Client::seal_end) does nothing.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Seals the end of what the server sends. Does nothing before the handshake is done.
    pub fn seal_end(&mut self) {
        if self.is_cut {
            return;
        }
        if let Stage::Open(records) = &mut self.stage {
            records.seal_alert(alert::CLOSE_NOTIFY, &mut self.unsent);
        }
    }

    /// Bytes that the socket has not taken.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent[self.unsent_from..]
    }

    /// Whether there are such bytes, here or in the kernel.
    pub fn has_unsent(&self) -> bool {
        self.unsent_from < self.unsent.len() || !self.is_settled
    }

    /// The socket has taken the first `count` of them.
    pub fn sent(&mut self, count: usize) {
        self.unsent_from += count;
        if self.unsent_from >= self.unsent.len() {
            // A connection that waits owns no buffer.
            (self.unsent, self.unsent_from) = (Vec::new(), 0);
        }
    }

    /// Keeps bytes that the socket has not taken, behind those before.
    pub fn keep_unsent(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }
}

/// Parts of data in one record.
const GATHERED_MAX: usize = 64;
