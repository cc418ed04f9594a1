//! Name-based virtual hosts: from the Host header to a document root and its rules.

use std::collections::{BTreeMap, HashMap};
use std::io;

use headway_config::{Endpoint, Host, Location, PathMatch};
use headway_files::{PathRule, RootConfig, RootId, RuleKind, Symlinks};
use headway_http::media::MediaTypes;
use headway_http::target::{Target, host_name};
use headway_request::VirtualHost;

/// All virtual hosts, and which of them are served at which address.
pub struct VirtualHosts {
    all: Vec<VirtualHost>,
    /// What is served at an address, once for addresses with the same hosts.
    served: Vec<Served>,
    /// For each address the number of what is served there.
    of_listeners: Vec<usize>,
    /// Names whose challenges the last host answers.
    challenged: Vec<Vec<u8>>,
}

/// The hosts of an address, by number.
#[derive(Default, PartialEq)]
struct Served {
    /// The first of them.
    default: usize,
    exact: HashMap<Vec<u8>, usize>,
    /// `.example.org` for `*.example.org`, longest first.
    suffixes: Vec<(Vec<u8>, usize)>,
}

impl Served {
    fn new(hosts: &[Host], address: Option<&Endpoint>) -> Served {
        let is_served = |host: &Host| address.is_none_or(|address| host.is_served_at(address));
        let mut served = Served::default();
        let numbered = hosts.iter().enumerate().filter(|(_, host)| is_served(host));
        served.default = numbered.clone().next().map_or(0, |(number, _)| number);
        numbered.for_each(|(number, host)| served.add(number, host));
        let length = |(suffix, _): &(Vec<u8>, usize)| std::cmp::Reverse(suffix.len());
        served.suffixes.sort_by_key(length);
        served
    }

    fn add(&mut self, number: usize, host: &Host) {
        for name in &host.names {
            let name = name.to_ascii_lowercase().into_bytes();
            match name.strip_prefix(b"*") {
                Some(suffix) => self.suffixes.push((suffix.to_vec(), number)),
                None => drop(self.exact.insert(name, number)),
            }
        }
    }

    /// The number of the host with the name in a Host header, which may contain a port.
    fn named(&self, host: Option<&[u8]>) -> Option<usize> {
        if self.exact.is_empty() && self.suffixes.is_empty() {
            return None;
        }
        let name = host_name(host?).to_ascii_lowercase();
        if let Some(number) = self.exact.get(&name) {
            return Some(*number);
        }
        let mut suffixes = self.suffixes.iter();
        let wildcard =
            suffixes.find(|(suffix, _)| name.len() > suffix.len() && name.ends_with(suffix));
        wildcard.map(|(_, number)| *number)
    }
}

/// The paths at which an authority looks for the answer to a challenge (RFC 8555, 8.3).
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

impl VirtualHosts {
    /// Reads the configured hosts and their error pages. May block: it runs before the worker
    /// serves. `listen` has the addresses, by which connections name their listener.
    pub fn open(hosts: &[Host], listen: &[Endpoint]) -> io::Result<Self> {
        let mut all = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            all.push(VirtualHost {
                root: RootId(index as u32),
                index: host.index.clone(),
                listing: host.listing,
                dotfiles: host.dotfiles,
                error_pages: error_pages(host)?,
            });
        }
        let mut served = vec![Served::new(hosts, listen.first())];
        let of_listeners = listen.iter().map(|address| {
            let own = Served::new(hosts, Some(address));
            let same = served.iter().position(|other| *other == own);
            same.unwrap_or_else(|| {
                served.push(own);
                served.len() - 1
            })
        });
        Ok(Self {
            of_listeners: of_listeners.collect(),
            all,
            served,
            challenged: Vec::new(),
        })
    }

    /// Has the last host answer the challenges of these names.
    pub fn answer_challenges(mut self, names: &[String]) -> Self {
        self.challenged = names.iter().map(|name| name.clone().into_bytes()).collect();
        self
    }

    /// The document roots for the `files` crate.
    pub fn roots(hosts: &[Host]) -> Vec<RootConfig> {
        hosts
            .iter()
            .map(|host| RootConfig {
                directory: host.root.clone(),
                index: host.index.clone(),
                siblings: host.precompressed,
                dotfiles: host.dotfiles,
                symlinks: followed_links(host.symlinks),
                rules: path_rules(&host.locations),
            })
            .collect()
    }

    /// The virtual host with this root, or the default host if there is none.
    pub fn get(&self, root: RootId) -> &VirtualHost {
        self.all.get(root.0 as usize).unwrap_or(&self.all[0])
    }

    /// The virtual host for a request that came to the address with this number. A challenge of ACME has
    /// one of its own, so that no rule of a site keeps the authority from the answer.
    pub fn find_for(&self, listener: u32, host: Option<&[u8]>, target: Target<'_>) -> &VirtualHost {
        if self.challenged.is_empty() {
            return self.find(listener, host);
        }
        let is_challenge = matches!(target, Target::Path(path) if path.starts_with(CHALLENGES));
        let name = host.filter(|_| is_challenge).map(host_name);
        let is_ours = |name: &[u8]| {
            let mut names = self.challenged.iter();
            names.any(|own| own.eq_ignore_ascii_case(name))
        };
        match name.is_some_and(is_ours) {
            true => &self.all[self.all.len() - 1],
            false => self.find(listener, host),
        }
    }

    /// The virtual host for a Host header value, which may contain a port.
    pub fn find(&self, listener: u32, host: Option<&[u8]>) -> &VirtualHost {
        let served = self.served_at(listener);
        &self.all[served.named(host).unwrap_or(served.default)]
    }

    /// The virtual host of requests which name none.
    pub fn default_at(&self, listener: u32) -> RootId {
        self.all[self.served_at(listener).default].root
    }

    /// Whether a request for this host that came elsewhere would get the same host at this address, or one
    /// which has its name.
    pub fn is_reached_at(&self, listener: u32, host: Option<&[u8]>, root: RootId) -> bool {
        let served = self.served_at(listener);
        served.named(host).is_some() || self.all[served.default].root == root
    }

    fn served_at(&self, listener: u32) -> &Served {
        let number = self.of_listeners.get(listener as usize);
        &self.served[number.copied().unwrap_or(0)]
    }
}

/// The links that a host's setting allows.
fn followed_links(setting: headway_config::Symlinks) -> Symlinks {
    match setting {
        headway_config::Symlinks::Inside => Symlinks::Inside,
        headway_config::Symlinks::Owner => Symlinks::Owner,
        headway_config::Symlinks::None => Symlinks::None,
        headway_config::Symlinks::Any => Symlinks::Any,
    }
}

fn error_pages(host: &Host) -> io::Result<BTreeMap<u16, (Vec<u8>, String)>> {
    let mut pages = BTreeMap::new();
    let types = MediaTypes::default();
    for (&status, path) in &host.error_pages {
        let path = host.root.join(path);
        let page = std::fs::read(&path).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("error page {status} ({}): {error}", path.display()),
            )
        })?;
        let media = types.of(path.as_os_str().as_encoded_bytes()).into_owned();
        pages.insert(status, (page, media));
    }
    Ok(pages)
}

/// Which paths of a host clients may not request, in the order in which a location is chosen: the
/// longest prefix, then any suffix. Rules that change nothing are left out.
fn path_rules(locations: &[Location]) -> Vec<PathRule> {
    let has_suffix =
        |location: &Location| location.internal && matches!(location.path, PathMatch::Suffix(_));
    let hides_names = locations.iter().any(has_suffix);
    let prefixes = locations
        .iter()
        .filter_map(|location| match &location.path {
            PathMatch::Prefix(prefix) => Some((&prefix[1..], location.internal)),
            PathMatch::Suffix(_) | PathMatch::Exact(_) => None,
        });
    let internal: Vec<&str> = prefixes
        .clone()
        .filter_map(|(prefix, internal)| internal.then_some(prefix))
        .collect();
    let counts =
        |prefix: &str| hides_names || internal.iter().any(|internal| prefix.starts_with(internal));
    let mut prefixes: Vec<_> = prefixes.filter(|(prefix, _)| counts(prefix)).collect();
    prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    let below = prefixes.into_iter().map(|(prefix, internal)| PathRule {
        kind: match internal {
            true => RuleKind::InternalBelow,
            false => RuleKind::PublicBelow,
        },
        text: prefix.to_owned(),
    });
    let suffixes = locations.iter().filter(|_| hides_names);
    let suffixes = suffixes.filter_map(|location| match &location.path {
        PathMatch::Suffix(suffix) => Some(PathRule {
            kind: match location.internal {
                true => RuleKind::InternalSuffix,
                false => RuleKind::PublicSuffix,
            },
            text: suffix.clone(),
        }),
        PathMatch::Prefix(_) | PathMatch::Exact(_) => None,
    });
    below.chain(suffixes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&[&str]]) -> VirtualHosts {
        let configs: Vec<Host> = names
            .iter()
            .map(|names| Host {
                names: names.iter().map(|name| name.to_string()).collect(),
                root: "/".into(),
                ..Host::default()
            })
            .collect();
        VirtualHosts::open(&configs, &[]).unwrap()
    }

    #[test]
    fn host_header_selects_the_most_specific_virtual_host() {
        let hosts = hosts(&[&[], &["a.example"], &["*.example"], &["*.b.example"]]);
        let root = |host: &str| hosts.find(0, Some(host.as_bytes())).root.0;
        assert_eq!(root("a.example"), 1);
        assert_eq!(root("A.EXAMPLE:8080"), 1);
        assert_eq!(root("a.example."), 1);
        assert_eq!(root("c.example"), 2);
        assert_eq!(root("c.b.example:1"), 3);
        assert_eq!(root(".example"), 0, "a wildcard needs a label in front");
        assert_eq!(root("other.test"), 0);
        assert_eq!(root("[::1]:80"), 0);
        assert_eq!(hosts.find(0, None).root.0, 0);
    }

    #[test]
    fn each_address_has_its_own_default_host_and_names() {
        let listen: Vec<Endpoint> = ["127.0.0.1:1", "127.0.0.1:2", "unix:/run/x"]
            .map(|address| address.parse().unwrap())
            .into();
        let host = |names: &[&str], at: &[usize]| Host {
            names: names.iter().map(|name| name.to_string()).collect(),
            listen: at.iter().map(|at| listen[*at].clone()).collect(),
            root: "/".into(),
            ..Host::default()
        };
        let hosts = [
            host(&["a.example"], &[0, 1]),
            host(&["*.b.example"], &[1, 2]),
            host(&["all.example"], &[]),
            host(&["a.example"], &[2]),
        ];
        let hosts = VirtualHosts::open(&hosts, &listen).unwrap();
        let found = |name: &str| [0, 1, 2].map(|at| hosts.find(at, Some(name.as_bytes())).root.0);
        assert_eq!(found("a.example"), [0, 0, 3]);
        assert_eq!(found("x.b.example"), [0, 1, 1]);
        assert_eq!(found("all.example"), [2, 2, 2]);
        assert_eq!(found("unknown"), [0, 0, 1]);
        assert_eq!([0, 1, 2].map(|at| hosts.default_at(at).0), [0, 0, 1]);
        let reached = |name: &str, root| {
            [0, 1, 2].map(|at| hosts.is_reached_at(at, Some(name.as_bytes()), RootId(root)))
        };
        assert_eq!(reached("a.example", 0), [true; 3]);
        assert_eq!(reached("x.b.example", 1), [false, true, true]);
        assert_eq!(reached("unknown", 0), [true, true, false]);
    }

    #[test]
    fn challenges_of_named_hosts_are_for_the_last_host() {
        let plain = hosts(&[&[], &["a.example"], &[]]);
        let hosts = hosts(&[&[], &["a.example"], &[]]).answer_challenges(&["a.example".to_owned()]);
        let root = |hosts: &VirtualHosts, host: &str, path: &str| {
            let target = Target::Path(path.as_bytes());
            hosts.find_for(0, Some(host.as_bytes()), target).root.0
        };
        let challenge = "/.well-known/acme-challenge/token";
        assert_eq!(root(&hosts, "a.example", challenge), 2);
        assert_eq!(root(&hosts, "A.Example:80", challenge), 2);
        assert_eq!(root(&hosts, "a.example", "/.well-known/other"), 1);
        assert_eq!(
            root(&hosts, "b.example", challenge),
            0,
            "another client may certify it"
        );
        assert_eq!(root(&plain, "a.example", challenge), 1);
    }
}
