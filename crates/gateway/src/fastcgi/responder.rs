//! The application's side of a FastCGI connection: parses requests from bytes.
//!
//! A [`Responder`] returns a request when it is complete, with variables and body. Answers to
//! management records are collected in [`Responder::take_unsent`]: capabilities (GET_VALUES), and
//! rejections of multiplexing and of other roles. A response is
//! [`write_stream`](super::write_stream) of standard output, then [`write_end`].
//!
//! Memory is bounded: variables by [`VARIABLES_BYTES_MAX`], the body by the caller's limit. Records
//! of a request that is not in progress are skipped, as the specification asks; contradictory
//! records end the connection.
//!
//! Source: FastCGI Specification, sections 3 to 6.

use super::get_values::{read_pair, write_pair};
use super::record::{Fragment, InvalidRecord, RecordKind, RecordReader, write_record};
use crate::cgi::Variables;

/// Most bytes of a request's variables; the head they come from is much shorter.
pub const VARIABLES_BYTES_MAX: usize = 256 * 1024;

const RESPONDER: u16 = 1;
const FLAG_KEEP_CONN: u8 = 1;
const BEGIN_BYTES: u16 = 8;

const COMPLETE: u8 = 0;
const NO_MULTIPLEXING: u8 = 1;
const UNKNOWN_ROLE: u8 = 3;

/// A complete request.
#[derive(Clone)]
pub struct ResponderRequest {
    /// The ID on this connection.
    pub id: u16,
    /// The connection stays open after the response.
    pub keep: bool,
    /// The variables. Names that an environment cannot hold are left out.
    pub variables: Variables,
    /// The body, as much of it as is kept.
    pub body: Vec<u8>,
    /// Length of the whole body.
    pub body_bytes: u64,
}

/// A request that is arriving.
struct PartialRequest {
    id: u16,
    keep: bool,
    variables: Vec<u8>,
    variables_ended: bool,
    body: Vec<u8>,
    body_bytes: u64,
}

/// Parses one connection of a web server.
///
/// ```
/// use headway_gateway::cgi::Variables;
/// use headway_gateway::fastcgi::{FastCgiCodec, RecordKind, Responder, write_end, write_stream};
/// use headway_gateway::{ResponseEvent, Codec, HeadLimits};
///
/// let mut variables = Variables::default();
/// variables.add(b"REQUEST_METHOD", b"GET");
/// let mut server = FastCgiCodec::new(&variables, true, &HeadLimits::default(), false);
/// server.end_body(&headway_gateway::FieldList::default());
///
/// let mut application = Responder::new(1024);
/// let request = application.feed(&mut server.unsent())?.expect("a whole request");
/// assert_eq!(request.variables.get(b"REQUEST_METHOD"), Some(&b"GET"[..]));
///
/// let mut response = Vec::new();
/// write_stream(&mut response, RecordKind::STDOUT, request.id, b"Content-Type: text/plain\n\nhello");
/// write_end(&mut response, request.id, 0);
/// assert!(matches!(server.feed(&mut &response[..]), Ok(Some(ResponseEvent::Head(_)))));
/// # Ok::<(), headway_gateway::fastcgi::InvalidRecord>(())
/// ```
pub struct Responder {
    records: RecordReader,
    /// The part of a short record that has arrived.
    whole: Vec<u8>,
    arriving: Option<PartialRequest>,
    owed: Vec<u8>,
    body_bytes_max: usize,
}

impl Responder {
    /// A responder at the start of a connection. The part of a body beyond the limit is counted and
    /// discarded.
    pub fn new(body_bytes_max: usize) -> Responder {
        Responder {
            records: RecordReader::default(),
            whole: Vec::new(),
            arriving: None,
            owed: Vec::new(),
            body_bytes_max,
        }
    }

    /// The next complete request; `None` if more bytes are needed. Send what is
    /// [owed](Responder::owed) in either case.
    ///
    /// # Errors
    /// When the bytes are not valid FastCGI or contradict themselves. The connection must be
    /// closed.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<ResponderRequest>, InvalidRecord> {
        while let Some(fragment) = self.records.next(input)? {
            let used = fragment.content.len();
            let request = self.take(&fragment)?;
            if used > 0 {
                self.records.take(input, used);
            }
            if request.is_some() {
                return Ok(request);
            }
        }
        Ok(None)
    }

    /// Takes the bytes to send besides responses.
    pub fn take_unsent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.owed)
    }

    fn take(&mut self, fragment: &Fragment<'_>) -> Result<Option<ResponderRequest>, InvalidRecord> {
        let of_no_request = fragment.id == 0;
        match fragment.kind {
            _ if of_no_request => self.manage(fragment),
            RecordKind::BEGIN_REQUEST => self.begin(fragment)?,
            RecordKind::PARAMS => self.take_variables(fragment)?,
            RecordKind::STDIN => return self.take_body(fragment),
            RecordKind::ABORT_REQUEST => self.abort(fragment.id),
            // A stream of another role: such a request is never started here.
            RecordKind::DATA => {}
            RecordKind(kind) => return Err(InvalidRecord::Kind { kind }),
        }
        Ok(None)
    }

    /// The whole content of a short record, once it has arrived.
    fn complete(&mut self, fragment: &Fragment<'_>) -> Option<Vec<u8>> {
        self.whole.extend_from_slice(fragment.content);
        let is_complete = self.whole.len() == usize::from(fragment.record_bytes);
        is_complete.then(|| std::mem::take(&mut self.whole))
    }

    /// Handles a management record. An unknown type is answered with UNKNOWN_TYPE.
    fn manage(&mut self, fragment: &Fragment<'_>) {
        let Some(content) = self.complete(fragment) else {
            return;
        };
        if fragment.kind != RecordKind::GET_VALUES {
            let unknown = [fragment.kind.0, 0, 0, 0, 0, 0, 0, 0];
            return write_record(&mut self.owed, RecordKind::UNKNOWN_TYPE, 0, &unknown);
        }
        let (mut rest, mut values) = (&content[..], Vec::new());
        while let Ok((name, _)) = read_pair(&mut rest) {
            // The number of connections and requests depends on the program that uses this, so it
            // is not reported.
            if name == b"FCGI_MPXS_CONNS" {
                write_pair(&mut values, name, b"0");
            }
        }
        write_record(&mut self.owed, RecordKind::GET_VALUES_RESULT, 0, &values);
    }

    fn begin(&mut self, fragment: &Fragment<'_>) -> Result<(), InvalidRecord> {
        if fragment.record_bytes != BEGIN_BYTES {
            let (kind, bytes) = (fragment.kind.0, fragment.record_bytes);
            return Err(InvalidRecord::Length { kind, bytes });
        }
        let Some(content) = self.complete(fragment) else {
            return Ok(());
        };
        let role = u16::from_be_bytes([content[0], content[1]]);
        match &self.arriving {
            Some(arriving) if arriving.id == fragment.id => {
                let kind = fragment.kind.0;
                return Err(InvalidRecord::Kind { kind });
            }
            Some(_) => end(&mut self.owed, fragment.id, 0, NO_MULTIPLEXING),
            None if role != RESPONDER => end(&mut self.owed, fragment.id, 0, UNKNOWN_ROLE),
            None => {
                self.arriving = Some(PartialRequest {
                    id: fragment.id,
                    keep: content[2] & FLAG_KEEP_CONN != 0,
                    variables: Vec::new(),
                    variables_ended: false,
                    body: Vec::new(),
                    body_bytes: 0,
                });
            }
        }
        Ok(())
    }

    /// The request that a record belongs to, if it is in progress.
    fn request_of(&mut self, fragment: &Fragment<'_>) -> Option<&mut PartialRequest> {
        self.arriving
            .as_mut()
            .filter(|arriving| arriving.id == fragment.id)
    }

    fn take_variables(&mut self, fragment: &Fragment<'_>) -> Result<(), InvalidRecord> {
        let Some(arriving) = self.request_of(fragment) else {
            return Ok(());
        };
        if arriving.variables_ended {
            let kind = fragment.kind.0;
            return Err(InvalidRecord::Kind { kind });
        }
        arriving.variables_ended = fragment.record_bytes == 0;
        arriving.variables.extend_from_slice(fragment.content);
        match arriving.variables.len() > VARIABLES_BYTES_MAX {
            true => Err(InvalidRecord::Variables),
            false => Ok(()),
        }
    }

    fn take_body(
        &mut self,
        fragment: &Fragment<'_>,
    ) -> Result<Option<ResponderRequest>, InvalidRecord> {
        let body_bytes_max = self.body_bytes_max;
        let Some(arriving) = self.request_of(fragment) else {
            return Ok(None);
        };
        if !arriving.variables_ended {
            let kind = fragment.kind.0;
            return Err(InvalidRecord::Kind { kind });
        }
        if fragment.record_bytes > 0 {
            let room = body_bytes_max - arriving.body.len();
            let kept = &fragment.content[..fragment.content.len().min(room)];
            arriving.body.extend_from_slice(kept);
            arriving.body_bytes += fragment.content.len() as u64;
            return Ok(None);
        }
        self.arriving
            .take()
            .map(PartialRequest::request)
            .transpose()
    }

    /// The web server cancels the request. The specification requires an END_REQUEST all the same.
    fn abort(&mut self, id: u16) {
        if self
            .arriving
            .take_if(|arriving| arriving.id == id)
            .is_some()
        {
            end(&mut self.owed, id, 0, COMPLETE);
        }
    }
}

impl PartialRequest {
    fn request(self) -> Result<ResponderRequest, InvalidRecord> {
        let (mut rest, mut variables) = (&self.variables[..], Variables::default());
        while !rest.is_empty() {
            let (name, value) = read_pair(&mut rest)?;
            variables.add(name, value);
        }
        Ok(ResponderRequest {
            id: self.id,
            keep: self.keep,
            variables,
            body: self.body,
            body_bytes: self.body_bytes,
        })
    }
}

/// Appends the end of a response: the end of standard output, and END_REQUEST with the exit status.
pub fn write_end(out: &mut Vec<u8>, id: u16, exit_status: u32) {
    write_record(out, RecordKind::STDOUT, id, b"");
    end(out, id, exit_status, COMPLETE);
}

fn end(out: &mut Vec<u8>, id: u16, exit_status: u32, protocol_status: u8) {
    let [a, b, c, d] = exit_status.to_be_bytes();
    let content = [a, b, c, d, protocol_status, 0, 0, 0];
    write_record(out, RecordKind::END_REQUEST, id, &content);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, CodecError};
    use crate::fastcgi::{FastCgiCodec, GetValues, write_stream};
    use crate::response::{HeadLimits, ResponseEvent};

    fn begin(id: u16, role: u8, flags: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let content = [0, role, flags, 0, 0, 0, 0, 0];
        write_record(&mut bytes, RecordKind::BEGIN_REQUEST, id, &content);
        bytes
    }

    fn record(kind: RecordKind, id: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_record(&mut bytes, kind, id, content);
        bytes
    }

    /// A request with one variable and this body, as a web server sends it.
    fn request(body: &[u8]) -> Vec<u8> {
        let mut variables = Variables::default();
        variables.add(b"REQUEST_METHOD", b"POST");
        let mut server = FastCgiCodec::new(&variables, true, &HeadLimits::default(), false);
        let mut bytes = server.unsent().to_vec();
        server.sent(bytes.len());
        write_stream(&mut bytes, RecordKind::STDIN, 1, body);
        bytes.extend(record(RecordKind::STDIN, 1, b""));
        bytes
    }

    #[test]
    fn responder_parses_requests_however_they_are_split() {
        let bytes = [request(b"hello"), request(b"")].concat();
        for piece_bytes in [1, 3, 8, 64, 4096] {
            let mut responder = Responder::new(100);
            let mut found = Vec::new();
            for piece in bytes.chunks(piece_bytes) {
                let mut input = piece;
                while let Some(request) = responder.feed(&mut input).expect("records") {
                    found.push(request);
                }
                assert!(input.is_empty());
            }
            let bodies: Vec<&[u8]> = found.iter().map(|request| &request.body[..]).collect();
            assert_eq!(bodies, [&b"hello"[..], b""], "{piece_bytes}");
            assert!(found.iter().all(|request| request.keep && request.id == 1));
            let method = found[0].variables.get(b"REQUEST_METHOD");
            assert_eq!(method, Some(&b"POST"[..]));
            assert_eq!(responder.take_unsent(), b"");
        }
    }

    #[test]
    fn responder_counts_but_drops_a_body_above_the_limit() {
        let mut responder = Responder::new(10);
        let bytes = request(&[b'x'; 70_000]);
        let request = responder.feed(&mut &bytes[..]).expect("records");
        let request = request.expect("a request");
        assert_eq!((request.body.len(), request.body_bytes), (10, 70_000));
    }

    #[test]
    fn responder_rejects_unsupported_roles_and_multiplexing() {
        let owed_after = |more: Vec<u8>| {
            let mut responder = Responder::new(10);
            let bytes = [begin(1, 1, 0), more].concat();
            let request = responder.feed(&mut &bytes[..]).expect("records");
            assert!(request.is_none());
            responder.take_unsent()
        };
        let ended =
            |id, status| record(RecordKind::END_REQUEST, id, &[0, 0, 0, 0, status, 0, 0, 0]);
        assert_eq!(owed_after(begin(2, 1, 0)), ended(2, NO_MULTIPLEXING));
        assert_eq!(
            owed_after(record(RecordKind::STDIN, 7, b"unknown request")),
            b""
        );
        let aborted = owed_after(record(RecordKind::ABORT_REQUEST, 1, b""));
        assert_eq!(aborted, ended(1, COMPLETE));
        let unknown = owed_after(record(RecordKind(77), 0, b"?"));
        let answer = record(RecordKind::UNKNOWN_TYPE, 0, &[77, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(unknown, answer);
        let mut responder = Responder::new(10);
        let request = responder.feed(&mut &begin(1, 2, 0)[..]).expect("a record");
        assert!(request.is_none());
        assert_eq!(responder.take_unsent(), ended(1, UNKNOWN_ROLE));
    }

    #[test]
    fn responder_answers_get_values() {
        let mut question = Vec::new();
        GetValues::write(&mut question);
        let mut responder = Responder::new(10);
        assert!(
            responder
                .feed(&mut &question[..])
                .expect("a record")
                .is_none()
        );
        let abilities = GetValues::default().feed(&mut &responder.take_unsent()[..]);
        let abilities = abilities.expect("an answer").expect("all of it");
        assert_eq!(abilities.multiplexes, Some(false));
        assert_eq!(abilities.requests_max, None);
    }

    #[test]
    fn responder_rejects_contradictory_records() {
        let wrong: [Vec<u8>; 6] = [
            b"GET / HTTP/1.1".to_vec(),
            [begin(1, 1, 0), begin(1, 1, 0)].concat(),
            record(RecordKind::BEGIN_REQUEST, 1, b"short"),
            [begin(1, 1, 0), record(RecordKind::STDIN, 1, b"")].concat(),
            record(RecordKind::STDOUT, 1, b"x"),
            // A pair that is longer than all of the variables.
            [
                begin(1, 1, 0),
                record(RecordKind::PARAMS, 1, &[9, 9, b'x']),
                record(RecordKind::PARAMS, 1, b""),
                record(RecordKind::STDIN, 1, b""),
            ]
            .concat(),
        ];
        for bytes in wrong {
            let fed = Responder::new(10).feed(&mut &bytes[..]);
            assert!(fed.is_err(), "{}", bytes.escape_ascii());
        }
        let mut long = begin(1, 1, 0);
        write_stream(
            &mut long,
            RecordKind::PARAMS,
            1,
            &vec![0; VARIABLES_BYTES_MAX + 1],
        );
        let fed = Responder::new(10).feed(&mut &long[..]);
        assert!(matches!(fed, Err(InvalidRecord::Variables)));
    }

    #[test]
    fn responder_response_with_an_exit_status_is_parsed() {
        let mut server =
            FastCgiCodec::new(&Variables::default(), true, &HeadLimits::default(), false);
        server.end_body(&crate::FieldList::default());
        server.sent(server.unsent().len());
        let mut response = Vec::new();
        write_stream(&mut response, RecordKind::STDOUT, 1, b"Status: 500 No\n\nx");
        write_end(&mut response, 1, 3);
        let mut input = &response[..];
        let mut ended = None;
        while let Some(event) = server.feed(&mut input).expect("a response") {
            if let ResponseEvent::End(end) = event {
                ended = Some((end.exit_status, end.reusable));
            }
        }
        assert_eq!(ended, Some((3, true)));
        let refused = record(
            RecordKind::END_REQUEST,
            1,
            &[0, 0, 0, 0, UNKNOWN_ROLE, 0, 0, 0],
        );
        let mut server =
            FastCgiCodec::new(&Variables::default(), true, &HeadLimits::default(), false);
        assert_eq!(server.feed(&mut &refused[..]), Err(CodecError::UnknownRole));
    }
}
