//! Which precompressed sibling to send: Accept-Encoding against what exists.
//!
//! The largest weight wins; at equal weight we prefer br, zstd, gzip, the smallest first. Without
//! compression (identity) is taken when the client weighs it higher than any coding we have. A
//! weight that cannot be read counts as "not acceptable": sending plain bytes is never wrong.
//! It never answers 406; RFC 9110 section 12.5.3 lets a server send identity when nothing fits.

use crate::fields::{elements, trim};

/// A content coding we may have a sibling file for.
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
    /// All of them, the preferred first.
    pub const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// The value of Content-Encoding.
    pub const fn as_str(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// What a sibling's name ends in, dot included.
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
pub struct Available(u8);

impl Available {
    /// No sibling at all.
    pub const NONE: Available = Available(0);
    /// All three.
    pub const ALL: Available = Available(0b111);

    /// This set and one more.
    #[must_use]
    pub const fn with(self, coding: Coding) -> Available {
        Available(self.0 | coding.bit())
    }

    /// Whether the coding is in the set.
    pub const fn has(self, coding: Coding) -> bool {
        self.0 & coding.bit() != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Coding> for Available {
    fn from_iter<I: IntoIterator<Item = Coding>>(codings: I) -> Available {
        codings.into_iter().fold(Available::NONE, Available::with)
    }
}

/// What the client would take at all, before anybody looked which siblings exist.
///
/// A name that no acceptable sibling can have need not be looked up.
pub fn acceptable(accept_encoding: &[u8]) -> Available {
    let weights = Weights::parse(accept_encoding);
    Coding::ALL
        .into_iter()
        .filter(|coding| weights.of(*coding) > 0)
        .collect()
}

/// Chooses a coding; none means identity.
///
/// Without an Accept-Encoding field do not ask: any coding would be acceptable by the letter of
/// RFC 9110, but clients that send no field decode none.
///
/// ```
/// use headway_http::encoding::{Available, Coding, negotiate};
///
/// assert_eq!(negotiate(b"gzip, br;q=0.5", Available::ALL), Some(Coding::Gzip));
/// assert_eq!(negotiate(b"gzip;q=0", Available::ALL), None);
/// ```
pub fn negotiate(accept_encoding: &[u8], available: Available) -> Option<Coding> {
    if available.is_empty() {
        return None;
    }
    let weights = Weights::parse(accept_encoding);
    let mut best = None;
    let mut best_weight = 0;
    for coding in Coding::ALL
        .into_iter()
        .filter(|coding| available.has(*coding))
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

/// Weights in thousandths, by coding; none where the field does not name it.
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
                // RFC 9110 8.4.1.3: x-gzip is the same.
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

/// `q=0.5` in thousandths (RFC 9110 section 12.4.2: at most three decimals, at most 1).
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
    for (decimal, place) in decimals.iter().zip([100, 10, 1]) {
        thousandths += u16::from(decimal - b'0') * place;
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
    fn coding_is_chosen_as_rfc_9110_says_when_all_three_exist() {
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
    fn only_existing_siblings_are_chosen_when_more_are_acceptable() {
        assert_eq!(chosen("br, gzip", &[Coding::Gzip]), Some("gzip"));
        assert_eq!(chosen("br", &[Coding::Gzip, Coding::Zstd]), None);
        assert_eq!(chosen("*", &[]), None);
    }

    #[test]
    fn acceptable_is_what_has_a_weight_when_siblings_are_unknown() {
        assert_eq!(
            acceptable(b"br;q=0, *;q=0.1"),
            [Coding::Zstd, Coding::Gzip].into_iter().collect()
        );
        assert_eq!(acceptable(b""), Available::NONE);
    }
}
