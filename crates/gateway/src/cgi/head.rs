//! Parses the head of a program's response.
//!
//! Rejected: invalid fields, folded lines, control bytes (so also every CR, LF or NUL that a
//! program let slip into a value), an invalid status, a repeated CGI field, Transfer-Encoding, and
//! a head without any of Content-Type, Location and Status, which is the output of a program that
//! is not a CGI program. Dropped: hop-by-hop fields.
//!
//! A missing Content-Type is accepted if there is a Status: RFC 3875 section 6.3.1 tells servers
//! not to guess one.
//!
//! Source: RFC 3875 sections 6.2, 6.3.

use std::borrow::Cow;

use crate::header_lines::{BeforeColon, HeaderLines, LineEnding, control_byte, field};
use crate::invalid_response::{InvalidResponse, excerpt};
use crate::response::{HeadLimits, ResponseAction, ResponseHead, kept_reason};

/// Reads one head, in pieces of any size.
#[derive(Debug)]
pub(crate) struct CgiHeadReader {
    lines: HeaderLines,
    fields_max: usize,
    fields: usize,
    response: ResponseHead,
    has_status: bool,
    has_content_type: bool,
    location: Option<Box<[u8]>>,
}

impl CgiHeadReader {
    pub(crate) fn new(limits: &HeadLimits) -> CgiHeadReader {
        CgiHeadReader {
            lines: HeaderLines::new(LineEnding::Any, limits),
            fields_max: limits.fields_max,
            fields: 0,
            response: ResponseHead::new(200, b""),
            has_status: false,
            has_content_type: false,
            location: None,
        }
    }

    /// The head once its empty line has come; `input` then starts with the body.
    pub(crate) fn feed(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<ResponseAction>, InvalidResponse> {
        while let Some((number, line)) = self.lines.next(input)? {
            if line.is_empty() {
                return answer(
                    std::mem::replace(&mut self.response, ResponseHead::new(200, b"")),
                    self.has_status,
                    self.has_content_type,
                    self.location.take(),
                )
                .map(Some);
            }
            let (name, value) = field(number, line, BeforeColon::Nothing)?;
            self.fields += 1;
            if self.fields > self.fields_max {
                return Err(InvalidResponse::TooManyFields {
                    fields_max: self.fields_max,
                });
            }
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            if is(b"status") {
                once(&mut self.has_status, "Status")?;
                (self.response.status, self.response.reason) = status(value)?;
            } else if is(b"location") {
                if self.location.replace(value.into()).is_some() {
                    return Err(InvalidResponse::Repeated { name: "Location" });
                }
            } else if is(b"transfer-encoding") {
                return Err(InvalidResponse::TransferEncoding);
            } else {
                if is(b"content-type") {
                    once(&mut self.has_content_type, "Content-Type")?;
                }
                self.response.take(name, value)?;
            }
        }
        Ok(None)
    }

    /// The error if the output ends inside the head.
    pub(crate) fn cut(&self) -> InvalidResponse {
        self.lines.cut()
    }
}

fn once(seen: &mut bool, name: &'static str) -> Result<(), InvalidResponse> {
    match std::mem::replace(seen, true) {
        true => Err(InvalidResponse::Repeated { name }),
        false => Ok(()),
    }
}

/// `404 Not Found`: three digits from 200 to 599, and optionally a phrase. Interim responses are
/// the server's task.
fn status(value: &[u8]) -> Result<(u16, Cow<'static, [u8]>), InvalidResponse> {
    let (digits, reason) = value.split_at(value.len().min(3));
    let number = headway_http::decimal(digits).filter(|_| digits.len() == 3);
    match (number, reason) {
        (Some(number @ 200..=599), [] | [b' ' | b'\t', ..]) => {
            let status = number as u16;
            Ok((status, kept_reason(status, reason.trim_ascii())))
        }
        _ => Err(InvalidResponse::BadValue {
            name: "Status",
            text: excerpt(value),
        }),
    }
}

/// The three kinds of response of RFC 3875 section 6.2, told apart as programs mean them.
fn answer(
    mut response: ResponseHead,
    has_status: bool,
    has_content_type: bool,
    location: Option<Box<[u8]>>,
) -> Result<ResponseAction, InvalidResponse> {
    let Some(location) = location else {
        return match has_status || has_content_type || response.accel_redirect.is_some() {
            true => Ok(ResponseAction::Response(response)),
            false => Err(InvalidResponse::NoCgiField),
        };
    };
    if location.is_empty() {
        return Err(InvalidResponse::BadValue {
            name: "Location",
            text: excerpt(&location),
        });
    }
    // With a status the program addresses the client: PHP sends `Status: 302` with `Location:
    // /path`.
    if !has_status {
        if is_local(&location) {
            return Ok(ResponseAction::LocalRedirect(location));
        }
        response.status = 302;
    }
    response.fields.push(b"Location", &location);
    Ok(ResponseAction::Response(response))
}

/// Whether the location is a path and query of this server. `//host/path` belongs to another host,
/// and a fragment is for the client.
pub fn is_local(location: &[u8]) -> bool {
    location.starts_with(b"/")
        && !location.starts_with(b"//")
        && control_byte(location).is_none()
        && !location
            .iter()
            .any(|byte| matches!(byte, b'#' | b' ' | b'\t'))
}
