//! The addresses to listen on: those of plain HTTP (`listen`), then those of TLS (`tls-listen`).

use std::net::SocketAddr;
use toml::Spanned;

use super::check::overlap;
use super::error::Findings;
use super::ranges::{span, value};
use super::settings::Settings;
use super::tls::is_for_development;
use super::units::OneOrMany;
use super::users::socket_owner;
use super::{Endpoint, FileMode, UnixRights};

const LISTENERS_MAX: usize = 64;
/// Ports of this machine's address if none is written, without TLS and with `tls = true`.
const PLAIN_PORT: u16 = 8080;
const DEVELOPMENT_PORT: u16 = 8443;

/// Returns all addresses, and the place of the first one that speaks TLS.
pub(super) fn listen(from: &Settings, to: &mut Findings<'_>) -> (Vec<Endpoint>, usize) {
    let mut all = Vec::new();
    let port = match is_for_development(from) {
        true => DEVELOPMENT_PORT,
        false => PLAIN_PORT,
    };
    match &from.listen {
        Some(item) => add("listen", item, &mut all, to),
        // A server may speak TLS only.
        None if from.tls_listen.is_some() => {}
        None => all.push(SocketAddr::from(([127, 0, 0, 1], port)).into()),
    }
    if is_for_development(from) && from.tls_listen.is_none() {
        return (all, 0);
    }
    let first_tls = all.len();
    if let Some(item) = &from.tls_listen {
        add("tls-listen", item, &mut all, to);
    }
    (all, first_tls)
}

/// Returns the permissions and the owner of Unix sockets.
pub(super) fn unix_rights(
    from: &Settings,
    listen: &[Endpoint],
    to: &mut Findings<'_>,
) -> UnixRights {
    let has_sockets = listen.iter().any(|endpoint| endpoint.path().is_some());
    let written = [
        ("listen-mode", span(&from.listen_mode)),
        ("listen-owner", span(&from.listen_owner)),
    ];
    for (key, position) in written {
        if position.is_some() && !has_sockets && !from.has_faults {
            let problem =
                "there is no Unix socket; set listen = \"unix:/run/headway.sock\" as well";
            to.usage_error(key, position, problem.into());
        }
    }
    let mode = value(&from.listen_mode).map(|FileMode(mode)| mode);
    UnixRights {
        mode: mode.unwrap_or(UnixRights::default().mode),
        owner: socket_owner(&from.listen_owner, to),
    }
}

/// Adds the addresses of a key to those before.
fn add(
    key: &str,
    item: &Spanned<OneOrMany<Endpoint>>,
    all: &mut Vec<Endpoint>,
    to: &mut Findings<'_>,
) {
    let position = || Some(item.span());
    let addresses = &item.get_ref().0;
    if addresses.is_empty() {
        to.usage_error(key, position(), "at least one address is needed".into());
    }
    for written in addresses {
        let address = match written.absolute() {
            Ok(address) => address,
            Err(problem) => {
                to.usage_error(key, position(), problem);
                continue;
            }
        };
        if let Some(other) = all.iter().find(|other| overlap(other, &address)) {
            let problem = match *other == address {
                true => format!("{address} is listed twice"),
                false => format!("{address} and {other} overlap"),
            };
            to.usage_error(key, position(), problem);
        }
        all.push(address);
    }
    if all.len() > LISTENERS_MAX {
        let problem = format!(
            "{} addresses; at most {LISTENERS_MAX} are allowed",
            all.len()
        );
        to.usage_error(key, position(), problem);
    }
}
