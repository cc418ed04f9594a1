//! Formats by name, and which of them a log has.

use std::fmt;
use std::str::FromStr;

use crate::template::Template;
use crate::{Entry, json};

/// How the lines of a log are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    name: String,
    reader: Reader,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reader {
    Json,
    Template(Template),
}

/// A text that is no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no format with a time and a latency: write nginx, apache, haproxy, envoy or json, or the format itself, \
     such as '$remote_addr [$time_local] \"$request\" $status $body_bytes_sent $request_time' (nginx) or \
     '%h %l %u %t \"%r\" %>s %b %D' (Apache)"
)]
pub struct FormatError(String);

/// In the order in which they are tried. Several may have one name.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "haproxy",
        "$syslog]: $client [$start_time] $frontend $backend $timers $status $bytes_sent $rest",
    ),
    (
        "haproxy",
        "$client [$start_time] $frontend $backend $timers $status $bytes_sent $rest",
    ),
    (
        "envoy",
        "[$start_time] \"$request\" $status $flags $received $bytes_sent $duration_ms $rest",
    ),
    (
        "envoy",
        "[$start_time] \"$request\" $status $flags $details $failure \"$tls\" $received $bytes_sent $duration_ms $rest",
    ),
    (
        "nginx",
        "$address - $user [$time_local] \"$request\" $status $body_bytes_sent \"$referer\" \"$agent\" $request_time",
    ),
    (
        "nginx",
        "$address - $user [$time_local] \"$request\" $status $body_bytes_sent $request_time",
    ),
    (
        "apache",
        "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %D",
    ),
    ("apache", "%h %l %u %t \"%r\" %>s %b %D"),
    (
        "apache",
        "%v %h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %D",
    ),
];

impl Format {
    /// The format which reads most of these lines, and at least half of them.
    pub(crate) fn of(lines: &[Vec<u8>]) -> Option<Format> {
        let candidates = std::iter::once(Format::json()).chain(
            TEMPLATES
                .iter()
                .filter_map(|(name, text)| Format::template(name, text)),
        );
        let reads = |format: &Format| {
            let is_read = |line: &&Vec<u8>| {
                let entry = format.entry(line);
                entry.is_some_and(|entry| entry.time_ns.is_some() && entry.duration_ns.is_some())
            };
            lines.iter().filter(is_read).count()
        };
        let mut best: Option<(usize, Format)> = None;
        for format in candidates {
            let read = reads(&format);
            if read > best.as_ref().map_or(0, |(most, _)| *most) {
                best = Some((read, format));
            }
        }
        let wanted = lines
            .iter()
            .filter(|line| !line.is_empty())
            .count()
            .div_ceil(2);
        best.filter(|(read, _)| *read >= wanted.max(1))
            .map(|(_, format)| format)
    }

    fn json() -> Format {
        Format {
            name: "JSON".to_owned(),
            reader: Reader::Json,
        }
    }

    fn template(name: &str, text: &str) -> Option<Format> {
        Some(Format {
            name: name.to_owned(),
            reader: Reader::Template(Template::parse(text)?),
        })
    }

    /// `None` if the line is no request of this format.
    pub(crate) fn entry(&self, line: &[u8]) -> Option<Entry> {
        match &self.reader {
            Reader::Json => json::entry(line),
            Reader::Template(template) => template.entry(line),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Format, FormatError> {
        if matches!(text, "json" | "caddy") {
            return Ok(Format::json());
        }
        // The longer form of a name: the others are found without it.
        let named = TEMPLATES.iter().find(|(name, _)| *name == text);
        let template = named.map_or(text, |(_, template)| template);
        Format::template(text, template).ok_or_else(|| FormatError(text.to_owned()))
    }
}
