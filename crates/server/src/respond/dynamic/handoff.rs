//! A reply whose body is a file of the server's (`X-Accel-Redirect`, `X-Sendfile`): which of the
//! program's fields go with the file, and where that file is.
//!
//! The program knows for whom the file is and what it is to be called; the server knows the file:
//! how long it is, when it changed, which part of it was asked for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use headway_gateway::FieldList;
use headway_http::response::HeadWriter;

/// What the server says itself: about the file, about itself, and where the file is.
const OWN: [&[u8]; 8] = [
    b"Accept-Ranges",
    b"Content-Encoding",
    b"Content-Range",
    b"Date",
    b"ETag",
    b"Last-Modified",
    b"Location",
    b"Server",
];
/// Orders to a server in front, of which one is understood here.
const ORDERS: &[u8] = b"X-Accel-";

/// Those of a program's fields that go with a file.
pub fn kept_fields(fields: &FieldList) -> FieldList {
    let mut kept = FieldList::default();
    for (name, value) in fields.iter() {
        let is_own = OWN.iter().any(|own| own.eq_ignore_ascii_case(name));
        let start = name.get(..ORDERS.len()).unwrap_or_default();
        if !is_own && !start.eq_ignore_ascii_case(ORDERS) {
            kept.push(name, value);
        }
    }
    kept
}

/// The media type among kept fields. An empty one is none: so a program leaves it to the file's
/// name.
pub fn media(kept: &FieldList) -> Option<&[u8]> {
    kept.get(b"Content-Type").filter(|value| !value.is_empty())
}

/// Writes the kept fields but for the media type. `described`: the reply has content; one that has
/// none says nothing about it (RFC 9110, 15.4.5).
pub fn write_kept<'o>(
    mut writer: HeadWriter<'o>,
    kept: &FieldList,
    described: bool,
) -> HeadWriter<'o> {
    for (name, value) in kept.iter() {
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

/// The path within this server of a file that a back end wants sent; none if it is not below the
/// document root.
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
    fn file_is_named_within_the_server_when_it_is_below_the_document_root() {
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
    fn fields_go_with_the_file_when_they_are_not_about_it() {
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
        let kept = kept_fields(&fields);
        assert_eq!(media(&kept), Some(&b"text/x-own"[..]));
        let written = |described| {
            let mut head = Vec::new();
            let writer = HeadWriter::new(&mut head, Version::Http11, Status::OK);
            write_kept(writer, &kept, described).end();
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
    fn name_decides_the_media_type_when_the_program_leaves_it_empty() {
        let mut fields = FieldList::default();
        fields.push(b"Content-Type", b"");
        assert_eq!(media(&kept_fields(&fields)), None);
        assert_eq!(media(&FieldList::default()), None);
    }
}
