//! The setting `log-format`: a known format, or a template such as `{client} {status} "{request}"`.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Longest template.
const TEMPLATE_BYTES_MAX: usize = 4096;
/// More of the fields whose values come from clients could make a line that does not fit in a packet.
const LONG_FIELDS_MAX: usize = 6;

/// The format of an access log line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LogFormat {
    /// The NCSA common log format.
    Common,
    /// The common format with referer and user agent.
    #[default]
    Combined,
    /// A JSON object per line.
    Json,
    /// As the template says.
    Template(LogTemplate),
}

/// A line with places for values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTemplate {
    written: String,
    parts: Vec<LogPart>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPart {
    /// Text as it is.
    Text(String),
    /// The value of a field.
    Field(LogField),
}

macro_rules! fields {
    ($($name:literal $field:ident $is_long:literal $text:literal;)*) => {
        /// What a template can show of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LogField {
            $( #[doc = $text] $field, )*
        }

        impl LogField {
            /// All fields with their names.
            pub const ALL: &[(&str, LogField)] = &[$( ($name, LogField::$field), )*];

            /// Whether its value comes from the client and may be long.
            fn is_long(self) -> bool {
                match self {
                    $( LogField::$field => $is_long, )*
                }
            }
        }
    };
}

fields! {
    "client" Client false "The client's address.";
    "client-port" ClientPort false "The client's port; `-` if only a proxy knows it.";
    "time" Time false "When the response ended, as in `2026-11-28T12:00:00.000Z`.";
    "time-common" TimeCommon false "The same as in the common format, in brackets.";
    "host" Host true "The host that the request names.";
    "request" Request true "The first line of the request.";
    "method" Method true "The method.";
    "target" Target true "Path and query as the client sent them.";
    "version" Version false "`HTTP/1.1` or `HTTP/1.0`.";
    "status" Status false "The status of the response.";
    "bytes" Bytes false "Bytes of the body that were sent.";
    "duration" Duration false "Seconds from the first byte of the request to the last byte of the response, as in `0.000120`.";
    "upstream" Upstream false "The address of the upstream that answered, or was tried last.";
    "queue-duration" QueueDuration false "Seconds until its location had a slot for it; `-` if it had one at once.";
    "lookup-duration" LookupDuration false "Seconds until its file was found and read, or its handler had its body.";
    "upstream-duration" UpstreamDuration false "Seconds until the header of an upstream's or a program's response.";
    "send-duration" SendDuration false "Seconds from the header of the response to its last byte.";
    "referer" Referer true "The Referer header.";
    "user-agent" UserAgent true "The User-Agent header.";
    "tls-version" TlsVersion false "`TLSv1.3` or `TLSv1.2`; `-` without TLS.";
    "tls-cipher" TlsCipher false "The cipher suite.";
    "tls-server-name" TlsServerName false "The host that the client asked for in its handshake.";
    "tls-client" TlsClient true "The name in the client's certificate.";
    "trace-id" TraceId false "The ID of the trace, with `trace-context`.";
    "request-id" RequestId false "The ID of the request, with `trace-context`.";
    "reason" Reason false "Why the request was rejected as malformed.";
}

impl LogTemplate {
    /// The parts of a line, in their order.
    pub fn parts(&self) -> &[LogPart] {
        &self.parts
    }

    fn parse(written: &str) -> Result<LogTemplate, String> {
        if written.len() > TEMPLATE_BYTES_MAX || written.contains(char::is_control) {
            return Err(format!(
                "a log format is one line of at most {TEMPLATE_BYTES_MAX} bytes"
            ));
        }
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut rest = written;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let (brace, behind) = rest[at..].split_at(1);
            rest = match behind.strip_prefix(brace) {
                Some(behind) => {
                    text.push_str(brace);
                    behind
                }
                None => {
                    let (field, behind) = field(brace, behind)?;
                    if !text.is_empty() {
                        parts.push(LogPart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(LogPart::Field(field));
                    behind
                }
            };
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(LogPart::Text(text));
        }
        let is_long = |part: &&LogPart| matches!(part, LogPart::Field(field) if field.is_long());
        if parts.iter().filter(is_long).count() > LONG_FIELDS_MAX {
            return Err(format!(
                "a log format has at most {LONG_FIELDS_MAX} fields with texts of the client"
            ));
        }
        Ok(LogTemplate {
            written: written.to_owned(),
            parts,
        })
    }
}

/// The field whose name is in braces, and what is behind it.
fn field<'t>(brace: &str, behind: &'t str) -> Result<(LogField, &'t str), String> {
    let named = behind.split_once('}').filter(|_| brace == "{");
    let Some((name, behind)) = named else {
        return Err(format!(
            "`{brace}` is alone; write {brace}{brace} for the character"
        ));
    };
    let found = LogField::ALL.iter().find(|(known, _)| *known == name);
    let Some((_, field)) = found else {
        let known: Vec<&str> = LogField::ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "`{name}` is not a field; write one of {}",
            known.join(", ")
        ));
    };
    Ok((*field, behind))
}

impl Display for LogFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            LogFormat::Common => "common",
            LogFormat::Combined => "combined",
            LogFormat::Json => "json",
            LogFormat::Template(template) => &template.written,
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "common" => Ok(LogFormat::Common),
            "combined" => Ok(LogFormat::Combined),
            "json" => Ok(LogFormat::Json),
            template if template.contains('{') => {
                LogTemplate::parse(template).map(LogFormat::Template)
            }
            other => Err(format!(
                "`{other}` is not a log format; write common, combined, json, or a template such as \
                 {{client}} {{status}}"
            )),
        }
    }
}

impl TryFrom<String> for LogFormat {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LogFormat> for String {
    fn from(format: LogFormat) -> String {
        format.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_parsed_into_texts_and_fields() {
        let text = "{{\"to\": {client}}} {status}{bytes}.";
        let format: LogFormat = text.parse().unwrap();
        assert_eq!(format.to_string(), text);
        let LogFormat::Template(template) = format else {
            panic!("it is a template");
        };
        let field = LogPart::Field;
        let plain = |text: &str| LogPart::Text(text.to_owned());
        let expected = [
            plain("{\"to\": "),
            field(LogField::Client),
            plain("} "),
            field(LogField::Status),
            field(LogField::Bytes),
            plain("."),
        ];
        assert_eq!(template.parts(), expected);
    }

    #[test]
    fn template_is_an_error_when_it_cannot_be_read() {
        let many = "{target}".repeat(7);
        let long = format!("{{status}}{}", "x".repeat(5000));
        for (text, part) in [
            ("{who}", "not a field; write one of client"),
            ("{status", "is alone"),
            ("{status} }", "is alone"),
            ("{", "is alone"),
            ("plain", "is not a log format"),
            ("{status}\n", "one line"),
            (many.as_str(), "at most 6 fields"),
            (long.as_str(), "at most 4096 bytes"),
        ] {
            let error = text.parse::<LogFormat>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn known_formats_read_back_as_printed() {
        for text in ["common", "combined", "json"] {
            assert_eq!(text.parse::<LogFormat>().unwrap().to_string(), text);
        }
    }
}
