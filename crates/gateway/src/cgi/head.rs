//! The head of a program's reply.
//!
//! Refused: bytes that are no fields, folded lines, control bytes (and so every CR, LF or NUL that
//! a program let slip into a value), a status that is none, a repeated CGI field,
//! Transfer-Encoding, and a head without any of Content-Type, Location and Status, which tells
//! output of a program that is no CGI program from a reply. Dropped: hop-by-hop fields.
//!
//! A missing Content-Type is let through where there is a Status: RFC 3875 section 6.3.1 tells
//! servers not to guess one.
//!
//! Source: RFC 3875 sections 6.2, 6.3.

use crate::lines::{BeforeColon, LineEnds, Lines, control_byte, field};
use crate::refusal::{Refusal, excerpt};
use crate::reply::{Answer, HeadLimits, Reply};

/// Reads one head, in any pieces.
#[derive(Debug)]
pub(crate) struct HeadReader {
    lines: Lines,
    fields_max: usize,
    fields: usize,
    reply: Reply,
    has_status: bool,
    has_content_type: bool,
    location: Option<Box<[u8]>>,
}

impl HeadReader {
    pub(crate) fn new(limits: &HeadLimits) -> HeadReader {
        HeadReader {
            lines: Lines::new(LineEnds::Any, limits),
            fields_max: limits.fields_max,
            fields: 0,
            reply: Reply::new(200, b""),
            has_status: false,
            has_content_type: false,
            location: None,
        }
    }

    /// The answer, once its empty line is there; `input` then starts with the body.
    pub(crate) fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Answer>, Refusal> {
        while let Some((number, line)) = self.lines.next(input)? {
            if line.is_empty() {
                return answer(
                    std::mem::replace(&mut self.reply, Reply::new(200, b"")),
                    self.has_status,
                    self.has_content_type,
                    self.location.take(),
                )
                .map(Some);
            }
            let (name, value) = field(number, line, BeforeColon::Nothing)?;
            self.fields += 1;
            if self.fields > self.fields_max {
                return Err(Refusal::TooManyFields {
                    fields_max: self.fields_max,
                });
            }
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            if is(b"status") {
                once(&mut self.has_status, "Status")?;
                (self.reply.status, self.reply.reason) = status(value)?;
            } else if is(b"location") {
                if self.location.replace(value.into()).is_some() {
                    return Err(Refusal::Repeated { name: "Location" });
                }
            } else if is(b"transfer-encoding") {
                return Err(Refusal::TransferEncoding);
            } else {
                if is(b"content-type") {
                    once(&mut self.has_content_type, "Content-Type")?;
                }
                self.reply.take(name, value)?;
            }
        }
        Ok(None)
    }

    /// What it means that the output ends inside the head.
    pub(crate) fn cut(&self) -> Refusal {
        self.lines.cut()
    }
}

fn once(seen: &mut bool, name: &'static str) -> Result<(), Refusal> {
    match std::mem::replace(seen, true) {
        true => Err(Refusal::Repeated { name }),
        false => Ok(()),
    }
}

/// `404 Not Found`: three digits from 200 to 599, and perhaps a phrase. Interim replies are the
/// server's own business.
fn status(value: &[u8]) -> Result<(u16, Box<[u8]>), Refusal> {
    let (digits, reason) = value.split_at(value.len().min(3));
    let number = headway_http::decimal(digits).filter(|_| digits.len() == 3);
    match (number, reason) {
        (Some(number @ 200..=599), [] | [b' ' | b'\t', ..]) => {
            Ok((number as u16, reason.trim_ascii().into()))
        }
        _ => Err(Refusal::BadValue {
            name: "Status",
            text: excerpt(value),
        }),
    }
}

/// The three kinds of reply of RFC 3875 section 6.2, told apart as programs mean them.
fn answer(
    mut reply: Reply,
    has_status: bool,
    has_content_type: bool,
    location: Option<Box<[u8]>>,
) -> Result<Answer, Refusal> {
    let Some(location) = location else {
        return match has_status || has_content_type || reply.handoff.is_some() {
            true => Ok(Answer::Reply(reply)),
            false => Err(Refusal::NoCgiField),
        };
    };
    if location.is_empty() {
        return Err(Refusal::BadValue {
            name: "Location",
            text: excerpt(&location),
        });
    }
    // With a status the program speaks to the client: PHP sends `Status: 302` with `Location:
    // /path`.
    if !has_status {
        if is_local(&location) {
            return Ok(Answer::LocalRedirect(location));
        }
        reply.status = 302;
    }
    reply.fields.push(b"Location", &location);
    Ok(Answer::Reply(reply))
}

/// Whether it is a path and query of this server. `//host/path` is another host's, and a fragment
/// is for the client.
pub fn is_local(location: &[u8]) -> bool {
    location.starts_with(b"/")
        && !location.starts_with(b"//")
        && control_byte(location).is_none()
        && !location
            .iter()
            .any(|byte| matches!(byte, b'#' | b' ' | b'\t'))
}
