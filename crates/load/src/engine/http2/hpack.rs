//! HPACK: encodes requests as literals, which need no dynamic table. Of responses it reads only what the client needs.
//!
//! Sources: RFC 7541 section 6 and appendix A; RFC 9113 section 8.

use headway_http2::hpack::Decoder;

use super::super::conversation::BodyReader;
use super::super::response::Malformed;

/// Indices in the static table, RFC 7541 appendix A.
const AUTHORITY: u8 = 1;
const METHOD: u8 = 2;
const METHOD_GET: u8 = 2;
const METHOD_POST: u8 = 3;
const PATH: u8 = 4;
const SCHEME_HTTP: u8 = 6;
const SCHEME_HTTPS: u8 = 7;

/// The most bytes of a `server` header that are stored.
const SERVER_BYTES_MAX: usize = 256;

/// Appends `:method`, `:scheme` and `:authority`.
pub(super) fn put_target(block: &mut Vec<u8>, method: &str, is_tls: bool, authority: &[u8]) {
    match method {
        "GET" => block.push(0x80 | METHOD_GET),
        "POST" => block.push(0x80 | METHOD_POST),
        other => put_indexed_name(block, METHOD, other.as_bytes()),
    }
    block.push(0x80 | if is_tls { SCHEME_HTTPS } else { SCHEME_HTTP });
    put_indexed_name(block, AUTHORITY, authority);
}

/// Appends `:path`.
pub(super) fn put_path(block: &mut Vec<u8>, path: &[u8]) {
    match path {
        b"/" => block.push(0x80 | PATH),
        other => put_indexed_name(block, PATH, other),
    }
}

/// Appends a header whose name is in lower case.
pub(super) fn put_header(block: &mut Vec<u8>, name: &str, value: impl AsRef<[u8]>) {
    block.push(0);
    put_text(block, name.as_bytes());
    put_text(block, value.as_ref());
}

/// Appends a literal without indexing, RFC 7541 section 6.2.2. The names here have indices below 15.
fn put_indexed_name(block: &mut Vec<u8>, name: u8, value: &[u8]) {
    block.push(name);
    put_text(block, value);
}

/// Appends a string without Huffman code.
fn put_text(block: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text.len();
    if rest < 127 {
        block.push(rest as u8);
    } else {
        block.push(127);
        rest -= 127;
        while rest >= 128 {
            block.push(rest as u8 | 128);
            rest >>= 7;
        }
        block.push(rest as u8);
    }
    block.extend_from_slice(text);
}

/// The headers of a response that the client needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub status: u16,
    pub length: Option<u64>,
    /// A status or a length is not a number, there are two statuses, or two different lengths.
    pub is_malformed: bool,
}

/// Reads a header block. `server` is set to the first `server` header, and `client` gets all but the pseudo-headers.
pub(super) fn read(
    decoder: &mut Decoder,
    block: &[u8],
    server: &mut Option<String>,
    mut client: BodyReader<'_>,
) -> Result<Header, Malformed> {
    let mut header = Header::default();
    let decoded = decoder.decode(block, |name, value| {
        if let (Some(client), Ok(name)) = (&mut client, std::str::from_utf8(name))
            && !name.starts_with(':')
        {
            client.field(name, value);
        }
        match name {
            b":status" => header.set_status(value),
            b"content-length" => header.set_length(value),
            b"server" if server.is_none() => {
                let name = &value[..value.len().min(SERVER_BYTES_MAX)];
                *server = Some(String::from_utf8_lossy(name).trim().to_owned());
            }
            _ => {}
        }
        true
    });
    decoded.map_err(|_| Malformed)?;
    Ok(header)
}

impl Header {
    fn set_status(&mut self, value: &[u8]) {
        let status = number(value).and_then(|status| u16::try_from(status).ok());
        self.is_malformed |= self.status != 0 || status.is_none();
        self.status = status.unwrap_or(0);
    }

    fn set_length(&mut self, value: &[u8]) {
        let length = number(value);
        self.is_malformed |= length.is_none() || self.length.is_some_and(|old| Some(old) != length);
        self.length = length;
    }
}

/// A number in decimal digits.
fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    };
    (!digits.is_empty()).then_some(())?;
    digits.iter().try_fold(0, add)
}

#[cfg(test)]
mod tests;
