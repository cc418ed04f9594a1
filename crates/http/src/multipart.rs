//! Writes the framing of `multipart/byteranges` responses.
//!
//! The length of the body is known before the first byte is sent, so the response needs no chunked
//! coding. The caller chooses the boundary; it must not occur in the parts. A boundary of 20 random
//! characters is safe enough, and reading the file to make sure would be a disk access.
//!
//! Source: RFC 9110 section 14.6, RFC 2046 section 5.1.

use crate::range::Range;
use crate::response::{is_field_value, write_content_range};

/// The framing of one response.
///
/// ```
/// use headway_http::multipart::Multipart;
/// use headway_http::range::{Ranges, ranges};
/// let Ranges::Satisfiable(parts) = ranges(b"bytes=0-0,-1", 100) else { panic!() };
/// let frame = Multipart::new("b0undary", "text/plain", 100);
/// let mut body = Vec::new();
/// for (index, range) in parts.iter().enumerate() {
/// frame.write_part_head(&mut body, index, *range);
/// body.extend_from_slice(b"x");
/// }
/// frame.write_closing(&mut body);
/// assert_eq!(body.len() as u64, frame.body_bytes(&parts));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Multipart<'m> {
    boundary: &'m str,
    media_type: &'m str,
    size_bytes: u64,
}

impl<'m> Multipart<'m> {
    /// A frame for ranges of a representation of this type and size.
    ///
    /// # Panics
    /// If the boundary is not 1 to 70 letters, digits, `-` or `_`, or the type no field value: both
    /// come from the program, not from a client.
    pub fn new(boundary: &'m str, media_type: &'m str, size_bytes: u64) -> Multipart<'m> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        assert!(
            (1..=70).contains(&boundary.len()) && boundary.bytes().all(is_plain),
            "boundary {boundary:?}"
        );
        assert!(
            is_field_value(media_type.as_bytes()),
            "media type {media_type:?}"
        );
        Multipart {
            boundary,
            media_type,
            size_bytes,
        }
    }

    /// The Content-Type of the response.
    pub fn content_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// Appends the header of a part; `index` counts parts from 0.
    pub fn write_part_head(&self, out: &mut Vec<u8>, index: usize, range: Range) {
        // The line end before a boundary belongs to the boundary, not to the part before it.
        if index > 0 {
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"--");
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend_from_slice(self.media_type.as_bytes());
        out.extend_from_slice(b"\r\nContent-Range: ");
        write_content_range(out, range, self.size_bytes);
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends the closing boundary.
    pub fn write_closing(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"--\r\n");
    }

    /// The Content-Length of the response: the parts and all the framing.
    pub fn body_bytes(&self, ranges: &[Range]) -> u64 {
        // The framing is written and measured rather than computed: two computations of one length
        // could disagree, and ranges are few.
        let mut frame = Vec::with_capacity(256);
        let mut total_bytes = 0;
        for (index, range) in ranges.iter().enumerate() {
            frame.clear();
            self.write_part_head(&mut frame, index, *range);
            total_bytes += frame.len() as u64 + range.length();
        }
        frame.clear();
        self.write_closing(&mut frame);
        total_bytes + frame.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipart_body_has_its_content_length_when_written() {
        let content = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let ranges = [
            Range {
                start: 0,
                end_exclusive: 1,
            },
            Range {
                start: 10,
                end_exclusive: 36,
            },
        ];
        let frame = Multipart::new("B", "text/plain", 36);
        let mut out = Vec::new();
        for (index, range) in ranges.iter().enumerate() {
            frame.write_part_head(&mut out, index, *range);
            out.extend_from_slice(&content[range.start as usize..range.end_exclusive as usize]);
        }
        frame.write_closing(&mut out);
        assert_eq!(frame.body_bytes(&ranges), out.len() as u64);
        let expected = "--B\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/36\r\n\r\n0\r\n\
            --B\r\nContent-Type: text/plain\r\nContent-Range: bytes 10-35/36\r\n\r\nabcdefghijklmnopqrstuvwxyz\r\n--B--\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!(frame.content_type(), "multipart/byteranges; boundary=B");
    }

    #[test]
    #[should_panic(expected = "boundary")]
    fn multipart_panics_when_the_boundary_could_end_a_line() {
        Multipart::new("a\r\nb", "text/plain", 1);
    }
}
