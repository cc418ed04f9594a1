//! HTTP requests answered, by status code and method.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of the label `method`. Unknown methods share one value, so that clients cannot create
/// series at will.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MethodLabel {
    /// GET
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// OPTIONS
    Options,
    /// PATCH
    Patch,
    /// Any other method, and requests that could not be parsed.
    #[default]
    Other,
}

const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "other",
];

impl MethodLabel {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        METHODS[self as usize]
    }

    /// The label of a method's name.
    pub fn from_name(name: &str) -> MethodLabel {
        match name {
            "GET" => MethodLabel::Get,
            "HEAD" => MethodLabel::Head,
            "POST" => MethodLabel::Post,
            "PUT" => MethodLabel::Put,
            "DELETE" => MethodLabel::Delete,
            "OPTIONS" => MethodLabel::Options,
            "PATCH" => MethodLabel::Patch,
            _ => MethodLabel::Other,
        }
    }

    /// The label of an unparsed request, by the first word of its request line.
    pub fn from_request_line(bytes: &[u8]) -> MethodLabel {
        let bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
        let name = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
        std::str::from_utf8(name).map_or(MethodLabel::Other, MethodLabel::from_name)
    }
}

impl From<headway_http::Method> for MethodLabel {
    #[inline]
    fn from(method: headway_http::Method) -> MethodLabel {
        match method {
            headway_http::Method::Get => MethodLabel::Get,
            headway_http::Method::Head => MethodLabel::Head,
            headway_http::Method::Options => MethodLabel::Options,
            headway_http::Method::Other(name) => MethodLabel::from_name(name),
        }
    }
}

#[derive(Clone, Debug)]
struct StatusRow {
    status: u16,
    by_method: [u64; METHODS.len()],
}

impl StatusRow {
    fn total(&self) -> u64 {
        self.by_method.into_iter().fold(0, u64::saturating_add)
    }
}

/// HTTP requests by status code and method: a short list, because most servers use about ten codes.
///
/// The codes stand in the order of their first use, so the usual 200 is found at once. Serialises
/// as a map from code to a map from method to count.
///
/// ```
/// use headway_metrics::{HttpRequests, MethodLabel};
/// let mut requests = HttpRequests::default();
/// requests.record(200, MethodLabel::Get);
/// requests.record(200, MethodLabel::Head);
/// assert_eq!((requests.get(200), requests.total()), (2, 2));
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Map", into = "Map")]
pub struct HttpRequests(Vec<StatusRow>);

type Map = BTreeMap<u16, BTreeMap<String, u64>>;

impl HttpRequests {
    /// Counts one request that was answered with this status.
    #[inline]
    pub fn record(&mut self, status: u16, method: MethodLabel) {
        self.add(status, method, 1);
    }

    /// Number of requests answered with this status.
    pub fn get(&self, status: u16) -> u64 {
        let row = self.0.iter().find(|row| row.status == status);
        row.map_or(0, StatusRow::total)
    }

    /// Counts by ascending status code.
    pub fn by_status(&self) -> BTreeMap<u16, u64> {
        self.0.iter().map(|row| (row.status, row.total())).collect()
    }

    /// Counts by ascending status code and by method, without those that are 0.
    pub fn by_status_and_method(&self) -> Vec<(u16, &'static str, u64)> {
        let mut rows: Vec<&StatusRow> = self.0.iter().collect();
        rows.sort_by_key(|row| row.status);
        let mut all = Vec::new();
        for row in rows {
            let counts = METHODS.iter().zip(row.by_method);
            all.extend(
                counts
                    .filter(|(_, count)| *count > 0)
                    .map(|(method, count)| (row.status, *method, count)),
            );
        }
        all
    }

    /// Number of requests answered.
    pub fn total(&self) -> u64 {
        let totals = self.0.iter().map(StatusRow::total);
        totals.fold(0, u64::saturating_add)
    }

    /// Adds another worker's counts.
    pub fn merge(&mut self, other: &HttpRequests) {
        for row in &other.0 {
            let mine = self.row(row.status);
            for (sum, count) in mine.by_method.iter_mut().zip(row.by_method) {
                *sum = sum.saturating_add(count);
            }
        }
    }

    #[inline]
    fn add(&mut self, status: u16, method: MethodLabel, times: u64) {
        let count = &mut self.row(status).by_method[method as usize];
        *count = count.saturating_add(times);
    }

    #[inline]
    fn row(&mut self, status: u16) -> &mut StatusRow {
        let position = match self.0.iter().position(|row| row.status == status) {
            Some(position) => position,
            None => {
                self.0.push(StatusRow {
                    status,
                    by_method: [0; METHODS.len()],
                });
                self.0.len() - 1
            }
        };
        &mut self.0[position]
    }
}

impl PartialEq for HttpRequests {
    fn eq(&self, other: &Self) -> bool {
        self.by_status_and_method() == other.by_status_and_method()
    }
}

impl Eq for HttpRequests {}

impl From<Map> for HttpRequests {
    fn from(map: Map) -> Self {
        let mut requests = HttpRequests::default();
        for (status, methods) in map {
            for (method, count) in methods {
                requests.add(status, MethodLabel::from_name(&method), count);
            }
        }
        requests
    }
}

impl From<HttpRequests> for Map {
    fn from(requests: HttpRequests) -> Self {
        let mut map = Map::new();
        for (status, method, count) in requests.by_status_and_method() {
            map.entry(status)
                .or_default()
                .insert(method.to_owned(), count);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_label_is_other_for_an_unknown_or_invalid_method() {
        for (line, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], "GET"),
            (b"BREW /pot HTTP/1.1\r\n", "other"),
            (b"\xff\xfe", "other"),
            (b"", "other"),
        ] {
            assert_eq!(MethodLabel::from_request_line(line).as_str(), expected);
        }
        let known = MethodLabel::from(headway_http::Method::Other("POST"));
        assert_eq!(known, MethodLabel::Post);
    }

    #[test]
    fn request_counts_are_sorted_by_status_code() {
        let mut requests = HttpRequests::default();
        for (status, method) in [
            (404, MethodLabel::Get),
            (200, MethodLabel::Other),
            (200, MethodLabel::Get),
        ] {
            requests.record(status, method);
        }
        let expected = [(200, "GET", 1), (200, "other", 1), (404, "GET", 1)];
        assert_eq!(requests.by_status_and_method(), expected);
    }
}
