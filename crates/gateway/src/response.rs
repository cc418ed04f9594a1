//! A validated response on its way to the client, whatever protocol it came by.
//!
//! Status and fields may be sent as they are. The declared length is kept apart from the fields,
//! because the server frames the body again. A meter enforces that length.
//!
//! Sources: RFC 9110 sections 6.4.1, 8.6, 15; RFC 9112 section 6.3.

use std::borrow::Cow;

use headway_http::Status;

use crate::fields::{FieldList, is_hop_by_hop};
use crate::invalid_response::{InvalidResponse, excerpt};

/// Limits of a response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes of a head, including the final empty line.
    pub head_bytes_max: usize,
    /// Largest number of header fields.
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

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 200 to 599, or 101 from an upstream that accepts an upgrade.
    pub status: u16,
    /// The reason phrase; empty if there was none.
    pub reason: Cow<'static, [u8]>,
    /// Fields that may be sent: no hop-by-hop field, no Content-Length, no command to the server.
    /// `Date` and `Server` are included if the upstream sent them.
    pub fields: FieldList,
    /// Content-Length. Without a body, the length that a GET would have.
    pub length: Option<u64>,
    /// The protocols of `Upgrade`, which a 426 must name (RFC 9110 section 15.5.22). With any other
    /// status the field is about the connection to the upstream only.
    pub upgrade: Vec<u8>,
    /// The `Proxy-Authenticate` that a 407 must have (RFC 9110 section 15.5.8).
    challenges: FieldList,
    /// A file to send in place of the body.
    pub accel_redirect: Option<AccelRedirect>,
}

/// A response whose body the server takes from a file. The server decides whether the location
/// allows that. The field itself never reaches the client, because it reveals internals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccelRedirect {
    /// `X-Sendfile`: the path of a file.
    File(Box<[u8]>),
    /// `X-Accel-Redirect`: path and query inside this server.
    Location(Box<[u8]>),
}

impl ResponseHead {
    pub(crate) fn new(status: u16, reason: &[u8]) -> ResponseHead {
        ResponseHead {
            status,
            reason: kept_reason(status, reason),
            fields: FieldList::default(),
            length: None,
            upgrade: Vec::new(),
            challenges: FieldList::default(),
            accel_redirect: None,
        }
    }

    /// Takes a validated field: into the list, into a member of its own, or not at all.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), InvalidResponse> {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if is(b"content-length") {
            return self.take_length(value);
        }
        if is(b"x-sendfile") {
            return self.take_accel_redirect("X-Sendfile", value, AccelRedirect::File);
        }
        if is(b"x-accel-redirect") {
            return self.take_accel_redirect("X-Accel-Redirect", value, AccelRedirect::Location);
        }
        if is(b"upgrade") && !value.is_empty() {
            if !self.upgrade.is_empty() {
                self.upgrade.extend_from_slice(b", ");
            }
            self.upgrade.extend_from_slice(value);
        } else if is(b"proxy-authenticate") {
            self.challenges.push(name, value);
        } else if !is_hop_by_hop(name) {
            self.fields.push(name, value);
        }
        Ok(())
    }

    /// Parses one number. A list of equal numbers, or a repeated field, is rejected: recipients
    /// differ in how they read it, and would end the body at two places.
    fn take_length(&mut self, value: &[u8]) -> Result<(), InvalidResponse> {
        const NAME: &str = "Content-Length";
        let bytes = headway_http::decimal(value).ok_or_else(|| InvalidResponse::BadValue {
            name: NAME,
            text: excerpt(value),
        })?;
        match self.length.replace(bytes) {
            None => Ok(()),
            Some(_) => Err(InvalidResponse::Repeated { name: NAME }),
        }
    }

    fn take_accel_redirect(
        &mut self,
        name: &'static str,
        value: &[u8],
        make: impl Fn(Box<[u8]>) -> AccelRedirect,
    ) -> Result<(), InvalidResponse> {
        if value.is_empty() {
            return Err(InvalidResponse::BadValue {
                name,
                text: excerpt(value),
            });
        }
        match self.accel_redirect.replace(make(value.into())) {
            None => Ok(()),
            Some(_) => Err(InvalidResponse::Repeated { name }),
        }
    }

    /// Whether responses with this status have no body (RFC 9112 section 6.3, case 1).
    pub fn is_bodiless(&self) -> bool {
        self.status < 200 || self.status == 204 || self.status == 304
    }

    /// Whether the response has a body to read, but none to pass on: a 205 (RFC 9110 section 15.3.6).
    pub(crate) fn is_reset_content(&self) -> bool {
        self.status == 205
    }

    /// The protocols to name in `Upgrade`, which the client must know.
    pub fn required_upgrade(&self) -> Option<&[u8]> {
        (self.status == 426 && !self.upgrade.is_empty()).then_some(&self.upgrade)
    }

    /// Writes the status line and the fields. The caller adds framing, connection fields and the
    /// empty line.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(itoa::Buffer::new().format(self.status).as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.phrase());
        out.extend_from_slice(b"\r\n");
        self.fields.write(out);
        if self.status == 407 {
            self.challenges.write(out);
        }
    }

    /// The reason phrase: the upstream's, otherwise the usual one, otherwise none, which is
    /// allowed.
    pub fn phrase(&self) -> &[u8] {
        match &*self.reason {
            b"" => {
                Status::from_code(self.status).map_or(&b""[..], |status| status.phrase().as_bytes())
            }
            reason => reason,
        }
    }
}

/// A reason phrase to be kept. The usual one of the status needs no memory.
pub(crate) fn kept_reason(status: u16, reason: &[u8]) -> Cow<'static, [u8]> {
    let usual = Status::from_code(status).map_or(&b""[..], |status| status.phrase().as_bytes());
    match reason {
        _ if reason == usual => usual.into(),
        _ => reason.to_vec().into(),
    }
}

/// What a response head asks the server to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseAction {
    /// Send this response; the body follows.
    Response(ResponseHead),
    /// Answer as if this path and query had been requested with GET (RFC 3875 section 6.2.2). The
    /// server limits redirects in a row and validates the path.
    LocalRedirect(Box<[u8]>),
}

/// Events of a response, in this order: head, body, end. Standard error may come at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseEvent<'i> {
    /// The head is complete.
    Head(ResponseAction),
    /// The next bytes of the body, without framing; never empty.
    Body(&'i [u8]),
    /// Output for the log, not for the client; never empty.
    Stderr(&'i [u8]),
    /// The response is complete.
    End(ResponseEnd),
}

/// How a complete response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseEnd {
    /// More bytes followed than declared; they were dropped.
    pub excess: bool,
    /// The connection can be used for another request.
    pub reusable: bool,
    /// The program's exit status, if the protocol reports it.
    pub exit_status: u32,
}

/// Enforces the declared length of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyMeter {
    /// Remaining bytes, if known.
    left_bytes: Option<u64>,
    declared_bytes: u64,
    /// Everything is dropped, because the response has no body.
    discards: bool,
    excess: bool,
}

impl BodyMeter {
    /// The meter for the body after this head. `head_only`: the request was HEAD.
    pub(crate) fn new(answer: &ResponseAction, head_only: bool) -> BodyMeter {
        let (length, discards) = match answer {
            ResponseAction::Response(response) => (
                response.length,
                head_only || response.is_bodiless() || response.accel_redirect.is_some(),
            ),
            ResponseAction::LocalRedirect(_) => (None, true),
        };
        BodyMeter {
            left_bytes: length.filter(|_| !discards),
            declared_bytes: length.unwrap_or(0),
            discards,
            excess: false,
        }
    }

    /// The part of these bytes that belongs to the client. Bytes beyond the declared length would
    /// be taken for the next response.
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

    /// Checks at the end of the stream that the body is complete; returns whether there was too
    /// much.
    pub(crate) fn end(&self) -> Result<bool, InvalidResponse> {
        match self.left_bytes {
            Some(left_bytes @ 1..) => Err(InvalidResponse::BodyCut {
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

    fn response(status: u16, length: Option<u64>) -> ResponseAction {
        ResponseAction::Response(ResponseHead {
            length,
            ..ResponseHead::new(status, b"")
        })
    }

    #[test]
    fn body_meter_enforces_the_declared_length() {
        let mut meter = BodyMeter::new(&response(200, Some(5)), false);
        assert_eq!(meter.take(b"abc"), b"abc");
        let cut = InvalidResponse::BodyCut {
            body_bytes: 3,
            declared_bytes: 5,
        };
        assert_eq!(meter.end(), Err(cut));
        assert_eq!(meter.take(b"def"), b"de");
        assert_eq!(meter.take(b"g"), b"");
        assert_eq!(meter.end(), Ok(true));
    }

    #[test]
    fn body_meter_drops_the_body_of_a_bodiless_response() {
        for (answer, head_only) in [
            (response(200, Some(5)), true),
            (response(304, Some(5)), false),
            (response(204, None), false),
            (ResponseAction::LocalRedirect(Box::default()), false),
        ] {
            let mut meter = BodyMeter::new(&answer, head_only);
            assert_eq!(meter.take(b"abc"), b"");
            assert_eq!(meter.end(), Ok(false), "{answer:?}");
        }
    }

    #[test]
    fn missing_reason_phrase_gets_the_usual_one() {
        let mut out = Vec::new();
        ResponseHead::new(404, b"").write_head(&mut out);
        ResponseHead::new(299, b"").write_head(&mut out);
        ResponseHead::new(200, b"Fine").write_head(&mut out);
        assert_eq!(
            out,
            b"HTTP/1.1 404 Not Found\r\nHTTP/1.1 299 \r\nHTTP/1.1 200 Fine\r\n"
        );
    }
}
