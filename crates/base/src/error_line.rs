//! Lines of the error log: what a process of the server says, when, how serious it is, and which request it
//! concerns.
//!
//! A line stays one line: the writer escapes control characters of the message before, JSON escapes them itself.

use std::fmt::{self, Display, Write};

use crate::civil::iso_ms;
use crate::format::printable;

/// A line of the error log.
///
/// ```
/// use headway_base::error_line::{ErrorLine, RequestNote};
///
/// let request = RequestNote {
///     client: Some("192.0.2.1:4000".into()),
///     host: Some("a.example".into()),
///     line: "GET /x".into(),
///     id: Some("00f067aa0ba902b7".into()),
/// };
/// let line = ErrorLine {
///     time_ms: 971_186_136_042,
///     level: "error",
///     process: "worker 0",
///     pid: 17,
///     message: "upstream 127.0.0.1:9000: refused",
///     request: Some(&request),
/// };
/// assert_eq!(
///     line.text(),
///     "2000-10-10T13:55:36.042Z [error] worker 0[17]: upstream 127.0.0.1:9000: refused; \
///      client: 192.0.2.1:4000, host: a.example, request: \"GET /x\", request-id: 00f067aa0ba902b7"
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ErrorLine<'a> {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The level's name.
    pub level: &'a str,
    /// The kind of the process, and its number if there are several.
    pub process: &'a str,
    /// Its process ID.
    pub pid: u32,
    /// What it says.
    pub message: &'a str,
    /// The request that this is about.
    pub request: Option<&'a RequestNote>,
}

/// What identifies a request in the error log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestNote {
    /// The address of the client.
    pub client: Option<String>,
    /// The host that the request names.
    pub host: Option<String>,
    /// Its method and target.
    pub line: String,
    /// Its ID, which the access log has, too.
    pub id: Option<String>,
}

impl RequestNote {
    /// The parts that there are, with their names.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("client", self.client.as_deref()),
            ("host", self.host.as_deref()),
            ("request", Some(&*self.line)),
            ("request-id", self.id.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

impl ErrorLine<'_> {
    /// The line for people, without its newline. Control characters are escaped.
    pub fn text(&self) -> String {
        let (time, level, process) = (iso_ms(self.time_ms), self.level, self.process);
        let message = printable(self.message);
        let mut line = format!("{time} [{level}] {process}[{}]: {message}", self.pid);
        let parts = self.request.into_iter().flat_map(RequestNote::parts);
        for (at, (name, value)) in parts.enumerate() {
            let (before, value) = (if at == 0 { "; " } else { ", " }, printable(value));
            // Writing to a String cannot fail.
            let _ = match name {
                "request" => write!(line, "{before}{name}: \"{value}\""),
                _ => write!(line, "{before}{name}: {value}"),
            };
        }
        line
    }

    /// The line as a JSON object, without its newline.
    pub fn json(&self) -> String {
        let mut line = format!(
            "{{\"time\":\"{}\",\"level\":{},\"process\":{},\"pid\":{},\"message\":{}",
            iso_ms(self.time_ms),
            json(self.level),
            json(self.process),
            self.pid,
            json(self.message)
        );
        for (name, value) in self.request.into_iter().flat_map(RequestNote::parts) {
            let _ = write!(line, ",\"{}\":{}", name.replace('-', "_"), json(value));
        }
        line.push('}');
        line
    }
}

/// A text as a JSON string.
///
/// ```
/// assert_eq!(headway_base::error_line::json("a\"\\\n\u{1b}ä").to_string(), r#""a\"\\\n\u001bä""#);
/// ```
pub fn json(text: &str) -> impl Display {
    fmt::from_fn(move |out| {
        out.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(out, "\\{c}")?,
                '\n' => out.write_str("\\n")?,
                '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => write!(out, "\\u{:04x}", c as u32)?,
                _ => out.write_char(c)?,
            }
        }
        out.write_char('"')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_stays_one_line_whatever_a_client_has_sent() {
        let request = RequestNote {
            line: "GET /\n\u{1b}[31m\"".into(),
            ..RequestNote::default()
        };
        let line = ErrorLine {
            time_ms: 0,
            level: "warn",
            process: "worker 1",
            pid: 2,
            message: "a\nb",
            request: Some(&request),
        };
        let text = line.text();
        assert!(!text.contains(['\n', '\u{1b}']), "{text}");
        assert!(
            text.starts_with("1970-01-01T00:00:00.000Z [warn] worker 1[2]: a"),
            "{text}"
        );
        assert_eq!(
            line.json(),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"warn\",\"process\":\"worker 1\",\"pid\":2,\
             \"message\":\"a\\nb\",\"request\":\"GET /\\n\\u001b[31m\\\"\"}"
        );
    }
}
