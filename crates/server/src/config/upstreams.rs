//! Locations that other servers answer: which ones, by which protocol, and what they are told and
//! allowed.

use headway_gateway::upstream::{Address, BACK_ENDS_MAX};
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::Spanned;

use super::check::{number, span, time, value};
use super::error::Findings;
use super::settings::LocationSettings;
use super::units::Many;

/// Back ends asked for one request at most, unless it is configured.
const ATTEMPTS: u32 = 2;
/// Connections that wait for the next request, a worker and HTTP back end, unless it is configured.
const KEEP: u32 = 16;

/// How long a back end may take to accept a connection, unless it is configured.
const CONNECT_TIMEOUT_MS: u64 = 5_000;
/// Connections that speak another protocol, a worker and location, unless it is configured.
const TUNNELS: u32 = 256;
/// How long nothing may go over one of them, unless it is configured.
const TUNNEL_TIMEOUT_MS: u64 = 300_000;

/// What is spoken to a back end.
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

/// Servers that answer a location's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstreams {
    /// What they speak.
    pub protocol: Protocol,
    /// Where they are; [`Address::parse`] reads each.
    pub addresses: Vec<String>,
    /// Connections to each that wait for the next request, a worker.
    pub keepalive: u32,
    /// They are for every request, also for one that must not be sent twice.
    pub keepalive_unsafe_methods: bool,
    /// Back ends asked for one request at most.
    pub attempts: u32,
    /// How long a back end may take to accept a connection.
    pub connect_timeout_ms: u64,
    /// Connections that may have changed to another protocol, a worker; 0: none is asked for.
    pub max_upgrades: u32,
    /// How long nothing may go over one of them, in either direction.
    pub upgrade_timeout_ms: u64,
    /// The `Authorization` field is passed on.
    pub authorization: bool,
    /// What a request says of earlier hops is believed.
    pub trust_forwarded: bool,
    /// A proxied request keeps the Host its client sent.
    pub preserve_host: bool,
}

impl Upstreams {
    /// Descriptors that they take in a worker, with so many requests under way.
    pub fn descriptors(&self, concurrency: u32) -> usize {
        let kept = self.addresses.len().saturating_mul(self.keepalive as usize);
        let under_way = concurrency as usize + self.max_upgrades as usize;
        kept.saturating_add(under_way)
    }

    /// The program has to be told a body's length before the body.
    pub fn needs_length(&self) -> bool {
        self.protocol != Protocol::Proxy
    }
}

/// The back ends of a location, checked; `None` if something is wrong with their addresses.
pub(super) fn upstreams(
    key: &str,
    own: &LocationSettings,
    protocol: Protocol,
    list: &Spanned<Many<String>>,
    to: &mut Findings<'_>,
) -> Option<Upstreams> {
    let name = |name: &str| format!("{key}.{name}");
    let addresses = addresses(&name(&protocol.to_string()), protocol, list, to)?;
    let keep = match protocol {
        Protocol::Proxy => KEEP,
        // Such a connection occupies a process of the application.
        Protocol::FastCgi | Protocol::Scgi => 0,
    };
    let most = if protocol == Protocol::Scgi { 0 } else { 1024 };
    let proxies = protocol == Protocol::Proxy;
    if own.authorization.is_some() && proxies {
        let problem = "a proxy location always passes it on";
        to.wrong(
            &name("authorization"),
            span(&own.authorization),
            problem.into(),
        );
    }
    if own.root.is_some() {
        let problem = "back ends have no root; their programs are below the document root";
        to.wrong(&name("root"), span(&own.root), problem.into());
    }
    let keep = number(&name("keepalive"), &own.keepalive, keep, 0..=most, to);
    let keepalive_unsafe_methods = value(&own.keepalive_unsafe_methods).unwrap_or(false);
    if keepalive_unsafe_methods && keep == 0 {
        let problem = match protocol {
            Protocol::Scgi => "SCGI has no connections that are kept",
            _ => "no connection is kept here; `keepalive` says how many are",
        };
        to.wrong(
            &name("keepalive-unsafe-methods"),
            span(&own.keepalive_unsafe_methods),
            problem.into(),
        );
    }
    Some(Upstreams {
        protocol,
        addresses,
        keepalive: keep,
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
                TUNNELS,
                0..=1 << 16,
                to,
            ),
            false => 0,
        },
        upgrade_timeout_ms: time(
            &name("upgrade-timeout"),
            &own.upgrade_timeout,
            TUNNEL_TIMEOUT_MS,
            1,
            to,
        ),
        authorization: value(&own.authorization).unwrap_or(false),
        trust_forwarded: value(&own.trust_forwarded).unwrap_or(false),
        preserve_host: value(&own.preserve_host).unwrap_or(true),
    })
}

fn addresses(
    key: &str,
    protocol: Protocol,
    list: &Spanned<Many<String>>,
    to: &mut Findings<'_>,
) -> Option<Vec<String>> {
    let read = match protocol {
        Protocol::Proxy => Address::parse_http,
        Protocol::FastCgi | Protocol::Scgi => Address::parse,
    };
    let texts = &list.get_ref().0;
    if texts.is_empty() || texts.len() > BACK_ENDS_MAX {
        let problem = format!("name 1 to {BACK_ENDS_MAX} back ends");
        to.wrong(key, Some(list.span()), problem);
        return None;
    }
    let mut good = Vec::new();
    for text in texts {
        match read(text) {
            Ok(address) => good.push(address.to_string()),
            Err(error) => to.wrong(key, Some(list.span()), format!("`{text}`: {error}")),
        }
    }
    (good.len() == texts.len()).then_some(good)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Environment, Handler, Settings};

    fn checked(location: &str) -> Result<Vec<Handler>, String> {
        let text = format!("root = \"/\"\n[[location]]\nprefix = \"/app/\"\n{location}\n");
        let settings = Settings::from_toml(&text, std::path::Path::new("t.toml")).unwrap();
        let checked = Config::check(&settings, None, &Environment::detect());
        let locations = checked.map(|good| good.config.hosts[0].locations.clone());
        match locations {
            Ok(all) => Ok(all.into_iter().map(|location| location.handler).collect()),
            Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn back_ends_are_understood_when_one_or_several_are_named() {
        for (text, expected) in [
            ("fastcgi = \"unix:/run/a.sock\"", vec!["unix:/run/a.sock"]),
            (
                "scgi = [\"127.0.0.1:1\", \"[::1]:2\"]",
                vec!["127.0.0.1:1", "[::1]:2"],
            ),
            ("proxy = \"http://127.0.0.1:80/\"", vec!["127.0.0.1:80"]),
        ] {
            match &checked(text).unwrap()[..] {
                [Handler::Upstreams(peers)] => assert_eq!(peers.addresses, expected),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn reason_is_given_when_a_back_end_or_its_setting_makes_no_sense() {
        for (text, expected) in [
            ("fastcgi = \"localhost:9000\"", "needs a numeric address"),
            ("fastcgi = []", "name 1 to 64 back ends"),
            ("proxy = \"https://127.0.0.1:443\"", "without TLS"),
            (
                "scgi = \"127.0.0.1:1\"\nproxy = \"127.0.0.1:2\"",
                "exactly one of",
            ),
            ("scgi = \"127.0.0.1:1\"\ncgi = true", "exactly one of"),
            ("scgi = \"127.0.0.1:1\"\nkeepalive = 1", "keepalive"),
            (
                "fastcgi = \"127.0.0.1:1\"\nkeepalive-unsafe-methods = true",
                "no connection is kept here",
            ),
            (
                "scgi = \"127.0.0.1:1\"\npreserve-host = true",
                "only a proxy location has it",
            ),
            (
                "fastcgi = \"127.0.0.1:1\"\nmax-upgrades = 1",
                "only a proxy location has it",
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
                "back ends have no root",
            ),
            ("files = true\nkeepalive = 1", "only back ends have it"),
            (
                "cgi = true\nkeepalive-unsafe-methods = true",
                "only back ends have it",
            ),
            (
                "cgi = true\nmax-upgrades = 1",
                "only a proxy location has it",
            ),
            (
                "direct = [\"/bin/true\"]\nauthorization = true",
                "only CGI, FastCGI and SCGI locations have it",
            ),
            (
                "pipe = [\"/bin/true\"]\nstreams = \"pipe\"",
                "only a CGI location has it",
            ),
            (
                "proxy = \"127.0.0.1:1\"\nfork-in-server = true",
                "only a CGI location has it",
            ),
            (
                "files = true\naccel-redirect = true",
                "only a location whose replies the server reads",
            ),
        ] {
            let found = checked(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
