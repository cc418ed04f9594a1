//! Access log lines in the common, combined and JSON formats.
//!
//! Source: the common and combined formats and their escapes are those of Apache's mod_log_config.

use std::io::Write;
use std::net::SocketAddr;

use headway_base::civil::{Civil, iso_ms};
use headway_config::{LogField, LogFormat, LogPart, UNIX_CLIENT};

/// Longest part of a target, referer or user agent that is logged, so that a line fits in a packet
/// even when every byte needs an escape.
const VALUE_BYTES_MAX: usize = 2048;

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub struct LogLine<'a> {
    /// The client's address.
    pub client: SocketAddr,
    /// When the response ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// The host that the request names.
    pub host: Option<&'a [u8]>,
    /// The method; empty when the request could not be parsed.
    pub method: &'a [u8],
    /// The request target as the client sent it; the first line if the request could not be parsed.
    pub target: &'a [u8],
    /// `HTTP/1.1`; empty when the request could not be parsed.
    pub version: &'a str,
    /// The response's status.
    pub status: u16,
    /// Bytes of the response body that were sent.
    pub bytes: u64,
    /// The Referer header.
    pub referer: Option<&'a [u8]>,
    /// The User-Agent header.
    pub user_agent: Option<&'a [u8]>,
    /// Time from the first byte of the request to the last byte passed to the kernel, in
    /// microseconds.
    pub duration_us: u64,
    /// The address of the upstream that answered it, or was tried last.
    pub upstream: Option<&'a str>,
    /// The time in each stage of its way.
    pub stages: LogStages,
    /// The TLS of the connection.
    pub tls: Option<LogTls<'a>>,
    /// The trace that it belongs to.
    pub trace_id: Option<&'a [u8]>,
    /// Its own ID.
    pub request_id: Option<&'a [u8]>,
    /// Why the request was rejected as malformed.
    pub reason: Option<&'a str>,
}

/// Microseconds in each stage; `None` of a stage in which the request has not been.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStages {
    /// It waited for a slot of its location.
    pub queue_us: Option<u64>,
    /// Its file was looked up, or its body came.
    pub lookup_us: Option<u64>,
    /// An upstream or a program had it, until the header of their response.
    pub upstream_us: Option<u64>,
    /// The response was sent.
    pub send_us: Option<u64>,
}

/// The TLS of a connection.
#[derive(Clone, Copy, Debug)]
pub struct LogTls<'a> {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'a str,
    /// The cipher suite.
    pub cipher: &'a str,
    /// The host that the client has asked for in its handshake.
    pub server_name: Option<&'a [u8]>,
    /// The name in the client's certificate.
    pub client: Option<&'a str>,
}

impl LogLine<'_> {
    /// Appends the line with its newline; allocates nothing beyond the buffer's growth.
    pub fn write(&self, format: &LogFormat, out: &mut Vec<u8>) {
        match format {
            LogFormat::Common => self.common(out),
            LogFormat::Combined => {
                self.common(out);
                for value in [self.referer, self.user_agent] {
                    out.extend_from_slice(b" \"");
                    escape(value.unwrap_or(b"-"), out);
                    out.push(b'"');
                }
            }
            LogFormat::Json => self.json(out),
            LogFormat::Template(template) => {
                for part in template.parts() {
                    match part {
                        LogPart::Text(text) => out.extend_from_slice(text.as_bytes()),
                        LogPart::Field(field) => self.field(*field, out),
                    }
                }
            }
        }
        out.push(b'\n');
    }

    /// Appends the value of a field of a template.
    fn field(&self, field: LogField, out: &mut Vec<u8>) {
        match field {
            LogField::Client => self.client(out),
            LogField::ClientPort => match self.client.port() {
                0 => out.push(b'-'),
                port => put(out, format_args!("{port}")),
            },
            LogField::Time => self.time(out),
            LogField::TimeCommon => self.time_common(out),
            LogField::Host => escape(self.host.unwrap_or(b"-"), out),
            LogField::Request => self.request_line(out),
            LogField::Method => escape(non_empty(self.method), out),
            LogField::Target => escape(non_empty(self.target), out),
            LogField::Version => escape(non_empty(self.version.as_bytes()), out),
            LogField::Status => put(out, format_args!("{}", self.status)),
            LogField::Bytes => put(out, format_args!("{}", self.bytes)),
            LogField::Duration => seconds(Some(self.duration_us), out),
            LogField::Upstream => escape(self.upstream.unwrap_or("-").as_bytes(), out),
            LogField::QueueDuration => seconds(self.stages.queue_us, out),
            LogField::LookupDuration => seconds(self.stages.lookup_us, out),
            LogField::UpstreamDuration => seconds(self.stages.upstream_us, out),
            LogField::SendDuration => seconds(self.stages.send_us, out),
            LogField::Referer => escape(self.referer.unwrap_or(b"-"), out),
            LogField::UserAgent => escape(self.user_agent.unwrap_or(b"-"), out),
            LogField::TlsVersion => self.tls_field(|tls| Some(tls.version.as_bytes()), out),
            LogField::TlsCipher => self.tls_field(|tls| Some(tls.cipher.as_bytes()), out),
            LogField::TlsServerName => self.tls_field(|tls| tls.server_name, out),
            LogField::TlsClient => self.tls_field(|tls| tls.client.map(str::as_bytes), out),
            LogField::TraceId => out.extend_from_slice(self.trace_id.unwrap_or(b"-")),
            LogField::RequestId => out.extend_from_slice(self.request_id.unwrap_or(b"-")),
            LogField::Reason => escape(self.reason.unwrap_or("-").as_bytes(), out),
        }
    }

    /// The client without its port. One of a Unix socket has no address.
    fn client(&self, out: &mut Vec<u8>) {
        match self.client.ip() {
            UNIX_CLIENT => out.extend_from_slice(b"unix:"),
            address => put(out, format_args!("{address}")),
        }
    }

    fn tls_field<'l>(&'l self, value: fn(&'l LogTls<'l>) -> Option<&'l [u8]>, out: &mut Vec<u8>) {
        let value = self.tls.as_ref().and_then(value);
        escape(value.unwrap_or(b"-"), out);
    }

    fn common(&self, out: &mut Vec<u8>) {
        self.client(out);
        out.extend_from_slice(b" - - ");
        self.time_common(out);
        out.extend_from_slice(b" \"");
        self.request_line(out);
        match self.bytes {
            0 => put(out, format_args!("\" {} -", self.status)),
            bytes => put(out, format_args!("\" {} {bytes}", self.status)),
        }
    }

    fn time_common(&self, out: &mut Vec<u8>) {
        let time = Civil::from_unix(self.time_ms / 1000);
        let month = MONTHS[usize::from(time.month) - 1];
        put(
            out,
            format_args!("[{:02}/{month}/{}:{time} +0000]", time.day, time.year),
        );
    }

    fn request_line(&self, out: &mut Vec<u8>) {
        if self.method.is_empty() {
            return escape(non_empty(self.target), out);
        }
        escape(self.method, out);
        out.push(b' ');
        escape(self.target, out);
        put(out, format_args!(" {}", self.version));
    }

    /// As ISO 8601 has it, in UTC.
    fn time(&self, out: &mut Vec<u8>) {
        put(out, format_args!("{}", iso_ms(self.time_ms)));
    }

    fn json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        self.time(out);
        out.push(b'"');
        out.extend_from_slice(b",\"client\":\"");
        match self.client.port() {
            // Only a proxy knows it.
            0 => self.client(out),
            _ => put(out, format_args!("{}", self.client)),
        }
        out.push(b'"');
        json_string(out, "host", self.host);
        json_string(out, "method", Some(self.method));
        match self.method {
            b"" => json_string(out, "line", Some(self.target)),
            _ => json_string(out, "target", Some(self.target)),
        }
        json_string(out, "version", Some(self.version.as_bytes()));
        put(
            out,
            format_args!(",\"status\":{},\"bytes\":{}", self.status, self.bytes),
        );
        put(out, format_args!(",\"duration_us\":{}", self.duration_us));
        for (name, us) in [
            ("queue_us", self.stages.queue_us),
            ("lookup_us", self.stages.lookup_us),
            ("upstream_us", self.stages.upstream_us),
            ("send_us", self.stages.send_us),
        ] {
            if let Some(us) = us {
                put(out, format_args!(",\"{name}\":{us}"));
            }
        }
        json_string(out, "upstream", self.upstream.map(str::as_bytes));
        json_string(out, "referer", self.referer);
        json_string(out, "user_agent", self.user_agent);
        if let Some(tls) = self.tls {
            json_string(out, "tls_version", Some(tls.version.as_bytes()));
            json_string(out, "tls_cipher", Some(tls.cipher.as_bytes()));
            json_string(out, "tls_server_name", tls.server_name);
            json_string(out, "tls_client", tls.client.map(str::as_bytes));
        }
        json_string(out, "trace_id", self.trace_id);
        json_string(out, "request_id", self.request_id);
        json_string(out, "reason", self.reason.map(str::as_bytes));
        out.push(b'}');
    }
}

/// With six decimals, as `duration` has; `-` without a value.
fn seconds(us: Option<u64>, out: &mut Vec<u8>) {
    match us {
        Some(us) => put(
            out,
            format_args!("{}.{:06}", us / 1_000_000, us % 1_000_000),
        ),
        None => out.push(b'-'),
    }
}

fn non_empty(value: &[u8]) -> &[u8] {
    match value {
        b"" => b"-",
        _ => value,
    }
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a Vec cannot fail.
    let _ = out.write_fmt(text);
}

/// Escapes like Apache: quotes and backslashes with a backslash, bytes that are not printable ASCII
/// as `\xhh`. So a line stays one line, has balanced quotes and cannot control a terminal.
fn escape(value: &[u8], out: &mut Vec<u8>) {
    let (value, cut) = shortened(value);
    for &byte in value {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => put(out, format_args!("\\x{byte:02x}")),
        }
    }
    out.extend_from_slice(cut);
}

/// Writes a JSON member. UTF-8 stays as it is; an invalid byte becomes the four characters `\xhh`.
fn json_string(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    let Some(value) = value else {
        return;
    };
    put(out, format_args!(",\"{name}\":\""));
    let (value, cut) = shortened(value);
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => put(out, format_args!("\\{c}")),
                c if c.is_control() => put(out, format_args!("\\u{:04x}", u32::from(c))),
                c => put(out, format_args!("{c}")),
            }
        }
        for byte in chunk.invalid() {
            put(out, format_args!("\\\\x{byte:02x}"));
        }
    }
    out.extend_from_slice(cut);
    out.push(b'"');
}

fn shortened(value: &[u8]) -> (&[u8], &'static [u8]) {
    match value.get(..VALUE_BYTES_MAX) {
        Some(start) if value.len() > VALUE_BYTES_MAX => (start, b"..."),
        _ => (value, b""),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::PACKET_BYTES_MAX;

    pub(crate) fn line<'a>() -> LogLine<'a> {
        LogLine {
            client: "192.0.2.7:40000".parse().unwrap(),
            time_ms: 971_211_336_042,
            host: Some(b"example.com:8080"),
            method: b"GET",
            target: b"/a.html?x=1",
            version: "HTTP/1.1",
            status: 200,
            bytes: 2326,
            referer: Some(b"http://example.com/"),
            user_agent: Some(b"Mozilla/5.0"),
            duration_us: 120,
            upstream: Some("127.0.0.1:9000"),
            stages: LogStages {
                lookup_us: Some(20),
                upstream_us: Some(1_000_080),
                ..LogStages::default()
            },
            tls: None,
            trace_id: None,
            request_id: None,
            reason: None,
        }
    }

    fn formatted(line: &LogLine<'_>, format: LogFormat) -> String {
        let mut out = Vec::new();
        line.write(&format, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn template_shows_each_of_its_fields() {
        let names = LogField::ALL
            .iter()
            .map(|(name, _)| format!("{name}={{{name}}}"));
        let template = names
            .collect::<Vec<_>>()
            .join("|")
            .replace("target={target}|", "");
        let shown = formatted(&line(), template.parse().unwrap());
        let expected = "client=192.0.2.7|client-port=40000|time=2000-10-10T20:55:36.042Z|\
             time-common=[10/Oct/2000:20:55:36 +0000]|host=example.com:8080|\
             request=GET /a.html?x=1 HTTP/1.1|method=GET|version=HTTP/1.1|status=200|bytes=2326|\
             duration=0.000120|upstream=127.0.0.1:9000|queue-duration=-|lookup-duration=0.000020|\
             upstream-duration=1.000080|send-duration=-|referer=http://example.com/|user-agent=Mozilla/5.0|tls-version=-|\
             tls-cipher=-|tls-server-name=-|tls-client=-|trace-id=-|request-id=-|reason=-\n";
        assert_eq!(shown, expected);
        let known_to_a_proxy = LogLine {
            client: "192.0.2.7:0".parse().unwrap(),
            target: b"\"\n",
            ..line()
        };
        let shown = formatted(
            &known_to_a_proxy,
            "{client-port} {target} {{}}".parse().unwrap(),
        );
        assert_eq!(shown, "- \\\"\\x0a {}\n");
    }

    #[test]
    fn tls_of_the_connection_is_shown() {
        let tls = LogTls {
            version: "TLSv1.3",
            cipher: "TLS_AES_128_GCM_SHA256",
            server_name: Some(b"a.example"),
            client: Some("CN=\"x\""),
        };
        let secured = LogLine {
            tls: Some(tls),
            ..line()
        };
        let template = "{tls-version} {tls-cipher} {tls-server-name} {tls-client}";
        let expected = "TLSv1.3 TLS_AES_128_GCM_SHA256 a.example CN=\\\"x\\\"\n";
        assert_eq!(formatted(&secured, template.parse().unwrap()), expected);
        let json = formatted(&secured, LogFormat::Json);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["tls_client"], "CN=\"x\"");
        assert_eq!(json["tls_server_name"], "a.example");
        let without = formatted(&line(), LogFormat::Json);
        assert!(!without.contains("tls"), "{without}");
    }

    #[test]
    fn log_line_matches_the_common_combined_and_json_formats() {
        let common =
            "192.0.2.7 - - [10/Oct/2000:20:55:36 +0000] \"GET /a.html?x=1 HTTP/1.1\" 200 2326";
        assert_eq!(formatted(&line(), LogFormat::Common), format!("{common}\n"));
        let combined = format!("{common} \"http://example.com/\" \"Mozilla/5.0\"\n");
        assert_eq!(formatted(&line(), LogFormat::Combined), combined);
        let json: serde_json::Value =
            serde_json::from_str(&formatted(&line(), LogFormat::Json)).unwrap();
        assert_eq!(json["time"], "2000-10-10T20:55:36.042Z");
        assert_eq!(json["client"], "192.0.2.7:40000");
        assert_eq!(json["host"], "example.com:8080");
        assert_eq!(
            (&json["status"], &json["bytes"]),
            (&200.into(), &2326.into())
        );
    }

    #[test]
    fn log_fields_are_dashes_when_the_request_was_not_parsed() {
        let empty = LogLine {
            method: b"",
            target: b"",
            bytes: 0,
            referer: None,
            user_agent: None,
            ..line()
        };
        let expected = "192.0.2.7 - - [10/Oct/2000:20:55:36 +0000] \"-\" 200 - \"-\" \"-\"\n";
        assert_eq!(formatted(&empty, LogFormat::Combined), expected);
    }

    #[test]
    fn log_line_has_first_line_and_reason_when_the_request_was_rejected() {
        let rejected = LogLine {
            method: b"",
            target: b"GET /\x1b\"x HTTP/1.1",
            version: "",
            status: 400,
            host: None,
            referer: None,
            user_agent: None,
            reason: Some("no Host"),
            ..line()
        };
        let expected = r#""GET /\x1b\"x HTTP/1.1" 400 2326"#;
        let common = formatted(&rejected, LogFormat::Common);
        assert!(common.ends_with(&format!("{expected}\n")), "{common}");
        let combined = formatted(&rejected, LogFormat::Combined);
        let expected = format!("{expected} \"-\" \"-\"\n");
        assert!(combined.ends_with(&expected), "{combined}");
        let json: serde_json::Value =
            serde_json::from_str(&formatted(&rejected, LogFormat::Json)).unwrap();
        assert_eq!(json["line"], "GET /\u{1b}\"x HTTP/1.1");
        assert_eq!(
            (&json["reason"], &json["target"], &json["host"]),
            (
                &"no Host".into(),
                &serde_json::Value::Null,
                &serde_json::Value::Null
            )
        );
    }

    #[test]
    fn log_line_escapes_quotes_and_control_characters() {
        let nasty = LogLine {
            target: b"/\"\\\n\x1b[31m\xff\xc3\xa4",
            user_agent: Some(b"a\x00b"),
            ..line()
        };
        let combined = formatted(&nasty, LogFormat::Combined);
        assert!(
            combined.contains(r#""GET /\"\\\x0a\x1b[31m\xff\xc3\xa4 HTTP"#),
            "{combined}"
        );
        assert_eq!(combined.matches('\n').count(), 1);
        let json = formatted(&nasty, LogFormat::Json);
        assert_eq!(json.matches('\n').count(), 1);
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["target"], "/\"\\\n\u{1b}[31m\\xffä");
        assert_eq!(parsed["user_agent"], "a\0b");
    }

    #[test]
    fn log_line_fits_in_a_packet_when_every_value_is_long_and_escaped() {
        let long = [0u8; 20_000];
        let (name, client) = ([b'\\'; 255], "\\".repeat(2_048));
        let tls = LogTls {
            version: "TLSv1.3",
            cipher: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            server_name: Some(&name),
            client: Some(&client),
        };
        let line = LogLine {
            tls: Some(tls),
            host: Some(&long),
            target: &long,
            referer: Some(&long),
            user_agent: Some(&long),
            ..line()
        };
        let template = "{host}{target}{referer}{user-agent}{target}{target}{status}"
            .parse()
            .unwrap();
        for format in [
            LogFormat::Common,
            LogFormat::Combined,
            LogFormat::Json,
            template,
        ] {
            let written = formatted(&line, format);
            assert!(written.len() < PACKET_BYTES_MAX, "{}", written.len());
            assert!(written.contains("..."));
        }
    }

    #[test]
    fn log_date_is_correct_at_the_ends_of_months_and_years() {
        let shown = |seconds| {
            let time = Civil::from_unix(seconds);
            format!("{:04}-{:02}-{:02} {time}", time.year, time.month, time.day)
        };
        assert_eq!(shown(0), "1970-01-01 00:00:00");
        assert_eq!(shown(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(shown(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(shown(951_868_800), "2000-03-01 00:00:00");
        assert_eq!(shown(1_767_225_599), "2025-12-31 23:59:59");
        assert_eq!(shown(4_107_542_400), "2100-03-01 00:00:00");
    }
}
