//! What to write instead of a key that does not exist.

use super::keys::{Key, Table};
use super::settings::{CorsSettings, HeaderSettings, HostSettings, LocationSettings, Settings};

/// The message for a key of a server of the papers, in a program without them.
pub(super) const ONLY_RESEARCH: &str =
    "only for research: `headway-lab serve` has it, and this server does not";

/// Words of other servers, without hyphens and underscores, and what to write here.
const OTHER_SERVERS: &[(&[&str], &str)] = &[
    (
        &["port", "bind", "address", "addr", "httpport"],
        "write listen = 8080, or listen = \":80\" for all addresses",
    ),
    (
        &[
            "documentroot",
            "docroot",
            "webroot",
            "directory",
            "dir",
            "serverroot",
        ],
        "write root = \"/srv/www\"",
    ),
    (
        &[
            "servername",
            "servernames",
            "hostname",
            "domain",
            "domains",
            "serveralias",
        ],
        "write names = [\"example.com\"] in a [[host]] table",
    ),
    (
        &["server", "virtualhost", "vhost", "site"],
        "write a [[host]] table",
    ),
    (
        &["workerprocesses", "threads", "processes", "workerthreads"],
        "write workers = 4",
    ),
    (
        &[
            "workerconnections",
            "maxconn",
            "maxclients",
            "maxrequestworkers",
        ],
        "write max-connections = 20000",
    ),
    (&["keepalivetimeout"], "write idle-timeout = \"60s\""),
    (
        &["keepaliverequests"],
        "write max-requests-per-connection = 1000",
    ),
    (
        &["clientmaxbodysize", "bodysize", "limitrequestbody"],
        "write max-body-size = \"64MiB\"",
    ),
    (
        &["largeclientheaderbuffers", "clientheaderbuffersize"],
        "write max-header-size = \"32KiB\"",
    ),
    (&["clientheadertimeout"], "write header-timeout = \"10s\""),
    (&["clientbodytimeout"], "write body-timeout = \"10s\""),
    (
        &["clientbodytemppath", "tmpdir", "tempdir", "proxytemppath"],
        "write temp-directory = \"/var/tmp\"",
    ),
    (&["limitconn"], "write max-connections-per-address = 100"),
    (
        &["accesslog", "customlog", "logfile"],
        "write log = \"/var/log/headway/access.log\"",
    ),
    (
        &["errorlog", "loglevel"],
        "errors and warnings go to standard error; the service manager keeps them",
    ),
    (
        &["errorpage", "errordocument"],
        "write error-pages = { 404 = \"errors/404.html\" }",
    ),
    (
        &["autoindex", "directorylisting", "browse"],
        "write listing = true",
    ),
    (
        &["directoryindex", "indexfiles"],
        "write index = \"index.html\"",
    ),
    (
        &["gzipstatic", "brotlistatic", "zstdstatic"],
        "write precompressed = true",
    ),
    (
        &["gzip", "brotli", "zstd", "compress", "compression"],
        "responses are not compressed when they are sent; put .gz, .br or .zst files beside the originals (precompressed = true)",
    ),
    (
        &["addheader", "headers", "field", "moreheaders"],
        "write a [[header]] table with prefix, name and value; it sets the header unless action is append or remove",
    ),
    (
        &[
            "types",
            "defaulttype",
            "mime",
            "addtype",
            "mimetype",
            "media",
        ],
        "write [mime-types] and, below it, md = \"text/markdown\"",
    ),
    (
        &[
            "proxypass",
            "upstream",
            "upstreams",
            "reverseproxy",
            "backend",
        ],
        "write proxy = \"127.0.0.1:3000\" in a [[location]] table",
    ),
    (
        &["fastcgipass"],
        "write fastcgi = \"unix:/run/php/php-fpm.sock\" in a [[location]] table",
    ),
    (
        &["scgipass"],
        "write scgi = \"127.0.0.1:4000\" in a [[location]] table",
    ),
    (
        &["cgibin", "scriptalias", "cgipath"],
        "write a [[location]] table with prefix = \"/cgi-bin/\" and cgi = true",
    ),
    (
        &["alias", "path", "uri", "url", "match"],
        "write prefix = \"/path/\" in a [[location]] table",
    ),
    (
        &["proxyreadtimeout", "proxysendtimeout", "fastcgireadtimeout"],
        "write timeout = \"60s\" in a [[location]] table",
    ),
    (
        &["proxyrequestbuffering", "fastcgirequestbuffering"],
        "write request-buffering = false in a [[location]] table",
    ),
    (
        &["clientbodybuffersize", "proxybuffers", "proxybuffersize"],
        "write buffer-memory-max = \"64MiB\", which is for all requests together",
    ),
    (
        &["proxymaxtempfilesize", "fastcgimaxtempfilesize"],
        "write temp-file-max = \"64MiB\" in a [[location]] table",
    ),
    (
        &["proxyconnecttimeout", "fastcgiconnecttimeout"],
        "write connect-timeout = \"5s\" in a [[location]] table",
    ),
    (&["sendfile"], "write send = \"sendfile\""),
    (
        &["preset", "opening", "caching", "pipe", "forkinserver"],
        "for research: `headway-lab serve` has it, in the table [research]",
    ),
    (
        &["openfilecache", "openfilecachevalid"],
        "write file-cache-entries = 50000; revalidate sets the age",
    ),
    (
        &["servertokens", "serversignature"],
        "write hide-server-header = true",
    ),
    (&["multiaccept"], "write accept-batch = 0"),
    (
        &["stubstatus", "metrics", "statuspage", "serverstatus"],
        "write status = 9090",
    ),
    (
        &["ssl", "https", "sslengine", "httpsport"],
        "write tls-listen = \":443\", tls-certificate = \"site.pem\" and tls-key = \"site.key\"",
    ),
    (
        &[
            "sslcertificate",
            "sslcertificatefile",
            "certificate",
            "certificatefile",
            "cert",
            "crt",
            "pemfile",
        ],
        "write tls-certificate = \"site.pem\"; tls-listen turns TLS on",
    ),
    (
        &[
            "sslcertificatekey",
            "sslcertificatekeyfile",
            "key",
            "keyfile",
            "privatekey",
            "privkey",
        ],
        "write tls-key = \"site.key\", beside tls-certificate",
    ),
    (
        &[
            "sslprotocols",
            "sslprotocol",
            "sslminver",
            "tlsversion",
            "protocols",
        ],
        "write tls-minimum = \"1.3\" for TLS 1.3 only; the default is 1.2",
    ),
    (
        &[
            "sslclientcertificate",
            "sslcacertificatefile",
            "cafile",
            "clientca",
        ],
        "write tls-client-ca = \"clients.pem\"",
    ),
    (
        &["sslverifyclient", "clientauth", "verify"],
        "write tls-client-ca = \"clients.pem\", and tls-client-certificate = \"optional\" if clients may have none",
    ),
    (
        &["sslsessiontickets", "sessiontickets"],
        "write tls-tickets = false to turn tickets off",
    ),
    (
        &["letsencrypt", "acme", "autocert", "acmedomains", "certbot"],
        "write acme-hosts = [\"a.example\"]",
    ),
    (
        &["acmeemail"],
        "write acme-contact = \"mailto:admin@a.example\"",
    ),
    (
        &["httpsredirect", "redirecthttps", "forcehttps", "autohttps"],
        "write tls-redirect = true",
    ),
    (
        &["stricttransportsecurity", "tlshsts"],
        "write hsts = \"365d\"",
    ),
    (
        &["sslciphers", "ciphers", "ciphersuites", "sslciphersuite"],
        "write tls-suites = [\"TLS_AES_128_GCM_SHA256\", …]; the default is all that are safe",
    ),
    (
        &["sslecdhcurve", "sslpreferserverciphers"],
        "curves are fixed, and the client's preferences count; tls-suites and tls-minimum limit it",
    ),
    (
        &["http2"],
        "HTTP/2 is on by default; http2-max-concurrent-streams = 0 turns it off",
    ),
    (
        &["sslstapling", "sslusestapling", "ocsp", "http3"],
        "not supported: there is no OCSP stapling and no HTTP/3",
    ),
    (&["group"], "write user = \"NAME:GROUP\""),
    (
        &["pid", "pidfile"],
        "not supported; --ready-file writes the process number",
    ),
    (
        &["daemon", "daemonize", "background"],
        "not supported; a service manager such as systemd runs it in the background",
    ),
    (
        &["rewrite", "return", "redirect", "rewriterule"],
        "write redirect = \"/new/*\" in a [[location]]; paths are not rewritten",
    ),
    (&["tryfiles"], "write fallback = \"/index.html\""),
    (
        &["authbasic", "auth"],
        "passwords are not supported; allow and deny are, by network",
    ),
];

/// The message for a key that `table` does not have.
pub(super) fn unknown(table: &str, key: &str, keys: &[Key]) -> String {
    // An exact key of another table is a better answer than one that is spelt nearly so.
    let is_own = keys.iter().any(|known| plain(&known.name) == plain(key));
    if !is_own && let Some(table_hint) = key_in_other_table(table, key) {
        return format!("unknown key here; {table_hint}");
    }
    let plain = plain(key);
    let known = OTHER_SERVERS
        .iter()
        .find(|(names, _)| names.contains(&plain.as_str()));
    // So is the exact key of another server.
    if !is_own && let Some((_, advice)) = known {
        return format!("unknown key; {advice}");
    }
    match nearest_key(key, keys) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => "unknown key; the configuration reference lists all keys".into(),
    }
}

fn plain(key: &str) -> String {
    key.to_ascii_lowercase().replace(['-', '_', '.', ' '], "")
}

/// The table that has the key, for one that stands below the wrong heading.
fn key_in_other_table(table: &str, key: &str) -> Option<String> {
    let has = |keys: Vec<Key>| keys.iter().any(|known| plain(&known.name) == plain(key));
    let tables = [
        ("location", has(LocationSettings::keys())),
        ("host", has(HostSettings::keys())),
        ("header", has(HeaderSettings::keys())),
        ("cors", has(CorsSettings::keys())),
    ];
    if !table.is_empty() && has(Settings::keys()) {
        return Some("it belongs at the top of the file, above the first [table]".into());
    }
    let (name, _) = tables
        .into_iter()
        .find(|(name, has)| *has && *name != table)?;
    Some(format!("it belongs in a [[{name}]] table"))
}

/// The key of the same table that is spelt nearly so.
fn nearest_key<'k>(key: &str, keys: &'k [Key]) -> Option<&'k str> {
    let plain = plain(key);
    let near = keys
        .iter()
        .map(|known| (distance(&plain, &self::plain(&known.name)), &known.name));
    let (distance, name) = near.min()?;
    (distance <= plain.chars().count().div_ceil(4).min(3)).then_some(name.as_str())
}

/// The edit distance of two short words.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let same = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = same.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_key_is_answered_with_the_nearest_key_of_its_table() {
        for (key, near) in [
            ("worker", "workers"),
            ("header_timeout", "header-timeout"),
            ("maxConnections", "max-connections"),
            ("lisen", "listen"),
            ("root_", "root"),
        ] {
            let problem = unknown("", key, &Settings::keys());
            assert_eq!(
                problem,
                format!("unknown key; did you mean `{near}`?"),
                "{key}"
            );
        }
        let problem = unknown("location", "proxi", &LocationSettings::keys());
        assert_eq!(problem, "unknown key; did you mean `proxy`?");
        let problem = unknown("location", "stream", &LocationSettings::keys());
        assert_eq!(problem, "unknown key; did you mean `streams`?");
    }

    #[test]
    fn unknown_key_is_answered_with_the_table_that_has_it() {
        let problem = unknown("", "proxy", &Settings::keys());
        assert_eq!(
            problem,
            "unknown key here; it belongs in a [[location]] table"
        );
        let problem = unknown("host", "workers", &HostSettings::keys());
        assert!(problem.contains("top of the file"), "{problem}");
    }

    #[test]
    fn unknown_key_of_another_server_is_answered_with_the_key_for_it() {
        for (names, advice) in OTHER_SERVERS {
            for name in *names {
                assert_eq!(*name, plain(name), "compared without hyphens");
                let problem = unknown("", name, &Settings::keys());
                let is_key = problem.contains("did you mean") || problem.contains("it belongs in");
                assert!(is_key || problem.contains(advice), "{name}: {problem}");
            }
        }
        for (word, part) in [
            ("port", "listen = 8080"),
            ("document_root", "root ="),
            ("worker_processes", "workers"),
            ("ssl_certificate", "tls-certificate"),
            ("https", "tls-listen"),
            ("client_max_body_size", "max-body-size"),
            ("gzip", "precompressed"),
            ("zzzzzzzzz", "configuration reference"),
        ] {
            let problem = unknown("", word, &Settings::keys());
            assert!(problem.contains(part), "{word}: {problem}");
        }
        // `streams` is spelt nearly so.
        let problem = unknown("location", "upstreams", &LocationSettings::keys());
        assert!(problem.contains("write proxy ="), "{problem}");
    }
}
