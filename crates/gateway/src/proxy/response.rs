//! Parses the response head of an HTTP/1 upstream, and determines how its body ends.
//!
//! As strict as the server is with clients: if this server and the next recipient disagree about
//! the end of a response, one client can write another client's response. Rejected: a bare LF, a
//! folded line, control bytes, a Content-Length that is repeated, a list or not a number,
//! Content-Length with Transfer-Encoding, Transfer-Encoding in HTTP/1.0 or other than one
//! `chunked`, too many interim responses, an upgrade that was not requested. White space before a
//! colon is removed, as RFC 9112 section 5.1 demands of proxies.
//!
//! Sources: RFC 9112 sections 4, 5, 6.3, 9.3; RFC 9110 section 15.2.

use headway_http::elements;

use crate::fields::NamedFields;
use crate::header_lines::{BeforeColon, HeaderLines, LineEnding, control_byte, field};
use crate::invalid_response::{InvalidResponse, excerpt};
use crate::response::{HeadLimits, ResponseHead};

/// Most interim responses before the final one. An endless series of them is a broken upstream.
const INTERIM_MAX: u32 = 16;

/// The properties of the request that decide what the response means.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestInfo {
    /// HEAD: no response has a body.
    pub(super) head_only: bool,
    /// The request asked to open a WebSocket.
    pub(super) upgrades: bool,
}

/// How the end of the response's body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// There is no body.
    None,
    /// After this many bytes.
    Length(u64),
    /// The last chunk ends the body.
    Chunked,
    /// By the end of the connection.
    Close,
    /// Never: the connection has been upgraded.
    Upgrade,
}

/// The head of a final response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) response: ResponseHead,
    pub(super) ending: Ending,
    /// Whether the connection can be reused.
    pub(super) keep: bool,
}

/// Reads heads until one is final.
#[derive(Debug)]
pub(super) struct FinalHeadReader {
    limits: HeadLimits,
    request: RequestInfo,
    lines: HeaderLines,
    interim: u32,
    /// The head in progress, once its status line has come.
    head: Option<PartialHead>,
}

/// An incomplete head.
#[derive(Debug)]
struct PartialHead {
    response: ResponseHead,
    is_http_1_1: bool,
    fields: usize,
    transfer_encoding: Option<Vec<u8>>,
    close: bool,
    keep_alive: bool,
    websocket: bool,
    /// The fields that `Connection` names.
    named: NamedFields,
}

impl FinalHeadReader {
    pub(super) fn new(limits: &HeadLimits, request: RequestInfo) -> FinalHeadReader {
        FinalHeadReader {
            limits: *limits,
            request,
            lines: HeaderLines::new(LineEnding::CrLf, limits),
            interim: 0,
            head: None,
        }
    }

    /// The final head, once its empty line has come; `input` then starts with the body.
    pub(super) fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Head>, InvalidResponse> {
        while let Some((number, line)) = self.lines.next(input)? {
            match &mut self.head {
                None => self.head = Some(PartialHead::new(line)?),
                Some(_) if line.is_empty() => {
                    if let Some(draft) = self.head.take()
                        && let Some(head) = self.complete(draft)?
                    {
                        return Ok(Some(head));
                    }
                }
                Some(draft) => draft.take(number, line, self.limits.fields_max)?,
            }
        }
        Ok(None)
    }

    fn complete(&mut self, draft: PartialHead) -> Result<Option<Head>, InvalidResponse> {
        match draft.response.status {
            101 if self.request.upgrades && draft.websocket => {}
            101 => return Err(InvalidResponse::UnaskedUpgrade),
            100..200 if self.interim == INTERIM_MAX => return Err(InvalidResponse::TooManyInterim),
            100..200 => {
                self.interim += 1;
                self.lines = HeaderLines::new(LineEnding::CrLf, &self.limits);
                return Ok(None);
            }
            _ => {}
        }
        draft.end(self.request).map(Some)
    }

    /// The error if the connection ends inside the head.
    pub(super) fn cut(&self) -> InvalidResponse {
        self.lines.cut()
    }
}

impl PartialHead {
    /// Parses the status line. The reason phrase may be missing together with the space before it,
    /// which is not quite allowed but widely accepted.
    fn new(line: &[u8]) -> Result<PartialHead, InvalidResponse> {
        let refused = || InvalidResponse::NoStatusLine {
            text: excerpt(line),
        };
        if let Some(byte) = control_byte(line) {
            return Err(InvalidResponse::ControlByte { line: 1, byte });
        }
        // A minor version above 1 is treated as 1 (RFC 9110 section 2.5).
        let (is_http_1_1, rest) = match line.strip_prefix(b"HTTP/1.") {
            Some([b'0', b' ', rest @ ..]) => (false, rest),
            Some([b'1'..=b'9', b' ', rest @ ..]) => (true, rest),
            _ => return Err(refused()),
        };
        let (digits, reason) = rest.split_at_checked(3).ok_or_else(refused)?;
        let status = headway_http::decimal(digits)
            .filter(|status| (100..600).contains(status))
            .filter(|_| matches!(reason, [] | [b' ', ..]))
            .ok_or_else(refused)?;
        Ok(PartialHead {
            response: ResponseHead::new(status as u16, reason.trim_ascii()),
            is_http_1_1,
            fields: 0,
            transfer_encoding: None,
            close: false,
            keep_alive: false,
            websocket: false,
            named: NamedFields::default(),
        })
    }

    fn take(&mut self, number: u32, line: &[u8], fields_max: usize) -> Result<(), InvalidResponse> {
        let (name, value) = field(number, line, BeforeColon::WhiteSpace)?;
        self.fields += 1;
        if self.fields > fields_max {
            return Err(InvalidResponse::TooManyFields { fields_max });
        }
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if is(b"transfer-encoding") {
            let list = self.transfer_encoding.get_or_insert_default();
            list.extend_from_slice(value);
            list.push(b',');
        } else if is(b"connection") {
            for option in elements(value) {
                self.close |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
            self.named.add(value);
        } else if is(b"upgrade") {
            self.websocket |= value.eq_ignore_ascii_case(b"websocket");
        }
        self.response.take(name, value)
    }

    fn end(mut self, request: RequestInfo) -> Result<Head, InvalidResponse> {
        let ending = self.ending(request)?;
        if self.response.is_reset_content() {
            self.response.length = Some(0);
        }
        self.response.fields.remove_named(&self.named);
        // A 204 has no framing; if it has, a body may follow.
        let has_framing = self.transfer_encoding.is_some() || self.response.length > Some(0);
        let is_doubtful = self.response.status == 204 && has_framing;
        let stays = !self.close && (self.is_http_1_1 || self.keep_alive);
        Ok(Head {
            response: self.response,
            ending,
            keep: stays && !is_doubtful && !matches!(ending, Ending::Close | Ending::Upgrade),
        })
    }

    /// RFC 9112 section 6.3, with every ambiguous case rejected.
    fn ending(&self, request: RequestInfo) -> Result<Ending, InvalidResponse> {
        if let Some(list) = &self.transfer_encoding {
            if self.response.length.is_some() {
                return Err(InvalidResponse::LengthWithCoding);
            }
            let mut codings = elements(list);
            let is_chunked = codings
                .next()
                .is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
            if !self.is_http_1_1 || !is_chunked || codings.next().is_some() {
                return Err(InvalidResponse::BadValue {
                    name: "Transfer-Encoding",
                    text: excerpt(list.strip_suffix(b",").unwrap_or(list)),
                });
            }
        }
        Ok(match self.response.length {
            _ if self.response.status == 101 => Ending::Upgrade,
            _ if request.head_only || self.response.is_bodiless() => Ending::None,
            _ if self.transfer_encoding.is_some() => Ending::Chunked,
            Some(0) => Ending::None,
            Some(bytes) => Ending::Length(bytes),
            None => Ending::Close,
        })
    }
}
