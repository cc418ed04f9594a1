//! Upstreams of a location: addresses, protocol, and what is passed on.

use headway_gateway::upstream::{Address, UPSTREAMS_MAX};
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::Spanned;

use super::error::Findings;
use super::ranges::{number, span, time, value};
use super::settings::LocationSettings;
use super::units::OneOrMany;
use super::upstream_names::{UpstreamEntry, name_of, resolve};

/// Default of `attempts`.
const ATTEMPTS: u32 = 2;
/// Default of `keepalive` for HTTP upstreams.
const KEEPALIVE: u32 = 16;

/// Default of `connect-timeout`.
const CONNECT_TIMEOUT_MS: u64 = 5_000;
/// Default of `max-upgrades`.
const MAX_UPGRADES: u32 = 256;
/// Default of `upgrade-timeout`.
const UPGRADE_TIMEOUT_MS: u64 = 300_000;

/// Protocol between server and upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// FastCGI.
    FastCgi,
    /// SCGI.
    Scgi,
    /// HTTP/1.1, as a reverse proxy.
    Proxy,
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Protocol::FastCgi => "fastcgi",
            Protocol::Scgi => "scgi",
            Protocol::Proxy => "proxy",
        })
    }
}

/// Upstreams of a location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstreams {
    /// The protocol of all.
    pub protocol: Protocol,
    /// The list, at least one.
    pub entries: Vec<UpstreamEntry>,
    /// Idle keep-alive connections to each, per worker.
    pub keepalive: u32,
    /// Whether keep-alive connections also carry requests that must not be sent twice.
    pub keepalive_unsafe_methods: bool,
    /// Upstreams to try for one request.
    pub attempts: u32,
    /// Timeout for an upstream to accept a connection.
    pub connect_timeout_ms: u64,
    /// Upgraded connections per worker; 0 allows none.
    pub max_upgrades: u32,
    /// Timeout of an upgraded connection without data in either direction.
    pub upgrade_timeout_ms: u64,
    /// Whether the `Authorization` header is passed on.
    pub authorization: bool,
    /// Whether the headers about earlier proxies are trusted.
    pub trust_forwarded: bool,
    /// Whether a proxied request keeps the `Host` header of its client.
    pub preserve_host: bool,
    /// Whether a path with an escaped slash is passed on.
    pub escaped_slashes: bool,
    /// What of the path is not passed on: the prefix without its final slash, or nothing.
    #[serde(default)]
    pub strip: String,
}

impl Upstreams {
    /// Returns the descriptors that the upstreams take in a worker with this number of concurrent
    /// requests.
    pub fn descriptors(&self, concurrency: u32) -> usize {
        let kept = self
            .addresses()
            .len()
            .saturating_mul(self.keepalive as usize);
        let under_way = concurrency as usize + self.max_upgrades as usize;
        kept.saturating_add(under_way)
    }

    /// Whether the protocol needs the length of a request body before the body.
    pub fn needs_length(&self) -> bool {
        self.protocol != Protocol::Proxy
    }
}

/// Returns the checked upstreams of a location; `None` if an address is wrong.
pub(super) fn upstreams(
    key: &str,
    own: &LocationSettings,
    protocol: Protocol,
    list: &Spanned<OneOrMany<String>>,
    to: &mut Findings<'_>,
) -> Option<Upstreams> {
    let name = |name: &str| format!("{key}.{name}");
    let entries = entries(&name(&protocol.to_string()), protocol, list, to)?;
    let proxies = protocol == Protocol::Proxy;
    if own.authorization.is_some() && proxies {
        let problem = "proxy always passes it on; remove it";
        to.usage_error(
            &name("authorization"),
            span(&own.authorization),
            problem.into(),
        );
    }
    if own.root.is_some() {
        let problem = "upstreams have no root; their programs are below the document root";
        to.usage_error(&name("root"), span(&own.root), problem.into());
    }
    let (keepalive, keepalive_unsafe_methods) = keepalive(key, own, protocol, to);
    Some(Upstreams {
        protocol,
        entries,
        keepalive,
        keepalive_unsafe_methods,
        attempts: number(&name("attempts"), &own.attempts, ATTEMPTS, 1..=16, to),
        connect_timeout_ms: time(
            &name("connect-timeout"),
            &own.connect_timeout,
            CONNECT_TIMEOUT_MS,
            1,
            to,
        ),
        max_upgrades: match proxies {
            true => number(
                &name("max-upgrades"),
                &own.max_upgrades,
                MAX_UPGRADES,
                0..=1 << 16,
                to,
            ),
            false => 0,
        },
        upgrade_timeout_ms: time(
            &name("upgrade-timeout"),
            &own.upgrade_timeout,
            UPGRADE_TIMEOUT_MS,
            1,
            to,
        ),
        authorization: value(&own.authorization).unwrap_or(false),
        trust_forwarded: value(&own.trust_forwarded).unwrap_or(false),
        preserve_host: value(&own.preserve_host).unwrap_or(true),
        escaped_slashes: proxies && value(&own.escaped_slashes).unwrap_or(true),
        strip: match proxies && value(&own.strip_prefix).unwrap_or(false) {
            true => stripped_prefix(&name("strip-prefix"), own, to),
            false => String::new(),
        },
    })
}

/// Returns the prefix without its final slash. It may have no byte that could be escaped in a request.
fn stripped_prefix(key: &str, own: &LocationSettings, to: &mut Findings<'_>) -> String {
    let prefix = own.prefix.as_ref().map_or("", |prefix| prefix.get_ref());
    let is_unreserved =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/');
    let problem = match prefix.trim_end_matches('/') {
        "" => "it needs a prefix other than /, such as /app/",
        some if some.bytes().all(is_unreserved) => return some.into(),
        _ => "here the prefix may only have letters, digits, slashes and -._~",
    };
    to.usage_error(key, span(&own.strip_prefix), problem.into());
    String::new()
}

/// Returns how many idle connections to each upstream are kept, and whether they also carry
/// requests that must not be sent twice.
fn keepalive(
    key: &str,
    own: &LocationSettings,
    protocol: Protocol,
    to: &mut Findings<'_>,
) -> (u32, bool) {
    let name = |name: &str| format!("{key}.{name}");
    let default = match protocol {
        Protocol::Proxy => KEEPALIVE,
        // Such a connection occupies a process of the application.
        Protocol::FastCgi | Protocol::Scgi => 0,
    };
    let connections = match (protocol, value(&own.keepalive)) {
        (Protocol::Scgi, Some(1..)) => {
            let problem = "SCGI has no keep-alive connections; remove it";
            to.usage_error(&name("keepalive"), span(&own.keepalive), problem.into());
            0
        }
        _ => number(&name("keepalive"), &own.keepalive, default, 0..=1024, to),
    };
    let unsafe_methods = value(&own.keepalive_unsafe_methods).unwrap_or(false);
    if unsafe_methods && connections == 0 {
        let problem = match protocol {
            Protocol::Scgi => "SCGI has no keep-alive connections",
            _ => "it needs keep-alive connections; set keepalive",
        };
        to.usage_error(
            &name("keepalive-unsafe-methods"),
            span(&own.keepalive_unsafe_methods),
            problem.into(),
        );
    }
    (connections, unsafe_methods)
}

fn entries(
    key: &str,
    protocol: Protocol,
    list: &Spanned<OneOrMany<String>>,
    to: &mut Findings<'_>,
) -> Option<Vec<UpstreamEntry>> {
    let read = match protocol {
        Protocol::Proxy => Address::parse_http,
        Protocol::FastCgi | Protocol::Scgi => Address::parse,
    };
    let texts = &list.get_ref().0;
    if texts.is_empty() || texts.len() > UPSTREAMS_MAX {
        let problem = format!("list 1 to {UPSTREAMS_MAX} upstreams");
        to.usage_error(key, Some(list.span()), problem);
        return None;
    }
    let mut good = Vec::new();
    for text in texts {
        match (name_of(text, protocol), read(text)) {
            (Some(name), _) => match resolve(name) {
                Ok(addresses) => good.push(UpstreamEntry::Name(name.to_owned(), addresses)),
                Err(error) => to.environment_error(key, Some(list.span()), error),
            },
            (None, Ok(address)) => good.push(UpstreamEntry::Address(address.to_string())),
            (None, Err(error)) => {
                to.usage_error(key, Some(list.span()), format!("`{text}`: {error}"));
            }
        }
    }
    let addresses = good.iter().map(|entry| match entry {
        UpstreamEntry::Address(_) => 1,
        UpstreamEntry::Name(_, all) => all.len(),
    });
    let addresses: usize = addresses.sum();
    if addresses > UPSTREAMS_MAX {
        let problem = format!("the names have {addresses} addresses; {UPSTREAMS_MAX} are used");
        to.warning(key, Some(list.span()), problem);
    }
    (good.len() == texts.len()).then_some(good)
}

#[cfg(test)]
mod tests {
    use crate::extensions::KnownExtensions;
    use crate::research::RESEARCH_TABLE;
    use crate::{Config, Environment, HandlerConfig, Settings};

    fn checked(location: &str) -> Result<Vec<HandlerConfig>, String> {
        let text = format!("root = \"/\"\n[[location]]\nprefix = \"/app/\"\n{location}\n");
        let extensions = KnownExtensions {
            research: Some(&RESEARCH_TABLE),
            ..KnownExtensions::NONE
        };
        let path = std::path::Path::new("t.toml");
        let settings = Settings::from_toml_with(&text, path, extensions).unwrap();
        let checked = Config::check(&settings, None, &Environment::detect());
        let locations = checked.map(|good| good.config.hosts[0].locations.clone());
        match locations {
            Ok(all) => Ok(all.into_iter().map(|location| location.handler).collect()),
            Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn upstreams_parse_as_one_address_or_a_list() {
        for (text, expected) in [
            ("fastcgi = \"unix:/run/a.sock\"", vec!["unix:/run/a.sock"]),
            (
                "scgi = [\"127.0.0.1:1\", \"[::1]:2\"]",
                vec!["127.0.0.1:1", "[::1]:2"],
            ),
            ("proxy = \"http://127.0.0.1:80/\"", vec!["127.0.0.1:80"]),
        ] {
            match &checked(text).unwrap()[..] {
                [HandlerConfig::Upstreams(upstreams)] => {
                    let addresses = upstreams.addresses();
                    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                    assert_eq!(texts, expected);
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn upstream_errors_name_the_reason() {
        for (text, expected) in [
            ("fastcgi = \"localhost\"", "needs an address and a port"),
            ("fastcgi = []", "list 1 to 64 upstreams"),
            (
                "proxy = \"https://127.0.0.1:443\"",
                "TLS to upstreams is not supported",
            ),
            (
                "scgi = \"127.0.0.1:1\"\nproxy = \"127.0.0.1:2\"",
                "one handler, and this one has scgi and proxy; keep one",
            ),
            (
                "scgi = \"127.0.0.1:1\"\ncgi = true",
                "this one has cgi and scgi; keep one",
            ),
            (
                "scgi = \"127.0.0.1:1\"\nkeepalive = 1",
                "SCGI has no keep-alive connections",
            ),
            (
                "fastcgi = \"127.0.0.1:1\"\nkeepalive-unsafe-methods = true",
                "needs keep-alive connections",
            ),
            (
                "scgi = \"127.0.0.1:1\"\npreserve-host = true",
                "only for proxy",
            ),
            (
                "fastcgi = \"127.0.0.1:1\"\nmax-upgrades = 1",
                "only for proxy",
            ),
            (
                "scgi = \"127.0.0.1:1\"\nescaped-slashes = true",
                "only for proxy",
            ),
            (
                "fastcgi = \"127.0.0.1:1\"\nconnect-timeout = \"0s\"",
                "connect-timeout",
            ),
            (
                "proxy = \"127.0.0.1:1\"\nauthorization = true",
                "always passes it on",
            ),
            (
                "proxy = \"127.0.0.1:1\"\nroot = \"/\"",
                "upstreams have no root",
            ),
            ("files = true\nkeepalive = 1", "only for upstreams"),
            (
                "cgi = true\nkeepalive-unsafe-methods = true",
                "only for upstreams",
            ),
            ("cgi = true\nmax-upgrades = 1", "only for proxy"),
            (
                "direct = [\"/bin/true\"]\nauthorization = true",
                "only for cgi, fastcgi and scgi",
            ),
            (
                "direct = [\"/bin/true\"]\nstreams = \"pipe\"",
                "only for cgi",
            ),
            (
                "direct = [\"/bin/true\"]\nrequest-buffering = false",
                "always receives the whole body",
            ),
            (
                "files = true\naccel-redirect = true",
                "only for handlers whose responses pass through the server",
            ),
        ] {
            let found = checked(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
