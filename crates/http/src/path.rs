//! Turns a request target into a relative path that is safe to look up.
//!
//! Strips the query, decodes percent-escapes once, removes `.`, `..` and empty segments *after*
//! decoding, and keeps a final slash, which means a directory. Rejected are `..` above the root,
//! NUL and control bytes, an escaped slash, and names that the kernel could not look up. An escaped
//! slash would let a proxy in front see another path than the server; only for an upstream there are
//! [`slash_readings`]. A backslash is an ordinary byte.
//!
//! This is the first check, not the only one: the kernel keeps symbolic links beneath the document
//! root (`openat2`, `RESOLVE_BENEATH`).
//!
//! Sources: RFC 3986 sections 2.1, 5.2.4, 6.2.2; RFC 8615 (`.well-known`); `NAME_MAX`, `PATH_MAX`
//! of limits.h.

use std::borrow::Cow;

use memchr::memchr;

use crate::status::Status;

/// The maximum length of a component in bytes (`NAME_MAX`).
pub const COMPONENT_BYTES_MAX: usize = 255;
/// The maximum length of a path in bytes (`PATH_MAX` without the final NUL).
pub const PATH_BYTES_MAX: usize = 4095;

/// A path inside the document root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path<'p> {
    /// The relative path, without a leading slash; empty for the root itself. Ends in a slash if
    /// the target named a directory. Borrowed if it needed no change.
    pub bytes: Cow<'p, [u8]>,
    /// Whether a component starts with a dot, except `.well-known` at the top.
    pub hidden: bool,
    /// The part after the first `?`, not decoded.
    pub query: Option<&'p [u8]>,
}

impl Path<'_> {
    /// Whether the target named a directory: the root, or a final slash.
    pub fn is_directory(&self) -> bool {
        self.bytes.is_empty() || self.bytes.ends_with(b"/")
    }
}

/// Why a target has no path that can be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// `%` without two hexadecimal digits.
    #[error("invalid percent-escape")]
    BadEscape,
    /// A NUL byte.
    #[error("NUL in the path")]
    Nul,
    /// Another control byte.
    #[error("control byte in the path")]
    Control,
    /// An escaped slash.
    #[error("escaped slash in the path")]
    EncodedSlash,
    /// `..` above the root.
    #[error("path leaves the root")]
    Escapes,
    /// Longer than [`PATH_BYTES_MAX`].
    #[error("path too long")]
    TooLong,
    /// A component longer than [`COMPONENT_BYTES_MAX`].
    #[error("file name too long")]
    NameTooLong,
}

impl PathError {
    /// The status to answer with. Names that are too long or contain a slash cannot exist, so they
    /// are 404.
    pub const fn status(self) -> Status {
        match self {
            PathError::BadEscape | PathError::Nul | PathError::Control => Status::BAD_REQUEST,
            PathError::Escapes => Status::FORBIDDEN,
            PathError::EncodedSlash | PathError::NameTooLong => Status::NOT_FOUND,
            PathError::TooLong => Status::URI_TOO_LONG,
        }
    }
}

/// Converts the path and query of a target into a relative, decoded path without dot segments.
///
/// ```
/// use headway_http::path::normalise;
/// let path = normalise(b"/a/./b%20c/../d/?q=1").unwrap();
/// assert_eq!(&*path.bytes, b"a/d/");
/// assert_eq!(path.query, Some(&b"q=1"[..]));
/// assert!(normalise(b"/%2e%2e/etc/passwd").is_err());
/// ```
pub fn normalise(target_path: &[u8]) -> Result<Path<'_>, PathError> {
    let (path, query) = match memchr(b'?', target_path) {
        Some(at) => (&target_path[..at], Some(&target_path[at + 1..])),
        None => (target_path, None),
    };
    let relative = path.strip_prefix(b"/").unwrap_or(path);
    if is_plain(relative) {
        return Ok(Path {
            bytes: Cow::Borrowed(relative),
            hidden: false,
            query,
        });
    }
    rebuild(relative, query, Length::OfFiles)
}

/// Like [`normalise`] for a path which no file needs to have: without limits of its length.
///
/// ```
/// use headway_http::path::{PathError, normalise, normalise_any_length};
/// let target = format!("/{}", "a".repeat(300));
/// assert_eq!(normalise(target.as_bytes()), Err(PathError::NameTooLong));
/// assert_eq!(normalise_any_length(target.as_bytes()).unwrap().bytes.len(), 300);
/// ```
pub fn normalise_any_length(target_path: &[u8]) -> Result<Path<'_>, PathError> {
    match normalise(target_path) {
        Err(PathError::TooLong | PathError::NameTooLong) => {
            let end = memchr(b'?', target_path).unwrap_or(target_path.len());
            let (path, query) = target_path.split_at(end);
            rebuild(
                path.strip_prefix(b"/").unwrap_or(path),
                query.get(1..),
                Length::Any,
            )
        }
        normalised => normalised,
    }
}

/// Whether the path needs no change and no rejection: no escape, no control byte, no segment that
/// is empty or starts with a dot, nothing too long. Nearly every request takes this shortcut.
fn is_plain(relative: &[u8]) -> bool {
    let mut previous = b'/';
    let mut segment_start = 0;
    for (at, &byte) in relative.iter().enumerate() {
        if !IS_PLAIN[usize::from(byte)] {
            // Only `/` and `.` remain: neither may follow a slash.
            if byte != b'/' && byte != b'.' || previous == b'/' {
                return false;
            }
            if byte == b'/' {
                if at - segment_start > COMPONENT_BYTES_MAX {
                    return false;
                }
                segment_start = at + 1;
            }
        }
        previous = byte;
    }
    relative.len() - segment_start <= COMPONENT_BYTES_MAX && relative.len() <= PATH_BYTES_MAX
}

/// Bytes without a special meaning anywhere in a path.
const IS_PLAIN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x20;
    while byte < 256 {
        table[byte] = !matches!(byte as u8, b'/' | b'.' | b'%' | 0x7f);
        byte += 1;
    }
    table
};

/// The path and query to send to an upstream: the segments which [`normalise`] finds, still escaped.
///
/// The part of a server that chose where a request goes saw the normal form. An upstream which got
/// the path as received could resolve `/open/../internal` to another place than that. Only escapes
/// of unreserved characters are decoded (RFC 3986 section 6.2.2.2): `%3B` and `;` may differ for an
/// upstream. An escaped slash stays one, but is rejected next to a dot segment. A path that needs no
/// change is borrowed. An upstream need not have files, so the path may be of any length.
///
/// ```
/// use headway_http::path::escaped;
/// assert_eq!(&*escaped(b"/a/../%62//c%3Bd%2Fe?q=/..").unwrap(), b"/b/c%3Bd%2Fe?q=/..");
/// assert!(escaped(b"/a%2F../b").is_err());
/// ```
pub fn escaped(target_path: &[u8]) -> Result<Cow<'_, [u8]>, PathError> {
    let path_bytes = memchr(b'?', target_path).unwrap_or(target_path.len());
    let (path, query) = target_path.split_at(path_bytes);
    let relative = path.strip_prefix(b"/");
    if relative.is_some_and(is_plain) {
        return Ok(Cow::Borrowed(target_path));
    }
    let segments = join_segments(relative.unwrap_or(path), Escapes::Kept, Length::Any)?;
    Ok(Cow::Owned([b"/", &*segments, query].concat()))
}

/// What a path with escaped slashes means to upstreams, which differ in that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlashReadings {
    /// To an upstream that decodes the path first: an escaped slash separates segments.
    pub separating: Path<'static>,
    /// To one that splits it first, as RFC 3986 section 2.2 has it: an escaped slash is a part of its
    /// segment. It is still escaped here.
    pub joining: Vec<u8>,
}

/// Both readings of a path with escaped slashes. A server may pass it to an upstream if both belong
/// there. They lead nowhere else, since a dot segment next to an escaped slash is rejected.
///
/// ```
/// use headway_http::path::slash_readings;
/// let readings = slash_readings(b"/projects/group%2Fname").unwrap();
/// assert_eq!(&*readings.separating.bytes, b"projects/group/name");
/// assert_eq!(readings.joining, b"projects/group%2Fname");
/// assert!(slash_readings(b"/open/..%2Finternal").is_err());
/// ```
pub fn slash_readings(target_path: &[u8]) -> Result<SlashReadings, PathError> {
    let path_bytes = memchr(b'?', target_path).unwrap_or(target_path.len());
    let path = escaped(&target_path[..path_bytes])?;
    let joining = join_segments(&path[1..], Escapes::SlashKept, Length::Any)?;
    let decoded = slashes_decoded(&path);
    let separating = normalise_any_length(&decoded)?;
    Ok(SlashReadings {
        separating: Path {
            bytes: Cow::Owned(separating.bytes.into_owned()),
            hidden: separating.hidden,
            query: None,
        },
        joining,
    })
}

fn slashes_decoded(path: &[u8]) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(path.len()), path);
    while let Some(at) = memchr(b'%', rest) {
        let (before, escape) = rest.split_at(at);
        decoded.extend_from_slice(before);
        let bytes = match escape {
            [b'%', b'2', b'f' | b'F', ..] => {
                decoded.push(b'/');
                3
            }
            _ => {
                decoded.push(b'%');
                1
            }
        };
        rest = &escape[bytes..];
    }
    decoded.extend_from_slice(rest);
    decoded
}

/// What happens to percent-escapes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// An escaped slash is an error.
    Decoded,
    /// Decoded, except for slashes.
    SlashKept,
    /// Only unreserved characters are decoded, so a dot is.
    Kept,
}

/// How long a path and its segments may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// As those of files.
    OfFiles,
    /// An upstream decides.
    Any,
}

fn rebuild<'p>(
    relative: &[u8],
    query: Option<&'p [u8]>,
    length: Length,
) -> Result<Path<'p>, PathError> {
    let bytes = join_segments(relative, Escapes::Decoded, length)?;
    if length == Length::OfFiles && bytes.len() > PATH_BYTES_MAX {
        return Err(PathError::TooLong);
    }
    let hidden = is_hidden(&bytes);
    Ok(Path {
        bytes: Cow::Owned(bytes),
        hidden,
        query,
    })
}

/// Joins the segments of a path without those that are empty or dots.
fn join_segments(relative: &[u8], escapes: Escapes, length: Length) -> Result<Vec<u8>, PathError> {
    let mut bytes: Vec<u8> = Vec::with_capacity(relative.len());
    let mut segments = relative.split(|byte| *byte == b'/').peekable();
    while let Some(raw) = segments.next() {
        let is_last = segments.peek().is_none();
        let start = bytes.len();
        let name_bytes = append_segment(raw, escapes, &mut bytes)?;
        match &bytes[start..] {
            b"" | b"." => bytes.truncate(start),
            b".." => {
                bytes.truncate(start);
                drop_component(&mut bytes)?;
            }
            _ if length == Length::OfFiles && name_bytes > COMPONENT_BYTES_MAX => {
                return Err(PathError::NameTooLong);
            }
            _ if is_last => {}
            _ => bytes.push(b'/'),
        }
    }
    Ok(bytes)
}

/// Appends a segment and returns its decoded length. Escaped slashes divide it into parts, of which
/// the longest counts.
fn append_segment(raw: &[u8], escapes: Escapes, out: &mut Vec<u8>) -> Result<usize, PathError> {
    let (mut rest, mut part_bytes, mut longest_bytes) = (raw, 0, 0);
    let start = out.len();
    let mut part_start = start;
    while let [first, tail @ ..] = rest {
        let before = rest;
        let byte = match (first, tail) {
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                hex(*high)? << 4 | hex(*low)?
            }
            (b'%', _) => return Err(PathError::BadEscape),
            _ => {
                rest = tail;
                *first
            }
        };
        match byte {
            0 => return Err(PathError::Nul),
            1..=0x1f | 0x7f => return Err(PathError::Control),
            // `raw` has no other slash.
            b'/' => {
                if escapes == Escapes::Decoded || is_dots(&out[part_start..]) {
                    return Err(PathError::EncodedSlash);
                }
                out.extend_from_slice(&before[..3]);
                part_start = out.len();
                (part_bytes, longest_bytes) = (0, longest_bytes.max(part_bytes));
                continue;
            }
            _ if escapes == Escapes::Kept && *first == b'%' && !is_unreserved(byte) => {
                out.extend_from_slice(&before[..3]);
            }
            _ => out.push(byte),
        }
        part_bytes += 1;
    }
    if part_start > start && is_dots(&out[part_start..]) {
        return Err(PathError::EncodedSlash);
    }
    Ok(longest_bytes.max(part_bytes))
}

fn is_dots(part: &[u8]) -> bool {
    matches!(part, b"." | b"..")
}

/// RFC 3986 section 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn hex(digit: u8) -> Result<u8, PathError> {
    char::from(digit)
        .to_digit(16)
        .map(|value| value as u8)
        .ok_or(PathError::BadEscape)
}

/// Removes the last component and keeps the slash before it, because the result is a directory.
fn drop_component(bytes: &mut Vec<u8>) -> Result<(), PathError> {
    if bytes.pop().is_none() {
        return Err(PathError::Escapes);
    }
    while bytes.last().is_some_and(|byte| *byte != b'/') {
        bytes.pop();
    }
    Ok(())
}

fn is_hidden(bytes: &[u8]) -> bool {
    let mut components = bytes.split(|byte| *byte == b'/');
    let first = components.next().unwrap_or_default();
    (first.starts_with(b".") && first != b".well-known")
        || components.any(|component| component.starts_with(b"."))
}
