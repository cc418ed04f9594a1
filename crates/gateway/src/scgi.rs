//! SCGI: a request is a netstring of variables followed by the body; the response has CGI format.
//!
//! A connection serves one request and ends with the response, so a response without a declared
//! length cannot be told from one that was cut off. That is a property of the protocol.
//!
//! Source: "SCGI: A Simple Common Gateway Interface alternative" (Neil Schemenauer, 2008).

use crate::cgi::{ResponseReader, Variables};
use crate::codec::{Codec, CodecError, Outbox};
use crate::fields::FieldList;
use crate::response::{HeadLimits, ResponseEnd, ResponseEvent};

/// Codec of one request and its response.
///
/// ```
/// use headway_gateway::cgi::Variables;
/// use headway_gateway::scgi::ScgiCodec;
/// use headway_gateway::{Codec, HeadLimits};
///
/// let mut codec = ScgiCodec::new(&Variables::default(), 5, &HeadLimits::default(), false);
/// assert_eq!(codec.push_body(b"hello"), 5);
/// assert_eq!(codec.unsent(), b"24:CONTENT_LENGTH\x005\0SCGI\x001\0,hello");
/// ```
#[derive(Debug)]
pub struct ScgiCodec {
    out: Outbox,
    /// Announced body bytes that have not been pushed yet.
    body_left: u64,
    response: ResponseReader,
}

impl ScgiCodec {
    /// A request with these variables and a body of this length, which SCGI must know in advance.
    /// `head_only`: the request is a HEAD.
    pub fn new(
        variables: &Variables,
        body_bytes: u64,
        limits: &HeadLimits,
        head_only: bool,
    ) -> ScgiCodec {
        let mut out = Outbox::default();
        write_head(out.bytes(), variables, body_bytes);
        ScgiCodec {
            out,
            body_left: body_bytes,
            response: ResponseReader::new(limits, head_only),
        }
    }
}

/// `24:CONTENT_LENGTH` NUL `0` NUL `SCGI` NUL `1` NUL … `,`. CONTENT_LENGTH always comes first.
fn write_head(out: &mut Vec<u8>, variables: &Variables, body_bytes: u64) {
    let mut pairs = Vec::new();
    let mut add = |name: &[u8], value: &[u8]| {
        for part in [name, value] {
            pairs.extend_from_slice(part);
            pairs.push(0);
        }
    };
    let mut number = itoa::Buffer::new();
    add(b"CONTENT_LENGTH", number.format(body_bytes).as_bytes());
    add(b"SCGI", b"1");
    for (name, value) in variables.iter() {
        if !matches!(name, b"CONTENT_LENGTH" | b"SCGI") {
            add(name, value);
        }
    }
    out.extend_from_slice(number.format(pairs.len()).as_bytes());
    out.push(b':');
    out.append(&mut pairs);
    out.push(b',');
}

impl Codec for ScgiCodec {
    fn unsent(&self) -> &[u8] {
        self.out.unsent()
    }

    fn sent(&mut self, bytes: usize) {
        self.out.advance(bytes);
    }

    /// Takes no more than was announced.
    fn push_body(&mut self, bytes: &[u8]) -> usize {
        let announced = bytes
            .len()
            .min(usize::try_from(self.body_left).unwrap_or(usize::MAX));
        let taken = self.out.fitting(&bytes[..announced]);
        self.out.bytes().extend_from_slice(taken);
        self.body_left -= taken.len() as u64;
        taken.len()
    }

    /// Nothing marks the end: the program counts.
    fn end_body(&mut self, _: &FieldList) {
        self.body_left = 0;
    }

    fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<ResponseEvent<'i>>, CodecError> {
        Ok(self.response.feed(input)?)
    }

    fn finish(&mut self) -> Result<ResponseEnd, CodecError> {
        Ok(self.response.finish()?)
    }

    fn is_open_ended(&self) -> bool {
        self.response.has_head() && !self.response.is_full()
    }

    fn has_head(&self) -> bool {
        self.response.has_head()
    }
}
