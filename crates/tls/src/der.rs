//! Reads elements of DER, the encoding of certificates. Bytes that are not understood are `None`.
//!
//! Sources: X.690, RFC 5280 section 4.1.2.5.

/// The tag of a number.
pub const INTEGER: u8 = 0x02;
/// The tag of an object identifier.
pub const OBJECT_IDENTIFIER: u8 = 0x06;
/// The tag of a sequence.
pub const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const DAY_S: i64 = 86_400;

/// Elements, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'d>(&'d [u8]);

impl<'d> Reader<'d> {
    /// Reads the elements of these bytes.
    pub fn new(elements: &'d [u8]) -> Reader<'d> {
        Reader(elements)
    }

    /// What has not been read.
    pub fn rest(&self) -> &'d [u8] {
        self.0
    }

    /// Whether all is read.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the next element has this tag.
    pub fn next_is(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The content of the next element, which has this tag.
    pub fn content(&mut self, tag: u8) -> Option<&'d [u8]> {
        match self.element()? {
            (found, content) if found == tag => Some(content),
            _ => None,
        }
    }

    /// The tag and the content of the next element.
    pub fn element(&mut self) -> Option<(u8, &'d [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let add = |sum, byte: &u8| sum << 8 | usize::from(*byte);
                (bytes.iter().fold(0, add), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// A time, `YYMMDDHHMMSSZ` or with four digits of the year, in seconds since 1970.
    pub fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.element()?;
        let year_digits = match tag {
            UTC_TIME => 2,
            GENERALIZED_TIME => 4,
            _ => return None,
        };
        let digits = text.strip_suffix(b"Z")?;
        if digits.len() != year_digits + 10 || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = |part: &[u8]| {
            part.iter()
                .fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
        };
        let (year, rest) = digits.split_at(year_digits);
        let year = match (tag, number(year)) {
            // RFC 5280, 4.1.2.5.1.
            (UTC_TIME, year @ 50..) => 1900 + year,
            (UTC_TIME, year) => 2000 + year,
            (_, year) => year,
        };
        let pair = |at: usize| number(&rest[at..at + 2]);
        let time = pair(4) * 3_600 + pair(6) * 60 + pair(8);
        Some(days_from_date(year, pair(0), pair(2)) * DAY_S + time)
    }
}

/// The number of a day since 1970. Computed in years that begin in March, so that the leap day is the last one.
pub fn days_from_date(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = match month {
        ..=2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}
