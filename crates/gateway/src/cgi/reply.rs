//! What a program writes, from the first byte to the last: the head, then the body.
//!
//! The same for a program's standard output, FastCGI's STDOUT stream and SCGI's connection.

use crate::cgi::head::HeadReader;
use crate::refusal::Refusal;
use crate::reply::{Answer, BodyMeter, End, Event, HeadLimits};

/// Reads a program's reply.
///
/// ```
/// use headway_gateway::{Answer, Event, HeadLimits, cgi::ReplyReader};
///
/// let mut reader = ReplyReader::new(&HeadLimits::default(), false);
/// let mut input = &b"Content-Type: text/plain\n\nhello"[..];
/// let Some(Event::Head(Answer::Reply(reply))) = reader.feed(&mut input).unwrap() else { panic!() };
/// assert_eq!(reply.status, 200);
/// assert_eq!(reader.feed(&mut input).unwrap(), Some(Event::Body(b"hello")));
/// assert_eq!(reader.feed(&mut input).unwrap(), None);
/// assert!(reader.finish().is_ok());
/// ```
#[derive(Debug)]
pub struct ReplyReader {
    head_only: bool,
    state: State,
}

#[derive(Debug)]
// One a request, never moved after it was made.
#[allow(clippy::large_enum_variant)]
enum State {
    Head(HeadReader),
    Body(BodyMeter),
    Refused(Refusal),
}

impl ReplyReader {
    /// At the first byte. `head_only`: the request was HEAD, so that a body is dropped.
    pub fn new(limits: &HeadLimits, head_only: bool) -> ReplyReader {
        ReplyReader {
            head_only,
            state: State::Head(HeadReader::new(limits)),
        }
    }

    /// What comes next in `input`, which moves on by as much; `None` when it is used up.
    ///
    /// The caller takes one event at a time and may keep the rest of `input` for later: that is how
    /// a slow client holds a fast program back. After a refusal every call repeats it.
    pub fn feed<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Event<'i>>, Refusal> {
        match &mut self.state {
            State::Refused(refusal) => Err(refusal.clone()),
            State::Head(head) => match head.feed(input) {
                Ok(None) => Ok(None),
                Ok(Some(answer)) => Ok(Some(self.begin_body(answer))),
                Err(refusal) => {
                    self.state = State::Refused(refusal.clone());
                    Err(refusal)
                }
            },
            State::Body(meter) => {
                let body = meter.take(std::mem::take(input));
                Ok((!body.is_empty()).then_some(Event::Body(body)))
            }
        }
    }

    fn begin_body(&mut self, answer: Answer) -> Event<'static> {
        self.state = State::Body(BodyMeter::new(&answer, self.head_only));
        Event::Head(answer)
    }

    /// Whether the head has been given out: until then the server can still say something else.
    pub fn has_head(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    /// Whether the whole body has been seen: all of its declared length, or it has none.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.state, State::Body(meter) if meter.is_full())
    }

    /// The program has closed its output.
    ///
    /// # Errors
    /// When that came before the end of the head, or of the body's declared length.
    pub fn finish(&self) -> Result<End, Refusal> {
        match &self.state {
            State::Refused(refusal) => Err(refusal.clone()),
            State::Head(head) => Err(head.cut()),
            State::Body(meter) => Ok(End {
                excess: meter.end()?,
                ..End::default()
            }),
        }
    }
}
