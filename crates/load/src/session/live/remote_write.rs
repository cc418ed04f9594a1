//! The bytes of Prometheus remote write 1.0: a `WriteRequest` in Protobuf, in a Snappy block.
//!
//! Both are written by hand: the message has seven fields, and a block may have literals only.
//!
//! Sources: the Remote-Write 1.0 specification, `prompb/remote.proto` and `prompb/types.proto` of
//! Prometheus, and `format_description.txt` of Snappy.

use super::metrics::Sample;
use super::protobuf::{bytes, double, number, varint};

/// A literal of a Snappy block has at most this many bytes, since its length has two.
const LITERAL_MAX: usize = 1 << 16;

/// The body of a request.
pub(super) fn body(samples: &[Sample], common: &[(&'static str, String)]) -> Vec<u8> {
    let mut message = Vec::new();
    for sample in samples {
        bytes(&mut message, 1, &series(sample, common));
    }
    snappy(&message)
}

fn series(sample: &Sample, common: &[(&'static str, String)]) -> Vec<u8> {
    let own = sample.labels.iter().chain(common);
    let mut labels: Vec<(&str, &str)> = own.map(|(name, value)| (*name, &**value)).collect();
    labels.push(("__name__", &sample.name));
    // The specification wants them sorted.
    labels.sort_unstable();
    let mut out = Vec::new();
    for (name, value) in labels {
        let mut label = Vec::new();
        bytes(&mut label, 1, name.as_bytes());
        bytes(&mut label, 2, value.as_bytes());
        bytes(&mut out, 1, &label);
    }
    let mut point = Vec::new();
    double(&mut point, 1, sample.value);
    number(&mut point, 2, sample.at_ms as u64);
    bytes(&mut out, 2, &point);
    out
}

/// A block of literals.
fn snappy(data: &[u8]) -> Vec<u8> {
    const TWO_BYTES_OF_LENGTH: u8 = 61 << 2;
    let mut out = Vec::new();
    varint(&mut out, data.len() as u64);
    for literal in data.chunks(LITERAL_MAX) {
        out.push(TWO_BYTES_OF_LENGTH);
        out.extend(((literal.len() - 1) as u16).to_le_bytes());
        out.extend_from_slice(literal);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::live::metrics::STALE;

    #[test]
    fn message_has_sorted_labels_and_a_sample() {
        let sample = Sample {
            name: "up".to_owned(),
            labels: vec![("le", "1".to_owned())],
            value: 1.0,
            at_ms: 300,
        };
        let common = [("job", "a".to_owned())];
        let expected = [
            b"\x0a\x31".as_slice(),
            b"\x0a\x0e\x0a\x08__name__\x12\x02up",
            b"\x0a\x08\x0a\x03job\x12\x01a",
            b"\x0a\x07\x0a\x02le\x12\x011",
            b"\x12\x0c\x09\0\0\0\0\0\0\xf0\x3f\x10\xac\x02",
        ]
        .concat();
        let found = body(&[sample], &common);
        assert_eq!(found[0] as usize, expected.len(), "the length of the whole");
        assert_eq!(&found[1..4], [0xf4, expected.len() as u8 - 1, 0]);
        assert_eq!(found[4..], expected);
        assert!(STALE.is_nan());
    }

    #[test]
    fn block_has_literals_of_at_most_64_kib() {
        let data = vec![7; LITERAL_MAX + 1];
        let block = snappy(&data);
        assert_eq!(block[..6], [0x81, 0x80, 0x04, 0xf4, 0xff, 0xff]);
        assert_eq!(block[6 + LITERAL_MAX..], [0xf4, 0, 0, 7]);
    }
}
