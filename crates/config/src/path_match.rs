//! Which requests belong to a location, by their path.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::error::Findings;
use super::ranges::span;
use super::settings::LocationSettings;

/// The paths of a location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathMatch {
    /// This path and those below it. The longest prefix wins, also over any suffix.
    Prefix(String),
    /// Paths with a component that ends so.
    Suffix(String),
    /// This path alone, before any prefix. Only for redirects.
    Exact(String),
}

impl fmt::Display for PathMatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathMatch::Prefix(text) | PathMatch::Suffix(text) | PathMatch::Exact(text) => {
                out.write_str(text)
            }
        }
    }
}

/// Returns what is written; `None` if it is wrong.
pub(super) fn path_match(
    key: &str,
    own: &LocationSettings,
    position: &Range<usize>,
    to: &mut Findings<'_>,
) -> Option<PathMatch> {
    let (text, rule, good): (&String, fn(String) -> PathMatch, bool) = match (
        &own.prefix,
        &own.suffix,
        &own.path,
    ) {
        (Some(prefix), None, None) => {
            let text = prefix.get_ref();
            (text, PathMatch::Prefix, is_prefix(text))
        }
        (None, Some(suffix), None) => {
            let text = suffix.get_ref();
            (text, PathMatch::Suffix, is_suffix(text))
        }
        (None, None, Some(path)) => {
            let text = path.get_ref();
            if own.redirect.is_none() && !own.has_faults {
                let problem = "it is only for redirect; write prefix";
                to.usage_error(&format!("{key}.path"), Some(path.span()), problem.into());
            }
            (text, PathMatch::Exact, is_prefix(text))
        }
        _ => {
            if !own.has_faults {
                let problem = "a location needs its paths: one of prefix = \"/cgi-bin/\", suffix = \".cgi\" \
                               and, for redirects, path = \"/old.html\"";
                to.usage_error(key, Some(position.clone()), problem.into());
            }
            return None;
        }
    };
    if !good {
        let problem = format!(
            "`{text}` is not a path; a prefix or a path begins with a slash and has no `.`, empty component or escape, and a suffix has no slash"
        );
        let written = [&own.prefix, &own.suffix, &own.path];
        let position = written.into_iter().find_map(span);
        to.usage_error(key, position, problem);
        return None;
    }
    Some(rule(text.clone()))
}

/// Prefixes are compared with decoded paths without dot components.
fn is_prefix(text: &str) -> bool {
    let Some(relative) = text.strip_prefix('/') else {
        return false;
    };
    let inner = relative.strip_suffix('/').unwrap_or(relative);
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    (relative.is_empty() || inner.split('/').all(plain))
        && !text.contains(['%', '?', '#'])
        && !text.chars().any(char::is_control)
}

fn is_suffix(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', '%', '?', '#']) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::{is_prefix, is_suffix};

    #[test]
    fn prefix_and_suffix_are_errors_when_no_path_can_match() {
        for prefix in ["/", "/cgi-bin/", "/app", "/a/b/", "/a.b/"] {
            assert!(is_prefix(prefix), "{prefix}");
        }
        for prefix in [
            "", "cgi-bin/", "//", "/a//b", "/./", "/a/../b", "/a%20b/", "/a?b", "/\n",
        ] {
            assert!(!is_prefix(prefix), "{prefix:?}");
        }
        assert!(is_suffix(".php") && is_suffix("cgi"));
        for suffix in ["", "/x", ".p?p", "\0"] {
            assert!(!is_suffix(suffix), "{suffix:?}");
        }
    }
}
