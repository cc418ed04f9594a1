//! The spellings a person uses for times, sizes and addresses: `10s`, `64KiB`, `:8080`.
//!
//! Each type parses from the command line (`FromStr`) and from TOML with the same words and the
//! same errors. A bare number is a size in bytes, but never a time: nobody can tell which unit was
//! meant.

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Serialize, Serializer, de};
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// A length of time in whole milliseconds, written `500ms`, `10s`, `5m` or `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// A number of bytes, written `4096`, `64KiB`, `1MB` (units of 1024 have the `i`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Where to listen: `127.0.0.1:8080`, `[::1]:8080`, `:8080` for every IPv4 address of this machine,
/// `8080` for this machine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

/// How many: `5`, or `1-16` where it follows the work there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// At least.
    pub min: usize,
    /// At most.
    pub max: usize,
}

/// Who helps: so many processes, or the kernel's own workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helpers {
    /// `5`, or `1-16`.
    Processes(Count),
    /// `io_uring`.
    IoUring,
}

/// How many clients a round takes: `25`, 0 for as many as wait, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptBatch {
    /// What the loop sees decides.
    Auto,
    /// At most so many; 0 is no bound but that of connections.
    Most(u32),
}

/// One value or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Many<T>(pub Vec<T>);

const TIMES: &[(&str, u64)] = &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

impl FromStr for Millis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Millis(0));
        }
        scaled(text, TIMES)
            .map(Millis)
            .ok_or_else(|| format!("`{text}` is not a time; write a number and ms, s, m or h: 10s"))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        unscaled(out, self.0, &TIMES[..2])
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scaled(text, SIZES).map(Bytes).ok_or_else(|| {
            format!("`{text}` is not a size; write bytes or a number and KiB, MiB, GiB, kB, MB, GB")
        })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        unscaled(
            out,
            self.0,
            &[
                ("", 1),
                ("KiB", 1 << 10),
                ("MiB", 1 << 20),
                ("GiB", 1 << 30),
            ],
        )
    }
}

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(out, "{}", self.min),
            false => write!(out, "{}-{}", self.min, self.max),
        }
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let both = min.trim().parse().ok().zip(max.trim().parse().ok());
        both.filter(|(min, max)| min <= max)
            .map(|(min, max)| Count { min, max })
            .ok_or_else(|| {
                format!("`{text}` is not how many; write a number, or the least and the most: 1-16")
            })
    }
}

/// More than this at once is more than there can be connections.
const ACCEPT_COUNT_MOST: u32 = 1_000_000;

impl FromStr for Helpers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "io_uring" => Ok(Helpers::IoUring),
            _ => text
                .parse()
                .map(Helpers::Processes)
                .map_err(|error: String| format!("{error}, or io_uring")),
        }
    }
}

impl FromStr for AcceptBatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(AcceptBatch::Auto),
            (_, Ok(count)) if count <= ACCEPT_COUNT_MOST => Ok(AcceptBatch::Most(count)),
            _ => Err(format!(
                "`{text}` is not how many clients to take: write a number up to {ACCEPT_COUNT_MOST}, 0 for all \
                 that wait, or auto"
            )),
        }
    }
}

impl fmt::Display for AcceptBatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptBatch::Auto => out.write_str("auto"),
            AcceptBatch::Most(count) => write!(out, "{count}"),
        }
    }
}

impl Serialize for AcceptBatch {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            AcceptBatch::Auto => to.serialize_str("auto"),
            AcceptBatch::Most(count) => to.serialize_u32(*count),
        }
    }
}

/// A whole number and one of the units; `None` when it is not, or does not fit.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// The largest unit (they stand in ascending order) that says the value without a fraction.
fn unscaled(out: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let exact = units
        .iter()
        .rev()
        .find(|(_, factor)| value > 0 && value.is_multiple_of(*factor));
    let (name, factor) = exact.copied().unwrap_or(units[0]);
    write!(out, "{}{name}", value / factor)
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(ListenAddress(address));
        }
        let on = |address: Ipv4Addr, port: &str| {
            port.parse()
                .ok()
                .map(|port| ListenAddress(SocketAddr::new(IpAddr::V4(address), port)))
        };
        let parsed = match text.strip_prefix(':') {
            Some(port) => on(Ipv4Addr::UNSPECIFIED, port),
            None => on(Ipv4Addr::LOCALHOST, text),
        };
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is not an address to listen on; write 127.0.0.1:8080, [::1]:8080, \
                 :8080 (every IPv4 address) or 8080 (this machine only); names are not looked up"
            )
        })
    }
}

struct Spelling<T>(&'static str, PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for Spelling<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    /// JSON's, where TOML has only signed ones.
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

macro_rules! spelled {
    ($type:ty, $expecting:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Spelling::<$type>($expecting, PhantomData))
            }
        }
    };
}

spelled!(Millis, "a time such as \"10s\" or \"500ms\"");
spelled!(Bytes, "a size such as \"64KiB\" or a number of bytes");
spelled!(Count, "a number or two, such as 5 or \"1-16\"");
spelled!(
    Helpers,
    "a number or two, such as 5 or \"1-16\", or \"io_uring\""
);
spelled!(AcceptBatch, "a number of clients or \"auto\"");
spelled!(ListenAddress, "an address such as \"127.0.0.1:8080\"");

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value or a list of values")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Many<T>, E> {
        let one = de::value::StrDeserializer::<E>::new(text);
        T::deserialize(one)
            .map(|value| Many(vec![value]))
            .map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Many<T>, E> {
        let one = de::value::I64Deserializer::<E>::new(number);
        T::deserialize(one)
            .map(|value| Many(vec![value]))
            .map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Many<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
            .map(Many)
            .map_err(A::Error::custom)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ManyVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_understood_when_they_have_a_unit() {
        for (text, expected) in [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("0", 0)] {
            assert_eq!(text.parse(), Ok(Millis(expected)), "{text}");
        }
        for (text, expected) in [
            ("4096", 4096),
            ("64KiB", 65536),
            ("1 MB", 1_000_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(expected)), "{text}");
        }
    }

    #[test]
    fn times_and_sizes_are_refused_when_they_have_no_meaning() {
        for text in [
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 weeks",
            "",
            "99999999999999999999s",
        ] {
            assert!(text.parse::<Millis>().is_err(), "{text}");
        }
        for text in ["KiB", "-1", "1.5MB", "10mb", "", "99999999999GB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_or_size_is_the_same_when_printed_and_parsed() {
        for value in [
            0,
            1,
            999,
            1000,
            1024,
            1500,
            65536,
            10_000,
            1 << 30,
            3 * 3_600_000,
        ] {
            assert_eq!(Millis(value).to_string().parse(), Ok(Millis(value)));
            assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
        }
        assert_eq!(
            (Millis(10_000).to_string(), Bytes(65536).to_string()),
            ("10s".into(), "64KiB".into())
        );
    }

    #[test]
    fn counts_are_understood_when_fixed_or_between_two_numbers() {
        for (text, expected) in [
            ("5", Some((5, 5))),
            ("1-16", Some((1, 16))),
            ("2 - 3", Some((2, 3))),
        ]
        .into_iter()
        .chain(["", "-", "5-", "-5", "3-2", "a", "1-2-3"].map(|text| (text, None)))
        {
            let count = text.parse::<Count>().ok();
            assert_eq!(
                count.map(|count| (count.min, count.max)),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn accept_counts_are_the_same_when_printed_parsed_and_sent() {
        for (text, count) in [
            ("auto", AcceptBatch::Auto),
            ("0", AcceptBatch::Most(0)),
            ("25", AcceptBatch::Most(25)),
        ] {
            assert_eq!(text.parse(), Ok(count));
            assert_eq!(count.to_string(), text);
            let json = serde_json::to_string(&count).unwrap();
            assert_eq!(serde_json::from_str::<AcceptBatch>(&json).unwrap(), count);
        }
        for text in ["", "-1", "Auto", "1.5", "1000001"] {
            let error = text.parse::<AcceptBatch>().unwrap_err();
            assert!(error.contains("or auto"), "{error}");
        }
    }

    #[test]
    fn listen_addresses_are_understood_when_short_or_long() {
        let cases = [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            (":8080", "0.0.0.0:8080"),
            ("8080", "127.0.0.1:8080"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ];
        for (text, expected) in cases {
            assert_eq!(
                text.parse::<ListenAddress>().unwrap().0.to_string(),
                expected
            );
        }
        for text in ["localhost:80", "127.0.0.1", "70000", ":", "", "::1:80x"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
