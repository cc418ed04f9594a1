//! Media types by file name.
//!
//! Text, JavaScript, XML and SVG carry `charset=utf-8`, because text files today are UTF-8 and a
//! browser would otherwise guess; JSON has no charset parameter (RFC 8259 section 11). An unknown
//! name is `application/octet-stream`: a download, never a type guessed from content. Pass the name
//! of the plain file, not of its compressed form.

use std::borrow::Cow;
use std::collections::HashMap;

/// The type of a file with an unknown name.
pub const DEFAULT: &str = "application/octet-stream";

const EXTENSION_BYTES_MAX: usize = 16;

/// Media types by extension, with configured overrides.
#[derive(Clone, Debug, Default)]
pub struct MediaTypes {
    overrides: HashMap<Box<[u8]>, Box<str>>,
}

impl MediaTypes {
    /// Adds overrides from extension (`.md` or `md`, also `.tar.zst`; any letter case) to type.
    ///
    /// A type is used as given, without a charset added. It must be a valid field value
    /// ([`crate::response::is_field_value`]); invalid types are ignored.
    pub fn new<E, T>(overrides: impl IntoIterator<Item = (E, T)>) -> MediaTypes
    where
        E: AsRef<str>,
        T: AsRef<str>,
    {
        let overrides = overrides.into_iter().filter_map(|(extension, media_type)| {
            let (extension, media_type) = (extension.as_ref(), media_type.as_ref());
            let key = extension.trim_start_matches('.').to_ascii_lowercase();
            crate::response::is_field_value(media_type.as_bytes())
                .then(|| (key.into_bytes().into_boxed_slice(), media_type.into()))
        });
        MediaTypes {
            overrides: overrides.collect(),
        }
    }

    /// The type for a file name or path.
    ///
    /// ```
    /// use headway_http::media::MediaTypes;
    ///
    /// let types = MediaTypes::new([(".md", "text/markdown; charset=utf-8")]);
    /// assert_eq!(types.of(b"a/b.HTML"), "text/html; charset=utf-8");
    /// assert_eq!(types.of(b"README.md"), "text/markdown; charset=utf-8");
    /// assert_eq!(types.of(b"Makefile"), "application/octet-stream");
    /// ```
    pub fn of(&self, path: &[u8]) -> Cow<'_, str> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if let Some(media_type) = self.overridden(name) {
            return Cow::Borrowed(media_type);
        }
        let Some(dot) = memchr::memrchr(b'.', name).filter(|dot| *dot > 0) else {
            return Cow::Borrowed(DEFAULT);
        };
        let extension = &name[dot + 1..];
        let mut buffer = [0; EXTENSION_BYTES_MAX];
        let Some(lower) = buffer.get_mut(..extension.len()) else {
            return Cow::Borrowed(DEFAULT);
        };
        lower.copy_from_slice(extension);
        lower.make_ascii_lowercase();
        match common(lower) {
            Some(media_type) => Cow::Borrowed(media_type),
            None => from_mime_guess(lower),
        }
    }

    /// The longest overridden extension: `.tar.zst` before `.zst`.
    fn overridden(&self, name: &[u8]) -> Option<&str> {
        if self.overrides.is_empty() {
            return None;
        }
        let lower = name.to_ascii_lowercase();
        memchr::memchr_iter(b'.', &lower)
            .find_map(|dot| self.overrides.get(&lower[dot + 1..]))
            .map(|media_type| &**media_type)
    }
}

/// The types of nearly all files on the web.
fn common(extension: &[u8]) -> Option<&'static str> {
    Some(match extension {
        b"html" | b"htm" => "text/html; charset=utf-8",
        b"css" => "text/css; charset=utf-8",
        b"js" | b"mjs" => "text/javascript; charset=utf-8",
        b"json" | b"map" => "application/json",
        b"webmanifest" => "application/manifest+json",
        b"txt" | b"log" | b"text" => "text/plain; charset=utf-8",
        b"md" => "text/markdown; charset=utf-8",
        b"csv" => "text/csv; charset=utf-8",
        b"xml" => "text/xml; charset=utf-8",
        b"xhtml" => "application/xhtml+xml; charset=utf-8",
        b"rss" => "application/rss+xml; charset=utf-8",
        b"atom" => "application/atom+xml; charset=utf-8",
        b"svg" => "image/svg+xml; charset=utf-8",
        b"png" => "image/png",
        b"jpg" | b"jpeg" => "image/jpeg",
        b"gif" => "image/gif",
        b"webp" => "image/webp",
        b"avif" => "image/avif",
        b"ico" => "image/x-icon",
        b"woff" => "font/woff",
        b"woff2" => "font/woff2",
        b"ttf" => "font/ttf",
        b"otf" => "font/otf",
        b"mp4" => "video/mp4",
        b"webm" => "video/webm",
        b"mp3" => "audio/mpeg",
        b"ogg" => "audio/ogg",
        b"wasm" => "application/wasm",
        b"pdf" => "application/pdf",
        b"zip" => "application/zip",
        b"gz" => "application/gzip",
        b"zst" => "application/zstd",
        b"tar" => "application/x-tar",
        _ => return None,
    })
}

/// Rare types, from the `mime_guess` crate.
fn from_mime_guess(extension: &[u8]) -> Cow<'static, str> {
    let known = std::str::from_utf8(extension)
        .ok()
        .and_then(|extension| mime_guess::from_ext(extension).first_raw());
    match known {
        Some(media_type) if is_text(media_type) => {
            Cow::Owned(format!("{media_type}; charset=utf-8"))
        }
        Some(media_type) => Cow::Borrowed(media_type),
        None => Cow::Borrowed(DEFAULT),
    }
}

fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/")
        || media_type.ends_with("+xml")
        || media_type.ends_with("/xml")
        || media_type.ends_with("/javascript")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_has_a_charset_when_the_content_is_text() {
        let types = MediaTypes::default();
        for (name, expected) in [
            ("index.html", "text/html; charset=utf-8"),
            ("a.b/INDEX.HTM", "text/html; charset=utf-8"),
            ("app.mjs", "text/javascript; charset=utf-8"),
            ("logo.svg", "image/svg+xml; charset=utf-8"),
            ("feed.xml", "text/xml; charset=utf-8"),
            ("a.vcf", "text/x-vcard; charset=utf-8"),
            ("data.json", "application/json"),
            ("a.png", "image/png"),
            ("a.tar.gz", "application/gzip"),
            ("a.flac", "audio/flac"),
        ] {
            assert_eq!(types.of(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn media_type_is_octet_stream_when_the_name_is_unknown() {
        let types = MediaTypes::default();
        for name in [
            &b""[..],
            b"Makefile",
            b"a.",
            b".html",
            b"a.unheardof",
            b"dir.html/file",
            b"a.\xff\xfe",
            b"a.averyveryverylongextension",
        ] {
            assert_eq!(types.of(name), DEFAULT, "{name:?}");
        }
    }

    #[test]
    fn longest_media_type_override_wins() {
        let types = MediaTypes::new([
            ("zst", "a/zst"),
            (".TAR.zst", "a/tar-zst"),
            ("bad", "a/b\r\nX: y"),
            ("html", "text/html"),
        ]);
        assert_eq!(types.of(b"x.tar.zst"), "a/tar-zst");
        assert_eq!(types.of(b"x.y.ZST"), "a/zst");
        assert_eq!(types.of(b"x.html"), "text/html");
        assert_eq!(types.of(b"x.bad"), DEFAULT);
    }
}
