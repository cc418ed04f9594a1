//! Content negotiation: which precompressed file to send for an Accept-Encoding field.
//!
//! The largest weight wins. At equal weight the order is br, zstd, gzip: the smallest file first.
//! The plain file (identity) is chosen if the client weighs it higher than every available coding.
//! A malformed weight counts as "not acceptable", because sending the plain file is never wrong.
//! The result is never 406: RFC 9110 section 12.5.3 lets a server send identity when nothing fits.

use crate::fields::{elements, trim};

/// A content coding that a precompressed file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// Brotli, `.br`
    Brotli,
    /// Zstandard, `.zst`
    Zstd,
    /// gzip, `.gz`
    Gzip,
}

impl Coding {
    /// All codings, in order of preference.
    pub const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// The value of Content-Encoding.
    pub const fn as_str(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// The suffix of a precompressed file's name, including the dot.
    pub const fn suffix(self) -> &'static str {
        match self {
            Coding::Brotli => ".br",
            Coding::Zstd => ".zst",
            Coding::Gzip => ".gz",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of codings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CodingSet(u8);

impl CodingSet {
    /// The empty set.
    pub const NONE: CodingSet = CodingSet(0);
    /// The set of all three codings.
    pub const ALL: CodingSet = CodingSet(0b111);

    /// Returns this set with one more coding.
    #[must_use]
    pub const fn with(self, coding: Coding) -> CodingSet {
        CodingSet(self.0 | coding.bit())
    }

    /// Whether the coding is in the set.
    pub const fn contains(self, coding: Coding) -> bool {
        self.0 & coding.bit() != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Coding> for CodingSet {
    fn from_iter<I: IntoIterator<Item = Coding>>(codings: I) -> CodingSet {
        codings.into_iter().fold(CodingSet::NONE, CodingSet::with)
    }
}

/// The codings that the client accepts, before it is known which files exist.
///
/// A file whose coding is not acceptable need not be looked up.
///
/// ```
/// use headway_http::encoding::{Coding, acceptable};
/// let codings = acceptable(b"gzip, br;q=0");
/// assert!(codings.contains(Coding::Gzip) && !codings.contains(Coding::Brotli));
/// ```
pub fn acceptable(accept_encoding: &[u8]) -> CodingSet {
    let weights = Weights::parse(accept_encoding);
    Coding::ALL
        .into_iter()
        .filter(|coding| weights.of(*coding) > 0)
        .collect()
}

/// Chooses a coding; `None` means identity.
///
/// Do not call it for a request without Accept-Encoding. By the letter of RFC 9110 such a client
/// accepts any coding, but in practice it decodes none.
///
/// ```
/// use headway_http::encoding::{Coding, CodingSet, negotiate};
/// assert_eq!(negotiate(b"gzip, br;q=0.5", CodingSet::ALL), Some(Coding::Gzip));
/// assert_eq!(negotiate(b"gzip;q=0", CodingSet::ALL), None);
/// ```
pub fn negotiate(accept_encoding: &[u8], available: CodingSet) -> Option<Coding> {
    if available.is_empty() {
        return None;
    }
    let weights = Weights::parse(accept_encoding);
    let mut best = None;
    let mut best_weight = 0;
    for coding in Coding::ALL
        .into_iter()
        .filter(|coding| available.contains(*coding))
    {
        let weight = weights.of(coding);
        if weight > best_weight {
            (best, best_weight) = (Some(coding), weight);
        }
    }
    best.filter(|_| {
        weights
            .identity
            .is_none_or(|identity| identity <= best_weight)
    })
}

/// Weights in thousandths by coding; `None` if the field does not name the coding.
#[derive(Default)]
struct Weights {
    by_coding: [Option<u16>; 3],
    identity: Option<u16>,
    any: Option<u16>,
}

impl Weights {
    fn parse(field: &[u8]) -> Weights {
        let mut weights = Weights::default();
        for element in elements(field) {
            let mut parts = element.splitn(2, |byte| *byte == b';');
            let name = trim(parts.next().unwrap_or_default());
            let weight = parts
                .next()
                .map_or(1000, |parameter| weight(parameter).unwrap_or(0));
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            let slot = match () {
                () if is("br") => &mut weights.by_coding[Coding::Brotli as usize],
                () if is("zstd") => &mut weights.by_coding[Coding::Zstd as usize],
                // x-gzip is an alias (RFC 9110 section 8.4.1.3).
                () if is("gzip") || is("x-gzip") => &mut weights.by_coding[Coding::Gzip as usize],
                () if is("identity") => &mut weights.identity,
                () if is("*") => &mut weights.any,
                () => continue,
            };
            *slot = Some(weight);
        }
        weights
    }

    fn of(&self, coding: Coding) -> u16 {
        self.by_coding[coding as usize].or(self.any).unwrap_or(0)
    }
}

/// Parses `q=0.5` into thousandths (RFC 9110 section 12.4.2: at most three decimals, at most 1).
fn weight(parameter: &[u8]) -> Option<u16> {
    let value = match trim(parameter) {
        [b'q' | b'Q', b'=', value @ ..] => value,
        _ => return None,
    };
    let (whole, decimals) = match value {
        [whole @ (b'0' | b'1')] => (whole, &b""[..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] => (whole, decimals),
        _ => return None,
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut thousandths = u16::from(whole - b'0') * 1000;
    for (decimal, value) in decimals.iter().zip([100, 10, 1]) {
        thousandths += u16::from(decimal - b'0') * value;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(field: &str, available: &[Coding]) -> Option<&'static str> {
        negotiate(field.as_bytes(), available.iter().copied().collect()).map(Coding::as_str)
    }

    #[test]
    fn coding_is_negotiated_as_in_rfc_9110_when_all_files_exist() {
        for (field, expected) in [
            ("", None),
            ("gzip", Some("gzip")),
            ("GZip", Some("gzip")),
            ("x-gzip", Some("gzip")),
            ("gzip, deflate, br, zstd", Some("br")),
            ("gzip, zstd", Some("zstd")),
            ("gzip;q=1.0, br;q=0.9", Some("gzip")),
            ("gzip ; q=0.5 , zstd;q=0.501", Some("zstd")),
            ("br;q=0, gzip", Some("gzip")),
            ("br;q=0.000, gzip;q=0", None),
            ("*", Some("br")),
            ("*;q=0", None),
            ("*;q=0, gzip", Some("gzip")),
            ("br;q=0, *", Some("zstd")),
            ("identity", None),
            ("identity, gzip", Some("gzip")),
            ("identity;q=1, gzip;q=0.5", None),
            ("identity;q=0.5, gzip", Some("gzip")),
            ("identity;q=0", None),
            ("identity;q=0, *;q=0.1", Some("br")),
            ("deflate", None),
            ("gzip;q=2", None),
            ("gzip;q=1.001", None),
            ("gzip;q=0.1234", None),
            ("gzip;q=", None),
            ("gzip;level=9", None),
            ("gzip;Q=0.3", Some("gzip")),
            (",,gzip,,", Some("gzip")),
            ("gzipx, brr", None),
        ] {
            assert_eq!(chosen(field, &Coding::ALL), expected, "{field}");
        }
    }

    #[test]
    fn only_existing_files_are_chosen_when_more_codings_are_acceptable() {
        assert_eq!(chosen("br, gzip", &[Coding::Gzip]), Some("gzip"));
        assert_eq!(chosen("br", &[Coding::Gzip, Coding::Zstd]), None);
        assert_eq!(chosen("*", &[]), None);
    }

    #[test]
    fn acceptable_codings_are_those_with_a_weight_when_files_are_unknown() {
        assert_eq!(
            acceptable(b"br;q=0, *;q=0.1"),
            [Coding::Zstd, Coding::Gzip].into_iter().collect()
        );
        assert_eq!(acceptable(b""), CodingSet::NONE);
    }
}
