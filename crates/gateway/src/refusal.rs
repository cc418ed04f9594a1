//! Why a reply was not passed on.
//!
//! Each message stands in the log behind the program's or the back end's name, and says which line
//! of the head was wrong and how: whoever wrote the program has nothing else to go by.

/// What was wrong with a reply. The server answers 502, or, if the head has been sent already,
/// closes the client's connection short of the promised length, so that nobody takes the part for
/// the whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The stream ended before its first byte.
    #[error("the reply is empty")]
    Empty,
    /// The stream ended inside the head.
    #[error("the reply ended inside its head, after {lines} lines")]
    HeadCut {
        /// Complete lines received.
        lines: u32,
    },
    /// No empty line within the limit.
    #[error("the reply's head is longer than {bytes_max} bytes")]
    HeadTooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// More fields than allowed.
    #[error("the reply's head has more than {fields_max} fields")]
    TooManyFields {
        /// The limit.
        fields_max: usize,
    },
    /// No colon, or no token before it.
    #[error("line {line} of the reply's head is no field: \"{text}\"")]
    NotAField {
        /// Counted from 1.
        line: u32,
        /// The beginning of the line, escaped.
        text: Box<str>,
    },
    /// A line that starts with white space, which some recipients take for a part of the line
    /// before.
    #[error("line {line} of the reply's head starts with white space")]
    Folded {
        /// Counted from 1.
        line: u32,
    },
    /// CR, NUL or another control byte inside a line.
    #[error("line {line} of the reply's head holds the control byte {byte:#04x}")]
    ControlByte {
        /// Counted from 1.
        line: u32,
        /// The byte.
        byte: u8,
    },
    /// A line that ends in LF alone where CR LF is required.
    #[error("line {line} of the reply's head ends in a bare LF")]
    BareLf {
        /// Counted from 1.
        line: u32,
    },
    /// The first line is no status line of HTTP/1.
    #[error("the reply does not begin with an HTTP/1 status line: \"{text}\"")]
    NoStatusLine {
        /// The beginning of the line, escaped.
        text: Box<str>,
    },
    /// A field that may come once came again.
    #[error("the reply's field {name} is repeated")]
    Repeated {
        /// The field.
        name: &'static str,
    },
    /// A value that means nothing.
    #[error("the reply's field {name} is invalid: \"{text}\"")]
    BadValue {
        /// The field.
        name: &'static str,
        /// The beginning of the value, escaped.
        text: Box<str>,
    },
    /// A program framed its reply itself; the server does that.
    #[error("the program sent Transfer-Encoding, which is the server's to choose")]
    TransferEncoding,
    /// Two ways to find the end of the body, which need not agree.
    #[error("the reply has both Content-Length and Transfer-Encoding")]
    LengthWithCoding,
    /// 101 to a request that did not ask for another protocol, or another one than it asked for.
    #[error("the reply changes the protocol, which was not asked for")]
    UnaskedUpgrade,
    /// An endless row of 1xx replies.
    #[error("the final reply is preceded by too many interim ones")]
    TooManyInterim,
    /// None of the three fields of which a program must send one (RFC 3875 section 6.3).
    #[error("the reply has none of Content-Type, Location and Status")]
    NoCgiField,
    /// The stream ended before the length it had declared.
    #[error("the reply ended after {body_bytes} of {declared_bytes} declared bytes")]
    BodyCut {
        /// Received.
        body_bytes: u64,
        /// Content-Length.
        declared_bytes: u64,
    },
}

/// The beginning of what was refused, fit for a log line.
pub(crate) fn excerpt(bytes: &[u8]) -> Box<str> {
    const SHOWN_BYTES: usize = 60;
    let shown = bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii();
    let rest = if bytes.len() > SHOWN_BYTES { "…" } else { "" };
    format!("{shown}{rest}").into_boxed_str()
}
