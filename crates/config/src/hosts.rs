//! Virtual hosts: the document root of each host name.
//!
//! A root at the top level (or the argument DIR) makes a default host without a name, which comes
//! first. Otherwise the first `[[host]]` is the default. Which hosts are served at which address is checked
//! in `host_listeners`, once the addresses are known.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::check::Environment;
use super::document_root::{Found, SILENT};
use super::error::Findings;
use super::keys::Setting;
use super::ranges::{span, tables, value};
use super::settings::{HostSettings, Settings};
use super::{
    Access, Fallback, HandlerConfig, Host, Location, canonical, cors, headers, host_listeners,
    locations, logs, tls,
};
use crate::extensions::KnownApplications;

/// The longest name of DNS (RFC 1035, 2.3.4), as text.
pub(super) const NAME_BYTES_MAX: usize = 253;
/// Each one may be a lookup.
const FALLBACKS_MAX: usize = 8;

pub(super) fn hosts(
    from: &Settings,
    environment: &Environment,
    to: &mut Findings<'_>,
) -> Vec<Host> {
    let applications = environment.extensions.applications;
    let written = tables(&from.host);
    let top = locations::location_list("location", tables(&from.location), from, applications, to);
    let mut hosts = Vec::new();
    if from.root.is_some() || written.is_empty() {
        let default = HostSettings {
            root: from.root.clone(),
            ..HostSettings::default()
        };
        let root = root("root", &default.root, to);
        hosts.push(host("", (&default, root), &top, from, applications, to));
    }
    let known = (from, applications);
    for settings in written {
        let settings_place = Some(settings.span());
        let settings = settings.get_ref();
        if settings.root.is_none() {
            if !settings.has_faults {
                let problem = "a host needs a document root: root = \"/srv/www\"";
                to.usage_error("host", settings_place, problem.into());
            }
            continue;
        }
        let root = root("host.root", &settings.root, to);
        let host = host("host.", (settings, root), &top, from, applications, to);
        hosts.extend(canonical::divide(host, settings, known, to));
    }
    hosts
}

fn host(
    prefix: &str,
    (own, root): (&HostSettings, PathBuf),
    locations: &[Location],
    top: &Settings,
    applications: &dyn KnownApplications,
    to: &mut Findings<'_>,
) -> Host {
    let key = |name: &str| format!("{prefix}{name}");
    let index = own.index.as_ref().or(top.index.as_ref());
    let pages = own.error_pages.as_ref().or(top.error_pages.as_ref());
    let locations =
        locations::host_locations(tables(&own.location), locations, top, applications, to);
    locations::check_applications(&root, &locations, applications, to);
    let clean_urls = value(&own.clean_urls).or(value(&top.clean_urls));
    let clean_urls = clean_urls.unwrap_or(false);
    let fallback = fallback(own, top, (&locations, clean_urls), to);
    Host {
        names: names(own, to),
        listen: host_listeners::written(&key("listen"), &own.listen, to),
        canonical: None,
        aliases: Vec::new(),
        is_alias: false,
        root,
        log: logs::log(prefix, (&own.log, &own.log_format), Some(top), to),
        // Without a listener its settings have a message of their own.
        tls: match tls::is_spoken(top) {
            true => tls::identity(prefix, (&own.tls_certificate, &own.tls_key), to),
            false => None,
        },
        index: match index {
            None => vec!["index.html".into()],
            Some(index) => {
                index_names(&index.get_ref().0, Some(index.span()), to);
                index.get_ref().0.clone()
            }
        },
        listing: value(&own.listing).or(value(&top.listing)).unwrap_or(false),
        dotfiles: value(&own.dotfiles)
            .or(value(&top.dotfiles))
            .unwrap_or(false),
        precompressed: value(&own.precompressed)
            .or(value(&top.precompressed))
            .unwrap_or(true),
        symlinks: value(&own.symlinks)
            .or(value(&top.symlinks))
            .unwrap_or_default(),
        access: match own.allow.is_some() || own.deny.is_some() {
            true => Access::new(&own.allow, &own.deny),
            false => Access::new(&top.allow, &top.deny),
        },
        fallback,
        clean_urls,
        error_pages: match pages {
            None => BTreeMap::new(),
            Some(pages) => error_pages(pages.get_ref(), Some(pages.span()), to),
        },
        locations,
        headers: headers::rules(&own.header, to),
        cors: cors::rules(&own.cors, to),
    }
}

fn fallback(
    own: &HostSettings,
    top: &Settings,
    (locations, clean_urls): (&[Location], bool),
    to: &mut Findings<'_>,
) -> Vec<Fallback> {
    let page = Fallback::Suffix(".html".into());
    let Some(item) = own.fallback.as_ref().or(top.fallback.as_ref()) else {
        return clean_urls.then_some(page).into_iter().collect();
    };
    let all = &item.get_ref().0;
    if all.len() > FALLBACKS_MAX {
        let problem = format!("at most {FALLBACKS_MAX} paths are possible");
        to.usage_error("fallback", Some(item.span()), problem);
    }
    let strips = |location: &&Location| match &location.handler {
        HandlerConfig::Upstreams(upstreams) => !upstreams.strip.is_empty(),
        _ => false,
    };
    let prefixes = locations
        .iter()
        .filter(strips)
        .map(|location| location.path.to_string());
    for prefix in prefixes {
        let begins = |fallback: &&Fallback| fallback.to_string().starts_with(&prefix);
        if let Some(fallback) = all.iter().find(begins) {
            let problem = format!(
                "`{fallback}` belongs to a location with strip-prefix, but other paths do not begin with {prefix}"
            );
            to.usage_error("fallback", Some(item.span()), problem);
        }
    }
    let first = (clean_urls && all.first() != Some(&page)).then_some(page);
    first.into_iter().chain(all.iter().cloned()).collect()
}

/// The path of a directory or file as it is kept: absolute, because child processes may have another
/// working directory. Symbolic links in it stay, so that they may be switched while it is served. Without
/// any it is in normal form.
pub(super) fn lasting_path(written: &Path) -> std::io::Result<PathBuf> {
    let real = std::fs::canonicalize(written)?;
    let absolute = std::path::absolute(written)?;
    let mut plain = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    Ok(if plain == real { real } else { absolute })
}

fn root(key: &str, item: &Setting<PathBuf>, to: &mut Findings<'_>) -> PathBuf {
    let position = span(item);
    let written = item.as_ref().map_or(Path::new("."), |item| item.get_ref());
    let shown = written.display();
    match to.patience.look(written) {
        Found::Directory(path) => path,
        Found::Unusable(why) => {
            to.environment_error(key, position, format!("the document root {shown}{why}"));
            written.into()
        }
        Found::Silent(path) => {
            let problem = format!(
                "the document root {shown}: {SILENT}; requests for it get 503 until it does"
            );
            to.warning(key, position, problem);
            to.silent_roots.push(path.clone());
            path
        }
    }
}

fn names(own: &HostSettings, to: &mut Findings<'_>) -> Vec<String> {
    let Some(item) = &own.names else {
        return Vec::new();
    };
    let lower = |name: &String| name.trim_end_matches('.').to_ascii_lowercase();
    let names: Vec<String> = item.get_ref().0.iter().map(lower).collect();
    for name in &names {
        let labels = name.strip_prefix("*.").unwrap_or(name);
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
        if labels.is_empty() || name.len() > NAME_BYTES_MAX || !labels.chars().all(good) {
            let problem = format!("`{name}` is not a host name; write a.example or *.example");
            to.usage_error("host.names", Some(item.span()), problem);
        }
    }
    names
}

fn index_names(names: &[String], position: Option<std::ops::Range<usize>>, to: &mut Findings<'_>) {
    for name in names {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            let problem = format!("`{name}` is not a file name; write a name, not a path");
            to.usage_error("index", position.clone(), problem);
        }
    }
}

fn error_pages(
    written: &BTreeMap<String, PathBuf>,
    position: Option<std::ops::Range<usize>>,
    to: &mut Findings<'_>,
) -> BTreeMap<u16, PathBuf> {
    let mut pages = BTreeMap::new();
    for (status, path) in written {
        let Some(code) = status.parse().ok().filter(|code| (400..600).contains(code)) else {
            let problem = format!(
                "`{status}` is not an error status (400 to 599); example: 404 = \"errors/404.html\""
            );
            to.usage_error("error-pages", position.clone(), problem);
            continue;
        };
        let written = path.clone();
        let look = move || lasting_path(&written).map(|path| (path.is_file(), path));
        let shown = path.display();
        let problem = match to.patience.ask(look) {
            Some(Ok((true, path))) => {
                pages.insert(code, path);
                continue;
            }
            Some(Ok((false, _))) => format!("{status}: {shown} is not a file"),
            Some(Err(error)) => format!("{status}: {shown}: {error}"),
            None => format!("{status}: {shown}: {SILENT}"),
        };
        to.environment_error("error-pages", position.clone(), problem);
    }
    pages
}
