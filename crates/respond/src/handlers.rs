//! Routing to handlers: which location a path belongs to, and which program file it may name.
//!
//! Pure: the worker finds out whether a file exists, with the same file cache as for static files,
//! so that looking for a program never blocks either.
//!
//! Paths are normalised. Locations are matched with the relative path, as `headway_http::path`
//! returns it; programs are named with the leading slash, as in CGI.
//!
//! Source: RFC 3875 sections 3.1 and 4.1.13 on script names.

pub mod application;
mod cgi;
pub mod direct_protocol;
pub mod accel_redirect;
mod codec;
mod response;

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use headway_files::{RootConfig, RootId, Symlinks};
use headway_gateway::cgi::{ScriptSplit, split_at_suffix, splits_below};

use headway_config::{Access, Config, Fallback, HandlerConfig, Host, Location, PathMatch};
use headway_request::{ProgramName, VirtualHost};

pub use cgi::{Endpoints, is_nph, launch, launch_direct, variables};
pub use codec::{CodecContext, new_codec};
pub use response::{RedirectKind, SWITCHING_PROTOCOLS, begin_response, chunk, redirected_request};

/// A location with what the loop needs to know about it.
pub struct Route {
    /// The index among all locations.
    pub number: usize,
    /// The configuration of the location.
    pub location: Location,
    /// The directory of its programs if that is not the document root, or of an application's own
    /// files.
    own: Option<(RootId, Vec<u8>)>,
}

/// A file that may be the program.
#[derive(Debug, PartialEq, Eq)]
pub struct Candidate<'p> {
    /// The name in the URL, and the rest of the path.
    pub split: ScriptSplit<'p>,
    /// The root directory …
    pub root: RootId,
    /// … and the name below it.
    pub name: &'p [u8],
}

impl Route {
    /// The program at index `part` among those that `path` may name, the shortest name first.
    pub fn candidate<'p>(
        &self,
        path: &'p [u8],
        part: usize,
        site: &VirtualHost,
    ) -> Option<Candidate<'p>> {
        let split = match &self.location.path {
            PathMatch::Prefix(prefix) => splits_below(path, prefix.as_bytes()).nth(part)?,
            PathMatch::Suffix(suffix) if part == 0 => split_at_suffix(path, suffix.as_bytes())?,
            PathMatch::Suffix(_) | PathMatch::Exact(_) => return None,
        };
        Some(Candidate {
            split,
            root: self.root(site),
            name: self.name(split.script_name),
        })
    }

    /// The root directory of its programs.
    pub fn root(&self, site: &VirtualHost) -> RootId {
        self.own.as_ref().map_or(site.root, |(root, _)| *root)
    }

    /// The directory of the location and its root ID.
    pub fn own(&self) -> Option<(RootId, &[u8])> {
        let (root, directory) = self.own.as_ref()?;
        Some((*root, directory))
    }

    /// What follows the prefix in a relative path, without a slash at its begin.
    pub fn rest<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        let mut rest = match &self.location.path {
            PathMatch::Prefix(prefix) => {
                let prefix = prefix.trim_matches('/');
                path.strip_prefix(prefix.as_bytes()).unwrap_or_default()
            }
            PathMatch::Suffix(_) | PathMatch::Exact(_) => b"",
        };
        while let [b'/', behind @ ..] = rest {
            rest = behind;
        }
        rest
    }

    /// The name of a path below that root.
    pub fn name<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        let name = match (&self.own, &self.location.path) {
            (Some(_), PathMatch::Prefix(prefix)) => {
                path.strip_prefix(prefix.as_bytes()).unwrap_or(path)
            }
            _ => path,
        };
        name.strip_prefix(b"/").unwrap_or(name)
    }
}

/// The locations of one virtual host.
#[derive(Default)]
struct HostRoutes {
    /// Without their leading slash.
    paths: Vec<(Vec<u8>, Rc<Route>)>,
    /// Without their leading slash, the longest first.
    prefixes: Vec<(Vec<u8>, Rc<Route>)>,
    suffixes: Vec<(Vec<u8>, Rc<Route>)>,
}

/// The routes of all virtual hosts.
pub struct Routes {
    /// By host; empty if there is no location at all.
    sites: Vec<HostRoutes>,
    all: Vec<Rc<Route>>,
    is_empty: bool,
    /// Whose requests the hosts answer.
    access: Vec<Access>,
    /// Which hosts have `clean-urls`.
    clean_urls: Vec<bool>,
    /// What is served in place of a path that does not exist, by host.
    fallbacks: Vec<Rc<[Fallback]>>,
    /// The document roots, by host.
    roots: Vec<Vec<u8>>,
}

impl Routes {
    /// The routes of a configuration.
    pub fn new(config: &Config) -> Routes {
        let mut routes = Routes {
            sites: Vec::new(),
            all: Vec::new(),
            is_empty: is_empty(config),
            access: config
                .hosts
                .iter()
                .map(|host| host.access.clone())
                .collect(),
            clean_urls: config.hosts.iter().map(|host| host.clean_urls).collect(),
            fallbacks: config
                .hosts
                .iter()
                .map(|host| host.fallback.clone().into())
                .collect(),
            roots: config
                .hosts
                .iter()
                .map(|host| host.root.as_os_str().as_bytes().to_vec())
                .collect(),
        };
        if config.hosts.iter().all(|host| host.locations.is_empty()) {
            return routes;
        }
        let mut own_root = config.hosts.len() as u32;
        for host in &config.hosts {
            let mut of_host = HostRoutes::default();
            for location in &host.locations {
                let own = own_directory(location, host).map(|directory| {
                    own_root += 1;
                    let directory = directory.into_os_string().into_encoded_bytes();
                    (RootId(own_root - 1), directory)
                });
                let route = Rc::new(Route {
                    number: routes.all.len(),
                    location: location.clone(),
                    own,
                });
                routes.all.push(route.clone());
                of_host.add(route);
            }
            routes.sites.push(of_host);
        }
        routes
    }

    /// The roots besides the document roots, ordered by ID.
    pub fn roots(config: &Config) -> Vec<RootConfig> {
        let own = config.hosts.iter().flat_map(|host| {
            let locations = host.locations.iter();
            locations.filter_map(|location| own_directory(location, host))
        });
        own.map(|directory| RootConfig {
            directory,
            index: Vec::new(),
            siblings: false,
            dotfiles: false,
            symlinks: Symlinks::default(),
            rules: Vec::new(),
        })
        .collect()
    }

    /// Whether every path is that of its file: there are no locations, no fallbacks and no rules of
    /// access.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Whether a host answers requests of this client.
    pub fn admits(&self, site: &VirtualHost, client: IpAddr) -> bool {
        let access = self.access.get(site.root.0 as usize);
        access.is_none_or(|access| access.admits(client))
    }

    /// What is served in place of a path that does not exist, in this order.
    pub fn fallbacks(&self, site: &VirtualHost) -> Option<Rc<[Fallback]>> {
        let paths = self.fallbacks.get(site.root.0 as usize);
        paths.filter(|paths| !paths.is_empty()).cloned()
    }

    /// The path to which one that names a file of HTML is redirected, if the host has `clean-urls`. Both are
    /// relative.
    pub fn clean_url<'p>(&self, site: &VirtualHost, path: &'p [u8]) -> Option<&'p [u8]> {
        let has_clean = self.clean_urls.get(site.root.0 as usize);
        let page = path
            .strip_suffix(b".html")
            .filter(|_| has_clean == Some(&true))?;
        let (directory, name) = match memchr::memrchr(b'/', page) {
            Some(slash) => page.split_at(slash + 1),
            None => (&page[..0], page),
        };
        match name {
            // It has no other name.
            b"" => None,
            b"index" if site.index.iter().any(|index| index == "index.html") => Some(directory),
            _ => Some(page),
        }
    }

    /// Number of locations.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The location with this index.
    ///
    /// # Panics
    /// If the index is out of range; indices come from here.
    pub fn get(&self, number: usize) -> &Rc<Route> {
        &self.all[number]
    }

    /// The location of a relative path, if there is one. The path itself wins, then the longest prefix, then
    /// any suffix.
    pub fn find(&self, site: &VirtualHost, path: &[u8]) -> Option<&Rc<Route>> {
        let routes = self.sites.get(site.root.0 as usize)?;
        let is_below = |prefix: &[u8]| {
            path.strip_prefix(prefix).is_some_and(|rest| {
                let whole = prefix.is_empty() || prefix.ends_with(b"/");
                whole || rest.is_empty() || rest.starts_with(b"/")
            })
        };
        let by_path = routes.paths.iter().find(|(exact, _)| exact == path);
        let by_prefix = || routes.prefixes.iter().find(|(prefix, _)| is_below(prefix));
        let has_suffix = |suffix: &[u8]| split_at_suffix(path, suffix).is_some();
        let by_suffix = || {
            routes
                .suffixes
                .iter()
                .find(|(suffix, _)| has_suffix(suffix))
        };
        let found = by_path.or_else(by_prefix).or_else(by_suffix);
        found.map(|(_, route)| route)
    }

    /// Whether a directory's index file may belong to a location of this host.
    pub fn has_locations(&self, site: &VirtualHost) -> bool {
        let routes = self.sites.get(site.root.0 as usize);
        routes.is_some_and(|routes| {
            let of_one = !routes.paths.is_empty();
            of_one || !routes.prefixes.is_empty() || !routes.suffixes.is_empty()
        })
    }

    /// The program found for a path of `site`: `split` of the URL, `name` below the root.
    pub fn program(
        &self,
        route: &Route,
        site: &VirtualHost,
        split: ScriptSplit<'_>,
        name: &[u8],
    ) -> ProgramName {
        ProgramName {
            route: route.number,
            script_name: split.script_name.to_vec(),
            path_info: split.path_info.to_vec(),
            file: join(self.directory(route, site), name),
        }
    }

    /// The directory of a location's programs.
    fn directory<'r>(&'r self, route: &'r Route, site: &VirtualHost) -> &'r [u8] {
        match &route.own {
            Some((_, directory)) => directory,
            None => self.document_root(site),
        }
    }

    /// The program of a location that has exactly one: the prefix is its name, the rest of the path
    /// its argument.
    pub fn only_program(&self, route: &Route, path: &[u8]) -> ProgramName {
        let prefix = match &route.location.path {
            PathMatch::Prefix(text) | PathMatch::Suffix(text) | PathMatch::Exact(text) => {
                text.as_bytes()
            }
        };
        let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
        let (script_name, path_info) = path.split_at(prefix.len().min(path.len()));
        let file = match &route.location.handler {
            HandlerConfig::Direct(command) | HandlerConfig::Pipe(command) => command
                .first()
                .map_or(&b""[..], |program| program.as_bytes()),
            _ => b"",
        };
        ProgramName {
            route: route.number,
            script_name: script_name.to_vec(),
            path_info: path_info.to_vec(),
            file: file.to_vec(),
        }
    }

    /// The application that owns all paths of a location: the prefix is its name, the rest of the
    /// path its argument.
    pub fn application(&self, route: &Route, site: &VirtualHost, path: &[u8]) -> ProgramName {
        let mut script_name = [b"/", path].concat();
        let name_bytes = match &route.location.path {
            PathMatch::Prefix(prefix) => prefix.trim_end_matches('/').len(),
            PathMatch::Suffix(_) | PathMatch::Exact(_) => script_name.len(),
        };
        let path_info = script_name.split_off(name_bytes.min(script_name.len()));
        ProgramName {
            route: route.number,
            file: join(self.directory(route, site), route.name(&script_name)),
            script_name,
            path_info,
        }
    }

    /// The document root of a host, without a slash at its end.
    pub fn document_root(&self, site: &VirtualHost) -> &[u8] {
        let root = self.roots.get(site.root.0 as usize);
        root.map_or(&b""[..], |root| root.strip_suffix(b"/").unwrap_or(root))
    }
}

fn is_empty(config: &Config) -> bool {
    let has_none = |host: &Host| {
        host.locations.is_empty() && host.fallback.is_empty() && host.access.is_open()
    };
    config.hosts.iter().all(has_none)
}

impl HostRoutes {
    fn add(&mut self, route: Rc<Route>) {
        match route.location.path.clone() {
            PathMatch::Prefix(prefix) => {
                self.prefixes.push((prefix.as_bytes()[1..].to_vec(), route))
            }
            PathMatch::Suffix(suffix) => self.suffixes.push((suffix.into_bytes(), route)),
            PathMatch::Exact(path) => self.paths.push((path.as_bytes()[1..].to_vec(), route)),
        }
        self.prefixes
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    }
}

fn own_directory(location: &Location, host: &Host) -> Option<PathBuf> {
    match &location.handler {
        HandlerConfig::Cgi(cgi) => cgi.root.clone(),
        HandlerConfig::Application(application) => Some(application.directory(&host.root)),
        _ => None,
    }
}

fn join(root: &[u8], name: &[u8]) -> Vec<u8> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    [root, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use headway_config::{Environment, Settings};

    /// Two hosts; the directory of programs is `/proc`, which always exists.
    const CONFIGURATION: &str = r#"
        root = "/"
        [[location]]
        prefix = "/cgi-bin/"
        cgi = true
        root = "/proc"
        [[location]]
        suffix = ".cgi"
        cgi = true
        [[location]]
        prefix = "/cgi-bin/files/"
        files = true
        [[host]]
        names = ["other.example"]
        root = "/dev"
        [[host.location]]
        prefix = "/app"
        cgi = true
    "#;

    fn routes() -> Routes {
        let settings = Settings::from_toml(CONFIGURATION, std::path::Path::new("t.toml")).unwrap();
        let checked = Config::check(&settings, None, &Environment::detect()).unwrap();
        Routes::new(&checked.config)
    }

    fn site(root: u32) -> VirtualHost {
        VirtualHost {
            root: RootId(root),
            index: Vec::new(),
            listing: false,
            dotfiles: false,
            error_pages: BTreeMap::new(),
        }
    }

    #[test]
    fn longest_prefix_wins_and_suffixes_come_last_when_several_rules_match() {
        let routes = routes();
        let rule = |root, path: &str| {
            let route = routes.find(&site(root), &path.as_bytes()[1..]);
            route.map(|route| route.location.path.to_string())
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(rule(0, "/cgi-bin/a"), is("/cgi-bin/"));
        assert_eq!(rule(0, "/cgi-bin/files/a.cgi"), is("/cgi-bin/files/"));
        assert_eq!(
            rule(0, "/cgi-bin"),
            None,
            "a file or a directory of that name"
        );
        assert_eq!(rule(0, "/x/a.cgi/more"), is(".cgi"));
        assert_eq!(rule(0, "/x/a.cgix"), None);
        assert_eq!(rule(0, "/app"), None, "another host's");
        assert_eq!(rule(1, "/app"), is("/app"));
        assert_eq!(rule(1, "/app/x"), is("/app"));
        assert_eq!(rule(1, "/apple"), None);
        assert_eq!(rule(1, "/cgi-bin/a"), is("/cgi-bin/"), "from the top level");
    }

    #[test]
    fn path_has_a_candidate_for_every_program_it_may_name() {
        let routes = routes();
        let candidates = |root, path: &'static str| {
            let route = routes.find(&site(root), &path.as_bytes()[1..]).unwrap();
            let all = (0..9).map_while(|part| route.candidate(path.as_bytes(), part, &site(root)));
            all.map(|one| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (text(one.split.script_name), one.root.0, text(one.name))
            })
            .collect::<Vec<_>>()
        };
        let is = |name: &str, root, file: &str| (name.to_owned(), root, file.to_owned());
        assert_eq!(
            candidates(0, "/cgi-bin/a/b"),
            [is("/cgi-bin/a", 2, "a"), is("/cgi-bin/a/b", 2, "a/b")]
        );
        assert_eq!(candidates(0, "/x/a.cgi/b"), [is("/x/a.cgi", 0, "x/a.cgi")]);
        assert_eq!(candidates(1, "/app/a"), [is("/app/a", 1, "app/a")]);
        // The same location of another host has the same programs under a root ID of its own.
        assert_eq!(candidates(1, "/cgi-bin/a"), [is("/cgi-bin/a", 3, "a")]);
    }

    #[test]
    fn found_program_has_an_absolute_file_name() {
        let routes = routes();
        let program = |root, path: &str| {
            let site = site(root);
            let route = routes.find(&site, &path.as_bytes()[1..]).unwrap();
            let one = route.candidate(path.as_bytes(), 0, &site).unwrap();
            let program = routes.program(route, &site, one.split, one.name);
            String::from_utf8(program.file).unwrap()
        };
        assert_eq!(program(0, "/cgi-bin/a/b"), "/proc/a");
        assert_eq!(program(0, "/a.cgi"), "/a.cgi");
        assert_eq!(program(1, "/app/a"), "/dev/app/a");
        assert_eq!(routes.document_root(&site(0)), b"");
        assert_eq!(routes.document_root(&site(1)), b"/dev");
    }

    #[test]
    fn application_with_a_prefix_gets_the_rest_as_path_info() {
        let routes = routes();
        let named = |root, path: &str| {
            let site = site(root);
            let relative = &path.as_bytes()[1..];
            let route = routes.find(&site, relative).unwrap();
            let program = routes.application(route, &site, relative);
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (text(program.script_name), text(program.path_info))
        };
        let is = |script_name: &str, rest: &str| (script_name.to_owned(), rest.to_owned());
        assert_eq!(named(1, "/app"), is("/app", ""));
        assert_eq!(named(1, "/app/a/b"), is("/app", "/a/b"));
        assert_eq!(named(0, "/cgi-bin/a"), is("/cgi-bin", "/a"));
        assert_eq!(named(0, "/x.cgi"), is("/x.cgi", ""));
    }

    #[test]
    fn program_roots_are_numbered_after_document_roots() {
        let settings = Settings::from_toml(CONFIGURATION, std::path::Path::new("t.toml")).unwrap();
        let checked = Config::check(&settings, None, &Environment::detect()).unwrap();
        let roots = Routes::roots(&checked.config);
        let directories: Vec<_> = roots.iter().map(|root| root.directory.clone()).collect();
        assert_eq!(directories, [PathBuf::from("/proc"), "/proc".into()]);
    }
}
