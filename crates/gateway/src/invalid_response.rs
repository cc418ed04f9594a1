//! Reasons why a response is not passed on.
//!
//! Each message follows the name of the program or upstream in the log. It says which line of the
//! head was wrong and why, because the author of the program has no other clue.

/// What is wrong with a response. The server answers 502. If the head has been sent already, it
/// closes the client's connection before the declared length, so that the part is not mistaken for
/// the whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResponse {
    /// The stream ended before its first byte.
    #[error("the response is empty")]
    Empty,
    /// The stream ended inside the head.
    #[error("the response ended inside its head, after {lines} lines")]
    HeadCut {
        /// Complete lines received.
        lines: u32,
    },
    /// No empty line within the limit.
    #[error("the response's head is longer than {bytes_max} bytes")]
    HeadTooLong {
        /// The limit of the header's length.
        bytes_max: usize,
    },
    /// More fields than allowed.
    #[error("the response's head has more than {fields_max} headers")]
    TooManyFields {
        /// The limit of the number of fields.
        fields_max: usize,
    },
    /// No colon, or an invalid name before it.
    #[error("line {line} of the response's head is not a header: \"{text}\"")]
    NotAField {
        /// Counted from 1.
        line: u32,
        /// The start of the line, escaped.
        text: Box<str>,
    },
    /// A line that starts with white space, which some recipients treat as a continuation of the
    /// previous line.
    #[error("line {line} of the response's head starts with white space")]
    Folded {
        /// Counted from 1.
        line: u32,
    },
    /// CR, NUL or another control byte inside a line.
    #[error("line {line} of the response's head contains the control byte {byte:#04x}")]
    ControlByte {
        /// Counted from 1.
        line: u32,
        /// The byte.
        byte: u8,
    },
    /// A line that ends in LF alone where CR LF is required.
    #[error("line {line} of the response's head ends in a bare LF")]
    BareLf {
        /// Counted from 1.
        line: u32,
    },
    /// The first line is not an HTTP/1 status line.
    #[error("the response does not begin with an HTTP/1 status line: \"{text}\"")]
    NoStatusLine {
        /// The start of the line, escaped.
        text: Box<str>,
    },
    /// A field that may occur once is repeated.
    #[error("the response's header {name} is repeated")]
    Repeated {
        /// The field.
        name: &'static str,
    },
    /// An invalid value.
    #[error("the response's header {name} is invalid: \"{text}\"")]
    BadValue {
        /// The field.
        name: &'static str,
        /// The start of the value, escaped.
        text: Box<str>,
    },
    /// A program framed its response itself, which is the server's task.
    #[error("the program sent Transfer-Encoding, which only the server may set")]
    TransferEncoding,
    /// Two ways to find the end of the body, which may disagree.
    #[error("the response has both Content-Length and Transfer-Encoding")]
    LengthWithCoding,
    /// 101 to a request that did not ask for an upgrade, or for a different protocol.
    #[error("the response switches to a protocol that was not requested")]
    UnaskedUpgrade,
    /// Too many 1xx responses in a row.
    #[error("too many interim responses")]
    TooManyInterim,
    /// None of the three fields of which a program must send one (RFC 3875 section 6.3).
    #[error("the response has none of Content-Type, Location and Status")]
    NoCgiField,
    /// The stream ended before the declared length.
    #[error("the response ended after {body_bytes} of {declared_bytes} declared bytes")]
    BodyCut {
        /// Length of the body that was received.
        body_bytes: u64,
        /// Length that Content-Length declared.
        declared_bytes: u64,
    },
}

/// The start of the invalid text, escaped for a log line.
pub(crate) fn excerpt(bytes: &[u8]) -> Box<str> {
    const SHOWN_BYTES: usize = 60;
    let shown = bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii();
    let rest = if bytes.len() > SHOWN_BYTES { "…" } else { "" };
    format!("{shown}{rest}").into_boxed_str()
}
