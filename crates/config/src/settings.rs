//! The settings as they were written in a TOML file or on the command line, not yet checked.
//!
//! Every value remembers where it was written, so that a message can name the line or the option.
//! A setting that was not written is `None`. The defaults that are named here are those of
//! [`check`](super::check), and a test compares them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::DeTable;

use super::error::{ConfigError, ConfigFile, Findings, PlacedFile};
use super::keys::{Key, Setting, Table, Tables, Topic, Twice, table};
use super::units::{AcceptBatch, Bytes, Helpers, ListenAddress, Millis, OneOrMany};
use super::value::{Value, Written};
use super::{
    AcmeChallenge, CipherSuite, ClientCertificate, EarlyReject, Endpoint, ErrorFormat, ErrorLevel,
    EtagSource, Fallback, FileMode, Handshakes, ListenerMode, LogFormat, Network, Offload, Percent,
    Sandbox, SendMethod, Symlinks, TlsVersion,
};
use crate::extensions::KnownExtensions;
use crate::research::ResearchSettings;

mod anchor;
mod host;
mod location;

pub use host::{CorsSettings, HeaderSettings, HostSettings};
pub use location::LocationSettings;

/// The position of values from the command line, which has no bytes of a file.
pub(super) const COMMAND_LINE: Range<usize> = usize::MAX..usize::MAX;

/// A value from the command line.
pub fn from_command_line<T>(value: T) -> Spanned<T> {
    Spanned::new(COMMAND_LINE, value)
}

/// The value of `log` for standard output, which is no file of that name.
pub(super) const STANDARD_OUTPUT: &str = "-";

table! {
    /// All settings of `headway serve`. A field is named after its key.
    Settings, "" {
        /// Document root of the default host: a directory.
        ///
        /// On the command line it is the argument DIR. Another directory may take its path while it is
        /// served. On a network file system only a symbolic link in the path may be switched.
        root: PathBuf, Serving, "the current directory", "\"/srv/www\"";
        /// Other configuration files to read, relative to this one. Only a file has it.
        ///
        /// `*` and `?` in a file name stand for other characters. Hosts, locations and headers are added in the
        /// order of the file names. Any other key may be in one file only. Relative paths are relative to their file.
        include: OneOrMany<PathBuf>, Serving, "none", "[\"conf.d/*.toml\"]";
        /// Address to listen on.
        ///
        /// `127.0.0.1:8080`, `[::1]:8080`, `:8080` (all IPv4 addresses) or `8080` (this machine
        /// only). `[::]:8080` is all IPv6 addresses, without IPv4. For both, list both.
        /// `localhost:8080` is 127.0.0.1:8080; no other name is resolved.
        /// `unix:/run/headway.sock` is a Unix socket.
        listen: OneOrMany<Endpoint>, Serving, "127.0.0.1:8080", "[\":80\", \"[::]:80\"]";
        /// Permissions of Unix sockets in listen. Clients need to be able to write.
        listen_mode: FileMode, Serving, "660", "\"666\"";
        /// Owner of Unix sockets in listen: NAME or NAME:GROUP.
        listen_owner: String, Serving, "the user that starts the server", "\"www-data\"";
        /// Worker processes.
        ///
        /// Each has its own event loop and caches.
        workers: usize, Serving, "one per CPU", "4";
        /// Event mechanism: select, poll, epoll, epoll-edge or io_uring.
        events: String, Serving, "epoll", "\"epoll\"";
        /// Directory of temporary files: long request bodies and buffered responses.
        ///
        /// The files have no names, so a crash leaves none behind.
        temp_directory: PathBuf, Serving, "TMPDIR or /tmp", "\"/var/tmp\"";
        /// How often names of upstreams are resolved again; 0 means never.
        ///
        /// If their addresses have changed, new workers take over, as in a reload. The resolver of the system
        /// does not tell how long an address is valid (TTL). Choose an interval that is not longer.
        resolve_interval: Millis, Serving, "30s", "\"5s\"";
        /// User of all processes but the master, if root starts the server: NAME or NAME:GROUP.
        ///
        /// It has to be able to read the document roots, and to write the log. Ports below 1024 stay
        /// possible. Write root to stay root. If root has no user for its processes, a server that
        /// other machines can reach does not start. One for this machine alone starts as root, with
        /// a warning.
        user: String, Serving, "headway, if there is this user", "\"www-data\"";
        /// User of the programs that the server starts (CGI, direct): NAME or NAME:GROUP.
        ///
        /// The server has to be started as root. Programs cannot then reach the memory, the
        /// descriptors or the log of a worker.
        program_user: String, Serving, "that of user", "\"www-cgi\"";
        /// Whether processes can do only what their work needs: on, off or required.
        ///
        /// With on, the server uses what the kernel offers (Landlock and seccomp), and says at start what is
        /// missing. With required, it does not start then.
        sandbox: Sandbox, Serving, "on", "\"required\"";

        /// File to serve for a directory.
        ///
        /// Several names are tried in order.
        index: OneOrMany<String>, Files, "index.html", "[\"index.html\", \"index.htm\"]";
        /// Paths to serve in place of one that does not exist, in order. The last one need not exist.
        ///
        /// $path is the requested path. A fallback may be that of a program, which sees the requested
        /// path.
        fallback: OneOrMany<Fallback>, Files, "none", "[\"$path.html\", \"/index.html\"]";
        /// Serve about.html at /about, and redirect /about.html there with 308.
        ///
        /// Likewise /index.html redirects to /. It does not concern paths of locations.
        clean_urls: bool, Files, "false", "true";
        /// List directories without an index file.
        listing: bool, Files, "false", "true";
        /// Serve and list names that begin with a dot; otherwise they get 404.
        dotfiles: bool, Files, "false", "true";
        /// Serve precompressed files (.br, .zst, .gz) to clients that accept them.
        precompressed: bool, Files, "true", "false";
        /// Symbolic links below the root to follow: inside, owner, none or any.
        ///
        /// With inside, only links that lead to something in the root are followed. With owner, only links that
        /// have the same owner as what they lead to, also outside the root. Other links get 403. Links in the
        /// path of the root itself are always followed.
        symlinks: Symlinks, Files, "inside", "\"none\"";
        /// Age after which a cached file is checked for changes before it is used.
        revalidate: Millis, Files, "1s", "\"5s\"";
        /// How much longer a busy cached file is used while its check waits for the file system.
        ///
        /// Busy is what was requested within the last `revalidate` too. A helper checks meanwhile, so
        /// requests do not wait for a remote file system, or for a disk that stalls or fails. 0 makes
        /// each request wait.
        stale_while_revalidate: Millis, Files, "60s", "\"0s\"";
        /// How larger files are sent: copy, sendfile or auto.
        ///
        /// With copy, a response never mixes two versions of a file. With sendfile it uses less CPU time,
        /// but a file that is rewritten in place changes in responses under way. With auto it is the
        /// same, but copied for 10 s after a call that waited for a disk.
        send: SendMethod, Files, "copy", "\"sendfile\"";
        /// What the ETag of a file is made of: mtime-size, inode or content.
        ///
        /// Servers behind one balancer need mtime-size and copies that keep the modification time, or
        /// content: a checksum, for files up to small-file-max. inode tells files apart that have the
        /// same size and time.
        etag: EtagSource, Files, "mtime-size", "\"content\"";
        /// Value of the Server response header.
        server_header: String, Files, "Headway", "\"example\"";
        /// Omit the Server response header.
        hide_server_header: bool, Files, "false", "true";
        /// Files to send as the body of error responses, by status.
        error_pages: BTreeMap<String, PathBuf>, Files, "none", "{ 404 = \"errors/404.html\" }";
        /// Media types by file name extension, in addition to the built-in table.
        mime_types: BTreeMap<String, String>, Files, "none", "{ md = \"text/markdown\" }";

        /// Open connections per worker.
        ///
        /// For a new connection the longest idle one closes. The default is lower where the limit
        /// on open files (RLIMIT_NOFILE) demands it.
        max_connections: u32, Connections, "15000", "20000";
        /// Open connections from one address (IPv6: from one /64 network), of all workers together.
        ///
        /// Further connections get 503. 0 means no limit.
        max_connections_per_address: u32, Connections, "0", "100";
        /// Proxies in front of the server which name their client: addresses, networks or private.
        ///
        /// private is this machine and the private networks. Their clients are in the log, and count for
        /// limits. Connections of the proxies themselves are not limited by address.
        trusted_proxies: OneOrMany<Network>, Connections, "none", "[\"10.0.0.0/8\", \"192.0.2.7\"]";
        /// Header in which a trusted proxy names the client.
        ///
        /// The client is the last address in it that is not itself a trusted proxy. Forwarded is read as
        /// in RFC 7239.
        client_address_header: String, Connections, "X-Forwarded-For", "\"CF-Connecting-IP\"";
        /// Connections of trusted proxies begin with a PROXY protocol header, of version 1 or 2.
        ///
        /// Those without one are closed.
        proxy_protocol: bool, Connections, "false", "true";
        /// Networks whose clients are served; others get 403.
        ///
        /// A client is the one that a trusted proxy names.
        allow: OneOrMany<Network>, Connections, "all", "[\"192.0.2.0/24\", \"private\"]";
        /// Networks whose clients get 403, also if allow has them.
        deny: OneOrMany<Network>, Connections, "none", "\"203.0.113.0/24\"";
        /// Requests on one connection before it is closed; 0 means no limit.
        max_requests_per_connection: u32, Connections, "0", "1000";
        /// Requests of one HTTP/2 connection at a time; 0 turns HTTP/2 off.
        http2_max_concurrent_streams: u32, Connections, "100", "0";
        /// Length of the kernel's accept queue (listen backlog).
        ///
        /// With accept-batch = auto it is the upper limit.
        backlog: i64, Connections, "1024", "4096";
        /// Connections to accept per wakeup: a number, 0 for all that wait, or auto.
        ///
        /// auto accepts as many as existing connections can afford. Under overload it keeps the
        /// queue at what can be served in 250 ms, plus headroom for bursts, and drops part of the
        /// new connections (SYN filter).
        accept_batch: AcceptBatch, Connections, "auto", "25";
        /// What to do with connections that cannot be served under lasting overload.
        ///
        /// off leaves them in the queue, 503 answers them, reset resets them. Needs accept-batch =
        /// auto.
        early_reject: EarlyReject, Connections, "off", "\"503\"";
        /// How workers share the listening sockets: reuseport or shared.
        ///
        /// reuseport: one socket per worker; the kernel distributes connections by a hash. shared:
        /// one socket; the next idle worker accepts. With a shared socket accept-batch = auto cannot
        /// drop connections.
        listeners: ListenerMode, Connections, "reuseport", "\"shared\"";
        /// Keep a connection in the kernel until its first bytes arrive (TCP_DEFER_ACCEPT).
        defer_accept: bool, Connections, "true", "false";

        /// Serve HTTPS with a self-signed certificate for localhost, for development only.
        ///
        /// At the addresses of tls-listen, otherwise of listen, otherwise at 127.0.0.1:8443.
        tls: bool, Tls, "false", "true";
        /// Address to listen on for HTTPS, written as in listen.
        ///
        /// Without listen the server speaks HTTPS only. A certificate is needed: tls-certificate for all hosts or in
        /// each host, or acme-hosts.
        tls_listen: OneOrMany<Endpoint>, Tls, "no HTTPS", "[\":443\", \"[::]:443\"]";
        /// Certificate in PEM, followed by its intermediate certificates.
        ///
        /// Hosts may have others. A client gets the certificate with the name that it asks for, otherwise this one.
        /// When the file changes, the server uses the new one within about 10 s.
        tls_certificate: PathBuf, Tls, "none", "\"/etc/headway/example.com.pem\"";
        /// Private key of the certificate in PEM, without a passphrase.
        tls_key: PathBuf, Tls, "the file of tls-certificate", "\"/etc/headway/example.com.key\"";
        /// Oldest version of TLS that clients may use: 1.2 or 1.3.
        tls_minimum: TlsVersion, Tls, "1.2", "\"1.3\"";
        /// Cipher suites that clients may use, by their names at IANA.
        ///
        /// Each version needs one. Their order has no meaning.
        tls_suites: OneOrMany<CipherSuite>, Tls, "all that are safe", "[\"TLS_AES_128_GCM_SHA256\", \"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\"]";
        /// Where handshakes are done: process or inline.
        ///
        /// With process a process beside each worker does them. The worker then has no private keys in its memory,
        /// and established connections do not wait. With inline the worker does them itself.
        tls_handshakes: Handshakes, Tls, "process", "\"inline\"";
        /// What encrypts responses: the worker (off) or the kernel.
        ///
        /// With kernel, files leave by sendfile without a copy. A kernel without kernel TLS leaves it to the worker.
        tls_offload: Offload, Tls, "off", "\"kernel\"";
        /// Time for a handshake.
        tls_handshake_timeout: Millis, Tls, "10s", "\"5s\"";
        /// Let clients resume earlier sessions (session tickets), which makes handshakes faster.
        tls_tickets: bool, Tls, "true", "false";
        /// Certificates in PEM of the authorities that sign client certificates.
        ///
        /// The server then asks clients for a certificate.
        tls_client_ca: PathBuf, Tls, "no client certificates", "\"/etc/headway/clients.pem\"";
        /// Whether clients need a certificate of tls-client-ca: required or optional.
        tls_client_certificate: ClientCertificate, Tls, "required", "\"optional\"";
        /// Redirect requests that come to an address of listen to HTTPS.
        tls_redirect: bool, Tls, "false", "true";
        /// Time for which browsers use HTTPS only (Strict-Transport-Security).
        ///
        /// Responses over HTTPS have this header. Browsers remember it; 0 makes them forget it.
        hsts: Millis, Tls, "no header", "\"365d\"";
        /// Names for which the server gets certificates by itself (ACME), one for each name.
        ///
        /// They are used in addition to tls-certificate, which is then not needed.
        acme_hosts: OneOrMany<String>, Tls, "none", "[\"example.com\", \"www.example.com\"]";
        /// How the authority checks that a name leads to this server: http-01 or tls-alpn-01.
        ///
        /// It has to reach an address of listen at port 80, or with tls-alpn-01 one of tls-listen at port 443.
        acme_challenge: AcmeChallenge, Tls, "http-01", "\"tls-alpn-01\"";
        /// Mail address to which the authority writes about the certificates.
        acme_contact: String, Tls, "none", "\"mailto:admin@example.com\"";
        /// URL of the directory of the authority. staging means the test authority of Let's Encrypt.
        acme_directory: String, Tls, "that of Let's Encrypt", "\"staging\"";
        /// Certificates in PEM that are trusted when the server connects to the authority.
        acme_ca: PathBuf, Tls, "those of the system", "\"/etc/headway/ca.pem\"";
        /// Time until the next try after a failure. It doubles with each failure, up to 12 h.
        acme_retry_interval: Millis, Tls, "60s", "\"5m\"";
        /// Directory for what the server has to keep: the account at the authority, keys and certificates.
        ///
        /// Only the user that starts the server can read the keys. It is created if its parent exists.
        state_directory: PathBuf, Tls, "the directory /var/lib/headway", "\"/srv/headway\"";

        /// Time for the client to send the whole request header.
        header_timeout: Millis, Timeouts, "10s", "\"5s\"";
        /// Time without progress while a request body arrives; see also min-transfer-rate.
        ///
        /// Where no handler needs the body, time for all of it.
        body_timeout: Millis, Timeouts, "10s", "\"60s\"";
        /// Time without progress while sending a response, or while a helper works for it.
        send_timeout: Millis, Timeouts, "30s", "\"60s\"";
        /// Time a keep-alive connection may be idle.
        idle_timeout: Millis, Timeouts, "60s", "\"75s\"";
        /// Time for requests in flight to finish after a stop signal.
        drain_timeout: Millis, Timeouts, "10s", "\"30s\"";
        /// Time without progress after which a worker process is replaced; 0 means never.
        ///
        /// Its connections are lost. It gets SIGABRT, which leaves a core file where these are enabled,
        /// then SIGKILL. A worker in a debugger makes no progress.
        worker_timeout: Millis, Timeouts, "30s", "\"60s\"";

        /// Longest request header; a longer one gets 431.
        max_header_size: Bytes, Limits, "16KiB", "\"32KiB\"";
        /// Longest request target (path and query); a longer one gets 414.
        max_target_size: Bytes, Limits, "8KiB", "\"4KiB\"";
        /// Longest request body.
        ///
        /// A longer one gets 413.
        max_body_size: Bytes, Limits, "1MiB", "\"64MiB\"";
        /// Least bytes per second of a client that sends a body, or reads a handler's response.
        ///
        /// It holds on average; body-timeout and send-timeout are the longest pause. 0 means none.
        min_transfer_rate: Bytes, Limits, "500", "\"1KiB\"";
        /// Memory for request bodies and handlers' responses that wait, for all workers together.
        ///
        /// What does not fit goes to disk. The default is lower where memory is short.
        buffer_memory_max: Bytes, Limits, "64MiB", "\"256MiB\"";
        /// Space in temp-directory for what does not fit into buffer-memory-max.
        ///
        /// Without room clients have to wait, and get 503 after body-timeout. 0 writes nothing to
        /// disk.
        buffer_disk_max: Bytes, Limits, "4GiB", "\"20GiB\"";

        /// Memory per worker for whole responses of small files.
        ///
        /// Each worker takes it as needed. The default is lower where memory is short, two fifths
        /// of a control group's limit where there is one.
        response_cache_max: Bytes, Caches, "16MiB", "\"256MiB\"";
        /// Memory for files in the content store, for all workers together.
        ///
        /// Files above 16 KiB that are requested again are copied into it. It is taken as needed, and
        /// never more than is available. The default is lower where memory is short: a twentieth of it,
        /// or of a control group's limit. 0 stores none.
        content_store_max: Bytes, Caches, "128MiB", "\"1GiB\"";
        /// Files up to this size go through the response cache, or the content store.
        small_file_max: Bytes, Caches, "128KiB", "\"64KiB\"";
        /// Memory for small files pinned in the page cache, for all workers together.
        ///
        /// The default is two fifths of a control group's limit where there is one and several
        /// workers run; otherwise 0.
        pin_max: Bytes, Caches, "0, or two fifths of a memory limit", "\"160MiB\"";
        /// Memory per worker for chunks of larger files that are being sent.
        ///
        /// In a control group the default is a fiftieth of its limit, at most 16MiB.
        chunk_cache_max: Bytes, Caches, "2MiB", "\"64MiB\"";
        /// Bytes one connection may send before other connections get a turn.
        write_quantum: Bytes, Caches, "1MiB", "\"256KiB\"";
        /// Entries in the file cache (paths and open files) per worker.
        ///
        /// Paths that do not exist take at most an eighth of them.
        file_cache_entries: usize, Caches, "50000", "200000";
        /// Open files in the file cache per worker.
        file_cache_descriptors: usize, Caches, "what RLIMIT_NOFILE leaves", "4096";

        /// Helper processes per worker: a number, a range, or io_uring.
        ///
        /// A range such as 1-16 scales with demand. io_uring lets the kernel's own threads open and
        /// read files; one process remains for listings and copies.
        helpers: Helpers, Helpers, "1 to 16, fewer where memory is short", "\"2-8\"";
        /// Lowest number of helper processes per worker.
        helpers_min: usize, Helpers, "1", "2";
        /// Highest number of helper processes per worker.
        ///
        /// The default is lower where memory is short. While one directory or file system takes all helpers, there
        /// are up to half as many more for others.
        helpers_max: usize, Helpers, "16", "8";
        /// Jobs that may wait for a helper per worker; beyond this, new requests get 503.
        helper_queue_max: usize, Helpers, "4096", "1024";

        /// Write an access log to this file, to standard output (-), to syslog or to the journal.
        ///
        /// SIGUSR1 reopens a file. syslog and journal may have the path of their socket, as in
        /// syslog:/run/log. Lines that the daemon does not accept at once are dropped.
        log: PathBuf, Logs, "no log", "\"/var/log/headway/access.log\"";
        /// Log format: common, combined, json, or a template.
        ///
        /// A template has fields in braces: client, client-port, time, time-common, host, request,
        /// method, target, version, status, bytes, referer, user-agent, reason, and with
        /// trace-context: trace-id, request-id. In seconds: duration, and its parts
        /// queue-duration, lookup-duration, upstream-duration, send-duration. upstream is an
        /// address. With TLS: tls-version, tls-cipher, tls-server-name, tls-client.
        /// `{{` is a brace.
        log_format: LogFormat, Logs, "combined", "\"json\"";
        /// Least serious messages to write to standard error: error, warn, info or debug.
        ///
        /// debug has a line for each request. A line about a request has its ID, with trace-context.
        error_log_level: ErrorLevel, Logs, "info", "\"warn\"";
        /// Form of these messages: text or json.
        error_log_format: ErrorFormat, Logs, "text", "\"json\"";
        /// Give each request an ID, and pass it on in traceparent (W3C) and X-Request-Id.
        ///
        /// Programs and upstreams get both. A valid traceparent of the client is continued.
        /// Direct handlers read the client's own request.
        trace_context: bool, Logs, "false", "true";
        /// URL of an OpenTelemetry collector to which spans of requests are sent (OTLP over HTTP, as JSON).
        ///
        /// /v1/traces is added if it is missing. Each request then has a trace (trace-context). A process of its own
        /// sends spans. What the collector does not take in time is dropped.
        otlp_endpoint: String, Logs, "no spans", "\"http://127.0.0.1:4318\"";
        /// Part of the requests to make spans of, unless the client's traceparent decides.
        otlp_sampling: Percent, Logs, "100%", "\"10%\"";
        /// Name of the service in spans.
        otlp_service_name: String, Logs, "headway", "\"shop\"";
        /// Headers of requests to the collector.
        ///
        /// --check and messages hide their values, which may be secret. Write them in before you use what it prints.
        otlp_headers: BTreeMap<String, String>, Logs, "none", "{ X-Api-Key = \"secret\" }";
        /// Certificates in PEM of the authorities that are trusted for an https collector.
        otlp_ca: PathBuf, Logs, "those of the system", "\"/etc/headway/ca.pem\"";
        /// Add a Server-Timing header to responses: milliseconds in queue, lookup and upstream.
        ///
        /// Browsers show it. Responses of the response cache are then made for each request.
        server_timing: bool, Logs, "false", "true";
        /// Address of the status page and metrics.
        ///
        /// 9090 means http://127.0.0.1:9090/status and /metrics.
        status: ListenAddress, Logs, "no status page", "9090";
        /// Let workers record their own system calls for the status page.
        trace: bool, Logs, "true", "false";

        /// Servers of the papers, for comparisons.
        research: ResearchSettings, Research, "Headway", "[research]";

        /// Virtual hosts.
        host: Tables<HostSettings>, Host, "none", "[[host]]";
        /// Rules for response headers.
        header: Tables<HeaderSettings>, Header, "none", "[[header]]";
        /// Rules for pages of other origins (CORS).
        cors: Tables<CorsSettings>, Cors, "none", "[[cors]]";
        /// Paths that a handler answers, on every host.
        location: Tables<LocationSettings>, Location, "none", "[[location]]";
    }
}

/// All keys of a configuration file, in the order of the reference.
pub fn reference(extensions: KnownExtensions) -> Vec<Key> {
    let mut all = Settings::keys();
    // Its keys follow.
    all.retain(|key| key.topic != Topic::Research);
    all.extend(extensions.research.iter().flat_map(|own| (own.keys)()));
    all.extend(HostSettings::keys());
    all.extend(HeaderSettings::keys());
    all.extend(CorsSettings::keys());
    all.extend(LocationSettings::keys());
    if extensions.research.is_none() {
        all.retain(|key| key.topic != Topic::Research);
    }
    all
}

impl Settings {
    /// Reads settings of a program without extensions from TOML. Relative paths are relative to the
    /// directory of `path`.
    ///
    /// Unknown keys and values of a wrong type are errors that name their line.
    pub fn from_toml(text: &str, path: &Path) -> Result<Settings, Vec<ConfigError>> {
        Settings::from_toml_with(text, path, KnownExtensions::NONE)
    }

    /// The same for a program with these extensions.
    pub fn from_toml_with(
        text: &str,
        path: &Path,
        extensions: KnownExtensions,
    ) -> Result<Settings, Vec<ConfigError>> {
        let file = PlacedFile::only(ConfigFile { path, text });
        match Settings::read_toml(file, extensions) {
            (settings, faults) if faults.is_empty() => Ok(settings),
            (_, faults) => Err(faults),
        }
    }

    /// Reads what can be read, and lists everything that is wrong with the text.
    pub(super) fn read_toml(
        source: PlacedFile<'_>,
        extensions: KnownExtensions,
    ) -> (Settings, Vec<ConfigError>) {
        let mut to = Findings::of_reading(source, extensions.research);
        let source = source.file;
        let (document, errors) = DeTable::parse_recoverable(source.text);
        let is_broken = !errors.is_empty();
        for error in errors {
            to.syntax(error.span(), error.message());
        }
        let syntax_errors = to.errors.len();
        let mut settings = Settings::read_table(document.get_ref(), "", &mut to);
        if is_broken {
            // A value on a broken line is only what the parser made of it.
            to.drop_later_on_same_line(syntax_errors);
        }
        if let Some(directory) = source.path.parent() {
            settings.anchor(directory);
        }
        (settings, to.errors)
    }

    /// Sets a key from the texts of its option.
    pub fn set_from_option(
        &mut self,
        key: &str,
        texts: &[String],
        extensions: KnownExtensions,
    ) -> Result<(), ConfigError> {
        let done = self
            .set_option(key, texts)
            .or_else(|| self.set_research_option(key, texts, extensions));
        let unknown = || Err(format!("there is no option --{key}"));
        done.unwrap_or_else(unknown)
            .map_err(|problem| ConfigError::option(key, problem))
    }

    fn set_research_option(
        &mut self,
        key: &str,
        texts: &[String],
        extensions: KnownExtensions,
    ) -> Option<Result<(), String>> {
        let own = self
            .research
            .get_or_insert_with(|| from_command_line(ResearchSettings::default()));
        (extensions.research?.set_option)(own.get_mut(), key, texts)
    }

    /// Takes every setting that `over` has, and keeps the others.
    ///
    /// `helpers` replaces `helpers-min` and `helpers-max`; a preset for research replaces the
    /// settings it stands for.
    pub fn overlay(&mut self, mut over: Settings, extensions: KnownExtensions) {
        if let (Some(research), Some(own)) = (extensions.research, over.research.take()) {
            (research.overlay)(self, own.into_inner());
        }
        if over.helpers.is_some() {
            (self.helpers_min, self.helpers_max) = (None, None);
        }
        self.replace(over);
    }
}
