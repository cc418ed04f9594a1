//! A span as the worker writes it: one object of OTLP in JSON, on a line of its own.

use std::io::Write;
use std::net::SocketAddr;

use headway_base::error_line::json;
use headway_config::UNIX_CLIENT;

/// Longer values are cut.
const VALUE_BYTES_MAX: usize = 2048;
/// Methods that have a name in the semantic conventions.
const METHODS: [&[u8]; 9] = [
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH",
];

/// The span of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// 32 hexadecimal digits.
    pub trace_id: &'a [u8],
    /// 16 hexadecimal digits, which are also the ID of the request.
    pub span_id: &'a [u8],
    /// The span of the client, if the trace began before.
    pub parent_id: Option<&'a [u8]>,
    /// When the request ended, in nanoseconds since 1970.
    pub end_ns: u64,
    /// How long it took.
    pub duration_us: u64,
    /// The method.
    pub method: &'a [u8],
    /// The path as the client sent it, without the query.
    pub path: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a str,
    /// The `Host` header.
    pub host: Option<&'a [u8]>,
    /// `1.1` or `2`.
    pub version: &'a str,
    /// The address of the client.
    pub client: SocketAddr,
    /// The `User-Agent` header.
    pub user_agent: Option<&'a [u8]>,
    /// The status of the response.
    pub status: u16,
    /// Bytes of the response body that were sent.
    pub body_bytes: u64,
    /// What answered.
    pub handler: &'a str,
    /// The stages with the microseconds that the request was in them.
    pub stages: &'a [(&'a str, u64)],
}

impl Span<'_> {
    /// Appends the object and a newline.
    pub fn write(&self, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail.
        let _ = self.try_write(out);
    }

    fn try_write(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
        let method = METHODS.iter().find(|known| **known == self.method);
        let method = method.map_or("_OTHER".into(), |known| text(known));
        let start_ns = self.end_ns.saturating_sub(self.duration_us * 1_000);
        write!(
            out,
            "{{\"traceId\":{},\"spanId\":{}",
            json(&text(self.trace_id)),
            json(&text(self.span_id))
        )?;
        if let Some(parent) = self.parent_id {
            write!(out, ",\"parentSpanId\":{}", json(&text(parent)))?;
        }
        // A server span is named after its method where no route is known.
        let name = if method == "_OTHER" { "HTTP" } else { &method };
        write!(
            out,
            ",\"name\":\"{name}\",\"kind\":2,\"startTimeUnixNano\":\"{start_ns}\",\
             \"endTimeUnixNano\":\"{}\",\"attributes\":[",
            self.end_ns
        )?;
        string(out, "", "http.request.method", &method)?;
        if method == "_OTHER" {
            string(out, ",", "http.request.method_original", &text(self.method))?;
        }
        string(out, ",", "url.path", &text(self.path))?;
        string(out, ",", "url.scheme", self.scheme)?;
        string(out, ",", "network.protocol.name", "http")?;
        string(out, ",", "network.protocol.version", self.version)?;
        if let Some(host) = self.host {
            let host = text(host);
            let (name, port) = divided(&host);
            string(out, ",", "server.address", name)?;
            if let Some(port) = port {
                number(out, "server.port", port.into())?;
            }
        }
        match self.client.ip() {
            UNIX_CLIENT => string(out, ",", "network.transport", "unix")?,
            address => string(out, ",", "client.address", &address.to_string())?,
        }
        if let Some(agent) = self.user_agent {
            string(out, ",", "user_agent.original", &text(agent))?;
        }
        number(out, "http.response.status_code", self.status.into())?;
        number(out, "http.response.body.size", self.body_bytes)?;
        string(out, ",", "headway.handler", self.handler)?;
        for (stage, spent_us) in self.stages {
            number(out, &format!("headway.stage.{stage}_us"), *spent_us)?;
        }
        match self.status {
            // Errors of the client are no errors of the server's span.
            500.. => {
                string(out, ",", "error.type", &self.status.to_string())?;
                out.write_all(b"],\"status\":{\"code\":2}}\n")
            }
            _ => out.write_all(b"]}\n"),
        }
    }
}

fn string(out: &mut Vec<u8>, before: &str, key: &str, value: &str) -> std::io::Result<()> {
    let value = json(value);
    write!(
        out,
        "{before}{{\"key\":\"{key}\",\"value\":{{\"stringValue\":{value}}}}}"
    )
}

fn number(out: &mut Vec<u8>, key: &str, value: u64) -> std::io::Result<()> {
    write!(
        out,
        ",{{\"key\":\"{key}\",\"value\":{{\"intValue\":\"{value}\"}}}}"
    )
}

fn text(bytes: &[u8]) -> String {
    let cut = bytes.get(..VALUE_BYTES_MAX).unwrap_or(bytes);
    String::from_utf8_lossy(cut).into_owned()
}

/// A host and its port. An IPv6 address is in brackets.
fn divided(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (host, None),
        },
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn span() -> Span<'static> {
        Span {
            trace_id: b"0af7651916cd43dd8448eb211c80319c",
            span_id: b"00f067aa0ba902b7",
            parent_id: None,
            end_ns: 2_000_000_000,
            duration_us: 1_500,
            method: b"GET",
            path: b"/a",
            scheme: "https",
            host: Some(b"a.example:8443"),
            version: "2",
            client: "192.0.2.1:4000".parse().unwrap(),
            user_agent: None,
            status: 200,
            body_bytes: 7,
            handler: "files",
            stages: &[("send", 12)],
        }
    }

    fn written(span: &Span<'_>) -> Value {
        let mut out = Vec::new();
        span.write(&mut out);
        assert_eq!(out.pop(), Some(b'\n'));
        assert!(!out.contains(&b'\n'));
        serde_json::from_slice(&out).unwrap()
    }

    fn attribute<'v>(span: &'v Value, key: &str) -> &'v Value {
        let all = span["attributes"].as_array().unwrap();
        let found = all.iter().find(|one| one["key"] == key);
        found.map_or(&Value::Null, |one| {
            let value = one["value"].as_object().unwrap();
            value.values().next().unwrap()
        })
    }

    #[test]
    fn span_has_the_attributes_of_the_semantic_conventions() {
        let span = written(&span());
        assert_eq!(span["name"], "GET");
        assert_eq!(span["startTimeUnixNano"], "1998500000");
        assert_eq!(
            (&span["kind"], &span["parentSpanId"]),
            (&2.into(), &Value::Null)
        );
        for (key, expected) in [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("url.path", "/a"),
            ("url.scheme", "https"),
            ("server.address", "a.example"),
            ("server.port", "8443"),
            ("client.address", "192.0.2.1"),
            ("network.protocol.version", "2"),
            ("http.response.body.size", "7"),
            ("headway.stage.send_us", "12"),
        ] {
            assert_eq!(attribute(&span, key), expected, "{key}");
        }
        assert_eq!(attribute(&span, "error.type"), &Value::Null);
    }

    #[test]
    fn what_a_client_has_sent_stays_a_value() {
        let long = [b'"'; 5000];
        let span = written(&Span {
            parent_id: Some(b"b7ad6b7169203331"),
            method: b"BREW\"",
            path: b"/\"\\\n\xff",
            host: Some(b"[::1]"),
            user_agent: Some(&long),
            status: 503,
            ..span()
        });
        assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
        assert_eq!(
            (&span["name"], &span["status"]["code"]),
            (&"HTTP".into(), &2.into())
        );
        for (key, expected) in [
            ("http.request.method", "_OTHER"),
            ("http.request.method_original", "BREW\""),
            ("url.path", "/\"\\\n\u{fffd}"),
            ("server.address", "[::1]"),
            ("error.type", "503"),
        ] {
            assert_eq!(attribute(&span, key), expected, "{key}");
        }
        let agent = attribute(&span, "user_agent.original").as_str().unwrap();
        assert_eq!(agent.len(), VALUE_BYTES_MAX);
    }
}
