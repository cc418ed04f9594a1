//! The settings of a `[[host]]`, a `[[header]]` and a `[[cors]]`, as they were written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;

use super::{LocationSettings, from_command_line};
use crate::error::Findings;
use crate::keys::{Key, Setting, Table, Tables, Topic, Twice, table};
use crate::units::{Millis, OneOrMany};
use crate::value::{Value, Written};
use crate::{Endpoint, Fallback, HeaderAction, LogFormat, Network, StatusRange, Symlinks};

table! {
    /// One `[[host]]`. What it leaves out is taken from the top level.
    HostSettings, "host" {
        /// Host names, such as a.example or *.example.
        ///
        /// The first host of an address may leave them out: it is the default host there.
        names: OneOrMany<String>, Host, "the default host", "[\"example.com\", \"*.example.com\"]";
        /// Addresses at which the host is served: some of listen and tls-listen of the top level.
        ///
        /// At each address the first host served there is the default host. Hosts at different addresses may have
        /// the same name.
        listen: OneOrMany<Endpoint>, Host, "all", "[\":8080\"]";
        /// Name to which the other names redirect with 308: one of them, or a URL with http or https.
        canonical: String, Host, "no redirect", "\"www.example.com\"";
        /// Document root: a directory.
        root: PathBuf, Host, "it is required", "\"/srv/example\"";
        /// Certificate in PEM, followed by its intermediate certificates. Needs tls-listen.
        tls_certificate: PathBuf, Host, "that of the top level", "\"/etc/headway/example.org.pem\"";
        /// Private key of the certificate in PEM.
        tls_key: PathBuf, Host, "the file of tls-certificate", "\"/etc/headway/example.org.key\"";
        /// File to serve for a directory, or a list of names to try in order.
        index: OneOrMany<String>, Host, "that of the top level", "\"index.html\"";
        /// Paths to serve in place of one that does not exist, in order.
        fallback: OneOrMany<Fallback>, Host, "that of the top level", "\"/index.php\"";
        /// Serve about.html at /about, and redirect /about.html there.
        clean_urls: bool, Host, "that of the top level", "true";
        /// List directories that have no index file.
        listing: bool, Host, "that of the top level", "true";
        /// Serve and list names that begin with a dot.
        dotfiles: bool, Host, "that of the top level", "true";
        /// Serve precompressed files (.br, .zst, .gz) to clients that accept them.
        precompressed: bool, Host, "that of the top level", "false";
        /// Symbolic links below the root to follow: inside, owner, none or any.
        symlinks: Symlinks, Host, "that of the top level", "\"none\"";
        /// Files to send as the body of error responses, by status.
        error_pages: BTreeMap<String, PathBuf>, Host, "that of the top level", "{ 404 = \"errors/404.html\" }";
        /// Write the access log of this host to this file.
        log: PathBuf, Host, "that of the top level", "\"/var/log/headway/example.org.log\"";
        /// Log format, as in log-format of the top level.
        log_format: LogFormat, Host, "that of the top level", "\"json\"";
        /// Networks whose clients are served; others get 403.
        allow: OneOrMany<Network>, Host, "those of the top level", "\"private\"";
        /// Networks whose clients get 403.
        deny: OneOrMany<Network>, Host, "those of the top level", "\"203.0.113.0/24\"";
        /// Paths that a handler answers, on this host.
        location: Tables<LocationSettings>, Host, "those of the top level", "[[host.location]]";
        /// Rules for response headers, on this host.
        header: Tables<HeaderSettings>, Host, "those of the top level", "[[host.header]]";
        /// Rules for pages of other origins, on this host.
        cors: Tables<CorsSettings>, Host, "those of the top level", "[[host.cors]]";
    }
}

table! {
    /// One `[[header]]`.
    HeaderSettings, "header" {
        /// Responses whose path begins so.
        prefix: String, Header, "/", "\"/assets/\"";
        /// Responses whose path ends so.
        suffix: String, Header, "any end", "\".js\"";
        /// Responses with this media type. image/* stands for all images.
        content_type: String, Header, "any type", "\"text/html\"";
        /// Responses with these statuses: success, error, any, a class such as 4xx, or a number.
        ///
        /// success is 200 to 399, so also redirects and 304. error is 400 to 599.
        when: OneOrMany<StatusRange>, Header, "success", "[\"404\", \"5xx\"]";
        /// What to do with the header: set, append or remove.
        ///
        /// set replaces the value that an upstream, a program or a more general rule has set. append
        /// adds a line.
        action: HeaderAction, Header, "set", "\"append\"";
        /// Name of the header.
        name: String, Header, "it is required", "\"Cache-Control\"";
        /// Value of the header. With remove there is none.
        value: String, Header, "it is required", "\"max-age=3600\"";
    }
}

table! {
    /// One `[[cors]]`.
    CorsSettings, "cors" {
        /// Requests whose path begins so.
        prefix: String, Cors, "/", "\"/api/\"";
        /// Origins whose pages may read responses, or * for all.
        origins: OneOrMany<String>, Cors, "it is required", "[\"https://app.example.com\"]";
        /// Methods that they may use.
        methods: OneOrMany<String>, Cors, "GET, HEAD and POST", "[\"GET\", \"PUT\", \"DELETE\"]";
        /// Request headers that they may set, or * for all.
        headers: OneOrMany<String>, Cors, "those of forms", "[\"Content-Type\", \"Authorization\"]";
        /// Response headers that they may read, or * for all.
        expose: OneOrMany<String>, Cors, "the usual ones", "\"X-Total-Count\"";
        /// Whether their requests may have cookies. Not with *.
        credentials: bool, Cors, "false", "true";
        /// How long a browser may keep the answer to a preflight.
        max_age: Millis, Cors, "10m", "\"1h\"";
    }
}
