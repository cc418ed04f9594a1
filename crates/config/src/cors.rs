//! The rules of `[[cors]]`: which pages of other origins may read responses.
//!
//! Source: the Fetch standard, "HTTP extensions" (<https://fetch.spec.whatwg.org/#http-cors-protocol>).

use serde::{Deserialize, Serialize};
use std::ops::Range;
use toml::Spanned;

use super::error::Findings;
use super::headers::is_token;
use super::keys::{Setting, Tables};
use super::ranges::{number, span, tables, value};
use super::settings::CorsSettings;
use super::units::{Millis, OneOrMany};

const ANY: &str = "*";
const METHODS: [&str; 3] = ["GET", "HEAD", "POST"];
const MAX_AGE_MS: u64 = 600_000;
/// No browser keeps the answer longer.
const MAX_AGE_MOST_MS: u64 = 24 * 3_600_000;

/// A rule of `[[cors]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorsRule {
    /// How the path begins, with its leading slash.
    pub prefix: String,
    /// Origins whose pages may read responses, or only `*`.
    pub origins: Vec<String>,
    /// Methods that they may use.
    pub methods: Vec<String>,
    /// Request headers that they may set, or only `*`.
    pub headers: Vec<String>,
    /// Response headers that they may read, or only `*`.
    pub expose: Vec<String>,
    /// Whether their requests may have cookies.
    pub credentials: bool,
    /// How long a browser may keep the answer to a preflight, in seconds.
    pub max_age_s: u64,
}

impl CorsRule {
    /// Whether all pages may read responses.
    pub fn allows_any(&self) -> bool {
        self.origins == [ANY]
    }
}

/// The rules of the top level or of a host.
pub(super) fn rules(from: &Setting<Tables<CorsSettings>>, to: &mut Findings<'_>) -> Vec<CorsRule> {
    let written = tables(from).iter();
    written
        .filter_map(|item| rule(item.get_ref(), item.span(), to))
        .collect()
}

fn rule(own: &CorsSettings, at: Range<usize>, to: &mut Findings<'_>) -> Option<CorsRule> {
    let Some(origins) = &own.origins else {
        if !own.has_faults {
            let problem = "a rule needs origins: origins = \"https://app.example.com\"";
            to.usage_error("cors", Some(at), problem.into());
        }
        return None;
    };
    let texts =
        |item: &Setting<OneOrMany<String>>| item.as_ref().map(|item| item.get_ref().0.clone());
    let limits = Millis(0)..=Millis(MAX_AGE_MOST_MS);
    let Millis(max_age) = number("cors.max-age", &own.max_age, Millis(MAX_AGE_MS), limits, to);
    let prefix = own.prefix.as_ref().map(Spanned::get_ref);
    let rule = CorsRule {
        prefix: prefix.map_or("/", String::as_str).into(),
        origins: origins.get_ref().0.clone(),
        methods: texts(&own.methods).unwrap_or_else(|| METHODS.map(str::to_owned).into()),
        headers: texts(&own.headers).unwrap_or_default(),
        expose: texts(&own.expose).unwrap_or_default(),
        credentials: value(&own.credentials).unwrap_or(false),
        max_age_s: max_age / 1_000,
    };
    check(&rule, own, to);
    Some(rule)
}

fn check(rule: &CorsRule, own: &CorsSettings, to: &mut Findings<'_>) {
    if !rule.prefix.starts_with('/') {
        let problem = format!("the prefix `{}` does not begin with a slash", rule.prefix);
        to.usage_error("cors.prefix", span(&own.prefix), problem);
    }
    let lists = [
        ("cors.origins", span(&own.origins), &rule.origins),
        ("cors.methods", span(&own.methods), &rule.methods),
        ("cors.headers", span(&own.headers), &rule.headers),
        ("cors.expose", span(&own.expose), &rule.expose),
    ];
    for (key, position, list) in lists {
        let is_origins = key == "cors.origins";
        if let Some(problem) = list.iter().find_map(|one| problem_of(one, is_origins)) {
            to.usage_error(key, position.clone(), problem);
        }
        if is_origins && list.is_empty() {
            to.usage_error(
                key,
                position.clone(),
                "at least one origin is needed".into(),
            );
        }
        let has_any = list.iter().any(|one| one == ANY);
        if has_any && list.len() > 1 {
            let problem = "* stands for all, so write it alone";
            to.usage_error(key, position.clone(), problem.into());
        }
        if has_any && rule.credentials {
            let problem = "browsers do not accept * with credentials; write each value, or remove credentials";
            to.usage_error(key, position, problem.into());
        }
    }
}

fn problem_of(text: &str, is_origin: bool) -> Option<String> {
    match is_origin {
        _ if text == ANY => None,
        false if is_token(text) => None,
        false => Some(format!("`{text}` is not a name of a header or method")),
        true if is_origin_of_web(text) => None,
        true => Some(format!(
            "`{text}` is not an origin, such as https://app.example.com or http://localhost:3000; it has no path"
        )),
    }
}

/// Whether a browser could send this as `Origin`: scheme and host in lower case, and no default port.
fn is_origin_of_web(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return false;
    };
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    let is_default = match scheme {
        "https" => authority.ends_with(":443"),
        "http" => authority.ends_with(":80"),
        _ => false,
    };
    let is_scheme = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    !scheme.is_empty()
        && scheme.chars().all(is_scheme)
        && !authority.is_empty()
        && authority.chars().all(good)
        && !is_default
}

#[cfg(test)]
mod tests {
    use super::is_origin_of_web;

    #[test]
    fn origins_are_as_browsers_send_them() {
        for origin in [
            "https://a.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "capacitor://localhost",
        ] {
            assert!(is_origin_of_web(origin), "{origin}");
        }
        for other in [
            "a.example",
            "https://",
            "https://a.example/",
            "https://A.example",
            "https://a.example:443",
            "http://a.example:80",
            "https://a.example\r\nX: y",
            "https://*.example",
            "null",
            "",
        ] {
            assert!(!is_origin_of_web(other), "{other:?}");
        }
    }
}
