//! One request, as the load generator saw it, and its fixed-size record for the spool.
//!
//! Times are nanoseconds since the run's epoch, a monotonic instant whose wall-clock time is in
//! `run.json`. A row is written once and never changed. The record has a checksum of its own, which
//! detects the torn or zeroed end of a file after a kill.

use std::fmt;
use std::str::FromStr;

/// How a request ended.
///
/// ```
/// use headway_latency::Outcome;
///
/// assert_eq!("refused".parse(), Ok(Outcome::Refused));
/// assert!(Outcome::TimedOut.has_latency());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// The whole response came, with an expected status.
    Ok = 0,
    /// The whole response came, with another status than expected.
    Status = 1,
    /// The body has another length than the file it should be.
    Length = 2,
    /// The body has the right length and the wrong content.
    Content = 3,
    /// The bytes are no HTTP response.
    Malformed = 4,
    /// The server closed the connection in the middle of a response, or before it.
    ClosedEarly = 5,
    /// The connection was reset.
    Reset = 6,
    /// The connection was refused.
    Refused = 7,
    /// No route, no such host or network.
    Unreachable = 8,
    /// The timeout passed on an open connection before the response was complete, or while the
    /// request waited for a connection of the client.
    TimedOut = 9,
    /// The client had no free local port.
    NoPort = 10,
    /// The client had no free descriptor.
    NoDescriptor = 11,
    /// Still in flight when the run ended; its end is that moment, not the request's.
    Abandoned = 12,
    /// Every connection the client may have was busy, and its queue was full: it was not sent at
    /// all.
    NoConnection = 13,
    /// The timeout passed before the connection was open, for example because the server's accept
    /// queue is full.
    ConnectTimedOut = 14,
    /// The TLS handshake failed, the certificate was refused, or a record was invalid.
    Tls = 15,
}

/// A code or a name that stands for no [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an outcome of a request")]
pub struct UnknownOutcome(pub String);

impl Outcome {
    /// Every outcome, in the order of their codes.
    pub const ALL: [Outcome; 16] = [
        Outcome::Ok,
        Outcome::Status,
        Outcome::Length,
        Outcome::Content,
        Outcome::Malformed,
        Outcome::ClosedEarly,
        Outcome::Reset,
        Outcome::Refused,
        Outcome::Unreachable,
        Outcome::TimedOut,
        Outcome::NoPort,
        Outcome::NoDescriptor,
        Outcome::Abandoned,
        Outcome::NoConnection,
        Outcome::ConnectTimedOut,
        Outcome::Tls,
    ];

    /// The word for it in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Status => "status",
            Outcome::Length => "length",
            Outcome::Content => "content",
            Outcome::Malformed => "malformed",
            Outcome::ClosedEarly => "closed-early",
            Outcome::Reset => "reset",
            Outcome::Refused => "refused",
            Outcome::Unreachable => "unreachable",
            Outcome::TimedOut => "timed-out",
            Outcome::NoPort => "no-port",
            Outcome::NoDescriptor => "no-descriptor",
            Outcome::Abandoned => "abandoned",
            Outcome::NoConnection => "no-connection",
            Outcome::ConnectTimedOut => "connect-timed-out",
            Outcome::Tls => "tls",
        }
    }

    /// Whether the time from start to end is a latency of the server. It is not for a request
    /// without an end, nor for one that the client could not send: counting those as fast would
    /// flatter an overloaded server.
    pub fn has_latency(self) -> bool {
        !matches!(
            self,
            Outcome::Abandoned | Outcome::NoConnection | Outcome::NoPort | Outcome::NoDescriptor
        )
    }

    /// Whether the request had a connection to the server.
    ///
    /// As far as the client can know: a server's kernel may take part in a handshake for which it
    /// has no room afterwards.
    pub fn had_connection(self) -> bool {
        !matches!(
            self,
            Outcome::Refused
                | Outcome::Unreachable
                | Outcome::NoPort
                | Outcome::NoDescriptor
                | Outcome::NoConnection
                | Outcome::ConnectTimedOut
        )
    }

    /// The number for it in records.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The outcome with this number.
    pub fn from_code(code: u8) -> Option<Outcome> {
        Outcome::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Outcome {
    type Err = UnknownOutcome;

    fn from_str(name: &str) -> Result<Outcome, UnknownOutcome> {
        let found = Outcome::ALL
            .into_iter()
            .find(|outcome| outcome.name() == name);
        found.ok_or_else(|| UnknownOutcome(name.into()))
    }
}

/// One request. Times in nanoseconds since the run's epoch, sizes in bytes.
///
/// ```
/// use headway_latency::{Outcome, Row};
///
/// let row = Row {
///     intended_ns: 1_000,
///     start_ns: 3_000,
///     first_byte_ns: 8_000,
///     end_ns: 9_000,
///     size_bytes: 512,
///     bytes: 512,
///     status: 200,
///     error: Outcome::Ok,
///     connection: 0,
///     ordinal: 0,
///     class: Row::NO_CLASS,
///     target: 0,
///     warmup: false,
///     handshake_ns: 0,
/// };
/// assert_eq!(row.response_ns(), 8_000, "from the intended start");
/// assert_eq!(row.service_ns(), 6_000, "from the actual start");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// When the schedule wanted it to start; in a closed loop the same as `start_ns`.
    pub intended_ns: u64,
    /// When the request did start: the connect of a new connection, else the send of the request.
    pub start_ns: u64,
    /// When the first byte of the response came; 0 if none came.
    pub first_byte_ns: u64,
    /// When the last byte came, or the request failed.
    pub end_ns: u64,
    /// Body length expected (file set) or, unknown, promised by the response.
    pub size_bytes: u64,
    /// Body bytes received.
    pub bytes: u64,
    /// Status of the response; 0 if none came.
    pub status: u16,
    /// How the request ended.
    pub error: Outcome,
    /// Which connection, counted from 0 over the run.
    pub connection: u32,
    /// Which request of that connection, counted from 0.
    pub ordinal: u32,
    /// SPECweb class 0 to 3, or the number of the scenario's step; 255 if the work has none.
    pub class: u8,
    /// Index into the targets of the run's description.
    pub target: u8,
    /// Whether the request belongs to the warm-up, which the figures exclude.
    pub warmup: bool,
    /// How long the TLS handshake of its connection took; 0 without one: the connection was open
    /// already, or has no TLS.
    pub handshake_ns: u64,
}

/// Why a record is not a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The record's own check does not match its content: torn, or not a record at all.
    #[error("the record's check does not match its content")]
    Torn,
    /// A field holds a value that it may not have.
    #[error("the record's field {0} holds a value that it may not have")]
    Field(&'static str),
}

impl Row {
    /// The `connection` of a request that never had one.
    pub const NO_CONNECTION: u32 = u32::MAX;

    /// Whether the request had a connection to the server. A refusal at once has no connection
    /// number and one that came later has, so the outcome decides as well.
    pub fn had_connection(&self) -> bool {
        self.error.had_connection() && self.connection != Row::NO_CONNECTION
    }

    /// The value of `class` when the work has no classes.
    pub const NO_CLASS: u8 = 255;

    /// The size of a record.
    pub const BYTES: usize = 72;

    /// The size of a record of version 1, which has no `handshake_ns`.
    pub(crate) const BYTES_V1: usize = 64;

    /// From the intended start to the end. A schedule that fell behind counts.
    pub fn response_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.intended_ns)
    }

    /// From the actual start to the end.
    pub fn service_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// Lag of the start behind the intended start.
    pub fn lag_ns(&self) -> u64 {
        self.start_ns.saturating_sub(self.intended_ns)
    }

    /// Writes the record: little-endian fields, then a check of 16 bits over them.
    pub fn encode(&self, record: &mut [u8; Row::BYTES]) {
        let fields = [
            self.intended_ns,
            self.start_ns,
            self.first_byte_ns,
            self.end_ns,
            self.size_bytes,
            self.bytes,
            self.handshake_ns,
        ];
        let (longs, short) = record.split_at_mut(Row::BYTES - SHORT_BYTES);
        for (chunk, field) in longs.chunks_exact_mut(8).zip(fields) {
            chunk.copy_from_slice(&field.to_le_bytes());
        }
        short[0..4].copy_from_slice(&self.connection.to_le_bytes());
        short[4..8].copy_from_slice(&self.ordinal.to_le_bytes());
        short[8..10].copy_from_slice(&self.status.to_le_bytes());
        short[10] = self.error.code();
        short[11] = self.class;
        short[12] = self.target;
        short[13] = u8::from(self.warmup);
        let check = check(record);
        record[Row::BYTES - 2..].copy_from_slice(&check.to_le_bytes());
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// [`RowError::Torn`] if the check does not match; [`RowError::Field`] for an unknown outcome.
    pub fn decode(record: &[u8; Row::BYTES]) -> Result<Row, RowError> {
        Row::decode_any(record)
    }

    /// Reads a record of [`Row::BYTES`], or of [`Row::BYTES_V1`].
    pub(crate) fn decode_any(record: &[u8]) -> Result<Row, RowError> {
        let (longs, short) = record.split_at(record.len() - SHORT_BYTES);
        if u16::from_le_bytes([short[14], short[15]]) != check(record) {
            return Err(RowError::Torn);
        }
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| longs[at + i]));
        let int = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| short[at + i]));
        Ok(Row {
            intended_ns: long(0),
            start_ns: long(8),
            first_byte_ns: long(16),
            end_ns: long(24),
            size_bytes: long(32),
            bytes: long(40),
            connection: int(0),
            ordinal: int(4),
            status: u16::from_le_bytes([short[8], short[9]]),
            error: Outcome::from_code(short[10]).ok_or(RowError::Field("error"))?,
            class: short[11],
            target: short[12],
            warmup: match short[13] {
                0 => false,
                1 => true,
                _ => return Err(RowError::Field("warmup")),
            },
            handshake_ns: match record.len() {
                Row::BYTES_V1 => 0,
                _ => long(48),
            },
        })
    }
}

/// What a record has behind its fields of eight bytes: the shorter ones and the check.
const SHORT_BYTES: usize = 16;

/// Mixes all bytes but the last two, which hold the result, into 16 bits. Zeroes do not check,
/// because a hole in a file reads as zeroes.
fn check(record: &[u8]) -> u16 {
    let mut mixed: u64 = 0x9e37_79b9_7f4a_7c15;
    for at in (0..record.len()).step_by(8) {
        let mut field = u64::from_le_bytes(std::array::from_fn(|i| record[at + i]));
        if at + 8 == record.len() {
            field &= 0x0000_ffff_ffff_ffff;
        }
        mixed = (mixed ^ field).wrapping_mul(0x2545_f491_4f6c_dd1d);
        mixed ^= mixed >> 29;
    }
    (mixed >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            intended_ns: 1_000,
            start_ns: 1_500,
            first_byte_ns: 3_000,
            end_ns: 9_000,
            size_bytes: 512,
            bytes: 500,
            status: 200,
            error: Outcome::Length,
            connection: 7,
            ordinal: 3,
            class: 2,
            target: 1,
            warmup: true,
            handshake_ns: 250_000,
        }
    }

    #[test]
    fn row_is_the_same_when_encoded_and_decoded() {
        let mut record = [0; Row::BYTES];
        row().encode(&mut record);
        assert_eq!(Row::decode(&record), Ok(row()));
    }

    #[test]
    fn record_is_an_error_when_any_byte_differs() {
        let mut record = [0; Row::BYTES];
        row().encode(&mut record);
        for at in 0..Row::BYTES {
            let mut torn = record;
            torn[at] ^= 0x10;
            assert_eq!(Row::decode(&torn), Err(RowError::Torn), "byte {at}");
        }
        assert_eq!(Row::decode(&[0; Row::BYTES]), Err(RowError::Torn));
    }

    /// A record that version 1 wrote: the row above, without its handshake.
    #[test]
    fn record_of_version_1_is_read() {
        let mut record = [0; Row::BYTES];
        row().encode(&mut record);
        let mut old = [&record[..48], &record[56..]].concat();
        let sum = check(&old).to_le_bytes();
        old[62..].copy_from_slice(&sum);
        assert_eq!(sum, 0xb753_u16.to_le_bytes(), "as version 1 computed it");
        let expected = Row {
            handshake_ns: 0,
            ..row()
        };
        assert_eq!(Row::decode_any(&old), Ok(expected));
    }

    #[test]
    fn outcome_is_the_same_when_its_name_or_code_is_parsed() {
        for outcome in Outcome::ALL {
            assert_eq!(outcome.name().parse(), Ok(outcome));
            assert_eq!(Outcome::from_code(outcome.code()), Some(outcome));
        }
        assert_eq!(Outcome::from_code(Outcome::ALL.len() as u8), None);
        assert!("late".parse::<Outcome>().is_err());
    }

    #[test]
    fn times_run_from_the_intended_start_when_a_request_is_late() {
        assert_eq!(row().response_ns(), 8_000);
        assert_eq!(row().service_ns(), 7_500);
        assert_eq!(row().lag_ns(), 500);
    }
}
