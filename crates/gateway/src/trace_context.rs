//! The identity of a request in a distributed trace (W3C Trace Context), and its request ID.
//!
//! A valid `traceparent` of the client is continued: its trace stays, and this server's own ID takes the
//! place of its parent. Otherwise a trace begins here. The own ID is also the request ID.
//!
//! A client may name any trace. It cannot name the request, so the ID in the log is this server's.
//!
//! Source: <https://www.w3.org/TR/trace-context/>.

use crate::fields::is_same_field;
use crate::request::Request;

/// `00-`, the trace, `-`, the parent, `-` and the flags.
const BYTES: usize = 55;
const TRACE: std::ops::Range<usize> = 3..35;
const PARENT: std::ops::Range<usize> = 36..52;
const FLAGS: std::ops::Range<usize> = 53..55;
/// `sampled_56` with which all traces are sampled.
pub const ALL_56: u64 = 1 << 56;

/// The trace of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// As it is passed on.
    traceparent: [u8; BYTES],
    /// The span of the client, if the trace began before this server.
    parent: Option<[u8; 16]>,
    /// Whether the request has an ID of a trusted proxy, which is passed on.
    keeps_request_id: bool,
}

impl TraceContext {
    /// The trace of a request. `is_trusted`: it comes from a trusted proxy, so its `X-Request-Id` stays.
    ///
    /// A trace that begins here is sampled if the last 56 bits of its ID are below `sampled_56`, as
    /// OpenTelemetry does it. Otherwise the client has decided.
    pub fn new(
        request: &Request<'_>,
        is_trusted: bool,
        random: [u64; 3],
        sampled_56: u64,
    ) -> TraceContext {
        let mut parents = request.values(b"traceparent");
        // Two are as good as none.
        let parent = parents.next().filter(|_| parents.next().is_none());
        let parent = parent.and_then(|parent| valid(parent).map(|flags| (parent, flags)));
        let mut traceparent = *b"00-00000000000000000000000000000000-0000000000000000-01";
        match parent {
            Some((parent, is_sampled)) => {
                traceparent[TRACE].copy_from_slice(&parent[TRACE]);
                traceparent[FLAGS].copy_from_slice(if is_sampled { b"01" } else { b"00" });
            }
            None => {
                let trace = u128::from(random[0]) << 64 | u128::from(random[1]);
                write_hex(&mut traceparent[TRACE], trace.max(1));
                if random[1] & (ALL_56 - 1) >= sampled_56 {
                    traceparent[FLAGS].copy_from_slice(b"00");
                }
            }
        }
        write_hex(&mut traceparent[PARENT], u128::from(random[2].max(1)));
        TraceContext {
            traceparent,
            parent: parent.map(|(parent, _)| {
                let mut id = [0; 16];
                id.copy_from_slice(&parent[PARENT]);
                id
            }),
            keeps_request_id: is_trusted && request.values(b"x-request-id").next().is_some(),
        }
    }

    /// The ID of the trace: 32 hexadecimal digits.
    pub fn trace_id(&self) -> &[u8] {
        &self.traceparent[TRACE]
    }

    /// Whether there is to be a span of the request.
    pub fn is_sampled(&self) -> bool {
        self.traceparent[FLAGS] == *b"01"
    }

    /// The ID of the client's span, if the trace began before this server.
    pub fn parent_id(&self) -> Option<&[u8]> {
        self.parent.as_ref().map(<[u8; 16]>::as_slice)
    }

    /// The ID of the request, which is that of the server's span: 16 hexadecimal digits.
    pub fn request_id(&self) -> &[u8] {
        &self.traceparent[PARENT]
    }

    /// Whether a field of the client is left out, because the server writes it or it belongs to a trace
    /// that is not continued.
    pub(crate) fn replaces(&self, name: &[u8]) -> bool {
        is_same_field(b"traceparent", name)
            || self.parent.is_none() && is_same_field(b"tracestate", name)
            || !self.keeps_request_id && is_same_field(b"x-request-id", name)
    }

    /// The fields that the server writes.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let id = (!self.keeps_request_id).then_some((&b"X-Request-Id"[..], self.request_id()));
        [(&b"traceparent"[..], &self.traceparent[..])]
            .into_iter()
            .chain(id)
    }
}

/// Whether the trace is sampled, if the value is valid. Of a later version only the known part is read.
fn valid(parent: &[u8]) -> Option<bool> {
    let is_hex = |range| {
        let digits: &[u8] = parent.get(range)?;
        let are_valid = digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        are_valid.then_some(digits)
    };
    let version = is_hex(0..2)?;
    let is_zero = |digits: &[u8]| digits.iter().all(|digit| *digit == b'0');
    let has_dashes = [2, 35, 52].iter().all(|at| parent.get(*at) == Some(&b'-'));
    let has_end = match (version, parent.get(BYTES)) {
        (_, None) => true,
        (b"00", Some(_)) => false,
        (_, Some(next)) => *next == b'-',
    };
    if is_zero(is_hex(TRACE)?) || is_zero(is_hex(PARENT)?) || !has_dashes || !has_end {
        return None;
    }
    let flags = std::str::from_utf8(is_hex(FLAGS)?).ok()?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (version != b"ff").then_some(flags & 1 == 1)
}

fn write_hex(digits: &mut [u8], mut value: u128) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 0xf) as usize];
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use headway_http::{HeadLimits, Parsed};

    use super::*;

    const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

    /// The trace-related fields with which a request is passed on.
    fn passed(lines: &str, is_trusted: bool) -> Vec<(String, String)> {
        let bytes = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
        let limits = HeadLimits::default();
        let Parsed::Complete(head) = headway_http::parse(bytes.as_bytes(), &limits) else {
            panic!("{lines}");
        };
        let request = Request::new(&head, bytes.as_bytes());
        let trace = TraceContext::new(&request, is_trusted, [0xa, 0xb, 0xc], ALL_56);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = request.with_trace(Some(&trace));
        let fields = fields.fields().filter(|(name, _)| *name != b"Host");
        fields
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    const NEW: &str = "00-000000000000000a000000000000000b-000000000000000c-01";

    #[test]
    fn valid_traceparent_is_continued_with_another_span() {
        let state = "tracestate: a=1\r\n";
        for (received, flags) in [
            (format!("00-{TRACE_ID}-b7ad6b7169203331-01"), "01"),
            (format!("00-{TRACE_ID}-b7ad6b7169203331-00"), "00"),
            (format!("00-{TRACE_ID}-b7ad6b7169203331-03"), "01"),
            (format!("cc-{TRACE_ID}-b7ad6b7169203331-01-more"), "01"),
        ] {
            let fields = passed(&format!("Traceparent: {received}\r\n{state}"), false);
            let expected = [
                ("tracestate", "a=1".to_owned()),
                (
                    "traceparent",
                    format!("00-{TRACE_ID}-000000000000000c-{flags}"),
                ),
                ("X-Request-Id", "000000000000000c".to_owned()),
            ];
            let expected = expected.map(|(name, value)| (name.to_owned(), value));
            assert_eq!(fields, expected, "{received}");
        }
    }

    #[test]
    fn trace_begins_when_there_is_no_valid_traceparent() {
        let zeros = "0".repeat(32);
        let upper = TRACE_ID.to_uppercase();
        for received in [
            "".to_owned(),
            "traceparent: \r\n".to_owned(),
            format!("traceparent: 00-{TRACE_ID}-b7ad6b7169203331-01-x\r\n"),
            format!("traceparent: 00-{TRACE_ID}-b7ad6b7169203331-0\r\n"),
            format!("traceparent: ff-{TRACE_ID}-b7ad6b7169203331-01\r\n"),
            format!("traceparent: 00-{zeros}-b7ad6b7169203331-01\r\n"),
            format!("traceparent: 00-{TRACE_ID}-0000000000000000-01\r\n"),
            format!("traceparent: 00-{upper}-b7ad6b7169203331-01\r\n"),
            format!("traceparent: 00-{TRACE_ID}_b7ad6b7169203331-01\r\n"),
            format!("traceparent: cc-{TRACE_ID}-b7ad6b7169203331-01x\r\n"),
            format!("traceparent: 00-{TRACE_ID}-b7ad6b7169203331-01\r\n").repeat(2),
        ] {
            let fields = passed(&format!("{received}tracestate: a=1\r\n"), false);
            let expected = [("traceparent", NEW), ("X-Request-Id", "000000000000000c")];
            let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(fields, expected, "{received}");
        }
    }

    #[test]
    fn new_traces_are_sampled_by_their_id_and_continued_ones_as_the_client_says() {
        let context = |lines: &str, random: u64, sampled_56: u64| {
            let bytes = format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
            let Parsed::Complete(head) =
                headway_http::parse(bytes.as_bytes(), &HeadLimits::default())
            else {
                panic!("{lines}");
            };
            let request = Request::new(&head, bytes.as_bytes());
            TraceContext::new(&request, false, [1, random, 3], sampled_56)
        };
        for (random, sampled_56, expected) in [
            (0, 1, true),
            (1, 1, false),
            (0, 0, false),
            (u64::MAX, ALL_56, true),
            (0xff << 56 | 5, 6, true),
            (u64::MAX, ALL_56 - 1, false),
        ] {
            let trace = context("", random, sampled_56);
            assert_eq!((trace.is_sampled(), trace.parent_id()), (expected, None));
        }
        for (flags, expected) in [("01", true), ("00", false)] {
            let lines = format!("traceparent: 00-{TRACE_ID}-b7ad6b7169203331-{flags}\r\n");
            let trace = context(&lines, 0, ALL_56 / 2);
            assert_eq!(trace.is_sampled(), expected);
            assert_eq!(trace.parent_id(), Some(&b"b7ad6b7169203331"[..]));
        }
    }

    #[test]
    fn request_id_of_a_trusted_proxy_stays_and_that_of_a_client_does_not() {
        for (is_trusted, expected) in [(true, "mine"), (false, "000000000000000c")] {
            let fields = passed("X-Request-Id: mine\r\nX_Request_Id: other\r\n", is_trusted);
            let ids = fields.iter().filter(|(name, _)| name == "X-Request-Id");
            let ids: Vec<&str> = ids.map(|(_, value)| value.as_str()).collect();
            assert_eq!(ids, [expected]);
        }
    }
}
