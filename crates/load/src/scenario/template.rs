//! Texts with placeholders: `/items?user={{row.user}}`.
//!
//! A placeholder is a name, and may have a filter: `{{row.name | json}}`. `{{{{` is a `{{` of the text
//! itself.

use std::io::Write;

use headway_base::random::{Draw, Random};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// What RFC 3986 leaves as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A text with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Value(Source, Filter),
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A random UUID (RFC 9562, version 4).
    Uuid,
    /// The number of the flow, from 1.
    Counter,
    /// The number of the client, from 0.
    Client,
    /// A column of the flow's row.
    Column(usize),
    /// A value that an earlier response of the flow had.
    Variable(usize),
    /// A constant, such as a variable of the environment.
    Text(String),
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// As it is.
    Raw,
    /// Percent-encoded.
    Url,
    /// As the inside of a JSON string.
    Json,
    /// The path and query of a URL, such as that of a redirect.
    Path,
}

/// The values of one flow.
pub(super) struct Values<'a> {
    pub counter: u64,
    pub client: u32,
    pub row: Option<&'a [String]>,
    pub variables: &'a [Vec<u8>],
}

/// A mistake, and in which placeholder of the text it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TemplateError {
    /// From 0, `{{{{` included.
    pub placeholder: usize,
    pub what: String,
}

impl Template {
    /// Parses a text. `source` knows the names; values without a filter get `default`.
    pub(super) fn parse(
        text: &str,
        default: Filter,
        source: &mut dyn FnMut(&str) -> Result<Source, String>,
    ) -> Result<Template, TemplateError> {
        let (mut parts, mut rest, mut placeholder) = (Vec::new(), text, 0);
        while let Some(at) = rest.find("{{") {
            put_text(&mut parts, &rest[..at]);
            rest = &rest[at + 2..];
            let wrong = |what| TemplateError { placeholder, what };
            if let Some(after) = rest.strip_prefix("{{") {
                put_text(&mut parts, "{{");
                rest = after;
                placeholder += 2;
                continue;
            }
            let Some((inside, after)) = rest.split_once("}}") else {
                let text = "`{{` has no `}}`; write `{{{{` for braces of the text itself";
                return Err(wrong(text.to_owned()));
            };
            let (name, filter) = match inside.split_once('|') {
                None => (inside, default),
                Some((name, filter)) => (name, filter_of(filter.trim()).map_err(wrong)?),
            };
            match source(name.trim()).map_err(wrong)? {
                Source::Text(text) => {
                    let mut value = Vec::new();
                    put(&mut value, text.as_bytes(), filter);
                    put_text(&mut parts, &String::from_utf8_lossy(&value));
                }
                found => parts.push(Part::Value(found, filter)),
            }
            rest = after;
            placeholder += 1;
        }
        put_text(&mut parts, rest);
        Ok(Template { parts })
    }

    /// Whether it begins with the path of a URL.
    pub(super) fn is_path(&self) -> bool {
        matches!(self.parts.first(), Some(Part::Value(_, Filter::Path)))
    }

    /// The sources of its values.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(source, _) => Some(source),
        })
    }

    /// Appends the text with its values.
    pub(super) fn render(&self, values: &Values<'_>, random: &mut Random, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Value(source, filter) => match source {
                    Source::Uuid => put_uuid(random, out),
                    Source::Counter => put_number(values.counter, out),
                    Source::Client => put_number(values.client.into(), out),
                    Source::Column(at) => {
                        let cell = values.row.and_then(|row| row.get(*at));
                        put(out, cell.map_or(&[], |cell| cell.as_bytes()), *filter);
                    }
                    Source::Variable(at) => {
                        put(
                            out,
                            values.variables.get(*at).map_or(&[], Vec::as_slice),
                            *filter,
                        );
                    }
                    Source::Text(text) => put(out, text.as_bytes(), *filter),
                },
            }
        }
    }
}

/// Neighbouring texts become one.
fn put_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Text(last)) => last.extend_from_slice(text.as_bytes()),
        _ => parts.push(Part::Text(text.as_bytes().to_vec())),
    }
}

fn filter_of(name: &str) -> Result<Filter, String> {
    match name {
        "raw" => Ok(Filter::Raw),
        "url" => Ok(Filter::Url),
        "json" => Ok(Filter::Json),
        "path" => Ok(Filter::Path),
        _ => Err(format!(
            "no filter `{name}`; there are raw, url, json and path"
        )),
    }
}

fn put(out: &mut Vec<u8>, value: &[u8], filter: Filter) {
    match filter {
        Filter::Raw => out.extend_from_slice(value),
        Filter::Url => {
            let pieces = percent_encode(value, ENCODED);
            pieces.for_each(|piece| out.extend_from_slice(piece.as_bytes()));
        }
        Filter::Json => {
            let text = String::from_utf8_lossy(value);
            let quoted = serde_json::to_string(&text).unwrap_or_default();
            let inside = quoted.len().saturating_sub(1).max(1);
            out.extend_from_slice(quoted.as_bytes().get(1..inside).unwrap_or_default());
        }
        Filter::Path => put_path(out, value),
    }
}

/// A URL without its scheme, its authority and its fragment. What may not be in a request line is encoded.
fn put_path(out: &mut Vec<u8>, url: &[u8]) {
    let delimiter = |bytes: &[u8]| bytes.iter().position(|byte| b"/?#".contains(byte));
    let path = match delimiter(url) {
        Some(at) if url[at..].starts_with(b"//") => {
            let after = &url[at + 2..];
            &after[delimiter(after).unwrap_or(after.len())..]
        }
        _ => url,
    };
    if !path.starts_with(b"/") {
        out.push(b'/');
    }
    for byte in path.iter().take_while(|byte| **byte != b'#') {
        match byte.is_ascii_graphic() {
            true => out.push(*byte),
            false => drop(write!(out, "%{byte:02X}")),
        }
    }
}

/// A vector takes everything.
fn put_number(number: u64, out: &mut Vec<u8>) {
    let _ = write!(out, "{number}");
}

fn put_uuid(random: &mut Random, out: &mut Vec<u8>) {
    let bits = (u128::from(random.next_u64()) << 64) | u128::from(random.next_u64());
    let version_4 = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let group = |shift: u32, digits: u32| (version_4 >> shift) & ((1 << (4 * digits)) - 1);
    let (a, b, c, d, e) = (
        group(96, 8),
        group(80, 4),
        group(64, 4),
        group(48, 4),
        group(0, 12),
    );
    let _ = write!(out, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, default: Filter) -> Result<Template, TemplateError> {
        Template::parse(text, default, &mut |name| match name {
            "counter" => Ok(Source::Counter),
            "uuid" => Ok(Source::Uuid),
            "row.user" => Ok(Source::Column(0)),
            "token" => Ok(Source::Variable(0)),
            "env.HOME" => Ok(Source::Text("/root".to_owned())),
            _ => Err(format!("no variable `{name}`")),
        })
    }

    fn rendered(text: &str, default: Filter) -> String {
        let values = Values {
            counter: 7,
            client: 0,
            row: Some(&["a b\"".to_owned()]),
            variables: &[b"t/1".to_vec()],
        };
        let mut out = Vec::new();
        let template = parse(text, default).expect(text);
        template.render(&values, &mut Random::new(1), &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn values_take_the_place_of_their_names() {
        let text = "/{{counter}}/{{ row.user }}?t={{token | raw}}&h={{env.HOME}}";
        assert_eq!(rendered(text, Filter::Url), "/7/a%20b%22?t=t/1&h=%2Froot");
        assert_eq!(rendered("{{row.user | json}}", Filter::Raw), "a b\\\"");
        assert_eq!(rendered("{{row.user}}", Filter::Raw), "a b\"");
        assert_eq!(rendered("{ {{{{x}} }", Filter::Raw), "{ {{x}} }");
    }

    #[test]
    fn path_of_a_url_has_no_server_and_no_fragment() {
        for (url, expected) in [
            ("https://a.b:8443/c?d=e#f", "/c?d=e"),
            ("http://a.b", "/"),
            ("//a.b?c", "/?c"),
            ("/a?to=http://b/c", "/a?to=http://b/c"),
            ("a b\u{e9}", "/a%20b%C3%A9"),
            ("", "/"),
        ] {
            let mut out = Vec::new();
            put(&mut out, url.as_bytes(), Filter::Path);
            assert_eq!(String::from_utf8(out).expect("text"), expected, "{url}");
        }
        let is_path = |text| parse(text, Filter::Url).expect(text).is_path();
        assert!(is_path("{{token | path}}") && !is_path("/{{token | path}}"));
    }

    #[test]
    fn uuid_is_random_and_of_version_4() {
        let one = rendered("{{uuid}}", Filter::Raw);
        assert_eq!(one.len(), 36);
        let dashes: Vec<usize> = one.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!(dashes, [8, 13, 18, 23]);
        assert_eq!(&one[14..15], "4");
        assert!(matches!(&one[19..20], "8" | "9" | "a" | "b"), "{one}");
        assert_ne!(rendered("{{uuid}}{{uuid}}", Filter::Raw)[36..], one);
    }

    #[test]
    fn error_says_which_placeholder_is_wrong() {
        let cases = [
            ("{{uuid}}{{item}}", 1, "no variable `item`"),
            ("{{{{a}}{{b", 2, "has no `}}`"),
            ("{{uuid | base64}}", 0, "no filter `base64`"),
            ("{{}}", 0, "no variable ``"),
        ];
        for (text, placeholder, what) in cases {
            let error = parse(text, Filter::Raw).expect_err(text);
            assert_eq!(error.placeholder, placeholder, "{text}");
            assert!(error.what.contains(what), "{}", error.what);
        }
    }
}
