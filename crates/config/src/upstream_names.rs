//! Upstreams that are named: `app:3000` stands for all addresses which the name has.
//!
//! Names are resolved when the configuration is checked, which may wait for another machine, and then
//! again and again by the master.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{fmt, io};

use headway_gateway::upstream::Address;
use serde::{Deserialize, Serialize};

use super::{Config, HandlerConfig, Protocol, Upstreams};

/// How long a name may take. The resolver of the system itself may wait for half a minute.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of names with their ports.
pub type Resolved = BTreeMap<String, Vec<SocketAddr>>;

/// One upstream of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamEntry {
    /// An address; [`Address::parse`] reads it.
    Address(String),
    /// A name with its port, and its addresses in ascending order.
    Name(String, Vec<SocketAddr>),
}

impl Upstreams {
    /// All addresses, in the order of the list.
    pub fn addresses(&self) -> Vec<Address> {
        let addresses = |entry: &UpstreamEntry| match entry {
            // The configuration check has parsed it before.
            UpstreamEntry::Address(text) => Address::parse(text).into_iter().collect(),
            UpstreamEntry::Name(_, all) => all.iter().map(|one| Address::Tcp(*one)).collect(),
        };
        let all: Vec<Vec<Address>> = self.entries.iter().map(addresses).collect();
        all.concat()
    }

    /// The value of `Host` for the upstream at this address: its name, if it has one.
    pub fn authority(&self, address: &Address) -> String {
        let name = self
            .entries
            .iter()
            .find_map(|entry| match (entry, address) {
                (UpstreamEntry::Name(name, all), Address::Tcp(address)) => {
                    all.contains(address).then(|| name.clone())
                }
                _ => None,
            });
        name.unwrap_or_else(|| address.authority())
    }
}

impl Config {
    /// The names of all upstreams.
    pub fn upstream_names(&self) -> BTreeSet<String> {
        let entries = self.hosts.iter().flat_map(|host| &host.locations);
        let entries = entries.filter_map(|location| match &location.handler {
            HandlerConfig::Upstreams(upstreams) => Some(&upstreams.entries),
            _ => None,
        });
        let name = |entry: &UpstreamEntry| match entry {
            UpstreamEntry::Name(name, _) => Some(name.clone()),
            UpstreamEntry::Address(_) => None,
        };
        entries.flatten().filter_map(name).collect()
    }

    /// Gives names these addresses; other names keep theirs. Returns whether something has changed.
    pub fn set_addresses(&mut self, resolved: &Resolved) -> bool {
        let mut has_changed = false;
        for location in self.hosts.iter_mut().flat_map(|host| &mut host.locations) {
            let HandlerConfig::Upstreams(upstreams) = &mut location.handler else {
                continue;
            };
            for entry in &mut upstreams.entries {
                if let UpstreamEntry::Name(name, addresses) = entry
                    && let Some(now) = resolved.get(name)
                    && now != addresses
                {
                    addresses.clone_from(now);
                    has_changed = true;
                }
            }
        }
        has_changed
    }
}

/// The name and the port of an upstream that has no numeric address.
pub(super) fn name_of(text: &str, protocol: Protocol) -> Option<&str> {
    let text = match protocol {
        Protocol::Proxy => {
            let rest = text.strip_prefix("http://").unwrap_or(text);
            rest.strip_suffix('/').unwrap_or(rest)
        }
        Protocol::FastCgi | Protocol::Scgi => text,
    };
    let (name, port) = text.rsplit_once(':')?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !name.is_empty()
        && name.bytes().all(is_plain)
        && name.bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    (is_name && is_port).then_some(text)
}

/// Resolves a name with its port. May wait for another machine, for a few seconds.
///
/// # Errors
/// What is wrong, as a message.
pub fn resolve(name: &str) -> Result<Vec<SocketAddr>, String> {
    let failed = |why: &dyn fmt::Display| format!("cannot resolve {name}: {why}");
    let (sender, answer) = channel();
    let asked = name.to_owned();
    let ask = move || sender.send(asked.to_socket_addrs().map(Iterator::collect));
    let thread = std::thread::Builder::new()
        .name("resolve".into())
        .spawn(ask);
    thread.map_err(|error| failed(&error))?;
    let answered = answer.recv_timeout(RESOLVE_TIMEOUT);
    let found: io::Result<BTreeSet<SocketAddr>> =
        answered.map_err(|_| failed(&format!("no answer within {RESOLVE_TIMEOUT:?}")))?;
    let all = found.map_err(|error| failed(&error))?;
    match all.is_empty() {
        true => Err(format!("{name} has no address")),
        false => Ok(all.into_iter().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_is_a_name_when_it_has_letters_and_a_port() {
        let (http, other) = (Protocol::Proxy, Protocol::FastCgi);
        for (text, protocol, expected) in [
            ("http://app:3000", http, Some("app:3000")),
            ("http://app:3000/", http, Some("app:3000")),
            ("app.example.com:3000", http, Some("app.example.com:3000")),
            ("my_app-1:80", other, Some("my_app-1:80")),
            ("http://app:3000", other, None),
            ("app", http, None),
            ("app:0", http, None),
            ("app:http", http, None),
            ("127.0.0.1:3000", http, None),
            ("[::1]:3000", http, None),
            ("a b:80", http, None),
            ("http://app:80/path", http, None),
            ("user@app:80", http, None),
            (":80", http, None),
        ] {
            assert_eq!(name_of(text, protocol), expected, "{text}");
        }
    }

    #[test]
    fn name_of_this_machine_is_resolved_and_an_impossible_one_is_an_error() {
        let all = resolve("localhost:3000").unwrap();
        assert!(
            all.iter()
                .all(|one| one.ip().is_loopback() && one.port() == 3000)
        );
        assert!(all.is_sorted() && !all.is_empty());
        // Too long for a name, so no server is asked.
        let name = format!("{}:80", "a".repeat(64));
        let error = resolve(&name).unwrap_err();
        assert!(error.contains(&format!("cannot resolve {name}")), "{error}");
    }
}
