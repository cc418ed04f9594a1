//! The options of a request: the server, the request itself, and TLS.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use headway_load::cli_types::{Basic, Bearer, Cookie, Count, Endpoint, Header, Url};
use headway_load::engine::{self, BODY_BYTES_MAX};
use headway_load::session::{Settings, WorkSource};
use headway_load::tls::{TlsOptions, Verification};

use super::form::{self, Field};
use crate::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestOptions {
    /// The server: http://host:port/path, https://… or unix:/path/of/socket
    ///
    /// Several servers share the load; `compare` measures them in turn.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<Url>,
    /// Add a header to every request, 'Name: value'
    ///
    /// May be repeated. It replaces a default header of that name. The run directory keeps the
    /// values, except those of Authorization, Cookie and the like.
    #[arg(long, short = 'H', value_name = "HEADER")]
    header: Vec<Header>,
    /// The Host header [default: the host of the URL]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    host: Option<String>,
    /// The method [default: GET; with a body POST]
    ///
    /// GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
    #[arg(long, short = 'X', value_name = "METHOD")]
    method: Option<engine::Method>,
    /// The body of every request
    ///
    /// Its Content-Type is application/x-www-form-urlencoded, as with curl; -H sets another one.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    data: Option<String>,
    /// Read the body from a file, at most 16 MiB
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "data",
        hide_short_help = true
    )]
    data_file: Option<PathBuf>,
    /// A field of a form: NAME=VALUE, or NAME=@FILE for the content of a file
    ///
    /// May be repeated. The body is multipart/form-data, as with curl.
    #[arg(
        long,
        value_name = "FIELD",
        conflicts_with_all = ["data", "data_file"],
        hide_short_help = true
    )]
    form: Vec<Field>,
    /// Begin each connection with a header of the PROXY protocol: v1 or v2
    #[arg(
        long,
        value_enum,
        value_name = "v1|v2",
        hide_possible_values = true,
        hide_short_help = true
    )]
    proxy_protocol: Option<ProxyProtocol>,
    /// Connect to a Unix socket; the URL gives the host and the path
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    unix_socket: Option<PathBuf>,
    /// Send a cookie with every request, 'NAME=VALUE'
    ///
    /// May be repeated. The run directory does not keep its value. Cookies of responses are ignored without --cookies.
    #[arg(long, value_name = "COOKIE", hide_short_help = true)]
    cookie: Vec<Cookie>,
    /// Each client keeps the cookies of its responses and sends them back
    ///
    /// A client is a connection, or a stream with HTTP/2. It keeps them until the run ends, also over new connections.
    #[arg(long, hide_short_help = true)]
    cookies: bool,
    /// Authenticate with a bearer token
    #[arg(long, value_name = "TOKEN", conflicts_with = "user")]
    bearer: Option<Bearer>,
    /// Authenticate with a name and a password (Basic)
    #[arg(long, value_name = "NAME:PASSWORD", hide_short_help = true)]
    user: Option<Basic>,
    /// Use HTTP/2: by ALPN over TLS, by prior knowledge with http://
    #[arg(long)]
    http2: bool,
    /// Use HTTP/1.0
    #[arg(
        long = "http1.0",
        id = "http1.0",
        conflicts_with = "http2",
        hide_short_help = true
    )]
    http10: bool,
    /// Concurrent requests per HTTP/2 connection [default: 1]
    ///
    /// With -c 8 --streams 10 a closed loop has 80 clients, like h2load -c 8 -m 10.
    #[arg(
        long,
        value_name = "N",
        requires = "http2",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    streams: Option<Count>,
    /// Request the files of a set, see `headway fileset`
    #[arg(long, value_name = "DIR", conflicts_with = "paths")]
    fileset: Option<PathBuf>,
    /// Request the paths in a file, one per line, in turn
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    paths: Option<PathBuf>,
    /// Do what users do: the steps in a TOML file
    ///
    /// Steps have weights, templates, think times, conditions, and follow-ups that use values of earlier
    /// responses. --rate and --requests then count flows: a step with its follow-ups.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["paths", "fileset", "method", "data", "data_file", "form"],
        hide_short_help = true
    )]
    scenario: Option<PathBuf>,
    /// Compare the body of each response with the checksum in the file set
    #[arg(long, hide_short_help = true)]
    verify: bool,
    #[command(flatten)]
    tls: HttpsOptions,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "HTTPS")]
struct HttpsOptions {
    /// Do not verify the certificates of servers
    #[arg(long, conflicts_with = "cacert")]
    insecure: bool,
    /// Authorities of servers, a PEM file [default: those of the system]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    cacert: Option<PathBuf>,
    /// The server name to send (SNI) and to verify [default: the host of the URL]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    sni: Option<String>,
    /// Whether new connections resume earlier sessions
    #[arg(
        long,
        value_enum,
        value_name = "on|off",
        default_value = "on",
        hide_possible_values = true,
        hide_short_help = true
    )]
    tls_resumption: OnOff,
    /// The client's certificate, and the chain to its authority, in PEM
    #[arg(long, value_name = "FILE", requires = "key", hide_short_help = true)]
    cert: Option<PathBuf>,
    /// The key of --cert in PEM
    #[arg(long, value_name = "FILE", requires = "cert", hide_short_help = true)]
    key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProxyProtocol {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnOff {
    On,
    Off,
}

impl RequestOptions {
    /// Writes the options into the settings.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), Failure> {
        settings.urls = self.urls.clone();
        settings.work = match (&self.fileset, &self.paths, &self.scenario) {
            (Some(directory), _, _) => WorkSource::FileSet(directory.clone()),
            (None, Some(file), _) => WorkSource::Paths(file.clone()),
            (None, None, Some(file)) => WorkSource::Scenario(file.clone()),
            (None, None, None) => WorkSource::Addresses,
        };
        let form = form::body(&self.form)?;
        let has_body = self.data.is_some() || self.data_file.is_some() || form.is_some();
        let default = match has_body {
            true => engine::Method::Post,
            false => engine::Method::Get,
        };
        settings.method = self.method.unwrap_or(default);
        settings.headers = self.headers()?;
        settings.body = self.body()?;
        if let Some((content_type, body)) = form {
            let name = "Content-Type";
            let mut names = settings.headers.iter().map(|(name, _)| name);
            if names.any(|given| given.eq_ignore_ascii_case(name)) {
                let text = "--form has a Content-Type of its own; leave out that of --header";
                return Err(Failure::Usage(text.to_owned()));
            }
            settings.headers.push((name.to_owned(), content_type));
            settings.body = body;
        }
        settings.host = self.host.clone();
        settings.unix_socket = self.unix_socket.clone();
        settings.verify = self.verify;
        settings.cookies = self.cookies;
        let is_https = |url: &Url| matches!(url.endpoint, Endpoint::Inet { tls: true, .. });
        if let (false, Some(option)) = (self.urls.iter().any(is_https), self.tls.first_given()) {
            let text = format!("{option} has no effect: no URL begins with https://");
            return Err(Failure::Usage(text));
        }
        settings.tls = self.tls.options();
        settings.proxy_version = self.proxy_protocol.map(|version| match version {
            ProxyProtocol::V1 => engine::ProxyVersion::V1,
            ProxyProtocol::V2 => engine::ProxyVersion::V2,
        });
        settings.protocol = match (self.http2, self.http10) {
            (false, false) => engine::Protocol::Http1,
            (false, true) => engine::Protocol::Http10,
            (true, _) => engine::Protocol::Http2 {
                streams: self.streams.map_or(1, Count::as_u32),
            },
        };
        Ok(())
    }

    fn headers(&self) -> Result<Vec<(String, String)>, Failure> {
        let basic = self.user.as_ref().map(|Basic(header)| header);
        let bearer = self.bearer.as_ref().map(|Bearer(header)| header);
        let own = basic.or(bearer);
        let twice =
            |given: &&Header| own.is_some_and(|own| own.name.eq_ignore_ascii_case(&given.name));
        if self.header.iter().any(|given| twice(&given)) {
            let text = "Authorization is given twice, by --header and by --bearer or --user";
            return Err(Failure::Usage(text.to_owned()));
        }
        let all = self.header.iter().chain(own).cloned();
        let mut all: Vec<_> = all.map(|Header { name, value }| (name, value)).collect();
        if !self.cookie.is_empty() {
            let mut names = all.iter().map(|(name, _)| name);
            if names.any(|name| name.eq_ignore_ascii_case("Cookie")) {
                let text = "cookies are given twice, by --header and by --cookie";
                return Err(Failure::Usage(text.to_owned()));
            }
            let cookies: Vec<&str> = self
                .cookie
                .iter()
                .map(|Cookie(text)| text.as_str())
                .collect();
            all.push(("Cookie".to_owned(), cookies.join("; ")));
        }
        Ok(all)
    }

    fn body(&self) -> Result<Vec<u8>, Failure> {
        match (&self.data, &self.data_file) {
            // With curl this is a file; its name is hardly what the server should get.
            (Some(text), _) if text.starts_with('@') => {
                let text = "--data sends its text; use --data-file to send a file";
                Err(Failure::Usage(text.to_owned()))
            }
            (Some(text), _) => Ok(text.clone().into_bytes()),
            (None, Some(path)) => read_body(path),
            (None, None) => Ok(Vec::new()),
        }
    }
}

pub(super) fn read_body(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    let file = File::open(path);
    let read = file.and_then(|file| {
        // A byte more shows that the file is too long; a device may have no end.
        file.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut body)
    });
    read.with_context(|| format!("reading the body from {}", path.display()))?;
    match body.len() > BODY_BYTES_MAX {
        true => Err(anyhow!("{}: a body has at most 16 MiB", path.display()).into()),
        false => Ok(body),
    }
}

impl HttpsOptions {
    /// An option that is given, and that says how HTTPS works.
    fn first_given(&self) -> Option<&'static str> {
        let all = [
            ("--insecure", self.insecure),
            ("--cacert", self.cacert.is_some()),
            ("--sni", self.sni.is_some()),
            ("--tls-resumption", self.tls_resumption == OnOff::Off),
            ("--cert", self.cert.is_some()),
        ];
        let given = all.into_iter().find(|(_, is_given)| *is_given);
        given.map(|(option, _)| option)
    }

    fn options(&self) -> TlsOptions {
        TlsOptions {
            verification: match (&self.cacert, self.insecure) {
                (Some(file), _) => Verification::File(file.clone()),
                (None, true) => Verification::Off,
                (None, false) => Verification::System,
            },
            server_name: self.sni.clone(),
            resumes: self.tls_resumption == OnOff::On,
            identity: self.cert.clone().zip(self.key.clone()),
            ..TlsOptions::default()
        }
    }
}
