//! What a location means for a request: which program might answer it, and as which file that is
//! looked up.
//!
//! Pure: whether there is such a file the worker finds out, by the same name cache as for files, so
//! that asking whether a program exists never waits for a disk either.
//!
//! Paths here are normalised. A location is found by the relative path, as `headway_http::path` makes it;
//! programs are named with the slash in front, as CGI names them.
//!
//! Source: RFC 3875 sections 3.1 and 4.1.13 on script names.

pub mod application;
mod cgi;
pub mod direct;
pub mod handoff;
mod peers;
mod reply;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use headway_files::{RootConfig, RootId};
use headway_gateway::cgi::{Split, split_at_suffix, splits_below};

use crate::config::{Config, Handler, Host, Location, PathMatch};
use crate::request::{ProgramName, VirtualHost};

pub use cgi::{LocalParty, is_nph, launch, launch_direct, variables};
pub use peers::{Asked, talk};
pub use reply::{Redirected, SWITCHING_PROTOCOLS, begin_reply, chunk, elsewhere};

/// A location, as the loop needs it.
pub struct Place {
    /// Which one of all.
    pub number: usize,
    /// How it is configured.
    pub location: Location,
    /// Where its programs are, if not below the document root; or an application's own files.
    own: Option<(RootId, Vec<u8>)>,
}

/// Where a program of this name would be.
#[derive(Debug, PartialEq, Eq)]
pub struct Candidate<'p> {
    /// Its name in the URL, and the rest of it.
    pub split: Split<'p>,
    /// Beneath this root …
    pub root: RootId,
    /// … under this name.
    pub name: &'p [u8],
}

impl Place {
    /// The programs that `path` may mean, the shortest name first; the one at `part`.
    pub fn candidate<'p>(
        &self,
        path: &'p [u8],
        part: usize,
        site: &VirtualHost,
    ) -> Option<Candidate<'p>> {
        let split = match &self.location.path {
            PathMatch::Prefix(prefix) => splits_below(path, prefix.as_bytes()).nth(part)?,
            PathMatch::Suffix(suffix) if part == 0 => split_at_suffix(path, suffix.as_bytes())?,
            PathMatch::Suffix(_) => return None,
        };
        Some(Candidate {
            split,
            root: self.root(site),
            name: self.name(split.script_name),
        })
    }

    /// Beneath which root its programs are.
    pub fn root(&self, site: &VirtualHost) -> RootId {
        self.own.as_ref().map_or(site.root, |(root, _)| *root)
    }

    /// Its own directory, with the number that names it as a root.
    pub fn own(&self) -> Option<(RootId, &[u8])> {
        let (root, directory) = self.own.as_ref()?;
        Some((*root, directory))
    }

    /// A path's name beneath that root.
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

/// The locations of one host.
#[derive(Default)]
struct Routes {
    /// Without their first slash, the longest first.
    prefixes: Vec<(Vec<u8>, Rc<Place>)>,
    suffixes: Vec<(Vec<u8>, Rc<Place>)>,
}

/// All locations.
pub struct Places {
    /// By host; empty if there is no location at all.
    sites: Vec<Routes>,
    all: Vec<Rc<Place>>,
    /// The document roots, by host.
    roots: Vec<Vec<u8>>,
}

impl Places {
    /// Those of a configuration.
    pub fn new(config: &Config) -> Places {
        let mut places = Places {
            sites: Vec::new(),
            all: Vec::new(),
            roots: config
                .hosts
                .iter()
                .map(|host| host.root.as_os_str().as_bytes().to_vec())
                .collect(),
        };
        if config.hosts.iter().all(|host| host.locations.is_empty()) {
            return places;
        }
        let mut own_root = config.hosts.len() as u32;
        for host in &config.hosts {
            let mut routes = Routes::default();
            for location in &host.locations {
                let own = own_directory(location, host).map(|directory| {
                    own_root += 1;
                    let directory = directory.into_os_string().into_encoded_bytes();
                    (RootId(own_root - 1), directory)
                });
                let place = Rc::new(Place {
                    number: places.all.len(),
                    location: location.clone(),
                    own,
                });
                places.all.push(place.clone());
                routes.add(place);
            }
            places.sites.push(routes);
        }
        places
    }

    /// The roots besides those of the hosts, in the order of their numbers.
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
        })
        .collect()
    }

    /// There is none: every path is a file's.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The one with this number.
    ///
    /// # Panics
    /// If there is none: numbers come from here.
    pub fn get(&self, number: usize) -> &Rc<Place> {
        &self.all[number]
    }

    /// The location of a relative path, if it has one. The longest prefix wins, and wins over any
    /// suffix.
    pub fn find(&self, site: &VirtualHost, path: &[u8]) -> Option<&Rc<Place>> {
        let routes = self.sites.get(site.root.0 as usize)?;
        let is_below = |prefix: &[u8]| {
            path.strip_prefix(prefix).is_some_and(|rest| {
                let whole = prefix.is_empty() || prefix.ends_with(b"/");
                whole || rest.is_empty() || rest.starts_with(b"/")
            })
        };
        let by_prefix = routes.prefixes.iter().find(|(prefix, _)| is_below(prefix));
        let has_suffix = |suffix: &[u8]| split_at_suffix(path, suffix).is_some();
        let by_suffix = || {
            routes
                .suffixes
                .iter()
                .find(|(suffix, _)| has_suffix(suffix))
        };
        by_prefix.or_else(by_suffix).map(|(_, place)| place)
    }

    /// Whether the application of a measurement answers somewhere.
    pub fn has_applications(&self) -> bool {
        let is_one = |place: &Rc<Place>| matches!(place.location.handler, Handler::SpecWeb99(_));
        self.all.iter().any(is_one)
    }

    /// A directory's index file may be a program here.
    pub fn has_suffixes(&self, site: &VirtualHost) -> bool {
        let routes = self.sites.get(site.root.0 as usize);
        routes.is_some_and(|routes| !routes.suffixes.is_empty())
    }

    /// The program that was found for a path of `site`: `split` of the URL, `name` beneath the
    /// root.
    pub fn program(
        &self,
        place: &Place,
        site: &VirtualHost,
        split: Split<'_>,
        name: &[u8],
    ) -> ProgramName {
        let root = match &place.own {
            Some((_, directory)) => directory,
            None => self.document_root(site),
        };
        ProgramName {
            place: place.number,
            script_name: split.script_name.to_vec(),
            path_info: split.path_info.to_vec(),
            file: join(root, name),
            document_root: self.document_root(site).to_vec(),
        }
    }

    /// The one program of a location that has one: the prefix is its name, the rest of the path its
    /// argument.
    pub fn only_program(&self, place: &Place, site: &VirtualHost, path: &[u8]) -> ProgramName {
        let prefix = match &place.location.path {
            PathMatch::Prefix(prefix) | PathMatch::Suffix(prefix) => prefix.as_bytes(),
        };
        let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
        let (script_name, path_info) = path.split_at(prefix.len().min(path.len()));
        let file = match &place.location.handler {
            Handler::Direct(command) | Handler::Pipe(command) => command
                .first()
                .map_or(&b""[..], |program| program.as_bytes()),
            _ => b"",
        };
        ProgramName {
            place: place.number,
            script_name: script_name.to_vec(),
            path_info: path_info.to_vec(),
            file: file.to_vec(),
            document_root: self.document_root(site).to_vec(),
        }
    }

    /// The application that all paths of a location belong to: named by the prefix, and told the
    /// rest.
    pub fn application(&self, place: &Place, site: &VirtualHost, path: &[u8]) -> ProgramName {
        let whole = [b"/", path].concat();
        let name_bytes = match &place.location.path {
            PathMatch::Prefix(prefix) => prefix.trim_end_matches('/').len(),
            PathMatch::Suffix(_) => whole.len(),
        };
        let (script_name, path_info) = whole.split_at(name_bytes.min(whole.len()));
        let split = Split {
            script_name,
            path_info,
        };
        self.program(place, site, split, place.name(script_name))
    }

    /// The document root of a host, without a slash at its end.
    pub fn document_root(&self, site: &VirtualHost) -> &[u8] {
        let root = self.roots.get(site.root.0 as usize);
        root.map_or(&b""[..], |root| root.strip_suffix(b"/").unwrap_or(root))
    }
}

impl Routes {
    fn add(&mut self, place: Rc<Place>) {
        match place.location.path.clone() {
            PathMatch::Prefix(prefix) => {
                self.prefixes.push((prefix.as_bytes()[1..].to_vec(), place))
            }
            PathMatch::Suffix(suffix) => self.suffixes.push((suffix.into_bytes(), place)),
        }
        self.prefixes
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    }
}

fn own_directory(location: &Location, host: &Host) -> Option<PathBuf> {
    match &location.handler {
        Handler::Cgi(cgi) => cgi.root.clone(),
        Handler::SpecWeb99(application) => Some(application.directory(&host.root)),
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
    use crate::config::{Environment, Settings};

    /// Two hosts; programs elsewhere in `/proc`, which is always there.
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

    fn places() -> Places {
        let settings = Settings::from_toml(CONFIGURATION, std::path::Path::new("t.toml")).unwrap();
        let checked = Config::check(&settings, None, &Environment::detect()).unwrap();
        Places::new(&checked.config)
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
        let places = places();
        let rule = |root, path: &str| {
            let place = places.find(&site(root), &path.as_bytes()[1..]);
            place.map(|place| place.location.path.to_string())
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
    fn programs_are_looked_for_where_they_are_when_a_path_may_name_several() {
        let places = places();
        let candidates = |root, path: &'static str| {
            let place = places.find(&site(root), &path.as_bytes()[1..]).unwrap();
            let all = (0..9).map_while(|part| place.candidate(path.as_bytes(), part, &site(root)));
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
        // The same location of another host has the same programs under a number of its own.
        assert_eq!(candidates(1, "/cgi-bin/a"), [is("/cgi-bin/a", 3, "a")]);
    }

    #[test]
    fn files_are_named_absolutely_when_a_program_was_found() {
        let places = places();
        let program = |root, path: &str| {
            let site = site(root);
            let place = places.find(&site, &path.as_bytes()[1..]).unwrap();
            let one = place.candidate(path.as_bytes(), 0, &site).unwrap();
            let program = places.program(place, &site, one.split, one.name);
            String::from_utf8(program.file).unwrap()
        };
        assert_eq!(program(0, "/cgi-bin/a/b"), "/proc/a");
        assert_eq!(program(0, "/a.cgi"), "/a.cgi");
        assert_eq!(program(1, "/app/a"), "/dev/app/a");
        assert_eq!(places.document_root(&site(0)), b"");
        assert_eq!(places.document_root(&site(1)), b"/dev");
    }

    #[test]
    fn application_gets_the_rest_of_the_path_when_it_owns_a_prefix() {
        let places = places();
        let named = |root, path: &str| {
            let site = site(root);
            let relative = &path.as_bytes()[1..];
            let place = places.find(&site, relative).unwrap();
            let program = places.application(place, &site, relative);
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
    fn roots_of_programs_are_numbered_after_those_of_the_hosts() {
        let settings = Settings::from_toml(CONFIGURATION, std::path::Path::new("t.toml")).unwrap();
        let checked = Config::check(&settings, None, &Environment::detect()).unwrap();
        let roots = Places::roots(&checked.config);
        let directories: Vec<_> = roots.iter().map(|root| root.directory.clone()).collect();
        assert_eq!(directories, [PathBuf::from("/proc"), "/proc".into()]);
    }
}
