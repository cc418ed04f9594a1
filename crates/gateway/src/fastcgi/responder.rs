//! The application's side of a connection: requests out of its bytes.
//!
//! A [`Responder`] hands a request out when all of it is here, variables and body. What the web
//! server is owed besides a reply it keeps ready in [`Responder::owed`]: what the application can
//! do (GET_VALUES), and that it answers one request at a time on a connection and has no other
//! role. A reply is [`write_stream`](super::write_stream) of standard output, then [`write_end`].
//!
//! Bounded: variables by [`VARIABLES_BYTES_MAX`], and of a body no more is kept than was asked for.
//! Records of a request that is not under way are passed over, as the specification wants; what
//! contradicts itself ends the connection.
//!
//! Source: FastCGI Specification, sections 3 to 6.

use super::inquiry::{read_pair, write_pair};
use super::record::{Fragment, Garbage, Kind, RecordReader, write_record};
use crate::cgi::Variables;

/// Most bytes of a request's variables; the head that they come from is much shorter.
pub const VARIABLES_BYTES_MAX: usize = 256 * 1024;

const RESPONDER: u16 = 1;
const KEEP: u8 = 1;
const BEGIN_BYTES: u16 = 8;

const COMPLETE: u8 = 0;
const NO_MULTIPLEXING: u8 = 1;
const UNKNOWN_ROLE: u8 = 3;

/// A request, complete.
#[derive(Clone)]
pub struct Asked {
    /// Its number on this connection.
    pub id: u16,
    /// The connection stays after the reply.
    pub keep: bool,
    /// The request in variables. Names that no environment could hold are left out.
    pub variables: Variables,
    /// The body, as much of it as is kept.
    pub body: Vec<u8>,
    /// The length of all of the body.
    pub body_bytes: u64,
}

/// What has arrived of a request.
struct Arriving {
    id: u16,
    keep: bool,
    variables: Vec<u8>,
    variables_ended: bool,
    body: Vec<u8>,
    body_bytes: u64,
}

/// Reads one connection of a web server.
///
/// ```
/// use headway_gateway::cgi::Variables;
/// use headway_gateway::fastcgi::{FastCgiExchange, Kind, Responder, write_end, write_stream};
/// use headway_gateway::{Event, Exchange, HeadLimits};
///
/// let mut variables = Variables::default();
/// variables.add(b"REQUEST_METHOD", b"GET");
/// let mut server = FastCgiExchange::new(&variables, true, &HeadLimits::default(), false);
/// server.end_body();
///
/// let mut application = Responder::new(1024);
/// let asked = application.feed(&mut server.unsent())?.expect("a whole request");
/// assert_eq!(asked.variables.get(b"REQUEST_METHOD"), Some(&b"GET"[..]));
///
/// let mut reply = Vec::new();
/// write_stream(&mut reply, Kind::STDOUT, asked.id, b"Content-Type: text/plain\n\nhello");
/// write_end(&mut reply, asked.id, 0);
/// assert!(matches!(server.feed(&mut &reply[..]), Ok(Some(Event::Head(_)))));
/// # Ok::<(), headway_gateway::fastcgi::Garbage>(())
/// ```
pub struct Responder {
    records: RecordReader,
    /// What has arrived of a record that is of use only as a whole.
    whole: Vec<u8>,
    arriving: Option<Arriving>,
    owed: Vec<u8>,
    body_bytes_max: usize,
}

impl Responder {
    /// At the beginning of a connection. Of longer bodies the rest is counted and thrown away.
    pub fn new(body_bytes_max: usize) -> Responder {
        Responder {
            records: RecordReader::default(),
            whole: Vec::new(),
            arriving: None,
            owed: Vec::new(),
            body_bytes_max,
        }
    }

    /// The next request that is complete; `None` when more bytes are needed. Send what is
    /// [owed](Responder::owed) in either case.
    ///
    /// # Errors
    /// What is no FastCGI, or contradicts itself. The connection is of no more use.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Asked>, Garbage> {
        while let Some(fragment) = self.records.next(input)? {
            let used = fragment.content.len();
            let asked = self.take(&fragment)?;
            if used > 0 {
                self.records.take(input, used);
            }
            if asked.is_some() {
                return Ok(asked);
            }
        }
        Ok(None)
    }

    /// What is to be sent besides replies; it is not told twice.
    pub fn owed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.owed)
    }

    fn take(&mut self, fragment: &Fragment<'_>) -> Result<Option<Asked>, Garbage> {
        let of_no_request = fragment.id == 0;
        match fragment.kind {
            _ if of_no_request => self.manage(fragment),
            Kind::BEGIN_REQUEST => self.begin(fragment)?,
            Kind::PARAMS => self.take_variables(fragment)?,
            Kind::STDIN => return self.take_body(fragment),
            Kind::ABORT_REQUEST => self.abort(fragment.id),
            // Another role's stream: no request of it is ever begun here.
            Kind::DATA => {}
            Kind(kind) => return Err(Garbage::Kind { kind }),
        }
        Ok(None)
    }

    /// All of a short record, when it is here.
    fn complete(&mut self, fragment: &Fragment<'_>) -> Option<Vec<u8>> {
        self.whole.extend_from_slice(fragment.content);
        let is_complete = self.whole.len() == usize::from(fragment.record_bytes);
        is_complete.then(|| std::mem::take(&mut self.whole))
    }

    /// A record about the connection. One of a kind that is not known is answered so.
    fn manage(&mut self, fragment: &Fragment<'_>) {
        let Some(content) = self.complete(fragment) else {
            return;
        };
        if fragment.kind != Kind::GET_VALUES {
            let unknown = [fragment.kind.0, 0, 0, 0, 0, 0, 0, 0];
            return write_record(&mut self.owed, Kind::UNKNOWN_TYPE, 0, &unknown);
        }
        let (mut rest, mut values) = (&content[..], Vec::new());
        while let Ok((name, _)) = read_pair(&mut rest) {
            // How many connections and requests whoever runs this knows, and it may differ from one
            // to the other.
            if name == b"FCGI_MPXS_CONNS" {
                write_pair(&mut values, name, b"0");
            }
        }
        write_record(&mut self.owed, Kind::GET_VALUES_RESULT, 0, &values);
    }

    fn begin(&mut self, fragment: &Fragment<'_>) -> Result<(), Garbage> {
        if fragment.record_bytes != BEGIN_BYTES {
            let (kind, bytes) = (fragment.kind.0, fragment.record_bytes);
            return Err(Garbage::Length { kind, bytes });
        }
        let Some(content) = self.complete(fragment) else {
            return Ok(());
        };
        let role = u16::from_be_bytes([content[0], content[1]]);
        match &self.arriving {
            Some(arriving) if arriving.id == fragment.id => {
                let kind = fragment.kind.0;
                return Err(Garbage::Kind { kind });
            }
            Some(_) => end(&mut self.owed, fragment.id, 0, NO_MULTIPLEXING),
            None if role != RESPONDER => end(&mut self.owed, fragment.id, 0, UNKNOWN_ROLE),
            None => {
                self.arriving = Some(Arriving {
                    id: fragment.id,
                    keep: content[2] & KEEP != 0,
                    variables: Vec::new(),
                    variables_ended: false,
                    body: Vec::new(),
                    body_bytes: 0,
                });
            }
        }
        Ok(())
    }

    /// The request that a record belongs to, if it is under way.
    fn of(&mut self, fragment: &Fragment<'_>) -> Option<&mut Arriving> {
        self.arriving
            .as_mut()
            .filter(|arriving| arriving.id == fragment.id)
    }

    fn take_variables(&mut self, fragment: &Fragment<'_>) -> Result<(), Garbage> {
        let Some(arriving) = self.of(fragment) else {
            return Ok(());
        };
        if arriving.variables_ended {
            let kind = fragment.kind.0;
            return Err(Garbage::Kind { kind });
        }
        arriving.variables_ended = fragment.record_bytes == 0;
        arriving.variables.extend_from_slice(fragment.content);
        match arriving.variables.len() > VARIABLES_BYTES_MAX {
            true => Err(Garbage::Variables),
            false => Ok(()),
        }
    }

    fn take_body(&mut self, fragment: &Fragment<'_>) -> Result<Option<Asked>, Garbage> {
        let body_bytes_max = self.body_bytes_max;
        let Some(arriving) = self.of(fragment) else {
            return Ok(None);
        };
        if !arriving.variables_ended {
            let kind = fragment.kind.0;
            return Err(Garbage::Kind { kind });
        }
        if fragment.record_bytes > 0 {
            let room = body_bytes_max - arriving.body.len();
            let kept = &fragment.content[..fragment.content.len().min(room)];
            arriving.body.extend_from_slice(kept);
            arriving.body_bytes += fragment.content.len() as u64;
            return Ok(None);
        }
        self.arriving.take().map(Arriving::asked).transpose()
    }

    /// Nobody waits for the reply any more. The specification wants an end all the same.
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

impl Arriving {
    fn asked(self) -> Result<Asked, Garbage> {
        let (mut rest, mut variables) = (&self.variables[..], Variables::default());
        while !rest.is_empty() {
            let (name, value) = read_pair(&mut rest)?;
            variables.add(name, value);
        }
        Ok(Asked {
            id: self.id,
            keep: self.keep,
            variables,
            body: self.body,
            body_bytes: self.body_bytes,
        })
    }
}

/// Appends the end of a reply: that of standard output, and the request's with the program's exit
/// status.
pub fn write_end(out: &mut Vec<u8>, id: u16, exit_status: u32) {
    write_record(out, Kind::STDOUT, id, b"");
    end(out, id, exit_status, COMPLETE);
}

fn end(out: &mut Vec<u8>, id: u16, exit_status: u32, protocol_status: u8) {
    let [a, b, c, d] = exit_status.to_be_bytes();
    let content = [a, b, c, d, protocol_status, 0, 0, 0];
    write_record(out, Kind::END_REQUEST, id, &content);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::{Exchange, Fault};
    use crate::fastcgi::{FastCgiExchange, Inquiry, write_stream};
    use crate::reply::{Event, HeadLimits};

    fn begin(id: u16, role: u8, flags: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let content = [0, role, flags, 0, 0, 0, 0, 0];
        write_record(&mut bytes, Kind::BEGIN_REQUEST, id, &content);
        bytes
    }

    fn record(kind: Kind, id: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_record(&mut bytes, kind, id, content);
        bytes
    }

    /// A request with one variable and this body, as a web server sends it.
    fn request(body: &[u8]) -> Vec<u8> {
        let mut variables = Variables::default();
        variables.add(b"REQUEST_METHOD", b"POST");
        let mut server = FastCgiExchange::new(&variables, true, &HeadLimits::default(), false);
        let mut bytes = server.unsent().to_vec();
        server.sent(bytes.len());
        write_stream(&mut bytes, Kind::STDIN, 1, body);
        bytes.extend(record(Kind::STDIN, 1, b""));
        bytes
    }

    #[test]
    fn requests_come_out_whole_when_bytes_arrive_in_any_pieces() {
        let bytes = [request(b"hello"), request(b"")].concat();
        for piece_bytes in [1, 3, 8, 64, 4096] {
            let mut responder = Responder::new(100);
            let mut found = Vec::new();
            for piece in bytes.chunks(piece_bytes) {
                let mut input = piece;
                while let Some(asked) = responder.feed(&mut input).expect("records") {
                    found.push(asked);
                }
                assert!(input.is_empty());
            }
            let bodies: Vec<&[u8]> = found.iter().map(|asked| &asked.body[..]).collect();
            assert_eq!(bodies, [&b"hello"[..], b""], "{piece_bytes}");
            assert!(found.iter().all(|asked| asked.keep && asked.id == 1));
            let method = found[0].variables.get(b"REQUEST_METHOD");
            assert_eq!(method, Some(&b"POST"[..]));
            assert_eq!(responder.owed(), b"");
        }
    }

    #[test]
    fn body_is_counted_and_not_kept_when_it_is_too_long() {
        let mut responder = Responder::new(10);
        let bytes = request(&[b'x'; 70_000]);
        let asked = responder.feed(&mut &bytes[..]).expect("records");
        let asked = asked.expect("a request");
        assert_eq!((asked.body.len(), asked.body_bytes), (10, 70_000));
    }

    #[test]
    fn server_is_told_when_it_asks_for_what_is_not_offered() {
        let told = |more: Vec<u8>| {
            let mut responder = Responder::new(10);
            let bytes = [begin(1, 1, 0), more].concat();
            let asked = responder.feed(&mut &bytes[..]).expect("records");
            assert!(asked.is_none());
            responder.owed()
        };
        let ended = |id, status| record(Kind::END_REQUEST, id, &[0, 0, 0, 0, status, 0, 0, 0]);
        assert_eq!(told(begin(2, 1, 0)), ended(2, NO_MULTIPLEXING));
        assert_eq!(told(record(Kind::STDIN, 7, b"for nobody")), b"");
        let aborted = told(record(Kind::ABORT_REQUEST, 1, b""));
        assert_eq!(aborted, ended(1, COMPLETE));
        let unknown = told(record(Kind(77), 0, b"?"));
        let answer = record(Kind::UNKNOWN_TYPE, 0, &[77, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(unknown, answer);
        let mut responder = Responder::new(10);
        let asked = responder.feed(&mut &begin(1, 2, 0)[..]).expect("a record");
        assert!(asked.is_none());
        assert_eq!(responder.owed(), ended(1, UNKNOWN_ROLE));
    }

    #[test]
    fn abilities_are_told_when_a_server_asks_for_them() {
        let mut question = Vec::new();
        Inquiry::write(&mut question);
        let mut responder = Responder::new(10);
        assert!(
            responder
                .feed(&mut &question[..])
                .expect("a record")
                .is_none()
        );
        let abilities = Inquiry::default().feed(&mut &responder.owed()[..]);
        let abilities = abilities.expect("an answer").expect("all of it");
        assert_eq!(abilities.multiplexes, Some(false));
        assert_eq!(abilities.requests_max, None);
    }

    #[test]
    fn connection_is_given_up_when_records_contradict_one_another() {
        let wrong: [Vec<u8>; 6] = [
            b"GET / HTTP/1.1".to_vec(),
            [begin(1, 1, 0), begin(1, 1, 0)].concat(),
            record(Kind::BEGIN_REQUEST, 1, b"short"),
            [begin(1, 1, 0), record(Kind::STDIN, 1, b"")].concat(),
            record(Kind::STDOUT, 1, b"x"),
            // A pair that is longer than all of the variables.
            [
                begin(1, 1, 0),
                record(Kind::PARAMS, 1, &[9, 9, b'x']),
                record(Kind::PARAMS, 1, b""),
                record(Kind::STDIN, 1, b""),
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
            Kind::PARAMS,
            1,
            &vec![0; VARIABLES_BYTES_MAX + 1],
        );
        let fed = Responder::new(10).feed(&mut &long[..]);
        assert!(matches!(fed, Err(Garbage::Variables)));
    }

    #[test]
    fn server_understands_the_reply_when_the_program_has_failed() {
        let mut server =
            FastCgiExchange::new(&Variables::default(), true, &HeadLimits::default(), false);
        server.end_body();
        server.sent(server.unsent().len());
        let mut reply = Vec::new();
        write_stream(&mut reply, Kind::STDOUT, 1, b"Status: 500 No\n\nx");
        write_end(&mut reply, 1, 3);
        let mut input = &reply[..];
        let mut ended = None;
        while let Some(event) = server.feed(&mut input).expect("a reply") {
            if let Event::End(end) = event {
                ended = Some((end.exit_status, end.reusable));
            }
        }
        assert_eq!(ended, Some((3, true)));
        let refused = record(Kind::END_REQUEST, 1, &[0, 0, 0, 0, UNKNOWN_ROLE, 0, 0, 0]);
        let mut server =
            FastCgiExchange::new(&Variables::default(), true, &HeadLimits::default(), false);
        assert_eq!(server.feed(&mut &refused[..]), Err(Fault::UnknownRole));
    }
}
