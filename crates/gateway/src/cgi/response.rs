//! Parses a program's response: the head, then the body.
//!
//! The format is the same for a CGI program's standard output, FastCGI's STDOUT stream and an SCGI
//! connection.

use crate::cgi::head::CgiHeadReader;
use crate::invalid_response::InvalidResponse;
use crate::response::{BodyMeter, HeadLimits, ResponseAction, ResponseEnd, ResponseEvent};

/// Parses the response of a program.
///
/// ```
/// use headway_gateway::{ResponseAction, ResponseEvent, HeadLimits, cgi::ResponseReader};
///
/// let mut reader = ResponseReader::new(&HeadLimits::default(), false);
/// let mut input = &b"Content-Type: text/plain\n\nhello"[..];
/// let head = reader.feed(&mut input).unwrap();
/// let Some(ResponseEvent::Head(ResponseAction::Response(response))) = head else { panic!() };
/// assert_eq!(response.status, 200);
/// assert_eq!(reader.feed(&mut input).unwrap(), Some(ResponseEvent::Body(b"hello")));
/// assert_eq!(reader.feed(&mut input).unwrap(), None);
/// assert!(reader.finish().is_ok());
/// ```
#[derive(Debug)]
pub struct ResponseReader {
    head_only: bool,
    state: CgiResponseState,
}

#[derive(Debug)]
// One per request, never moved after it was created.
#[allow(clippy::large_enum_variant)]
enum CgiResponseState {
    Head(CgiHeadReader),
    Body(BodyMeter),
    Refused(InvalidResponse),
}

impl ResponseReader {
    /// A reader at the first byte. `head_only`: the request was HEAD, so a body is dropped.
    pub fn new(limits: &HeadLimits, head_only: bool) -> ResponseReader {
        ResponseReader {
            head_only,
            state: CgiResponseState::Head(CgiHeadReader::new(limits)),
        }
    }

    /// Returns the next event in `input` and advances it; `None` when it is used up.
    ///
    /// The caller takes one event at a time and may keep the rest of `input` for later: that is how
    /// a slow client slows down a fast program. After an error every call repeats it.
    pub fn feed<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<ResponseEvent<'i>>, InvalidResponse> {
        match &mut self.state {
            CgiResponseState::Refused(refusal) => Err(refusal.clone()),
            CgiResponseState::Head(head) => match head.feed(input) {
                Ok(None) => Ok(None),
                Ok(Some(answer)) => Ok(Some(self.begin_body(answer))),
                Err(refusal) => {
                    self.state = CgiResponseState::Refused(refusal.clone());
                    Err(refusal)
                }
            },
            CgiResponseState::Body(meter) => {
                let body = meter.take(std::mem::take(input));
                Ok((!body.is_empty()).then_some(ResponseEvent::Body(body)))
            }
        }
    }

    fn begin_body(&mut self, mut answer: ResponseAction) -> ResponseEvent<'static> {
        if let ResponseAction::Response(response) = &mut answer
            && response.is_reset_content()
        {
            response.length = Some(0);
        }
        self.state = CgiResponseState::Body(BodyMeter::new(&answer, self.head_only));
        ResponseEvent::Head(answer)
    }

    /// Whether the head has been returned: until then the server can still answer differently.
    pub fn has_head(&self) -> bool {
        matches!(self.state, CgiResponseState::Body(_))
    }

    /// Whether the whole body has been read: all of its declared length, or it has none.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.state, CgiResponseState::Body(meter) if meter.is_full())
    }

    /// The program has closed its output.
    ///
    /// # Errors
    /// When the head or the declared length of the body is incomplete.
    pub fn finish(&self) -> Result<ResponseEnd, InvalidResponse> {
        match &self.state {
            CgiResponseState::Refused(refusal) => Err(refusal.clone()),
            CgiResponseState::Head(head) => Err(head.cut()),
            CgiResponseState::Body(meter) => Ok(ResponseEnd {
                excess: meter.end()?,
                ..ResponseEnd::default()
            }),
        }
    }
}
