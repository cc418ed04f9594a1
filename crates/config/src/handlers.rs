//! Checks the handler of a location: exactly one of several, with the settings that belong to it.
//!
//! Programs and directories are looked up here, before the server starts, so that mistakes are
//! reported.

use std::ops::Range;
use std::path::PathBuf;
use toml::Spanned;

use super::error::Findings;
use super::hosts::lasting_path;
use super::keys::Setting;
use super::locations::{Cgi, HandlerConfig, NamedApplication};
use super::ranges::{span, value};
use super::redirect::redirect;
use super::research::{ResearchSettings, prefixes};
use super::settings::{LocationSettings, Settings};
use super::units::OneOrMany;
use super::upstreams::{Protocol, upstreams};
use crate::extensions::KnownApplications;

const NEEDS_HANDLER: &str = "a location needs a handler: exactly one of cgi = true, direct = [\"program\"], fastcgi, scgi, proxy, redirect = \"/new/*\", application = \"NAME\" and files = true";

/// Returns the handler; `None` if it is wrong.
pub(super) fn kind(
    key: &str,
    own: &LocationSettings,
    position: &Range<usize>,
    from: &Settings,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Option<HandlerConfig> {
    let name = match written(own)[..] {
        [name] => name,
        [] => {
            // The handler may be the setting that could not be read.
            if !own.has_faults {
                to.usage_error(key, Some(position.clone()), NEEDS_HANDLER.into());
            }
            return None;
        }
        [ref others @ .., last] => {
            let others = others.join(", ");
            let problem = format!(
                "a location has one handler, and this one has {others} and {last}; keep one"
            );
            to.usage_error(key, Some(position.clone()), problem);
            return None;
        }
    };
    if let Some(item) = &own.application {
        return application(key, own, item, applications, to).map(HandlerConfig::Application);
    }
    let over_sockets = [
        (Protocol::FastCgi, &own.fastcgi),
        (Protocol::Scgi, &own.scgi),
        (Protocol::Proxy, &own.proxy),
    ];
    for (protocol, list) in over_sockets {
        if let Some(list) = list {
            return upstreams(key, own, protocol, list, to).map(HandlerConfig::Upstreams);
        }
    }
    let is_in = |list: fn(&ResearchSettings) -> &Setting<OneOrMany<String>>| {
        let research = from.research.as_ref().map(Spanned::get_ref);
        let prefix = own.prefix.as_ref().map(Spanned::get_ref);
        research
            .zip(prefix)
            .is_some_and(|(research, prefix)| prefixes(list(research)).contains(prefix))
    };
    if let Some(list) = &own.direct {
        reject_root(key, own, "direct has no root; remove it", to);
        let command = command(&format!("{key}.direct"), own, list, to)?;
        return Some(match is_in(|research| &research.pipe) {
            true => HandlerConfig::Pipe(command),
            false => HandlerConfig::Direct(command),
        });
    }
    if let Some(item) = &own.redirect {
        reject_root(key, own, "redirect has no root; remove it", to);
        return redirect(key, own, item.get_ref(), to).map(HandlerConfig::Redirect);
    }
    if name == "files" {
        let problem = "files are served from the root of the host; remove it";
        reject_root(key, own, problem, to);
        return Some(HandlerConfig::Files);
    }
    Some(HandlerConfig::Cgi(Cgi {
        root: directory(key, own, "the programs' directory", to),
        streams: value(&own.streams).unwrap_or_default(),
        fork_in_server: is_in(|research| &research.fork_in_server),
        authorization: value(&own.authorization).unwrap_or(false),
    }))
}

/// Returns the keys of all handlers that a location has.
fn written(own: &LocationSettings) -> Vec<&'static str> {
    [
        ("cgi", value(&own.cgi).unwrap_or(false)),
        ("direct", own.direct.is_some()),
        ("fastcgi", own.fastcgi.is_some()),
        ("scgi", own.scgi.is_some()),
        ("proxy", own.proxy.is_some()),
        ("redirect", own.redirect.is_some()),
        ("application", own.application.is_some()),
        ("files", value(&own.files).unwrap_or(false)),
    ]
    .into_iter()
    .filter_map(|(name, is_written)| is_written.then_some(name))
    .collect()
}

fn reject_root(key: &str, own: &LocationSettings, problem: &str, to: &mut Findings<'_>) {
    if own.root.is_some() {
        to.usage_error(&format!("{key}.root"), span(&own.root), problem.into());
    }
}

fn application(
    key: &str,
    own: &LocationSettings,
    item: &Spanned<String>,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Option<NamedApplication> {
    let name = item.get_ref();
    let at = format!("{key}.application");
    let Some(own_directory) = applications.directory(name) else {
        let known = applications.names();
        let problem = match &known[..] {
            [] => format!(
                "this program contains no applications, so not `{name}`; `headway-lab serve` has those of experiments"
            ),
            known => format!(
                "no application `{name}`; this program has {}",
                known.join(", ")
            ),
        };
        to.usage_error(&at, Some(item.span()), problem);
        return None;
    };
    if own.prefix.is_none() {
        to.usage_error(&at, Some(item.span()), "it needs a prefix".into());
        return None;
    }
    let directory = match own.root {
        None => own_directory.into(),
        Some(_) => directory(key, own, "the application's directory", to)?,
    };
    Some(NamedApplication {
        name: name.clone(),
        directory,
    })
}

/// Reports settings that the handler does not use. Ignored, they would look as if they had an
/// effect.
pub(super) fn check_foreign_settings(
    key: &str,
    own: &LocationSettings,
    kind: &HandlerConfig,
    to: &mut Findings<'_>,
) {
    let of_upstreams = [
        ("keepalive", span(&own.keepalive)),
        (
            "keepalive-unsafe-methods",
            span(&own.keepalive_unsafe_methods),
        ),
        ("attempts", span(&own.attempts)),
        ("connect-timeout", span(&own.connect_timeout)),
    ];
    let of_proxies = [
        ("max-upgrades", span(&own.max_upgrades)),
        ("upgrade-timeout", span(&own.upgrade_timeout)),
        ("trust-forwarded", span(&own.trust_forwarded)),
        ("preserve-host", span(&own.preserve_host)),
        ("escaped-slashes", span(&own.escaped_slashes)),
        ("strip-prefix", span(&own.strip_prefix)),
    ];
    let of_cgi = [("streams", span(&own.streams))];
    let of_gateways = [("authorization", span(&own.authorization))];
    let of_redirects = [("redirect-status", span(&own.redirect_status))];
    let of_whole_bodies = [("request-buffering", span(&own.request_buffering))];
    let whole_bodies = (
        &of_whole_bodies[..],
        "only for cgi, fastcgi, scgi and proxy; direct always receives the whole body first",
    );
    let upstreams_alone = (
        &of_upstreams[..],
        "only for upstreams: fastcgi, scgi and proxy",
    );
    let proxies = (&of_proxies[..], "only for proxy");
    let cgi = (&of_cgi[..], "only for cgi");
    let gateways = (&of_gateways[..], "only for cgi, fastcgi and scgi");
    let redirects = (&of_redirects[..], "only for redirect");
    let mut foreign = match kind {
        HandlerConfig::Upstreams(upstreams) if upstreams.protocol == Protocol::Proxy => vec![cgi],
        HandlerConfig::Upstreams(_) => vec![proxies, cgi],
        HandlerConfig::Cgi(_) => vec![upstreams_alone, proxies],
        HandlerConfig::Files
        | HandlerConfig::Direct(_)
        | HandlerConfig::Pipe(_)
        | HandlerConfig::Application(_)
        | HandlerConfig::Redirect(_) => {
            vec![upstreams_alone, proxies, cgi, gateways, whole_bodies]
        }
    };
    if !matches!(kind, HandlerConfig::Redirect(_)) {
        foreign.push(redirects);
    }
    for (settings, problem) in foreign {
        for (name, position) in settings.iter().filter(|(_, position)| position.is_some()) {
            to.usage_error(&format!("{key}.{name}"), position.clone(), problem.into());
        }
    }
}

/// Looks the program up here, where an error is still reported.
fn command(
    key: &str,
    own: &LocationSettings,
    list: &Spanned<OneOrMany<String>>,
    to: &mut Findings<'_>,
) -> Option<Vec<String>> {
    let position = Some(list.span());
    let command = list.get_ref().0.clone();
    if own.prefix.is_none() {
        let problem = "direct needs a prefix, not a suffix";
        to.usage_error(key, position, problem.into());
        return None;
    }
    let Some(program) = command.first() else {
        to.usage_error(key, position, "name a program".into());
        return None;
    };
    if command.iter().any(|word| word.contains('\0')) {
        to.usage_error(key, position, "an argument contains a NUL byte".into());
        return None;
    }
    let usable = std::fs::canonicalize(program).and_then(|real| {
        rustix::fs::access(&real, rustix::fs::Access::EXEC_OK)?;
        match real.is_file() {
            true => Ok(()),
            false => Err(std::io::Error::other("it is not a file")),
        }
    });
    match usable {
        Ok(()) => Some(command),
        Err(error) => {
            to.environment_error(key, position, format!("the program {program}: {error}"));
            None
        }
    }
}

/// Returns the `root` of a location.
fn directory(
    key: &str,
    own: &LocationSettings,
    what: &str,
    to: &mut Findings<'_>,
) -> Option<PathBuf> {
    let item = own.root.as_ref()?;
    let (key, position) = (format!("{key}.root"), Some(item.span()));
    if own.prefix.is_none() {
        let problem = "a root needs a prefix, not a suffix";
        to.usage_error(&key, position, problem.into());
        return None;
    }
    let shown = item.get_ref().display();
    match lasting_path(item.get_ref()) {
        Ok(path) if path.is_dir() => return Some(path),
        Ok(_) => to.environment_error(&key, position, format!("{shown} is not a directory")),
        Err(error) => to.environment_error(&key, position, format!("{what} {shown}: {error}")),
    }
    None
}
