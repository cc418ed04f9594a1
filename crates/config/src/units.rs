//! How times, sizes, counts and addresses are written: `10s`, `64KiB`, `:8080`.
//!
//! Each type parses in the same way, with the same errors, from the command line and from TOML. A
//! number without a unit is a size in bytes or a time in seconds.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// A length of time in whole milliseconds, written `500ms`, `10s`, `5m`, `1h`, `365d` or, in seconds,
/// `10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// A number of bytes, written `4096`, `64KiB`, `1MB` (units of 1024 have the `i`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Where to listen: `127.0.0.1:8080`, `[::1]:8080`, `:8080` for every IPv4 address of this machine,
/// `8080` for this machine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

/// A number, `5`, or a range, `1-16`, within which it follows demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Lowest number.
    pub min: usize,
    /// Highest number.
    pub max: usize,
}

/// What does the blocking work: helper processes, or the kernel's own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helpers {
    /// `5`, or `1-16`.
    Processes(Count),
    /// `io_uring`.
    IoUring,
}

/// How many connections to accept per wakeup: `25`, 0 for all that wait, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AcceptBatch {
    /// The admission controller decides.
    Auto,
    /// At most this many; 0 accepts all that wait.
    Most(u32),
}

/// One value or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

/// In ascending order, but the first, which a number without a unit has.
const TIMES: &[(&str, u64)] = &[
    ("", 1000),
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];
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
        scaled(text, TIMES)
            .map(Millis)
            .ok_or_else(|| format!("`{text}` is not a time; write a number and ms, s, m, h or d, such as 10s, or a number of seconds"))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        unscaled(out, self.0, &TIMES[1..3])
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scaled(text, SIZES).map(Bytes).ok_or_else(|| {
            format!("`{text}` is not a size; write a number and KiB, MiB, GiB, kB, MB or GB, such as 64KiB, or a number of bytes")
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
            .ok_or_else(|| format!("`{text}` is not a number or a range; write 5, or 1-16"))
    }
}

/// Larger batches exceed any limit on connections.
const ACCEPT_BATCH_MAX: u32 = 1_000_000;

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
            (_, Ok(count)) if count <= ACCEPT_BATCH_MAX => Ok(AcceptBatch::Most(count)),
            _ => Err(format!(
                "`{text}` is not a number of connections; write a number up to {ACCEPT_BATCH_MAX}, 0 for all that \
                 wait, or auto"
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

impl TryFrom<String> for AcceptBatch {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<AcceptBatch> for String {
    fn from(count: AcceptBatch) -> String {
        count.to_string()
    }
}

/// Parses a whole number with one of the units; `None` if it is malformed or too large.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Writes the value in the largest unit without a fraction. The units are in ascending order.
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
        let parsed = match (text.strip_prefix(':'), text.strip_prefix("localhost:")) {
            (Some(port), _) => on(Ipv4Addr::UNSPECIFIED, port),
            (None, local) => on(Ipv4Addr::LOCALHOST, local.unwrap_or(text)),
        };
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is not an address to listen on; write 127.0.0.1:8080, [::1]:8080, \
                 :8080 (all IPv4 addresses) or 8080 (this machine only); no host name but localhost"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_parse_with_and_without_a_unit() {
        for (text, expected) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("5m", 300_000),
            ("0", 0),
            ("10", 10_000),
            ("2 h", 7_200_000),
            ("365d", 365 * 86_400_000),
        ] {
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
    fn times_and_sizes_are_errors_when_malformed() {
        for text in ["s", "-1s", "1.5s", "10 weeks", "", "99999999999999999999s"] {
            assert!(text.parse::<Millis>().is_err(), "{text}");
        }
        for text in ["KiB", "-1", "1.5MB", "10mb", "", "99999999999GB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_sizes_parse_back_as_printed() {
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
    fn count_parses_as_number_or_range() {
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
    fn accept_batch_reads_back_as_printed_and_serialized() {
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
    fn listen_address_parses_in_short_and_long_form() {
        let cases = [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            (":8080", "0.0.0.0:8080"),
            ("8080", "127.0.0.1:8080"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("localhost:8080", "127.0.0.1:8080"),
        ];
        for (text, expected) in cases {
            assert_eq!(
                text.parse::<ListenAddress>().unwrap().0.to_string(),
                expected
            );
        }
        for text in [
            "localhost:",
            "localhost",
            "example.com:80",
            "127.0.0.1",
            "70000",
            ":",
            "",
            "::1:80x",
        ] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
