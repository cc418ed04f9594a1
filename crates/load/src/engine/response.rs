//! One response, from its first byte to its last: what came, whether it is whole, and where it
//! ends.
//!
//! Fed with whatever a receive brought, in any pieces; nothing is kept but a head that is not
//! complete yet. Interim responses (1xx) are skipped. Refused, as [`Malformed`]: what is no HTTP/1
//! response, a head above [`HEADER_BYTES_MAX`], two lengths that differ, a length beside a transfer
//! coding (RFC 9112 section 6.3 calls it an attack), 101, and framing that does not add up.
//!
//! Sources: RFC 9110 section 15, RFC 9112 sections 4, 6 and 9.

use std::mem::MaybeUninit;

use headway_http::chunked::{ChunkedDrain, DrainLimits, DrainProgress};

use super::conversation::BodyReader;
use crate::checksum::Checksum;

mod stream;

/// Longer heads are no responses to a load generator.
pub(crate) const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Heads up to here are parsed whenever more has come, so that garbage is noticed at once.
const PARSED_ALWAYS_BYTES: usize = 4096;

const FIELDS_MAX: usize = 128;
const INTERIM_MAX: u8 = 16;

/// The bytes are no response, or not one we could find the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// How far a response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseProgress {
    /// All bytes were its own; more are to come.
    More,
    /// The response ended after this many of the bytes just fed.
    Done(usize),
}

/// Where in a response the next byte stands.
#[derive(Clone, Debug)]
enum ParseState {
    Head,
    /// A body of known length, with this many bytes missing.
    Length(u64),
    Chunked(ChunkedDrain),
    UntilClose,
    Ended,
}

/// A response as far as it has come.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    state: ParseState,
    /// A head that is not complete. Empty in the usual case: a head comes in one piece.
    head: Vec<u8>,
    /// 0 until the head is complete.
    pub status: u16,
    /// Received so far, without framing.
    pub body_bytes: u64,
    /// What the head promised, if it did.
    pub promised_bytes: Option<u64>,
    /// Whether the server keeps the connection open afterwards.
    pub keeps: bool,
    interim: u8,
    checksum: Option<Checksum>,
    /// A client reads every byte of the body, so that none may be discarded unread.
    pub has_reader: bool,
    /// Responses to `HEAD` end with their headers, whatever length these declare.
    pub without_body: bool,
}

impl Response {
    pub(super) fn new() -> Response {
        Response {
            state: ParseState::Head,
            head: Vec::new(),
            status: 0,
            body_bytes: 0,
            promised_bytes: None,
            keeps: false,
            interim: 0,
            checksum: None,
            has_reader: false,
            without_body: false,
        }
    }

    /// Ready for the next one. The memory of the head stays.
    pub(super) fn restart(&mut self, verify: bool) {
        self.state = ParseState::Head;
        self.head.clear();
        self.status = 0;
        self.body_bytes = 0;
        self.promised_bytes = None;
        self.keeps = false;
        self.interim = 0;
        self.checksum = verify.then(Checksum::new);
    }

    /// Parses the next bytes. `server` is filled with the first `Server` field that is seen.
    #[cfg(test)]
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        server: &mut Option<String>,
    ) -> Result<ResponseProgress, Malformed> {
        self.feed_with_reader(bytes, server, None)
    }

    /// Parses the next bytes and passes the body to a client. `server` is set to the first `Server`
    /// header.
    pub(super) fn feed_with_reader(
        &mut self,
        bytes: &[u8],
        server: &mut Option<String>,
        mut reader: BodyReader<'_>,
    ) -> Result<ResponseProgress, Malformed> {
        let mut at = 0;
        while matches!(self.state, ParseState::Head) {
            match self.feed_header(&bytes[at..], server, &mut reader)? {
                Some(consumed) => at += consumed,
                None => return Ok(ResponseProgress::More),
            }
        }
        Ok(match self.feed_body(&bytes[at..], &mut reader)? {
            ResponseProgress::More => ResponseProgress::More,
            ResponseProgress::Done(consumed) => ResponseProgress::Done(at + consumed),
        })
    }

    /// How many bytes of the body may be discarded unread: what is missing of a known length,
    /// unless a checksum is computed.
    pub(super) fn discardable_bytes(&self) -> Option<u64> {
        match self.state {
            ParseState::Length(missing) if self.checksum.is_none() && !self.has_reader => {
                Some(missing)
            }
            _ => None,
        }
    }

    /// Notes that bytes of the body were discarded, at most [`Response::discardable_bytes`].
    pub(super) fn discard(&mut self, bytes: u64) -> ResponseProgress {
        let ParseState::Length(missing) = &mut self.state else {
            return ResponseProgress::More;
        };
        *missing -= bytes;
        self.body_bytes += bytes;
        match missing {
            0 => self.end(0),
            _ => ResponseProgress::More,
        }
    }

    /// The server closed the connection: whether that was the response's end, and not too early.
    pub(super) fn close(&mut self) -> bool {
        matches!(self.state, ParseState::UntilClose)
    }

    /// Whether anything of it came.
    pub(super) fn begun(&self) -> bool {
        self.status != 0 || !self.head.is_empty() || self.interim > 0
    }

    /// The checksum of the body so far, if it was asked for.
    pub(super) fn checksum(&self) -> Option<u64> {
        self.checksum.as_ref().map(Checksum::value)
    }

    /// Consumes a head, or keeps what there is of it.
    fn feed_header(
        &mut self,
        bytes: &[u8],
        server: &mut Option<String>,
        reader: &mut BodyReader<'_>,
    ) -> Result<Option<usize>, Malformed> {
        if self.head.is_empty() {
            let consumed = self.parse_header(bytes, server, reader)?;
            if consumed.is_none() {
                self.head.extend_from_slice(bytes);
            }
            return self.bounded(consumed);
        }
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        // A long header that arrives byte by byte would be parsed once per byte; it ends with a
        // line.
        if before > PARSED_ALWAYS_BYTES && memchr::memchr(b'\n', bytes).is_none() {
            return self.bounded(None);
        }
        let head = std::mem::take(&mut self.head);
        let consumed = self.parse_header(&head, server, reader);
        self.head = head;
        let Some(consumed) = consumed? else {
            return self.bounded(None);
        };
        self.head.clear();
        Ok(Some(consumed - before))
    }

    fn bounded(&self, consumed: Option<usize>) -> Result<Option<usize>, Malformed> {
        match self.head.len() > HEADER_BYTES_MAX {
            true => Err(Malformed),
            false => Ok(consumed),
        }
    }

    /// Parses a complete header and returns its length.
    fn parse_header(
        &mut self,
        bytes: &[u8],
        server: &mut Option<String>,
        reader: &mut BodyReader<'_>,
    ) -> Result<Option<usize>, Malformed> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut head,
            bytes,
            &mut fields,
        );
        let length = match parsed {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed),
        };
        let status = head.code.ok_or(Malformed)?;
        match status {
            100 | 102..=199 if self.interim < INTERIM_MAX => self.interim += 1,
            200..=599 => {
                let facts = HeaderFacts::of(&head, server, reader)?;
                self.begin_body(status, &facts)?;
            }
            _ => return Err(Malformed),
        }
        Ok(Some(length))
    }

    /// RFC 9112 section 6.3.
    fn begin_body(&mut self, status: u16, facts: &HeaderFacts) -> Result<(), Malformed> {
        self.status = status;
        self.keeps = facts.keeps;
        if self.without_body {
            self.state = ParseState::Length(0);
            return Ok(());
        }
        self.state = match (status, facts.transfer, facts.length) {
            (204 | 304, ..) => ParseState::Length(0),
            (_, Transfer::None, Some(length)) => {
                self.promised_bytes = Some(length);
                ParseState::Length(length)
            }
            (_, Transfer::None, None) => ParseState::UntilClose,
            (_, _, Some(_)) => return Err(Malformed),
            (_, Transfer::Chunked, None) => ParseState::Chunked(ChunkedDrain::new(DrainLimits {
                body_bytes_max: u64::MAX,
                ..DrainLimits::default()
            })),
            (_, Transfer::Other, None) => ParseState::UntilClose,
        };
        self.keeps &= !matches!(self.state, ParseState::UntilClose);
        Ok(())
    }

    fn feed_body(
        &mut self,
        bytes: &[u8],
        reader: &mut BodyReader<'_>,
    ) -> Result<ResponseProgress, Malformed> {
        let (body_bytes, checksum) = (&mut self.body_bytes, &mut self.checksum);
        let mut take = |piece: &[u8]| {
            *body_bytes += piece.len() as u64;
            if let Some(checksum) = checksum {
                checksum.update(piece);
            }
            if let Some(client) = reader {
                client.body(piece);
            }
        };
        let consumed = match &mut self.state {
            ParseState::Length(missing) => {
                let length = (*missing).min(bytes.len() as u64);
                *missing -= length;
                take(&bytes[..length as usize]);
                (*missing == 0).then_some(length as usize)
            }
            ParseState::Chunked(drain) => match drain.feed_body(bytes, take) {
                DrainProgress::More => None,
                DrainProgress::Done(consumed) => Some(consumed),
                DrainProgress::Bad | DrainProgress::TooLarge => return Err(Malformed),
            },
            ParseState::UntilClose => {
                take(bytes);
                None
            }
            ParseState::Head | ParseState::Ended => return Err(Malformed),
        };
        Ok(consumed.map_or(ResponseProgress::More, |consumed| self.end(consumed)))
    }

    fn end(&mut self, consumed: usize) -> ResponseProgress {
        self.state = ParseState::Ended;
        ResponseProgress::Done(consumed)
    }
}

/// What the fields of a head say about its body and its connection.
struct HeaderFacts {
    length: Option<u64>,
    transfer: Transfer,
    keeps: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transfer {
    None,
    Chunked,
    /// Ends with the connection.
    Other,
}

impl HeaderFacts {
    fn of(
        head: &httparse::Response<'_, '_>,
        server: &mut Option<String>,
        reader: &mut BodyReader<'_>,
    ) -> Result<HeaderFacts, Malformed> {
        let mut facts = HeaderFacts {
            length: None,
            transfer: Transfer::None,
            keeps: head.version == Some(1),
        };
        for field in head.headers.iter() {
            if let Some(client) = reader {
                client.field(field.name, field.value);
            }
            // The length of the name sorts out nearly every field without a comparison.
            match field.name.len() {
                14 if field.name.eq_ignore_ascii_case("content-length") => {
                    facts.add_length(field.value)?;
                }
                17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                    facts.transfer = transfer(field.value);
                }
                10 if field.name.eq_ignore_ascii_case("connection") => {
                    facts.connection(field.value);
                }
                6 if server.is_none() && field.name.eq_ignore_ascii_case("server") => {
                    *server = Some(String::from_utf8_lossy(field.value).trim().to_owned());
                }
                _ => {}
            }
        }
        Ok(facts)
    }

    /// Two equal lengths are allowed, two different ones are not.
    fn add_length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        let digits = value.trim_ascii();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(Malformed);
        }
        let add =
            |length: u64, digit: &u8| length.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
        let length = digits.iter().try_fold(0, add).ok_or(Malformed)?;
        match self.length.replace(length) {
            Some(other) if other != length => Err(Malformed),
            _ => Ok(()),
        }
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.keeps = false;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keeps = true;
            }
        }
    }
}

/// Only the last coding frames the body.
fn transfer(value: &[u8]) -> Transfer {
    let last = value.rsplit(|&byte| byte == b',').next().unwrap_or(value);
    match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
        true => Transfer::Chunked,
        false => Transfer::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds in pieces of a length; the result, and the bytes consumed of all.
    fn feed(
        response: &mut Response,
        bytes: &[u8],
        piece: usize,
    ) -> Result<ResponseProgress, Malformed> {
        let mut before = 0;
        for piece in bytes.chunks(piece) {
            match response.feed(piece, &mut None)? {
                ResponseProgress::More => before += piece.len(),
                ResponseProgress::Done(consumed) => {
                    return Ok(ResponseProgress::Done(before + consumed));
                }
            }
        }
        Ok(ResponseProgress::More)
    }

    /// The result must not depend on how the bytes are split.
    fn fed(text: &str) -> (Result<ResponseProgress, Malformed>, Response) {
        let mut whole = Response::new();
        whole.restart(true);
        let result = feed(&mut whole, text.as_bytes(), text.len().max(1));
        for piece in 1..text.len() {
            let mut response = Response::new();
            response.restart(true);
            assert_eq!(
                feed(&mut response, text.as_bytes(), piece),
                result,
                "{piece}: {text:?}"
            );
            if result.is_ok() {
                assert_eq!(response.checksum(), whole.checksum(), "{piece}: {text:?}");
                assert_eq!(response.body_bytes, whole.body_bytes, "{piece}: {text:?}");
            }
        }
        (result, whole)
    }

    #[test]
    fn body_ends_at_its_length_when_more_follows() {
        let (result, response) = fed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellomore");
        assert_eq!(result, Ok(ResponseProgress::Done(43)));
        assert_eq!((response.status, response.body_bytes), (200, 5));
        assert_eq!(response.promised_bytes, Some(5));
        assert!(response.keeps);
        assert_eq!(response.checksum(), Some(crate::checksum::of(b"hello")));
    }

    #[test]
    fn body_ends_with_its_last_chunk_when_it_is_chunked() {
        let (result, response) = fed(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\nHTTP",
        );
        assert_eq!(result, Ok(ResponseProgress::Done(67)));
        assert_eq!((response.body_bytes, response.promised_bytes), (5, None));
        assert_eq!(response.checksum(), Some(crate::checksum::of(b"hello")));
    }

    #[test]
    fn body_ends_with_the_connection_when_nothing_else_frames_it() {
        for head in [
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        ] {
            let (result, mut response) = fed(&format!("{head}\r\nhello"));
            assert_eq!(result, Ok(ResponseProgress::More));
            assert!(response.close() && !response.keeps);
            assert_eq!(response.body_bytes, 5);
        }
    }

    #[test]
    fn interim_responses_are_skipped_when_they_come_first() {
        let (result, response) = fed(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
        );
        assert!(matches!(result, Ok(ResponseProgress::Done(_))));
        assert_eq!(response.status, 404);
        assert!(fed(&"HTTP/1.1 100 Continue\r\n\r\n".repeat(17)).0.is_err());
    }

    #[test]
    fn no_body_is_expected_when_the_status_has_none() {
        for status in [204, 304] {
            let (result, _) = fed(&format!(
                "HTTP/1.1 {status} X\r\nContent-Length: 10\r\n\r\n"
            ));
            assert!(matches!(result, Ok(ResponseProgress::Done(_))), "{status}");
        }
    }

    #[test]
    fn connection_is_keep_alive_only_when_version_and_header_agree() {
        let length = "Content-Length: 0\r\n";
        for (head, keeps) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n", false),
            ("HTTP/1.1 200 OK\r\nconnection: x, Close\r\n", false),
            ("HTTP/1.0 200 OK\r\n", false),
            ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", true),
        ] {
            assert_eq!(
                fed(&format!("{head}{length}\r\n")).1.keeps,
                keeps,
                "{head:?}"
            );
        }
    }

    #[test]
    fn bytes_are_malformed_when_they_are_not_a_response() {
        for text in [
            "SSH-2.0-OpenSSH_9.2\r\n",
            "\0\0\0\0\0\0\0\0\0\0",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 101 Switching\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        ] {
            assert_eq!(fed(text).0, Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn header_is_malformed_when_it_does_not_end() {
        let mut response = Response::new();
        let field = format!("X: {}\r\n", "y".repeat(1000));
        assert_eq!(
            response.feed(b"HTTP/1.1 200 OK\r\n", &mut None),
            Ok(ResponseProgress::More)
        );
        let results: Vec<_> = (0..100)
            .map(|_| response.feed(field.as_bytes(), &mut None))
            .collect();
        assert!(results.contains(&Err(Malformed)));
    }

    #[test]
    fn body_is_discarded_unread_when_its_length_is_known() {
        let mut response = Response::new();
        response.restart(false);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
        assert_eq!(response.feed(head, &mut None), Ok(ResponseProgress::More));
        assert_eq!(response.discardable_bytes(), Some(7));
        assert_eq!(response.discard(6), ResponseProgress::More);
        assert_eq!(response.discard(1), ResponseProgress::Done(0));
        assert_eq!(response.body_bytes, 10);
        response.restart(true);
        assert_eq!(response.feed(head, &mut None), Ok(ResponseProgress::More));
        assert_eq!(response.discardable_bytes(), None);
    }

    /// Something like a response: lines, numbers and framing in any order.
    fn almost_a_response() -> impl Strategy<Value = String> {
        const PIECES: &[&str] = &[
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.0 404 No\r\n",
            "HTTP/1.1 100 Go\r\n\r\n",
            "HTTP/1.1 20",
            "Content-Length: 5\r\n",
            "Content-Length: x\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Connection: close\r\n",
            "\r\n",
            "\n",
            "5\r\n",
            "hello",
            "0\r\n\r\n",
            "\0",
            ":",
            "7f",
        ];
        proptest::collection::vec(proptest::sample::select(PIECES), 0..12)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn response_is_the_same_in_pieces_and_at_once(text in almost_a_response()) {
            let _ = fed(&text);
        }
    }

    #[test]
    fn server_header_is_that_of_the_first_response() {
        let mut server = None;
        let mut response = Response::new();
        for name in ["one/1.0", "two/2.0"] {
            response.restart(false);
            let text = format!("HTTP/1.1 200 OK\r\nServer: {name}\r\nContent-Length: 0\r\n\r\n");
            assert!(response.feed(text.as_bytes(), &mut server).is_ok());
        }
        assert_eq!(server.as_deref(), Some("one/1.0"));
    }
}
