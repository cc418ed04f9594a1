//! The settings of a `[[location]]`, as they were written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;

use super::from_command_line;
use crate::error::Findings;
use crate::keys::{Key, Setting, Table, Topic, Twice, table};
use crate::units::{Bytes, Millis, OneOrMany};
use crate::value::{Value, Written};
use crate::{Network, Streams};

table! {
    /// One `[[location]]`.
    LocationSettings, "location" {
        /// Requests whose path is this one or below it; the longest prefix wins.
        prefix: String, Location, "this, suffix or path is required", "\"/app/\"";
        /// Requests of this path alone, before any prefix. Only redirect.
        path: String, Location, "none", "\"/old.html\"";
        /// Requests whose path has a component that ends so.
        suffix: String, Location, "this, prefix or path is required", "\".php\"";
        /// Serve files, as an exception from another location.
        files: bool, Location, "false", "true";
        /// Answer only internal redirects (accel-redirect); clients get 404.
        internal: bool, Location, "false", "true";
        /// Networks whose clients are served, of those that the host serves; others get 403.
        allow: OneOrMany<Network>, Location, "all", "\"10.0.0.0/8\"";
        /// Networks whose clients get 403.
        deny: OneOrMany<Network>, Location, "none", "\"203.0.113.0/24\"";
        /// Run a CGI program for each request.
        cgi: bool, Location, "false", "true";
        /// Program with its arguments that stays and is passed client sockets (direct CGI).
        direct: OneOrMany<String>, Location, "no program", "[\"/usr/lib/app\", \"--fast\"]";
        /// FastCGI upstreams.
        fastcgi: OneOrMany<String>, Location, "no upstream", "\"unix:/run/php/php-fpm.sock\"";
        /// SCGI upstreams.
        scgi: OneOrMany<String>, Location, "no upstream", "\"127.0.0.1:4000\"";
        /// HTTP upstreams (reverse proxy).
        proxy: OneOrMany<String>, Location, "no upstream", "[\"127.0.0.1:3000\", \"127.0.0.1:3001\"]";
        /// Path or URL to redirect to.
        ///
        /// A final * stands for the rest of the path and the query. Without it nothing is appended.
        /// Paths below a prefix are redirected, too.
        redirect: String, Location, "no redirect", "\"https://www.example.com/*\"";
        /// Status of the redirect: 301, 302, 303, 307 or 308.
        ///
        /// Browsers keep 301 and 308 for long.
        redirect_status: u32, Location, "302", "301";
        /// Application inside the server, by name.
        ///
        /// `headway` contains none. `headway-lab serve` has those of experiments.
        application: String, Location, "no application", "\"specweb99\"";
        /// Directory of the CGI programs, in place of the prefix below the document root; or of an
        /// application's own files.
        root: PathBuf, Location, "the document root", "\"/usr/lib/cgi-bin\"";
        /// Whether X-Accel-Redirect and X-Sendfile in a response make the server send a file.
        accel_redirect: bool, Location, "false", "true";
        /// Answer clients that have closed their sending side.
        half_close: bool, Location, "false", "true";
        /// Pass the Authorization header on; proxy always does.
        authorization: bool, Location, "false", "true";
        /// Variables for the program in addition to those of the request.
        variables: BTreeMap<String, String>, Location, "none", "{ APP_ENV = \"production\" }";

        /// Time without progress from the handler.
        timeout: Millis, LocationLimits, "60s", "\"5m\"";
        /// Time for the whole request; 0 means no limit.
        request_timeout: Millis, LocationLimits, "600s", "\"1h\"";
        /// Longest request body; a longer one gets 413.
        max_body_size: Bytes, LocationLimits, "that of the top level", "\"64MiB\"";
        /// Longest header of a handler's response; a longer one gets 502.
        max_response_header_size: Bytes, LocationLimits, "32KiB", "\"64KiB\"";
        /// Longest response body, which is cut off there; 0 means no limit.
        output_max: Bytes, LocationLimits, "1GiB", "\"10GiB\"";
        /// Bytes of one response buffered on disk for a slow client; 0 buffers none.
        temp_file_max: Bytes, LocationLimits, "64MiB", "\"1GiB\"";
        /// Receive the whole request body before the handler starts.
        ///
        /// Otherwise a slow client occupies the handler. direct always does.
        request_buffering: bool, LocationLimits, "true", "false";
        /// Requests the handler answers at the same time, per worker.
        ///
        /// The default is 256 for proxy and 16 for all others.
        concurrency: u32, LocationLimits, "256 (proxy) or 16", "64";
        /// Requests of one address (IPv6: one /64 network) that the handler answers at the same time.
        ///
        /// Others of it wait in the queue. 0 means no limit.
        concurrency_per_address: u32, LocationLimits, "0", "8";
        /// Requests that wait for the handler per worker; beyond this they get 503.
        queue: u32, LocationLimits, "1024", "100";

        /// Address space of each process; 0 means no limit.
        memory_max: Bytes, Programs, "0", "\"512MiB\"";
        /// CPU time of each process, in whole seconds; 0 means no limit.
        cpu_time_max: Millis, Programs, "0ms", "\"30s\"";
        /// Open files of each process (RLIMIT_NOFILE).
        open_files_max: u64, Programs, "1024", "256";
        /// Processes of the server's user (RLIMIT_NPROC); 0 means no limit.
        processes_max: u64, Programs, "some more than run already", "1000";
        /// Connection to a CGI program: socket, or pipe for programs that open /dev/stdin.
        streams: Streams, Programs, "socket", "\"pipe\"";

        /// Idle keep-alive connections to each upstream, per worker.
        ///
        /// The default is 16 for proxy and 0 for fastcgi; scgi has none.
        keepalive: u32, Upstreams, "16 (proxy) or 0", "32";
        /// Use keep-alive connections also for requests that must not be sent twice, such as POST.
        keepalive_unsafe_methods: bool, Upstreams, "false", "true";
        /// Upstreams to try for one request.
        attempts: u32, Upstreams, "2", "3";
        /// Time for an upstream to accept a connection.
        ///
        /// Also, but at least 1 s, to acknowledge a request on an idle one.
        connect_timeout: Millis, Upstreams, "5s", "\"1s\"";
        /// Upgraded connections (WebSocket) per worker; 0 allows none. Only proxy.
        max_upgrades: u32, Upstreams, "256", "1000";
        /// Time without data on an upgraded connection. Only proxy.
        upgrade_timeout: Millis, Upstreams, "300s", "\"1h\"";
        /// Trust the X-Forwarded and Forwarded headers of the request. Only proxy.
        trust_forwarded: bool, Upstreams, "false", "true";
        /// Pass the client's Host header to the upstream. Only proxy.
        preserve_host: bool, Upstreams, "true", "false";
        /// Pass paths with an escaped slash (%2F) to the upstream; otherwise they get 404. Only proxy.
        escaped_slashes: bool, Upstreams, "true", "false";
        /// Pass the path without the prefix of the location. Only proxy.
        ///
        /// The upstream finds the prefix in X-Forwarded-Prefix.
        strip_prefix: bool, Upstreams, "false", "true";
    }
}
