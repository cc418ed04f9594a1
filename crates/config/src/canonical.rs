//! The setting `canonical`: the one name of a host to which its other names redirect.
//!
//! The other names become a host of their own, so that no request for them costs more than another
//! redirect.

use toml::Spanned;

use super::error::Findings;
use super::locations::location_list;
use super::settings::{HostSettings, LocationSettings, Settings, from_command_line};
use super::{HandlerConfig, Host, Location, Redirect};
use crate::extensions::KnownApplications;

/// Permanent, and the method stays.
const STATUS: u16 = 308;
const SCHEMES: [&str; 2] = ["http://", "https://"];

/// Divides a host: the canonical name stays, and the others redirect.
pub(super) fn divide(
    mut host: Host,
    own: &HostSettings,
    (from, applications): (&Settings, &dyn KnownApplications),
    to: &mut Findings<'_>,
) -> Vec<Host> {
    let Some(item) = &own.canonical else {
        return vec![host];
    };
    let written = item.get_ref().to_ascii_lowercase();
    let authority = SCHEMES
        .iter()
        .find_map(|scheme| written.strip_prefix(scheme));
    let authority = authority.unwrap_or(&written);
    let name = name_of(authority);
    if name.is_empty() || authority.contains(['/', '@', '?', '#', '*']) {
        let problem = format!(
            "`{written}` is not a host name; write www.example.org, or https://www.example.org without a path"
        );
        to.usage_error("host.canonical", Some(item.span()), problem);
        return vec![host];
    }
    if !host.names.iter().any(|own| own == name) {
        let problem =
            format!("`{name}` is not one of names, so this host would not get its requests");
        to.usage_error("host.canonical", Some(item.span()), problem);
        return vec![host];
    }
    let (canonical, others) = host.names.drain(..).partition(|own| own == name);
    (host.names, host.aliases) = (canonical, others);
    // Without a scheme the client keeps its own: a proxy in front may speak TLS.
    let target = match authority.len() == written.len() {
        true => format!("//{authority}/"),
        false => format!("{written}/"),
    };
    host.canonical = Some(written);
    if host.aliases.is_empty() {
        return vec![host];
    }
    let mut locations = everything(from, applications, to);
    for location in &mut locations {
        location.handler = HandlerConfig::Redirect(Redirect {
            target: target.clone(),
            keeps_rest: true,
            status: STATUS,
        });
    }
    let other = Host {
        names: host.aliases.clone(),
        aliases: Vec::new(),
        is_alias: true,
        locations,
        fallback: Vec::new(),
        clean_urls: false,
        ..host.clone()
    };
    vec![host, other]
}

/// A location of all paths.
fn everything(
    from: &Settings,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Vec<Location> {
    let settings = LocationSettings {
        prefix: Some(from_command_line("/".into())),
        files: Some(from_command_line(true)),
        ..LocationSettings::default()
    };
    let settings = Spanned::new(0..0, settings);
    location_list("host.location", &[settings], from, applications, to)
}

/// An authority without its port. An IPv6 address is in brackets.
fn name_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            name
        }
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn port_is_no_part_of_a_name() {
        for (authority, name) in [
            ("a.example", "a.example"),
            ("a.example:8080", "a.example"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("a.example:", "a.example:"),
            ("a.example:x", "a.example:x"),
        ] {
            assert_eq!(name_of(authority), name);
        }
    }
}
