//! `X-Accel-Redirect` and `X-Sendfile`: a response whose body is a file of the server's. Decides
//! which header fields of the handler go with the file, and where the file is.
//!
//! The handler decides which client gets the file and under which name. The server knows its
//! length, its modification time, and which range was requested.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use headway_gateway::FieldList;
use headway_http::response::HeadWriter;

/// Fields that the server sets itself: about the file, about the server, and the location of the
/// file.
const SERVER_FIELDS: [&[u8]; 8] = [
    b"Accept-Ranges",
    b"Content-Encoding",
    b"Content-Range",
    b"Date",
    b"ETag",
    b"Last-Modified",
    b"Location",
    b"Server",
];
/// Commands to a server in front of the handler; only one of them is supported.
const COMMAND_PREFIX: &[u8] = b"X-Accel-";

/// Selects the handler's fields that go with a file.
pub fn passed_fields(fields: &FieldList) -> FieldList {
    let mut passed = FieldList::default();
    for (name, value) in fields.iter() {
        let is_own = SERVER_FIELDS
            .iter()
            .any(|own| own.eq_ignore_ascii_case(name));
        let start = name.get(..COMMAND_PREFIX.len()).unwrap_or_default();
        if !is_own && !start.eq_ignore_ascii_case(COMMAND_PREFIX) {
            passed.push(name, value);
        }
    }
    passed
}

/// The media type among these fields. An empty `Content-Type` leaves the type to the file's name.
pub fn media(passed: &FieldList) -> Option<&[u8]> {
    passed
        .get(b"Content-Type")
        .filter(|value| !value.is_empty())
}

/// Writes these fields except for the media type. `described`: the response has content; without
/// content, fields that describe it are left out (RFC 9110, 15.4.5).
pub fn write_passed<'o>(
    mut writer: HeadWriter<'o>,
    passed: &FieldList,
    described: bool,
) -> HeadWriter<'o> {
    for (name, value) in passed.iter() {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        let lower = name.to_ascii_lowercase();
        let about_content = lower.starts_with("content-") && lower != "content-location";
        if lower != "content-type" && (described || !about_content) {
            writer = writer.field(name, value);
        }
    }
    writer
}

/// Maps an absolute file name to a path within this server; `None` if it is not below the document
/// root.
pub fn file_below(document_root: &[u8], file: &[u8]) -> Option<Vec<u8>> {
    let (root, file) = (OsStr::from_bytes(document_root), OsStr::from_bytes(file));
    let relative = Path::new(file).strip_prefix(root).ok()?;
    let climbs = |part: Component<'_>| part == Component::ParentDir;
    if relative.components().any(climbs) {
        return None;
    }
    let path = [b"/", relative.as_os_str().as_bytes()].concat();
    Some(super::super::encode_path(&path).into_bytes())
}

#[cfg(test)]
mod tests {
    use headway_http::{Status, Version};

    use super::*;

    #[test]
    fn x_sendfile_path_is_mapped_below_the_document_root() {
        let path = |file: &str| file_below(b"/srv/www", file.as_bytes());
        assert_eq!(
            path("/srv/www/a b/c%.txt"),
            Some(b"/a%20b/c%25.txt".to_vec())
        );
        assert_eq!(path("/srv/www"), Some(b"/".to_vec()));
        assert_eq!(path("/srv/www2/a"), None);
        assert_eq!(path("/srv/www/../a"), None);
        assert_eq!(path("a"), None);
    }

    #[test]
    fn accel_redirect_drops_headers_about_the_file() {
        let mut fields = FieldList::default();
        for (name, value) in [
            ("content-type", "text/x-own"),
            ("Content-Disposition", "attachment"),
            ("Set-Cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("etag", "\"theirs\""),
            ("x-accel-buffering", "no"),
            ("X-Accel", "an own one"),
            ("Server", "theirs"),
        ] {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        let passed = passed_fields(&fields);
        assert_eq!(media(&passed), Some(&b"text/x-own"[..]));
        let written = |described| {
            let mut head = Vec::new();
            let writer = HeadWriter::new(&mut head, Version::Http11, Status::OK);
            write_passed(writer, &passed, described).end();
            let text = String::from_utf8(head).unwrap();
            text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        let cookies = [
            "Set-Cookie: a=1",
            "set-cookie: b=2",
            "X-Accel: an own one",
            "",
        ];
        assert_eq!(written(false), cookies);
        assert_eq!(written(true)[0], "Content-Disposition: attachment");
        assert_eq!(written(true)[1..], cookies);
    }

    #[test]
    fn empty_content_type_leaves_the_type_to_the_file_name() {
        let mut fields = FieldList::default();
        fields.push(b"Content-Type", b"");
        assert_eq!(media(&passed_fields(&fields)), None);
        assert_eq!(media(&FieldList::default()), None);
    }
}
