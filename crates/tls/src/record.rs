//! The framing of records, which is the same in all versions: type, version, length.

/// A record's header.
pub const HEADER_BYTES: usize = 5;
/// The most plaintext in a record.
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// The longest record: TLS 1.2 allows 2,048 bytes beyond the plaintext.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + 2_048;

/// The types of records.
pub(crate) mod content {
    pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const DATA: u8 = 23;
}

/// The alerts that a worker sends and knows (RFC 8446, 6).
pub mod alert {
    /// The sender sends nothing more.
    pub const CLOSE_NOTIFY: u8 = 0;
    pub(crate) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(crate) const BAD_RECORD_MAC: u8 = 20;
    pub(crate) const RECORD_OVERFLOW: u8 = 22;
    pub(crate) const DECODE_ERROR: u8 = 50;
    pub(crate) const INTERNAL_ERROR: u8 = 80;
    pub(crate) const USER_CANCELED: u8 = 90;
    pub(crate) const NO_RENEGOTIATION: u8 = 100;
}

/// What input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splitter {
    /// A whole record of this length, with its header.
    Whole(usize),
    /// The beginning of a record.
    Partial,
    /// Something other than a TLS record.
    NoRecord,
}

impl Splitter {
    /// Looks at the front of `input`.
    pub fn look(input: &[u8]) -> Splitter {
        let is_known = |kind| (content::CHANGE_CIPHER_SPEC..=content::DATA).contains(&kind);
        match input {
            [] => Splitter::Partial,
            [kind, ..] if !is_known(*kind) => Splitter::NoRecord,
            [_, major, ..] if *major != 3 => Splitter::NoRecord,
            [_, _, _, high, low, ..] => {
                let length = HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
                match length {
                    _ if length > RECORD_BYTES_MAX => Splitter::NoRecord,
                    _ if length > input.len() => Splitter::Partial,
                    _ => Splitter::Whole(length),
                }
            }
            _ => Splitter::Partial,
        }
    }

    /// The alert for input that is no record.
    pub(crate) fn fault(input: &[u8]) -> u8 {
        match input {
            [content::CHANGE_CIPHER_SPEC..=content::DATA, 3, _, _, _, ..] => alert::RECORD_OVERFLOW,
            [content::CHANGE_CIPHER_SPEC..=content::DATA, ..] => alert::DECODE_ERROR,
            _ => alert::UNEXPECTED_MESSAGE,
        }
    }

    /// The length of the whole records at the front of `input`, and whether something follows that is not
    /// a record.
    pub fn whole_records(input: &[u8]) -> (usize, bool) {
        let mut length = 0;
        loop {
            match Splitter::look(&input[length..]) {
                Splitter::Whole(record) => length += record,
                Splitter::Partial => return (length, false),
                Splitter::NoRecord => return (length, true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_split_at_their_lengths() {
        let two = [22, 3, 1, 0, 2, 7, 7, 23, 3, 3, 0, 0, 21];
        assert_eq!(Splitter::whole_records(&two), (12, false));
        assert_eq!(Splitter::look(&two[..6]), Splitter::Partial);
        assert_eq!(Splitter::look(&[]), Splitter::Partial);
    }

    #[test]
    fn other_protocols_and_too_long_records_are_no_records() {
        assert_eq!(Splitter::look(b"GET / HTTP/1.1\r\n"), Splitter::NoRecord);
        // SSL 2.
        assert_eq!(Splitter::look(&[0x80, 0x2e, 1, 3, 1]), Splitter::NoRecord);
        assert_eq!(Splitter::look(&[22, 3, 1, 0x48, 1]), Splitter::NoRecord);
        assert_eq!(Splitter::look(&[22, 3, 1, 0x48, 0]), Splitter::Partial);
        assert_eq!(Splitter::whole_records(&[22, 3, 1, 0, 0, 71]), (5, true));
    }
}
