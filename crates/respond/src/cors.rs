//! The rules of `[[cors]]`: what responses say about pages of other origins.
//!
//! Where all origins are allowed, each response says the same. Otherwise it says the origin of its
//! request, so it is built for it: [`ResponseContext::origin`](crate::ResponseContext::origin).

use headway_config::{Config, CorsRule};
use headway_files::RootId;
use headway_http::response::{FieldLines, HeadWriter, field_lines};

/// What only these rules say, whatever an upstream says.
const OWN_HEADERS: [&str; 3] = [
    "Access-Control-Allow-Origin",
    "Access-Control-Allow-Credentials",
    "Access-Control-Expose-Headers",
];

/// All rules, the most exact first.
pub struct CorsRules(Vec<Rule>);

struct Rule {
    /// Only for this virtual host.
    host: Option<RootId>,
    /// Without the leading slash.
    prefix: Vec<u8>,
    /// `None` allows all.
    origins: Option<Vec<Vec<u8>>>,
    /// The lines of a response to an allowed origin.
    allowed: FieldLines,
    /// More lines of the response to a preflight.
    preflight: FieldLines,
}

impl CorsRules {
    pub(crate) fn of(config: &Config) -> CorsRules {
        let of_all = config.cors.iter().map(|rule| (None, rule));
        let of_one = (0..).zip(&config.hosts).flat_map(|(number, host)| {
            let rules = host.cors.iter();
            rules.map(move |rule| (Some(RootId(number)), rule))
        });
        let mut rules: Vec<(Option<RootId>, &CorsRule)> = of_one.chain(of_all).collect();
        rules.sort_by_key(|(host, rule)| (host.is_none(), std::cmp::Reverse(rule.prefix.len())));
        let rules = rules.into_iter();
        CorsRules(rules.map(|(host, rule)| Rule::new(host, rule)).collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a rule for a relative path.
    pub fn apply_to(&self, host: RootId, path: &[u8]) -> bool {
        self.find(host, path).is_some()
    }

    /// Whether responses name this origin, since it is one of several.
    pub fn names(&self, host: RootId, path: &[u8], origin: &[u8]) -> bool {
        let origins = self.find(host, path).and_then(|rule| rule.origins.as_ref());
        origins.is_some_and(|all| all.iter().any(|one| one == origin))
    }

    /// Changes the header of a response for a relative path. `origin`: that of the request, if responses name
    /// it.
    pub(crate) fn apply<'o>(
        &self,
        writer: HeadWriter<'o>,
        host: RootId,
        path: &[u8],
        origin: Option<&[u8]>,
    ) -> HeadWriter<'o> {
        let Some(rule) = self.find(host, path) else {
            return writer;
        };
        let writer = OWN_HEADERS
            .iter()
            .fold(writer, |writer, name| writer.remove(name));
        let writer = match rule.origins {
            Some(_) => writer.field("Vary", "Origin"),
            None => writer,
        };
        match (&rule.origins, origin) {
            (None, _) => writer.field(OWN_HEADERS[0], "*").lines(&rule.allowed),
            (Some(_), Some(origin)) => writer.field(OWN_HEADERS[0], origin).lines(&rule.allowed),
            (Some(_), None) => writer,
        }
    }

    /// Adds what only the response to a preflight has.
    pub(crate) fn answer_preflight<'o>(
        &self,
        writer: HeadWriter<'o>,
        host: RootId,
        path: &[u8],
        origin: Option<&[u8]>,
    ) -> HeadWriter<'o> {
        match self.find(host, path) {
            Some(rule) if rule.origins.is_none() || origin.is_some() => {
                writer.lines(&rule.preflight)
            }
            _ => writer,
        }
    }

    fn find(&self, host: RootId, path: &[u8]) -> Option<&Rule> {
        let matches = |rule: &&Rule| {
            rule.host.is_none_or(|own| own == host) && path.starts_with(&rule.prefix)
        };
        self.0.iter().find(matches)
    }
}

impl Rule {
    fn new(host: Option<RootId>, from: &CorsRule) -> Rule {
        let credentials = from
            .credentials
            .then(|| (OWN_HEADERS[1], "true".to_owned()));
        let list = |name, list: &[String]| (!list.is_empty()).then(|| (name, list.join(", ")));
        let allowed = credentials
            .into_iter()
            .chain(list(OWN_HEADERS[2], &from.expose));
        let methods = list("Access-Control-Allow-Methods", &from.methods);
        let headers = list("Access-Control-Allow-Headers", &from.headers);
        let max_age = ("Access-Control-Max-Age", from.max_age_s.to_string());
        let preflight = methods.into_iter().chain(headers).chain([max_age]);
        let prefix = from.prefix.strip_prefix('/').unwrap_or(&from.prefix);
        let origins = from
            .origins
            .iter()
            .map(|origin| origin.clone().into_bytes());
        Rule {
            host,
            prefix: prefix.into(),
            origins: (!from.allows_any()).then(|| origins.collect()),
            allowed: field_lines(allowed),
            preflight: field_lines(preflight),
        }
    }
}
