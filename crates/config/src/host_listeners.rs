//! At which addresses each host is served (`listen` of a `[[host]]`).
//!
//! A host without `listen` is served at all of them. At each address the first host served there is the
//! default, and a name belongs to one host.

use std::ops::Range;

use super::error::Findings;
use super::keys::Setting;
use super::ranges::{span, tables};
use super::settings::{HostSettings, Settings};
use super::units::OneOrMany;
use super::{Endpoint, Host};

/// The addresses that were written, each once; none if there is no such setting.
pub(super) fn written(
    key: &str,
    item: &Setting<OneOrMany<Endpoint>>,
    to: &mut Findings<'_>,
) -> Vec<Endpoint> {
    let Some(item) = item else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for address in &item.get_ref().0 {
        match address.absolute() {
            Ok(address) if all.contains(&address) => {}
            Ok(address) => all.push(address),
            Err(problem) => to.usage_error(key, Some(item.span()), problem),
        }
    }
    if item.get_ref().0.is_empty() {
        let problem = "at least one address is needed; without listen the host is served at all";
        to.usage_error(key, Some(item.span()), problem.into());
    }
    all
}

/// Reports addresses that the server does not have, addresses without a host, hosts that are never used, and
/// names that belong to two hosts.
pub(super) fn check(
    from: &Settings,
    hosts: &[Host],
    (listen, first_tls): (&[Endpoint], usize),
    to: &mut Findings<'_>,
) {
    let placed = placed(from, hosts);
    // The addresses may be what could not be read.
    if !from.has_faults {
        // What follows from another mistake needs no message.
        if !check_known(from, listen, to) {
            return;
        }
        check_secure(&placed, &listen[..first_tls], to);
        check_addresses(from, hosts, listen, to);
    }
    check_names(&placed, listen, to);
}

impl Host {
    /// Whether the host is served at this address, one of [`Config::listen`](crate::Config::listen).
    pub fn is_served_at(&self, address: &Endpoint) -> bool {
        self.listen.is_empty() || self.listen.contains(address)
    }
}

/// Whether a host is served at some addresses, and none of them speaks TLS.
pub(super) fn is_plain(host: &HostSettings, plain: &[Endpoint]) -> bool {
    let listen = host.listen.as_ref().map(|item| &item.get_ref().0);
    let is_plain = |address: &Endpoint| address.absolute().is_ok_and(|one| plain.contains(&one));
    listen.is_some_and(|all| all.iter().all(is_plain))
}

/// A host with the settings that it is made of; the default host of the top level has none.
struct Placed<'a> {
    host: &'a Host,
    settings: Option<&'a HostSettings>,
    position: Option<Range<usize>>,
}

fn placed<'a>(from: &'a Settings, hosts: &'a [Host]) -> Vec<Placed<'a>> {
    // A host without a root has had its message, and is left out.
    let mut written = tables(&from.host)
        .iter()
        .filter(|host| host.get_ref().root.is_some());
    let has_default = from.root.is_some() || tables(&from.host).is_empty();
    let mut all: Vec<Placed<'a>> = Vec::new();
    for (place, host) in hosts.iter().enumerate() {
        let settings = match (place, host.is_alias) {
            (0, _) if has_default => None,
            // Those of the host before.
            (_, true) => None,
            _ => written.next(),
        };
        let before = all.last().filter(|_| host.is_alias);
        all.push(Placed {
            host,
            position: match (settings, before) {
                (Some(settings), _) => Some(settings.span()),
                (None, before) => before.and_then(|one| one.position.clone()),
            },
            settings: match (settings, before) {
                (Some(settings), _) => Some(settings.get_ref()),
                (None, before) => before.and_then(|one| one.settings),
            },
        });
    }
    all
}

/// Reports addresses that the server does not have. Returns whether there are none.
fn check_known(from: &Settings, listen: &[Endpoint], to: &mut Findings<'_>) -> bool {
    let known: Vec<String> = listen.iter().map(Endpoint::to_string).collect();
    let mut are_known = true;
    for host in tables(&from.host) {
        let Some(item) = &host.get_ref().listen else {
            continue;
        };
        let addresses = item.get_ref().0.iter();
        let addresses = addresses.filter_map(|one| one.absolute().ok());
        for address in addresses.filter(|address| !listen.contains(address)) {
            let problem = format!(
                "the server does not listen at {address}, only at {}; add it to listen or tls-listen at the \
                 top of the file",
                known.join(", ")
            );
            to.usage_error("host.listen", Some(item.span()), problem);
            are_known = false;
        }
    }
    are_known
}

/// Reports certificates of hosts which no client of TLS reaches.
fn check_secure(placed: &[Placed<'_>], plain: &[Endpoint], to: &mut Findings<'_>) {
    for one in placed.iter().filter(|one| !one.host.is_alias) {
        let Some(settings) = one.settings else {
            continue;
        };
        if settings.tls_certificate.is_some() && is_plain(settings, plain) {
            let problem = "listen of this host has no address of tls-listen; add one, or remove the certificate";
            let position = span(&settings.tls_certificate);
            to.usage_error("host.tls-certificate", position, problem.into());
        }
    }
}

/// Each address needs a host.
fn check_addresses(from: &Settings, hosts: &[Host], listen: &[Endpoint], to: &mut Findings<'_>) {
    for address in listen {
        if !hosts.is_empty() && !hosts.iter().any(|host| host.is_served_at(address)) {
            let problem = format!(
                "no host is served at {address}; add it to listen of a host, or remove it here"
            );
            let (key, position) = match from.listen.as_ref() {
                Some(item) if item.get_ref().0.iter().any(|one| one == address) => {
                    ("listen", Some(item.span()))
                }
                _ => ("tls-listen", span(&from.tls_listen)),
            };
            to.usage_error(key, position, problem);
        }
    }
}

/// A host without names has to be the first one somewhere, and no two hosts have a name at the same address.
fn check_names(placed: &[Placed<'_>], listen: &[Endpoint], to: &mut Findings<'_>) {
    for (place, one) in placed.iter().enumerate() {
        let (host, before) = (one.host, &placed[..place]);
        let settings = one.settings;
        let is_first = |address: &&Endpoint| {
            host.is_served_at(address) && !before.iter().any(|one| one.host.is_served_at(address))
        };
        let has_faults = settings.is_some_and(|settings| settings.has_faults);
        let names = settings.and_then(|settings| settings.names.as_ref());
        if settings.is_some()
            && names.is_none()
            && !has_faults
            && !listen.iter().any(|at| is_first(&at))
        {
            let problem = "a host without names is never used: only the first host at an address is the default";
            to.usage_error("host", one.position.clone(), problem.into());
        }
        let position = || names.map(|names| names.span());
        for name in &host.names {
            let twice = host.names.iter().filter(|other| *other == name).count() > 1;
            let mut same = before
                .iter()
                .filter(|other| other.host.names.contains(name));
            let meets = |other: &&Placed<'_>| {
                let at_both = |at: &&Endpoint| host.is_served_at(at) && other.host.is_served_at(at);
                listen.iter().any(|at| at_both(&at))
            };
            if twice || same.clone().any(|other| meets(&other)) {
                let problem = format!("`{name}` is the name of two hosts");
                to.usage_error("host.names", position(), problem);
                break;
            }
            let other = |other: &Placed<'_>| other.host.tls.is_some() && other.host.tls != host.tls;
            if host.tls.is_some() && same.any(other) {
                let problem = format!(
                    "`{name}` has another certificate in the host before; at all addresses clients get one \
                     certificate for a name"
                );
                let position = settings.and_then(|settings| span(&settings.tls_certificate));
                to.usage_error("host.tls-certificate", position, problem);
                break;
            }
        }
    }
}
