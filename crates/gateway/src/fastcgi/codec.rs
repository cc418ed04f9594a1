//! One request to a FastCGI application.
//!
//! Strict about: records of another request, record types that an application does not send,
//! anything after the end, an END_REQUEST with an unknown status. Tolerated, because applications
//! do it: a STDOUT stream that ends with END_REQUEST instead of an empty record, and a STDERR
//! stream that is never ended.
//!
//! Source: FastCGI Specification, sections 5 and 6.2.

use crate::cgi::{ResponseReader, Variables};
use crate::codec::{Codec, CodecError, Outbox};
use crate::fastcgi::abort::Aborted;
use crate::fastcgi::get_values::{pairs_bytes_max, write_pairs};
use crate::fastcgi::record::{
    Fragment, InvalidRecord, RecordKind, RecordReader, write_record, write_stream,
};
use crate::fields::FieldList;
use crate::response::{HeadLimits, ResponseEnd, ResponseEvent};

/// The only request ID in use: a connection has one request at a time.
pub(super) const ID: u16 = 1;
/// The role of an application that answers requests.
const RESPONDER: u8 = 1;
/// Flag: the application should keep the connection open.
const KEEP: u8 = 1;
/// Room for the headers, the padding and the records without content of a usual request.
const RECORDS_BYTES: usize = 64;
/// Length of an END_REQUEST body.
pub(super) const END_BYTES: usize = 8;

/// Codec of one request and its response.
///
/// ```
/// use headway_gateway::cgi::Variables;
/// use headway_gateway::fastcgi::{FastCgiCodec, RecordKind, write_record};
/// use headway_gateway::{ResponseEvent, Codec, HeadLimits};
///
/// let mut variables = Variables::default();
/// variables.add(b"SCRIPT_FILENAME", b"/srv/a.php");
/// let mut codec = FastCgiCodec::new(&variables, true, &HeadLimits::default(), false);
/// codec.end_body(&headway_gateway::FieldList::default());
/// codec.sent(codec.unsent().len());
///
/// let mut response = Vec::new();
/// write_record(&mut response, RecordKind::STDOUT, 1, b"Content-Type: text/plain\n\nhello");
/// write_record(&mut response, RecordKind::END_REQUEST, 1, &[0; 8]);
/// let mut input = &response[..];
/// assert!(matches!(codec.feed(&mut input), Ok(Some(ResponseEvent::Head(_)))));
/// assert_eq!(codec.feed(&mut input), Ok(Some(ResponseEvent::Body(b"hello"))));
/// assert!(matches!(codec.feed(&mut input), Ok(Some(ResponseEvent::End(end))) if end.reusable));
/// ```
///
/// If it is dropped in the middle, its connection can only be closed; [`Codec::abort`] may keep it
/// usable.
#[derive(Debug)]
pub struct FastCgiCodec {
    keep: bool,
    out: Outbox,
    body_ended: bool,
    records: RecordReader,
    response: ResponseReader,
    stdout_ended: bool,
    /// The part of END_REQUEST that has arrived.
    end: Vec<u8>,
    is_over: bool,
}

impl FastCgiCodec {
    /// A request with these variables, including CONTENT_LENGTH if a body follows. `keep`: the
    /// connection should be kept alive. `head_only`: the request is a HEAD.
    pub fn new(variables: &Variables, keep: bool, limits: &HeadLimits, head_only: bool) -> Self {
        let mut pairs = Vec::with_capacity(pairs_bytes_max(variables));
        write_pairs(&mut pairs, variables);
        let mut out = Outbox::with_room(pairs.len() + RECORDS_BYTES);
        let flags = if keep { KEEP } else { 0 };
        let begin = [0, RESPONDER, flags, 0, 0, 0, 0, 0];
        write_record(out.bytes(), RecordKind::BEGIN_REQUEST, ID, &begin);
        write_stream(out.bytes(), RecordKind::PARAMS, ID, &pairs);
        write_record(out.bytes(), RecordKind::PARAMS, ID, b"");
        FastCgiCodec {
            keep,
            out,
            body_ended: false,
            records: RecordReader::default(),
            response: ResponseReader::new(limits, head_only),
            stdout_ended: false,
            end: Vec::new(),
            is_over: false,
        }
    }

    fn check(&self, fragment: &Fragment<'_>) -> Result<(), InvalidRecord> {
        let (kind, bytes) = (fragment.kind.0, fragment.record_bytes);
        if fragment.id != ID {
            return Err(InvalidRecord::Request {
                found: fragment.id,
                expected: ID,
            });
        }
        match fragment.kind {
            RecordKind::STDOUT if self.stdout_ended => Err(InvalidRecord::Kind { kind }),
            RecordKind::STDOUT | RecordKind::STDERR => Ok(()),
            RecordKind::END_REQUEST if usize::from(bytes) == END_BYTES => Ok(()),
            RecordKind::END_REQUEST => Err(InvalidRecord::Length { kind, bytes }),
            _ => Err(InvalidRecord::Kind { kind }),
        }
    }

    /// Shows the next bytes of a record, and takes no more of them than one event needs.
    fn next_event<'i>(
        &mut self,
        fragment: &Fragment<'i>,
        input: &mut &'i [u8],
    ) -> Result<Option<ResponseEvent<'i>>, CodecError> {
        let mut rest = fragment.content;
        let event = match fragment.kind {
            RecordKind::STDOUT if rest.is_empty() => {
                self.stdout_ended = true;
                None
            }
            RecordKind::STDOUT => self.response.feed(&mut rest)?,
            RecordKind::STDERR => {
                let message = std::mem::take(&mut rest);
                (!message.is_empty()).then_some(ResponseEvent::Stderr(message))
            }
            _ => {
                self.end.extend_from_slice(std::mem::take(&mut rest));
                None
            }
        };
        let used = fragment.content.len() - rest.len();
        if used > 0 {
            self.records.take(input, used);
        }
        Ok(event)
    }

    /// Handles a complete END_REQUEST.
    fn finish_request(&mut self, input: &mut &[u8]) -> Result<ResponseEnd, CodecError> {
        self.is_over = true;
        let exit_status = u32::from_be_bytes([self.end[0], self.end[1], self.end[2], self.end[3]]);
        match self.end[4] {
            0 => {}
            1 => return Err(CodecError::NoMultiplexing),
            2 => return Err(CodecError::Overloaded),
            3 => return Err(CodecError::UnknownRole),
            status => return Err(InvalidRecord::ProtocolStatus { status }.into()),
        }
        let end = self.response.finish()?;
        // If the body was not read to its end, records in progress could not be told from those of
        // the next request.
        let is_clean = self.records.is_between(input) && input.is_empty();
        Ok(ResponseEnd {
            exit_status,
            reusable: self.keep && is_clean && self.body_ended && self.out.unsent().is_empty(),
            ..end
        })
    }
}

impl Codec for FastCgiCodec {
    fn unsent(&self) -> &[u8] {
        self.out.unsent()
    }

    fn sent(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    fn push_body(&mut self, bytes: &[u8]) -> usize {
        if self.body_ended {
            return 0;
        }
        let taken = self.out.fitting(bytes);
        write_stream(self.out.bytes(), RecordKind::STDIN, ID, taken);
        taken.len()
    }

    fn end_body(&mut self, _: &FieldList) {
        if !self.body_ended {
            self.body_ended = true;
            write_record(self.out.bytes(), RecordKind::STDIN, ID, b"");
        }
    }

    fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<ResponseEvent<'i>>, CodecError> {
        while !self.is_over {
            let Some(fragment) = self.records.next(input)? else {
                return Ok(None);
            };
            self.check(&fragment)?;
            let event = self.next_event(&fragment, input)?;
            if event.is_some() {
                return Ok(event);
            }
            if self.end.len() == END_BYTES {
                return self
                    .finish_request(input)
                    .map(|end| Some(ResponseEvent::End(end)));
            }
        }
        Ok(None)
    }

    /// A response whose STDOUT has ended is complete, even without END_REQUEST.
    fn finish(&mut self) -> Result<ResponseEnd, CodecError> {
        self.is_over = true;
        match self.stdout_ended || self.response.is_full() || !self.response.has_head() {
            true => Ok(self.response.finish()?),
            false => Err(CodecError::Closed),
        }
    }

    fn has_head(&self) -> bool {
        self.response.has_head()
    }

    fn abort(self: Box<Self>) -> Option<Aborted> {
        (self.keep && !self.is_over).then(|| Aborted::new(self.out, self.records, self.end))
    }
}
