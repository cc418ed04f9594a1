//! The effective settings as TOML, which `--config` reads back to the same configuration, and as
//! JSON. Secrets are hidden, and have to be written in again.

use std::fmt::{self, Display, Write};

use super::otlp::HIDDEN;
use super::units::{AcceptBatch, Bytes, Millis};
use super::variables;
use super::{
    Access, AcmeConfig, Cgi, ClientCertificate, Config, CorsRule, HandlerConfig, HeaderAction,
    HeaderRule, HelperBackend, Host, Location, OtlpConfig, PathMatch, Protocol, ResearchConfig,
    TlsConfig, TlsIdentity, TlsVersion, UpstreamEntry, Upstreams,
};

impl Config {
    /// All effective settings as a configuration file.
    ///
    /// ```
    /// use headway_config::{Config, Environment, Settings};
    /// let environment = Environment { cpus: 2, nofile: 20_000, ..Environment::detect() };
    /// let good = Config::check(&Settings::default(), None, &environment).unwrap();
    /// assert!(good.config.to_toml().contains("idle-timeout = \"60s\"\n"));
    /// ```
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_top(&mut out);
        let _ = self.write_tables(&mut out);
        out
    }

    /// All effective settings as a JSON object with the keys of the configuration file.
    pub fn to_json(&self) -> String {
        let written: toml::Table = toml::from_str(&self.to_toml()).unwrap_or_default();
        let mut text = serde_json::to_string_pretty(&written).unwrap_or_default();
        text.push('\n');
        // Only a file of TOML has variables.
        text.replace("$${", "${")
    }

    fn write_top(&self, out: &mut String) -> fmt::Result {
        self.write_accepting(out)?;
        self.write_request_limits(out)?;
        self.write_file_settings(out)?;
        self.write_headers_and_log(out)
    }

    /// The listeners, the event mechanism, and how connections are accepted and read.
    fn write_accepting(&self, out: &mut String) -> fmt::Result {
        let first_tls = self.tls.as_ref().map(|tls| tls.first_listener);
        let (plain, secure) = self.listen.split_at(first_tls.unwrap_or(self.listen.len()));
        if !plain.is_empty() {
            writeln!(out, "listen = {}", list(plain.iter()))?;
        }
        if let Some(tls) = &self.tls {
            writeln!(out, "tls-listen = {}", list(secure.iter()))?;
            write_tls(out, tls, self.acme.as_ref())?;
        }
        if self.listen.iter().any(|endpoint| endpoint.path().is_some()) {
            writeln!(out, "listen-mode = \"{:o}\"", self.unix_rights.mode)?;
            if let Some(owner) = &self.unix_rights.owner {
                writeln!(out, "listen-owner = {}", quoted(owner))?;
            }
        }
        writeln!(out, "workers = {}", self.workers)?;
        writeln!(out, "events = {}", quoted(&self.events))?;
        match self.accept_batch {
            AcceptBatch::Auto => writeln!(out, "accept-batch = \"auto\"")?,
            AcceptBatch::Most(count) => writeln!(out, "accept-batch = {count}")?,
        }
        writeln!(out, "early-reject = \"{}\"", self.early_reject)?;
        writeln!(out, "listeners = \"{}\"", self.listeners)?;
        writeln!(out, "backlog = {}", self.backlog)
    }

    /// The limits on connections and requests.
    fn write_request_limits(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "max-connections = {}", self.max_connections)?;
        let per_address = self.max_connections_per_address;
        writeln!(out, "max-connections-per-address = {per_address}")?;
        if !self.proxies.networks.is_empty() {
            writeln!(out, "trusted-proxies = {}", self.proxies.networks)?;
            let header = quoted(&self.proxies.header);
            writeln!(out, "client-address-header = {header}")?;
            writeln!(out, "proxy-protocol = {}", self.proxies.proxy_protocol)?;
        }
        writeln!(out, "defer-accept = {}", self.defer_accept)?;
        writeln!(
            out,
            "max-requests-per-connection = {}",
            self.max_requests_per_connection
        )?;
        writeln!(
            out,
            "http2-max-concurrent-streams = {}",
            self.http2_streams_max
        )?;
        writeln!(
            out,
            "header-timeout = \"{}\"",
            Millis(self.header_timeout_ms)
        )?;
        writeln!(out, "body-timeout = \"{}\"", Millis(self.body_timeout_ms))?;
        writeln!(out, "send-timeout = \"{}\"", Millis(self.send_timeout_ms))?;
        writeln!(out, "idle-timeout = \"{}\"", Millis(self.idle_timeout_ms))?;
        writeln!(out, "drain-timeout = \"{}\"", Millis(self.drain_timeout_ms))?;
        writeln!(
            out,
            "worker-timeout = \"{}\"",
            Millis(self.worker_timeout_ms)
        )?;
        writeln!(
            out,
            "max-header-size = \"{}\"",
            Bytes(self.max_header_bytes as u64)
        )?;
        writeln!(
            out,
            "max-target-size = \"{}\"",
            Bytes(self.max_target_bytes as u64)
        )?;
        writeln!(out, "max-body-size = \"{}\"", Bytes(self.max_body_bytes))?;
        let rate = Bytes(self.min_transfer_rate);
        writeln!(out, "min-transfer-rate = \"{rate}\"")?;
        let memory = Bytes(self.buffer_memory_max_bytes);
        writeln!(out, "buffer-memory-max = \"{memory}\"")?;
        let disk = Bytes(self.buffer_disk_max_bytes);
        writeln!(out, "buffer-disk-max = \"{disk}\"")
    }

    /// The helpers, the caches, and how files are opened and sent.
    fn write_file_settings(&self, out: &mut String) -> fmt::Result {
        if self.helper_backend == HelperBackend::IoUring {
            writeln!(out, "helpers = \"{}\"", self.helper_backend)?;
        }
        writeln!(out, "helpers-min = {}", self.helpers_min)?;
        writeln!(out, "helpers-max = {}", self.helpers_max)?;
        writeln!(out, "helper-queue-max = {}", self.helper_queue_max)?;
        writeln!(out, "file-cache-entries = {}", self.file_cache_entries)?;
        writeln!(
            out,
            "file-cache-descriptors = {}",
            self.file_cache_descriptors
        )?;
        writeln!(
            out,
            "response-cache-max = \"{}\"",
            Bytes(self.response_cache_max_bytes)
        )?;
        writeln!(
            out,
            "content-store-max = \"{}\"",
            Bytes(self.content_store_max_bytes)
        )?;
        writeln!(out, "pin-max = \"{}\"", Bytes(self.pin_max_bytes))?;
        writeln!(
            out,
            "small-file-max = \"{}\"",
            Bytes(self.small_file_max_bytes)
        )?;
        writeln!(out, "send = \"{}\"", self.send)?;
        writeln!(out, "etag = \"{}\"", self.etag)?;
        writeln!(
            out,
            "chunk-cache-max = \"{}\"",
            Bytes(self.chunk_cache_max_bytes)
        )?;
        writeln!(
            out,
            "write-quantum = \"{}\"",
            Bytes(self.write_quantum_bytes)
        )?;
        writeln!(out, "revalidate = \"{}\"", Millis(self.revalidate_ms))?;
        writeln!(
            out,
            "stale-while-revalidate = \"{}\"",
            Millis(self.stale_while_revalidate_ms)
        )
    }

    /// The response headers, the log, the status page and the tracer.
    fn write_headers_and_log(&self, out: &mut String) -> fmt::Result {
        let interval = Millis(self.resolve_interval_ms);
        writeln!(out, "resolve-interval = \"{interval}\"")?;
        let directory = quoted(self.temp_directory.display());
        writeln!(out, "temp-directory = {directory}")?;
        if let Some(account) = &self.user {
            writeln!(out, "user = {}", quoted(account))?;
        }
        if let Some(account) = &self.program_user {
            writeln!(out, "program-user = {}", quoted(account))?;
        }
        writeln!(out, "sandbox = \"{}\"", self.sandbox)?;
        match &self.server_header {
            Some(server) => writeln!(out, "server-header = {}", quoted(server))?,
            None => writeln!(out, "hide-server-header = true")?,
        }
        if let Some(log) = self.log.as_ref().filter(|log| !log.is_of_host) {
            writeln!(out, "log = {}", quoted(log.path.display()))?;
            writeln!(out, "log-format = {}", quoted(&log.format))?;
        }
        writeln!(out, "error-log-level = \"{}\"", self.error_log.level)?;
        writeln!(out, "error-log-format = \"{}\"", self.error_log.format)?;
        writeln!(out, "trace-context = {}", self.trace_context)?;
        if let Some(otlp) = &self.otlp {
            write_otlp(out, otlp)?;
        }
        writeln!(out, "server-timing = {}", self.server_timing)?;
        if let Some(status) = self.status {
            writeln!(out, "status = \"{status}\"")?;
        }
        writeln!(out, "trace = {}", self.trace)
    }

    fn write_tables(&self, out: &mut String) -> fmt::Result {
        if self.research != ResearchConfig::default() {
            let mut table = toml::Table::try_from(&self.research).unwrap_or_default();
            let mapped = Bytes(self.research.mapped_max_bytes).to_string();
            table.insert("mapped-max".into(), mapped.into());
            write!(out, "\n[research]\n{table}")?;
        }
        if !self.mime_types.is_empty() {
            writeln!(out, "\n[mime-types]")?;
            for (extension, kind) in &self.mime_types {
                writeln!(out, "{} = {}", key(extension), quoted(kind))?;
            }
        }
        (self.headers.iter()).try_for_each(|rule| write_header_rule(out, "header", rule))?;
        (self.cors.iter()).try_for_each(|rule| write_cors_rule(out, "cors", rule))?;
        let mut written = self.sites().iter().filter(|host| !host.is_alias);
        written.try_for_each(|host| write_host(out, host))
    }
}

fn write_otlp(out: &mut String, otlp: &OtlpConfig) -> fmt::Result {
    writeln!(out, "otlp-endpoint = {}", quoted(&otlp.endpoint))?;
    writeln!(out, "otlp-sampling = \"{}\"", otlp.sampling)?;
    writeln!(out, "otlp-service-name = {}", quoted(&otlp.service_name))?;
    let header = |(name, _): &(String, String)| format!("{} = {}", key(name), quoted(HIDDEN));
    let headers: Vec<String> = otlp.headers.iter().map(header).collect();
    writeln!(out, "otlp-headers = {{ {} }}", headers.join(", "))?;
    match &otlp.authorities {
        Some(authorities) => writeln!(out, "otlp-ca = {}", quoted(authorities.display())),
        None => Ok(()),
    }
}

fn write_tls(out: &mut String, tls: &TlsConfig, acme: Option<&AcmeConfig>) -> fmt::Result {
    writeln!(out, "tls = {}", tls.is_for_development)?;
    let is_made = |first: &TlsIdentity| acme.is_some_and(|acme| acme.owns(first));
    let is_written = |first: &&TlsIdentity| !tls.is_for_development && !is_made(first);
    if let Some(first) = tls.identities.first().filter(is_written) {
        write_identity(out, first)?;
    }
    if let Some(acme) = acme {
        write_acme(out, acme)?;
    }
    let minimum = match tls.only_13 {
        true => TlsVersion::V13,
        false => TlsVersion::V12,
    };
    writeln!(out, "tls-minimum = \"{minimum}\"")?;
    if !tls.suites.is_empty() {
        writeln!(out, "tls-suites = {}", list(tls.suites.iter()))?;
    }
    writeln!(out, "tls-handshakes = \"{}\"", tls.handshakes)?;
    writeln!(out, "tls-offload = \"{}\"", tls.offload)?;
    let timeout = Millis(tls.handshake_timeout_ms);
    writeln!(out, "tls-handshake-timeout = \"{timeout}\"")?;
    writeln!(out, "tls-tickets = {}", tls.session_tickets)?;
    if let Some(authorities) = &tls.client_authorities {
        let rule = match tls.client_may_be_unknown {
            true => ClientCertificate::Optional,
            false => ClientCertificate::Required,
        };
        writeln!(out, "tls-client-ca = {}", quoted(authorities.display()))?;
        writeln!(out, "tls-client-certificate = \"{rule}\"")?;
    }
    writeln!(out, "tls-redirect = {}", tls.redirects)?;
    if let Some(seconds) = tls.hsts_seconds {
        writeln!(out, "hsts = \"{}\"", Millis(seconds * 1000))?;
    }
    Ok(())
}

fn write_acme(out: &mut String, acme: &AcmeConfig) -> fmt::Result {
    writeln!(out, "acme-hosts = {}", list(acme.hosts.iter()))?;
    writeln!(out, "acme-challenge = \"{}\"", acme.challenge)?;
    if let Some(contact) = &acme.contact {
        writeln!(out, "acme-contact = {}", quoted(contact))?;
    }
    writeln!(out, "acme-directory = {}", quoted(&acme.directory))?;
    if let Some(authority) = &acme.authority {
        writeln!(out, "acme-ca = {}", quoted(authority.display()))?;
    }
    let retry = Millis(acme.retry_ms);
    writeln!(out, "acme-retry-interval = \"{retry}\"")?;
    let state = quoted(acme.state_directory.display());
    writeln!(out, "state-directory = {state}")
}

fn write_identity(out: &mut String, identity: &TlsIdentity) -> fmt::Result {
    let certificate = quoted(identity.certificate.display());
    writeln!(out, "tls-certificate = {certificate}")?;
    writeln!(out, "tls-key = {}", quoted(identity.key.display()))
}

fn write_header_rule(out: &mut String, table: &str, rule: &HeaderRule) -> fmt::Result {
    writeln!(out, "\n[[{table}]]\nprefix = {}", quoted(&rule.prefix))?;
    for (key, value) in [
        ("suffix", &rule.suffix),
        ("content-type", &rule.content_type),
    ] {
        if !value.is_empty() {
            writeln!(out, "{key} = {}", quoted(value))?;
        }
    }
    writeln!(out, "when = {}", list(rule.when.iter()))?;
    writeln!(out, "action = {}", quoted(rule.action))?;
    writeln!(out, "name = {}", quoted(&rule.name))?;
    match rule.action {
        HeaderAction::Remove => Ok(()),
        HeaderAction::Set | HeaderAction::Append => {
            writeln!(out, "value = {}", quoted(&rule.value))
        }
    }
}

fn write_cors_rule(out: &mut String, table: &str, rule: &CorsRule) -> fmt::Result {
    writeln!(out, "\n[[{table}]]\nprefix = {}", quoted(&rule.prefix))?;
    for (key, texts) in [
        ("origins", &rule.origins),
        ("methods", &rule.methods),
        ("headers", &rule.headers),
        ("expose", &rule.expose),
    ] {
        writeln!(out, "{key} = {}", list(texts.iter()))?;
    }
    writeln!(out, "credentials = {}", rule.credentials)?;
    writeln!(out, "max-age = \"{}\"", Millis(rule.max_age_s * 1000))
}

fn write_host(out: &mut String, host: &Host) -> fmt::Result {
    writeln!(out, "\n[[host]]")?;
    if !host.names.is_empty() {
        let names = host.names.iter().chain(&host.aliases);
        writeln!(out, "names = {}", list(names))?;
    }
    if !host.listen.is_empty() {
        writeln!(out, "listen = {}", list(host.listen.iter()))?;
    }
    if let Some(canonical) = &host.canonical {
        writeln!(out, "canonical = {}", quoted(canonical))?;
    }
    writeln!(out, "root = {}", quoted(host.root.display()))?;
    if let Some(identity) = &host.tls {
        write_identity(out, identity)?;
    }
    if let Some(log) = &host.log {
        writeln!(out, "log = {}", quoted(log.path.display()))?;
        writeln!(out, "log-format = {}", quoted(&log.format))?;
    }
    writeln!(out, "index = {}", list(host.index.iter()))?;
    writeln!(out, "listing = {}", host.listing)?;
    write_access(out, &host.access)?;
    if host.clean_urls {
        writeln!(out, "clean-urls = true")?;
    }
    if !host.fallback.is_empty() {
        writeln!(out, "fallback = {}", list(host.fallback.iter()))?;
    }
    writeln!(out, "dotfiles = {}", host.dotfiles)?;
    writeln!(out, "precompressed = {}", host.precompressed)?;
    writeln!(out, "symlinks = \"{}\"", host.symlinks)?;
    let page = |(status, path): (&u16, &std::path::PathBuf)| {
        format!("{status} = {}", quoted(path.display()))
    };
    let pages: Vec<String> = host.error_pages.iter().map(page).collect();
    writeln!(out, "error-pages = {{ {} }}", pages.join(", "))?;
    let mut headers = host.headers.iter();
    headers.try_for_each(|rule| write_header_rule(out, "host.header", rule))?;
    let mut cors = host.cors.iter();
    cors.try_for_each(|rule| write_cors_rule(out, "host.cors", rule))?;
    let mut locations = host.locations.iter();
    locations.try_for_each(|location| write_location(out, location))
}

fn write_location(out: &mut String, location: &Location) -> fmt::Result {
    writeln!(out, "\n[[host.location]]")?;
    match &location.path {
        PathMatch::Prefix(prefix) => writeln!(out, "prefix = {}", quoted(prefix))?,
        PathMatch::Suffix(suffix) => writeln!(out, "suffix = {}", quoted(suffix))?,
        PathMatch::Exact(path) => writeln!(out, "path = {}", quoted(path))?,
    }
    match &location.handler {
        HandlerConfig::Files => writeln!(out, "files = true")?,
        HandlerConfig::Cgi(cgi) => write_cgi(out, cgi)?,
        HandlerConfig::Direct(command) | HandlerConfig::Pipe(command) => {
            writeln!(out, "direct = {}", list(command.iter()))?;
        }
        HandlerConfig::Upstreams(upstreams) => write_upstreams(out, upstreams)?,
        HandlerConfig::Redirect(redirect) => {
            writeln!(out, "redirect = {}", quoted(redirect.written()))?;
            writeln!(out, "redirect-status = {}", redirect.status)?;
        }
        HandlerConfig::Application(application) => {
            writeln!(out, "application = {}", quoted(&application.name))?;
            if application.directory.is_absolute() {
                writeln!(out, "root = {}", quoted(application.directory.display()))?;
            }
        }
    }
    writeln!(out, "internal = {}", location.internal)?;
    write_access(out, &location.access)?;
    writeln!(out, "timeout = \"{}\"", Millis(location.timeout_ms))?;
    writeln!(
        out,
        "request-timeout = \"{}\"",
        Millis(location.request_timeout_ms)
    )?;
    let memory = Bytes(location.memory_max_bytes);
    writeln!(out, "memory-max = \"{memory}\"")?;
    let cpu = Millis(location.cpu_s_max * 1000);
    writeln!(out, "cpu-time-max = \"{cpu}\"")?;
    writeln!(out, "open-files-max = {}", location.open_files_max)?;
    if let Some(processes) = location.processes_max {
        writeln!(out, "processes-max = {processes}")?;
    }
    let header = Bytes(location.max_response_header_bytes);
    writeln!(out, "max-response-header-size = \"{header}\"")?;
    let output = Bytes(location.output_max_bytes);
    writeln!(out, "output-max = \"{output}\"")?;
    writeln!(
        out,
        "temp-file-max = \"{}\"",
        Bytes(location.temp_file_max_bytes)
    )?;
    writeln!(
        out,
        "max-body-size = \"{}\"",
        Bytes(location.max_body_bytes)
    )?;
    if let HandlerConfig::Cgi(_) | HandlerConfig::Upstreams(_) = &location.handler {
        writeln!(out, "request-buffering = {}", location.request_buffering)?;
    }
    writeln!(out, "concurrency = {}", location.concurrency)?;
    let per_address = location.concurrency_per_address;
    writeln!(out, "concurrency-per-address = {per_address}")?;
    writeln!(out, "queue = {}", location.queue)?;
    writeln!(out, "half-close = {}", location.half_close)?;
    if location.reads_responses() {
        writeln!(out, "accel-redirect = {}", location.accel_redirect)?;
    }
    let variable = |(name, value): (&String, &String)| format!("{} = {}", key(name), quoted(value));
    let variables: Vec<String> = location.variables.iter().map(variable).collect();
    writeln!(out, "variables = {{ {} }}", variables.join(", "))
}

fn write_cgi(out: &mut String, cgi: &Cgi) -> fmt::Result {
    writeln!(out, "cgi = true")?;
    if let Some(root) = &cgi.root {
        writeln!(out, "root = {}", quoted(root.display()))?;
    }
    writeln!(out, "streams = \"{}\"", cgi.streams)?;
    writeln!(out, "authorization = {}", cgi.authorization)
}

fn write_upstreams(out: &mut String, upstreams: &Upstreams) -> fmt::Result {
    writeln!(
        out,
        "{} = {}",
        upstreams.protocol,
        list(upstreams.entries.iter().map(|entry| match entry {
            UpstreamEntry::Address(text) | UpstreamEntry::Name(text, _) => text,
        }))
    )?;
    writeln!(out, "keepalive = {}", upstreams.keepalive)?;
    writeln!(
        out,
        "keepalive-unsafe-methods = {}",
        upstreams.keepalive_unsafe_methods
    )?;
    writeln!(out, "attempts = {}", upstreams.attempts)?;
    let connect = Millis(upstreams.connect_timeout_ms);
    writeln!(out, "connect-timeout = \"{connect}\"")?;
    if upstreams.protocol != Protocol::Proxy {
        return writeln!(out, "authorization = {}", upstreams.authorization);
    }
    writeln!(out, "max-upgrades = {}", upstreams.max_upgrades)?;
    let idle = Millis(upstreams.upgrade_timeout_ms);
    writeln!(out, "upgrade-timeout = \"{idle}\"")?;
    writeln!(out, "trust-forwarded = {}", upstreams.trust_forwarded)?;
    writeln!(out, "preserve-host = {}", upstreams.preserve_host)?;
    writeln!(out, "escaped-slashes = {}", upstreams.escaped_slashes)?;
    let strips = !upstreams.strip.is_empty();
    writeln!(out, "strip-prefix = {strips}")
}

fn write_access(out: &mut String, access: &Access) -> fmt::Result {
    for (key, networks) in [("allow", &access.allow), ("deny", &access.deny)] {
        if !networks.is_empty() {
            writeln!(out, "{key} = {networks}")?;
        }
    }
    Ok(())
}

fn list(items: impl Iterator<Item = impl Display>) -> String {
    format!("[{}]", items.map(quoted).collect::<Vec<_>>().join(", "))
}

/// In a key nothing is replaced.
fn key(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn quoted(text: impl Display) -> String {
    toml::Value::String(variables::escape(&text.to_string())).to_string()
}
