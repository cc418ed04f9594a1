//! A request as a value: its header, parsed once, and what has been decided about it.
//!
//! The connection owns its request from the last byte of the header to the last byte of the
//! response. While something is awaited it lies in the connection's phase. Values are recycled
//! ([`Requests`]), so an ordinary request allocates nothing.

use std::cell::Cell;
use std::rc::Rc;

use headway_files::RootId;
use headway_gateway::upstream::Address;
use headway_gateway::{FieldList, TraceContext};
use headway_http::{Head, OwnedHead};
use headway_metrics::{HandlerLabel, MethodLabel};

use crate::Charge;

/// The most requests kept for reuse.
const RECYCLED_MAX: usize = 64;
/// A longer header is not kept for reuse, since it would occupy its memory for good.
const RECYCLED_HEAD_BYTES_MAX: usize = 4096;
/// The most bytes of a malformed request's first line that are kept: more than the log shows, so that
/// it can say that something is missing.
const FIRST_LINE_BYTES_MAX: usize = 2049;

/// A request in progress.
pub struct Request {
    /// The header; without bytes if the request could not be parsed.
    pub head: OwnedHead,
    /// The first line, cut, if the request could not be parsed; for the log.
    pub first_line: Box<[u8]>,
    /// Why the request is malformed; for the log.
    pub reject_reason: Option<&'static str>,
    /// The method, for the metrics.
    pub method: MethodLabel,
    /// Whether the response must not have a body.
    pub head_only: bool,
    /// The virtual host.
    pub virtual_host: RootId,
    /// When its first byte was there, in microseconds of the loop's clock.
    pub started_us: u64,
    /// What answers it, for the metrics.
    pub handler: HandlerLabel,
    /// The upstream that answers it, or was tried last; for the log.
    pub upstream: Option<Address>,
    /// Its trace and its ID, with `trace-context`.
    pub trace: Option<TraceContext>,
    /// Whether the body has been read.
    pub body_read: bool,
    /// The body, if it is received before the request is answered.
    pub body: Vec<u8>,
    /// Accounts for the body until it is dropped.
    pub body_charge: Option<Charge>,
    /// A helper has already worked for the request, so its next job is accepted even if the queue
    /// is full.
    pub had_helper: bool,
    /// Its name was looked up again because the open file was stale.
    pub was_stale: bool,
    /// The path of the file that is served in place of the requested one, which does not exist.
    other_path: Option<Box<[u8]>>,
    /// How many internal redirects the request has had.
    pub redirects: u8,
    /// The version of the root in which something was missing when a helper last had to find out where the
    /// root is now.
    pub awaited_root: Cell<Option<u32>>,
    /// The headers that the handler sent with its last internal redirect.
    pub accel_fields: Option<Rc<FieldList>>,
    /// The chunk last requested from a helper and the number of requests for it in a row. Memory
    /// pressure may evict a chunk before it can be sent.
    helper_requests: (u64, u8),
}

impl Request {
    /// Makes this value the request whose header was parsed from the start of `received`.
    fn begin(&mut self, parsed: &Head<'_>, received: &[u8], host: RootId) {
        self.head.copy_from(parsed, received);
        self.method = parsed.method.into();
        self.head_only = parsed.method == headway_http::Method::Head;
        self.virtual_host = host;
        (self.handler, self.redirects) = (HandlerLabel::None, 0);
        (self.first_line, self.reject_reason) = (Box::default(), None);
        (self.other_path, self.trace, self.upstream) = (None, None, None);
        (self.body_read, self.had_helper, self.was_stale) = (false, false, false);
        self.awaited_root.set(None);
        self.helper_requests = (0, 0);
    }

    /// A request that could not be parsed, of which `received` has come since `started_us`.
    pub fn unparsed(received: &[u8], started_us: u64) -> Self {
        let line = received.strip_prefix(b"\r\n").unwrap_or(received);
        let end = memchr::memchr2(b'\r', b'\n', line).unwrap_or(line.len());
        Self {
            first_line: line[..end.min(FIRST_LINE_BYTES_MAX)].into(),
            method: MethodLabel::from_request_line(received),
            head_only: line.starts_with(b"HEAD "),
            started_us,
            ..Self::empty()
        }
    }

    fn empty() -> Self {
        Self {
            head: OwnedHead::default(),
            first_line: Box::default(),
            reject_reason: None,
            method: MethodLabel::Other,
            head_only: false,
            virtual_host: RootId(0),
            started_us: 0,
            handler: HandlerLabel::None,
            upstream: None,
            trace: None,
            body_read: false,
            body: Vec::new(),
            body_charge: None,
            had_helper: false,
            was_stale: false,
            awaited_root: Cell::new(None),
            other_path: None,
            redirects: 0,
            accel_fields: None,
            helper_requests: (0, 0),
        }
    }

    /// Whether the request has a valid header.
    pub fn is_parsed(&self) -> bool {
        !self.head.bytes().is_empty()
    }

    /// The path of the file in its normal form, without the leading slash; empty if there is none.
    pub fn path(&self) -> &[u8] {
        match &self.other_path {
            Some(other) => other,
            None => self.head.path_bytes(),
        }
    }

    /// Has the file of the requested path be served.
    pub fn serve_requested(&mut self) {
        self.other_path = None;
    }

    /// Whether the file of another path is served.
    pub fn is_substituted(&self) -> bool {
        self.other_path.is_some()
    }

    /// Has the file of this path be served in place of the requested one.
    pub fn serve_instead(&mut self, path: Vec<u8>) {
        self.other_path = Some(path.into());
    }

    /// The target as received: the part between the first and the last space of the request line.
    pub fn target(&self) -> &[u8] {
        let line = self.head.request_line();
        let first = line
            .iter()
            .position(|&byte| byte == b' ')
            .map_or(0, |at| at + 1);
        let last = line
            .iter()
            .rposition(|&byte| byte == b' ')
            .unwrap_or(line.len());
        line.get(first..last).unwrap_or_default()
    }

    /// Counts a request for the chunk at `offset` and returns the number in a row.
    pub fn count_helper_request(&mut self, offset: u64) -> u8 {
        let (last, times) = self.helper_requests;
        let times = if last == offset {
            times.saturating_add(1)
        } else {
            1
        };
        self.helper_requests = (offset, times);
        times
    }

    /// Forgets the requests for chunks, because what follows is another file.
    pub fn forget_chunk_requests(&mut self) {
        self.helper_requests = (0, 0);
    }

    /// The offset of the chunk that was last requested from a helper.
    pub fn requested_offset(&self) -> u64 {
        self.helper_requests.0
    }
}

/// Makes requests, and keeps some that are done so that their memory is used again.
#[derive(Default)]
pub struct Requests {
    // Boxed on purpose: a phase owns the box, so taking one from here moves a pointer.
    #[expect(clippy::vec_box, reason = "the boxes are what is reused")]
    recycled: Vec<Box<Request>>,
}

impl Requests {
    /// The request whose header was parsed from the start of `received`.
    pub fn make(&mut self, parsed: &Head<'_>, received: &[u8], host: RootId) -> Box<Request> {
        let recycled = self.recycled.pop();
        let mut request = recycled.unwrap_or_else(|| Box::new(Request::empty()));
        request.begin(parsed, received, host);
        request
    }

    /// Takes back a request whose response is complete.
    pub fn recycle(&mut self, mut request: Box<Request>) {
        (request.body, request.accel_fields) = (Vec::new(), None);
        request.body_charge = None;
        let is_small = request.head.bytes().len() <= RECYCLED_HEAD_BYTES_MAX;
        if is_small && self.recycled.len() < RECYCLED_MAX {
            self.recycled.push(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use headway_http::{HeadLimits, Parsed};

    use super::*;

    fn request(requests: &mut Requests, text: &str) -> Box<Request> {
        let limits = HeadLimits::default();
        let Parsed::Complete(head) = headway_http::parse(text.as_bytes(), &limits) else {
            panic!("{text}");
        };
        requests.make(&head, text.as_bytes(), RootId(2))
    }

    #[test]
    fn recycled_request_keeps_nothing_of_the_one_before() {
        let mut requests = Requests::default();
        let mut first = request(&mut requests, "HEAD /a?b HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(first.target(), b"/a?b");
        first.body.push(1);
        first.count_helper_request(7);
        first.serve_instead(b"other".to_vec());
        assert_eq!(first.path(), b"other");
        (first.had_helper, first.body_read, first.redirects) = (true, true, 3);
        requests.recycle(first);
        let second = request(&mut requests, "GET / HTTP/1.1\r\nHost: y\r\n\r\n");
        assert_eq!((second.target(), second.body.len()), (&b"/"[..], 0));
        assert_eq!(second.path(), b"");
        assert!(!(second.had_helper || second.body_read || second.head_only));
        assert_eq!((second.redirects, second.requested_offset()), (0, 0));
        assert!(requests.recycled.is_empty());
    }

    #[test]
    fn recycled_requests_are_limited_in_number_and_size() {
        let mut requests = Requests::default();
        let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(5000));
        let long = request(&mut requests, &long);
        requests.recycle(long);
        assert!(requests.recycled.is_empty());
        for _ in 0..2 * RECYCLED_MAX {
            let one = Box::new(Request::unparsed(b"GET", 0));
            requests.recycle(one);
        }
        assert_eq!(requests.recycled.len(), RECYCLED_MAX);
    }

    #[test]
    fn unparsed_request_to_head_has_no_body() {
        for (received, expected) in [("HEAD /", true), ("\r\nHEAD /", true), ("HEADS /", false)] {
            let request = Request::unparsed(received.as_bytes(), 0);
            assert_eq!(request.head_only, expected, "{received:?}");
            assert!(!request.is_parsed() && request.target().is_empty());
        }
    }

    #[test]
    fn unparsed_request_has_its_first_line_cut() {
        let first_line = |received: &[u8]| Request::unparsed(received, 0).first_line;
        assert_eq!(
            *first_line(b"\r\nGET /\x01 HTTP/1.1\r\nA: b"),
            *b"GET /\x01 HTTP/1.1"
        );
        assert_eq!(*first_line(b"GET / HTTP/1.1\nA: b"), *b"GET / HTTP/1.1");
        assert_eq!(first_line(&[b'a'; 9000]).len(), FIRST_LINE_BYTES_MAX);
    }
}
