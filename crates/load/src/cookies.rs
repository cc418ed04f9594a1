//! Cookies that responses set, kept and sent back for each client (RFC 6265).
//!
//! A session of a user often lives in a cookie, and then clients without cookies measure something else: each request
//! begins a session. Here each client has its own cookies, from its first request to the end of the run.
//!
//! What is left out: `Domain` and `Secure`, since a client asks one service. A client has at most
//! [`COOKIES_MAX`] cookies.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use headway_latency::Outcome;

use crate::engine::{Client, Conversation, Method, Plan, RequestFacts, RequestParts};

/// The most cookies of a client, as RFC 6265 (6.1) wants at least for each site.
const COOKIES_MAX: usize = 50;
/// The longest name and value together.
const COOKIE_BYTES_MAX: usize = 4096;

/// Has each client of a plan keep the cookies of its responses.
pub(crate) fn keep(plan: &mut Plan) {
    let inner = plan.conversation.take().unwrap_or_else(|| {
        let documents = plan.work.documents.iter();
        let documents = documents.map(|one| (one.path.clone(), one.class, one.size_bytes));
        Box::new(Visitors {
            method: plan.method,
            version: plan.protocol.version(),
            documents: documents.collect(),
            body: plan.body.clone().into(),
        })
    });
    let mut given = plan.headers.iter();
    let fixed = given.find(|(name, _)| name.eq_ignore_ascii_case("cookie"));
    plan.conversation = Some(Box::new(WithCookies {
        inner,
        fixed: fixed.map_or(String::new(), |(_, value)| value.clone()),
    }));
}

/// The cookies of one client.
#[derive(Clone, Debug, Default)]
struct Jar(Vec<Cookie>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cookie {
    name: Vec<u8>,
    value: Vec<u8>,
    path: Vec<u8>,
}

impl Jar {
    /// Takes a value of `Set-Cookie` in the response to a request for this path.
    fn set(&mut self, field: &[u8], request_path: &[u8], now_s: i64) {
        let mut parts = field.split(|byte| *byte == b';');
        let pair = parts.next().unwrap_or_default();
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else {
            return;
        };
        let name = pair[..equals].trim_ascii();
        let value = pair[equals + 1..].trim_ascii();
        let is_long = name.len() + value.len() > COOKIE_BYTES_MAX;
        if name.is_empty() || is_long || field.iter().any(u8::is_ascii_control) {
            return;
        }
        let (mut path, mut expires_s, mut age_s) = (default_path(request_path), None, None);
        for part in parts {
            let (key, value) = match part.iter().position(|byte| *byte == b'=') {
                Some(at) => (part[..at].trim_ascii(), part[at + 1..].trim_ascii()),
                None => (part.trim_ascii(), &part[..0]),
            };
            if key.eq_ignore_ascii_case(b"path") && value.starts_with(b"/") {
                path = value;
            } else if key.eq_ignore_ascii_case(b"expires") {
                expires_s = headway_http::date::parse(value);
            } else if key.eq_ignore_ascii_case(b"max-age") {
                age_s = std::str::from_utf8(value).ok();
                age_s = age_s.filter(|text| text.parse::<i64>().is_ok());
            }
        }
        // Max-Age counts more than Expires.
        let is_over = match (age_s, expires_s) {
            (Some(age), _) => age.parse::<i64>().is_ok_and(|age_s| age_s <= 0),
            (None, Some(expires_s)) => expires_s <= now_s,
            (None, None) => false,
        };
        let known = self
            .0
            .iter()
            .position(|one| one.name == name && one.path == path);
        match (known, is_over) {
            (Some(at), true) => drop(self.0.remove(at)),
            (Some(at), false) => self.0[at].value = value.to_vec(),
            (None, true) => {}
            (None, false) if self.0.len() >= COOKIES_MAX => {}
            (None, false) => self.0.push(Cookie {
                name: name.to_vec(),
                value: value.to_vec(),
                path: path.to_vec(),
            }),
        }
    }

    /// Appends those for this path, as the value of `Cookie`.
    fn write(&self, path: &[u8], out: &mut Vec<u8>) {
        let mut matching: Vec<&Cookie> = self.0.iter().filter(|one| one.matches(path)).collect();
        // Longer paths first (RFC 6265, 5.4).
        matching.sort_by_key(|one| std::cmp::Reverse(one.path.len()));
        for cookie in matching {
            if !out.is_empty() {
                out.extend_from_slice(b"; ");
            }
            out.extend_from_slice(&cookie.name);
            out.push(b'=');
            out.extend_from_slice(&cookie.value);
        }
    }
}

impl Cookie {
    fn matches(&self, path: &[u8]) -> bool {
        path.strip_prefix(&self.path[..])
            .is_some_and(|rest| rest.is_empty() || self.path.ends_with(b"/") || rest[0] == b'/')
    }
}

/// Of a path up to its last slash.
fn default_path(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/",
        Some(last) => &path[..last],
    }
}

/// Without a query.
fn bare(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| *byte == b'?');
    &target[..end.unwrap_or(target.len())]
}

/// Clients of another conversation, with cookies.
#[derive(Debug)]
struct WithCookies {
    inner: Box<dyn Conversation>,
    /// The value of `Cookie` that all requests have; may be empty.
    fixed: String,
}

impl Conversation for WithCookies {
    fn client(&self, number: u32) -> Box<dyn Client> {
        Box::new(Keeper {
            inner: self.inner.client(number),
            fixed: self.fixed.clone().into_bytes(),
            jar: Jar::default(),
            path: Vec::new(),
            sent: Vec::new(),
        })
    }

    fn speaks_http2(&self) -> bool {
        self.inner.speaks_http2()
    }
}

#[derive(Debug)]
struct Keeper {
    inner: Box<dyn Client>,
    fixed: Vec<u8>,
    jar: Jar,
    /// The path of its request.
    path: Vec<u8>,
    /// The value of `Cookie` in its request.
    sent: Vec<u8>,
}

impl Client for Keeper {
    fn choose(&mut self, document: u32) {
        self.inner.choose(document);
        self.path.clear();
        if let Some(parts) = self.inner.parts() {
            self.path.extend_from_slice(bare(parts.path));
        }
        self.sent.clear();
        self.sent.extend_from_slice(&self.fixed);
        self.jar.write(&self.path, &mut self.sent);
    }

    fn facts(&self) -> RequestFacts {
        self.inner.facts()
    }

    fn requests_on_connection(&mut self) -> Option<u32> {
        self.inner.requests_on_connection()
    }

    fn form(&self, common: &[u8], out: &mut Vec<u8>) {
        if self.sent.is_empty() {
            return self.inner.form(common, out);
        }
        let mut with = Vec::with_capacity(common.len() + self.sent.len() + 10);
        with.extend_from_slice(b"Cookie: ");
        with.extend_from_slice(&self.sent);
        with.extend_from_slice(b"\r\n");
        for line in common.split_inclusive(|byte| *byte == b'\n') {
            if !line.to_ascii_lowercase().starts_with(b"cookie:") {
                with.extend_from_slice(line);
            }
        }
        self.inner.form(&with, out);
    }

    fn parts(&self) -> Option<RequestParts<'_>> {
        let mut parts = self.inner.parts()?;
        if !self.sent.is_empty() {
            parts.headers.push(("cookie", &self.sent));
        }
        Some(parts)
    }

    fn is_head(&self) -> bool {
        self.inner.is_head()
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("set-cookie") {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now_s = now.map_or(0, |now| now.as_secs() as i64);
            self.jar.set(value, &self.path, now_s);
        }
        self.inner.field(name, value);
    }

    fn body(&mut self, piece: &[u8]) {
        self.inner.body(piece);
    }

    fn judge(&mut self, status: u16, body_bytes: u64) -> Outcome {
        self.inner.judge(status, body_bytes)
    }

    fn ended(&mut self, outcome: Outcome) {
        self.inner.ended(outcome);
    }

    fn continues(&self) -> bool {
        self.inner.continues()
    }

    fn pause(&self) -> std::time::Duration {
        self.inner.pause()
    }

    fn leave(&mut self) {
        self.inner.leave();
    }
}

/// Clients that ask for documents, as a plan without a conversation does.
#[derive(Clone, Debug)]
struct Visitors {
    method: Method,
    version: &'static str,
    /// Path, class and length if it is known.
    documents: Arc<[(String, u8, Option<u64>)]>,
    body: Arc<[u8]>,
}

impl Conversation for Visitors {
    fn client(&self, _: u32) -> Box<dyn Client> {
        Box::new(Visitor {
            all: self.clone(),
            document: 0,
        })
    }

    fn speaks_http2(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Visitor {
    all: Visitors,
    document: usize,
}

impl Client for Visitor {
    fn choose(&mut self, document: u32) {
        self.document = document as usize;
    }

    fn facts(&self) -> RequestFacts {
        let (_, class, size_bytes) = self.all.documents[self.document];
        RequestFacts {
            class,
            size_bytes,
            repeats: self.all.method.is_idempotent(),
        }
    }

    fn requests_on_connection(&mut self) -> Option<u32> {
        None
    }

    fn form(&self, common: &[u8], out: &mut Vec<u8>) {
        let path = &self.all.documents[self.document].0;
        for part in [self.all.method.name(), " ", path, " ", self.all.version] {
            out.extend_from_slice(part.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(common);
        out.extend_from_slice(&self.all.body);
    }

    fn parts(&self) -> Option<RequestParts<'_>> {
        let body = &*self.all.body;
        let has_body = !body.is_empty() || self.all.method.expects_body();
        Some(RequestParts {
            method: self.all.method,
            path: self.all.documents[self.document].0.as_bytes(),
            headers: Vec::new(),
            body: has_body.then_some(body),
        })
    }

    fn is_head(&self) -> bool {
        self.all.method == Method::Head
    }

    fn field(&mut self, _: &str, _: &[u8]) {}

    fn body(&mut self, _: &[u8]) {}

    fn judge(&mut self, status: u16, body_bytes: u64) -> Outcome {
        let expected = self.all.documents[self.document].2;
        match (200..300).contains(&status) {
            false => Outcome::Status,
            true if !self.is_head() && expected.is_some_and(|bytes| bytes != body_bytes) => {
                Outcome::Length
            }
            true => Outcome::Ok,
        }
    }

    fn ended(&mut self, _: Outcome) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: i64 = 1_000_000_000;

    fn after(fields: &[&str], request_path: &str, path: &str) -> String {
        let mut jar = Jar::default();
        for field in fields {
            jar.set(field.as_bytes(), request_path.as_bytes(), NOW_S);
        }
        let mut out = Vec::new();
        jar.write(path.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cookies_are_kept_replaced_and_removed() {
        let past = "Expires=Wed, 21 Oct 1998 07:28:00 GMT";
        for (fields, expected) in [
            (&["a=1; HttpOnly; Secure; SameSite=Lax"][..], "a=1"),
            (&["a=1", "b=\"x=y\""], "a=1; b=\"x=y\""),
            (&["a=1", "a=2"], "a=2"),
            (&["a=1", "a=; Max-Age=0"], ""),
            (&["a=1", &format!("a=; {past}")], ""),
            (&[&format!("a=1; max-age=60; {past}")], "a=1"),
            (&["a=1; Max-Age=-5", "b=2; Max-Age=many"], "b=2"),
            (&["a=", "=1", "nonsense", "b=1\u{7}"], "a="),
        ] {
            assert_eq!(after(fields, "/", "/"), expected, "{fields:?}");
        }
    }

    #[test]
    fn cookie_is_sent_to_its_path_and_what_is_below() {
        let fields = [
            "all=1; Path=/",
            "own=2",
            "other=3; Path=/b",
            "odd=4; Path=x",
        ];
        let request = "/a/login";
        for (path, expected) in [
            ("/a/login", "own=2; odd=4; all=1"),
            ("/a", "own=2; odd=4; all=1"),
            ("/ab", "all=1"),
            ("/b/c", "other=3; all=1"),
            ("/", "all=1"),
        ] {
            assert_eq!(after(&fields, request, path), expected, "{path}");
        }
    }

    #[test]
    fn client_has_a_limited_number_of_cookies() {
        let fields: Vec<String> = (0..60).map(|number| format!("c{number}=1")).collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        assert_eq!(after(&fields, "/", "/").split("; ").count(), COOKIES_MAX);
        assert_eq!(after(&[&format!("a={}", "x".repeat(5000))], "/", "/"), "");
    }
}
