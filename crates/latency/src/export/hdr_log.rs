//! The log that HdrHistogramLogAnalyzer and others read: a line per second, with a histogram.
//!
//! HdrHistogram with three significant digits and a lowest value of 1 has the buckets of
//! [`Bucket`](crate::Bucket), so counts are copied. The encoding V2: counts from the first bucket
//! on, a negative number for a run of empty ones, each zig-zag encoded as LEB128 with at most nine
//! bytes; a header in front; all of it in a zlib stream with a second header; then base64. The
//! stream has stored blocks only, which every decoder accepts.
//!
//! Sources: HistogramLogWriter.java, AbstractHistogram.java (`encodeIntoByteBuffer`) and
//! ZigZagEncoding.java of HdrHistogram 2.1.12.

use super::Second;
use crate::histogram::Histogram;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::{self, Write};

/// Version 2, counts of variable length.
const COOKIE: u32 = 0x1c84_9303 | 0x10;
/// The same of the compressed form.
const COOKIE_COMPRESSED: u32 = 0x1c84_9304 | 0x10;

/// Significant digits that give 1024 buckets to an octave.
const DIGITS: u32 = 3;

/// Readers make room for values up to this: an hour, as most writers have it.
const HIGHEST_NS: u64 = 3_600_000_000_000;

/// A stored block of a zlib stream has at most this many bytes.
const STORED_MAX: usize = 0xffff;

/// The lines before the first second. `epoch_ns` is its start, since 1970.
pub(super) fn head(out: &mut dyn Write, epoch_ns: u64) -> io::Result<()> {
    writeln!(out, "#[Logged by headway {}]", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "#[Histogram log format version 1.3]")?;
    let (seconds, ms) = (epoch_ns / 1_000_000_000, epoch_ns / 1_000_000 % 1_000);
    writeln!(out, "#[StartTime: {seconds}.{ms:03} (seconds since epoch)]")?;
    writeln!(
        out,
        "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\""
    )
}

/// A second. Its start is relative, and its maximum in milliseconds.
pub(super) fn line(out: &mut dyn Write, second: &Second) -> io::Result<()> {
    let max_ms = second.response.max_ns() as f64 / 1e6;
    let encoded = STANDARD.encode(compressed(&second.response));
    writeln!(out, "{}.000,1.000,{max_ms:.3},{encoded}", second.at)
}

fn compressed(histogram: &Histogram) -> Vec<u8> {
    let stream = stored(&plain(histogram));
    let mut bytes = COOKIE_COMPRESSED.to_be_bytes().to_vec();
    bytes.extend((stream.len() as u32).to_be_bytes());
    bytes.extend(stream);
    bytes
}

fn plain(histogram: &Histogram) -> Vec<u8> {
    let counts = counts(histogram);
    let highest = histogram.max_ns().clamp(HIGHEST_NS, i64::MAX as u64);
    let mut bytes = COOKIE.to_be_bytes().to_vec();
    bytes.extend((counts.len() as u32).to_be_bytes());
    // No shift of the values.
    bytes.extend(0_u32.to_be_bytes());
    bytes.extend(DIGITS.to_be_bytes());
    // The lowest value that differs from 0.
    bytes.extend(1_u64.to_be_bytes());
    bytes.extend(highest.to_be_bytes());
    bytes.extend(1_f64.to_be_bytes());
    bytes.extend(counts);
    bytes
}

/// The counts of all buckets up to the last that is not empty.
fn counts(histogram: &Histogram) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut next = 0;
    for (bucket, count) in histogram.buckets() {
        match bucket - next {
            0 => {}
            1 => zigzag(&mut bytes, 0),
            empty => zigzag(&mut bytes, -i64::from(empty)),
        }
        zigzag(&mut bytes, i64::try_from(count).unwrap_or(i64::MAX));
        next = bucket + 1;
    }
    if bytes.is_empty() {
        // The first bucket, as the original writes an empty histogram.
        zigzag(&mut bytes, 0);
    }
    bytes
}

/// LEB128 in which a ninth byte has eight bits and is the last.
fn zigzag(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    for _ in 0..8 {
        let low = (rest & 0x7f) as u8;
        rest >>= 7;
        if rest == 0 {
            return bytes.push(low);
        }
        bytes.push(low | 0x80);
    }
    bytes.push(rest as u8);
}

/// A zlib stream (RFC 1950) of stored blocks (RFC 1951, section 3.2.4).
fn stored(data: &[u8]) -> Vec<u8> {
    // Deflate with a window of 32 KiB; the check of the two bytes is 31 × 985.
    let mut stream = vec![0x78, 0x01];
    let mut chunks = data.chunks(STORED_MAX).peekable();
    while let Some(chunk) = chunks.next() {
        let length = chunk.len() as u16;
        stream.push(u8::from(chunks.peek().is_none()));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(chunk);
    }
    stream.extend(adler32(data).to_be_bytes());
    stream
}

fn adler32(data: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in data {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_the_example() {
        // The example of the English Wikipedia's article on Adler-32.
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }

    #[test]
    fn number_has_seven_bits_in_a_byte_and_eight_in_the_ninth() {
        let encoded = |value| {
            let mut bytes = Vec::new();
            zigzag(&mut bytes, value);
            bytes
        };
        assert_eq!(encoded(0), [0]);
        assert_eq!(encoded(1), [2]);
        assert_eq!(encoded(-1), [1]);
        assert_eq!(encoded(63), [126]);
        assert_eq!(encoded(64), [0x80, 1]);
        assert_eq!(encoded(-300), [0xd7, 4]);
        let mut longest = vec![0xfe];
        longest.extend([0xff; 8]);
        assert_eq!(encoded(i64::MAX), longest);
        assert_eq!(encoded(i64::MIN), [0xff; 9]);
    }

    #[test]
    fn runs_of_empty_buckets_are_negative_numbers() {
        let mut histogram = Histogram::new();
        for (value, count) in [(0, 3), (2, 1), (5, 1)] {
            histogram.record_n(value, count);
        }
        assert_eq!(counts(&histogram), [6, 0, 2, 3, 2]);
    }
}
