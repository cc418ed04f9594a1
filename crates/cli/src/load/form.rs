//! `--form`: a body of type multipart/form-data (RFC 7578).

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::anyhow;
use headway_load::engine::BODY_BYTES_MAX;

use super::request::read_body;
use crate::Failure;

/// A field: its name, and its text or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    name: String,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    File(PathBuf),
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Field, String> {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("`{text}` is not NAME=VALUE or NAME=@FILE"))?;
        Ok(Field {
            name: name.to_owned(),
            value: match value.strip_prefix('@') {
                Some(path) => Value::File(path.into()),
                None => Value::Text(value.to_owned()),
            },
        })
    }
}

/// The Content-Type and the body of a form; `None` without a field.
pub(super) fn body(fields: &[Field]) -> Result<Option<(String, Vec<u8>)>, Failure> {
    if fields.is_empty() {
        return Ok(None);
    }
    let mut parts = Vec::new();
    for Field { name, value } in fields {
        let head = format!("Content-Disposition: form-data; name=\"{}\"", quoted(name));
        parts.push(match value {
            Value::Text(text) => (format!("{head}\r\n"), text.clone().into_bytes()),
            Value::File(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let kind = "Content-Type: application/octet-stream\r\n";
                let head = format!("{head}; filename=\"{}\"\r\n{kind}", quoted(&name));
                (head, read_body(path)?)
            }
        });
    }
    let boundary = boundary(&parts);
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend(format!("--{boundary}\r\n{head}\r\n").as_bytes());
        body.extend(content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").as_bytes());
    if body.len() > BODY_BYTES_MAX {
        return Err(anyhow!("--form: a body has at most 16 MiB").into());
    }
    Ok(Some((
        format!("multipart/form-data; boundary={boundary}"),
        body,
    )))
}

/// Escaped as browsers do it (HTML, multipart form data).
fn quoted(name: &str) -> String {
    let name = name.replace('"', "%22").replace('\r', "%0D");
    name.replace('\n', "%0A")
}

/// A text that is in no part. The same form has the same one, so that runs can be compared.
fn boundary(parts: &[(String, Vec<u8>)]) -> String {
    let is_in = |boundary: &str, content: &[u8]| {
        let mut windows = content.windows(boundary.len());
        windows.any(|window| window == boundary.as_bytes())
    };
    let mut boundary = "headway-form".to_owned();
    while parts.iter().any(|(_, content)| is_in(&boundary, content)) {
        boundary.push('-');
        boundary.push_str(&boundary.len().to_string());
    }
    boundary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: &[&str]) -> (String, String) {
        let fields: Vec<Field> = fields
            .iter()
            .map(|text| text.parse().expect(text))
            .collect();
        let (kind, body) = body(&fields).expect("readable").expect("a field");
        (kind, String::from_utf8(body).expect("UTF-8"))
    }

    #[test]
    fn form_has_a_part_per_field() {
        let (kind, body) = form(&["user=me", "a\"b==c"]);
        assert_eq!(kind, "multipart/form-data; boundary=headway-form");
        assert_eq!(
            body,
            "--headway-form\r\nContent-Disposition: form-data; name=\"user\"\r\n\r\nme\r\n\
             --headway-form\r\nContent-Disposition: form-data; name=\"a%22b\"\r\n\r\n=c\r\n\
             --headway-form--\r\n"
        );
    }

    #[test]
    fn file_has_its_name_and_a_type() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("photo.png");
        std::fs::write(&path, "pixels").expect("room");
        let (_, body) = form(&[&format!("photo=@{}", path.display())]);
        let head =
            "name=\"photo\"; filename=\"photo.png\"\r\nContent-Type: application/octet-stream";
        assert!(
            body.contains(&format!("{head}\r\n\r\npixels\r\n")),
            "{body}"
        );
    }

    #[test]
    fn boundary_is_in_no_part() {
        let (kind, body) = form(&["a=headway-form", "b=headway-form-13"]);
        let boundary = kind.rsplit_once('=').expect("a boundary").1;
        assert_eq!(body.matches(&format!("--{boundary}")).count(), 3);
        assert_eq!(body.matches(boundary).count(), 3);
    }

    #[test]
    fn field_without_a_name_is_an_error() {
        for text in ["a", "=a", ""] {
            let error = text.parse::<Field>().expect_err(text);
            assert!(error.contains("NAME=VALUE"), "{error}");
        }
    }
}
