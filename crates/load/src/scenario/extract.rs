//! Values that a later step of a flow needs, taken out of a response.

use regex::bytes::{Regex, RegexBuilder};
use serde_json::Value;

/// One value: where it is, and where it is kept.
#[derive(Debug)]
pub(super) struct Extract {
    /// Its number among the values of a flow.
    pub variable: usize,
    pub place: Place,
    /// It is used in a header, so it has no control characters.
    pub is_in_header: bool,
}

/// Where a value is.
#[derive(Debug)]
pub(super) enum Place {
    /// A header of the response.
    Header(String),
    /// The first group of a regular expression in the body, or the whole match if it has none.
    Regex(Regex),
    /// A JSON pointer (RFC 6901) into the body.
    Json(String),
}

impl Place {
    /// Compiles an expression. It matches bytes; `\d` and the like are ASCII.
    pub(super) fn regex(text: &str) -> Result<Place, String> {
        let built = RegexBuilder::new(text).unicode(false).build();
        built
            .map(Place::Regex)
            .map_err(|error| format!("`{text}` is not a regular expression: {error}"))
    }

    /// Checks a JSON pointer.
    pub(super) fn json(text: &str) -> Result<Place, String> {
        match text.is_empty() || text.starts_with('/') {
            true => Ok(Place::Json(text.to_owned())),
            false => Err(format!(
                "`{text}` is not a JSON pointer; it begins with /, as in /items/0/id"
            )),
        }
    }

    pub(super) fn needs_body(&self) -> bool {
        !matches!(self, Place::Header(_))
    }
}

/// The value at this place of a body; `json` is the parsed body, once it is.
pub(super) fn find(place: &Place, body: &[u8], json: &mut Option<Value>) -> Option<Vec<u8>> {
    match place {
        Place::Header(_) => None,
        Place::Regex(regex) => {
            let found = regex.captures(body)?;
            let value = found.get(1).or(found.get(0))?;
            Some(value.as_bytes().to_vec())
        }
        Place::Json(pointer) => {
            if json.is_none() {
                *json = serde_json::from_slice(body).ok();
            }
            match json.as_ref()?.pointer(pointer)? {
                Value::Null => None,
                Value::String(text) => Some(text.clone().into_bytes()),
                other => Some(other.to_string().into_bytes()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: Place, body: &str) -> Option<String> {
        let value = find(&place, body.as_bytes(), &mut None)?;
        Some(String::from_utf8(value).expect("text"))
    }

    #[test]
    fn value_is_found_by_expression_and_by_pointer() {
        let body = r#"{"items": [{"id": 7, "name": "a\"b"}], "none": null}"#;
        let json = |pointer| found(Place::json(pointer).expect("a pointer"), body);
        assert_eq!(json("/items/0/id").as_deref(), Some("7"));
        assert_eq!(json("/items/0/name").as_deref(), Some("a\"b"));
        assert_eq!(json("/none"), None);
        assert_eq!(json("/items/1"), None);
        let regex = |text| found(Place::regex(text).expect("an expression"), body);
        assert_eq!(regex(r#""id": (\d+)"#).as_deref(), Some("7"));
        assert_eq!(regex(r"\d").as_deref(), Some("7"));
        assert_eq!(regex("absent"), None);
        assert_eq!(
            found(Place::json("/a").expect("a pointer"), "no json"),
            None
        );
    }

    #[test]
    fn wrong_expression_and_pointer_are_errors() {
        assert!(Place::regex("(").expect_err("open").contains("`(`"));
        assert!(
            Place::json("items")
                .expect_err("no /")
                .contains("begins with /")
        );
    }
}
