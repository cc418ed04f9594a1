//! The CGI meta-variables of a request.
//!
//! A client cannot override what the server knows: its fields become `HTTP_…` variables only. Left
//! out are `Proxy` (a program's HTTP library takes `HTTP_PROXY` for a proxy setting: "httpoxy"),
//! names with anything but letters, digits and hyphens (`X_A`, `X.A` and `X-A` would all become
//! `HTTP_X_A`), and fields about the connection.
//!
//! Sources: RFC 3875 section 4.1; variables beyond it that programs expect are those of the FastCGI
//! specification's examples and of PHP's manual (`$_SERVER`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::SocketAddr;

use headway_http::{Target, path, target};

use crate::client_address::UNIX_CLIENT;
use crate::fields::is_hop_by_hop;
use crate::pairs::Pairs;
use crate::request::Request;
use crate::tls_client::TlsClient;

/// The most header fields whose names are compared with each other.
const COMPARED_MAX: usize = 16;

/// What the server knows in addition to the request.
#[derive(Clone, Copy, Debug)]
pub struct Context<'c> {
    /// `SCRIPT_NAME`: the part of the path that names the program, decoded, with its leading slash.
    pub script_name: &'c [u8],
    /// `PATH_INFO`: the rest of the path, decoded; empty if there is none.
    pub path_info: &'c [u8],
    /// `SCRIPT_FILENAME`: the program's file, absolute.
    pub script_filename: &'c [u8],
    /// `DOCUMENT_ROOT`, absolute, without a slash at its end. `PATH_TRANSLATED` is the path info
    /// below it.
    pub document_root: &'c [u8],
    /// The client's address.
    pub remote: SocketAddr,
    /// The server's address.
    pub local: SocketAddr,
    /// `SERVER_NAME` if the request has no Host.
    pub server_name: &'c [u8],
    /// Name and version of the server, `SERVER_SOFTWARE`.
    pub server_software: &'c [u8],
    /// Whether the client uses TLS.
    pub https: bool,
    /// The TLS of the client, if it speaks it with this server. The `SSL_…` variables tell of it.
    pub tls: Option<TlsClient<'c>>,
    /// `CONTENT_LENGTH`: the body's length without framing; `None` without a body. A chunked body
    /// must be buffered first, because RFC 3875 section 4.1.2 has no other way to mark its end.
    pub body_bytes: Option<u64>,
    /// The user, if the server has authenticated one. Then `Authorization` is not passed on.
    pub user: Option<User<'c>>,
    /// Whether `Authorization` is passed on if the server did not use it itself. RFC 3875 section
    /// 4.1.18 advises against it: other programs of the same user can read an environment.
    pub authorization: bool,
}

/// A user whom the server has authenticated.
#[derive(Clone, Copy, Debug)]
pub struct User<'c> {
    /// `AUTH_TYPE`, such as `Basic`.
    pub scheme: &'c [u8],
    /// Name of the user, `REMOTE_USER`.
    pub name: &'c [u8],
}

/// Variables in the order they were added; names are unique.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(Pairs);

impl Variables {
    /// The variables of a request.
    pub fn new(request: &Request<'_>, context: &Context<'_>) -> Variables {
        let mut variables = Variables::default();
        variables.add_request(request, context);
        variables.add_paths(context);
        variables.add_parties(request, context);
        variables.add_fields(request, context);
        variables
    }

    /// Adds a configured variable, and returns whether it was added. It is left out if the name
    /// exists already or an environment cannot hold it (NUL; `=` in the name).
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> bool {
        let fits =
            !name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0);
        let takes = fits && self.get(name).is_none();
        if takes {
            self.0.push(name, value);
        }
        takes
    }

    /// Number of variables.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Number of bytes of all names and values.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter()
    }

    /// The value of a variable.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    /// Appends `NAME=value` and NUL for each variable: an environment.
    pub fn write_environment(&self, out: &mut Vec<u8>) {
        for (name, value) in self.iter() {
            out.extend_from_slice(name);
            out.push(b'=');
            out.extend_from_slice(value);
            out.push(0);
        }
    }

    /// For values from the request parser or the configuration, which both reject NUL.
    fn set(&mut self, name: &str, value: &[u8]) {
        debug_assert!(!value.contains(&0), "{name} holds NUL");
        if !value.contains(&0) {
            self.0.push(name.as_bytes(), value);
        }
    }

    fn set_text(&mut self, name: &str, value: impl fmt::Display) {
        self.0.push_text(name.as_bytes(), value);
    }

    /// An IPv4 client of an IPv6 socket is shown as IPv4. A client of a Unix socket has no address.
    fn set_address(&mut self, name: &str, socket: SocketAddr) {
        match socket.ip().to_canonical() {
            UNIX_CLIENT => self.set(name, b"unix:"),
            address => self.set_text(name, address),
        }
    }

    fn add_request(&mut self, request: &Request<'_>, context: &Context<'_>) {
        let head = request.head;
        // In normal form, like SCRIPT_NAME and PATH_INFO: programs that route by REQUEST_URI must not
        // see another path than the one which the location was chosen by.
        let uri = match head.target {
            Target::Path(received) => path::escaped(received).unwrap_or_default(),
            Target::Authority(authority) => authority.into(),
            Target::Asterisk => b"*"[..].into(),
        };
        let question_mark = memchr::memchr(b'?', &uri);
        let query = question_mark.map_or(&b""[..], |at| &uri[at + 1..]);
        self.set("GATEWAY_INTERFACE", b"CGI/1.1");
        self.set("SERVER_PROTOCOL", head.version.as_str().as_bytes());
        self.set("REQUEST_METHOD", head.method.as_str().as_bytes());
        self.set("REQUEST_URI", &uri);
        self.set("QUERY_STRING", query);
        if let Some(bytes) = context.body_bytes {
            self.set_text("CONTENT_LENGTH", bytes);
        }
        self.add_joined("CONTENT_TYPE", request, b"content-type");
    }

    fn add_paths(&mut self, context: &Context<'_>) {
        self.set("SCRIPT_NAME", context.script_name);
        self.set("SCRIPT_FILENAME", context.script_filename);
        self.set("DOCUMENT_ROOT", context.document_root);
        // PHP's CGI program refuses to run without it, as a check that a server started it.
        self.set("REDIRECT_STATUS", b"200");
        if !context.path_info.is_empty() {
            self.set("PATH_INFO", context.path_info);
            let translated = [context.document_root, context.path_info].concat();
            self.set("PATH_TRANSLATED", &translated);
        }
    }

    fn add_parties(&mut self, request: &Request<'_>, context: &Context<'_>) {
        let scheme = if context.https { "https" } else { "http" };
        let name = request
            .head
            .host
            .map_or(context.server_name, target::host_name);
        self.set("SERVER_SOFTWARE", context.server_software);
        self.set("SERVER_NAME", name);
        self.set_address("SERVER_ADDR", context.local);
        // A Unix socket has none.
        let port = match (context.local.port(), context.https) {
            (0, true) => 443,
            (0, false) => 80,
            (port, _) => port,
        };
        self.set_text("SERVER_PORT", port);
        self.set_address("REMOTE_ADDR", context.remote);
        if context.remote.port() != 0 {
            self.set_text("REMOTE_PORT", context.remote.port());
        }
        self.set("REQUEST_SCHEME", scheme.as_bytes());
        if context.https {
            self.set("HTTPS", b"on");
        }
        let tls = context.tls.iter().flat_map(TlsClient::variables);
        tls.for_each(|(name, value)| self.set(name, value));
        if let Some(user) = &context.user {
            self.set("AUTH_TYPE", user.scheme);
            self.set("REMOTE_USER", user.name);
        }
    }

    /// One variable per name; values of repeated fields are joined, as RFC 3875 section 4.1.18
    /// asks.
    fn add_fields(&mut self, request: &Request<'_>, context: &Context<'_>) {
        let credentials = context.authorization && context.user.is_none();
        let passed = || {
            let fields = request.fields();
            fields
                .filter(|(name, _)| is_passed(name, credentials))
                .map(|(name, value)| (name, request.effective_value(name, value)))
        };
        let mut few = [(&b""[..], &b""[..]); COMPARED_MAX];
        let mut count = 0;
        for field in passed() {
            match few.get_mut(count) {
                Some(room) => *room = field,
                None => return self.add_many(passed()),
            }
            count += 1;
        }
        self.add_few(&few[..count]);
    }

    /// Compares each name with every other, which needs no memory.
    fn add_few(&mut self, fields: &[(&[u8], &[u8])]) {
        for (at, (name, value)) in fields.iter().enumerate() {
            let is_same = |other: &&(&[u8], &[u8])| other.0.eq_ignore_ascii_case(name);
            if fields[..at].iter().any(|other| is_same(&other)) {
                continue;
            }
            self.0.push_changed(b"HTTP_", name, as_variable, value);
            for (_, more) in fields[at + 1..].iter().filter(is_same) {
                self.0.extend_last(separator(name), more);
            }
        }
    }

    /// One pass: comparing each name with every other takes a millisecond for long names.
    fn add_many<'r>(&mut self, fields: impl Iterator<Item = (&'r [u8], &'r [u8])>) {
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut grouped: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
        for (name, value) in fields {
            match places.entry(name.to_ascii_lowercase()) {
                Entry::Occupied(place) => grouped[*place.get()].1.push(value),
                Entry::Vacant(place) => {
                    place.insert(grouped.len());
                    grouped.push((name, vec![value]));
                }
            }
        }
        for (name, values) in grouped {
            let value = values.join(separator(name));
            self.0.push_changed(b"HTTP_", name, as_variable, &value);
        }
    }

    fn add_joined(&mut self, variable: &str, request: &Request<'_>, name: &[u8]) {
        let mut values = request.values(name);
        if let Some(first) = values.next() {
            self.set(variable, first);
            values.for_each(|more| self.0.extend_last(b", ", more));
        }
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(
                self.iter().map(|(name, value)| {
                    format!("{}={}", name.escape_ascii(), value.escape_ascii())
                }),
            )
            .finish()
    }
}

/// Cookie is the one field whose parts are not separated by commas (RFC 6265 section 5.4).
fn separator(name: &[u8]) -> &'static [u8] {
    match name.eq_ignore_ascii_case(b"cookie") {
        true => b"; ",
        false => b", ",
    }
}

fn as_variable(byte: u8) -> u8 {
    match byte {
        b'-' => b'_',
        _ => byte.to_ascii_uppercase(),
    }
}

/// Whether a field becomes an `HTTP_` variable. Fields named by `Connection` do: otherwise a client
/// could remove fields that a proxy in front has added.
fn is_passed(name: &[u8], credentials: bool) -> bool {
    let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
    let is_plain = name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    let has_own_variable = is(b"content-length") || is(b"content-type");
    // The server has handled an expectation already.
    let is_ours = is(b"proxy") || is(b"expect") || is_hop_by_hop(name);
    is_plain && !has_own_variable && !is_ours && (credentials || !is(b"authorization"))
}
