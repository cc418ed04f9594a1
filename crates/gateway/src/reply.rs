//! A reply on its way to the client: what every kind of back end's answer becomes.
//!
//! What is here has been checked: a status that may be sent, fields that may be sent, and the
//! length that was declared, apart from the fields, since the server frames the body anew. A meter
//! holds the body to that length.
//!
//! Sources: RFC 9110 sections 6.4.1, 8.6, 15; RFC 9112 section 6.3.

use headway_http::Status;

use crate::fields::{FieldList, is_hop_by_hop};
use crate::refusal::{Refusal, excerpt};

/// How large a reply head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Longest head in bytes, final empty line included.
    pub head_bytes_max: usize,
    /// Most fields.
    pub fields_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        HeadLimits {
            head_bytes_max: 32 * 1024,
            fields_max: 200,
        }
    }
}

/// The head of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// 200 to 599, or 101 from a back end that changes the protocol.
    pub status: u16,
    /// What it said after the number; empty if it said nothing.
    pub reason: Box<[u8]>,
    /// Fit to be sent: no hop-by-hop field, no Content-Length, none of the fields that speak to the
    /// server alone. `Date` and `Server` are here if the back end sent them.
    pub fields: FieldList,
    /// Content-Length. Also where there is no body: then what a GET would have brought.
    pub length: Option<u64>,
    /// Something else is to be sent in place of the body.
    pub handoff: Option<Handoff>,
}

/// A reply whose body the server is to take from elsewhere. Whether a location allows that is the
/// server's to say; the field itself never reaches the client, since it shows how the server is
/// built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handoff {
    /// `X-Sendfile`: a file's path.
    File(Box<[u8]>),
    /// `X-Accel-Redirect`: path and query inside this server.
    Location(Box<[u8]>),
}

impl Reply {
    pub(crate) fn new(status: u16, reason: &[u8]) -> Reply {
        Reply {
            status,
            reason: reason.into(),
            fields: FieldList::default(),
            length: None,
            handoff: None,
        }
    }

    /// Takes a checked field, which ends among the fields, or in its own place, or nowhere.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if is(b"content-length") {
            return self.take_length(value);
        }
        if is(b"x-sendfile") {
            return self.take_handoff("X-Sendfile", value, Handoff::File);
        }
        if is(b"x-accel-redirect") {
            return self.take_handoff("X-Accel-Redirect", value, Handoff::Location);
        }
        if !is_hop_by_hop(name) {
            self.fields.push(name, value);
        }
        Ok(())
    }

    /// One number. A list of equal numbers, or the field twice, could be understood as well, and is
    /// by some and not by others: the body would end at two places.
    fn take_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        const NAME: &str = "Content-Length";
        let bytes = headway_http::decimal(value).ok_or_else(|| Refusal::BadValue {
            name: NAME,
            text: excerpt(value),
        })?;
        match self.length.replace(bytes) {
            None => Ok(()),
            Some(_) => Err(Refusal::Repeated { name: NAME }),
        }
    }

    fn take_handoff(
        &mut self,
        name: &'static str,
        value: &[u8],
        make: impl Fn(Box<[u8]>) -> Handoff,
    ) -> Result<(), Refusal> {
        if value.is_empty() {
            return Err(Refusal::BadValue {
                name,
                text: excerpt(value),
            });
        }
        match self.handoff.replace(make(value.into())) {
            None => Ok(()),
            Some(_) => Err(Refusal::Repeated { name }),
        }
    }

    /// Whether no reply with this status has a body (RFC 9112 section 6.3, case 1).
    pub fn is_bodiless(&self) -> bool {
        self.status < 200 || self.status == 204 || self.status == 304
    }

    /// Writes the status line and the fields. The caller adds what frames the body, the
    /// connection's fields and the empty line.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(itoa::Buffer::new().format(self.status).as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.phrase());
        out.extend_from_slice(b"\r\n");
        self.fields.write(out);
    }

    /// The reason phrase: the back end's, else the usual one, else none, which is allowed.
    pub fn phrase(&self) -> &[u8] {
        match &*self.reason {
            b"" => {
                Status::from_code(self.status).map_or(&b""[..], |status| status.phrase().as_bytes())
            }
            reason => reason,
        }
    }
}

/// What a back end's head asks the server to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send this, with what follows as its body.
    Reply(Reply),
    /// Answer as if this path and query had been asked for with GET (RFC 3875 section 6.2.2). The
    /// server bounds how often in a row, and finds out whether the path is sound.
    LocalRedirect(Box<[u8]>),
}

/// What comes out of a back end, in this order: a head, its body, the end. Standard error comes at
/// any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'i> {
    /// The head is complete.
    Head(Answer),
    /// The next bytes of the body, without framing; never empty.
    Body(&'i [u8]),
    /// For the log, not for the client; never empty.
    Stderr(&'i [u8]),
    /// The reply is complete.
    End(End),
}

/// How a complete reply ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// More bytes followed than had been declared; they were dropped.
    pub excess: bool,
    /// The connection is at the start of the next exchange and may be used for one.
    pub reusable: bool,
    /// What the program returned, where the protocol tells.
    pub exit_status: u32,
}

/// Holds a body to its declared length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyMeter {
    /// Bytes still to come, if that is known.
    left_bytes: Option<u64>,
    declared_bytes: u64,
    /// Whatever comes is dropped: the reply has no body, and what should have none may have one.
    discards: bool,
    excess: bool,
}

impl BodyMeter {
    /// For the body behind this head. `head_only`: the request was HEAD.
    pub(crate) fn new(answer: &Answer, head_only: bool) -> BodyMeter {
        let (length, discards) = match answer {
            Answer::Reply(reply) => (
                reply.length,
                head_only || reply.is_bodiless() || reply.handoff.is_some(),
            ),
            Answer::LocalRedirect(_) => (None, true),
        };
        BodyMeter {
            left_bytes: length.filter(|_| !discards),
            declared_bytes: length.unwrap_or(0),
            discards,
            excess: false,
        }
    }

    /// The part of these bytes that belongs to the client. What is beyond the declared length would
    /// be taken for the beginning of the next reply.
    pub(crate) fn take<'i>(&mut self, bytes: &'i [u8]) -> &'i [u8] {
        if self.discards {
            return &[];
        }
        let Some(left_bytes) = &mut self.left_bytes else {
            return bytes;
        };
        let taken = bytes
            .len()
            .min(usize::try_from(*left_bytes).unwrap_or(usize::MAX));
        *left_bytes -= taken as u64;
        self.excess |= taken < bytes.len();
        &bytes[..taken]
    }

    /// Whether nothing more is expected.
    pub(crate) fn is_full(&self) -> bool {
        self.discards || self.left_bytes == Some(0)
    }

    /// The stream has ended: whether that was the right moment; true if there was too much.
    pub(crate) fn end(&self) -> Result<bool, Refusal> {
        match self.left_bytes {
            Some(left_bytes @ 1..) => Err(Refusal::BodyCut {
                body_bytes: self.declared_bytes - left_bytes,
                declared_bytes: self.declared_bytes,
            }),
            _ => Ok(self.excess),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, length: Option<u64>) -> Answer {
        Answer::Reply(Reply {
            length,
            ..Reply::new(status, b"")
        })
    }

    #[test]
    fn body_is_held_to_its_length_when_one_was_declared() {
        let mut meter = BodyMeter::new(&reply(200, Some(5)), false);
        assert_eq!(meter.take(b"abc"), b"abc");
        let cut = Refusal::BodyCut {
            body_bytes: 3,
            declared_bytes: 5,
        };
        assert_eq!(meter.end(), Err(cut));
        assert_eq!(meter.take(b"def"), b"de");
        assert_eq!(meter.take(b"g"), b"");
        assert_eq!(meter.end(), Ok(true));
    }

    #[test]
    fn body_is_dropped_when_the_reply_has_none() {
        for (answer, head_only) in [
            (reply(200, Some(5)), true),
            (reply(304, Some(5)), false),
            (reply(204, None), false),
            (Answer::LocalRedirect(Box::default()), false),
        ] {
            let mut meter = BodyMeter::new(&answer, head_only);
            assert_eq!(meter.take(b"abc"), b"");
            assert_eq!(meter.end(), Ok(false), "{answer:?}");
        }
    }

    #[test]
    fn phrase_is_the_usual_one_when_the_back_end_sent_none() {
        let mut out = Vec::new();
        Reply::new(404, b"").write_head(&mut out);
        Reply::new(299, b"").write_head(&mut out);
        Reply::new(200, b"Fine").write_head(&mut out);
        assert_eq!(
            out,
            b"HTTP/1.1 404 Not Found\r\nHTTP/1.1 299 \r\nHTTP/1.1 200 Fine\r\n"
        );
    }
}
