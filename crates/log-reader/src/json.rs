//! A line of JSON: Caddy's, Headway's, Envoy's, and others which use the names of nginx.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::Entry;
use crate::time::{scaled_ns, time_ns};

/// What is known by name; the rest of a line is skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    ts: Scalar,
    time: Scalar,
    timestamp: Scalar,
    #[serde(rename = "@timestamp")]
    at_timestamp: Scalar,
    time_iso8601: Scalar,
    time_local: Scalar,
    msec: Scalar,
    start_time: Scalar,
    duration: Scalar,
    duration_us: Scalar,
    duration_ms: Scalar,
    request_time: Scalar,
    status: Scalar,
    response_code: Scalar,
    size: Scalar,
    bytes: Scalar,
    bytes_sent: Scalar,
    body_bytes_sent: Scalar,
}

/// A number or a text as text; anything else is nothing.
#[derive(Debug, Default)]
struct Scalar(Option<String>);

impl Scalar {
    fn bytes(&self) -> Option<&[u8]> {
        let text = self.0.as_deref()?;
        (!text.is_empty() && text != "-").then_some(text.as_bytes())
    }

    fn number<T: std::str::FromStr>(&self) -> Option<T> {
        self.0.as_deref()?.parse().ok()
    }

    fn scaled(&self, unit_ns: u64) -> Option<u64> {
        scaled_ns(self.bytes()?, unit_ns)
    }
}

/// `None` if the line is no object.
pub(crate) fn entry(line: &[u8]) -> Option<Entry> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let ends = [
        &line.ts,
        &line.time,
        &line.timestamp,
        &line.at_timestamp,
        &line.time_iso8601,
        &line.time_local,
        &line.msec,
    ];
    let end = ends.iter().find_map(|scalar| time_ns(scalar.bytes()?));
    let start = line.start_time.bytes().and_then(time_ns);
    // Envoy's is an integer of milliseconds, Caddy's a number of seconds.
    let unit_ns = if start.is_some() {
        1_000_000
    } else {
        1_000_000_000
    };
    let duration_ns = (line.duration_us.scaled(1_000))
        .or_else(|| line.duration_ms.scaled(1_000_000))
        .or_else(|| line.request_time.scaled(1_000_000_000))
        .or_else(|| line.duration.scaled(unit_ns));
    let sizes = [
        &line.size,
        &line.bytes,
        &line.bytes_sent,
        &line.body_bytes_sent,
    ];
    Some(Entry {
        time_ns: start.or(end),
        is_start: start.is_some(),
        duration_ns,
        status: line.status.number().or_else(|| line.response_code.number()),
        bytes: sizes.iter().find_map(|scalar| scalar.number()),
    })
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar(Some(number.to_string())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
        // Without an exponent: small ones would have one otherwise.
        Ok(Scalar(Some(format!("{number:.9}"))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar(Some(text.to_owned())))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Scalar, E> {
        Ok(Scalar(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar(None))
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Scalar, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<Scalar, A::Error> {
        while values.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar(None))
    }
}
